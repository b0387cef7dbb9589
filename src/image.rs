//! What the owners of one stream hold and remember, and who is registered, as plain values: the form in which state
//! leaves an index (`index` makes and takes it), travels (`wire::snapshot`), and is compared.
//!
//! A leaf: values only. Invariants: an [`Image`] holds everything that decides later answers of its owners and nothing
//! of other owners; every block number in it is below [`Image::block_count`], every parent stands before its children.
//! A reader must not rely on the invariants of what came from a peer: `PrefixIndex::import` checks them.

use serde::{Deserialize, Serialize};

use crate::ids::{BlockSize, Incarnation, IndexKey, InstanceId, Mark, Namespace, Owner, OwnerSpec, Seq, Source};
use crate::trust::Trust;

/// Number of a block in an [`Image`]: its position in [`Image::locals`].
pub type BlockNumber = u32;

/// Rows in which blocks stand: the four tiers, then the removed but remembered blocks.
pub const ROWS: usize = 5;

/// The owners of one stream, with the content that they hold or remember.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Image {
    /// Runs of blocks, parents before children. Blocks are numbered through all runs in order.
    pub runs: Vec<ImageRun>,
    /// Local hash of every block.
    pub locals: Vec<u64>,
    /// Hash of every block that holds for each owner without a hash of its own there; parallel to `locals`.
    pub engines: Vec<u64>,
    /// The owners, in order.
    pub owners: Vec<OwnerImage>,
}

/// A run of blocks: each one hangs below the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRun {
    /// Block below which the first one hangs; none at the root. Always a block of an earlier run.
    pub parent: Option<BlockNumber>,
    /// Number of blocks, at least one.
    pub len: u32,
    /// Namespace of all of them.
    pub namespace: Namespace,
}

/// One owner: what it holds, by number of block, and all that is apart from the common form.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerImage {
    /// Whose state this is.
    pub owner: Owner,
    /// Policy, role and ageing at the time.
    pub spec: OwnerSpec,
    /// Trust at the time, the stream's reasons included.
    pub trust: Trust,
    /// Blocks by row, as ascending ranges `[from, to)` of block numbers.
    pub rows: [Vec<(BlockNumber, BlockNumber)>; ROWS],
    /// Own main hashes, as runs from a block number on, where they differ from [`Image::engines`]. Ascending.
    pub hashes: Vec<(BlockNumber, Vec<u64>)>,
    /// Removed but remembered hashes, oldest first.
    pub recents: Vec<u64>,
    /// What is not in the common form.
    pub rest: OwnerRest,
}

/// The rare parts of an owner. Everything in a fixed order, so that equal states make equal images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerRest {
    /// Blocks with several hashes, or with a parent hash that is not the main one.
    pub overlays: Vec<OverlayImage>,
    /// Hashes with several places, newest place last.
    pub multi: Vec<(u64, Vec<BlockNumber>)>,
    /// Records that content alone carries: block and hash.
    pub free: Vec<(BlockNumber, u64)>,
    /// Copies by hash and row where there are more than one.
    pub copies: Vec<(u64, u8, u32)>,
    /// Index blocks of hashes that name more than one.
    pub spans: Vec<(u64, u32)>,
    /// Made-up hashes of all but the last blocks of such spans.
    pub pieces: Vec<u64>,
    /// Latest removals, oldest first, for explanations.
    pub removals: Vec<RemovalImage>,
    /// Older removals were forgotten.
    pub removals_overflowed: bool,
    /// Blocks that wait for a parent, oldest first.
    pub pending: Vec<PendingImage>,
    /// A waiting block was dropped and nothing has made up for it.
    pub pending_dropped: bool,
    /// Announced cache groups.
    pub groups: Option<GroupsImage>,
    /// When blocks of lower tiers were stored.
    pub ages: Option<AgesImage>,
    /// Main groups that have stored blocks of the index's size.
    pub whole_groups: Vec<Option<u32>>,
    /// Device stores in a row that came as twins.
    pub twins: u32,
    /// Block size that the engine announced when it does not fit.
    pub announced_block_size: Option<u32>,
}

/// A block with several hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayImage {
    /// The block.
    pub block: BlockNumber,
    /// The main hash.
    pub main: u64,
    /// All records in their order: hash, rows as bits, parent hashes that were named.
    pub records: Vec<(u64, u8, Vec<u64>)>,
}

