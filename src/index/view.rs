//! Reading one owner's records from the tree and its overlays.

use smallvec::{SmallVec, smallvec};

use super::holders::Slot;
use super::own::MULTI;
use super::owner::OwnerState;
use super::tree::{At, Place, Tree};

/// One owner as it stands.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) tree: &'a Tree,
    pub(super) owner: &'a OwnerState,
    pub(super) slot: Slot,
}

impl View<'_> {
    /// The owner's main hash of a block that it knows.
    pub(super) fn main(self, at: At) -> u64 {
        if !self.owner.overlays.is_empty()
            && let Some(overlay) = self.owner.overlays.get(&self.tree.place(at))
        {
            return overlay.main;
        }
        self.tree.hash_of(self.slot, at)
    }

    /// Places of a hash, newest last.
    pub(super) fn places(self, hash: u64) -> SmallVec<[Place; 1]> {
        match self.owner.own.get((self.tree, self.slot), hash) {
            Some(MULTI) => self.owner.multi.get(&hash).into_iter().flatten().copied().collect(),
            Some(place) => smallvec![place],
            None => self.tree.find_hash(hash).filter(|place| self.has_record(*place, hash)).into_iter().collect(),
        }
    }

    /// True if the owner has this record, held or remembered.
    pub(super) fn has_record(self, place: Place, hash: u64) -> bool {
        if !self.owner.overlays.is_empty()
            && let Some(overlay) = self.owner.overlays.get(&place)
        {
            return overlay.records.iter().any(|record| record.hash == hash);
        }
        let at = self.tree.at(place);
        self.tree.hash_of(self.slot, at) == hash && self.tree.node(at.node).rows_of(self.slot, at.off) != 0
    }

    /// Calls `each` with hash, rows and named parents of every record at a block, and whether content alone carries it.
    pub(super) fn for_each_record(self, at: At, mut each: impl FnMut(u64, u8, &[u64], bool)) {
        let owner = self.owner;
        let free = |hash: u64| !owner.free.is_empty() && owner.free.contains(&(self.tree.place(at), hash));
        if !owner.overlays.is_empty()
            && let Some(overlay) = owner.overlays.get(&self.tree.place(at))
        {
            for record in &overlay.records {
                each(record.hash, record.rows, &record.parents, free(record.hash));
            }
            return;
        }
        let rows = self.tree.node(at.node).rows_of(self.slot, at.off);
        if rows != 0 {
            let hash = self.tree.hash_of(self.slot, at);
            each(hash, rows, &[], free(hash));
        }
    }
}
