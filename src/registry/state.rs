//! What is registered, as plain data. Transitions are small and complete; nothing here waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::ids::{DpRank, Incarnation, IndexKey, InstanceId, Owner, Source};
use crate::image::{Position, StreamName};
use crate::ingest::{Destination, Handle, Mark, Status, StreamReport, ThreadId};
use crate::registry::WorkerSpec;
use crate::zmtp::Endpoint;

/// Everything registered.
#[derive(Default)]
pub(super) struct State {
    /// Indexes that have a registered worker or a recovered owner.
    pub(super) indexes: BTreeMap<IndexKey, IndexEntry>,
    /// Streams only hold what they hear: a state is to come.
    pub(super) recovering: bool,
    /// Incarnations of the registrations that came with that state, by owner.
    pub(super) restored: BTreeMap<(IndexKey, Owner), Option<Incarnation>>,
    /// Registrations that shared an endpoint with another instance.
    pub(super) shared_endpoints: u64,
    /// No further registration.
    pub(super) closing: bool,
}

/// One index and its workers.
pub(super) struct IndexEntry {
    /// The index, and who feeds whom in it.
    pub(super) to: Destination,
    /// Where its listeners run.
    pub(super) thread: ThreadId,
    /// Its instances, each with at least one rank.
    pub(super) instances: BTreeMap<InstanceId, InstanceEntry>,
    /// Owners that a recovered state named and nobody has registered, with the stream that fed them there, if one did.
    pub(super) recovered: BTreeMap<Owner, Option<(StreamName, Position)>>,
}

/// One instance of one index.
pub(super) struct InstanceEntry {
    /// Registered ranks.
    pub(super) ranks: BTreeMap<DpRank, Worker>,
    /// Streams that feed them.
    pub(super) streams: HashMap<StreamKey, StreamEntry>,
    /// One replay at a time.
    pub(super) turn: Arc<Semaphore>,
}

/// One registration.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) spec: WorkerSpec,
    pub(super) source: Source,
    /// In milliseconds since 1970.
    pub(super) registered_ms: u64,
    /// It came from another replica, and Kubernetes has not said so here.
    pub(super) unconfirmed: bool,
    /// Its container is not running: it scores nothing.
    pub(super) down: bool,
    /// Lives that its stream had had when its incarnation was recorded.
    pub(super) lives: u64,
    /// A registration by hand that Kubernetes' own one has superseded.
    pub(super) superseded: Option<Box<Self>>,
}

/// What makes two ranks of an instance share a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StreamKey {
    endpoint: Endpoint,
    topic: Option<String>,
    default_lora: Option<String>,
}

/// A stream and its task.
pub(super) enum StreamEntry {
    /// A task runs, or has ended unexpectedly.
    Running(Running),
    /// The endpoint can never connect; says why.
    Hopeless(String),
}

/// A running listener.
pub(super) struct Running {
    pub(super) handle: Handle,
    pub(super) stop: CancellationToken,
    pub(super) task: JoinHandle<Option<Mark>>,
}

impl StreamKey {
    /// The stream of a registration.
    pub(super) fn of(spec: &WorkerSpec) -> Self {
        Self { endpoint: spec.endpoint.clone(), topic: spec.topic.clone(), default_lora: spec.default_lora.clone() }
    }

    /// The name under which other replicas know the stream.
    pub(super) fn name(&self, instance: &InstanceId) -> StreamName {
        StreamName {
            instance: instance.clone(),
            endpoint: self.endpoint.as_str().to_owned(),
            topic: self.topic.clone(),
            default_lora: self.default_lora.clone(),
        }
    }
}

impl StreamEntry {
    /// What it has observed.
    pub(super) fn report(&self) -> StreamReport {
        match self {
            Self::Running(running) => running.handle.report(),
            Self::Hopeless(why) => StreamReport {
                status: Status::Failed,
                last_error: Some(why.clone()),
                settled: true,
                ..StreamReport::default()
            },
        }
    }

    /// The running listener, if there is one.
    pub(super) fn running(&self) -> Option<&Running> {
        match self {
            Self::Running(running) => Some(running),
            Self::Hopeless(_) => None,
        }
    }

    /// The way to tell it something, if a task runs.
    pub(super) fn handle(&self) -> Option<Handle> {
        self.running().map(|running| running.handle.clone())
    }
}

