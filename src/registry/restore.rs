//! Registrations that leave and enter: those of another replica are taken over where ours say nothing else.

use crate::ids::{BlockSize, DpRank, Owner, Source};
use crate::image::{Registration, Tombstone};
use crate::registry::core::Core;
use crate::registry::state::Worker;
use crate::registry::{Endpoint, Error, Restored, WorkerSpec};

impl Core {
    pub(super) fn registrations(&self) -> Vec<Registration> {
        self.state.read().workers().map(registration).collect()
    }

    pub(super) fn tombstones(&self) -> Vec<Tombstone> {
        let mut tombstones = self.tombstones.lock();
        tombstones.forget_old(self.now_ms());
        tombstones.list()
    }

    pub(super) async fn restore(&self, registrations: Vec<Registration>, tombstones: Vec<Tombstone>) -> Restored {
        let _gate = self.gate.lock().await;
        self.bury(tombstones);
        let mut outcome = Restored::default();
        for registration in registrations {
            let key = registration.key.clone();
            let owner = Owner { instance: registration.instance.clone(), rank: DpRank(registration.dp_rank) };
            let known = {
                let mut state = self.state.write();
                if state.recovering {
                    state.restored.insert((key.clone(), owner.clone()), registration.incarnation.clone());
                }
                state.worker(&key, &owner).is_some()
            };
            if known {
                outcome.kept += 1;
                continue;
            }
            match self.take_over(registration, &owner).await {
                Ok(()) => outcome.added += 1,
                Err(error) => {
                    tracing::warn!(%owner, %error, "registration of another replica is not taken over");
                    outcome.refused.push((key, owner, error));
                }
            }
        }
        outcome
    }

    /// Keeps the unregistrations of another replica, except where an owner was registered here by hand since.
    fn bury(&self, tombstones: Vec<Tombstone>) {
        let state = self.state.read();
        let mut kept = self.tombstones.lock();
        for Tombstone { key, instance, dp_rank, at_ms } in tombstones {
            let owner = Owner { instance, rank: DpRank(dp_rank) };
            let stands = state.worker(&key, &owner).is_some_and(|worker| worker.registered_ms > at_ms);
            if !stands {
                kept.keep(&key, &owner, at_ms);
            }
        }
        kept.forget_old(self.now_ms());
    }

    async fn take_over(&self, registration: Registration, owner: &Owner) -> Result<(), Error> {
        if self.state.read().closing {
            return Err(Error::ShuttingDown);
        }
        let withdrawn = self.tombstones.lock().at(&registration.key, owner);
        if withdrawn.is_some_and(|at_ms| at_ms >= registration.registered_ms) {
            return Err(Error::Withdrawn { instance: owner.instance.clone(), rank: owner.rank });
        }
        let worker = worker(registration, owner)?;
        self.check_block_size(&worker.spec)?;
        self.add(worker).await;
        Ok(())
    }
}

fn registration(worker: &Worker) -> Registration {
    let spec = worker.spec.clone();
    Registration {
        key: spec.key,
        block_size: spec.block_size.tokens(),
        instance: spec.owner.instance,
        dp_rank: spec.owner.rank.0,
        endpoint: spec.endpoint.as_str().to_owned(),
        replay_endpoint: spec.replay_endpoint.map(|endpoint| endpoint.as_str().to_owned()),
        topic: spec.topic,
        additional_salt: spec.additional_salt,
        default_lora: spec.default_lora,
        spec: spec.owner_spec,
        source: worker.source,
        registered_ms: worker.registered_ms,
        incarnation: spec.incarnation,
        superseded: worker.superseded.as_deref().map(|superseded| Box::new(registration(superseded))),
    }
}

/// What a peer says is checked like what a client says.
fn worker(from: Registration, owner: &Owner) -> Result<Worker, Error> {
    let invalid = |what| Error::InvalidRegistration { instance: owner.instance.clone(), rank: owner.rank, what };
    let endpoint = Endpoint::parse(&from.endpoint).map_err(|_| invalid("endpoint"))?;
    let replay_endpoint = from.replay_endpoint.as_deref().map(Endpoint::parse).transpose();
    let superseded = match from.superseded {
        // One level: what supersedes is Kubernetes, and what it superseded is not.
        Some(superseded) => Some(Box::new(worker(Registration { superseded: None, ..*superseded }, owner)?)),
        None => None,
    };
    Ok(Worker {
        spec: WorkerSpec {
            key: from.key,
            owner: owner.clone(),
            block_size: BlockSize::new(from.block_size).ok_or_else(|| invalid("block_size"))?,
            endpoint,
            replay_endpoint: replay_endpoint.map_err(|_| invalid("replay_endpoint"))?,
            topic: from.topic,
            additional_salt: from.additional_salt,
            default_lora: from.default_lora,
            owner_spec: from.spec,
            incarnation: from.incarnation,
        },
        source: from.source,
        registered_ms: from.registered_ms,
        unconfirmed: from.source == Source::Kubernetes,
        down: false,
        lives: 0,
        superseded,
    })
}
