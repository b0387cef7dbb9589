//! Who this replica is and how far it has come, for `/digest`, `/metrics` and `/ready`.

use std::sync::Arc;

use crate::recovery::PeerList;
use crate::registry::Registry;
use crate::wire::digest::{Digest, Phase};

/// Identity, peers, progress and counters of this process; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct Replica(Arc<Inner>);

struct Inner {
    peers: PeerList,
}

/// What has happened so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Attempts to take a peer's state: kind of source (`snapshot`, `dump`, `disk`), outcome (`ok`, `failed`), count.
    pub attempts: Vec<(&'static str, &'static str, u64)>,
    /// Bytes of state read so far.
    pub bytes: u64,
    /// Blocks taken.
    pub blocks: u64,
    /// Starts without the state that a peer was known to have.
    pub cold_starts: u64,
    /// Indexes or files refused, by reason (`block_size`, `corrupt_file`, `foreign_file`, `old_file`).
    pub refused: Vec<(&'static str, u64)>,
    /// Streams that differ from a peer's at the last comparison.
    pub differing_streams: u64,
    /// Streams that were compared.
    pub compared_streams: u64,
    /// Owners taken from a peer at run time, by outcome (`ok`, `failed`).
    pub refills: Vec<(&'static str, u64)>,
    /// Registrations that differ from a peer's at the last comparison.
    pub differing_registrations: u64,
    /// Snapshots written to disk, by outcome.
    pub files_written: Vec<(&'static str, u64)>,
}

impl Replica {
    /// A replica with a random id.
    #[must_use]
    pub fn new(peers: PeerList) -> Self {
        Self(Arc::new(Inner { peers }))
    }

    /// 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> &str {
        todo!("recovery")
    }

    /// Addresses of the others.
    #[must_use]
    pub fn peers(&self) -> &PeerList {
        &self.0.peers
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        todo!("recovery")
    }

    /// Sets how far it is.
    pub fn set_phase(&self, _phase: Phase) {
        todo!("recovery")
    }

    /// Answer of `/digest`.
    #[must_use]
    pub fn digest(&self, _registry: &Registry) -> Digest {
        todo!("recovery")
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        todo!("recovery")
    }
}
