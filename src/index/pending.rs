//! Blocks whose parent hash their owner has not announced: kept with what is needed to hash them once the parent, and
//! with it the namespace, is known.
//!
//! Pure. Invariant: every block stands in `by_hash` and in `by_parent` under its number.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::bytes;
use crate::ids::Namespace;

/// One waiting engine block.
#[derive(Debug, Clone)]
pub(super) struct PendingBlock {
    pub(super) hash: u64,
    pub(super) parent: u64,
    pub(super) token_bytes: Box<[u8]>,
    /// Extra keys of the block, ascending.
    pub(super) extras: Box<[u64]>,
    /// What its event named.
    pub(super) named: Namespace,
    /// Local hashes with the seed of `named`, one per index block.
    pub(super) locals: Box<[u64]>,
    /// Rows it lies on, as bits.
    pub(super) rows: u8,
    /// Stores that it came with, by group and row.
    pub(super) stores: SmallVec<[Stores; 1]>,
}

/// How often a group stored a waiting block on a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stores {
    pub(super) group: Option<u32>,
    pub(super) row: u8,
    pub(super) count: u32,
}

impl PendingBlock {
    /// Bytes that it points to.
    fn heap(&self) -> usize {
        self.token_bytes.len() + (self.extras.len() + self.locals.len()) * 8
    }

    /// One more store of a group on a row.
    fn add(&mut self, group: Option<u32>, row: u8) {
        self.rows |= 1 << row;
        match self.stores.iter_mut().find(|stores| (stores.group, stores.row) == (group, row)) {
            Some(stores) => stores.count = stores.count.saturating_add(1),
            None => self.stores.push(Stores { group, row, count: 1 }),
        }
    }
}

/// The waiting blocks of one owner.
#[derive(Debug, Default)]
pub(super) struct Pending {
    blocks: BTreeMap<u64, PendingBlock>,
    by_hash: FxHashMap<u64, SmallVec<[u64; 1]>>,
    by_parent: FxHashMap<u64, SmallVec<[u64; 1]>>,
    next: u64,
    index_blocks: u64,
    /// Bytes that the blocks point to.
    heap: usize,
}

impl Pending {
    /// Waiting blocks, counted in index blocks.
    pub(super) fn block_count(&self) -> u64 {
        self.index_blocks
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        self.by_hash.contains_key(&hash)
    }

    /// Adds a block, or its row to an equal one.
    pub(super) fn insert(&mut self, block: PendingBlock) {
        for number in self.by_hash.get(&block.hash).into_iter().flatten() {
            let other = self.blocks.get_mut(number).expect("numbers in by_hash exist");
            if other.parent == block.parent && other.named == block.named && other.locals == block.locals {
                for stores in &block.stores {
                    other.add(stores.group, stores.row);
                }
                return;
            }
        }
        let number = self.next;
        self.next += 1;
        self.by_hash.entry(block.hash).or_default().push(number);
        self.by_parent.entry(block.parent).or_default().push(number);
        self.index_blocks += block.locals.len() as u64;
        self.heap += block.heap();
        self.blocks.insert(number, block);
    }

    /// Rows on which a hash waits, as bits.
    pub(super) fn rows(&self, hash: u64) -> u8 {
        let numbers = self.by_hash.get(&hash).into_iter().flatten();
        numbers.fold(0, |rows, number| rows | self.blocks[number].rows)
    }

    /// Adds a store to the newest waiting block of a hash.
    pub(super) fn add_row(&mut self, hash: u64, row: usize, group: Option<u32>) {
        let newest = self.by_hash.get(&hash).and_then(|numbers| numbers.last());
        if let Some(block) = newest.and_then(|number| self.blocks.get_mut(number)) {
            block.add(group, row as u8);
        }
    }

    /// Takes a hash off a row; blocks without any row go.
    pub(super) fn remove(&mut self, hash: u64, row: usize) {
        for number in self.by_hash.get(&hash).cloned().into_iter().flatten() {
            let block = self.blocks.get_mut(&number).expect("numbers in by_hash exist");
            block.rows &= !(1 << row);
            block.stores.retain(|stores| usize::from(stores.row) != row);
            if block.rows == 0 {
                self.take(number);
            }
        }
    }

    /// Takes the oldest block.
    pub(super) fn pop_oldest(&mut self) -> Option<PendingBlock> {
        let number = *self.blocks.first_key_value()?.0;
        self.take(number)
    }

    /// Takes children of a hash that `which` picks, oldest first.
    pub(super) fn take_children(&mut self, parent: u64, which: impl Fn(&PendingBlock) -> bool) -> Vec<PendingBlock> {
        let mut numbers = self.by_parent.get(&parent).cloned().unwrap_or_default();
        numbers.retain(|number| which(&self.blocks[number]));
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// All waiting blocks, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingBlock> {
        self.blocks.values()
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        let lists = bytes::map::<(u64, SmallVec<[u64; 1]>)>(self.by_hash.capacity())
            + bytes::map::<(u64, SmallVec<[u64; 1]>)>(self.by_parent.capacity());
        self.heap + lists + bytes::tree_map(&self.blocks)
    }

    /// Gives room back after many left.
    pub(super) fn trim(&mut self) {
        bytes::trim_map(&mut self.by_hash);
        bytes::trim_map(&mut self.by_parent);
    }

    fn take(&mut self, number: u64) -> Option<PendingBlock> {
        let block = self.blocks.remove(&number)?;
        self.index_blocks -= block.locals.len() as u64;
        self.heap -= block.heap();
        for (map, key) in [(&mut self.by_hash, block.hash), (&mut self.by_parent, block.parent)] {
            if let Some(numbers) = map.get_mut(&key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    map.remove(&key);
                }
            }
        }
        Some(block)
    }
}
