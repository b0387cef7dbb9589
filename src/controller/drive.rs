//! Brings the registry to what is desired, again after every change.
//!
//! Changes are gathered for a moment; then all that is known decides anew which workers should exist, and the registry is
//! told. It is told again after a while even if nothing changed: a state that came from elsewhere meanwhile, or a refusal
//! whose cause is gone, is put right by that. Invariant: nothing is decided before both kinds were listed completely.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::controller::desired::{Described, Desired, Fault, LastGood, Observed, Probe, Reason, desired};
use crate::controller::discovery::Discovery;
use crate::controller::facts::{ObjectFacts, PodFacts};
use crate::controller::seen::{Audience, Look, Seen};
use crate::controller::status::{self, StatusParts};
use crate::controller::store::Scope;
use crate::controller::watch::Watch;
use crate::controller::{ControllerConfig, Parts};
use crate::ids::{IndexKey, Owner, Source};
use crate::metrics::ControllerMetrics;
use crate::registry::{Converged, Registry};

/// Changes are gathered for at most so many times [`Times::settle`](crate::controller::Times::settle).
const SETTLES_MAX: u32 = 10;

/// What was found last: what a status says comes from here.
#[derive(Debug, Clone, Default)]
pub(super) struct Findings {
    /// What was looked at.
    pub(super) observed: Arc<Observed>,
    /// What follows from it.
    pub(super) desired: Arc<Desired>,
    /// Workers that the registry refuses, and why.
    pub(super) failed: Arc<BTreeMap<(IndexKey, Owner), String>>,
}

/// The loop.
pub(super) struct Drive {
    parts: Parts,
}

impl Drive {
    /// A loop that has not begun.
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Ends only by being dropped; everything that it has begun ends with it.
    pub(super) async fn run(self) {
        let Parts { client, config, registry, replica, readiness, metrics, view } = self.parts;
        let scopes = scopes(&config.namespaces);
        let audience = Audience { registry: Arc::clone(&registry), readiness, metrics: Arc::clone(&metrics), view };
        let seen = Arc::new(Seen::new(&scopes, audience));
        let mut watches = JoinSet::new();
        for scope in scopes {
            let watch = || Watch {
                client: client.clone(),
                scope: scope.clone(),
                times: config.times,
                seen: Arc::clone(&seen),
                metrics: Arc::clone(&metrics),
            };
            watches.spawn(watch().follow::<PodFacts>());
            watches.spawn(watch().follow::<ObjectFacts>());
        }
        let (wanted, probes) = channel::channel(BTreeSet::new());
        let (answers, described) = channel::channel(Arc::<Described>::default());
        let (findings, found) = channel::channel(Findings::default());
        let retry = config.times.discovery_retry;
        let discovery = Discovery { wanted: probes, answers, retry, metrics: Arc::clone(&metrics) };
        let status = StatusParts {
            client,
            config: config.clone(),
            registry: Arc::clone(&registry),
            replica,
            metrics: Arc::clone(&metrics),
            findings: found,
        };
        let follower = Follower::new(Work { config, registry, metrics, seen, described, wanted, findings });
        tokio::join!(awaited(watches), discovery.run(), status::run(status), follower.run());
    }
}

/// One scope per namespace to watch, or one for all of them.
fn scopes(namespaces: &[String]) -> Vec<Scope> {
    let named: BTreeSet<&String> = namespaces.iter().collect();
    if named.is_empty() { vec![None] } else { named.into_iter().cloned().map(Some).collect() }
}

/// Watches never end; a fault in one of them is a fault of the whole.
async fn awaited(mut watches: JoinSet<()>) {
    while let Some(ended) = watches.join_next().await {
        match ended {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => {}
        }
    }
}

/// What the following works with.
struct Work {
    config: ControllerConfig,
    registry: Arc<Registry>,
    metrics: Arc<ControllerMetrics>,
    seen: Arc<Seen>,
    described: channel::Receiver<Arc<Described>>,
    wanted: channel::Sender<BTreeSet<Probe>>,
    findings: channel::Sender<Findings>,
}

/// Follows what is seen.
struct Follower {
    work: Work,
    last_good: LastGood,
    /// What the registry was told last.
    told: Option<Arc<Desired>>,
    failed: Arc<BTreeMap<(IndexKey, Owner), String>>,
    /// The interruption after which workers that reconnect are believed; none: they are doubted.
    believed: Option<u64>,
    /// When the registry is told again although nothing has changed.
    due: Instant,
}

