//! The only way to add or remove a worker. HTTP, options and the controller are its callers.
//!
//! The registry owns every index and every listener: it spawns the tasks, keeps their handles and awaits them.
//! Operations run one after the other, each to its end even if its caller goes away; queries and views never wait for
//! one. Invariants: an owner's blocks are removed only after its listener has ended or has confirmed that it writes
//! nothing more; an index lives as long as it has a registered worker or a recovered owner; the map of workers is never
//! locked across an `.await`.

mod adopt;
mod core;
mod exchange;
mod export;
mod operations;
mod refill;
mod remembered;
mod restore;
mod state;
mod tombstones;
mod verify;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::task::TaskTracker;

use self::core::Core;
use crate::ids::{BlockSize, DpRank, Incarnation, IndexKey, InstanceId, ModelName, Owner, Source, TenantId};
use crate::index::{OwnerReport, OwnerSpec, SharedIndex};
use crate::ingest::{self, SharedClock};
pub use crate::ingest::{Status, StreamReport};
use crate::zmtp::{Context, Options};
pub use crate::zmtp::{Endpoint, EndpointError};
pub use exchange::{
    Adopted, Export, ExportFilter, Recovered, RecoveredIndex, RecoveredStream, Restored, StreamDump, StreamView,
    Verification,
};
pub use refill::Refill;

/// One registration: an owner of an index and where its events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Which index.
    pub key: IndexKey,
    /// Whose blocks.
    pub owner: Owner,
    /// Must be that of the index, if it exists.
    pub block_size: BlockSize,
    /// The publisher.
    pub endpoint: Endpoint,
    /// Its replay socket.
    pub replay_endpoint: Option<Endpoint>,
    /// Prefix of the topics to hear; none: everything.
    pub topic: Option<String>,
    /// Kept and echoed; without effect.
    pub additional_salt: Option<String>,
    /// Mooncake's default LoRA name.
    pub default_lora: Option<String>,
    /// What the index must know about the owner.
    pub owner_spec: OwnerSpec,
    /// Which life of its container; none where nobody knows. Two that differ never share blocks.
    pub incarnation: Option<Incarnation>,
}

/// A worker that a source wants registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredWorker {
    /// The registration.
    pub spec: WorkerSpec,
    /// Its container is not running: nothing new is registered, and what is registered scores nothing until it runs again.
    pub container_down: bool,
}

impl From<WorkerSpec> for DesiredWorker {
    fn from(spec: WorkerSpec) -> Self {
        Self { spec, container_down: false }
    }
}

/// What to unregister.
#[derive(Debug, Clone)]
pub struct Unregister {
    /// The model.
    pub model: ModelName,
    /// One tenant; none: all tenants of the model.
    pub tenant: Option<TenantId>,
    /// The instance.
    pub instance: InstanceId,
    /// One rank; none: all of them.
    pub rank: Option<DpRank>,
}

/// Why an operation was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Known already with other words, and nobody asked to replace it.
    #[error("instance {instance} dp_rank {rank} already registered")]
    AlreadyRegistered {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
    },
    /// The index has another block size.
    #[error("block_size mismatch for model={} tenant={}: existing={existing}, requested={requested}", key.model, key.tenant)]
    BlockSizeMismatch {
        /// The index.
        key: IndexKey,
        /// Its block size.
        existing: BlockSize,
        /// That of the registration.
        requested: BlockSize,
    },
    /// Nothing there to remove, pause or resume.
    #[error("instance {0} not found")]
    UnknownInstance(InstanceId),
    /// The instance is there, the rank is not.
    #[error("instance {instance} dp_rank {rank} not found")]
    UnknownRank {
        /// The instance.
        instance: InstanceId,
        /// The rank that is not there.
        rank: DpRank,
    },
    /// The listener's state does not allow it.
    #[error("instance {instance} dp_rank {rank} cannot be {verb} from status {status}")]
    ListenerState {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
        /// What was asked for: `paused`, `resumed`.
        verb: &'static str,
        /// The word of the listener's state.
        status: &'static str,
    },
    /// A worker that Kubernetes registered is changed by Kubernetes only (409 `owned_by_kubernetes`).
    #[error("instance {instance} dp_rank {rank} is registered by kubernetes")]
    OwnedByKubernetes {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
    },
    /// It was unregistered by hand after that registration was made.
    #[error("instance {instance} dp_rank {rank} was unregistered meanwhile")]
    Withdrawn {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
    },
    /// A registration of another replica that cannot be one.
    #[error("registration of instance {instance} dp_rank {rank} has an invalid {what}")]
    InvalidRegistration {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
        /// Which part.
        what: &'static str,
    },
    /// There is no replay endpoint to ask.
    #[error("instance {instance} dp_rank {rank} has no replay endpoint")]
    NoReplayEndpoint {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
    },
    /// The replay endpoint does not answer.
    #[error("replay endpoint of instance {instance} dp_rank {rank} does not answer")]
    NoAnswer {
        /// The instance.
        instance: InstanceId,
        /// Its rank.
        rank: DpRank,
    },
    /// The process is about to end.
    #[error("registry is shutting down")]
    ShuttingDown,
}

