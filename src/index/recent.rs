//! Hashes that an owner no longer holds but that still name a place, oldest first, and its latest removals for explanations.
//!
//! Pure. A hash that is held again leaves a stale entry in the ring, which is passed over when its turn comes.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::bytes;
use crate::ids::Seq;

/// Ring of removed but remembered hashes.
#[derive(Debug, Default)]
pub(super) struct Recents {
    ring: VecDeque<u64>,
    /// How many of the oldest entries of a hash in the ring do not count.
    stale: FxHashMap<u64, u32>,
    live: usize,
}

impl Recents {
    /// Hashes remembered.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Remembers a hash that is not remembered.
    pub(super) fn push(&mut self, hash: u64) {
        if self.ring.len() > 2 * self.live + 1024 {
            self.compact();
        }
        self.ring.push_back(hash);
        self.live += 1;
    }

    /// Remembers a hash as the oldest one, whose last entry was taken with [`Self::pop`].
    pub(super) fn push_front(&mut self, hash: u64) {
        self.ring.push_front(hash);
        self.live += 1;
    }

    /// The hash is held again, or given up.
    pub(super) fn revive(&mut self, hash: u64) {
        self.live -= 1;
        *self.stale.entry(hash).or_default() += 1;
    }

    /// Takes the oldest hash.
    pub(super) fn pop(&mut self) -> Option<u64> {
        while let Some(hash) = self.ring.pop_front() {
            if !self.is_stale(hash) {
                self.live -= 1;
                return Some(hash);
            }
        }
        None
    }

    /// Remembered hashes, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let mut stale = self.stale.clone();
        self.ring.iter().copied().filter(move |hash| match stale.get_mut(hash) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        })
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        self.ring.capacity() * 8 + bytes::map::<(u64, u32)>(self.stale.capacity())
    }

    /// Gives room back after many left.
    pub(super) fn trim(&mut self) {
        bytes::trim_ring(&mut self.ring);
        bytes::trim_map(&mut self.stale);
    }

    fn compact(&mut self) {
        for hash in std::mem::take(&mut self.ring) {
            if !self.is_stale(hash) {
                self.ring.push_back(hash);
            }
        }
    }

    fn is_stale(&mut self, hash: u64) -> bool {
        if self.stale.is_empty() {
            return false;
        }
        match self.stale.get_mut(&hash) {
            None => false,
            Some(1) => self.stale.remove(&hash).is_some(),
            Some(count) => {
                *count -= 1;
                true
            }
        }
    }
}

/// One removal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removal {
    pub(super) hash: u64,
    pub(super) seq: Seq,
    pub(super) at_ms: u64,
}

/// The latest removals of an owner.
#[derive(Debug, Default)]
pub(super) struct Removals {
    ring: VecDeque<Removal>,
    /// Older ones are forgotten.
    pub(super) overflowed: bool,
}

impl Removals {
    pub(super) fn push(&mut self, removal: Removal, max: usize) {
        if self.ring.len() >= max {
            self.ring.pop_front();
            self.overflowed = true;
        }
        if max > 0 {
            self.ring.push_back(removal);
        }
    }

    /// The latest removal of a hash.
    pub(super) fn find(&self, hash: u64) -> Option<Removal> {
        self.ring.iter().rev().find(|removal| removal.hash == hash).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        self.ring.capacity() * size_of::<Removal>()
    }

    /// All of them, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Removal> {
        self.ring.iter()
    }
}
