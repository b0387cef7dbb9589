//! Content that enters: a recovered state takes the place of what the indexes hold, and the streams go on from it.
//! Owners of that state whom nobody has registered stay visible, and go when they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{DpRank, IndexKey, Owner};
use crate::image::Position;
use crate::index::PrefixIndex;
use crate::ingest::{Adoption, Command, Destination, Handle};
use crate::registry::core::{Core, drop_blocks};
use crate::registry::state::{IndexEntry, State, StreamKey};
use crate::registry::{Adopted, Recovered, RecoveredIndex, RecoveredStream};
use crate::trust::Reason;

/// What a stream is told once the content of its owners was replaced.
struct Plan {
    handle: Handle,
    adoption: Adoption,
    ranks: Vec<DpRank>,
}

impl Core {
    pub(super) async fn adopt(&self, recovered: Recovered) -> Adopted {
        let _gate = self.gate.lock().await;
        let mut adopted = Adopted::default();
        if !self.state.read().recovering {
            return adopted;
        }
        let mut plans = Vec::new();
        for (key, index) in recovered.indexes {
            plans.extend(self.adopt_index(&key, index, &mut adopted));
        }
        let handles: Vec<Handle> = {
            let mut state = self.state.write();
            state.recovering = false;
            state.restored.clear();
            let streams = state.indexes.values().flat_map(IndexEntry::streams);
            streams.map(|(_, running)| running.handle.clone()).collect()
        };
        let told = |handle: &Handle| plans.iter().any(|plan| plan.handle.is_same(handle));
        let rest: Vec<_> = handles.into_iter().filter(|handle| !told(handle)).collect();
        for Plan { handle, adoption, ranks } in plans {
            handle.tell(|done| Command::Adopt { adoption, ranks, done }).await;
        }
        for handle in rest {
            handle.tell(|done| Command::Adopt { adoption: Adoption::Keep, ranks: Vec::new(), done }).await;
        }
        tracing::info!(
            indexes = adopted.indexes,
            owners = adopted.owners,
            streams = adopted.streams,
            refused = adopted.refused,
            "recovered state is adopted"
        );
        adopted
    }

    /// Puts one recovered index in the place of ours. Returns what its streams are to be told.
    fn adopt_index(&self, key: &IndexKey, recovered: RecoveredIndex, adopted: &mut Adopted) -> Vec<Plan> {
        let RecoveredIndex { mut index, streams } = recovered;
        let block_size = index.block_size();
        let mut state = self.state.write();
        if let Some(ours) = state.indexes.get(key).map(|entry| entry.to.index.block_size())
            && ours != block_size
        {
            tracing::warn!(%key.model, %key.tenant, %ours, recovered = %block_size, "recovered index has another block size");
            adopted.refused += 1;
            return Vec::new();
        }
        self.leave_out(&state, key, (&mut index, &streams));
        let owners = index.owners();
        if owners.is_empty() {
            return Vec::new();
        }
        let entry = self.entry(&mut state, key, block_size);
        let now_ms = self.now_ms();
        let plans = plans(entry, &streams, &mut index);
        for worker in entry.workers() {
            let id = index.register(&worker.spec.owner, worker.spec.owner_spec, now_ms);
            index.set_reason(id, Reason::NotConnected, true, now_ms);
            index.set_reason(id, Reason::Unconfirmed, worker.unconfirmed, now_ms);
            index.set_reason(id, Reason::ContainerDown, worker.down, now_ms);
        }
        let fed: BTreeSet<Owner> = plans
            .iter()
            .flat_map(|(name, plan)| {
                plan.ranks.iter().map(|rank| Owner { instance: name.instance.clone(), rank: *rank })
            })
            .collect();
        for owner in
            owners.iter().filter(|owner| entry.worker(owner).is_none() && !fed.contains(owner)).collect::<Vec<_>>()
        {
            let from = streams.iter().find(|stream| !stream.name.endpoint.is_empty() && stream.owners.contains(owner));
            let from = from.map(|stream| (stream.name.clone(), Position { connected: false, ..stream.position }));
            if let Some(id) = index.owner_id(owner) {
                index.set_reason(id, Reason::NotConnected, true, now_ms);
                index.set_reason(id, Reason::Unconfirmed, false, now_ms);
            }
            entry.recovered.insert(owner.clone(), from);
        }
        let placed = plans.iter().filter(|(_, plan)| matches!(plan.adoption, Adoption::Snapshot(_))).count();
        adopted.indexes += 1;
        adopted.owners += owners.len();
        adopted.streams += placed;
        let old = swap(entry, index, &plans);
        drop(state);
        // Large: not under a lock.
        drop(old);
        plans.into_iter().map(|(_, plan)| plan).collect()
    }

