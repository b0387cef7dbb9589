//! The values that go in and come out.

#[cfg(doc)]
use crate::event::SkipReason;
pub use crate::ids::OwnerSpec;
use crate::ids::{EngineHash, LocalHash, Namespace, Owner, Seq, Tier};
use crate::trust::Trust;
#[cfg(doc)]
use {super::PrefixIndex, crate::event::IgnoreReason};

/// An owner, interned in one index. Never reused while the index lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub(crate) u32);

/// Bounds of one index.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Removed hashes remembered per owner, to place later hash-only stores and children.
    pub recent_hashes_max: usize,
    /// Blocks per owner that may wait for a parent.
    pub pending_blocks_max: usize,
    /// Removals per owner remembered for explanations (sequence number and time).
    pub removals_remembered_max: usize,
    /// Held (block, owner, tier) of the whole index; 0 is no bound. Beyond it the oldest blocks of the largest owner go.
    pub held_blocks_max: u64,
}

impl Default for Limits {
    /// What the service runs with: enough to place what an engine offloads long after its device copy is gone, and
    /// small against the blocks themselves.
    fn default() -> Self {
        Self {
            recent_hashes_max: 65_536,
            pending_blocks_max: 65_536,
            removals_remembered_max: 1_024,
            held_blocks_max: 0,
        }
    }
}

/// Where a batch comes from; for trust, explanations and ageing.
#[derive(Debug, Clone, Copy)]
pub struct ApplyContext {
    /// Number of the batch.
    pub seq: Seq,
    /// Milliseconds since 1970, for trust and explanations.
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

/// Why a match ends where it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Whose match this is.
    pub owner: Owner,
    /// Registered, not only named by batches.
    pub registered: bool,
    /// How far the owner's blocks can be believed.
    pub trust: Trust,
    /// End of the device prefix.
    pub device_end: MatchEnd,
    /// The cumulative end over all tiers.
    pub total_end: MatchEnd,
}

/// Where a match ends, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchEnd {
    /// Blocks matched.
    pub blocks: u32,
    /// Why it does not go on.
    pub reason: StopReason,
}

/// Why a match does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The whole query matched.
    WholeQuery,
    /// Nobody announced this content here, and no removal of it is remembered.
    NeverStored,
    /// This owner removed the block.
    Removed {
        /// Hash of the block.
        hash: EngineHash,
        /// Number of the batch that removed it.
        seq: Seq,
        /// When that batch arrived, in milliseconds since 1970.
        at_ms: u64,
    },
    /// Removed longer ago than we remember, or never stored.
    RemovedOrNeverStored,
    /// The owner holds the block, on these tiers only, which the walk does not reach from here.
    OtherTier {
        /// Where it lies.
        tiers: Vec<Tier>,
    },
    /// The owner holds equal tokens in another namespace (LoRA, salt, images).
    OtherNamespace {
        /// Where equal tokens are.
        namespaces: Vec<Namespace>,
    },
    /// Blocks of this owner wait for a parent, and one of them may belong here.
    PendingParent {
        /// Waiting blocks of the owner.
        pending: u32,
    },
    /// A side group (window, Mamba) does not hold what the engine needs here.
    SideGroup {
        /// Number of the group.
        group: u32,
    },
    /// The block's parent hash is gone.
    BrokenChain,
    /// The engine announces another block size.
    WrongBlockSize {
        /// Tokens per block as announced.
        announced: u32,
    },
    /// Not connected, or nothing heard.
    NotConnected,
}

/// One block in a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpBlock {
    /// Where the block lies.
    pub tier: Tier,
    /// Hash of the block before; none at the root.
    pub parent: Option<EngineHash>,
    /// The engine's hash; made up for all but the last index block of a larger engine block.
    pub hash: EngineHash,
    /// Content of the block.
    pub local: LocalHash,
    /// Waits for its parent; never matched.
    pub pending: bool,
}

/// Counters and gauges of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerReport {
    /// Registered, not only named by batches.
    pub registered: bool,
    /// How far the owner can be believed.
    pub trust: Trust,
    /// Held blocks by tier, in index blocks.
    pub blocks: [u64; 4],
    /// Index blocks that wait for a parent.
    pub pending_blocks: u64,
    /// Parallel to `SkipReason::ALL`.
    pub skipped: Vec<u64>,
    /// Parallel to `IgnoreReason::ALL`.
    pub ignored: Vec<u64>,
    /// Events applied: stored, removed, cleared.
    pub applied: [u64; 3],
    /// Stores of blocks already held.
    pub duplicate_stores: u64,
    /// Blocks given up because the index held too many.
    pub evicted_blocks: u64,
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
    /// Nodes of the tree.
    pub nodes: u64,
    /// Owners, registered or not.
    pub owners: u64,
    /// Bytes allocated by the index: exact for blocks and tables, from a sample of nodes for the sets of who holds them.
    pub bytes: u64,
    /// Blocks given up because the index held too many, of all owners that ever were.
    pub evicted_blocks: u64,
}

/// Order-free digest of what one owner holds: equal in every replica that applied the same batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerDigest {
    /// Over (owner, tier, group, engine hash, content) of every held block.
    pub value: u64,
    /// Blocks that were placed by what other owners had announced, which may differ between replicas; not in `value`.
    pub foreign_blocks: u64,
    /// Blocks of lower tiers age out here: replicas may differ for a while.
    pub ages: bool,
}
