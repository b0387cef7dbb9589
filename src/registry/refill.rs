//! Taking the owners of one running stream from a replica that knows them better.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::ids::{IndexKey, Owner};
use crate::image::{Position, StreamImage, StreamName};
use crate::ingest::{Adoption, Command, Destination, Handle};
use crate::registry::core::{Core, drop_blocks};
use crate::registry::state::Worker;
use crate::trust::{Reason, State};

/// The last batch of an image may be on its way to us for so long.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Rhythm of looking whether it has come.
const POLL: Duration = Duration::from_millis(25);

/// A stream that holds what it hears until its owners are replaced. Must be given to [`super::Registry::end_refill`];
/// one that is dropped lets the stream go on as it was.
#[must_use]
pub struct Refill {
    /// Where the stream stood when it began to hold.
    pub position: Position,
    key: IndexKey,
    name: StreamName,
    /// None once the stream was told how to go on.
    handle: Option<Handle>,
}

impl Drop for Refill {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.let_go();
        }
    }
}

/// True once this stream has heard the last batch of the image itself. A peer whose connection is dead without knowing it
/// still shows the former life of a publisher that has begun anew here; its numbers may even be the larger ones.
async fn is_of_this_life(handle: &Handle, image: &StreamImage) -> bool {
    let Some(mark) = image.position.mark else {
        return handle.report().last_seq.is_none();
    };
    let deadline = Instant::now() + SHOWN_WITHIN;
    loop {
        if handle.shows(mark).await {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL).await;
    }
}

impl Core {
    pub(super) async fn begin_refill(&self, key: &IndexKey, name: &StreamName) -> Option<Refill> {
        let _gate = self.gate.lock().await;
        let (to, handle) = self.stream_of(key, name)?;
        if handle.report().holding {
            return None;
        }
        handle.tell(Command::BeginJoin).await;
        let _index = to.index.read();
        let position = handle.applied().position;
        Some(Refill { position, key: key.clone(), name: name.clone(), handle: Some(handle) })
    }

    pub(super) async fn end_refill(&self, mut refill: Refill, image: Option<StreamImage>) -> bool {
        let image = match (image, refill.handle.clone()) {
            (Some(image), Some(handle)) if is_of_this_life(&handle, &image).await => Some(image),
            _ => None,
        };
        let _gate = self.gate.lock().await;
        let Some(handle) = refill.handle.take() else {
            return false;
        };
        let stream = self.stream_of(&refill.key, &refill.name).filter(|(_, running)| running.is_same(&handle));
        let taken = stream.zip(image).and_then(|((to, _), image)| {
            let image = Some(image).filter(|image| self.fits(&refill, &handle, image))?;
            self.take_image(&refill.key, &to, &handle, &image).then_some(image)
        });
        let (adoption, ranks) = match &taken {
            Some(image) => {
                let ranks = image.image.owners.iter().map(|owner| owner.owner.rank).collect();
                (Adoption::Snapshot(image.position), ranks)
            }
            None => (Adoption::Keep, Vec::new()),
        };
        handle.tell(|done| Command::Adopt { adoption, ranks, done }).await;
        taken.is_some()
    }

    fn stream_of(&self, key: &IndexKey, name: &StreamName) -> Option<(Destination, Handle)> {
        let state = self.state.read();
        let entry = state.indexes.get(key)?;
        Some((entry.to.clone(), entry.stream(name)?.handle.clone()))
    }

    fn registered(&self, refill: (&IndexKey, &StreamName)) -> Vec<Worker> {
        let state = self.state.read();
        let entry = state.indexes.get(refill.0);
        entry.map(|entry| entry.workers_of(refill.1).cloned().collect()).unwrap_or_default()
    }

    /// True if the image is of this stream, not older than what is here, exact, and has every registered rank.
    fn fits(&self, refill: &Refill, handle: &Handle, image: &StreamImage) -> bool {
        let ours = handle.applied().position.mark.map(|mark| mark.seq);
        let theirs = image.position.mark.map(|mark| mark.seq);
        let owners = &image.image.owners;
        let exact = owners.iter().all(|owner| owner.trust.state() == State::Exact);
        let has = |owner: &Owner| owners.iter().any(|image| image.owner == *owner);
        let all = self.registered((&refill.key, &refill.name)).iter().all(|worker| has(&worker.spec.owner));
        let own_instance = owners.iter().all(|image| image.owner.instance == refill.name.instance);
        image.name == refill.name && theirs >= ours && exact && all && own_instance
    }

    fn take_image(&self, key: &IndexKey, to: &Destination, handle: &Handle, image: &StreamImage) -> bool {
        let now_ms = self.now_ms();
        let workers = self.registered((key, &image.name));
        // A rank of the image that another stream is registered for here is that stream's.
        let foreign = {
            let state = self.state.read();
            image.image.owners.iter().any(|owner| {
                state.worker(key, &owner.owner).is_some()
                    && !workers.iter().any(|worker| worker.spec.owner == owner.owner)
            })
        };
        if foreign {
            return false;
        }
        let mut index = to.index.write();
        let before = handle.applied().owners;
        if let Err(error) = index.import(&image.image, now_ms) {
            tracing::warn!(instance = %image.name.instance, %error, "image of another replica is not taken");
            return false;
        }
        for worker in &workers {
            let id = index.register(&worker.spec.owner, worker.spec.owner_spec, now_ms);
            index.set_reason(id, Reason::Unconfirmed, worker.unconfirmed, now_ms);
            index.set_reason(id, Reason::ContainerDown, worker.down, now_ms);
            // What the image says is exact, whoever fed the owner here before.
            index.set_reason(id, Reason::TwoSources, false, now_ms);
            to.sources.forget(id);
        }
        let ranks = image.image.owners.iter().map(|owner| owner.owner.rank);
        let of_rank = |rank| Owner { instance: image.name.instance.clone(), rank };
        let owners: Vec<_> = ranks.filter_map(|rank| Some((rank, index.owner_id(&of_rank(rank))?))).collect();
        let gone: Vec<Owner> = before
            .iter()
            .filter(|(rank, _)| !owners.iter().any(|(other, _)| other == rank))
            .map(|(rank, _)| of_rank(*rank))
            .collect();
        handle.replaced(image.position, owners);
        drop(index);
        drop_blocks(to, &gone);
        true
    }
}
