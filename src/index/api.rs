//! Public surface of the room. (Skeleton: signatures are the agreement between rooms; the builder of `index` may move things into files by meaning and add to them, but keeps names and meaning.)
#![allow(missing_docs, unused_variables, dead_code, reason = "skeleton")]

use crate::event::{Batch, IgnoreReason, SkipReason};
use crate::ids::{BlockSize, DuplicatePolicy, EngineHash, LocalHash, Namespace, Owner, Role, Seq, Tier};
use crate::trust::{Reason, Trust};

/// An owner, interned in one index. Never reused while the index lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub(crate) u32);

/// Bounds of one index.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Removed hashes remembered per owner, to place later hash-only stores and children.
    pub recent_hashes_max: usize, // 65_536
    /// Blocks per owner that may wait for a parent.
    pub pending_blocks_max: usize, // 65_536
    /// Removals per owner remembered for explanations (sequence number and time).
    pub removals_remembered_max: usize, // 1_024
}

/// What a registration says about an owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerSpec {
    pub policy: DuplicatePolicy,
    pub role: Role,
    /// Ages out blocks of host, disk and external tier by batch timestamps.
    pub lower_tier_ttl_ms: Option<u64>,
}

/// Where a batch comes from; for trust, explanations and ageing.
#[derive(Debug, Clone, Copy)]
pub struct ApplyContext {
    pub seq: Seq,
    pub now_ms: u64,
}

/// Why everything of an owner goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// The engine said so: recent hashes stay known.
    AllBlocksCleared,
    /// The publisher, container or registration is another: nothing is remembered; learnt groups and trust reasons of the content go too.
    NewLife,
}

pub struct PrefixIndex {}

impl PrefixIndex {
    #[must_use]
    pub fn new(block_size: BlockSize, limits: Limits) -> Self {
        todo!()
    }
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        todo!()
    }
    /// Adds a registered owner, or changes the spec of a known one. New owners start with the reasons `not_connected` and `nothing_heard`.
    pub fn register(&mut self, owner: &Owner, spec: OwnerSpec, now_ms: u64) -> OwnerId {
        todo!()
    }
    /// Owner named by batches only: counted and matched, but listed in answers only when something of it matched.
    pub fn intern(&mut self, owner: &Owner, like: OwnerId, now_ms: u64) -> OwnerId {
        todo!()
    }
    /// Removes the owner: blocks, pending, recent hashes, counters, trust. The rest of the index is untouched.
    pub fn unregister(&mut self, owner: &Owner) -> bool {
        todo!()
    }
    #[must_use]
    pub fn owner_id(&self, owner: &Owner) -> Option<OwnerId> {
        todo!()
    }
    /// All owners, registered or not, in any order.
    pub fn owners(&self) -> Vec<Owner> {
        todo!()
    }
    /// Applies all events of one batch to one owner, in order. Counts and sets index-side trust reasons by itself
    /// (`skipped`, `pending_parents`, `block_size_mismatch`, `unknown_group`, `ambiguous_groups`, `memory`), and ends `nothing_heard`.
    pub fn apply(&mut self, owner: OwnerId, batch: &Batch, context: ApplyContext) {
        todo!()
    }
    /// Counts something skipped outside `apply` (malformed frames, undecodable batch) and degrades the owner.
    pub fn skip(&mut self, owner: OwnerId, reason: SkipReason, now_ms: u64) {
        todo!()
    }
    pub fn clear(&mut self, owner: OwnerId, clear: Clear, now_ms: u64) {
        todo!()
    }
    /// Trust, for the room that knows the stream. `set_reason` is idempotent.
    #[must_use]
    pub fn trust(&self, owner: OwnerId) -> Trust {
        todo!()
    }
    pub fn set_reason(&mut self, owner: OwnerId, reason: Reason, holds: bool, now_ms: u64) {
        todo!()
    }
    /// A complete replay from 0 was applied after `clear(NewLife)`: ends `skipped`/`block_size_mismatch` unless that replay itself raised them again. The stream calls
    /// `begin_rebuild` (forgets content and counters-of-trust) before it and `set_reason` for its own reasons after it.
    pub fn begin_rebuild(&mut self, owner: OwnerId, now_ms: u64) {
        todo!()
    }
    /// Over the memory limit: stores are skipped and counted, removals go on.
    pub fn set_memory_pressure(&mut self, over_limit: bool, now_ms: u64) {
        todo!()
    }

    /// Longest cached prefix per owner. `query[..=i]` covers tokens `[0, (i + 1) * block_size)`.
    #[must_use]
    pub fn find(&self, query: &[LocalHash]) -> Answer {
        todo!()
    }
    /// The same for rolling hashes (Mooncake); the side table is built at the first call.
    #[must_use]
    pub fn find_rolling(&self, rolling: &[u64]) -> Answer {
        todo!()
    }
    /// For each owner: where the match ends and why.
    #[must_use]
    pub fn explain(&self, query: &[LocalHash]) -> Vec<Explanation> {
        todo!()
    }
    /// All blocks that an owner holds, reachable parents first, then unreachable, then pending ones.
    #[must_use]
    pub fn dump(&self, owner: OwnerId) -> Vec<DumpBlock> {
        todo!()
    }
    #[must_use]
    pub fn report(&self, owner: OwnerId) -> OwnerReport {
        todo!()
    }
    #[must_use]
    pub fn stats(&self) -> Stats {
        todo!()
    }
}

