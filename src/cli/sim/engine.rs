//! A simulated engine's prefix cache: requests in, cache events out, and the truth about what it holds.
//!
//! Pure: no clock, no socket. It is the counterpart that the index is compared with, so it shares nothing with the index:
//! blocks are a plain set per tier, keyed by the engine's own hash chain, with least-recently-used eviction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::hash;
use crate::ids::{EngineHash, Namespace};

/// Size and habits of one rank's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineSpec {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks on the device, at least 1.
    pub device_blocks: usize,
    /// Blocks in host memory, filled at eviction; 0 = no offload.
    pub host_blocks: usize,
    /// Most blocks of one store event.
    pub stored_blocks_max: usize,
    /// Start of the hash chain: engines without a fixed hash seed give equal content different hashes. None = the same on all.
    pub chain_seed: Option<u64>,
}

/// Where a simulated block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the accelerator.
    Device,
    /// In host memory.
    Host,
}

/// One cache event, not yet in any wire form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A run of consecutive blocks was cached.
    Stored {
        /// Where.
        place: Place,
        /// Hash of the block before the run; none at the start of a prompt.
        parent: Option<EngineHash>,
        /// The run.
        blocks: Vec<(EngineHash, Arc<[u32]>)>,
    },
    /// One block was evicted.
    Removed {
        /// From where.
        place: Place,
        /// Which.
        hash: EngineHash,
    },
    /// The cache was emptied.
    Cleared,
}

/// Leading blocks of a prompt that an engine holds, cumulative: device first, then host memory continues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Blocks on the device.
    pub device: usize,
    /// Blocks on the device, and then in host memory; at least `device`.
    pub host: usize,
}

/// A block's content and the hash of the block before it.
#[derive(Debug, Clone)]
struct Block {
    parent: Option<EngineHash>,
    tokens: Arc<[u32]>,
}

/// One tier: blocks by hash, oldest use first. Invariant: `by_use` and `blocks` hold the same hashes.
#[derive(Debug, Default)]
struct Lru {
    blocks: HashMap<EngineHash, (u64, Block)>,
    by_use: BTreeMap<u64, EngineHash>,
    clock: u64,
}

/// Prefix cache of one rank.
#[derive(Debug)]
pub struct Engine {
    spec: EngineSpec,
    device: Lru,
    host: Lru,
}

impl Engine {
    /// An empty cache.
    #[must_use]
    pub fn new(spec: EngineSpec) -> Self {
        Self { spec, device: Lru::default(), host: Lru::default() }
    }

    /// Serves a prompt: hits are touched, missing blocks are computed, room is made by eviction. Events come in the order
    /// in which an engine publishes them: evictions (the host copy first), then stores.
    ///
    /// A prompt longer than the device holds only its first blocks.
    pub fn request(&mut self, tokens: &[u32], events: &mut Vec<CacheEvent>) {
        let mut chain = self.chain(tokens);
        chain.truncate(self.spec.device_blocks);
        let hit = chain.iter().take_while(|(hash, _)| self.device.has(*hash)).count();
        let missing: Vec<_> = chain[hit..].iter().filter(|(hash, _)| !self.device.has(*hash)).cloned().collect();
        // From the tail to the head, so that tails go first.
        for (hash, _) in chain.iter().rev() {
            self.device.touch(*hash);
        }
        while self.device.len() + missing.len() > self.spec.device_blocks {
            self.evict(events);
        }
        for (hash, block) in missing.iter().rev() {
            self.device.insert(*hash, block.clone());
        }
        for (hash, _) in chain[..hit].iter().rev() {
            self.device.touch(*hash);
        }
        self.announce(&missing, events);
    }

    /// Empties both tiers and says so.
    pub fn clear(&mut self, events: &mut Vec<CacheEvent>) {
        self.reset();
        events.push(CacheEvent::Cleared);
    }

    /// Empties both tiers and says nothing: the process was restarted.
    pub fn reset(&mut self) {
        self.device = Lru::default();
        self.host = Lru::default();
    }

