//! The parts of a registry, and how one worker is added or removed. Every caller here holds the operation gate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::ids::{BlockSize, IndexKey, Owner, Source};
use crate::index::SharedIndex;
use crate::ingest::{self, Adoption, Command, Destination, Shared, Sources, StreamId, StreamSpec, ThreadId};
use crate::registry::remembered::{Publisher, Remembered};
use crate::registry::state::{IndexEntry, Running, State, StreamEntry, StreamKey, Worker};
use crate::registry::tombstones::Tombstones;
use crate::registry::{Error, RegistryConfig, WorkerSpec};
use crate::trust::Reason;

/// Everything behind [`crate::registry::Registry`].
pub(super) struct Core {
    pub(super) state: RwLock<State>,
    /// One operation at a time.
    pub(super) gate: AsyncMutex<()>,
    pub(super) index_limits: crate::index::Limits,
    pub(super) shared: Arc<Shared>,
    remembered: Mutex<Remembered>,
    pub(super) tombstones: Mutex<Tombstones>,
    streams_made: AtomicU64,
    threads: ingest::Threads,
}

/// A stream that is being stopped.
struct Stopping {
    publisher: Publisher,
    running: Running,
}

impl Core {
    pub(super) fn new(config: RegistryConfig) -> Self {
        let RegistryConfig { zmtp, context, index_limits, ingest_limits, clock, recovering, threads } = config;
        Self {
            state: RwLock::new(State { recovering, ..State::default() }),
            gate: AsyncMutex::new(()),
            index_limits,
            shared: Arc::new(Shared::new(zmtp, context, ingest_limits, clock)),
            remembered: Mutex::default(),
            tombstones: Mutex::default(),
            streams_made: AtomicU64::new(0),
            threads,
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }

    /// Refuses another block size than that of the index, if it exists.
    pub(super) fn check_block_size(&self, spec: &WorkerSpec) -> Result<(), Error> {
        let state = self.state.read();
        let Some(entry) = state.indexes.get(&spec.key) else {
            return Ok(());
        };
        let existing = entry.to.index.block_size();
        // An index that only a recovery named gives way.
        if existing == spec.block_size || entry.instances.is_empty() {
            return Ok(());
        }
        Err(Error::BlockSizeMismatch { key: spec.key.clone(), existing, requested: spec.block_size })
    }

    /// Adds a worker that is not there, whose block size fits.
    pub(super) async fn add(&self, worker: Worker) {
        let (spec, unconfirmed) = (worker.spec.clone(), worker.unconfirmed);
        let of_kubernetes = worker.source == Source::Kubernetes;
        let adoption;
        let running = {
            let mut state = self.state.write();
            if let Some(other) = state.shares_endpoint(&spec) {
                state.shared_endpoints += 1;
                tracing::warn!(
                    instance = %spec.owner.instance, %other, endpoint = spec.endpoint.as_str(),
                    "endpoint is shared with another instance"
                );
            }
            let recovering = state.recovering;
            let unfit = |entry: &IndexEntry| entry.to.index.block_size() != spec.block_size;
            if state.indexes.get(&spec.key).is_some_and(unfit) {
                state.indexes.remove(&spec.key);
            }
            let entry = self.entry(&mut state, &spec.key, spec.block_size);
            let (to, thread) = (entry.to.clone(), entry.thread);
            adoption = adoption_of(entry, &spec);
            {
                let mut index = to.index.write();
                let id = index.register(&spec.owner, spec.owner_spec, self.now_ms());
                index.set_reason(id, Reason::Unconfirmed, unconfirmed, self.now_ms());
            }
            let instance = entry.instances.entry(spec.owner.instance.clone()).or_default();
            instance.ranks.insert(spec.owner.rank, worker);
            let turn = Arc::clone(&instance.turn);
            let stream = instance.streams.entry(StreamKey::of(&spec));
            match stream {
                std::collections::hash_map::Entry::Occupied(stream) => {
                    stream.get().handle().map(|handle| (handle, true))
                }
                std::collections::hash_map::Entry::Vacant(place) => {
                    let joining = recovering || adoption.is_some();
                    let handle =
                        place.insert(self.new_stream(&spec, (to, thread), (turn, joining, of_kubernetes))).handle();
                    handle.filter(|_| adoption.is_some()).map(|handle| (handle, false))
                }
            }
        };
        let Some((handle, joins)) = running else {
            return;
        };
        if !joins {
            let (adoption, ranks) = (adoption.unwrap_or(Adoption::Keep), vec![spec.owner.rank]);
            handle.tell(|done| Command::Adopt { adoption, ranks, done }).await;
            return;
        }
        if let Some(endpoint) = &spec.replay_endpoint
            && self.others_replay_elsewhere(&spec)
        {
            handle.tell(|done| Command::SetReplay(Some(endpoint.clone()), done)).await;
        }
        handle.tell(|done| Command::AddRank(spec.owner.rank, done)).await;
    }

    /// True if a rank that shares the stream names another replay endpoint; the one registered last is asked.
    fn others_replay_elsewhere(&self, spec: &WorkerSpec) -> bool {
        let state = self.state.read();
        state.sharers(spec).any(|other| other.spec.replay_endpoint != spec.replay_endpoint)
    }

    /// Removes registered workers of one index: their listeners end first, then their blocks go.
    pub(super) async fn remove(&self, key: &IndexKey, owners: &[Owner]) {
        let mut stopping = Vec::new();
        for owner in owners {
            let handle = {
                let mut state = self.state.write();
                let Some(spec) = state.worker(key, owner).map(|worker| worker.spec.clone()) else {
                    continue;
                };
                if state.sharers(&spec).all(|other| owners.contains(&other.spec.owner)) {
                    stopping.extend(take_stream(&mut state, &spec));
                    None
                } else {
                    state.stream(&spec).and_then(StreamEntry::handle)
                }
            };
            if let Some(handle) = handle {
                handle.tell(|done| Command::RemoveRank(owner.rank, done)).await;
            }
        }
        stopping.iter().for_each(|stream| stream.running.stop.cancel());
        for stream in stopping {
            self.await_end(stream).await;
        }
        for owner in owners {
            let gone = drop_worker(&mut self.state.write(), key, owner);
            if let Some((to, owners)) = gone {
                drop_blocks(&to, &owners);
            }
        }
    }

    async fn await_end(&self, stream: Stopping) {
        match stream.running.task.await {
            Ok(Some(mark)) => self.remembered.lock().keep(stream.publisher, mark, self.now_ms()),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "listener ended unexpectedly"),
        }
    }

