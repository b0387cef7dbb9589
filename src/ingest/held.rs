//! Live batches that wait: behind a replay, or for a state to begin from. Pure. Invariant: numbers ascend; bytes and
//! count never exceed the bounds by more than one batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// Bytes that may wait in all streams of a process together. All clones are one.
#[derive(Debug, Clone)]
pub struct Budget {
    used: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Budget {
    /// A budget of which nothing is used.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { used: Arc::new(AtomicUsize::new(0)), bytes_max }
    }

    fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn is_exceeded(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.bytes_max
    }
}

/// The waiting batches of one stream.
#[derive(Debug)]
pub(super) struct Held {
    batches: VecDeque<HeldBatch>,
    bytes: usize,
    bytes_max: usize,
    batches_max: usize,
    budget: Budget,
    /// Batches before the oldest were dropped for want of room.
    overflowed: bool,
}

impl Held {
    /// An empty queue with its bounds, and its part in the bound of all.
    pub(super) fn new(bytes_max: usize, batches_max: usize, budget: Budget) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, bytes_max, batches_max, budget, overflowed: false }
    }

    /// Adds the newest. Beyond the bounds the oldest go and become a hole that is noticed when its successor is released.
    pub(super) fn push(&mut self, batch: HeldBatch) {
        debug_assert!(self.batches.back().is_none_or(|last| last.mark.seq < batch.mark.seq), "numbers ascend");
        self.bytes += batch.payload.len();
        self.budget.take(batch.payload.len());
        self.batches.push_back(batch);
        while self.batches.len() > 1 && self.is_full() {
            let _dropped = self.pop();
            self.overflowed = true;
        }
    }

    fn is_full(&self) -> bool {
        self.bytes > self.bytes_max || self.batches.len() > self.batches_max || self.budget.is_exceeded()
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self) -> Option<HeldBatch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.payload.len();
        self.budget.give_back(batch.payload.len());
        Some(batch)
    }

    /// The batch with this number.
    pub(super) fn find(&self, seq: Seq) -> Option<Mark> {
        let place = self.batches.binary_search_by_key(&seq, |batch| batch.mark.seq).ok()?;
        Some(self.batches[place].mark)
    }

    /// Drops everything up to this number.
    pub(super) fn drop_to(&mut self, seq: Seq) {
        while self.front().is_some_and(|front| front <= seq) {
            let _covered = self.pop();
        }
    }

    /// True if batches before the oldest were dropped for want of room.
    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed
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
        while self.batches.front().is_some_and(|batch| batch.connection != connection) {
            let _dropped = self.pop();
            self.overflowed = false;
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.budget.give_back(std::mem::take(&mut self.bytes));
        self.batches.clear();
        self.overflowed = false;
    }

    /// True when nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes_max: usize, batches_max: usize) -> Held {
        Held::new(bytes_max, batches_max, Budget::new(usize::MAX))
    }

    fn batch(seq: u64, len: usize, connection: u64) -> HeldBatch {
        HeldBatch { mark: Mark { seq: Seq(seq), payload_hash: 0 }, payload: vec![0; len].into(), connection }
    }

    #[test]
    fn beyond_the_bytes_the_oldest_go() {
        let mut held = held(100, 10);
        for seq in 0..4 {
            held.push(batch(seq, 40, 1));
        }
        assert_eq!((held.front(), held.back()), (Some(Seq(2)), Some(Seq(3))));
        held.push(batch(4, 500, 1));
        assert_eq!(held.front(), Some(Seq(4)), "the newest stays however large it is");
    }

    #[test]
    fn beyond_the_count_the_oldest_go() {
        let mut held = held(100, 3);
        for seq in 0..5 {
            held.push(batch(seq, 1, 1));
        }
        assert_eq!(held.front(), Some(Seq(2)));
    }

    #[test]
    fn batches_of_an_earlier_connection_can_be_dropped_alone() {
        let mut held = held(100, 10);
        held.push(batch(3, 40, 1));
        held.push(batch(4, 40, 2));
        held.keep_connection(2);
        assert_eq!(held.pop(), Some(batch(4, 40, 2)));
        assert!(held.is_empty());
        held.push(batch(5, 100, 2));
        assert_eq!(held.front(), Some(Seq(5)), "bytes of dropped batches are free again");
    }

    #[test]
    fn beyond_the_budget_of_all_the_oldest_of_whoever_adds_go() {
        let budget = Budget::new(100);
        let mut one = Held::new(1_000, 10, budget.clone());
        let mut two = Held::new(1_000, 10, budget.clone());
        (0..2).for_each(|seq| one.push(batch(seq, 40, 1)));
        (0..3).for_each(|seq| two.push(batch(seq, 20, 1)));
        assert_eq!((one.front(), two.front()), (Some(Seq(0)), Some(Seq(2))));
        assert!(two.has_overflowed() && !one.has_overflowed());
        drop(one);
        (3..7).for_each(|seq| two.push(batch(seq, 20, 1)));
        assert_eq!(two.front(), Some(Seq(2)), "what a stream held is free when it ends");
        two.clear();
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_number_is_found_and_everything_up_to_it_dropped() {
        let mut held = held(1_000, 10);
        [3, 5, 9].iter().for_each(|seq| held.push(batch(*seq, 1, 1)));
        assert_eq!((held.find(Seq(5)).map(|mark| mark.seq), held.find(Seq(4))), (Some(Seq(5)), None));
        held.drop_to(Seq(6));
        assert_eq!(held.front(), Some(Seq(9)));
    }
}
