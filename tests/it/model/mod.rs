//! The independent second opinion on the index: a naive model written from the rules, and the tests that hold the
//! index to it. Slow and plain on purpose; it shares no code with `kvindexer::index`.
//!
//! Per owner the model keeps what the engine said, by engine hash: where the hash was announced ([`Place`]), how many
//! copies of it each tier and cache group holds, which removed hashes are remembered, which blocks wait for a parent.
//! Everything else (`walk`) is computed from that at each question.
//!
//! * `histories` makes histories, `properties` plays them to the model and to the index and compares after each step;
//! * `recorded` plays recorded engine streams and golden cases without sockets;
//! * `directed` holds the rules whose exact moment a random history would rarely meet;
//! * `concurrent` asks while another thread writes;
//! * `churn` watches that content which nobody holds any more is given back.

mod batches;
mod bounded;
mod check;
mod churn;
mod concurrent;
mod directed;
mod histories;
mod images;
mod properties;
mod recorded;
mod store;
mod walk;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvindexer::event::{Batch, CacheKind, Event, Removed, SkipReason};
use kvindexer::ids::{DuplicatePolicy, EngineHash, LocalHash, Namespace, Owner, Role, Tier};
use kvindexer::index::{Clear, Limits, OwnerSpec};
use kvindexer::trust::Reason;

/// Reasons that the index raises and ends by itself; the others belong to the stream.
pub(crate) const INDEX_REASONS: [Reason; 7] = [
    Reason::PendingParents,
    Reason::Skipped,
    Reason::BlockSizeMismatch,
    Reason::UnknownGroup,
    Reason::AmbiguousGroups,
    Reason::Memory,
    Reason::NothingHeard,
];

/// Number of a cache group; an absent number is group 0.
pub(crate) type Group = u32;

/// What carries a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Parent {
    /// It begins a prompt.
    Root,
    /// The engine named this hash.
    Hash(EngineHash),
    /// The place was learnt from other owners: only the content before it counts.
    Content,
}

/// Where a hash was announced: its content, from the root to its end.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) path: Vec<LocalHash>,
    /// Index blocks that the hash names; more than one for a re-cut span.
    pub(crate) len: usize,
    pub(crate) namespace: Namespace,
    pub(crate) parents: BTreeSet<Parent>,
    /// Tiers and groups that hold the hash here.
    pub(crate) on: BTreeSet<(Tier, Group)>,
    /// Moment of the last store here; the newest place takes children.
    pub(crate) stamp: u64,
}

impl Place {
    /// True if one of its index blocks is the last one of `path`.
    pub(crate) fn covers(&self, path: &[LocalHash]) -> bool {
        path.len() + self.len > self.path.len() && path.len() <= self.path.len() && self.path[..path.len()] == *path
    }

    /// Content before the first of its index blocks.
    pub(crate) fn before(&self) -> &[LocalHash] {
        &self.path[..self.path.len() - self.len]
    }
}

/// A block that waits for a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) hash: EngineHash,
    pub(crate) parent: EngineHash,
    pub(crate) named: Namespace,
    /// Tokens and extra keys of each index block.
    pub(crate) pieces: Vec<Piece>,
    /// Tiers and groups that hold it.
    pub(crate) on: BTreeSet<(Tier, Group)>,
}

/// One index block before its namespace is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) token_bytes: Vec<u8>,
    pub(crate) extras: Vec<u64>,
}

/// What was learnt about a cache group.
#[derive(Debug, Clone, Default)]
pub(crate) struct GroupFacts {
    pub(crate) kind: Option<CacheKind>,
    pub(crate) window_tokens: Option<u32>,
    /// Some event gave its number.
    pub(crate) numbered: bool,
    /// A store without kind had fewer hashes than blocks.
    pub(crate) incomplete: bool,
    /// It has stored blocks of the index's size.
    pub(crate) stored_whole: bool,
    pub(crate) block_sizes: BTreeSet<u32>,
}

/// One owner, as its engine described it.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnerModel {
    pub(crate) registered: bool,
    pub(crate) spec: OwnerSpec,
    pub(crate) copies: BTreeMap<(EngineHash, Tier, Group), u64>,
    pub(crate) places: BTreeMap<EngineHash, Vec<Place>>,
    /// Hashes that are held nowhere and whose places are still known, oldest first.
    pub(crate) recent: VecDeque<EngineHash>,
    pub(crate) pending: Vec<Pending>,
    pub(crate) pending_dropped: bool,
    pub(crate) groups: BTreeMap<Group, GroupFacts>,
    pub(crate) reasons: BTreeSet<Reason>,
}

/// The whole index.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) block_size: u32,
    pub(crate) limits: Limits,
    pub(crate) owners: BTreeMap<Owner, OwnerModel>,
    pub(crate) over_memory: bool,
    clock: u64,
}

impl Model {
    pub(crate) fn new(block_size: u32, limits: Limits) -> Self {
        Self { block_size, limits, owners: BTreeMap::new(), over_memory: false, clock: 0 }
    }

    pub(crate) fn register(&mut self, owner: &Owner, spec: OwnerSpec) {
        let entry = self.entry(owner);
        entry.registered = true;
        entry.spec = spec;
    }

    pub(crate) fn intern(&mut self, owner: &Owner, like: &Owner) {
        let spec = self.owners[like].spec;
        if !self.owners.contains_key(owner) {
            let entry = self.entry(owner);
            entry.spec = spec;
            // A batch has named it.
            entry.reasons.clear();
        }
    }

