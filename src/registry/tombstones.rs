//! Registrations by hand that were taken back lately, so that another replica does not bring them back. Bounded in time
//! and number.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{IndexKey, Owner};
use crate::image::Tombstone;

/// Longest memory: far longer than replicas need to hear of it.
const AGE_MS_MAX: u64 = 10 * 60 * 1000;

/// Most owners; the oldest go first.
const OWNERS_MAX: usize = 65_536;

/// Times of unregistrations by owner.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    times: BTreeMap<(IndexKey, Owner), u64>,
    order: BTreeSet<(u64, IndexKey, Owner)>,
}

impl Tombstones {
    /// Keeps the later time.
    pub(super) fn keep(&mut self, key: &IndexKey, owner: &Owner, at_ms: u64) {
        if self.at(key, owner).is_some_and(|known| known >= at_ms) {
            return;
        }
        self.remove(key, owner);
        self.times.insert((key.clone(), owner.clone()), at_ms);
        self.order.insert((at_ms, key.clone(), owner.clone()));
        while self.times.len() > OWNERS_MAX {
            self.drop_oldest();
        }
    }

    /// The owner was registered again.
    pub(super) fn remove(&mut self, key: &IndexKey, owner: &Owner) {
        if let Some(at_ms) = self.times.remove(&(key.clone(), owner.clone())) {
            self.order.remove(&(at_ms, key.clone(), owner.clone()));
        }
    }

    /// When the owner was unregistered, if that is remembered.
    pub(super) fn at(&self, key: &IndexKey, owner: &Owner) -> Option<u64> {
        self.times.get(&(key.clone(), owner.clone())).copied()
    }

    /// Drops what is too old.
    pub(super) fn forget_old(&mut self, now_ms: u64) {
        while self.order.first().is_some_and(|(at_ms, ..)| now_ms.saturating_sub(*at_ms) > AGE_MS_MAX) {
            self.drop_oldest();
        }
    }

    /// All of them.
    pub(super) fn list(&self) -> Vec<Tombstone> {
        let one = |((key, owner), at_ms): (&(IndexKey, Owner), &u64)| Tombstone {
            key: key.clone(),
            instance: owner.instance.clone(),
            dp_rank: owner.rank.0,
            at_ms: *at_ms,
        };
        self.times.iter().map(one).collect()
    }

    fn drop_oldest(&mut self) {
        if let Some((_, key, owner)) = self.order.pop_first() {
            self.times.remove(&(key, owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> IndexKey {
        IndexKey::new("m", "t")
    }

    #[test]
    fn the_later_time_counts_for_ten_minutes() {
        let (mut tombstones, owner) = (Tombstones::default(), Owner::new(1, 0));
        tombstones.keep(&key(), &owner, 5_000);
        tombstones.keep(&key(), &owner, 4_000);
        assert_eq!(tombstones.at(&key(), &owner), Some(5_000));
        tombstones.keep(&key(), &owner, 6_000);
        tombstones.forget_old(6_000 + AGE_MS_MAX);
        assert_eq!(tombstones.list().len(), 1);
        tombstones.forget_old(6_001 + AGE_MS_MAX);
        assert_eq!((tombstones.list().len(), tombstones.order.len()), (0, 0));
    }

    #[test]
    fn a_registration_ends_it() {
        let (mut tombstones, owner) = (Tombstones::default(), Owner::new(1, 0));
        tombstones.keep(&key(), &owner, 5_000);
        tombstones.remove(&key(), &owner);
        assert_eq!((tombstones.at(&key(), &owner), tombstones.order.len()), (None, 0));
    }

    #[test]
    fn beyond_the_number_the_oldest_go() {
        let mut tombstones = Tombstones::default();
        let owners = OWNERS_MAX as u64 + 2;
        (0..owners).for_each(|n| tombstones.keep(&key(), &Owner::new(n, 0), n));
        assert_eq!(tombstones.list().len(), OWNERS_MAX);
        assert_eq!(tombstones.at(&key(), &Owner::new(1, 0)), None);
        assert_eq!(tombstones.at(&key(), &Owner::new(2, 0)), Some(2));
    }
}