    /// Ends all listeners.
    pub(super) async fn shutdown(&self) {
        self.state.write().closing = true;
        let _gate = self.gate.lock().await;
        let stopping: Vec<_> = {
            let mut state = self.state.write();
            let specs: Vec<WorkerSpec> = state.workers().map(|worker| worker.spec.clone()).collect();
            specs.iter().filter_map(|spec| take_stream(&mut state, spec)).collect()
        };
        stopping.iter().for_each(|stream| stream.running.stop.cancel());
        for stream in stopping {
            self.await_end(stream).await;
        }
    }

    /// The index with this key, made if it is not there.
    pub(super) fn entry<'a>(&self, state: &'a mut State, key: &IndexKey, block_size: BlockSize) -> &'a mut IndexEntry {
        if !state.indexes.contains_key(key) {
            let index = Arc::new(SharedIndex::new(block_size, self.index_limits));
            let to = Destination { index, sources: Arc::new(Sources::default()) };
            let thread = self.threads.least(|thread| state.streams_on(thread));
            let entry = IndexEntry { to, thread, instances: BTreeMap::new(), recovered: BTreeMap::new() };
            state.indexes.insert(key.clone(), entry);
        }
        state.indexes.get_mut(key).expect("it was made above")
    }

    /// `joining`: it begins by holding what it hears.
    fn new_stream(
        &self,
        spec: &WorkerSpec,
        (to, thread): (Destination, ThreadId),
        (turn, joining, of_kubernetes): (Arc<tokio::sync::Semaphore>, bool, bool),
    ) -> StreamEntry {
        if let Some(why) = spec.endpoint.hopeless() {
            tracing::error!(instance = %spec.owner.instance, endpoint = spec.endpoint.as_str(), why, "endpoint can never connect");
            return StreamEntry::Hopeless(why.to_owned());
        }
        let remembered = self.remembered.lock().take(&publisher(spec), self.now_ms());
        let stream = StreamSpec {
            id: StreamId(self.streams_made.fetch_add(1, Ordering::Relaxed)),
            instance: spec.owner.instance.clone(),
            endpoint: spec.endpoint.clone(),
            replay_endpoint: spec.replay_endpoint.clone(),
            topic: spec.topic.clone(),
            default_lora: spec.default_lora.clone(),
            ranks: vec![spec.owner.rank],
            remembered,
            turn,
            joining,
            of_kubernetes,
        };
        let span = tracing::info_span!("stream", model = %spec.key.model, tenant = %spec.key.tenant, instance = %spec.owner.instance);
        let stop = CancellationToken::new();
        let (handle, task) = ingest::listener(Arc::clone(&self.shared), to, stream, stop.clone());
        StreamEntry::Running(Running { handle, stop, task: self.threads.spawn(thread, task.instrument(span)) })
    }
}

