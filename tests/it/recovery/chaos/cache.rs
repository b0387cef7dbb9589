//! Truth: what one rank of an engine holds, as plain sets, and the events with which it gets there.
//!
//! Pure. A prompt is a row of blocks; near prompts share their first blocks. Blocks go in any order, also from the middle
//! of a prompt, and may go to host memory; the index must follow by the events alone.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::msgpack::{removed, stored, stored_on};

/// Different prompts.
pub(super) const PROMPTS: u32 = 64;
/// Blocks of a prompt.
pub(super) const DEPTH: u32 = 24;
/// Tokens of a block.
pub(super) const BLOCK: usize = 4;
const DEVICE_BLOCKS: usize = 400;
const HOST_BLOCKS: usize = 150;

/// How an engine tells of host copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offload {
    None,
    /// Stores name hashes and tokens.
    WithTokens,
    /// Stores name hashes only.
    HashOnly,
}

/// Block number `depth` of all prompts that share it; `prompt` is the least of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    depth: u32,
    prompt: u32,
}

impl Block {
    fn of(prompt: u32, depth: u32) -> Self {
        let shared_by = match depth {
            0..4 => 16,
            4..10 => 4,
            _ => 1,
        };
        Self { depth, prompt: prompt - prompt % shared_by }
    }

    fn parent(self) -> Option<Self> {
        self.depth.checked_sub(1).map(|depth| Self::of(self.prompt, depth))
    }

    fn tokens(self) -> impl Iterator<Item = u32> {
        let first = (self.prompt * DEPTH + self.depth) * BLOCK as u32;
        (first..).take(BLOCK).map(|token| token + 1)
    }

