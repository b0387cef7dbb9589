//! Removing: from the tree, from pending blocks, from the sets of groups; ageing of lower tiers; clears.

use super::groups::key_of;
use super::owner::{Aged, HELD};
use super::record::Writer;
use super::store::piece_of;
use super::tree::{At, NodeId, RECENT};
use crate::event::{Batch, IgnoreReason, Removed};
use crate::trust::Reason;

/// A removal of one hash, as an event or as ageing says it.
#[derive(Clone, Copy)]
struct One {
    hash: u64,
    row: usize,
    /// Group key; none when the event names none.
    key: Option<u32>,
    /// Copies that are left, when the engine says so.
    remaining: Option<u64>,
}

impl Writer<'_> {
    /// Applies one `BlockRemoved`.
    pub(super) fn removed(&mut self, batch: &Batch, removed: &Removed) {
        self.me.applied[1] += 1;
        if removed.remaining_copies_invalid {
            self.me.ignore(IgnoreReason::CopyCountLength);
        }
        let (row, key) = (removed.tier as usize, key_of(&removed.group));
        for (index, hash) in batch.hashes_of(&removed.hashes).iter().enumerate() {
            let remaining = removed.remaining_copies.as_ref().and_then(|copies| copies.get(index).copied());
            // An owner that lost blocks to a bound does not err when it removes them.
            let lost = self.me.evicted > 0 && self.me.trust.has(Reason::Memory);
            if !self.remove_one(One { hash: hash.0, row, key, remaining }) && !lost {
                self.me.ignore(IgnoreReason::UnknownRemoval);
            }
        }
        self.me.judge_pending(self.now_ms);
    }

    /// Ages out blocks of lower tiers that were stored too long before `now_ms`, a batch's timestamp.
    pub(super) fn age(&mut self, timestamp_ms: u64) {
        let Some(ttl_ms) = self.me.spec.lower_tier_ttl_ms else {
            return;
        };
        let ages = self.me.ages.get_or_insert_default();
        ages.clock_ms = ages.clock_ms.max(timestamp_ms);
        let mut expired = Vec::new();
        while let Some((stored_ms, aged)) = ages.queue.front().copied() {
            if stored_ms.saturating_add(ttl_ms) > ages.clock_ms {
                break;
            }
            ages.queue.pop_front();
            if ages.stored.get(&aged) == Some(&stored_ms) {
                ages.stored.remove(&aged);
                expired.push(aged);
            }
        }
        for Aged { hash, row, group } in expired {
            self.remove_one(One { hash, row: usize::from(row), key: group, remaining: Some(0) });
        }
        self.me.judge_pending(self.now_ms);
    }

    /// False if the owner does not hold it there.
    fn remove_one(&mut self, one: One) -> bool {
        let held = (one.hash, one.row as u8);
        let copies = self.me.takes_copies();
        let Some(groups) = self.me.groups.as_deref_mut() else {
            return self.remove_main(one);
        };
        if one.key.is_none() && groups.group(None).is_none() {
            // A removal that names no group where stores did: any removal removes, the safe side.
            let mut any = false;
            for key in groups.keys() {
                any |= groups.remove(key, held, false, Some(0)).is_some();
            }
            return self.remove_main(One { remaining: Some(0), ..one }) || any;
        }
        if groups.decides(one.key) {
            let Some(last) = groups.remove(one.key, held, copies, one.remaining) else {
                return false;
            };
            if last && groups.sets && !groups.main_holds(held) {
                self.take(one.hash, one.row);
                self.me.copies.remove(&held);
            }
            return true;
        }
        if groups.group(one.key).is_some() || !groups.any_in_tree() {
            return self.remove_main(one);
        }
        false
    }

    fn remove_main(&mut self, one: One) -> bool {
        if self.me.pending.is_none()
            && let Some(at) = self.common_place(one.hash, self.me.next_removed)
        {
            self.me.next_removed = self.beside(at);
            let held = self.tree.node(at.node).held(one.row, self.slot).contains(at.off);
            if held && self.me.take_copy(one.hash, one.row as u8, one.remaining) {
                self.give_up_common(at, one.hash, one.row);
            }
            return held;
        }
        let placed = self.places(one.hash).iter().any(|place| self.rows(*place, one.hash) & 1 << one.row != 0);
        let pending = self.me.pending.as_ref().is_some_and(|pending| pending.rows(one.hash) & 1 << one.row != 0);
        if !placed && !pending {
            return false;
        }
        if self.me.take_copy(one.hash, one.row as u8, one.remaining) {
            self.take(one.hash, one.row);
        }
        true
    }

    /// Takes the last copy of a hash off a row, with all blocks that it names.
    pub(super) fn take(&mut self, hash: u64, row: usize) {
        for piece in (1..self.me.spans.get(&hash).copied().unwrap_or(1)).rev() {
            let piece = piece_of(hash, piece);
            self.me.copies.remove(&(piece, row as u8));
            self.give_up(piece, row);
        }
        self.give_up(hash, row);
        if let Some(pending) = &mut self.me.pending {
            pending.remove(hash, row);
            if pending.block_count() == 0 {
                self.me.pending = None;
            }
        }
    }

    /// The engine emptied its cache: everything held becomes removed but remembered, what was removed before goes first.
    pub(super) fn cleared(&mut self) {
        self.me.applied[2] += 1;
        let mut forgotten = Vec::new();
        for node in self.tree.node_ids() {
            self.clear_node(node, &mut forgotten);
        }
        let overlays: Vec<_> = self.me.overlays.keys().copied().collect();
        for place in overlays {
            let Some(overlay) = self.me.overlays.get_mut(&place) else {
                continue;
            };
            for record in &mut overlay.records {
                if record.rows & HELD != 0 {
                    record.rows = 1 << RECENT;
                    forgotten.push(record.hash);
                }
            }
        }
        // A hash with several places is entered once per place, and remembered once. All of them went in one moment; by
        // number they stand in the same order in every replica.
        forgotten.sort_unstable();
        forgotten.dedup();
        for hash in forgotten {
            if !self.me.pieces.contains(&hash) {
                self.me.recents.push(hash);
            }
        }
        self.me.blocks = [0; 4];
        self.me.order = None;
        self.me.digest.clear();
        self.me.copies.clear();
        self.me.pending = None;
        self.me.pending_dropped = false;
        self.me.ages = self
            .me
            .ages
            .take()
            .map(|ages| Box::new(super::owner::Ages { clock_ms: ages.clock_ms, ..Default::default() }));
        if let Some(groups) = &mut self.me.groups {
            groups.clear_held();
        }
        self.me.twins = 0;
        self.me.announced_block_size = None;
        self.me.end_content_reasons(self.now_ms);
        self.trim_recents();
    }

    /// Turns what the owner holds of a node into remembered blocks; adds the hashes of the common form to `forgotten`.
    fn clear_node(&mut self, node: NodeId, forgotten: &mut Vec<u64>) {
        let taken = self.tree.take_owner(node, self.slot);
        let len = self.tree.node(node).len;
        for (row, cover) in taken.iter().enumerate() {
            for off in cover.iter().flat_map(super::cover::Cover::offsets) {
                let fresh = self.tree.node_mut(node).row_mut(RECENT).insert(self.slot, (off, off + 1), len) == 1;
                let at = At { node, off };
                let was_recent = taken[RECENT].as_ref().is_some_and(|cover| cover.contains(off));
                if row != RECENT && fresh && !was_recent && !self.me.overlays.contains_key(&self.tree.place(at)) {
                    forgotten.push(self.tree.hash_of(self.slot, at));
                }
            }
        }
    }
}
