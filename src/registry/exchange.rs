//! State that leaves and enters: copies of streams for other replicas, and what is taken from them. Names and the way
//! in; `export`, `restore`, `adopt`, `refill` and `verify` do the work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{BlockSize, IndexKey, InstanceId, ModelName, Owner, Seq, TenantId};
use crate::image::{IndexHead, Position, Registration, StreamImage, StreamName, Tombstone};
use crate::index::{Chains, DumpBlock, PrefixIndex};
use crate::registry::export::Copied;
use crate::registry::refill::Refill;
use crate::registry::{Error, Registry};
use crate::trust::Trust;

/// Which streams.
#[derive(Debug, Clone, Default)]
pub struct ExportFilter {
    /// This model only.
    pub model: Option<ModelName>,
    /// This tenant only.
    pub tenant: Option<TenantId>,
    /// This instance only.
    pub instance: Option<InstanceId>,
}

/// One stream, or the owners of an index that no stream feeds, to be copied.
pub struct Export {
    /// The index.
    pub head: IndexHead,
    /// The stream.
    pub name: StreamName,
    pub(super) copied: Copied,
}

/// The blocks of one stream's owners at one batch boundary.
#[derive(Debug)]
pub struct StreamDump {
    /// Where the stream stood.
    pub position: Position,
    /// At least one owner; as `PrefixIndex::chains` orders their blocks.
    pub owners: Vec<(Owner, Chains)>,
}

impl Export {
    /// Copies the owners and the position under one read lock. None if the stream is gone.
    #[must_use]
    pub fn copy(&self) -> Option<StreamImage> {
        self.copied.copy(&self.name)
    }

    /// Spells out the blocks of the owners under one read lock. None if the stream is gone.
    #[must_use]
    pub fn dump(&self) -> Option<StreamDump> {
        self.copied.dump(&self.name)
    }
}

/// One index as a peer or a file had it, built apart.
pub struct RecoveredIndex {
    /// Its content; owners unregistered.
    pub index: PrefixIndex,
    /// Its streams. Empty after a `/dump`.
    pub streams: Vec<RecoveredStream>,
}

/// One stream of a recovered index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredStream {
    /// Which stream.
    pub name: StreamName,
    /// Where it stood.
    pub position: Position,
    /// All owners of its image.
    pub owners: Vec<Owner>,
}

impl From<&StreamImage> for RecoveredStream {
    fn from(stream: &StreamImage) -> Self {
        let owners = stream.image.owners.iter().map(|image| image.owner.clone()).collect();
        Self { name: stream.name.clone(), position: stream.position, owners }
    }
}

/// All that a peer or a file had.
#[derive(Default)]
pub struct Recovered {
    /// Indexes by key.
    pub indexes: BTreeMap<IndexKey, RecoveredIndex>,
}

/// What became of registrations that were taken over.
#[derive(Debug, Default)]
pub struct Restored {
    /// Registered.
    pub added: usize,
    /// Known here already, equal or not: ours stay.
    pub kept: usize,
    /// Not taken, and why.
    pub refused: Vec<(IndexKey, Owner, Error)>,
}

/// What became of recovered content.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Adopted {
    /// Indexes taken.
    pub indexes: usize,
    /// Indexes of another block size than ours: refused.
    pub refused: usize,
    /// Owners taken.
    pub owners: usize,
    /// Streams that go on from a number.
    pub streams: usize,
}

/// One stream in `/digest`.
#[derive(Debug, Clone)]
pub struct StreamView {
    /// The index.
    pub key: IndexKey,
    /// The stream.
    pub name: StreamName,
    /// Where it stands.
    pub position: Position,
    /// Digest of its owners at that position.
    pub digest: u64,
    /// Earlier digests, oldest first.
    pub history: Vec<(Seq, u64)>,
    /// Its owners with trust and held blocks.
    pub owners: Vec<(Owner, Trust, u64)>,
    /// Blocks that the digest leaves out.
    pub foreign_blocks: u64,
    /// Blocks age out here.
    pub ages: bool,
}

