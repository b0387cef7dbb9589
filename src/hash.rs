//! Tokens to local hashes, and names to namespaces. The rules are those of the reference service
//! (NVIDIA Dynamo's `dynamo-kv-router`), so that hashes computed by its clients match ours.
//!
//! Pure. Invariant: no I/O, no allocation beyond the answer.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::ids::{BlockSize, LocalHash, Namespace};

/// Seed addend of a LoRA name; none for the empty text, which counts as absent.
#[must_use]
pub fn lora_name(name: &str) -> Option<u64> {
    (!name.is_empty()).then(|| xxh3_64_with_seed(name.as_bytes(), 0))
}

/// Seed addend of a LoRA id that came without a name: a namespace of its own, which no name reaches.
#[must_use]
pub fn lora_id(id: i64) -> u64 {
    let mut tagged = *b"lora_id:\0\0\0\0\0\0\0\0";
    tagged[8..].copy_from_slice(&id.to_le_bytes());
    xxh3_64_with_seed(&tagged, 2)
}

/// Seed addend of a cache salt; none for the empty text, which counts as absent.
#[must_use]
pub fn salt(salt: &str) -> Option<u64> {
    (!salt.is_empty()).then(|| xxh3_64_with_seed(salt.as_bytes(), 1))
}

/// Local hash of one block: its tokens as little-endian bytes, then each extra key (images, embeddings) as a
/// little-endian `u64`. `extras` must be ascending.
#[must_use]
pub fn local_hash(token_bytes: &[u8], extras: impl IntoIterator<Item = u64>, seed: u64) -> LocalHash {
    let mut extras = extras.into_iter().peekable();
    if extras.peek().is_none() {
        return LocalHash(xxh3_64_with_seed(token_bytes, seed));
    }
    let mut hasher = Xxh3::with_seed(seed);
    hasher.update(token_bytes);
    for extra in extras {
        hasher.update(&extra.to_le_bytes());
    }
    LocalHash(hasher.digest())
}

/// Local hashes of plain tokens in a namespace; an incomplete last block is ignored.
#[must_use]
pub fn local_hashes(token_bytes: &[u8], block_size: BlockSize, namespace: Namespace) -> Vec<LocalHash> {
    let seed = namespace.seed();
    token_bytes.chunks_exact(block_size.tokens() as usize * 4).map(|block| local_hash(block, [], seed)).collect()
}

/// Next rolling hash: the first block's is its local hash, then XXH3-64, seed 1337, over the previous rolling hash and
/// the local hash. Only Mooncake's `seq_hashes` use it.
#[must_use]
pub fn rolling(previous: Option<u64>, local: LocalHash) -> u64 {
    let Some(previous) = previous else {
        return local.0;
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&previous.to_le_bytes());
    bytes[8..].copy_from_slice(&local.0.to_le_bytes());
    xxh3_64_with_seed(&bytes, Namespace::PLAIN_SEED)
}