    /// Drops what the recovered state says of owners that are others here.
    fn leave_out(&self, state: &State, key: &IndexKey, (index, streams): (&mut PrefixIndex, &[RecoveredStream])) {
        let fed_by: BTreeMap<&Owner, &RecoveredStream> = streams
            .iter()
            .filter(|stream| !stream.name.endpoint.is_empty())
            .flat_map(|stream| stream.owners.iter().map(move |owner| (owner, stream)))
            .collect();
        let entry = state.indexes.get(key);
        for owner in index.owners() {
            let worker = entry.and_then(|entry| entry.worker(&owner));
            let stream = fed_by.get(&owner);
            let goes = match worker {
                Some(worker) => {
                    let ours = StreamKey::of(&worker.spec).name(&owner.instance);
                    let theirs = state.restored.get(&(key.clone(), owner.clone())).and_then(Option::as_ref);
                    let incarnation = worker.spec.incarnation.as_ref();
                    worker.down
                        || stream.is_some_and(|stream| stream.name != ours)
                        || incarnation.zip(theirs).is_some_and(|(ours, theirs)| ours != theirs)
                }
                None => {
                    // A rank that batches named goes with the stream that named it.
                    let moved = |stream: &&RecoveredStream| {
                        entry.is_some_and(|entry| {
                            entry.instances.contains_key(&owner.instance) && entry.stream(&stream.name).is_none()
                        })
                    };
                    self.tombstones.lock().at(key, &owner).is_some() || stream.is_some_and(moved)
                }
            };
            if goes {
                tracing::info!(%owner, "recovered owner is another one here: its blocks are left out");
                index.unregister(&owner);
            }
        }
    }

    pub(super) async fn drop_recovered(&self) -> Vec<(IndexKey, Owner)> {
        let _gate = self.gate.lock().await;
        let owners: Vec<(IndexKey, Vec<Owner>)> = {
            let state = self.state.read();
            let of = |(key, entry): (&IndexKey, &IndexEntry)| (key.clone(), entry.recovered.keys().cloned().collect());
            state.indexes.iter().map(of).collect()
        };
        let mut gone = Vec::new();
        for (key, owners) in owners {
            self.remove_recovered(&key, &owners);
            gone.extend(owners.into_iter().map(|owner| (key.clone(), owner)));
        }
        gone
    }

    /// Removes those of these owners that nobody registered.
    pub(super) fn remove_recovered(&self, key: &IndexKey, owners: &[Owner]) {
        let (to, gone): (Destination, Vec<Owner>) = {
            let mut state = self.state.write();
            let Some(entry) = state.indexes.get_mut(key) else {
                return;
            };
            let gone = owners.iter().filter(|owner| entry.recovered.remove(owner).is_some()).cloned().collect();
            let to = entry.to.clone();
            if entry.is_unused() {
                state.indexes.remove(key);
                return;
            }
            (to, gone)
        };
        drop_blocks(&to, &gone);
    }
}

/// How each of our streams goes on, by name. Drops from the recovered index what cannot be placed in a stream that can.
fn plans(
    entry: &IndexEntry,
    streams: &[RecoveredStream],
    index: &mut PrefixIndex,
) -> Vec<(crate::image::StreamName, Plan)> {
    let mut plans = Vec::new();
    for (name, running) in entry.streams() {
        let from = streams.iter().find(|stream| stream.name == name);
        let holds = |index: &PrefixIndex, owner: &Owner| {
            index.owner_id(owner).is_some_and(|id| {
                let report = index.report(id);
                report.blocks.iter().sum::<u64>() + report.pending_blocks > 0
            })
        };
        let unplaced = |index: &PrefixIndex, owner: &Owner| {
            index.owner_id(owner).is_some_and(|id| index.trust(id).has(Reason::NoWatermark))
        };
        let registered: Vec<Owner> = entry.workers_of(&name).map(|worker| worker.spec.owner.clone()).collect();
        let handle = running.handle.clone();
        let taken = |index: &PrefixIndex| -> Vec<Owner> {
            let owners = from.into_iter().flat_map(|stream| stream.owners.iter());
            owners.filter(|owner| index.owner_id(owner).is_some()).cloned().collect()
        };
        let taken = taken(index);
        let ranks = |owners: &[Owner]| owners.iter().map(|owner| owner.rank).collect();
        let plan = match from {
            Some(stream) if !taken.is_empty() => {
                for owner in registered.iter().filter(|owner| !taken.contains(owner)) {
                    index.unregister(owner);
                }
                let nowhere = stream.position.mark.is_none() && taken.iter().any(|owner| unplaced(index, owner));
                let adoption = if nowhere { Adoption::Unplaced } else { Adoption::Snapshot(stream.position) };
                Plan { handle, adoption, ranks: ranks(&taken) }
            }
            _ => {
                let held: Vec<Owner> = registered.into_iter().filter(|owner| holds(index, owner)).collect();
                let adoption = if held.is_empty() { Adoption::Keep } else { Adoption::Unplaced };
                Plan { handle, adoption, ranks: ranks(&held) }
            }
        };
        plans.push((name, plan));
    }
    plans
}

/// Swaps the content under the write lock, so that whoever holds a lock sees content and positions of one moment.
fn swap(entry: &IndexEntry, mut index: PrefixIndex, plans: &[(crate::image::StreamName, Plan)]) -> PrefixIndex {
    let shared = Arc::clone(&entry.to.index);
    let mut guard = shared.write();
    index.follow(&guard);
    let old = std::mem::replace(&mut *guard, index);
    entry.to.sources.clear();
    for (name, plan) in plans {
        let registered = entry.workers_of(name).map(|worker| worker.spec.owner.rank);
        let ranks: BTreeSet<DpRank> = registered.chain(plan.ranks.iter().copied()).collect();
        let id = |rank: DpRank| Some((rank, guard.owner_id(&Owner { instance: name.instance.clone(), rank })?));
        let owners = ranks.into_iter().filter_map(id).collect();
        let position = match plan.adoption {
            Adoption::Snapshot(position) => position,
            Adoption::Unplaced | Adoption::Keep => Position::default(),
        };
        plan.handle.replaced(position, owners);
    }
    old
}