    /// The truth about a prompt.
    #[must_use]
    pub fn held(&self, tokens: &[u32]) -> Held {
        let chain = self.chain(tokens);
        let device = chain.iter().take_while(|(hash, _)| self.device.has(*hash)).count();
        let host = chain[device..].iter().take_while(|(hash, _)| self.host.has(*hash)).count();
        Held { device, host: device + host }
    }

    /// Blocks on the device and in host memory.
    #[must_use]
    pub fn block_counts(&self) -> (usize, usize) {
        (self.device.len(), self.host.len())
    }

    /// Full blocks of a prompt with the engine's hashes.
    fn chain(&self, tokens: &[u32]) -> Vec<(EngineHash, Block)> {
        let mut previous = self.spec.chain_seed;
        let mut parent = None;
        let full = tokens.chunks_exact(self.spec.block_size);
        full.map(|tokens| {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            let local = hash::local_hash(&bytes, [], Namespace::PLAIN_SEED);
            let hash = EngineHash(hash::rolling(previous, local));
            let block = Block { parent, tokens: tokens.into() };
            (previous, parent) = (Some(hash.0), Some(hash));
            (hash, block)
        })
        .collect()
    }

    /// Moves the oldest device block to host memory, or drops it.
    fn evict(&mut self, events: &mut Vec<CacheEvent>) {
        let Some((hash, block)) = self.device.pop_oldest() else {
            return;
        };
        if self.spec.host_blocks > 0 {
            if self.host.has(hash) {
                self.host.touch(hash);
            } else {
                if self.host.len() == self.spec.host_blocks
                    && let Some((oldest, _)) = self.host.pop_oldest()
                {
                    events.push(CacheEvent::Removed { place: Place::Host, hash: oldest });
                }
                let blocks = vec![(hash, Arc::clone(&block.tokens))];
                events.push(CacheEvent::Stored { place: Place::Host, parent: block.parent, blocks });
                self.host.insert(hash, block);
            }
        }
        events.push(CacheEvent::Removed { place: Place::Device, hash });
    }

    /// Store events for blocks in prompt order: consecutive ones share an event up to the limit.
    fn announce(&self, missing: &[(EngineHash, Block)], events: &mut Vec<CacheEvent>) {
        let mut last = None;
        for (hash, block) in missing {
            let entry = (*hash, Arc::clone(&block.tokens));
            match events.last_mut() {
                Some(CacheEvent::Stored { place: Place::Device, blocks, .. })
                    if last.is_some() && block.parent == last && blocks.len() < self.spec.stored_blocks_max =>
                {
                    blocks.push(entry);
                }
                _ => {
                    events.push(CacheEvent::Stored { place: Place::Device, parent: block.parent, blocks: vec![entry] })
                }
            }
            last = Some(*hash);
        }
    }
}

impl Lru {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn has(&self, hash: EngineHash) -> bool {
        self.blocks.contains_key(&hash)
    }

    fn touch(&mut self, hash: EngineHash) {
        if let Some((used, _)) = self.blocks.get_mut(&hash) {
            self.by_use.remove(used);
            self.clock += 1;
            *used = self.clock;
            self.by_use.insert(self.clock, hash);
        }
    }

    fn insert(&mut self, hash: EngineHash, block: Block) {
        self.clock += 1;
        self.by_use.insert(self.clock, hash);
        if let Some((used, _)) = self.blocks.insert(hash, (self.clock, block)) {
            self.by_use.remove(&used);
        }
    }

