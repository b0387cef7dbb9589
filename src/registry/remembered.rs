//! Last batches of streams that were unregistered: only to recognise a publisher's restart. Bounded in time and number.

use std::collections::{HashMap, VecDeque};

use crate::ids::{IndexKey, InstanceId};
use crate::ingest::Mark;
use crate::zmtp::Endpoint;

/// Longest memory.
const AGE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Most streams; the oldest go first.
const STREAMS_MAX: usize = 65_536;

/// One publisher as one index saw it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Publisher {
    /// The index.
    pub(super) key: IndexKey,
    /// The instance.
    pub(super) instance: InstanceId,
    /// Its address.
    pub(super) endpoint: Endpoint,
}

/// Last batches by publisher.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    marks: HashMap<Publisher, (Mark, u64)>,
    /// In order of time; an entry counts only if its time is still the publisher's.
    order: VecDeque<(Publisher, u64)>,
}

impl Remembered {
    /// Keeps the last batch of a publisher.
    pub(super) fn keep(&mut self, publisher: Publisher, mark: Mark, now_ms: u64) {
        self.order.push_back((publisher.clone(), now_ms));
        self.marks.insert(publisher, (mark, now_ms));
        self.forget_old(now_ms);
    }

    /// Takes the last batch of a publisher out.
    pub(super) fn take(&mut self, publisher: &Publisher, now_ms: u64) -> Option<Mark> {
        self.forget_old(now_ms);
        self.marks.remove(publisher).map(|(mark, _)| mark)
    }

    fn forget_old(&mut self, now_ms: u64) {
        while let Some((publisher, at_ms)) = self.order.front() {
            let current = self.marks.get(publisher).is_some_and(|(_, kept_ms)| kept_ms == at_ms);
            let too_old = now_ms.saturating_sub(*at_ms) > AGE_MS_MAX;
            let too_many = self.order.len() > STREAMS_MAX;
            if current && !too_old && !too_many {
                return;
            }
            if current {
                self.marks.remove(publisher);
            }
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Seq;

    fn publisher(instance: u64) -> Publisher {
        Publisher {
            key: IndexKey::new("m", "t"),
            instance: instance.into(),
            endpoint: Endpoint::parse("tcp://127.0.0.1:5557").unwrap(),
        }
    }

    fn mark(seq: u64) -> Mark {
        Mark { seq: Seq(seq), payload_hash: 0 }
    }

    #[test]
    fn a_mark_is_kept_for_a_day() {
        let mut remembered = Remembered::default();
        remembered.keep(publisher(1), mark(5), 1_000);
        remembered.keep(publisher(2), mark(6), 1_000);
        assert_eq!(remembered.take(&publisher(1), 1_000 + AGE_MS_MAX), Some(mark(5)));
        assert_eq!(remembered.take(&publisher(1), 1_000), None, "taken once");
        assert_eq!(remembered.take(&publisher(2), 1_001 + AGE_MS_MAX), None);
    }

    #[test]
    fn a_later_mark_replaces_the_earlier_one_and_its_time() {
        let mut remembered = Remembered::default();
        remembered.keep(publisher(1), mark(5), 0);
        remembered.keep(publisher(1), mark(9), AGE_MS_MAX);
        assert_eq!(remembered.take(&publisher(1), AGE_MS_MAX + 1), Some(mark(9)));
    }

    #[test]
    fn beyond_the_number_the_oldest_go() {
        let mut remembered = Remembered::default();
        let streams = STREAMS_MAX as u64 + 2;
        for instance in 0..streams {
            remembered.keep(publisher(instance), mark(instance), 7);
        }
        assert_eq!(remembered.marks.len(), STREAMS_MAX);
        assert_eq!(remembered.take(&publisher(1), 7), None);
        assert_eq!(remembered.take(&publisher(2), 7), Some(mark(2)));
    }
}
