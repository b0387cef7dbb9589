//! Content of sequences: tokens, local hashes, and the hashes that engines give to blocks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{BLOCK_SIZE, mix};

/// Tokens that one id of the trace stands for.
const ID_TOKENS: u32 = 512;
/// Blocks that one id of the trace stands for.
pub(crate) const ID_BLOCKS: u32 = ID_TOKENS / BLOCK_SIZE;

/// Tokens are below this number, as in a common vocabulary.
const VOCABULARY: u64 = 128_000;

/// Seed of block hashes.
const SEED: u64 = 1337;

/// The sequence that HTTP queries ask for.
pub(crate) const QUERY_ID: u64 = 7;

/// Sentinels, blocks that say "all before me has arrived", have ids from here on.
const SENTINEL_ID: u64 = 0xFFFF_0000;

/// A block by its content: block `index` of the sequence `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) id: u64,
    pub(crate) index: u32,
}

impl Content {
    /// Tokens of the block.
    pub(crate) fn tokens(self) -> [u32; BLOCK_SIZE as usize] {
        let first = self.index * BLOCK_SIZE;
        std::array::from_fn(|at| {
            let position = u64::from(first) + at as u64;
            (mix((self.id << 20) ^ position) % VOCABULARY) as u32
        })
    }

    /// Hash of the tokens.
    pub(crate) fn local(self) -> u64 {
        let mut bytes = [0; BLOCK_SIZE as usize * 4];
        for (place, token) in bytes.chunks_exact_mut(4).zip(self.tokens()) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        xxh3_64_with_seed(&bytes, SEED)
    }
}

/// How an engine names its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// All engines give the same name to the same content.
    Shared,
    /// Every engine begins its chains with a seed of its own, as vLLM does without a fixed hash seed.
    PerWorker,
}

impl Naming {
    /// What a worker's chains begin with.
    pub(crate) fn seed(self, worker: u64) -> Option<u64> {
        match self {
            Self::Shared => None,
            Self::PerWorker => Some(mix(worker ^ 0x5EED_0000_0000_0000)),
        }
    }
}

/// Engine hash of a block behind `previous`; a chain without a seed begins with the local hash itself.
pub(crate) fn chain(previous: Option<u64>, local: u64) -> u64 {
    let Some(previous) = previous else {
        return local;
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&previous.to_le_bytes());
    bytes[8..].copy_from_slice(&local.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

/// A block as an engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) content: Content,
    pub(crate) local: u64,
    /// The engine's name for it.
    pub(crate) engine: u64,
}

/// Blocks of a chain whose contents and local hashes are given.
pub(crate) fn name(contents: impl Iterator<Item = (Content, u64)>, seed: Option<u64>) -> Vec<Block> {
    let mut previous = seed;
    contents
        .map(|(content, local)| {
            let engine = chain(previous, local);
            previous = Some(engine);
            Block { content, local, engine }
        })
        .collect()
}

/// The first `depth` blocks of the synthetic sequence `id`.
pub(crate) fn sequence(id: u64, depth: u32, seed: Option<u64>) -> Vec<Block> {
    let contents = (0..depth).map(|index| Content { id, index });
    name(contents.map(|content| (content, content.local())), seed)
}

/// Local hashes of the first `depth` blocks of a sequence.
pub(crate) fn locals(id: u64, depth: u32) -> Vec<u64> {
    (0..depth).map(|index| Content { id, index }.local()).collect()
}

/// The first `count` tokens of a sequence.
pub(crate) fn tokens(id: u64, count: usize) -> Vec<u32> {
    let blocks = count.div_ceil(BLOCK_SIZE as usize) as u32;
    let mut tokens: Vec<u32> = (0..blocks).flat_map(|index| Content { id, index }.tokens()).collect();
    tokens.truncate(count);
    tokens
}

/// Id of sequence `number` of a worker in a fill in which nothing is shared.
pub(crate) fn unique_id(worker: u64, number: u64) -> u64 {
    ((worker + 1) << 24) + number
}

/// The one block of sentinel `number`.
pub(crate) fn sentinel(number: u64) -> Block {
    sequence(SENTINEL_ID + number, 1, None)[0]
}