    /// The engine's own hash: engines without a fixed seed name equal content differently.
    fn hash(self, seed: u64) -> u64 {
        let mut x = seed ^ (u64::from(self.prompt) << 32 | u64::from(self.depth));
        // Any mixing that keeps different inputs different will do; this one is a bijection.
        for _ in 0..3 {
            x = (x ^ (x >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        x ^ (x >> 32)
    }
}

/// Tokens of a prompt.
pub(super) fn tokens(prompt: u32) -> Vec<u32> {
    (0..DEPTH).flat_map(|depth| Block::of(prompt, depth).tokens()).collect()
}

/// Blocks of one rank.
pub(super) struct Cache {
    seed: u64,
    offload: Offload,
    device: BTreeSet<Block>,
    host: BTreeSet<Block>,
    random: fastrand::Rng,
}

impl Cache {
    /// Empty. `seed` decides the hashes.
    pub(super) fn new(seed: u64, offload: Offload, random: fastrand::Rng) -> Self {
        Self { seed, offload, device: BTreeSet::new(), host: BTreeSet::new(), random }
    }

    /// Leading tokens of a prompt on the device, and with host memory behind them.
    pub(super) fn held(&self, prompt: u32) -> [u64; 2] {
        let count = |from: u32, set: &BTreeSet<Block>| {
            (from..DEPTH).take_while(|depth| set.contains(&Block::of(prompt, *depth))).count() as u32
        };
        let device = count(0, &self.device);
        let both = device + count(device, &self.host);
        [device, both].map(|blocks| u64::from(blocks) * BLOCK as u64)
    }

    /// Something happens: the events of one batch, never none.
    pub(super) fn step(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        match self.random.u32(0..1_000) {
            0 => {
                self.device.clear();
                self.host.clear();
                events.push(json!(["AllBlocksCleared"]));
            }
            1..80 => self.lose(4, &mut events),
            _ => self.serve(&mut events),
        }
        if events.is_empty() {
            // All of the prompt was there: an engine says nothing, the test goes on with a removal.
            self.lose(1, &mut events);
        }
        if events.is_empty() { self.step() } else { events }
    }

    /// Computes what is missing of the first blocks of a prompt.
    fn serve(&mut self, events: &mut Vec<Value>) {
        let (prompt, depth) = (self.random.u32(0..PROMPTS), self.random.u32(1..=DEPTH));
        let wanted: Vec<Block> = (0..depth).map(|depth| Block::of(prompt, depth)).collect();
        while self.device.len() + wanted.len() > DEVICE_BLOCKS {
            self.evict(&wanted, events);
        }
        for run in wanted.chunk_by(|one, next| !self.device.contains(one) && !self.device.contains(next)) {
            if self.device.contains(&run[0]) {
                continue;
            }
            let hashes: Vec<u64> = run.iter().map(|block| block.hash(self.seed)).collect();
            let tokens: Vec<u32> = run.iter().flat_map(|block| block.tokens()).collect();
            events.push(stored(&hashes, self.parent_hash(run[0]), &tokens));
        }
        self.device.extend(wanted);
    }

    fn parent_hash(&self, block: Block) -> Option<u64> {
        block.parent().map(|parent| parent.hash(self.seed))
    }

    /// Some block that the prompt at hand does not need goes, perhaps to host memory.
    fn evict(&mut self, wanted: &[Block], events: &mut Vec<Value>) {
        let at = self.random.usize(0..self.device.len());
        let Some(block) = self.device.iter().cycle().skip(at).find(|block| !wanted.contains(block)).copied() else {
            return;
        };
        if self.offload != Offload::None && self.random.bool() && !self.host.contains(&block) {
            if self.host.len() == HOST_BLOCKS {
                let at = self.random.usize(0..HOST_BLOCKS);
                let old = *self.host.iter().nth(at).expect("below the length");
                self.host.remove(&old);
                events.push(removed(&[old.hash(self.seed)], "CPU"));
            }
            let (hash, parent) = ([block.hash(self.seed)], self.parent_hash(block));
            events.push(match self.offload {
                Offload::HashOnly => json!(["BlockStored", hash, parent, [], 0, null, "CPU", null]),
                _ => stored_on("CPU", &hash, parent, &block.tokens().collect::<Vec<_>>()),
            });
            self.host.insert(block);
        }
        self.device.remove(&block);
        events.push(removed(&[block.hash(self.seed)], "GPU"));
    }

    /// Up to so many blocks vanish from the device, from anywhere.
    fn lose(&mut self, count: usize, events: &mut Vec<Value>) {
        let mut hashes = Vec::new();
        for _ in 0..count.min(self.device.len()) {
            let at = self.random.usize(0..self.device.len());
            let block = *self.device.iter().nth(at).expect("below the length");
            self.device.remove(&block);
            hashes.push(block.hash(self.seed));
        }
        if !hashes.is_empty() {
            events.push(removed(&hashes, "GPU"));
        }
    }
}

#[test]
fn the_truth_is_what_its_own_events_say() {
    use std::collections::BTreeMap;

    // Hashes by tier, and the tokens that each hash was announced with: read from the events alone.
    let mut cache = Cache::new(9, Offload::WithTokens, fastrand::Rng::with_seed(3));
    let mut held: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::from([("GPU", BTreeSet::new()), ("CPU", BTreeSet::new())]);
    for _ in 0..3_000 {
        for event in cache.step() {
            let hashes = |at: usize| event[at].as_array().into_iter().flatten().filter_map(Value::as_u64);
            match event[0].as_str().expect("a tag") {
                "BlockStored" => {
                    let tier = held.get_mut(event[6].as_str().expect("a medium")).expect("a known tier");
                    hashes(1).for_each(|hash| assert!(tier.insert(hash), "stored twice"));
                }
                "BlockRemoved" => {
                    let tier = held.get_mut(event[2].as_str().expect("a medium")).expect("a known tier");
                    hashes(1).for_each(|hash| assert!(tier.remove(&hash), "not held"));
                }
                _ => held.values_mut().for_each(BTreeSet::clear),
            }
        }
        assert_eq!([cache.device.len(), cache.host.len()], [held["GPU"].len(), held["CPU"].len()]);
    }
    assert!(cache.device.len() > DEVICE_BLOCKS / 2 && !cache.host.is_empty());
    for prompt in 0..PROMPTS {
        let has = |tier: &str, depth| held[tier].contains(&Block::of(prompt, depth).hash(9));
        let device = (0..DEPTH).take_while(|depth| has("GPU", *depth)).count();
        assert_eq!(cache.held(prompt)[0], (device * BLOCK) as u64);
    }
}
