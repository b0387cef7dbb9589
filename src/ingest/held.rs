//! Live batches that wait behind a replay. Pure. Invariant: numbers ascend; bytes and count never exceed the bounds by
//! more than one batch.

use std::collections::VecDeque;

use crate::ids::Seq;
use crate::ingest::Mark;

/// One waiting batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldBatch {
    /// Number and payload hash.
    pub(super) mark: Mark,
    /// A copy, so that no read buffer is kept alive.
    pub(super) payload: Box<[u8]>,
    /// Which connection brought it.
    pub(super) connection: u64,
}

/// The waiting batches of one stream.
#[derive(Debug)]
pub(super) struct Held {
    batches: VecDeque<HeldBatch>,
    bytes: usize,
    bytes_max: usize,
    batches_max: usize,
}

impl Held {
    /// An empty queue with its bounds.
    pub(super) fn new(bytes_max: usize, batches_max: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, bytes_max, batches_max }
    }

    /// Adds the newest. Beyond the bounds the oldest go and become a hole that is noticed when its successor is released.
    pub(super) fn push(&mut self, batch: HeldBatch) {
        debug_assert!(self.batches.back().is_none_or(|last| last.mark.seq < batch.mark.seq), "numbers ascend");
        self.bytes += batch.payload.len();
        self.batches.push_back(batch);
        while self.batches.len() > 1 && (self.bytes > self.bytes_max || self.batches.len() > self.batches_max) {
            let _dropped = self.pop();
        }
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self) -> Option<HeldBatch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.payload.len();
        Some(batch)
    }

    /// Number of the oldest.
    pub(super) fn front(&self) -> Option<Seq> {
        self.batches.front().map(|batch| batch.mark.seq)
    }

    /// Number of the newest.
    pub(super) fn back(&self) -> Option<Seq> {
        self.batches.back().map(|batch| batch.mark.seq)
    }

    /// Drops what other connections than `connection` brought.
    pub(super) fn keep_connection(&mut self, connection: u64) {
        self.batches.retain(|batch| batch.connection == connection);
        self.bytes = self.batches.iter().map(|batch| batch.payload.len()).sum();
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }

    /// True when nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64, len: usize, connection: u64) -> HeldBatch {
        HeldBatch { mark: Mark { seq: Seq(seq), payload_hash: 0 }, payload: vec![0; len].into(), connection }
    }

    #[test]
    fn beyond_the_bytes_the_oldest_go() {
        let mut held = Held::new(100, 10);
        for seq in 0..4 {
            held.push(batch(seq, 40, 1));
        }
        assert_eq!((held.front(), held.back()), (Some(Seq(2)), Some(Seq(3))));
        held.push(batch(4, 500, 1));
        assert_eq!(held.front(), Some(Seq(4)), "the newest stays however large it is");
    }

    #[test]
    fn beyond_the_count_the_oldest_go() {
        let mut held = Held::new(100, 3);
        for seq in 0..5 {
            held.push(batch(seq, 1, 1));
        }
        assert_eq!(held.front(), Some(Seq(2)));
    }

    #[test]
    fn batches_of_an_earlier_connection_can_be_dropped_alone() {
        let mut held = Held::new(100, 10);
        held.push(batch(3, 40, 1));
        held.push(batch(4, 40, 2));
        held.keep_connection(2);
        assert_eq!(held.pop(), Some(batch(4, 40, 2)));
        assert!(held.is_empty());
        held.push(batch(5, 100, 2));
        assert_eq!(held.front(), Some(Seq(5)), "bytes of dropped batches are free again");
    }
}
