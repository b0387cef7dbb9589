//! The index's own account of its memory, and tables that give room back.
//!
//! Counted are bytes asked of the allocator: exactly where structures know their size, from a sample of the nodes for what
//! nodes point to, by size and number for the rare parts of owners. What the allocator adds is not in it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hash};

use super::answer::Row;
use super::evict::Order;
use super::groups::Groups;
use super::index::PrefixIndex;
use super::owner::OwnerState;
use super::pending::Pending;
use crate::ids::{InstanceId, Owner};

/// Bytes of a hash map or set with entries `T` and this capacity: seven eighths of the buckets are used, each with a
/// byte of control.
pub(super) fn map<T>(capacity: usize) -> usize {
    match capacity {
        0 => 0,
        1..=3 => 4 * (size_of::<T>() + 1) + 16,
        _ => (capacity * 8 / 7).next_power_of_two() * (size_of::<T>() + 1) + 16,
    }
}

/// Bytes of a balanced map that is filled in ascending order: nodes have room for eleven entries, and six in them.
pub(super) fn tree_map<K, V>(map: &BTreeMap<K, V>) -> usize {
    map.len() * (size_of::<K>() + size_of::<V>()) * 11 / 6
}

/// True if more than three quarters of what a table has is unused: then it gives half of that back, so that it moves an
/// entry once per removal at most.
fn is_wasteful(len: usize, capacity: usize) -> bool {
    capacity > 4 * len + 256
}

/// Lets a map give room back after many removals.
pub(super) fn trim_map<K: Eq + Hash, V, S: BuildHasher>(map: &mut std::collections::HashMap<K, V, S>) {
    if is_wasteful(map.len(), map.capacity()) {
        map.shrink_to(2 * map.len());
    }
}

/// The same for a set.
pub(super) fn trim_set<K: Eq + Hash, S: BuildHasher>(set: &mut std::collections::HashSet<K, S>) {
    if is_wasteful(set.len(), set.capacity()) {
        set.shrink_to(2 * set.len());
    }
}

/// The same for a ring.
pub(super) fn trim_ring<T>(ring: &mut VecDeque<T>) {
    if is_wasteful(ring.len(), ring.capacity()) {
        ring.shrink_to(2 * ring.len());
    }
}

impl PrefixIndex {
    /// Bytes allocated by this index. Costs a look at 65,536 nodes at most and one at each owner.
    pub(super) fn bytes(&self) -> u64 {
        let names: usize = self.order.iter().filter_map(|slot| self.slots[*slot as usize].as_deref()).map(owner).sum();
        let directory = self.slots.capacity() * size_of::<Option<Box<OwnerState>>>()
            + self.order.capacity() * size_of::<u32>()
            + self.rows.capacity() * size_of::<Row>()
            // By name, by id, and the positions.
            + self.order.len() * (size_of::<Owner>() + 3 * size_of::<u64>()) * 2;
        (self.tree.bytes() + names + directory + size_of::<Self>()) as u64
    }
}

/// Bytes of one owner.
fn owner(state: &OwnerState) -> usize {
    let name = match &state.owner.instance {
        InstanceId::Text(text) => text.len() + 16,
        InstanceId::Number(_) => 0,
    };
    let overlays = map::<(super::tree::Place, super::owner::Overlay)>(state.overlays.capacity());
    size_of::<OwnerState>()
        + name
        + state.own.bytes()
        + overlays
        + map::<(u64, smallvec::SmallVec<[super::tree::Place; 2]>)>(state.multi.capacity())
        + map::<(super::tree::Place, u64)>(state.free.capacity())
        + map::<((u64, u8), u32)>(state.copies.capacity())
        + map::<(u64, u32)>(state.spans.capacity())
        + map::<u64>(state.pieces.capacity())
        + state.recents.bytes()
        + state.removals.bytes()
        + state.order.as_deref().map_or(0, |order| size_of::<Order>() + order.bytes())
        + state.pending.as_deref().map_or(0, |pending| size_of::<Pending>() + pending.bytes())
        + state.groups.as_deref().map_or(0, |groups| size_of::<Groups>() + groups.bytes())
        + state.ages.as_deref().map_or(0, |ages| {
            let aged = size_of::<(u64, super::owner::Aged)>();
            map::<(super::owner::Aged, u64)>(ages.stored.capacity()) + ages.queue.capacity() * aged
        })
}

impl OwnerState {
    /// Gives room back that many removals left. Cheap when there is nothing to do.
    pub(super) fn trim(&mut self) {
        trim_map(&mut self.overlays);
        trim_map(&mut self.multi);
        trim_set(&mut self.free);
        trim_map(&mut self.copies);
        trim_map(&mut self.spans);
        trim_set(&mut self.pieces);
        self.recents.trim();
        if let Some(order) = self.order.as_deref_mut() {
            order.trim();
        }
        if let Some(ages) = self.ages.as_deref_mut() {
            trim_map(&mut ages.stored);
            trim_ring(&mut ages.queue);
        }
        if let Some(groups) = self.groups.as_deref_mut() {
            groups.trim();
        }
        if let Some(pending) = self.pending.as_deref_mut() {
            pending.trim();
        }
    }
}
