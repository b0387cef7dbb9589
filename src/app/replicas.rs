//! A start that looks for state elsewhere first, and what keeps replicas equal afterwards.

use std::sync::Arc;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::FusedFuture as _;
use tracing::info;

use super::kubernetes::FirstView;
use super::start;
use crate::config::Replicas;
use crate::readiness::Hold;
use crate::recovery::{self, DiskConfig, Forwarder, Outcome, PeerList, RecoveryConfig, Replica, Times};
use crate::registry::Registry;
use crate::wire::digest::Phase;

/// This replica among the others.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) replica: Replica,
    pub(super) registry: Arc<Registry>,
    pub(super) config: Arc<RecoveryConfig>,
}

/// Reasons that a start holds until state was looked for.
pub(super) struct RecoveryHolds {
    /// None: there is nowhere to look.
    pub(super) recovery: Option<Hold>,
    /// None: there are no workers to wait for.
    pub(super) cold_start: Option<Hold>,
}

/// Who this replica is, what tells the others of registrations if that is wanted, and where state may be.
pub(super) fn prepare(
    replicas: &Replicas,
    name: Option<String>,
) -> anyhow::Result<(Replica, Option<Forwarder>, RecoveryConfig)> {
    let Replicas { peers, peer_service, forward_registrations, compare_interval, recovered_grace, disk } = replicas;
    if let Some(disk) = disk {
        // A directory that cannot be had is a mistake to be seen at the start, not at the first snapshot.
        std::fs::create_dir_all(&disk.dir)
            .with_context(|| format!("--snapshot-dir: failed to make {}", disk.dir.display()))?;
    }
    let replica = Replica::named(name.unwrap_or_default(), PeerList::new(peers.iter().cloned()), peer_service.clone());
    let forwarder = forward_registrations.then(|| Forwarder::new(replica.clone()));
    let config = RecoveryConfig {
        peer_service: peer_service.clone(),
        forward_registrations: *forward_registrations,
        disk: disk.as_ref().map(|disk| DiskConfig {
            dir: disk.dir.clone(),
            interval: disk.interval,
            age_max: disk.age_max,
        }),
        times: Times { compare: *compare_interval, grace: *recovered_grace, ..Times::default() },
    };
    Ok((replica, forwarder, config))
}

impl Place {
    /// Takes state from a peer or from disk, else waits for the first replays; then stays equal to the peers until it is
    /// dropped.
    pub(super) async fn live(self, holds: RecoveryHolds, first_view: Option<FirstView>) {
        let RecoveryHolds { recovery, cold_start } = holds;
        let listed = first_view.as_ref().map(FirstView::watcher);
        let mut listing = Box::pin(
            async {
                if let Some(view) = first_view {
                    view.hold_until_complete().await;
                }
            }
            .fuse(),
        );
        let recover = async {
            match recovery {
                Some(hold) => recovery::recover(&self.replica, &self.registry, &self.config, hold).await,
                None => Outcome::Empty,
            }
        };
        let outcome = {
            let mut recover = std::pin::pin!(recover);
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut recover => break outcome,
                    () = &mut listing => {}
                }
            }
        };
        // Without a peer's registrations nobody knows the workers before Kubernetes has told them.
        if !matches!(&outcome, Outcome::Recovered(from) if from.contains("://")) && !listing.is_terminated() {
            (&mut listing).await;
        }
        // With it goes its hold: what a peer registered is enough to serve.
        drop(listing);
        info!(?outcome, replica_id = self.replica.id(), "the search for state has ended");
        match outcome {
            // Its streams go on from where the source stood; what they still have to ask for shows in their trust.
            Outcome::Recovered(_) => drop(cold_start),
            Outcome::Empty | Outcome::Failed => start::hold_for_replays(&self.registry, cold_start).await,
        }
        // A gate that waits for workers does not matter to peers: what can be had is here.
        self.replica.set_phase(Phase::Ready);
        let listed = async {
            if let Some(mut view) = listed {
                // The controller lives as long as the process: an error only comes at its end.
                let _ended = view.wait_for(|view| view.complete).await;
            }
        };
        recovery::watch(&self.replica, &self.registry, &self.config, listed).await;
    }
}
