//! What has happened to streams and owners between two looks at them. Pure.

use std::collections::BTreeMap;

use crate::controller::conditions::LocalRank;
use crate::ids::{IndexKey, InstanceId, Owner};

/// A publisher of an instance: its ranks with one endpoint share counters.
type Stream = (IndexKey, InstanceId, String);

/// Counters as seen last.
#[derive(Debug, Clone, Copy)]
struct Seen {
    lives: u64,
    gaps: u64,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::controller) struct Happened {
    /// Of the owners of a stream, the first.
    pub(in crate::controller) owner: (IndexKey, Owner),
    pub(in crate::controller) what: What,
    pub(in crate::controller) times: u64,
}

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::controller) enum What {
    Restarted,
    Gap,
    /// The engine announces another block size than the index has.
    BlockSizeMismatch(u32),
}

/// Remembers what it has seen. The first look at a stream is where counting begins; a block size that does not fit lasts,
/// and is news at the first look too.
#[derive(Debug, Default)]
pub(in crate::controller) struct Tracker {
    streams: BTreeMap<Stream, Seen>,
    mismatches: BTreeMap<(IndexKey, Owner), u32>,
}

/// Gaps that came in since the look before, by owner; ranks of one stream share one number.
pub(in crate::controller) type NewGaps = BTreeMap<(IndexKey, Owner), u64>;

impl Tracker {
    /// Looks at all ranks. What is not there any more is forgotten.
    pub(in crate::controller) fn look(
        &mut self,
        ranks: &BTreeMap<(IndexKey, Owner), LocalRank>,
    ) -> (Vec<Happened>, NewGaps) {
        let (mut happened, mut new_gaps) = (Vec::new(), NewGaps::new());
        let before = std::mem::take(&mut self.streams);
        let mismatches = std::mem::take(&mut self.mismatches);
        for (owner, rank) in ranks {
            if let Some(size) = rank.announced_block_size {
                self.mismatches.insert(owner.clone(), size);
                if mismatches.get(owner) != Some(&size) {
                    let what = What::BlockSizeMismatch(size);
                    happened.push(Happened { owner: owner.clone(), what, times: 1 });
                }
            }
            let stream = (owner.0.clone(), owner.1.instance.clone(), rank.endpoint.clone());
            if self.streams.contains_key(&stream) {
                continue;
            }
            let seen = Seen { lives: rank.lives, gaps: rank.gaps };
            // Smaller numbers are those of another stream with the same name: it was registered anew.
            let known = before.get(&stream).filter(|known| known.lives <= seen.lives && known.gaps <= seen.gaps);
            if let Some(known) = known {
                let counted = [(What::Restarted, seen.lives - known.lives), (What::Gap, seen.gaps - known.gaps)];
                for (what, times) in counted.into_iter().filter(|(_, times)| *times > 0) {
                    happened.push(Happened { owner: owner.clone(), what, times });
                }
            }
            new_gaps.insert(owner.clone(), seen.gaps - known.map_or(0, |known| known.gaps));
            self.streams.insert(stream, seen);
        }
        (happened, new_gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::conditions::tests::local;

    fn owner(instance: &str, rank: u32) -> (IndexKey, Owner) {
        let instance = InstanceId::parse(instance).expect("an id");
        (IndexKey::new("m", "default"), Owner::new(instance, rank))
    }

    fn ranks(list: &[(&str, u32, &str, u64, u64)]) -> BTreeMap<(IndexKey, Owner), LocalRank> {
        let rank = |(instance, rank, endpoint, lives, gaps): &(&str, u32, &str, u64, u64)| {
            let seen = LocalRank { endpoint: (*endpoint).to_owned(), lives: *lives, gaps: *gaps, ..local() };
            (owner(instance, *rank), seen)
        };
        list.iter().map(rank).collect()
    }

    #[track_caller]
    fn check(tracker: &mut Tracker, seen: &[(&str, u32, &str, u64, u64)], want: &[(&str, What, u64)], gaps: &[u64]) {
        let (happened, new_gaps) = tracker.look(&ranks(seen));
        let found: Vec<_> = happened.iter().map(|it| (it.owner.1.instance.to_string(), it.what, it.times)).collect();
        let want: Vec<_> = want.iter().map(|(name, what, times)| ((*name).to_owned(), *what, *times)).collect();
        assert_eq!(found, want);
        assert_eq!(new_gaps.into_values().collect::<Vec<_>>(), gaps);
    }

    #[test]
    fn the_first_look_is_no_news_and_later_differences_are() {
        let mut tracker = Tracker::default();
        check(&mut tracker, &[("a", 0, "e", 3, 7)], &[], &[7]);
        check(&mut tracker, &[("a", 0, "e", 3, 7)], &[], &[0]);
        let both = [("a", What::Restarted, 1), ("a", What::Gap, 2)];
        check(&mut tracker, &[("a", 0, "e", 4, 9), ("b", 0, "f", 1, 1)], &both, &[2, 1]);
        check(&mut tracker, &[("b", 0, "f", 1, 2)], &[("b", What::Gap, 1)], &[1]);
        // It went, and came back.
        check(&mut tracker, &[("a", 0, "e", 5, 10), ("b", 0, "f", 1, 2)], &[], &[10, 0]);
    }

    #[test]
    fn ranks_of_one_publisher_count_once() {
        let mut tracker = Tracker::default();
        check(&mut tracker, &[("a", 0, "e", 0, 1), ("a", 1, "e", 0, 1), ("a", 2, "f", 0, 5)], &[], &[1, 5]);
        let gap = [("a", What::Gap, 2)];
        check(&mut tracker, &[("a", 0, "e", 0, 3), ("a", 1, "e", 0, 3), ("a", 2, "f", 0, 5)], &gap, &[2, 0]);
    }

    #[test]
    fn a_stream_that_was_registered_anew_counts_from_zero() {
        let mut tracker = Tracker::default();
        check(&mut tracker, &[("a", 0, "e", 2, 6)], &[], &[6]);
        check(&mut tracker, &[("a", 0, "e", 0, 1)], &[], &[1]);
        check(&mut tracker, &[("a", 0, "e", 0, 2)], &[("a", What::Gap, 1)], &[1]);
    }

    #[test]
    fn a_block_size_is_told_once() {
        let mut tracker = Tracker::default();
        let mut seen = ranks(&[("a", 0, "e", 0, 0)]);
        let mut look = |size: Option<u32>| {
            seen.values_mut().for_each(|rank| rank.announced_block_size = size);
            tracker.look(&seen).0.into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(look(None), []);
        assert_eq!(look(Some(32)), [What::BlockSizeMismatch(32)]);
        assert_eq!(look(Some(32)), []);
        assert_eq!(look(Some(64)), [What::BlockSizeMismatch(64)]);
    }
}
