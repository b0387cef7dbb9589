//! The bytes of `/snapshot`, stream by stream: each is copied under the lock of its index, which is let go before a byte
//! is written.

use bytes::Bytes;

use crate::recovery::Replica;
use crate::registry::{ExportFilter, Registry};

/// How much of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    All,
    /// Registrations and tombstones only.
    Registrations,
}

/// A snapshot being written.
pub struct SnapshotWriter {}

impl SnapshotWriter {
    /// Nothing is copied yet.
    #[must_use]
    pub fn new(_replica: &Replica, _registry: &Registry, _filter: &ExportFilter, _part: Part) -> Self {
        todo!("recovery")
    }

    /// The next bytes, about 256 KiB; none after the trailer. Blocks for as long as copying a stream takes.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        todo!("recovery")
    }
}
