//! A steady stream of stores, each removed again some steps later: what a full engine does all day.

use super::content::{Block, sequence, unique_id};
use super::wire::{self, Payload};

/// Blocks stored in one step.
pub(crate) const STEP_BLOCKS: u32 = 128;
/// Different sequences that are stored in turn.
const POOL: u64 = 512;
/// Steps after which a sequence is removed again.
pub(crate) const REMOVED_AFTER: u64 = 256;
/// Sequence numbers of this stream begin here, beyond those of fills.
const FIRST_NUMBER: u64 = 1 << 20;

/// Id of a sequence of the pool.
pub(crate) fn steady_id(worker: u64, number: u64) -> u64 {
    unique_id(worker, FIRST_NUMBER + number % POOL)
}

/// The endless stream of one worker.
pub(crate) struct Steady {
    pool: Vec<Vec<Block>>,
    step: u64,
}

impl Steady {
    /// At the first step.
    pub(crate) fn new(worker: u64) -> Self {
        let pool = (0..POOL).map(|number| sequence(steady_id(worker, number), STEP_BLOCKS, None));
        Self { pool: pool.collect(), step: 0 }
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

/// The streams of several workers, encoded once: from some step on they repeat themselves.
pub(crate) struct Tape {
    workers: Vec<Vec<Payload>>,
}

impl Tape {
    /// For so many workers.
    pub(crate) fn new(workers: u64) -> Self {
        let payloads = |worker| {
            let mut steady = Steady::new(worker);
            (0..REMOVED_AFTER + POOL).map(|_| steady.step()).collect()
        };
        Self { workers: (0..workers).map(payloads).collect() }
    }

    /// Worker and batch of a step of all together; workers take turns.
    pub(crate) fn at(&self, step: u64) -> (u64, &Payload) {
        let count = self.workers.len() as u64;
        let (worker, own) = (step % count, step / count);
        let at = if own < REMOVED_AFTER { own } else { REMOVED_AFTER + (own - REMOVED_AFTER) % POOL };
        (worker, &self.workers[worker as usize][at as usize])
    }

    /// Steps of all together until every batch also removes.
    pub(crate) fn warm_up_steps(&self) -> u64 {
        REMOVED_AFTER * self.workers.len() as u64
    }
}
