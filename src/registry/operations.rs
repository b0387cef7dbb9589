//! The operations of a registry, one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ids::{DpRank, IndexKey, InstanceId, Owner, Source};
use crate::index::SharedIndex;
use crate::ingest::{Command, Handle, Status};
use crate::registry::core::{Core, refuse_foreign};
use crate::registry::state::{StreamEntry, Worker};
use crate::registry::{Converged, DesiredWorker, Error, Unregister, WorkerSpec};
use crate::trust::Reason;

/// What a registration did.
enum Registered {
    Unchanged,
    Added,
    Replaced,
}

/// How a registration differs from the one that is there.
#[derive(Debug, PartialEq, Eq)]
enum Difference {
    None,
    /// Blocks and connection stay.
    Small,
    /// The same but for the life of its container.
    Life,
    /// Unregister and register.
    Whole,
}

impl Core {
    pub(super) async fn register(&self, spec: WorkerSpec, source: Source, replace: bool) -> Result<(), Error> {
        let _gate = self.gate.lock().await;
        let (key, owner) = (spec.key.clone(), spec.owner.clone());
        self.register_gated(spec, source, replace).await?;
        self.tombstones.lock().remove(&key, &owner);
        Ok(())
    }

    pub(super) async fn unregister(&self, what: Unregister) -> Result<Vec<(IndexKey, Owner)>, Error> {
        let _gate = self.gate.lock().await;
        if self.state.read().closing {
            return Err(Error::ShuttingDown);
        }
        let gone = self.matching(&what)?;
        for (key, owners) in &gone {
            self.remove(key, owners).await;
            self.remove_recovered(key, owners);
        }
        let now_ms = self.now_ms();
        for (key, owner) in gone.iter().flat_map(|(key, owners)| owners.iter().map(move |owner| (key, owner))) {
            self.tombstones.lock().keep(key, owner, now_ms);
        }
        Ok(gone
            .into_iter()
            .flat_map(|(key, owners)| owners.into_iter().map(move |owner| (key.clone(), owner)))
            .collect())
    }

    pub(super) async fn converge(
        &self,
        source: Source,
        desired: BTreeMap<(IndexKey, Owner), DesiredWorker>,
    ) -> Converged {
        let _gate = self.gate.lock().await;
        let mut outcome = Converged::default();
        let surplus: Vec<Worker> = {
            let state = self.state.read();
            let of_source = state.workers().filter(|worker| worker.source == source);
            let undesired = |worker: &&Worker| {
                let name = (worker.spec.key.clone(), worker.spec.owner.clone());
                desired.get(&name).is_none_or(|wanted| {
                    // A block size changes for all workers of an index together, and only if nobody else needs the old one.
                    wanted.spec.block_size != worker.spec.block_size && state.is_all_of(&name.0, source)
                })
            };
            of_source.filter(undesired).cloned().collect()
        };
        for worker in surplus {
            self.withdraw(worker, &mut outcome).await;
        }
        for (key, DesiredWorker { spec, container_down }) in desired {
            let known = self.state.read().worker(&key.0, &key.1).filter(|worker| worker.source == source).cloned();
            let done = match known {
                Some(known) if container_down => self.take_down(known, spec).await,
                // Nothing there to hear yet.
                None if container_down => continue,
                _ => self.register_gated(spec, source, true).await,
            };
            match done {
                Ok(Registered::Unchanged) => {}
                Ok(Registered::Added) => outcome.added.push(key),
                Ok(Registered::Replaced) => outcome.replaced.push(key),
                Err(error) => outcome.failed.push((key, error)),
            }
        }
        outcome
    }

    pub(super) async fn pause(&self, instance: &InstanceId, rank: Option<DpRank>) -> Result<(), Error> {
        let _gate = self.gate.lock().await;
        for handle in self.listeners(instance, rank, "paused", &[Status::Pending, Status::Active])? {
            handle.tell(Command::Pause).await;
        }
        Ok(())
    }

    pub(super) async fn resume(&self, instance: &InstanceId, rank: Option<DpRank>) -> Result<(), Error> {
        let _gate = self.gate.lock().await;
        for handle in self.listeners(instance, rank, "resumed", &[Status::Paused, Status::Failed])? {
            handle.tell(Command::Resume).await;
        }
        Ok(())
    }