/// Endpoint of a recovered owner whose stream nobody knows.
pub const UNKNOWN_ENDPOINT: &str = "inproc://unknown";

/// One rank in `/workers`.
#[derive(Debug, Clone)]
pub struct RankView {
    /// Its registration. Of a recovered owner that nobody registered: made up, with the endpoint [`UNKNOWN_ENDPOINT`] where
    /// no stream is known to have fed it.
    pub spec: WorkerSpec,
    /// Who registered it.
    pub source: Source,
    /// A registration by hand that Kubernetes' own one has superseded; it returns when that goes.
    pub superseded: Option<Source>,
    /// What its stream has observed; ranks with one endpoint share it.
    pub stream: StreamReport,
    /// What the index says about it.
    pub report: OwnerReport,
}

/// One instance of one index in `/workers`.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// The index.
    pub key: IndexKey,
    /// The instance.
    pub instance: InstanceId,
    /// Block size of the index.
    pub block_size: BlockSize,
    /// Who registered its first rank.
    pub source: Source,
    /// Its registered ranks, and those that only a recovered state named; at least one.
    pub ranks: BTreeMap<DpRank, RankView>,
}

/// Outcome of [`Registry::converge`].
#[derive(Debug, Default)]
pub struct Converged {
    /// Registered.
    pub added: Vec<(IndexKey, Owner)>,
    /// Unregistered.
    pub removed: Vec<(IndexKey, Owner)>,
    /// Registered with other words than before.
    pub replaced: Vec<(IndexKey, Owner)>,
    /// Refused, with the reason.
    pub failed: Vec<((IndexKey, Owner), Error)>,
}

/// What a registry is built from.
pub struct RegistryConfig {
    /// Connections; `topics` holds where a registration names none.
    pub zmtp: Options,
    /// Bounds of name look-ups.
    pub context: Context,
    /// Bounds of each index.
    pub index_limits: crate::index::Limits,
    /// Bounds and times of all streams.
    pub ingest_limits: ingest::Limits,
    /// `Arc::new(ingest::SystemClock)` in the service.
    pub clock: SharedClock,
    /// Streams only hold what they hear until [`Registry::adopt`]: a recovery is to come.
    pub recovering: bool,
    /// Where listeners run.
    pub threads: ingest::Threads,
}

/// All workers, indexes and listeners of a process.
pub struct Registry {
    core: Arc<Core>,
    /// Operations that run; each ends even if its caller went away.
    operations: TaskTracker,
}

impl Registry {
    /// An empty registry. Needs a tokio runtime from the first registration on.
    #[must_use]
    pub fn new(config: RegistryConfig) -> Arc<Self> {
        Arc::new(Self { core: Arc::new(Core::new(config)), operations: TaskTracker::new() })
    }

