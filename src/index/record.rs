//! One record at a time: look up a hash's places, hold, give up, remember, forget. The general way, for any mix of
//! hashes; `store` has a short cut for whole runs in the common form.
//!
//! Invariant: the holders of a node say where *some* record of the owner lies; an overlay says which.

use smallvec::{SmallVec, smallvec};

use super::api::Limits;
use super::holders::Slot;
use super::own::MULTI;
use super::owner::{Guess, HELD, Overlay, OwnerState, Record};
use super::recent::Removal;
use super::store::piece_of;
use super::tree::{At, NodeId, Place, RECENT, ROOT, Tree};
use super::view::View;
use crate::ids::{BlockSize, Seq};

/// Places of one hash that are remembered while it is not held there: engines give a hash one place, and only a broken
/// one gives it many.
const PLACES_MAX: usize = 8;

/// Owners by slot; the one being written is taken out.
pub(super) type Owners = [Option<Box<OwnerState>>];

/// One owner being written, with the tree.
pub(super) struct Writer<'a> {
    pub(super) tree: &'a mut Tree,
    pub(super) me: &'a mut OwnerState,
    pub(super) slot: Slot,
    pub(super) others: &'a Owners,
    pub(super) limits: Limits,
    pub(super) block_size: BlockSize,
    pub(super) seq: Seq,
    pub(super) now_ms: u64,
    pub(super) over_limit: bool,
    /// Blocks go because there are too many, not because the engine said so.
    pub(super) evicting: bool,
    /// Waiting blocks are being placed: they were counted when they came.
    pub(super) joining: bool,
    /// Nodes whose end may be free; looked at when an event is done, so that no cursor is pulled away.
    pub(super) doomed: Vec<NodeId>,
    /// Nodes that became whole for the owner, and may join the blocks before them; looked at when an event is done.
    pub(super) whole: Vec<NodeId>,
}

/// Where a block hangs: the place and hash of its parent.
pub(super) type Parent = Option<(Place, u64)>;

