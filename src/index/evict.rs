//! A bound on held blocks: the oldest blocks of the largest owner go first.
//!
//! The rule. A block is as old as its latest store on any tier, or as the youngest block that its owner holds below it if
//! that is younger: so a chain is given up from its end, and never cut in the middle. The oldest block of the owner that
//! holds most goes, from all its tiers; among owners that hold as much as each other they take turns. A block that was
//! given up stays remembered like one that its engine removed, so that what is stored below it later finds its place.
//!
//! An owner that lost blocks is degraded (`memory`) until it is emptied or rebuilt: its answers are lower bounds. Without
//! a limit nothing is kept for this.

use rustc_hash::FxHashSet;

use super::api::ApplyContext;
use super::holders::Slot;
use super::index::PrefixIndex;
use super::owner::HELD;
use super::recent::Recents;
use super::record::Writer;
use super::tree::{At, Place};
use crate::trust::Reason;

/// Beyond the limit, this part of it is given up at once, so that not every batch has to.
const SLACK_PART: u64 = 64;
/// Blocks that the largest owner gives up at least before owners are compared again.
const TURN: u64 = 64;

/// Held hashes of one owner by age.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By their latest store.
    ring: Recents,
    /// Older than all in the ring, and kept for what is held below them.
    kept: FxHashSet<u64>,
}

impl Order {
    /// A hash is stored; `held`: it was held before.
    pub(super) fn store(&mut self, hash: u64, held: bool) {
        if held && !self.kept.remove(&hash) {
            self.ring.revive(hash);
        }
        self.ring.push(hash);
    }

    /// A hash is held no more.
    fn leave(&mut self, hash: u64) {
        if !self.kept.remove(&hash) {
            self.ring.revive(hash);
        }
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        self.ring.bytes() + super::bytes::map::<u64>(self.kept.capacity())
    }

    /// Gives room back after many removals.
    pub(super) fn trim(&mut self) {
        self.ring.trim();
        super::bytes::trim_set(&mut self.kept);
    }
}

impl PrefixIndex {
    /// Brings the index below its bound on held blocks, if it is above.
    pub(super) fn keep_bound(&mut self, now_ms: u64) {
        let max = self.limits.held_blocks_max;
        if max == 0 || self.held_count <= max {
            return;
        }
        let target = max - max / SLACK_PART;
        while self.held_count > target {
            let Some((largest, lead)) = self.largest() else {
                return;
            };
            let id = self.slots[largest as usize].as_deref().expect("the largest owner exists").id;
            let wanted = (self.held_count - target).min(lead.max(TURN));
            let before = self.held_count;
            self.write(id, ApplyContext { seq: crate::ids::Seq(0), now_ms }, |writer| writer.evict(wanted));
            self.evicted += before - self.held_count;
            if self.held_count == before {
                debug_assert!(false, "what is held has an age");
                return;
            }
        }
    }

    /// The owner that holds most, the first by name among equals, and by how many blocks it leads.
    fn largest(&self) -> Option<(Slot, u64)> {
        let mut best: Option<(Slot, u64)> = None;
        let mut second = 0;
        for slot in &self.order {
            let held = self.slots[*slot as usize].as_deref().map_or(0, |owner| owner.blocks.iter().sum());
            match best {
                Some((_, most)) if held <= most => second = held.max(second),
                _ => {
                    second = best.map_or(0, |(_, most)| most);
                    best = Some((*slot, held));
                }
            }
        }
        best.filter(|(_, most)| *most > 0).map(|(slot, most)| (slot, most - second))
    }
}

impl Writer<'_> {
    /// Notes the age of a hash that is stored in the tree; `held`: it was held before.
    pub(super) fn note_store(&mut self, hash: u64, held: bool) {
        if self.limits.held_blocks_max > 0 && !self.me.pieces.contains(&hash) {
            self.me.order.get_or_insert_default().store(hash, held);
        }
    }

    /// Notes that a hash is held no more; `at`: where it was.
    pub(super) fn note_leave(&mut self, hash: u64, at: At) {
        let Some(order) = self.me.order.as_deref_mut() else {
            return;
        };
        order.leave(hash);
        if order.kept.is_empty() {
            return;
        }
        // A hash that names several blocks hangs below the one before the first of them.
        let span = self.me.spans.get(&hash).copied().unwrap_or(1);
        let Some(at) = (1..span).try_fold(at, |at, _| self.tree.before(at)) else {
            return;
        };
        // What was kept for it alone is the oldest again.
        if let Some(above) = self.kept_above(at)
            && let Some(order) = self.me.order.as_deref_mut()
        {
            order.kept.remove(&above);
            order.ring.push_front(above);
        }
    }

    /// The hash of the block before, if it was kept for a block below and has none any more.
    fn kept_above(&self, at: At) -> Option<u64> {
        let above = self.tree.before(at)?;
        let hash = self.last_piece(above)?;
        let order = self.me.order.as_deref()?;
        (order.kept.contains(&hash) && !self.holds_below(hash)).then_some(hash)
    }

    /// The owner's hash of a block that it holds, if it is the last block that the hash names.
    fn last_piece(&self, at: At) -> Option<u64> {
        let held = (0..4).any(|row| self.tree.node(at.node).held(row, self.slot).contains(at.off));
        let hash = held.then(|| self.view().main(at))?;
        (!self.me.pieces.contains(&hash)).then_some(hash)
    }

    /// True if the owner holds a block right below one of the places of a hash.
    fn holds_below(&self, hash: u64) -> bool {
        let below = |place: &Place| self.tree.holds_below(self.slot, self.tree.at(*place));
        self.places(hash).iter().any(below)
    }

    /// Gives up so many blocks, oldest first.
    fn evict(&mut self, wanted: u64) {
        self.evicting = true;
        let held = |writer: &Self| writer.me.blocks.iter().sum::<u64>();
        let goal = held(self).saturating_sub(wanted);
        while held(self) > goal {
            let Some(order) = self.me.order.as_deref_mut() else {
                break;
            };
            if let Some(hash) = order.ring.pop() {
                order.kept.insert(hash);
                if !self.holds_below(hash) {
                    self.evict_one(hash);
                }
            } else if let Some(hash) = order.kept.iter().min().copied() {
                // Hashes with several places may each hang below the other.
                self.evict_one(hash);
            } else {
                break;
            }
        }
        self.me.trust.set(Reason::Memory, true, self.now_ms);
        self.reclaim();
    }

    /// Takes a hash off all tiers, out of all groups.
    fn evict_one(&mut self, hash: u64) {
        let before: u64 = self.me.blocks.iter().sum();
        let rows = self.rows_anywhere(hash) & HELD;
        for row in (0..4u8).filter(|row| rows & 1 << row != 0) {
            if let Some(groups) = self.me.groups.as_deref_mut() {
                for key in groups.keys() {
                    groups.remove(key, (hash, row), false, Some(0));
                }
            }
            self.me.copies.remove(&(hash, row));
            self.take(hash, usize::from(row));
        }
        self.me.evicted += before - self.me.blocks.iter().sum::<u64>();
    }

    /// Ages for what came without: parents first, so that the youngest are the ends of chains.
    pub(super) fn order_held(&mut self) {
        if self.limits.held_blocks_max == 0 {
            return;
        }
        let records = super::dump::records(self.view());
        let mut seen = FxHashSet::default();
        let mut order = Order::default();
        for record in records.iter().filter(|record| !self.me.pieces.contains(&record.hash)) {
            if seen.insert(record.hash) {
                order.ring.push(record.hash);
            }
        }
        self.me.order = Some(Box::new(order));
    }
}
