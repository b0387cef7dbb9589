//! A steady stream of stores, each removed again some steps later: what a full engine does all day.

use super::content::{Block, sequence, unique_id};
use super::wire::{self, Payload};

/// Blocks stored in one step.
pub(crate) const STEP_BLOCKS: u32 = 128;
/// Different sequences that are stored in turn.
const POOL: u64 = 512;
/// Steps after which a sequence is removed again.
const REMOVED_AFTER: u64 = 256;
/// Sequence numbers of this stream begin here, beyond those of fills.
const FIRST_NUMBER: u64 = 1 << 20;

/// The endless stream of one worker.
pub(crate) struct Steady {
    pool: Vec<Vec<Block>>,
    step: u64,
}

impl Steady {
    /// At the first step.
    pub(crate) fn new(worker: u64) -> Self {
        let id = |number| unique_id(worker, FIRST_NUMBER + number);
        Self { pool: (0..POOL).map(|number| sequence(id(number), STEP_BLOCKS, None)).collect(), step: 0 }
    }

    /// Batch of the next step: one Stored event, and one Removed event for the sequence of some steps before.
    pub(crate) fn step(&mut self) -> Payload {
        let of = |step: u64| &self.pool[(step % POOL) as usize];
        let removed = self.step.checked_sub(REMOVED_AFTER).map(of);
        let removed: Vec<u64> = removed.into_iter().flatten().map(|block| block.engine).collect();
        let payload = wire::stored_and_removed(of(self.step), &removed);
        self.step += 1;
        payload
    }
}
