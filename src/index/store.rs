//! Storing: main groups into the tree, side groups into their sets, hash-only events by what the hash is known to name.
//!
//! Runs in the common form (one hash per place, equal to the first storer's) are held by range; everything else goes
//! block by block through `record`.

use smallvec::SmallVec;

use super::groups::{Announcement, Class, Groups, key_of};
use super::holders::{Held, Holders};
use super::owner::{Aged, Ages, HELD};
use super::record::{Foreign, Parent, Writer};
use super::tree::{At, NodeId, Place, RECENT, ROOT};
use crate::event::{Batch, ExtraKey, IgnoreReason, SkipReason, Stored};
use crate::hash;
use crate::ids::{LocalHash, Namespace, Tier};
use crate::trust::Reason;

/// Blocks in a row to store on one row of one owner.
pub(super) struct Run<'a> {
    pub(super) hashes: &'a [u64],
    pub(super) locals: &'a [u64],
    pub(super) row: usize,
    pub(super) namespace: Namespace,
    pub(super) parent: Parent,
}

/// A store of a main group whose numbers fit: tokens = hashes x `span` x block size.
pub(super) struct Whole<'a> {
    pub(super) hashes: &'a [u64],
    pub(super) token_bytes: &'a [u8],
    pub(super) extras: &'a [ExtraKey],
    pub(super) locals: &'a [LocalHash],
    pub(super) named: Namespace,
    pub(super) row: usize,
    pub(super) span: u32,
    /// Group that stores it.
    pub(super) group: Option<u32>,
}

/// Device stores in a row that come as twins before the groups count as ambiguous.
const TWINS_MAX: u32 = 16;

