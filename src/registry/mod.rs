//! The only way to add or remove a worker. HTTP, options and the controller are its callers.
#![allow(missing_docs, unused_variables, dead_code, reason = "skeleton")]

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{BlockSize, DpRank, DuplicatePolicy, IndexKey, InstanceId, ModelName, Owner, Role, Source, TenantId};
use crate::index::{OwnerReport, OwnerSpec, SharedIndex};
use crate::ingest::{self, SharedClock};
pub use crate::ingest::{Status, StreamReport};
use crate::zmtp::{Context, Options};
pub use crate::zmtp::{Endpoint, EndpointError};

/// One registration: an owner of an index and where its events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSpec {
    pub key: IndexKey,
    pub owner: Owner,
    pub block_size: BlockSize,
    pub endpoint: Endpoint,
    pub replay_endpoint: Option<Endpoint>,
    pub topic: Option<String>,
    pub additional_salt: Option<String>,
    /// Mooncake's default LoRA name.
    pub default_lora: Option<String>,
    pub owner_spec: OwnerSpec,
}

/// What to unregister.
#[derive(Debug, Clone)]
pub struct Unregister {
    pub model: ModelName,
    pub tenant: Option<TenantId>,
    pub instance: InstanceId,
    pub rank: Option<DpRank>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("instance {instance} dp_rank {rank} already registered")]
    AlreadyRegistered { instance: InstanceId, rank: DpRank },
    #[error("block_size mismatch for model={} tenant={}: existing={existing}, requested={requested}", key.model, key.tenant)]
    BlockSizeMismatch { key: IndexKey, existing: BlockSize, requested: BlockSize },
    #[error("instance {0} not found")]
    UnknownInstance(InstanceId),
    #[error("instance {instance} dp_rank {rank} not found")]
    UnknownRank { instance: InstanceId, rank: DpRank },
    #[error("instance {instance} dp_rank {rank} cannot be {verb} from status {status}")]
    ListenerState { instance: InstanceId, rank: DpRank, verb: &'static str, status: &'static str },
    /// A worker that Kubernetes registered is changed by Kubernetes only (409 `owned_by_kubernetes`).
    #[error("instance {instance} dp_rank {rank} is registered by kubernetes")]
    OwnedByKubernetes { instance: InstanceId, rank: DpRank },
    #[error("registry is shutting down")]
    ShuttingDown,
}

/// One rank in `/workers`.
#[derive(Debug, Clone)]
pub struct RankView {
    pub spec: WorkerSpec,
    pub source: Source,
    pub stream: StreamReport,
    pub report: OwnerReport,
}

/// One instance of one index in `/workers`.
#[derive(Debug, Clone)]
pub struct WorkerView {
    pub key: IndexKey,
    pub instance: InstanceId,
    pub block_size: BlockSize,
    pub source: Source,
    pub ranks: BTreeMap<DpRank, RankView>,
}

/// Outcome of [`Registry::converge`].
#[derive(Debug, Default)]
pub struct Converged {
    pub added: Vec<Owner>,
    pub removed: Vec<Owner>,
    pub replaced: Vec<Owner>,
    pub failed: Vec<(Owner, Error)>,
}

/// What a registry is built from.
#[derive(Clone)]
pub struct RegistryConfig {
    /// Connections; `topics` holds where a registration names none.
    pub zmtp: Options,
    pub context: Context,
    pub index_limits: crate::index::Limits,
    pub ingest_limits: ingest::Limits,
    /// `Arc::new(ingest::SystemClock)` in the service.
    pub clock: SharedClock,
}

pub struct Registry {}

impl Registry {
    /// An empty registry. Needs a tokio runtime from the first registration on.
    #[must_use]
    pub fn new(config: RegistryConfig) -> Arc<Self> {
        todo!()
    }
    /// Registrations that share an endpoint with another instance, counted since start.
    #[must_use]
    pub fn shared_endpoints(&self) -> u64 {
        todo!()
    }
    /// Registers; an unchanged repetition is fine. `replace`: another endpoint = unregister + register (blocks gone); only another replay endpoint: blocks and connection stay.
    pub async fn register(&self, spec: WorkerSpec, source: Source, replace: bool) -> Result<(), Error> {
        todo!()
    }
    /// Awaits the listener, then removes the blocks. Returns what went. `last_seq` is remembered (24 h, 65,536 streams).
    pub async fn unregister(&self, what: Unregister) -> Result<Vec<(IndexKey, Owner)>, Error> {
        todo!()
    }
    /// Makes the workers of one source equal `desired`: removes first, then adds; touches no other source.
    pub async fn converge(&self, source: Source, desired: BTreeMap<(IndexKey, Owner), WorkerSpec>) -> Converged {
        todo!()
    }
    pub fn index(&self, key: &IndexKey) -> Option<Arc<SharedIndex>> {
        todo!()
    }
    pub fn indexes(&self) -> Vec<(IndexKey, Arc<SharedIndex>)> {
        todo!()
    }
    pub fn workers(&self, model: Option<&ModelName>, tenant: Option<&TenantId>) -> Vec<WorkerView> {
        todo!()
    }
    /// Distinct instance ids registered, for the start-up gate.
    pub fn instance_count(&self) -> usize {
        todo!()
    }
    pub async fn pause(&self, instance: &InstanceId, rank: Option<DpRank>) -> Result<(), Error> {
        todo!()
    }
    pub async fn resume(&self, instance: &InstanceId, rank: Option<DpRank>) -> Result<(), Error> {
        todo!()
    }
    /// Stops all listeners and awaits them. Later calls fail with `ShuttingDown`.
    pub async fn shutdown(&self) {
        todo!()
    }
}