    fn pop_oldest(&mut self) -> Option<(EngineHash, Block)> {
        let (_, hash) = self.by_use.pop_first()?;
        let (_, block) = self.blocks.remove(&hash)?;
        Some((hash, block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(device_blocks: usize, host_blocks: usize) -> Engine {
        Engine::new(EngineSpec { block_size: 2, device_blocks, host_blocks, stored_blocks_max: 512, chain_seed: None })
    }

    /// One letter of a prompt is one block.
    fn tokens(prompt: &str) -> Vec<u32> {
        prompt.chars().flat_map(|c| [u32::from(c), 1]).collect()
    }

    /// Runs prompts and writes events as `+ABC` (store), `-C` (removal), `^C` and `vC` (the same in host memory).
    fn run(engine: &mut Engine, prompts: &[&str]) -> String {
        let mut names = HashMap::new();
        let mut text = String::new();
        for prompt in prompts {
            for (position, (hash, _)) in engine.chain(&tokens(prompt)).into_iter().enumerate() {
                names.insert(hash, prompt.chars().nth(position).unwrap());
            }
            let mut events = vec![];
            engine.request(&tokens(prompt), &mut events);
            for event in events {
                match event {
                    CacheEvent::Stored { place, blocks, .. } => {
                        text.push(if place == Place::Device { '+' } else { '^' });
                        text.extend(blocks.iter().map(|(hash, _)| names[hash]));
                    }
                    CacheEvent::Removed { place, hash } => {
                        text.push(if place == Place::Device { '-' } else { 'v' });
                        text.push(names[&hash]);
                    }
                    CacheEvent::Cleared => text.push('!'),
                }
                text.push(' ');
            }
        }
        text.trim_end().to_owned()
    }

    #[test]
    fn misses_are_stored_and_tails_are_evicted_first() {
        for (device, host, prompts, want) in [
            (8, 0, &["ABC"][..], "+ABC"),
            (8, 0, &["ABC", "ABD", "ABC"], "+ABC +D"),
            (4, 0, &["ABC", "XY"], "+ABC -C +XY"),
            (4, 0, &["ABC", "XY", "ABC"], "+ABC -C +XY -Y +C"),
            (3, 0, &["ABCDE"], "+ABC"),
            (3, 2, &["ABC", "XYZ"], "+ABC ^C -C ^B -B vC ^A -A +XYZ"),
        ] {
            assert_eq!(run(&mut engine(device, host), prompts), want, "{device} {host} {prompts:?}");
        }
    }

    #[test]
    fn truth_is_device_first_and_host_continues() {
        let mut engine = engine(3, 8);
        run(&mut engine, &["ABC", "XY"]);
        assert_eq!(engine.held(&tokens("ABC")), Held { device: 1, host: 3 });
        assert_eq!(engine.held(&tokens("XYZ")), Held { device: 2, host: 2 });
        engine.clear(&mut vec![]);
        assert_eq!(engine.held(&tokens("ABC")), Held::default());
    }

    #[test]
    fn events_alone_tell_what_is_held() {
        let mut engine = engine(40, 30);
        let mut sets = [std::collections::HashSet::new(), std::collections::HashSet::new()];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let prompt: Vec<u32> = (0..random.usize(0..24)).map(|_| random.u32(0..2)).collect();
            let mut events = vec![];
            engine.request(&prompt, &mut events);
            for event in events {
                match event {
                    CacheEvent::Stored { place, blocks, .. } => {
                        for (hash, _) in blocks {
                            assert!(sets[place as usize].insert(hash), "stored twice");
                        }
                    }
                    CacheEvent::Removed { place, hash } => assert!(sets[place as usize].remove(&hash), "not held"),
                    CacheEvent::Cleared => unreachable!("nobody cleared"),
                }
            }
            assert_eq!(engine.block_counts(), (sets[0].len(), sets[1].len()));
            assert!(sets[0].len() <= 40 && sets[1].len() <= 30);
        }
    }

    #[test]
    fn a_chain_seed_changes_every_hash_and_no_content() {
        let plain = engine(8, 0);
        let mut own = engine(8, 0);
        own.spec.chain_seed = Some(99);
        let pairs = plain.chain(&tokens("ABC")).into_iter().zip(own.chain(&tokens("ABC")));
        for ((left, left_block), (right, right_block)) in pairs {
            assert_ne!(left, right);
            assert_eq!(left_block.tokens, right_block.tokens);
        }
    }
}
