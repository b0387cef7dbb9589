//! The bytes of `/snapshot`, stream by stream: each is copied under the lock of its index, which is let go before a byte
//! is written.
//!
//! Memory: one copied stream, whose lists go away as they are written, and one piece.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::image::IndexHead;
use crate::recovery::Replica;
use crate::registry::{Export, ExportFilter, Registry};
use crate::wire::snapshot::{Encoder, Header};

/// How much of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything; with a filter, its streams without registrations.
    All,
    /// Registrations and tombstones only.
    Registrations,
}

/// A snapshot being written.
pub struct SnapshotWriter {
    encoder: Encoder,
    exports: VecDeque<Export>,
    /// The index whose streams are being written.
    index: Option<IndexHead>,
    finished: bool,
}

impl SnapshotWriter {
    /// Nothing is copied yet.
    #[must_use]
    pub fn new(replica: &Replica, registry: &Registry, filter: &ExportFilter, part: Part) -> Self {
        let mut encoder = Encoder::new(Header {
            replica_id: replica.id().to_owned(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            created_ms: super::now_ms(),
        });
        let ExportFilter { model, tenant, instance } = filter;
        let everything = model.is_none() && tenant.is_none() && instance.is_none();
        if everything || part == Part::Registrations {
            encoder.registrations(registry.registrations());
            encoder.tombstones(registry.tombstones());
        }
        let exports = if part == Part::All { registry.exports(filter).into() } else { VecDeque::new() };
        Self { encoder, exports, index: None, finished: false }
    }

    /// The next bytes, about 256 KiB; none after the trailer. Blocks for as long as copying a stream takes.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.encoder.next_piece() {
                return Some(piece);
            }
            if self.finished {
                return None;
            }
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        let Some(export) = self.exports.pop_front() else {
            if self.index.take().is_some() {
                self.encoder.end_index();
            }
            self.encoder.finish();
            self.finished = true;
            return;
        };
        let Some(stream) = export.copy() else {
            return; // It ended meanwhile.
        };
        if self.index.as_ref() != Some(&export.head) {
            if self.index.replace(export.head.clone()).is_some() {
                self.encoder.end_index();
            }
            self.encoder.begin_index(export.head);
        }
        self.encoder.stream(stream);
    }
}