/// Outcome of [`Registry::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// Whose blocks were compared.
    pub owner: Owner,
    /// The batch after which they were compared.
    pub at: Option<Seq>,
    /// First number that the publisher still had; above 0 (or 1) the comparison says little.
    pub replayed_from: Option<Seq>,
    /// The replay was complete: the comparison counts.
    pub complete: bool,
    /// Blocks in the rebuilt state.
    pub rebuilt_blocks: u64,
    /// Blocks in the live state.
    pub live_blocks: u64,
    /// Blocks that the live state lacks: their number and the first ones.
    pub missing: (u64, Vec<DumpBlock>),
    /// Blocks that it has too much: their number and the first ones.
    pub surplus: (u64, Vec<DumpBlock>),
}

impl Registry {
    /// An empty index with the registry's bounds, to build a recovered state in.
    #[must_use]
    pub fn new_index(&self, block_size: BlockSize) -> PrefixIndex {
        PrefixIndex::new(block_size, self.core.index_limits)
    }

    /// Streams to copy, index by index in order of key.
    #[must_use]
    pub fn exports(&self, filter: &ExportFilter) -> Vec<Export> {
        self.core.exports(filter)
    }

    /// All registrations of every source.
    #[must_use]
    pub fn registrations(&self) -> Vec<Registration> {
        self.core.registrations()
    }

    /// Registrations by hand that were taken back lately.
    #[must_use]
    pub fn tombstones(&self) -> Vec<Tombstone> {
        self.core.tombstones()
    }

    /// Takes over registrations and tombstones of another replica. Ours win; what a tombstone younger than the
    /// registration names is not taken.
    pub async fn restore(&self, registrations: Vec<Registration>, tombstones: Vec<Tombstone>) -> Restored {
        let core = Arc::clone(&self.core);
        self.run(async move { core.restore(registrations, tombstones).await }).await
    }

    /// Replaces the content of the indexes and lets every stream go on from its position there. Ends the start in which
    /// streams only hold; with nothing recovered they begin fresh. Without such a start it does nothing.
    pub async fn adopt(&self, recovered: Recovered) -> Adopted {
        let core = Arc::clone(&self.core);
        self.run(async move { core.adopt(recovered).await }).await
    }

    /// True until [`Self::adopt`] was called on a registry that was built to recover.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.core.state.read().recovering
    }

    /// Removes owners that only a recovery named and nobody has registered. Returns them.
    pub async fn drop_recovered(&self) -> Vec<(IndexKey, Owner)> {
        let core = Arc::clone(&self.core);
        self.run(async move { core.drop_recovered().await }).await
    }

    /// Every stream with its digests.
    #[must_use]
    pub fn digests(&self) -> Vec<StreamView> {
        self.core.digests()
    }

    /// Makes a running stream hold what it hears. None if it is not there, or does so already.
    pub async fn begin_refill(&self, key: &IndexKey, name: &StreamName) -> Option<Refill> {
        let (core, key, name) = (Arc::clone(&self.core), key.clone(), name.clone());
        self.run(async move { core.begin_refill(&key, &name).await }).await
    }

    /// Replaces the owners of the stream by the image, or none; lets it go on. False if the image was not taken: it does
    /// not fit, its last batch was not heard here (another life of the publisher, or an older state), it is not exact, or
    /// lacks a registered rank.
    pub async fn end_refill(&self, refill: Refill, image: Option<StreamImage>) -> bool {
        let core = Arc::clone(&self.core);
        self.run(async move { core.end_refill(refill, image).await }).await
    }

    /// Rebuilds an owner from the publisher's whole replay beside the live state and compares the two at one batch.
    /// A block that another owner's announcement placed cannot be rebuilt from one publisher and shows as surplus.
    ///
    /// # Errors
    /// The worker is unknown, has no replay endpoint, or does not answer.
    pub async fn verify(&self, key: &IndexKey, owner: &Owner, idle: Duration) -> Result<Verification, Error> {
        self.core.verify(key, owner, idle).await
    }
}
