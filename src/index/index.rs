//! The index of one model and tenant: owners by slot, the tree, and the few ways to change them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::answer::Row;
use super::api::{ApplyContext, Clear, DumpBlock, Limits, OwnerId, OwnerReport, OwnerSpec, Stats};
use super::dump::{self, Chains};
use super::holders::{Slot, SlotSet};
use super::image::trust_of;
use super::owner::OwnerState;
use super::record::Writer;
use super::tree::Tree;
use super::view::View;
use crate::event::{Batch, Event, SkipReason};
use crate::ids::{BlockSize, Owner, Role, Seq, Tier};
use crate::image::OwnerImage;
use crate::trust::{Reason, Trust};

/// The exact set of blocks of every owner, and the longest cached prefix of a query. Pure; one writer.
#[derive(Debug)]
pub struct PrefixIndex {
    pub(super) tree: Tree,
    pub(super) slots: Vec<Option<Box<OwnerState>>>,
    free_slots: Vec<Slot>,
    by_owner: FxHashMap<Owner, Slot>,
    by_id: FxHashMap<OwnerId, Slot>,
    next_id: u32,
    /// All owners in the order of [`Owner`].
    pub(super) order: Vec<Slot>,
    /// What answers need of each owner, parallel to `order`. Shared with answers, so it is changed only where something
    /// differs.
    pub(super) rows: Arc<Vec<Row>>,
    /// Position in `order` and `rows` by slot.
    row_of: Vec<u32>,
    /// Workers that the set walk answers for.
    pub(super) fast: SlotSet,
    /// Workers that the walk block by block answers for.
    pub(super) detailed: SlotSet,
    /// Owners with the role of a store.
    pub(super) pools: SlotSet,
    /// Somebody holds blocks on a lower tier.
    pub(super) lower_blocks: bool,
    /// Held blocks on lower tiers, of all owners.
    lower_count: u64,
    /// Held blocks on all tiers, of all owners.
    pub(super) held_count: u64,
    /// Blocks given up for the bound on them.
    pub(super) evicted: u64,
    pub(super) block_size: BlockSize,
    pub(super) limits: Limits,
    over_limit: bool,
}