fn publisher(spec: &WorkerSpec) -> Publisher {
    Publisher { key: spec.key.clone(), instance: spec.owner.instance.clone(), endpoint: spec.endpoint.clone() }
}

/// Takes the stream of a registration out of the map, to be stopped.
fn take_stream(state: &mut State, spec: &WorkerSpec) -> Option<Stopping> {
    let instance = state.indexes.get_mut(&spec.key)?.instances.get_mut(&spec.owner.instance)?;
    match instance.streams.remove(&StreamKey::of(spec))? {
        StreamEntry::Running(running) => Some(Stopping { publisher: publisher(spec), running }),
        StreamEntry::Hopeless(_) => None,
    }
}

/// Takes a worker out whose listener writes no more, and says whose blocks go: with the last rank of an instance also
/// those of ranks that only batches named. With the last owner goes the index, and nothing is left to clean.
fn drop_worker(state: &mut State, key: &IndexKey, owner: &Owner) -> Option<(Destination, Vec<Owner>)> {
    let entry = state.indexes.get_mut(key)?;
    let instance = entry.instances.get_mut(&owner.instance)?;
    instance.ranks.remove(&owner.rank)?;
    let mut gone = vec![owner.clone()];
    if instance.ranks.is_empty() {
        entry.instances.remove(&owner.instance);
        let recovered = &entry.recovered;
        let goes = |other: &Owner| other.instance == owner.instance && !recovered.contains_key(other);
        gone.extend(entry.to.index.read().owners().into_iter().filter(goes));
    }
    if entry.is_unused() {
        state.indexes.remove(key);
        return None;
    }
    Some((entry.to.clone(), gone))
}

/// How the stream of a registration goes on from what a recovered state left for its owner; none without such a state.
fn adoption_of(entry: &mut IndexEntry, spec: &WorkerSpec) -> Option<Adoption> {
    let from = entry.recovered.remove(&spec.owner)?;
    let name = StreamKey::of(spec).name(&spec.owner.instance);
    Some(match from {
        Some((stream, position)) if stream == name && position.mark.is_some() => Adoption::Snapshot(position),
        _ => Adoption::Unplaced,
    })
}

pub(super) fn drop_blocks(to: &Destination, owners: &[Owner]) {
    for owner in owners {
        let mut index = to.index.write();
        if let Some(id) = index.owner_id(owner) {
            to.sources.forget(id);
            index.unregister(owner);
        }
    }
}

/// Others may not change what Kubernetes registered.
pub(super) fn refuse_foreign(worker: &Worker, source: Source) -> Result<(), Error> {
    if worker.source != Source::Kubernetes || source == Source::Kubernetes {
        return Ok(());
    }
    let Owner { instance, rank } = worker.spec.owner.clone();
    Err(Error::OwnedByKubernetes { instance, rank })
}
