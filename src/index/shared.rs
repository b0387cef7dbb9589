//! The index behind a read-write lock.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::api::Limits;
use super::index::PrefixIndex;
use crate::ids::BlockSize;

/// A [`PrefixIndex`] behind a read-write lock. The writer takes it for one batch at a time, readers for one query.
#[derive(Debug)]
pub struct SharedIndex {
    lock: RwLock<PrefixIndex>,
    block_size: BlockSize,
}

impl SharedIndex {
    /// An empty index.
    #[must_use]
    pub fn new(block_size: BlockSize, limits: Limits) -> Self {
        Self { lock: RwLock::new(PrefixIndex::new(block_size, limits)), block_size }
    }

    /// Tokens per block; needs no lock.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Access for a query.
    pub fn read(&self) -> RwLockReadGuard<'_, PrefixIndex> {
        self.lock.read()
    }

    /// Access for one batch.
    pub fn write(&self) -> RwLockWriteGuard<'_, PrefixIndex> {
        self.lock.write()
    }
}