impl PrefixIndex {
    /// An empty index. All bounds are per owner and allocate nothing before they are needed.
    #[must_use]
    pub fn new(block_size: BlockSize, limits: Limits) -> Self {
        Self {
            tree: Tree::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            by_owner: FxHashMap::default(),
            by_id: FxHashMap::default(),
            next_id: 0,
            order: Vec::new(),
            rows: Arc::default(),
            row_of: Vec::new(),
            fast: SlotSet::default(),
            detailed: SlotSet::default(),
            pools: SlotSet::default(),
            lower_blocks: false,
            lower_count: 0,
            held_count: 0,
            evicted: 0,
            block_size,
            limits,
            over_limit: false,
        }
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// An empty index of the same kind whose owner ids go on behind those of this one.
    pub(super) fn emptied(&self) -> Self {
        let (next_id, over_limit, evicted) = (self.next_id, self.over_limit, self.evicted);
        Self { next_id, over_limit, evicted, ..Self::new(self.block_size, self.limits) }
    }

    pub(super) fn renumber_behind(&mut self, other: &Self) {
        self.over_limit = other.over_limit;
        self.next_id = self.next_id.max(other.next_id);
        self.by_id.clear();
        for slot in &self.order {
            if let Some(state) = self.slots[*slot as usize].as_deref_mut() {
                state.id = OwnerId(self.next_id);
                self.next_id += 1;
                self.by_id.insert(state.id, *slot);
            }
        }
    }

    pub(super) fn over_limit(&self) -> bool {
        self.over_limit
    }

    pub(super) fn lower_count(&self) -> u64 {
        self.lower_count
    }

    /// Adds a registered owner, or changes the spec of a known one. New owners start with the reasons `not_connected`
    /// and `nothing_heard`.
    pub fn register(&mut self, owner: &Owner, spec: OwnerSpec, now_ms: u64) -> OwnerId {
        let mut trust = Trust::with(Reason::NotConnected, now_ms);
        trust.set(Reason::NothingHeard, true, now_ms);
        let slot = self.slot_of(owner, spec, trust);
        let state = self.slots[slot as usize].as_deref_mut().expect("the slot was made above");
        state.registered = true;
        state.spec = spec;
        let id = state.id;
        self.refresh(slot);
        id
    }

    /// Owner named by batches only: counted and matched, but listed in answers only when something of it matched. Takes
    /// the spec of `like`, the rank whose stream named it, and what is known against that stream.
    pub fn intern(&mut self, owner: &Owner, like: OwnerId, now_ms: u64) -> OwnerId {
        let (spec, trust) = self.state(like).map(|state| (state.spec, state.trust)).unwrap_or_default();
        let mut own = Trust::default();
        for reason in trust.reasons().filter(|reason| !is_own(*reason)) {
            own.set(reason, true, now_ms);
        }
        let slot = self.slot_of(owner, spec, own);
        self.refresh(slot);
        self.slots[slot as usize].as_deref().expect("the slot was made above").id
    }

    fn slot_of(&mut self, owner: &Owner, spec: OwnerSpec, trust: Trust) -> Slot {
        if let Some(slot) = self.by_owner.get(owner) {
            return *slot;
        }
        let id = OwnerId(self.next_id);
        self.next_id += 1;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as Slot - 1
        });
        self.slots[slot as usize] = Some(Box::new(OwnerState::new(owner.clone(), id, spec, trust)));
        self.by_owner.insert(owner.clone(), slot);
        self.by_id.insert(id, slot);
        let slots = &self.slots;
        let position = self
            .order
            .partition_point(|other| slots[*other as usize].as_deref().is_some_and(|other| other.owner < *owner));
        self.order.insert(position, slot);
        let row = Row { owner: owner.clone(), slot, registered: false, worker: false, plain: true, trust };
        Arc::make_mut(&mut self.rows).insert(position, row);
        self.number_rows();
        slot
    }

    /// The owner of an image, without content: a known one is emptied, another one comes unregistered.
    pub(super) fn emptied_owner(&mut self, image: &OwnerImage, now_ms: u64) -> OwnerId {
        let known = self.by_owner.get(&image.owner).copied();
        let slot = known.unwrap_or_else(|| self.slot_of(&image.owner, image.spec, image.trust));
        if self.slots[slot as usize].as_deref().is_some_and(OwnerState::has_content) {
            self.forget_content(slot);
        }
        let state = self.slots[slot as usize].as_deref_mut().expect("a slot with a name has an owner");
        if !state.registered {
            state.spec = image.spec;
        }
        state.trust = trust_of(image.trust, state.registered.then_some(state.trust), now_ms);
        let id = state.id;
        self.refresh(slot);
        id
    }

    fn number_rows(&mut self) {
        self.row_of.resize(self.slots.len(), 0);
        for (position, slot) in self.order.iter().enumerate() {
            self.row_of[*slot as usize] = position as u32;
        }
    }

    /// Removes the owner: blocks, pending, recent hashes, counters, trust. The rest of the index is untouched.
    pub fn unregister(&mut self, owner: &Owner) -> bool {
        let Some(slot) = self.by_owner.remove(owner) else {
            return false;
        };
        self.forget_content(slot);
        if let Some(state) = self.slots[slot as usize].take() {
            self.by_id.remove(&state.id);
        }
        self.order.retain(|other| *other != slot);
        Arc::make_mut(&mut self.rows).retain(|row| row.slot != slot);
        self.number_rows();
        for set in [&mut self.fast, &mut self.detailed, &mut self.pools] {
            set.remove(slot);
        }
        self.free_slots.push(slot);
        true
    }

    /// The id of a known owner.
    #[must_use]
    pub fn owner_id(&self, owner: &Owner) -> Option<OwnerId> {
        let slot = *self.by_owner.get(owner)?;
        self.slots[slot as usize].as_deref().map(|state| state.id)
    }

    /// All owners, registered or not, in order.
    #[must_use]
    pub fn owners(&self) -> Vec<Owner> {
        self.order
            .iter()
            .filter_map(|slot| self.slots[*slot as usize].as_deref())
            .map(|state| state.owner.clone())
            .collect()
    }

    pub(super) fn slot_of_id(&self, id: OwnerId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn state(&self, id: OwnerId) -> Option<&OwnerState> {
        self.slots[*self.by_id.get(&id)? as usize].as_deref()
    }

    /// Changes an owner's state without the tree.
    fn change(&mut self, id: OwnerId, change: impl FnOnce(&mut OwnerState)) {
        if let Some(slot) = self.by_id.get(&id).copied()
            && let Some(state) = self.slots[slot as usize].as_deref_mut()
        {
            change(state);
            self.refresh(slot);
        }
    }

    /// Applies all events of one batch to one owner, in order. Counts and sets index-side trust reasons by itself
    /// (`skipped`, `pending_parents`, `block_size_mismatch`, `unknown_group`, `ambiguous_groups`, `memory`), and ends
    /// `nothing_heard`. An owner that is gone is left alone.
    pub fn apply(&mut self, owner: OwnerId, batch: &Batch, context: ApplyContext) {
        let over_limit = self.over_limit;
        self.write(owner, context, |writer| {
            writer.me.trust.set(Reason::NothingHeard, false, context.now_ms);
            if let Some(timestamp_ms) = batch.timestamp_ms {
                writer.age(timestamp_ms);
                writer.reclaim();
            }
            writer.over_limit = over_limit;
            let twins = Twins::of(batch);
            for event in &batch.events {
                match event {
                    Event::Stored(stored) => writer.stored(batch, stored, twins.has(batch, stored)),
                    Event::Removed(removed) => {
                        writer.removed(batch, removed);
                        // What removals free is one run in the end, mostly.
                        continue;
                    }
                    Event::Cleared => writer.cleared(),
                    Event::Ignored(reason) => writer.me.ignore(*reason),
                    Event::Skipped(reason) => writer.me.skip(*reason, context.now_ms),
                }
                writer.reclaim();
            }
            writer.reclaim();
        });
        self.keep_bound(context.now_ms);
    }

    pub(super) fn write(&mut self, owner: OwnerId, context: ApplyContext, change: impl FnOnce(&mut Writer<'_>)) {
        let Some(slot) = self.by_id.get(&owner).copied() else {
            return;
        };
        let Some(mut state) = self.slots[slot as usize].take() else {
            return;
        };
        let (lower, held) = (lower_blocks(&state), state.blocks.iter().sum::<u64>());
        let mut writer = Writer {
            tree: &mut self.tree,
            me: &mut state,
            slot,
            others: &self.slots,
            limits: self.limits,
            block_size: self.block_size,
            seq: context.seq,
            now_ms: context.now_ms,
            over_limit: false,
            evicting: false,
            joining: false,
            doomed: Vec::new(),
            whole: Vec::new(),
        };
        change(&mut writer);
        state.trim();
        self.lower_count = self.lower_count + lower_blocks(&state) - lower;
        self.held_count = self.held_count + state.blocks.iter().sum::<u64>() - held;
        self.slots[slot as usize] = Some(state);
        self.refresh(slot);
    }

    /// Brings what queries read up to date: the row of a slot, and the set of walks that it is in.
    fn refresh(&mut self, slot: Slot) {
        let Some(state) = self.slots[slot as usize].as_deref() else {
            return;
        };
        let (pool, detail) = (state.spec.role == Role::Store, state.needs_detail());
        let (position, plain) = (self.row_of[slot as usize] as usize, !detail && lower_blocks(state) == 0);
        let row = &self.rows[position];
        let kept = (row.registered, row.worker, row.plain, row.trust);
        if kept != (state.registered, !pool, plain, state.trust) {
            let row = &mut Arc::make_mut(&mut self.rows)[position];
            (row.registered, row.worker, row.plain, row.trust) = (state.registered, !pool, plain, state.trust);
        }
        self.lower_blocks = self.lower_count > 0;
        for (set, member) in
            [(&mut self.pools, pool), (&mut self.detailed, !pool && detail), (&mut self.fast, !pool && !detail)]
        {
            if member {
                set.insert(slot);
            } else {
                set.remove(slot);
            }
        }
    }

    /// Counts something skipped outside `apply` (malformed frames, undecodable batch) and degrades the owner.
    pub fn skip(&mut self, owner: OwnerId, reason: SkipReason, now_ms: u64) {
        self.change(owner, |state| state.skip(reason, now_ms));
    }

    /// Empties an owner; [`Clear`] says what stays known.
    pub fn clear(&mut self, owner: OwnerId, clear: Clear, now_ms: u64) {
        match clear {
            Clear::AllBlocksCleared => self.write(owner, ApplyContext { seq: Seq(0), now_ms }, |writer| {
                writer.cleared();
                writer.reclaim();
            }),
            Clear::NewLife => {
                let Some(slot) = self.by_id.get(&owner).copied() else {
                    return;
                };
                self.forget_content(slot);
                self.change(owner, |state| state.end_content_reasons(now_ms));
            }
        }
    }

    /// Drops all content of a slot from the tree and the owner.
    fn forget_content(&mut self, slot: Slot) {
        let mut freed = Vec::new();
        for node in self.tree.node_ids() {
            self.tree.drop_column(node, slot);
            if self.tree.take_owner(node, slot).iter().any(Option::is_some) {
                freed.push(node);
            }
        }
        for node in freed {
            if self.tree.exists(node) {
                self.tree.reclaim(node);
            }
        }
        if let Some(state) = self.slots[slot as usize].as_deref_mut() {
            self.lower_count -= lower_blocks(state);
            self.held_count -= state.blocks.iter().sum::<u64>();
            state.forget_content();
        }
        self.lower_blocks = self.lower_count > 0;
    }

    /// Trust of an owner, for the room that knows the stream. Exact for an owner that is gone.
    #[must_use]
    pub fn trust(&self, owner: OwnerId) -> Trust {
        self.state(owner).map(|state| state.trust).unwrap_or_default()
    }

    /// Raises or ends a reason; idempotent.
    pub fn set_reason(&mut self, owner: OwnerId, reason: Reason, holds: bool, now_ms: u64) {
        self.change(owner, |state| {
            state.trust.set(reason, holds, now_ms);
        });
    }

    /// A complete replay from 0 begins: forgets content and the trust reasons that speak about it; what the replay
    /// itself raises again stays. The stream sets its own reasons after it.
    pub fn begin_rebuild(&mut self, owner: OwnerId, now_ms: u64) {
        self.clear(owner, Clear::NewLife, now_ms);
    }

    /// Over the memory limit: stores are skipped and counted, removals go on. Owners that lost stores stay degraded
    /// (`memory`) until they are emptied or rebuilt.
    pub fn set_memory_pressure(&mut self, over_limit: bool, _now_ms: u64) {
        self.over_limit = over_limit;
    }

    /// All blocks that an owner holds: reachable ones with parents first, then unreachable, then pending ones.
    #[must_use]
    pub fn dump(&self, owner: OwnerId) -> Vec<DumpBlock> {
        self.chains(owner).blocks().collect()
    }

    /// The same, without spelling out each block.
    #[must_use]
    pub fn chains(&self, owner: OwnerId) -> Chains {
        let slot = self.by_id.get(&owner).copied();
        let state = self.state(owner);
        slot.zip(state).map(|(slot, owner)| dump::chains(View { tree: &self.tree, owner, slot })).unwrap_or_default()
    }

    /// Counters and gauges of an owner.
    #[must_use]
    pub fn report(&self, owner: OwnerId) -> OwnerReport {
        self.state(owner).map(OwnerState::report).unwrap_or_default()
    }

    /// Size of the index.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            held_blocks: self.held_count,
            content_blocks: self.tree.block_count(),
            nodes: self.tree.node_count(),
            owners: self.order.len() as u64,
            bytes: self.bytes(),
            evicted_blocks: self.evicted,
        }
    }
}