    fn entry(&mut self, owner: &Owner) -> &mut OwnerModel {
        self.owners
            .entry(owner.clone())
            .or_insert_with(|| OwnerModel { reasons: BTreeSet::from([Reason::NothingHeard]), ..OwnerModel::default() })
    }

    pub(crate) fn unregister(&mut self, owner: &Owner) -> bool {
        self.owners.remove(owner).is_some()
    }

    pub(crate) fn apply(&mut self, owner: &Owner, batch: &Batch) {
        self.owner(owner).reasons.remove(&Reason::NothingHeard);
        for event in &batch.events {
            match event {
                Event::Stored(stored) => store::stored(self, owner, batch, stored),
                Event::Removed(removed) => self.removed(owner, batch, removed),
                Event::Cleared => self.clear(owner, Clear::AllBlocksCleared),
                Event::Ignored(_) => {}
                Event::Skipped(reason) => self.skip(owner, *reason),
            }
        }
    }

    pub(crate) fn skip(&mut self, owner: &Owner, reason: SkipReason) {
        let trust = match reason {
            SkipReason::BlockSize => Reason::BlockSizeMismatch,
            SkipReason::Memory => Reason::Memory,
            SkipReason::PendingOverflow => Reason::PendingParents,
            _ => Reason::Skipped,
        };
        self.owner(owner).reasons.insert(trust);
    }

    pub(crate) fn clear(&mut self, owner: &Owner, clear: Clear) {
        let recent_max = self.limits.recent_hashes_max;
        let entry = self.owner(owner);
        let held: Vec<EngineHash> = entry.places.keys().copied().filter(|hash| entry.held(*hash)).collect();
        entry.copies.clear();
        entry.pending.clear();
        entry.pending_dropped = false;
        for place in entry.places.values_mut().flatten() {
            place.on.clear();
        }
        for hash in held {
            entry.remember(hash, recent_max);
        }
        entry.reasons.retain(|reason| *reason == Reason::NothingHeard);
        if clear == Clear::NewLife {
            entry.places.clear();
            entry.recent.clear();
            entry.groups.clear();
        }
    }

    fn removed(&mut self, owner: &Owner, batch: &Batch, removed: &Removed) {
        let recent_max = self.limits.recent_hashes_max;
        let group = removed.group.id.map_or(0, |id| id.0);
        let entry = self.owner(owner);
        let by_copies = entry.counts_copies();
        for (i, hash) in batch.hashes_of(&removed.hashes).iter().enumerate() {
            let key = (*hash, removed.tier, group);
            let Some(copies) = entry.copies.get(&key).copied() else { continue };
            let left = match &removed.remaining_copies {
                Some(remaining) => remaining[i],
                None if by_copies => copies - 1,
                None => 0,
            };
            if left > 0 {
                entry.copies.insert(key, left);
            } else {
                entry.gone(key, recent_max);
            }
        }
        entry.settle_pending();
    }

    pub(crate) fn owner(&mut self, owner: &Owner) -> &mut OwnerModel {
        self.owners.get_mut(owner).expect("the history names known owners only")
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Pools whose blocks extend the external tier of all others.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &OwnerModel> {
        self.owners.values().filter(|owner| owner.spec.role == Role::Store)
    }
}

impl OwnerModel {
    /// Side groups make a model hybrid; with the automatic policy that turns copies on.
    pub(crate) fn counts_copies(&self) -> bool {
        match self.spec.policy {
            DuplicatePolicy::Copies => true,
            DuplicatePolicy::Set => false,
            DuplicatePolicy::Auto => !self.sides().is_empty(),
        }
    }

    /// True if some place of the hash is held.
    pub(crate) fn held(&self, hash: EngineHash) -> bool {
        self.places.get(&hash).is_some_and(|places| places.iter().any(|place| !place.on.is_empty()))
    }

    /// The place that takes children and bare stores of the hash: the newest that is held, else the newest remembered.
    pub(crate) fn newest(&self, hash: EngineHash) -> Option<&Place> {
        self.places.get(&hash)?.iter().max_by_key(|place| (!place.on.is_empty(), place.stamp))
    }

    /// The last copy is gone.
    pub(crate) fn gone(&mut self, key: (EngineHash, Tier, Group), recent_max: usize) {
        let (hash, tier, group) = key;
        self.copies.remove(&key);
        for block in self.pending.iter_mut().filter(|block| block.hash == hash) {
            block.on.remove(&(tier, group));
        }
        self.pending.retain(|block| !block.on.is_empty());
        let was_held = self.held(hash);
        for place in self.places.get_mut(&hash).into_iter().flatten() {
            place.on.remove(&(tier, group));
        }
        if was_held && !self.held(hash) {
            self.remember(hash, recent_max);
        }
    }

    fn remember(&mut self, hash: EngineHash, recent_max: usize) {
        self.recent.push_back(hash);
        while self.recent.len() > recent_max {
            let oldest = self.recent.pop_front().expect("longer than the limit");
            self.places.remove(&oldest);
        }
    }

    /// `pending_parents` holds while a block waits, or was dropped while waiting.
    pub(crate) fn settle_pending(&mut self) {
        if self.pending.is_empty() && !self.pending_dropped {
            self.reasons.remove(&Reason::PendingParents);
        } else {
            self.reasons.insert(Reason::PendingParents);
        }
    }

    /// Index blocks that wait for a parent.
    pub(crate) fn pending_blocks(&self) -> usize {
        self.pending.iter().map(|block| block.pieces.len()).sum()
    }
}