    async fn register_gated(&self, spec: WorkerSpec, source: Source, replace: bool) -> Result<Registered, Error> {
        if self.state.read().closing {
            return Err(Error::ShuttingDown);
        }
        let known = self.state.read().worker(&spec.key, &spec.owner).cloned();
        let Some(known) = known else {
            self.check_block_size(&spec)?;
            let registered_ms = self.now_ms();
            let (unconfirmed, down, lives) = (false, false, 0);
            self.add(Worker { spec, source, registered_ms, unconfirmed, down, lives, superseded: None }).await;
            return Ok(Registered::Added);
        };
        let difference = difference(&known.spec, &spec);
        let supersedes = source == Source::Kubernetes && known.source != Source::Kubernetes;
        if difference == Difference::None && !supersedes && !known.down {
            if source == Source::Kubernetes {
                self.confirm(&known);
            }
            return Ok(Registered::Unchanged);
        }
        refuse_foreign(&known, source)?;
        let superseded = if supersedes { Some(Box::new(known.clone())) } else { known.superseded.clone() };
        if !replace && !supersedes {
            if known.spec.block_size != spec.block_size {
                self.check_block_size(&spec)?;
            }
            let Owner { instance, rank } = spec.owner;
            return Err(Error::AlreadyRegistered { instance, rank });
        }
        let (registered_ms, lives) = (self.now_ms(), known.lives);
        let worker = Worker { spec, source, registered_ms, unconfirmed: false, down: false, lives, superseded };
        self.replace(known, worker, difference).await
    }

    async fn replace(&self, known: Worker, mut worker: Worker, difference: Difference) -> Result<Registered, Error> {
        let (key, owner) = (known.spec.key.clone(), known.spec.owner.clone());
        let lives = match difference {
            Difference::Whole => None,
            Difference::Life => self.new_life(&known).await,
            Difference::None | Difference::Small => Some(self.lives(&known)),
        };
        if let Some(lives) = lives {
            worker.lives = lives;
        } else {
            worker.lives = 0;
            let alone = self.state.read().indexes.get(&key).is_some_and(|entry| {
                entry.instances.len() == 1 && entry.instances.values().all(|instance| instance.ranks.len() == 1)
            });
            if !alone {
                self.check_block_size(&worker.spec)?;
            }
            self.remove(&key, std::slice::from_ref(&owner)).await;
            self.add(worker).await;
            return Ok(Registered::Replaced);
        }
        let endpoint = worker.spec.replay_endpoint.clone();
        let moved = endpoint != known.spec.replay_endpoint;
        let handle = {
            let mut state = self.state.write();
            let handle = state.stream(&worker.spec).and_then(StreamEntry::handle);
            if let Some(place) = state.worker_mut(&key, &owner) {
                *place = worker.clone();
            }
            handle
        };
        self.show_reasons(&worker);
        if let (true, Some(handle)) = (known.down, &handle) {
            handle.tell(Command::Resume).await;
        }
        if let (true, Some(handle)) = (moved, handle) {
            handle.tell(|done| Command::SetReplay(endpoint, done)).await;
        }
        Ok(Registered::Replaced)
    }

    /// Kubernetes says the same here as where the registration came from, or as before it could not be heard.
    ///
    /// While nobody hears what Kubernetes does, the list that says so may be older than the doubt: then it stays.
    fn confirm(&self, known: &Worker) {
        if self.shared.unwatched.load(Ordering::Acquire) {
            return;
        }
        let doubted = || {
            let index = self.index_of(known)?;
            let index = index.read();
            Some(index.trust(index.owner_id(&known.spec.owner)?).has(Reason::Unconfirmed))
        };
        if !known.unconfirmed && !doubted().unwrap_or(false) {
            return;
        }
        if let Some(worker) = self.state.write().worker_mut(&known.spec.key, &known.spec.owner) {
            worker.unconfirmed = false;
        }
        self.show_reasons(&Worker { unconfirmed: false, ..known.clone() });
    }

    fn show_reasons(&self, worker: &Worker) {
        if let Some(index) = self.index_of(worker) {
            let mut index = index.write();
            if let Some(id) = index.owner_id(&worker.spec.owner) {
                index.set_reason(id, Reason::Unconfirmed, worker.unconfirmed, self.now_ms());
                index.set_reason(id, Reason::ContainerDown, worker.down, self.now_ms());
            }
        }
    }

    fn index_of(&self, worker: &Worker) -> Option<Arc<SharedIndex>> {
        self.state.read().indexes.get(&worker.spec.key).map(|entry| Arc::clone(&entry.to.index))
    }

    fn handle_of(&self, worker: &Worker) -> Option<Handle> {
        self.state.read().stream(&worker.spec).and_then(StreamEntry::handle)
    }

    fn lives(&self, worker: &Worker) -> u64 {
        self.handle_of(worker).map_or(0, |handle| handle.report().lives)
    }

    /// The container began anew. Clears what the previous life left, but nothing if the stream has noticed by itself. None
    /// if that cannot be said to the stream.
    async fn new_life(&self, known: &Worker) -> Option<u64> {
        if known.down {
            // Cleared then, and nothing was heard since.
            return Some(self.lives(known));
        }
        self.handle_of(known)?.begin_anew(known.lives).await
    }

