//! Places of an owner's hashes that the table of the tree does not give.
//!
//! Where the owner's hash of the place is the one that was looked for (its column in the tree, or the first storer's
//! hash), the place alone is kept. Others are spelled out: second hashes of a place, and hashes with several places.
//! Invariant: while a place is kept alone, the owner's hash of that place does not change.

use rustc_hash::FxHashMap;

use super::holders::Slot;
use super::tree::{Place, Table, Tree, mix};

/// In place of a place: the hash has several.
pub(super) const MULTI: Place = Place { seg: u32::MAX, off: 0 };

/// Parts of an owner's table.
const PARTS: usize = 64;

/// Places by hash, one entry per hash.
#[derive(Debug, Default)]
pub(super) struct Own {
    places: Option<Table>,
    spelled: FxHashMap<u64, Place>,
}

impl Own {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_none() && self.spelled.is_empty()
    }

    /// The place of a hash, or [`MULTI`].
    pub(super) fn get(&self, (tree, slot): (&Tree, Slot), hash: u64) -> Option<Place> {
        let is = |packed: u64| tree.hash_of(slot, tree.at(Place::unpack(packed))) == hash;
        let place = self.places.as_ref().and_then(|places| places.find(mix(hash), is)).map(Place::unpack);
        match place {
            None if !self.spelled.is_empty() => self.spelled.get(&hash).copied(),
            place => place,
        }
    }

    /// Enters a hash, or gives it another place.
    pub(super) fn insert(&mut self, (tree, slot): (&Tree, Slot), hash: u64, place: Place) {
        self.remove((tree, slot), hash);
        if place != MULTI && tree.hash_of(slot, tree.at(place)) == hash {
            self.places.get_or_insert_with(|| Table::new(PARTS)).insert(mix(hash), place.pack());
        } else {
            self.spelled.insert(hash, place);
        }
    }

    /// Takes a hash out.
    pub(super) fn remove(&mut self, (tree, slot): (&Tree, Slot), hash: u64) {
        if let Some(places) = &mut self.places {
            places.remove(mix(hash), |packed| tree.hash_of(slot, tree.at(Place::unpack(packed))) == hash);
            if places.is_empty() {
                self.places = None;
            }
        }
        if !self.spelled.is_empty() {
            self.spelled.remove(&hash);
            if self.spelled.capacity() > 4 * self.spelled.len() + 64 {
                self.spelled.shrink_to(2 * self.spelled.len());
            }
        }
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        self.places.as_ref().map_or(0, Table::bytes) + super::bytes::map::<(u64, Place)>(self.spelled.capacity())
    }
}