impl Follower {
    fn new(work: Work) -> Self {
        let due = Instant::now();
        Self { work, last_good: LastGood::new(), told: None, failed: Arc::default(), believed: None, due }
    }

    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.work.seen.changed() => self.settle().await,
                // The sender lives as long as this.
                Ok(()) = self.work.described.changed() => {}
                () = sleep_until(self.due) => {}
            }
            self.pass().await;
        }
    }

    /// Waits until nothing has changed for a moment, but not for ever.
    async fn settle(&self) {
        let settle = self.work.config.times.settle;
        let latest = Instant::now() + settle * SETTLES_MAX;
        while Instant::now() < latest {
            tokio::select! {
                biased;
                () = self.work.seen.changed() => {}
                () = sleep(settle) => return,
                () = sleep_until(latest) => return,
            }
        }
    }

    /// Decides anew from all that is known, and tells the registry.
    async fn pass(&mut self) {
        let due = Instant::now() >= self.due;
        if due {
            self.due = Instant::now() + self.work.config.times.resync;
        }
        let Some(Look { observed, heard }) = self.work.seen.look() else {
            return;
        };
        let described = Arc::clone(&self.work.described.borrow_and_update());
        let desired = Arc::new(desired(&observed, &described, &self.last_good, &self.work.config));
        self.last_good.clone_from(&desired.last_good);
        self.show(&desired);
        let same = self.told.as_ref().is_some_and(|told| told.workers == desired.workers);
        if !same || due {
            self.tell(&desired).await;
        }
        self.work.seen.told();
        self.work.findings.send_replace(Findings {
            observed: Arc::new(observed),
            desired: Arc::clone(&desired),
            failed: Arc::clone(&self.failed),
        });
        self.believe(heard, &desired).await;
    }

    /// Once what the registry has been told comes from lists that nothing has interrupted, workers that reconnect are
    /// believed, and those are confirmed that reconnected while they were not.
    async fn believe(&mut self, heard: Option<u64>, desired: &Arc<Desired>) {
        if heard == self.believed {
            return;
        }
        self.believed = heard.filter(|heard| self.work.seen.believe(*heard));
        if self.believed.is_some() {
            self.tell(desired).await;
        }
    }

    async fn tell(&mut self, desired: &Arc<Desired>) {
        let Work { registry, metrics, .. } = &self.work;
        let before = match &self.told {
            Some(told) => told.workers.len(),
            None => registered(registry),
        };
        let outcome = registry.converge(Source::Kubernetes, desired.workers.clone()).await;
        report(&outcome, before, metrics);
        self.told = Some(Arc::clone(desired));
        let failed: BTreeMap<_, _> =
            outcome.failed.into_iter().map(|(name, error)| (name, error.to_string())).collect();
        for ((key, owner), why) in &failed {
            if self.failed.get(&(key.clone(), owner.clone())) != Some(why) {
                metrics.changes.with_label_values(&["failed"]).inc();
                warn!(model = %key.model, tenant = %key.tenant, worker = %owner.instance, rank = owner.rank.0, why, "worker refused");
            }
        }
        if failed != *self.failed {
            self.failed = Arc::new(failed);
        }
    }

    fn show(&self, desired: &Desired) {
        let Work { metrics, wanted, .. } = &self.work;
        metrics.workers.set(i64::try_from(desired.workers.len()).unwrap_or(i64::MAX));
        let mut faults: BTreeMap<Reason, i64> = BTreeMap::new();
        for fault in faults_of(desired) {
            *faults.entry(fault.reason).or_default() += 1;
        }
        metrics.faults.reset();
        for (reason, count) in faults {
            metrics.faults.with_label_values(&[reason.as_str()]).set(count);
        }
        let probes: BTreeSet<Probe> = desired.probes.iter().cloned().collect();
        wanted.send_if_modified(|wanted| {
            let differs = *wanted != probes;
            *wanted = probes;
            differs
        });
    }
}

fn faults_of(desired: &Desired) -> impl Iterator<Item = &Fault> {
    let objects = desired.objects.values();
    let of_objects = objects.flat_map(|found| found.refused.iter().chain(found.faults.iter().map(|(_, fault)| fault)));
    of_objects.chain(desired.pods.values().map(|found| &found.fault))
}

/// Workers of Kubernetes in the registry, recovered ones too.
fn registered(registry: &Registry) -> usize {
    let workers = registry.workers(None, None);
    let ranks = workers.iter().flat_map(|worker| worker.ranks.values());
    ranks.filter(|rank| rank.source == Source::Kubernetes).count()
}

/// Says what has changed, once.
fn report(outcome: &Converged, before: usize, metrics: &ControllerMetrics) {
    let Converged { added, removed, replaced, failed: _ } = outcome;
    for (change, names) in [("added", added), ("removed", removed), ("replaced", replaced)] {
        metrics.changes.with_label_values(&[change]).inc_by(names.len() as u64);
        for (key, owner) in names {
            info!(model = %key.model, tenant = %key.tenant, worker = %owner.instance, rank = owner.rank.0, change, "worker changed by kubernetes");
        }
    }
    if removed.len() > 1 && removed.len() * 2 > before {
        warn!(removed = removed.len(), before, "over half of the workers went at once");
    }
}