    /// The container is not running: whatever it held is gone, and so is its connection.
    async fn take_down(&self, known: Worker, spec: WorkerSpec) -> Result<Registered, Error> {
        let difference = difference(&known.spec, &spec);
        if difference == Difference::Whole {
            // Elsewhere, and nothing there to hear yet.
            self.withdraw(known, &mut Converged::default()).await;
            return Ok(Registered::Replaced);
        }
        let goes_down = !known.down;
        let worker = Worker { spec, unconfirmed: false, down: true, ..known.clone() };
        let Some(handle) = self.handle_of(&known) else {
            return Ok(Registered::Unchanged);
        };
        if goes_down {
            // Paused until it runs: whoever else listens at this address meanwhile is not this worker.
            handle.tell(Command::Pause).await;
            let _lives = handle.begin_anew(u64::MAX).await;
        }
        let worker = Worker { lives: handle.report().lives, ..worker };
        if let Some(place) = self.state.write().worker_mut(&known.spec.key, &known.spec.owner) {
            *place = worker.clone();
        }
        self.show_reasons(&worker);
        Ok(if goes_down { Registered::Replaced } else { Registered::Unchanged })
    }

    /// Removes a worker of a source; what it had superseded comes back.
    async fn withdraw(&self, worker: Worker, outcome: &mut Converged) {
        let name = (worker.spec.key.clone(), worker.spec.owner.clone());
        let owner = &name.1;
        match worker.superseded.clone().map(|superseded| *superseded) {
            None => self.remove(&worker.spec.key, std::slice::from_ref(owner)).await,
            Some(superseded) => {
                let difference = difference(&worker.spec, &superseded.spec);
                if let Err(error) = self.replace(worker, superseded, difference).await {
                    tracing::warn!(%owner, %error, "superseded registration could not return");
                    outcome.failed.push((name.clone(), error));
                }
            }
        }
        outcome.removed.push(name);
    }

    /// Registered and recovered owners that an unregistration names, by index.
    fn matching(&self, what: &Unregister) -> Result<BTreeMap<IndexKey, Vec<Owner>>, Error> {
        let state = self.state.read();
        let mut found: BTreeMap<IndexKey, Vec<Owner>> = BTreeMap::new();
        let mut instance_seen = false;
        let in_scope =
            |key: &IndexKey| key.model == what.model && what.tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant);
        for worker in state.workers().filter(|worker| in_scope(&worker.spec.key)) {
            if worker.spec.owner.instance != what.instance {
                continue;
            }
            instance_seen = true;
            if what.rank.is_none_or(|rank| rank == worker.spec.owner.rank) {
                refuse_foreign(worker, Source::Manual)?;
                found.entry(worker.spec.key.clone()).or_default().push(worker.spec.owner.clone());
            }
        }
        for (key, entry) in state.indexes.iter().filter(|(key, _)| in_scope(key)) {
            for owner in entry.recovered.keys().filter(|owner| owner.instance == what.instance) {
                instance_seen = true;
                if what.rank.is_none_or(|rank| rank == owner.rank) {
                    found.entry(key.clone()).or_default().push(owner.clone());
                }
            }
        }
        match what.rank {
            _ if !instance_seen => Err(Error::UnknownInstance(what.instance.clone())),
            Some(rank) if found.is_empty() => Err(Error::UnknownRank { instance: what.instance.clone(), rank }),
            _ => Ok(found),
        }
    }

    /// Listeners of an instance in all indexes, if all are in one of the `allowed` states. One per stream.
    fn listeners(
        &self,
        instance: &InstanceId,
        rank: Option<DpRank>,
        verb: &'static str,
        allowed: &[Status],
    ) -> Result<Vec<Handle>, Error> {
        let state = self.state.read();
        if state.closing {
            return Err(Error::ShuttingDown);
        }
        let workers: Vec<_> = state.workers().filter(|worker| worker.spec.owner.instance == *instance).collect();
        if workers.is_empty() {
            return Err(Error::UnknownInstance(instance.clone()));
        }
        let mut handles: Vec<Handle> = Vec::new();
        let mut rank_seen = false;
        for worker in workers.into_iter().filter(|worker| rank.is_none_or(|rank| rank == worker.spec.owner.rank)) {
            rank_seen = true;
            let Some(stream) = state.stream(&worker.spec) else {
                continue;
            };
            let status = stream.report().status;
            if !allowed.contains(&status) {
                let Owner { instance, rank } = worker.spec.owner.clone();
                return Err(Error::ListenerState { instance, rank, verb, status: status.as_str() });
            }
            handles.extend(stream.handle().filter(|handle| !handles.iter().any(|other| other.is_same(handle))));
        }
        match rank {
            Some(rank) if !rank_seen => Err(Error::UnknownRank { instance: instance.clone(), rank }),
            _ => Ok(handles),
        }
    }
}

fn difference(known: &WorkerSpec, asked: &WorkerSpec) -> Difference {
    // To learn an incarnation, or to forget it, is no other life.
    let other_life =
        known.incarnation.is_some() && asked.incarnation.is_some() && known.incarnation != asked.incarnation;
    let small = WorkerSpec {
        replay_endpoint: known.replay_endpoint.clone(),
        additional_salt: known.additional_salt.clone(),
        incarnation: known.incarnation.clone(),
        ..asked.clone()
    };
    if other_life && *known == small {
        Difference::Life
    } else if other_life {
        Difference::Whole
    } else if known == asked {
        Difference::None
    } else if *known == small {
        Difference::Small
    } else {
        Difference::Whole
    }
}
