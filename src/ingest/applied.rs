//! What of a stream stands in the index: written under the index's write lock together with the batches, so that whoever
//! holds the read lock sees both of one moment.

use std::collections::VecDeque;

use crate::ids::{DpRank, Seq};
use crate::image::Position;
use crate::index::OwnerId;

/// Batches between two digests that are kept.
pub(super) const DIGEST_STEP: u64 = 256;

/// Digests kept per stream.
const DIGESTS_MAX: usize = 64;

/// A stream as the index shows it.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// Where it stands.
    pub position: Position,
    /// Owners that it feeds; those that another stream is registered for are not here.
    pub owners: Vec<(DpRank, OwnerId)>,
    /// Digest of all its owners after the batch whose number is a multiple of 256, oldest first.
    pub history: VecDeque<(Seq, u64)>,
}

impl Applied {
    /// Nothing of this life is in the index.
    pub(super) fn begin_anew(&mut self) {
        self.position.mark = None;
        self.history.clear();
    }

    /// The content was replaced by a state at this position.
    pub(super) fn place(&mut self, position: Position) {
        self.position = position;
        self.history.clear();
    }

    /// Keeps a digest.
    pub(super) fn remember(&mut self, seq: Seq, digest: u64) {
        if self.history.len() == DIGESTS_MAX {
            self.history.pop_front();
        }
        self.history.push_back((seq, digest));
    }
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
