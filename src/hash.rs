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

/// Local hashes of plain tokens that arrive in pieces, cut anywhere; the same as [`local_hashes`] of them all.
#[derive(Debug)]
pub struct BlockHasher {
    block_bytes: usize,
    seed: u64,
    /// Begin of a block, or nothing.
    begun: Vec<u8>,
    hashes: Vec<LocalHash>,
}

impl BlockHasher {
    /// A hasher of blocks of a size in a namespace.
    #[must_use]
    pub fn new(block_size: BlockSize, namespace: Namespace) -> Self {
        let block_bytes = block_size.tokens() as usize * 4;
        Self { block_bytes, seed: namespace.seed(), begun: Vec::new(), hashes: Vec::new() }
    }

    /// Takes the next bytes of the tokens.
    pub fn push(&mut self, mut token_bytes: &[u8]) {
        if !self.begun.is_empty() {
            let missing = (self.block_bytes - self.begun.len()).min(token_bytes.len());
            let (end, rest) = token_bytes.split_at(missing);
            self.begun.extend_from_slice(end);
            token_bytes = rest;
            if self.begun.len() < self.block_bytes {
                return;
            }
            self.hashes.push(local_hash(&self.begun, [], self.seed));
            self.begun.clear();
        }
        let blocks = token_bytes.chunks_exact(self.block_bytes);
        self.begun.extend_from_slice(blocks.remainder());
        self.hashes.extend(blocks.map(|block| local_hash(block, [], self.seed)));
    }

    /// Hashes of the whole blocks; an incomplete last block is ignored.
    #[must_use]
    pub fn finish(self) -> Vec<LocalHash> {
        self.hashes
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value as Json;

    use super::*;

    fn numbers(json: &Json) -> Vec<u64> {
        json.as_array().into_iter().flatten().map(|number| number.as_u64().expect("a u64")).collect()
    }

    /// Image hashes per block, as `mm` of a vector lists them.
    fn images(vector: &Json, block: usize) -> Vec<u64> {
        let objects = vector["mm"][block]["mm_objects"].as_array().into_iter().flatten();
        let mut hashes: Vec<_> = objects.map(|object| object["mm_hash"].as_u64().expect("a u64")).collect();
        hashes.sort_unstable();
        hashes
    }

    #[test]
    fn golden_vectors_hash_as_the_reference_does() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden/hashes.json");
        let vectors: Vec<Json> = serde_json::from_slice(&fs::read(path).expect("vectors")).expect("JSON");
        assert!(vectors.len() > 20, "{} vectors", vectors.len());
        for vector in &vectors {
            let name = vector["name"].as_str().expect("a name");
            let tokens = numbers(&vector["token_ids"]);
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| (*token as u32).to_le_bytes()).collect();
            let text = |key: &str| vector[key].as_str().unwrap_or_default();
            let namespace = Namespace { lora: lora_name(text("lora_name")), salt: salt(text("cache_salt")) };
            let size = u32::try_from(vector["block_size"].as_u64().expect("a size")).expect("a u32");
            let locals: Vec<LocalHash> = match BlockSize::new(size) {
                None => vec![],
                Some(size) if vector["mm"].is_null() => local_hashes(&bytes, size, namespace),
                Some(size) => {
                    let blocks = bytes.chunks_exact(4 * size.tokens() as usize).enumerate();
                    blocks.map(|(at, block)| local_hash(block, images(vector, at), namespace.seed())).collect()
                }
            };
            let rolled = locals.iter().scan(None, |previous, local| {
                *previous = Some(rolling(*previous, *local));
                *previous
            });
            let ours = &vector["ours"];
            assert_eq!(rolled.collect::<Vec<_>>(), numbers(&ours["sequence_hashes"]), "{name}");
            let locals: Vec<_> = locals.iter().map(|local| local.0).collect();
            assert_eq!(locals, numbers(&ours["local_block_hashes"]), "{name}");
        }
    }

    #[test]
    fn tokens_hash_alike_however_they_are_cut() {
        let bytes: Vec<u8> = (0..=255).cycle().take(16 * 4 * 5 + 7).collect();
        let (size, namespace) = (BlockSize::new(16).expect("above zero"), Namespace { lora: None, salt: salt("s") });
        let whole = local_hashes(&bytes, size, namespace);
        assert_eq!(whole.len(), 5);
        for piece_len in 1..bytes.len() {
            let mut hasher = BlockHasher::new(size, namespace);
            bytes.chunks(piece_len).for_each(|piece| hasher.push(piece));
            assert_eq!(hasher.finish(), whole, "{piece_len}");
        }
    }

    #[test]
    fn names_ids_and_salts_never_share_a_namespace() {
        let addends = [lora_name("7"), Some(lora_id(7)), salt("7"), Some(lora_id(-7)), lora_name("lora_id:7")];
        for (at, addend) in addends.iter().enumerate() {
            assert!(addend.is_some() && !addends[..at].contains(addend), "{at}");
        }
        assert_eq!((lora_name(""), salt("")), (None, None));
    }
}