impl Writer<'_> {
    /// Places of a hash, newest last.
    pub(super) fn places(&self, hash: u64) -> SmallVec<[Place; 1]> {
        self.view().places(hash)
    }

    /// The newest place of a hash that is held, else the newest remembered.
    pub(super) fn newest(&self, hash: u64) -> Option<Place> {
        let places = self.places(hash);
        let held = places.iter().rev().find(|place| places.len() == 1 || self.rows(**place, hash) & HELD != 0);
        held.or(places.last()).copied()
    }

    /// Rows of a record, as bits.
    pub(super) fn rows(&self, place: Place, hash: u64) -> u8 {
        if let Some(overlay) = self.me.overlays.get(&place) {
            return overlay.records.iter().find(|record| record.hash == hash).map_or(0, |record| record.rows);
        }
        let at = self.tree.at(place);
        self.tree.node(at.node).rows_of(self.slot, at.off)
    }

    /// The owner's main hash of a place it knows.
    pub(super) fn main(&self, place: Place) -> u64 {
        self.view().main(self.tree.at(place))
    }

    pub(super) fn view(&self) -> View<'_> {
        View { tree: self.tree, owner: self.me, slot: self.slot }
    }

    /// Holds a block on a row under a hash. `parent`: what the event named; none at the root or when it names none.
    pub(super) fn hold(&mut self, place: Place, hash: u64, row: usize, parent: Parent) {
        let waiting = self.me.pending.as_ref().map_or(0, |pending| pending.rows(hash));
        let settled = self.settle(place, hash);
        self.note_store(hash, settled != 0);
        let held = settled | waiting;
        let rows = self.rows(place, hash);
        self.link(place, hash, parent, rows & HELD != 0);
        if rows & 1 << RECENT != 0 {
            self.set_row(place, hash, RECENT, false);
        }
        if held & 1 << row != 0 {
            self.repeat(hash, row);
        }
        if rows & 1 << row == 0 {
            self.set_row(place, hash, row, true);
            self.count_in(self.tree.at(place), hash, row);
        }
    }

    /// Counts a store of what is held already.
    pub(super) fn repeat(&mut self, hash: u64, row: usize) {
        if !self.joining {
            self.me.duplicate_stores += 1;
            self.me.add_copy(hash, row as u8);
        }
    }

    /// Rows on which a hash is held or waits.
    pub(super) fn rows_anywhere(&self, hash: u64) -> u8 {
        let waiting = self.me.pending.as_ref().map_or(0, |pending| pending.rows(hash));
        self.places(hash).iter().fold(waiting, |rows, place| rows | self.rows(*place, hash)) & HELD
    }

    /// Makes the record known, newest of its hash. Returns the rows that the hash is held on at any place.
    fn settle(&mut self, place: Place, hash: u64) -> u8 {
        let mut places = self.places(hash);
        let held = places.iter().fold(0, |held, place| held | self.rows(*place, hash)) & HELD;
        if places.contains(&place) {
            if let Some(list) = self.me.multi.get_mut(&hash) {
                list.retain(|other| *other != place);
                list.push(place);
            }
            if held == 0 {
                self.me.revive(hash);
            }
            return held;
        }
        if held == 0 && !places.is_empty() {
            self.me.revive(hash);
        }
        while places.len() >= PLACES_MAX {
            let old = places.iter().position(|other| self.rows(*other, hash) & HELD == 0).unwrap_or(0);
            if self.rows(places[old], hash) & HELD != 0 {
                break;
            }
            self.forget(places.remove(old), hash);
        }
        let at = self.tree.at(place);
        let main = self.tree.hash_of(self.slot, at);
        let known = self.tree.node(at.node).rows_of(self.slot, at.off) != 0;
        let apart = known || (main != hash && self.tree.has_below(self.slot, at));
        if apart {
            let record = Record { hash, rows: 0, parents: SmallVec::new() };
            self.overlay(place).records.push(record);
        } else {
            self.tree.set_hash_of(self.slot, at, hash);
        }
        if !places.is_empty() {
            let list = self.me.multi.entry(hash).or_insert_with(|| places.iter().copied().collect());
            list.push(place);
            self.know(hash, MULTI);
        } else if apart || self.tree.engine(place) != hash || self.tree.find_hash(hash) != Some(place) {
            self.know(hash, place);
        }
        held
    }

    /// Notes the place of a hash that the table of the tree does not give.
    pub(super) fn know(&mut self, hash: u64, place: Place) {
        self.me.own.insert((self.tree, self.slot), hash, place);
    }

    /// True if the table of the tree does not decide about a hash.
    pub(super) fn has_own(&self, hash: u64) -> bool {
        self.me.own.get((self.tree, self.slot), hash).is_some()
    }

    /// The overlay of a known place, made from the common form if need be.
    fn overlay(&mut self, place: Place) -> &mut Overlay {
        let (tree, slot) = (&*self.tree, self.slot);
        self.me.overlays.entry(place).or_insert_with(|| {
            let at = tree.at(place);
            let main = tree.hash_of(slot, at);
            let rows = tree.node(at.node).rows_of(slot, at.off);
            let known = Record { hash: main, rows, parents: SmallVec::new() };
            Overlay { main, records: if rows == 0 { SmallVec::new() } else { smallvec![known] } }
        })
    }

    /// Notes the parent hash that a record was stored with, unless it is the main hash of the block before: one more if
    /// the record is held, else the only one.
    fn link(&mut self, place: Place, hash: u64, parent: Parent, held: bool) {
        let Some((above, named)) = parent else {
            return;
        };
        let main = self.main(above);
        if !held && !self.me.free.is_empty() {
            self.me.free.remove(&(place, hash));
        }
        if !self.me.overlays.contains_key(&place) {
            if named == main {
                return;
            }
            let overlay = self.overlay(place);
            if overlay.records.is_empty() {
                overlay.records.push(Record { hash, rows: 0, parents: SmallVec::new() });
            }
        }
        let record = self.overlay(place).record(hash).expect("the record was settled before");
        if !held {
            record.parents.clear();
            if named != main {
                record.parents.push(named);
            }
        } else if record.parents.is_empty() {
            if named != main {
                record.parents.extend([main, named]);
            }
        } else if !record.parents.contains(&named) {
            record.parents.push(named);
        }
    }

    /// Sets or clears one row of a record, and of the holders with it.
    pub(super) fn set_row(&mut self, place: Place, hash: u64, row: usize, held: bool) {
        let mut any = held;
        if let Some(overlay) = self.me.overlays.get_mut(&place) {
            if let Some(record) = overlay.record(hash) {
                record.rows = record.rows & !(1 << row) | u8::from(held) << row;
            }
            any = overlay.records.iter().any(|record| record.rows & 1 << row != 0);
        }
        let at = self.tree.at(place);
        let node = self.tree.node_mut(at.node);
        let len = node.len;
        if any {
            let added = node.row_mut(row).insert(self.slot, (at.off, at.off + 1), len);
            if added > 0 && at.off + 1 == len && node.goes_on() {
                self.whole.push(at.node);
            }
        } else if node.row(row).is_some() {
            node.row_mut(row).remove(self.slot, at.off, len);
            node.drop_empty();
        }
    }

    /// Node and offset of a hash in the common form: one place, which the table names, and nothing apart from it.
    /// `guess`: places that are looked at before the table is.
    pub(super) fn common_place(&self, hash: u64, guess: Guess) -> Option<At> {
        let me = &self.me;
        if !me.overlays.is_empty() || !me.spans.is_empty() || !me.free.is_empty() || self.has_own(hash) {
            return None;
        }
        let guessed = guess.into_iter().flatten().find(|place| self.tree.surely_names(*place, hash));
        debug_assert!(guessed.is_none() || guessed == self.tree.find_hash(hash));
        let at = self.tree.at(guessed.or_else(|| self.tree.find_hash(hash))?);
        (!self.tree.node(at.node).has_column(self.slot)).then_some(at)
    }

    /// The blocks beside a block: engines evict chains from their ends, or list them from their beginning.
    pub(super) fn beside(&self, at: At) -> Guess {
        let place = self.tree.place(at);
        // What lies before it in its segment is its parent.
        let before = match place.off.checked_sub(1) {
            Some(off) => Some(Place { off, ..place }),
            None => self.tree.before(at).map(|before| self.tree.place(before)),
        };
        [before, Some(Place { off: place.off + 1, ..place })]
    }

    /// [`Self::give_up`] for a hash in the common form.
    pub(super) fn give_up_common(&mut self, at: At, hash: u64, row: usize) {
        let node = self.tree.node_mut(at.node);
        let len = node.len;
        if !node.row_mut(row).remove(self.slot, at.off, len) {
            return;
        }
        self.count_out(at, hash, row);
        let node = self.tree.node_mut(at.node);
        if node.rows_of(self.slot, at.off) & HELD == 0 {
            node.row_mut(RECENT).insert(self.slot, (at.off, at.off + 1), len);
            self.me.recents.push(hash);
            self.note_leave(hash, at);
            self.trim_recents();
        }
        self.note_removal(hash);
    }

    /// Notes what the engine removed, for explanations.
    fn note_removal(&mut self, hash: u64) {
        if self.evicting {
            return;
        }
        let removal = Removal { hash, seq: self.seq, at_ms: self.now_ms };
        self.me.removals.push(removal, self.limits.removals_remembered_max);
    }

    /// Takes a hash off a row at all its places. False if it is on none.
    pub(super) fn give_up(&mut self, hash: u64, row: usize) -> bool {
        let places = self.places(hash);
        let mut taken = false;
        for place in &places {
            if self.rows(*place, hash) & 1 << row != 0 {
                self.set_row(*place, hash, row, false);
                self.count_out(self.tree.at(*place), hash, row);
                taken = true;
            }
        }
        if !taken {
            return false;
        }
        let held = places.iter().any(|place| self.rows(*place, hash) & HELD != 0);
        for place in &places {
            if self.rows(*place, hash) & HELD == 0 {
                self.set_row(*place, hash, RECENT, true);
            }
        }
        if self.me.pieces.contains(&hash) {
            return true;
        }
        if !held {
            self.me.recents.push(hash);
            if let Some(place) = places.last() {
                self.note_leave(hash, self.tree.at(*place));
            }
            self.trim_recents();
        }
        self.note_removal(hash);
        true
    }

    /// Forgets the oldest removed hashes beyond the limit.
    pub(super) fn trim_recents(&mut self) {
        while self.me.recents.len() > self.limits.recent_hashes_max {
            let Some(hash) = self.me.recents.pop() else {
                return;
            };
            if let Some(at) = self.common_place(hash, self.me.next_forgotten) {
                self.me.next_forgotten = self.beside(at);
                let node = self.tree.node_mut(at.node);
                let len = node.len;
                node.row_mut(RECENT).remove(self.slot, at.off, len);
                node.drop_empty();
                if at.off + 1 == len && self.doomed.last() != Some(&at.node) {
                    self.doomed.push(at.node);
                }
                continue;
            }
            for piece in 1..self.me.spans.get(&hash).copied().unwrap_or(1) {
                self.forget_all(piece_of(hash, piece));
            }
            self.forget_all(hash);
        }
    }

    fn forget_all(&mut self, hash: u64) {
        for place in self.places(hash) {
            self.forget(place, hash);
        }
    }

    /// Forgets a record that is not held.
    pub(super) fn forget(&mut self, place: Place, hash: u64) {
        self.set_row(place, hash, RECENT, false);
        if let Some(overlay) = self.me.overlays.get_mut(&place) {
            overlay.records.retain(|record| record.hash != hash);
            let common = match &overlay.records[..] {
                [] => true,
                [record] => record.hash == overlay.main && record.parents.is_empty(),
                _ => false,
            };
            if common {
                self.me.overlays.remove(&place);
            }
        }
        self.forget_place(place, hash);
        if !self.me.free.is_empty() {
            self.me.free.remove(&(place, hash));
        }
        if !self.me.spans.is_empty() && self.places(hash).is_empty() {
            self.me.spans.remove(&hash);
            self.me.pieces.remove(&hash);
        }
        let at = self.tree.at(place);
        if at.off + 1 == self.tree.node(at.node).len {
            self.doomed.push(at.node);
        }
    }

    fn forget_place(&mut self, place: Place, hash: u64) {
        match self.me.own.get((self.tree, self.slot), hash) {
            Some(MULTI) => {
                let Some(list) = self.me.multi.get_mut(&hash) else {
                    return;
                };
                list.retain(|other| *other != place);
                if let [only] = list[..] {
                    self.me.multi.remove(&hash);
                    self.know(hash, only);
                }
            }
            Some(only) if only == place => self.me.own.remove((self.tree, self.slot), hash),
            _ => {}
        }
    }

    /// Gives free ends of nodes back, and joins pieces that nothing tells apart.
    pub(super) fn reclaim(&mut self) {
        while let Some(node) = self.doomed.pop() {
            if node != ROOT && self.tree.exists(node) {
                self.tree.reclaim(node);
            }
        }
        while let Some(node) = self.whole.pop() {
            if self.tree.exists(node) {
                self.tree.join(node);
            }
        }
    }

    /// The only place that the others who know a hash agree on, and how many blocks the hash names there.
    pub(super) fn foreign(&self, hash: u64) -> Foreign {
        let mut found = Foreign::Unknown;
        let mut add = |place: Place, owner: &OwnerState| {
            let here = Foreign::At { place, span: owner.spans.get(&hash).copied().unwrap_or(1) };
            found = if found == Foreign::Unknown || found == here { here } else { Foreign::Ambiguous };
        };
        if let Some(place) = self.tree.find_hash(hash) {
            let At { node, off } = self.tree.at(place);
            let node = self.tree.node(node);
            let holders = (0..super::tree::ROWS).filter_map(|row| node.row(row)).flat_map(|holders| holders.at(off));
            for slot in holders {
                let Some(owner) = self.others.get(slot as usize).and_then(Option::as_deref) else {
                    continue;
                };
                if (View { tree: self.tree, owner, slot }).has_record(place, hash) {
                    add(place, owner);
                }
            }
        }
        for (slot, owner) in (0..).zip(self.others).filter_map(|(slot, owner)| Some((slot, owner.as_deref()?))) {
            match owner.own.get((self.tree, slot), hash) {
                Some(MULTI) => owner.multi.get(&hash).into_iter().flatten().for_each(|place| add(*place, owner)),
                Some(place) => add(place, owner),
                None => {}
            }
        }
        found
    }
}

/// What the other owners say about a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// Nobody knows it.
    Unknown,
    /// It stands for several contents.
    Ambiguous,
    /// It names the block here, and `span - 1` blocks before it.
    At { place: Place, span: u32 },
}
