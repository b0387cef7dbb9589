//! The model of an engine's prefix cache: a bounded set of blocks that tells what it stores and evicts.

use std::collections::HashMap;
use std::ops::Range;

use super::content::Block;
use super::{STORED_BLOCKS_MAX, mix};

/// Which block goes when the cache is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The one not used for the longest time, tails of sequences first: what is held is always a set of prefixes.
    Tail,
    /// Any that the request at hand does not use: sequences get holes.
    Random,
}

/// What an engine announces. Stored events name blocks by their places in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A block of this name was evicted.
    Removed(u64),
    /// Blocks of the request were stored behind `parent`.
    Stored {
        /// The engine's name of the block before.
        parent: Option<u64>,
        /// Places in the request.
        blocks: Range<usize>,
    },
}

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Slot {
    engine: u64,
    /// Neighbours in order of use.
    older: u32,
    newer: u32,
    /// Number of the request that touched it last.
    touched: u64,
}

/// One engine's cache.
pub(crate) struct Engine {
    capacity: usize,
    eviction: Eviction,
    places: HashMap<u64, u32>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    oldest: u32,
    newest: u32,
    request: u64,
    chance: u64,
}

impl Engine {
    /// An empty cache of `capacity` blocks.
    pub(crate) fn new(capacity: usize, eviction: Eviction, seed: u64) -> Self {
        Self {
            capacity,
            eviction,
            places: HashMap::with_capacity(capacity),
            slots: Vec::with_capacity(capacity),
            vacant: vec![],
            oldest: NONE,
            newest: NONE,
            request: 0,
            chance: mix(seed),
        }
    }

    /// Blocks held.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the block of this name is held.
    pub(crate) fn holds(&self, engine: u64) -> bool {
        self.places.contains_key(&engine)
    }

    /// Leading blocks of a request that are held: what its prefix cache would hit.
    pub(crate) fn prefix(&self, engines: impl Iterator<Item = u64>) -> usize {
        engines.take_while(|engine| self.holds(*engine)).count()
    }

    /// Serves a request, and returns what that changed: evictions first, then what was stored.
    ///
    /// Blocks are touched from the tail to the head, so that the head of a sequence outlives its tail.
    pub(crate) fn serve(&mut self, blocks: &[Block]) -> Vec<Event> {
        self.request += 1;
        let held: Vec<bool> = blocks.iter().map(|block| self.touch(block.engine)).collect();
        let missing = held.iter().filter(|held| !**held).count();
        let surplus = (self.places.len() + missing).saturating_sub(self.capacity);
        let mut events: Vec<Event> = (0..surplus).map(|_| Event::Removed(self.evict())).collect();
        for block in blocks.iter().rev() {
            if !self.touch(block.engine) {
                self.insert(block.engine);
            }
        }
        let mut at = 0;
        while at < blocks.len() {
            if held[at] {
                at += 1;
                continue;
            }
            let run = held[at..].iter().take(STORED_BLOCKS_MAX).take_while(|held| !**held).count();
            let parent = at.checked_sub(1).map(|before| blocks[before].engine);
            events.push(Event::Stored { parent, blocks: at..at + run });
            at += run;
        }
        events
    }

    /// Makes a block the newest; false if it is not held.
    fn touch(&mut self, engine: u64) -> bool {
        let Some(slot) = self.places.get(&engine).copied() else {
            return false;
        };
        self.unlink(slot);
        self.link(slot);
        true
    }

    fn insert(&mut self, engine: u64) {
        let new = Slot { engine, older: NONE, newer: NONE, touched: 0 };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        };
        self.places.insert(engine, slot);
        self.link(slot);
    }

    /// Evicts one block that the present request does not use, and returns its name.
    fn evict(&mut self) -> u64 {
        let slot = match self.eviction {
            Eviction::Tail => self.oldest,
            Eviction::Random => loop {
                self.chance = mix(self.chance);
                let slot = (self.chance % self.slots.len() as u64) as u32;
                let it = &self.slots[slot as usize];
                if it.touched != self.request && self.places.get(&it.engine) == Some(&slot) {
                    break slot;
                }
            },
        };
        let engine = self.slots[slot as usize].engine;
        self.unlink(slot);
        self.places.remove(&engine);
        self.vacant.push(slot);
        engine
    }

    fn link(&mut self, slot: u32) {
        let newest = self.newest;
        let it = &mut self.slots[slot as usize];
        (it.older, it.newer, it.touched) = (newest, NONE, self.request);
        match newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
    }
}