/// One removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalImage {
    /// Hash of the block.
    pub hash: u64,
    /// Number of the batch.
    pub seq: Seq,
    /// When it arrived, in milliseconds since 1970.
    pub at_ms: u64,
}

/// A block that waits for its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingImage {
    /// Its hash.
    pub hash: u64,
    /// Hash of its parent.
    pub parent: u64,
    /// Its tokens, four bytes little endian each.
    pub token_bytes: Vec<u8>,
    /// Extra keys, ascending.
    pub extras: Vec<u64>,
    /// What its event named.
    pub named: Namespace,
    /// Local hashes with the seed of `named`.
    pub locals: Vec<u64>,
    /// Rows that it lies on, as bits.
    pub rows: u8,
    /// Stores that it came with: group, row, count.
    pub stores: Vec<(Option<u32>, u8, u32)>,
}

/// Announced cache groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsImage {
    /// In the order of their announcement.
    pub list: Vec<GroupImage>,
    /// Main groups keep sets of their own.
    pub sets: bool,
}

/// One cache group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupImage {
    /// `group_idx`.
    pub key: Option<u32>,
    /// 0 full, 1 sliding window, 2 mamba; none when no event has said it.
    pub kind: Option<u8>,
    /// Its stores are in the tree.
    pub in_tree: bool,
    /// No store had fewer hashes than blocks.
    pub complete: bool,
    /// Window, in tokens.
    pub window_tokens: Option<u32>,
    /// Tokens per block.
    pub block_tokens: Option<u32>,
    /// Hash, row, copies; ascending.
    pub held: Vec<(u64, u8, u32)>,
    /// Those of them that it never put into the tree; ascending.
    pub bare: Vec<(u64, u8)>,
}

/// When blocks of lower tiers were stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgesImage {
    /// Latest timestamp of a batch, in milliseconds.
    pub clock_ms: u64,
    /// Hash, row, group, time; in the order in which they age.
    pub queue: Vec<(u64, u8, Option<u32>, u64)>,
}

impl Image {
    /// Blocks in all runs.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.locals.len()
    }
}

/// Which stream of an index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamName {
    /// The instance that it belongs to.
    pub instance: InstanceId,
    /// Address of the publisher; empty for owners that no stream feeds.
    pub endpoint: String,
    /// Topic that it hears, if not all.
    pub topic: Option<String>,
    /// LoRA name of events that name none.
    pub default_lora: Option<String>,
}

/// Where a stream stands, as its owners in the index show it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Last batch in the index. None: nothing of this life.
    pub mark: Option<Mark>,
    /// The handshake with the publisher was complete.
    pub connected: bool,
    /// Nothing proved that it was the same life of the publisher.
    pub unverified: bool,
    /// Numbers were given up in this life.
    pub holes: bool,
    /// The publisher's first number is 1.
    pub counts_from_one: bool,
    /// Something of the publisher has come by.
    pub heard: bool,
}

/// One stream with its owners at one batch boundary: all batches up to the mark, none above.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamImage {
    /// Which stream.
    pub name: StreamName,
    /// Where it stood.
    pub position: Position,
    /// What its owners held.
    pub image: Image,
}

/// One registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The index.
    pub key: IndexKey,
    /// Its block size, in tokens.
    pub block_size: u32,
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: u32,
    /// The publisher.
    pub endpoint: String,
    /// Its replay socket.
    pub replay_endpoint: Option<String>,
    /// Prefix of topics.
    pub topic: Option<String>,
    /// Kept and echoed.
    pub additional_salt: Option<String>,
    /// Mooncake's default LoRA name.
    pub default_lora: Option<String>,
    /// Policy, role, ageing.
    pub spec: OwnerSpec,
    /// Who registered it.
    pub source: Source,
    /// When it was registered, in milliseconds since 1970.
    pub registered_ms: u64,
    /// Which life of its container.
    pub incarnation: Option<Incarnation>,
    /// The registration by hand that it superseded.
    pub superseded: Option<Box<Self>>,
}

/// A registration by hand that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The index.
    pub key: IndexKey,
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: u32,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// One index, without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexHead {
    /// Which index.
    pub key: IndexKey,
    /// Its block size, in tokens.
    pub block_size: u32,
}

impl IndexHead {
    /// The block size, if it is one.
    #[must_use]
    pub fn block_size(&self) -> Option<BlockSize> {
        BlockSize::new(self.block_size)
    }
}