impl Default for InstanceEntry {
    fn default() -> Self {
        Self { ranks: BTreeMap::new(), streams: HashMap::new(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl IndexEntry {
    /// The running stream of this name.
    pub(super) fn stream(&self, name: &StreamName) -> Option<&Running> {
        let streams = &self.instances.get(&name.instance)?.streams;
        streams.iter().find(|(key, _)| key.name(&name.instance) == *name).and_then(|(_, stream)| stream.running())
    }

    /// All running streams with their names.
    pub(super) fn streams(&self) -> impl Iterator<Item = (StreamName, &Running)> {
        self.instances.iter().flat_map(|(instance, entry)| {
            let running = entry.streams.iter().filter_map(|(key, stream)| Some((key, stream.running()?)));
            running.map(|(key, running)| (key.name(instance), running))
        })
    }

    /// Registrations of one stream.
    pub(super) fn workers_of<'a>(&'a self, name: &'a StreamName) -> impl Iterator<Item = &'a Worker> {
        let ranks = self.instances.get(&name.instance).into_iter().flat_map(|entry| entry.ranks.values());
        ranks.filter(|worker| StreamKey::of(&worker.spec).name(&name.instance) == *name)
    }

    /// The registration of an owner.
    pub(super) fn worker(&self, owner: &Owner) -> Option<&Worker> {
        self.instances.get(&owner.instance)?.ranks.get(&owner.rank)
    }

    /// Registrations of the index.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.instances.values().flat_map(|entry| entry.ranks.values())
    }

    /// True if nothing keeps the index.
    pub(super) fn is_unused(&self) -> bool {
        self.instances.is_empty() && self.recovered.is_empty()
    }
}

impl State {
    /// Streams whose listeners run on a thread.
    pub(super) fn streams_on(&self, thread: ThreadId) -> usize {
        let here = self.indexes.values().filter(|entry| entry.thread == thread);
        here.flat_map(|entry| entry.instances.values()).map(|instance| instance.streams.len()).sum()
    }

    /// The registration of an owner.
    pub(super) fn worker(&self, key: &IndexKey, owner: &Owner) -> Option<&Worker> {
        self.indexes.get(key)?.worker(owner)
    }

    /// The same, to change it.
    pub(super) fn worker_mut(&mut self, key: &IndexKey, owner: &Owner) -> Option<&mut Worker> {
        self.indexes.get_mut(key)?.instances.get_mut(&owner.instance)?.ranks.get_mut(&owner.rank)
    }

    /// The stream of a registration.
    pub(super) fn stream(&self, spec: &WorkerSpec) -> Option<&StreamEntry> {
        self.indexes.get(&spec.key)?.instances.get(&spec.owner.instance)?.streams.get(&StreamKey::of(spec))
    }

    /// The registrations that share the stream of one, itself included.
    pub(super) fn sharers(&self, spec: &WorkerSpec) -> impl Iterator<Item = &Worker> {
        let stream = StreamKey::of(spec);
        let instance = self.indexes.get(&spec.key).and_then(|entry| entry.instances.get(&spec.owner.instance));
        let ranks = instance.into_iter().flat_map(|entry| entry.ranks.values());
        ranks.filter(move |worker| StreamKey::of(&worker.spec) == stream)
    }

    /// True if nobody but this source has registered anything in an index.
    pub(super) fn is_all_of(&self, key: &IndexKey, source: Source) -> bool {
        let mut workers = self.indexes.get(key).into_iter().flat_map(IndexEntry::workers);
        workers.all(|worker| worker.source == source && worker.superseded.is_none())
    }

    /// All registrations.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.indexes.values().flat_map(IndexEntry::workers)
    }

    /// Distinct instance ids.
    pub(super) fn instance_count(&self) -> usize {
        let ids: BTreeSet<_> = self.indexes.values().flat_map(|entry| entry.instances.keys()).collect();
        ids.len()
    }

    /// Another instance that is registered with the same endpoint.
    pub(super) fn shares_endpoint(&self, spec: &WorkerSpec) -> Option<InstanceId> {
        self.workers()
            .find(|worker| worker.spec.endpoint == spec.endpoint && worker.spec.owner.instance != spec.owner.instance)
            .map(|worker| worker.spec.owner.instance.clone())
    }
}