impl Writer<'_> {
    /// Applies one `BlockStored`. `twin`: the batch stores the same hashes on the same tier twice.
    pub(super) fn stored(&mut self, batch: &Batch, stored: &Stored, twin: bool) {
        self.me.applied[0] += 1;
        if self.over_limit {
            self.me.skip(SkipReason::Memory, self.now_ms);
            return;
        }
        let hashes: SmallVec<[u64; 64]> = batch.hashes_of(&stored.hashes).iter().map(|hash| hash.0).collect();
        let tokens = stored.token_bytes.len() as u64 / 4;
        let size = stored.block_size.filter(|_| tokens > 0);
        let complete = size.is_none_or(|size| hashes.len() as u64 * u64::from(size) >= tokens);
        let groupless = stored.group.id.is_none() && stored.group.kind.is_none();
        if groupless {
            self.judge_twins(stored.tier, twin, complete);
        }
        match self.classify(stored, complete) {
            Class::Side(key) => self.store_side(key, &hashes, stored.tier as usize),
            Class::Main(key) => self.store_main(batch, stored, &hashes, key),
        }
    }

    fn judge_twins(&mut self, tier: Tier, twin: bool, complete: bool) {
        if !complete {
            self.me.trust.set(Reason::AmbiguousGroups, true, self.now_ms);
        } else if tier == Tier::Device {
            self.me.twins = if twin { self.me.twins + 1 } else { 0 };
            if self.me.twins >= TWINS_MAX {
                self.me.trust.set(Reason::AmbiguousGroups, true, self.now_ms);
            } else if !twin {
                self.me.trust.set(Reason::AmbiguousGroups, false, self.now_ms);
            }
        }
    }

    fn classify(&mut self, stored: &Stored, complete: bool) -> Class {
        if self.me.groups.is_none() && key_of(&stored.group).is_none() {
            return Class::Main(None);
        }
        let used = self.me.blocks.iter().any(|blocks| *blocks > 0) || self.me.recents.len() > 0;
        let groups = self.me.groups.get_or_insert_default();
        let announcement = Announcement { info: stored.group, block_tokens: stored.block_size, complete };
        if groups.demotes(&stored.group) {
            self.demote(key_of(&stored.group));
        }
        let groups = self.me.groups.get_or_insert_default();
        let (class, begins) = groups.announce(announcement, used);
        let unknown = groups.has_unknown();
        self.me.trust.set(Reason::UnknownGroup, unknown, self.now_ms);
        if begins {
            self.begin_sets(key_of(&stored.group));
        }
        class
    }

    /// Main groups begin to keep sets: the first one's is what the tree holds.
    fn begin_sets(&mut self, newcomer: Option<u32>) {
        let held = self.held();
        if let Some(groups) = &mut self.me.groups {
            groups.adopt(newcomer, held.into_iter());
        }
    }

    /// A group without a kind turns out to be a side group: what it alone put into the tree leaves it.
    fn demote(&mut self, key: Option<u32>) {
        let held = self.held();
        let Some(groups) = &mut self.me.groups else {
            return;
        };
        let leaving = groups.demote(key, held);
        for (hash, row) in leaving {
            self.me.copies.remove(&(hash, row));
            self.take(hash, usize::from(row));
        }
    }

    /// Copies of everything that is held or waits, by hash and row.
    fn held(&self) -> Vec<((u64, u8), u32)> {
        let mut held = Vec::new();
        let records = super::dump::records(self.view());
        for record in records.iter().filter(|record| !self.me.pieces.contains(&record.hash)) {
            for row in (0..4u8).filter(|row| record.rows & 1 << row != 0) {
                held.push((record.hash, row));
            }
        }
        for pending in self.me.pending.iter().flat_map(|pending| pending.iter()) {
            held.extend((0..4u8).filter(|row| pending.rows & 1 << row != 0).map(|row| (pending.hash, row)));
        }
        held.into_iter().map(|held| (held, self.me.copies.get(&held).copied().unwrap_or(1))).collect()
    }

    fn store_side(&mut self, key: Option<u32>, hashes: &[u64], row: usize) {
        self.note_ages(hashes, row, key);
        if let Some(groups) = &mut self.me.groups {
            groups.store(Class::Side(key), hashes, row as u8);
        }
    }

    fn store_main(&mut self, batch: &Batch, stored: &Stored, hashes: &[u64], key: Option<u32>) {
        let row = stored.tier as usize;
        let token_bytes = batch.token_bytes_of(&stored.token_bytes);
        if hashes.is_empty() {
            self.me.skip(SkipReason::NoHashes, self.now_ms);
            return;
        }
        let Some(size) = stored.block_size.filter(|_| !token_bytes.is_empty()) else {
            self.store_hashes(hashes, row, key);
            return;
        };
        let index_size = self.block_size.tokens();
        if size % index_size != 0 {
            if size < index_size && self.me.whole_groups.contains(&key) {
                self.me.ignore(IgnoreReason::PartialTail);
            } else {
                self.me.announced_block_size = Some(size);
                self.me.skip(SkipReason::BlockSize, self.now_ms);
            }
            return;
        }
        if token_bytes.len() as u64 != hashes.len() as u64 * u64::from(size) * 4 {
            self.me.skip(SkipReason::TokenCount, self.now_ms);
            return;
        }
        if size == index_size {
            self.me.whole_groups.insert(key);
        }
        let whole = Whole {
            hashes,
            token_bytes,
            extras: batch.extras_of(&stored.extras),
            locals: batch.locals_of(&stored.locals),
            named: stored.named,
            row,
            span: size / index_size,
            group: key,
        };
        if self.store_whole(&whole, stored.parent.map(|parent| parent.0)) {
            self.note_main(hashes, row, key);
        }
    }

    /// Notes a main group's store for ageing and in its set.
    fn note_main(&mut self, hashes: &[u64], row: usize, key: Option<u32>) {
        self.note_ages(hashes, row, key);
        if let Some(groups) = &mut self.me.groups
            && groups.sets
        {
            groups.store(Class::Main(key), hashes, row as u8);
        }
    }

    /// False if the event was skipped.
    fn store_whole(&mut self, whole: &Whole<'_>, parent: Option<u64>) -> bool {
        let parent = match parent {
            None => None,
            Some(hash) => match self.newest(hash) {
                Some(place) => Some((place, hash)),
                None => {
                    self.store_pending(whole, hash);
                    return true;
                }
            },
        };
        let Some(namespace) = self.namespace_below(parent, whole.named) else {
            self.me.skip(SkipReason::NamespaceConflict, self.now_ms);
            return false;
        };
        self.drop_conflicts(whole.hashes, namespace);
        let locals = self.locals(whole, namespace);
        let pieces;
        let hashes = if whole.span == 1 {
            whole.hashes
        } else {
            for hash in whole.hashes {
                let span = self.me.spans.entry(*hash).or_default();
                *span = whole.span.max(*span);
                self.me.pieces.extend((1..whole.span).map(|piece| piece_of(*hash, piece)));
            }
            pieces = pieces_of(whole.hashes, whole.span);
            &pieces
        };
        self.store_run(Run { hashes, locals: &locals, row: whole.row, namespace, parent });
        self.join(whole.hashes);
        true
    }

    /// The namespace of a child; none if it names another LoRA or salt than its parent.
    pub(super) fn namespace_below(&self, parent: Parent, named: Namespace) -> Option<Namespace> {
        let Some((place, _)) = parent else {
            return Some(named);
        };
        below(named, self.tree.node(self.tree.at(place).node).namespace())
    }

    /// Local hashes in a namespace: those of the event if they were made with it, else anew from the tokens.
    pub(super) fn locals(&self, whole: &Whole<'_>, namespace: Namespace) -> SmallVec<[u64; 64]> {
        if whole.named == namespace && whole.locals.len() == whole.hashes.len() * whole.span as usize {
            return whole.locals.iter().map(|local| local.0).collect();
        }
        let bytes = self.block_size.tokens() as usize * 4;
        let seed = namespace.seed();
        let mut extras = whole.extras;
        let mut locals = SmallVec::new();
        for (index, piece) in whole.token_bytes.chunks_exact(bytes).enumerate() {
            let block = index as u32 / whole.span;
            extras = &extras[extras.partition_point(|extra| extra.block < block)..];
            let own = extras.iter().take_while(|extra| extra.block == block).map(|extra| extra.value);
            locals.push(hash::local_hash(piece, own, seed).0);
        }
        locals
    }

    /// Hashes without tokens: each names what the owner, or else everybody who knows it, says it names.
    fn store_hashes(&mut self, hashes: &[u64], row: usize, key: Option<u32>) {
        let mut placed: SmallVec<[u64; 8]> = SmallVec::new();
        for hash in hashes {
            if self.store_hash(*hash, row, key) {
                placed.push(*hash);
            }
        }
        self.note_main(&placed, row, key);
        self.join(&placed);
    }

    fn store_hash(&mut self, hash: u64, row: usize, key: Option<u32>) -> bool {
        if let Some(place) = self.newest(hash) {
            self.hold(place, hash, row, None);
            for piece in 1..self.me.spans.get(&hash).copied().unwrap_or(1) {
                let piece = piece_of(hash, piece);
                if let Some(place) = self.newest(piece) {
                    self.hold(place, piece, row, None);
                }
            }
            return true;
        }
        if let Some(pending) = self.me.pending.as_mut().filter(|pending| pending.contains(hash)) {
            let repeated = pending.rows(hash) & 1 << row != 0;
            pending.add_row(hash, row, key);
            if repeated {
                self.repeat(hash, row);
            }
            return true;
        }
        match self.foreign(hash) {
            Foreign::Unknown => self.me.skip(SkipReason::UnknownHash, self.now_ms),
            Foreign::Ambiguous => self.me.skip(SkipReason::AmbiguousHash, self.now_ms),
            Foreign::At { place, span } => {
                self.hold(place, hash, row, None);
                self.set_free(place, hash);
                self.hold_pieces_before(place, hash, row, span);
                return true;
            }
        }
        false
    }

    /// A hash that somebody else announced as a span: its earlier blocks lie before its last one.
    fn hold_pieces_before(&mut self, place: Place, hash: u64, row: usize, span: u32) {
        if span == 1 {
            return;
        }
        self.me.spans.insert(hash, span);
        let mut at = self.tree.at(place);
        for piece in (1..span).rev() {
            let Some(before) = self.tree.before(at) else {
                return;
            };
            at = before;
            let (place, piece) = (self.tree.place(at), piece_of(hash, piece));
            self.me.pieces.insert(piece);
            self.hold(place, piece, row, None);
            self.set_free(place, piece);
        }
    }

    /// Remembers when blocks of lower tiers were stored, if they age.
    fn note_ages(&mut self, hashes: &[u64], row: usize, group: Option<u32>) {
        if row == 0 || self.me.spec.lower_tier_ttl_ms.is_none() {
            return;
        }
        let ages: &mut Ages = self.me.ages.get_or_insert_default();
        for hash in hashes {
            let aged = Aged { hash: *hash, row: row as u8, group };
            ages.stored.insert(aged, ages.clock_ms);
            ages.queue.push_back((ages.clock_ms, aged));
        }
    }

    /// Puts a run below its parent, along what exists and on with new blocks.
    pub(super) fn store_run(&mut self, run: Run<'_>) {
        let mut at = match run.parent {
            None => At { node: ROOT, off: 0 },
            Some((place, _)) => {
                let at = self.tree.at(place);
                At { off: at.off + 1, ..at }
            }
        };
        let mut parent = run.parent;
        let mut done = 0;
        while done < run.locals.len() {
            let locals = &run.locals[done..];
            let len = self.tree.node(at.node).len;
            if at.off < len {
                let same = self.tree.common(at, locals);
                if same == 0 {
                    at.node = self.tree.split(at.node, at.off);
                    continue;
                }
                let upto = done + same as usize;
                self.hold_run(at, &run, done..upto, parent);
                at.off += same;
                parent = Some((self.tree.place(At { off: at.off - 1, ..at }), run.hashes[upto - 1]));
                done = upto;
            } else if let Some(child) = self.tree.child(at.node, locals[0]) {
                at = At { node: child, off: 0 };
            } else {
                let count;
                (at, count) = self.append(at.node, &run, done);
                let upto = done + count as usize;
                self.hold_run(at, &run, done..upto, parent);
                at.off += count;
                parent = Some((self.tree.place(At { off: at.off - 1, ..at }), run.hashes[upto - 1]));
                done = upto;
            }
        }
    }

    fn append(&mut self, node: NodeId, run: &Run<'_>, done: usize) -> (At, u32) {
        let (locals, hashes) = (&run.locals[done..], &run.hashes[done..]);
        let (at, count) = self.tree.append(node, (locals, hashes), self.slot, run.namespace);
        self.tree.enter_hashes(at, count);
        (at, count)
    }

    /// Holds the blocks `range` of a run, which lie in one node from `at` on.
    fn hold_run(&mut self, at: At, run: &Run<'_>, range: std::ops::Range<usize>, parent: Parent) {
        let hashes = &run.hashes[range];
        if self.is_common(at, hashes, parent) {
            self.hold_range(at, hashes, run.row);
            return;
        }
        let mut parent = parent;
        for (index, hash) in hashes.iter().enumerate() {
            let place = self.tree.place(At { off: at.off + index as u32, ..at });
            if parent.is_none() && !self.me.free.is_empty() && self.rows(place, *hash) & HELD == 0 {
                // The root carries it from here on.
                self.me.free.remove(&(place, *hash));
            }
            self.hold(place, *hash, run.row, parent);
            parent = Some((place, *hash));
        }
    }

    /// True if these blocks are, and stay, in the common form for this owner.
    fn is_common(&self, at: At, hashes: &[u64], parent: Parent) -> bool {
        let node = self.tree.node(at.node);
        let engines = &self.tree.engines(at.node)[at.off as usize..];
        self.me.overlays.is_empty()
            && !self.tree.is_shadowed(at.node)
            && !node.has_column(self.slot)
            && engines[..hashes.len()] == *hashes
            && self.me.pending.as_ref().is_none_or(|pending| !hashes.iter().any(|hash| pending.contains(*hash)))
            && (self.me.own.is_empty() || !hashes.iter().any(|hash| self.has_own(*hash)))
            && parent.is_none_or(|(place, hash)| self.me.own.is_empty() || self.main(place) == hash)
            && (self.me.free.is_empty() || !self.has_free(at, hashes))
    }

    /// True if content alone carries one of these records.
    fn has_free(&self, at: At, hashes: &[u64]) -> bool {
        let place = self.tree.place(at);
        let mut places = (place.off..).map(|off| Place { off, ..place }).zip(hashes);
        places.any(|(place, hash)| self.me.free.contains(&(place, *hash)))
    }

    fn hold_range(&mut self, at: At, hashes: &[u64], row: usize) {
        let (start, end) = (at.off, at.off + hashes.len() as u32);
        let node = self.tree.node_mut(at.node);
        let len = node.len;
        if !node.row(RECENT).is_none_or(Holders::is_empty) {
            let recent = node.row_mut(RECENT);
            for (off, hash) in (start..end).zip(hashes) {
                if recent.remove(self.slot, off, len) {
                    self.me.revive(*hash);
                }
            }
            node.drop_empty();
        }
        if self.limits.held_blocks_max > 0 {
            for (off, hash) in (start..end).zip(hashes) {
                let held = self.tree.node(at.node).rows_of(self.slot, off) & HELD != 0;
                self.note_store(*hash, held);
            }
        }
        let before = self.tree.local_before(at);
        let locals = &self.tree.locals(at.node)[start as usize..end as usize];
        let held = self.tree.node(at.node).held(row, self.slot);
        if matches!(held, Held::Nothing) {
            self.me.add_terms(row, hashes, (locals, before));
        } else {
            let befores = std::iter::once(before).chain(locals.iter().copied());
            for (((off, hash), local), before) in (start..end).zip(hashes).zip(locals).zip(befores) {
                if !held.contains(off) {
                    self.me.add_terms(row, &[*hash], (&[*local], before));
                } else if !self.joining {
                    self.me.duplicate_stores += 1;
                    self.me.add_copy(*hash, row as u8);
                }
            }
        }
        let node = self.tree.node_mut(at.node);
        self.me.blocks[row] += u64::from(node.row_mut(row).insert(self.slot, (start, end), len));
        if end == len && node.goes_on() {
            self.whole.push(at.node);
        }
    }
}

/// The namespace of a child that names `named` under a parent in `above`; none if it names another LoRA or salt.
pub(super) fn below(named: Namespace, above: Namespace) -> Option<Namespace> {
    let agree = |named: Option<u64>, above: Option<u64>| named.is_none() || named == above;
    (agree(named.lora, above.lora) && agree(named.salt, above.salt)).then_some(above)
}

/// Hash of block `piece` (counted back from the last, which has the hash itself) of a hash that names several blocks.
pub(super) fn piece_of(hash: u64, piece: u32) -> u64 {
    let value = (hash ^ 0xA076_1D64_78BD_642F).wrapping_add(u64::from(piece).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// One hash per index block for hashes that name `span` blocks each.
pub(super) fn pieces_of(hashes: &[u64], span: u32) -> Vec<u64> {
    hashes
        .iter()
        .flat_map(|hash| (0..span).rev().map(|piece| if piece == 0 { *hash } else { piece_of(*hash, piece) }))
        .collect()
}

impl Groups {
    /// True if a set decides about removals of this group.
    pub(super) fn decides(&self, key: Option<u32>) -> bool {
        self.group(key).is_some() && self.keeps_set(key)
    }
}