    /// Registers; an unchanged repetition is fine. `replace`: another endpoint = unregister + register (blocks gone);
    /// only another replay endpoint: blocks and connection stay.
    ///
    /// # Errors
    /// Known with other words and no `replace`, another block size than the index, owned by Kubernetes, shutting down.
    pub async fn register(&self, spec: WorkerSpec, source: Source, replace: bool) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        self.run(async move { core.register(spec, source, replace).await }).await
    }

    /// Awaits the listener, then removes the blocks. Returns what went. The last number is remembered to recognise a restart.
    ///
    /// # Errors
    /// Nothing there, owned by Kubernetes, shutting down.
    pub async fn unregister(&self, what: Unregister) -> Result<Vec<(IndexKey, Owner)>, Error> {
        let core = Arc::clone(&self.core);
        self.run(async move { core.unregister(what).await }).await
    }

    /// Makes the workers of one source equal `desired`: removes first, then adds; touches no other source, except that
    /// Kubernetes supersedes what was registered by hand under the same name.
    pub async fn converge(
        &self,
        source: Source,
        desired: BTreeMap<(IndexKey, Owner), impl Into<DesiredWorker>>,
    ) -> Converged {
        let desired = desired.into_iter().map(|(name, worker)| (name, worker.into())).collect();
        let core = Arc::clone(&self.core);
        self.run(async move { core.converge(source, desired).await }).await
    }

    /// Says whether what Kubernetes does is heard. While it is not, a worker of Kubernetes that reconnects is `unconfirmed`
    /// until the next [`Self::converge`] of that source after it is heard again: its address may be another Pod's by now.
    pub fn set_unwatched(&self, unwatched: bool) {
        self.core.shared.unwatched.store(unwatched, std::sync::atomic::Ordering::Release);
    }

    /// The index of a model and tenant, while it has a registered worker or a recovered owner.
    #[must_use]
    pub fn index(&self, key: &IndexKey) -> Option<Arc<SharedIndex>> {
        self.core.state.read().indexes.get(key).map(|entry| Arc::clone(&entry.to.index))
    }

    /// All indexes, in order of key.
    #[must_use]
    pub fn indexes(&self) -> Vec<(IndexKey, Arc<SharedIndex>)> {
        let state = self.core.state.read();
        state.indexes.iter().map(|(key, entry)| (key.clone(), Arc::clone(&entry.to.index))).collect()
    }

    /// All workers that pass the filters, in order of index and instance.
    #[must_use]
    pub fn workers(&self, model: Option<&ModelName>, tenant: Option<&TenantId>) -> Vec<WorkerView> {
        self.core.workers(model, tenant)
    }

    /// Distinct instance ids registered, for the start-up gate.
    #[must_use]
    pub fn instance_count(&self) -> usize {
        self.core.state.read().instance_count()
    }

    /// Registrations that share an endpoint with another instance, counted since start.
    #[must_use]
    pub fn shared_endpoints(&self) -> u64 {
        self.core.state.read().shared_endpoints
    }

    /// Closes the sockets of an instance, or of one of its ranks and those that share its endpoint.
    ///
    /// # Errors
    /// Nothing there; paused already or failed.
    pub async fn pause(&self, instance: &InstanceId, rank: Option<DpRank>) -> Result<(), Error> {
        let (core, instance) = (Arc::clone(&self.core), instance.clone());
        self.run(async move { core.pause(&instance, rank).await }).await
    }

    /// Connects again; what was missed is replayed.
    ///
    /// # Errors
    /// Nothing there; not paused.
    pub async fn resume(&self, instance: &InstanceId, rank: Option<DpRank>) -> Result<(), Error> {
        let (core, instance) = (Arc::clone(&self.core), instance.clone());
        self.run(async move { core.resume(&instance, rank).await }).await
    }

    /// Stops all listeners and awaits them. Later calls fail with [`Error::ShuttingDown`].
    pub async fn shutdown(&self) {
        self.core.shutdown().await;
        self.operations.close();
        self.operations.wait().await;
    }

    /// Runs an operation to its end, whatever becomes of the caller: half an operation would leave a worker without a
    /// listener, or a listener without a worker.
    async fn run<T: Send + 'static>(&self, operation: impl Future<Output = T> + Send + 'static) -> T {
        match self.operations.spawn(operation).await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => std::future::pending().await, // Only when the runtime is being dropped, and we with it.
        }
    }
}

#[cfg(test)]
mod tests;
