//! What of a stream stands in the index: written under the index's write lock together with the batches, so that whoever
//! holds the read lock sees both of one moment.

use std::collections::VecDeque;

use crate::ids::Seq;
use crate::image::Position;
use crate::index::OwnerId;

/// Batches between two digests that are kept.
pub const DIGEST_STEP: u64 = 256;

/// Digests kept per stream.
pub const DIGESTS_MAX: usize = 64;

/// A stream as the index shows it.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// Where it stands.
    pub position: Position,
    /// Owners that it feeds and no other stream.
    pub owners: Vec<OwnerId>,
    /// Digest of all its owners after the batch whose number is a multiple of [`DIGEST_STEP`], oldest first.
    pub history: VecDeque<(Seq, u64)>,
}

/// How a stream that only holds what it hears goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// The content of its owners was replaced by a state at this position.
    Snapshot(Position),
    /// Its owners hold a state of unknown position (`/dump`): `no_watermark` until a replay from the beginning.
    Unplaced,
    /// Nothing was replaced: from where it stood.
    Keep,
}
