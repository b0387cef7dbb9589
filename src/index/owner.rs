//! What the index knows about one owner beside the holders in the tree: its own hashes, rare overlays, counters, trust.
//!
//! A *record* is (owner, hash, place). The common form needs nothing here: one hash per place, equal to the first
//! storer's, hanging below the owner's hash of the block before. Invariant: a hash that stands in `own` is complete
//! there (all its places); any other hash is looked up in the table of the tree.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::api::{OwnerId, OwnerReport, OwnerSpec};
use super::digest::Digest;
use super::evict::Order;
use super::groups::Groups;
use super::own::Own;
use super::pending::Pending;
use super::recent::{Recents, Removals};
use super::tree::{Place, RECENT};
use crate::event::{IgnoreReason, SkipReason};
use crate::ids::{DuplicatePolicy, Owner};
use crate::trust::{Reason, Trust};

/// Bits of the rows that count as held.
pub(super) const HELD: u8 = (1 << RECENT) - 1;

/// One hash of an owner at a place, spelled out.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) hash: u64,
    /// Rows it lies on, as bits.
    pub(super) rows: u8,
    /// Parent hashes it was stored with; none: the owner's main hash of the block before, or the root.
    pub(super) parents: SmallVec<[u64; 1]>,
}

/// Several hashes at one place, or a parent that is not the main hash.
#[derive(Debug, Clone)]
pub(super) struct Overlay {
    /// The first hash; records below that name no parent hang below it.
    pub(super) main: u64,
    pub(super) records: SmallVec<[Record; 2]>,
}

impl Overlay {
    pub(super) fn record(&mut self, hash: u64) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.hash == hash)
    }
}

/// When blocks of lower tiers were stored, for ageing.
#[derive(Debug, Default)]
pub(super) struct Ages {
    pub(super) stored: FxHashMap<Aged, u64>,
    pub(super) queue: std::collections::VecDeque<(u64, Aged)>,
    /// Latest timestamp of a batch, in milliseconds.
    pub(super) clock_ms: u64,
}

/// What ages: a hash on a row in a cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Aged {
    pub(super) hash: u64,
    pub(super) row: u8,
    pub(super) group: Option<u32>,
}

/// Places that are looked at before a table is.
pub(super) type Guess = [Option<Place>; 2];

/// One owner.
#[derive(Debug)]
pub(super) struct OwnerState {
    pub(super) owner: Owner,
    pub(super) id: OwnerId,
    pub(super) registered: bool,
    pub(super) spec: OwnerSpec,
    pub(super) trust: Trust,
    /// Places of hashes that the table of the tree does not give.
    pub(super) own: Own,
    /// Places of hashes that have several, newest last.
    pub(super) multi: FxHashMap<u64, SmallVec<[Place; 2]>>,
    pub(super) overlays: FxHashMap<Place, Overlay>,
    /// Records that named no parent and were placed by what others said: content alone carries them.
    pub(super) free: FxHashSet<(Place, u64)>,
    /// Copies by hash and row where there are more than one.
    pub(super) copies: FxHashMap<(u64, u8), u32>,
    /// Index blocks of hashes that name more than one.
    pub(super) spans: FxHashMap<u64, u32>,
    /// Made-up hashes of all but the last blocks of such spans; they are remembered and forgotten with the span.
    pub(super) pieces: FxHashSet<u64>,
    pub(super) recents: Recents,
    pub(super) removals: Removals,
    /// Where the next block is expected that is removed, and that is forgotten.
    pub(super) next_removed: Guess,
    pub(super) next_forgotten: Guess,
    /// Held hashes by age, where there is a bound on held blocks.
    pub(super) order: Option<Box<Order>>,
    /// Blocks given up for that bound.
    pub(super) evicted: u64,
    pub(super) pending: Option<Box<Pending>>,
    /// A pending block was dropped and nothing has made up for it.
    pub(super) pending_dropped: bool,
    pub(super) groups: Option<Box<Groups>>,
    pub(super) ages: Option<Box<Ages>>,
    /// Main groups that have stored blocks of the index's size.
    pub(super) whole_groups: FxHashSet<Option<u32>>,
    /// Device stores in a row that came as twins.
    pub(super) twins: u32,
    pub(super) blocks: [u64; 4],
    /// Sum over what `blocks` counts.
    pub(super) digest: Digest,
    pub(super) skipped: [u64; SkipReason::ALL.len()],
    pub(super) ignored: [u64; IgnoreReason::ALL.len()],
    pub(super) applied: [u64; 3],
    pub(super) duplicate_stores: u64,
    pub(super) announced_block_size: Option<u32>,
}

impl OwnerState {
    pub(super) fn new(owner: Owner, id: OwnerId, spec: OwnerSpec, trust: Trust) -> Self {
        Self {
            digest: Digest::new(&owner),
            owner,
            id,
            registered: false,
            spec,
            trust,
            own: Own::default(),
            multi: FxHashMap::default(),
            overlays: FxHashMap::default(),
            free: FxHashSet::default(),
            copies: FxHashMap::default(),
            spans: FxHashMap::default(),
            pieces: FxHashSet::default(),
            recents: Recents::default(),
            removals: Removals::default(),
            next_removed: Guess::default(),
            next_forgotten: Guess::default(),
            order: None,
            evicted: 0,
            pending: None,
            pending_dropped: false,
            groups: None,
            ages: None,
            whole_groups: FxHashSet::default(),
            twins: 0,
            blocks: [0; 4],
            skipped: [0; SkipReason::ALL.len()],
            ignored: [0; IgnoreReason::ALL.len()],
            applied: [0; 3],
            duplicate_stores: 0,
            announced_block_size: None,
        }
    }