/// Answer of [`PrefixIndex::find`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Every registered worker owner (zeros included) and every other owner that matched, in order of owner.
    pub owners: Vec<OwnerAnswer>,
    /// `frequencies[i]` = owners whose device prefix covers block i; as long as the longest device prefix.
    pub frequencies: Vec<u32>,
}

/// One row of an answer, in blocks, cumulative: `device <= host_pinned <= disk`; `disk` includes the external tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerAnswer {
    pub owner: Owner,
    pub registered: bool,
    pub device: u32,
    pub host_pinned: u32,
    pub disk: u32,
    /// Not cumulative: the owner's own prefix from the root on one tier alone, as Mooncake counts (device, host, disk+external).
    pub own_prefix: [u32; 3],
    pub trust: Trust,
}

/// Why a match ends where it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    pub owner: Owner,
    pub answer: OwnerAnswer,
    /// One per way the walk could have gone on: device, then the cumulative end.
    pub device_end: MatchEnd,
    pub total_end: MatchEnd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchEnd {
    /// Blocks matched.
    pub blocks: u32,
    pub reason: StopReason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The whole query matched.
    WholeQuery,
    /// Nobody announced this content here, and no removal of it is remembered.
    NeverStored,
    /// This owner removed the block.
    Removed { hash: EngineHash, seq: Seq, at_ms: u64 },
    /// Removed longer ago than we remember, or never stored.
    RemovedOrNeverStored,
    /// The owner holds the block, on these tiers only, which the walk does not reach from here.
    OtherTier { tiers: Vec<Tier> },
    /// The owner holds equal tokens in another namespace (LoRA, salt, images).
    OtherNamespace { namespaces: Vec<Namespace> },
    /// Blocks of this owner wait for a parent, and one of them may belong here.
    PendingParent { pending: u32 },
    /// A side group (window, Mamba) does not hold what the engine needs here.
    SideGroup { group: u32 },
    /// The block's parent hash is gone.
    BrokenChain,
    /// The engine announces another block size.
    WrongBlockSize { announced: u32 },
    /// Not connected, or nothing heard.
    NotConnected,
}

/// One block in a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpBlock {
    pub tier: Tier,
    pub parent: Option<EngineHash>,
    pub hash: EngineHash,
    pub local: LocalHash,
    pub pending: bool,
}

/// Counters and gauges of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerReport {
    pub registered: bool,
    pub trust: Trust,
    /// Held blocks by tier, in index blocks.
    pub blocks: [u64; 4],
    pub pending_blocks: u64,
    /// Parallel to `SkipReason::ALL`.
    pub skipped: Vec<u64>,
    /// Parallel to `IgnoreReason::ALL`.
    pub ignored: Vec<u64>,
    /// Events applied: stored, removed, cleared.
    pub applied: [u64; 3],
    /// Stores of blocks already held.
    pub duplicate_stores: u64,
    /// Block size the engine announced when it does not fit.
    pub announced_block_size: Option<u32>,
}

/// Size of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sum of held (block, owner, tier) over all owners.
    pub held_blocks: u64,
    /// Content blocks in the tree, held or kept for others.
    pub content_blocks: u64,
    pub nodes: u64,
    pub owners: u64,
}

/// A [`PrefixIndex`] behind a read-write lock.
pub struct SharedIndex {
    lock: parking_lot::RwLock<PrefixIndex>,
    block_size: BlockSize,
}

impl SharedIndex {
    #[must_use]
    pub fn new(block_size: BlockSize, limits: Limits) -> Self {
        todo!()
    }
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }
    pub fn read(&self) -> parking_lot::RwLockReadGuard<'_, PrefixIndex> {
        self.lock.read()
    }
    pub fn write(&self) -> parking_lot::RwLockWriteGuard<'_, PrefixIndex> {
        self.lock.write()
    }
}