fn lower_blocks(state: &OwnerState) -> u64 {
    state.blocks[1..].iter().sum()
}

/// Reasons that the index raises and ends by itself.
fn is_own(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::PendingParents
            | Reason::Skipped
            | Reason::BlockSizeMismatch
            | Reason::UnknownGroup
            | Reason::AmbiguousGroups
            | Reason::Memory
            | Reason::NothingHeard
    )
}

/// Device stores without a group whose hashes come twice in one batch.
struct Twins {
    /// First hash and number of hashes of each candidate, sorted; empty when there is at most one.
    candidates: Vec<(u64, u32)>,
}

impl Twins {
    fn of(batch: &Batch) -> Self {
        let mut candidates = Vec::new();
        if batch.events.len() > 1 {
            let stores = batch.events.iter().filter_map(|event| match event {
                Event::Stored(stored) => Self::key(batch, stored),
                _ => None,
            });
            candidates = stores.collect();
            candidates.sort_unstable();
        }
        Self { candidates }
    }

    fn key(batch: &Batch, stored: &crate::event::Stored) -> Option<(u64, u32)> {
        let plain = stored.tier == Tier::Device && stored.group.id.is_none() && stored.group.kind.is_none();
        let first = batch.hashes_of(&stored.hashes).first()?;
        plain.then_some((first.0, stored.hashes.len() as u32))
    }

    fn has(&self, batch: &Batch, stored: &crate::event::Stored) -> bool {
        let Some(key) = Self::key(batch, stored).filter(|_| self.candidates.len() > 1) else {
            return false;
        };
        let first = self.candidates.partition_point(|other| *other < key);
        let count = self.candidates[first..].iter().take_while(|other| **other == key).count();
        if count < 2 {
            return false;
        }
        let own = batch.hashes_of(&stored.hashes);
        let equal = batch.events.iter().filter(|event| match event {
            Event::Stored(other) => Self::key(batch, other) == Some(key) && batch.hashes_of(&other.hashes) == own,
            _ => false,
        });
        equal.count() > 1
    }
}