    /// Forgets content, learnt groups and everything remembered; counters stay.
    pub(super) fn forget_content(&mut self) {
        self.own = Own::default();
        self.multi = FxHashMap::default();
        self.overlays = FxHashMap::default();
        self.free = FxHashSet::default();
        self.copies = FxHashMap::default();
        self.spans = FxHashMap::default();
        self.pieces = FxHashSet::default();
        self.recents = Recents::default();
        self.removals = Removals::default();
        (self.next_removed, self.next_forgotten) = <_>::default();
        self.order = None;
        self.pending = None;
        self.pending_dropped = false;
        self.groups = None;
        self.ages = None;
        self.whole_groups.clear();
        self.twins = 0;
        self.blocks = [0; 4];
        self.digest.clear();
        self.announced_block_size = None;
    }

    /// Ends the reasons that speak about content that is gone.
    pub(super) fn end_content_reasons(&mut self, now_ms: u64) {
        const CONTENT: [Reason; 10] = [
            Reason::Gap,
            Reason::ReplayIncomplete,
            Reason::PendingParents,
            Reason::Skipped,
            Reason::BlockSizeMismatch,
            Reason::UnknownGroup,
            Reason::AmbiguousGroups,
            Reason::UnverifiedReconnect,
            Reason::NoWatermark,
            Reason::Memory,
        ];
        for reason in CONTENT {
            self.trust.set(reason, false, now_ms);
        }
    }

    /// True if each store of a held block adds a copy and each removal takes one.
    pub(super) fn takes_copies(&self) -> bool {
        match self.spec.policy {
            DuplicatePolicy::Copies => true,
            DuplicatePolicy::Set => false,
            DuplicatePolicy::Auto => self.groups.as_ref().is_some_and(|groups| groups.has_side()),
        }
    }

    /// A remembered hash is held again, or given up.
    pub(super) fn revive(&mut self, hash: u64) {
        if !self.pieces.contains(&hash) {
            self.recents.revive(hash);
        }
    }

    /// One more copy of what is held; counted under every policy, for the policy may change.
    pub(super) fn add_copy(&mut self, hash: u64, row: u8) {
        let copies = self.copies.entry((hash, row)).or_insert(1);
        *copies = copies.saturating_add(1);
    }

    /// Takes a copy, or decides that the last one goes: false if something remains. `remaining` as the engine says.
    pub(super) fn take_copy(&mut self, hash: u64, row: u8, remaining: Option<u64>) -> bool {
        match remaining {
            Some(0) => {}
            Some(1) => {
                self.copies.remove(&(hash, row));
                return false;
            }
            Some(more) => {
                self.copies.insert((hash, row), u32::try_from(more).unwrap_or(u32::MAX));
                return false;
            }
            None if self.takes_copies() => {
                if let Some(copies) = self.copies.get_mut(&(hash, row)) {
                    *copies -= 1;
                    if *copies == 1 {
                        self.copies.remove(&(hash, row));
                    }
                    return false;
                }
            }
            None => {}
        }
        if !self.copies.is_empty() {
            self.copies.remove(&(hash, row));
        }
        true
    }

    /// Counts something that could not be used, and degrades.
    pub(super) fn skip(&mut self, reason: SkipReason, now_ms: u64) {
        self.skipped[reason as usize] += 1;
        let trust = match reason {
            SkipReason::BlockSize => Reason::BlockSizeMismatch,
            SkipReason::PendingOverflow => Reason::PendingParents,
            SkipReason::Memory => Reason::Memory,
            _ => Reason::Skipped,
        };
        self.trust.set(trust, true, now_ms);
    }

    pub(super) fn ignore(&mut self, reason: IgnoreReason) {
        self.ignored[reason as usize] += 1;
    }

    /// Brings `pending_parents` up to date.
    pub(super) fn judge_pending(&mut self, now_ms: u64) {
        let holds = self.pending_dropped || self.pending_blocks() > 0;
        self.trust.set(Reason::PendingParents, holds, now_ms);
    }

    pub(super) fn pending_blocks(&self) -> u64 {
        self.pending.as_ref().map_or(0, |pending| pending.block_count())
    }

    /// False if nothing but a name, a registration and counters would be lost.
    pub(super) fn has_content(&self) -> bool {
        self.blocks != [0; 4]
            || self.recents.len() > 0
            || !(self.own.is_empty() && self.overlays.is_empty() && self.pieces.is_empty() && self.copies.is_empty())
            || !(self.removals.is_empty() && self.whole_groups.is_empty() && self.pending.is_none())
            || self.groups.is_some()
            || self.ages.is_some()
    }

    /// True if only the exact walk block by block answers for this owner.
    pub(super) fn needs_detail(&self) -> bool {
        !self.overlays.is_empty() || self.groups.as_ref().is_some_and(|groups| groups.restricts())
    }

    pub(super) fn report(&self) -> OwnerReport {
        OwnerReport {
            registered: self.registered,
            trust: self.trust,
            blocks: self.blocks,
            pending_blocks: self.pending_blocks(),
            skipped: self.skipped.to_vec(),
            ignored: self.ignored.to_vec(),
            applied: self.applied,
            duplicate_stores: self.duplicate_stores,
            evicted_blocks: self.evicted,
            announced_block_size: self.announced_block_size,
        }
    }
}
