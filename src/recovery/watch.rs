//! What goes on while a replica serves: it compares itself with its peers, takes what it lacks and they have, keeps the
//! file up to date, and drops owners that nobody registered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::ids::{DpRank, Seq};
use crate::image::{StreamName, Tombstone};
use crate::recovery::client::{Client, Error};
use crate::recovery::compare::{self, StreamKey, Verdict};
use crate::recovery::start::connections;
use crate::recovery::{RecoveryConfig, Replica, disk, load};
use crate::registry::{Registry, Unregister};
use crate::wire::digest::{Digest, Phase};

/// First wait after a stream was not taken; doubles up to the longest.
const REFILL_MIN: Duration = Duration::from_secs(30);
const REFILL_MAX: Duration = Duration::from_secs(600);

/// Longest time in which a serving stream only holds what it hears: removals wait, too, while queries are answered.
const REFILL_TIME_MAX: Duration = Duration::from_secs(60);

/// Parts of the comparison's rhythm that are left to chance, so that replicas do not ask each other in step.
const JITTER: f64 = 0.1;

/// Longest time for a file at its interval: a disk that hangs must not stop the rest for ever.
const FILE_MAX: Duration = Duration::from_secs(300);

/// What a serving replica does beside serving.
pub(super) struct Watch<'a> {
    replica: &'a Replica,
    registry: &'a Arc<Registry>,
    config: &'a RecoveryConfig,
    client: Client,
    /// Streams that differed last time, by replica.
    differing: BTreeSet<(String, StreamKey)>,
    refills: HashMap<StreamKey, Backoff>,
}

/// A stream that was not taken waits.
struct Backoff {
    until: Instant,
    wait: Duration,
}

/// A peer from which a stream can be taken.
struct Offer {
    url: String,
    at: Seq,
}

impl<'a> Watch<'a> {
    pub(super) fn new(replica: &'a Replica, registry: &'a Arc<Registry>, config: &'a RecoveryConfig) -> Self {
        let client = Client::new(&config.times);
        Self { replica, registry, config, client, differing: BTreeSet::new(), refills: HashMap::new() }
    }

    /// Ends only by being dropped.
    pub(super) async fn run(mut self, listed: impl Future<Output = ()>) {
        let began = Instant::now();
        let mut listed = std::pin::pin!(listed.fuse());
        let mut grace = None;
        let mut file = self.config.disk.as_ref().map(|disk| began + disk.interval);
        let mut compare = self.next_comparison();
        loop {
            let next = [Some(compare), grace, file].into_iter().flatten().min().unwrap_or(compare);
            tokio::select! {
                biased;
                () = &mut listed => {
                    grace = Some(Instant::now() + self.config.times.grace);
                    continue;
                }
                () = sleep_until(next) => {}
            }
            let now = Instant::now();
            if grace.is_some_and(|at| at <= now) {
                grace = None;
                self.drop_recovered().await;
            }
            if compare <= now {
                self.compare().await;
                compare = self.next_comparison();
            }
            if let (Some(at), Some(disk)) = (file, &self.config.disk)
                && at <= now
            {
                disk::write(self.replica, self.registry, &disk.dir, FILE_MAX).await;
                file = Some(Instant::now() + disk.interval);
            }
        }
    }

    fn next_comparison(&self) -> Instant {
        let part = 1.0 - JITTER + 2.0 * JITTER * fastrand::f64();
        Instant::now() + self.config.times.compare.mul_f64(part)
    }

    async fn drop_recovered(&self) {
        for (key, owner) in self.registry.drop_recovered().await {
            info!(model = %key.model, tenant = %key.tenant, %owner, "a recovered owner that nobody registered is dropped");
        }
    }

    /// One comparison with every peer that serves.
    async fn compare(&mut self) {
        let peers = self.peers().await;
        let ours = self.replica.digest(self.registry);
        let mut compared = BTreeSet::new();
        let mut differing = BTreeSet::new();
        let mut offers: BTreeMap<StreamKey, Offer> = BTreeMap::new();
        for (url, theirs) in &peers {
            for (key, verdict) in compare::streams(&ours, theirs) {
                match verdict {
                    Verdict::NotComparable => continue,
                    Verdict::Equal(_) => {}
                    Verdict::Differ(at) => {
                        self.report(url, theirs, &key, at);
                        differing.insert((theirs.replica_id.clone(), key.clone()));
                    }
                }
                compared.insert(key);
            }
            for (key, at) in compare::refills(&ours, theirs) {
                if offers.get(&key).is_none_or(|offer| offer.at < at) {
                    offers.insert(key, Offer { url: url.clone(), at });
                }
            }
        }
        for (replica, key) in self.differing.difference(&differing) {
            let (model, tenant) = (&key.0.model, &key.0.tenant);
            info!(%model, %tenant, instance = %key.1.instance, replica, "a stream is no longer seen to differ");
        }
        let streams: BTreeSet<_> = differing.iter().map(|(_, key)| key).collect();
        let (streams, compared) = (streams.len() as u64, compared.len() as u64);
        self.differing = differing;
        let digests: Vec<Digest> = peers.into_iter().map(|(_, digest)| digest).collect();
        let changes = compare::registrations(&ours, &digests);
        self.replica.count(|counters| {
            counters.differing_streams = streams;
            counters.compared_streams = compared;
            counters.differing_registrations = changes.differing;
        });
        if self.config.forward_registrations {
            self.take_over(changes, &digests).await;
        }
        self.refill(offers).await;
    }

    fn report(&self, url: &str, theirs: &Digest, key: &StreamKey, at: Seq) {
        if self.differing.contains(&(theirs.replica_id.clone(), key.clone())) {
            return;
        }
        let (index, name) = key;
        warn!(
            model = %index.model, tenant = %index.tenant, instance = %name.instance, endpoint = name.endpoint,
            seq = at.0, peer = url, "a stream differs from a peer's: `kvindexer diff` names the blocks"
        );
    }

    /// Digests of all other replicas that serve, by address.
    async fn peers(&self) -> Vec<(String, Digest)> {
        self.replica.look_up_peers().await;
        let answers = self.client.digests(self.replica.all_urls(), self.config.times.silence, |_| false).await;
        let mut known = BTreeSet::from([self.replica.id().to_owned()]);
        let mut peers = Vec::new();
        for (url, answer) in answers {
            let Ok(digest) = answer else {
                continue;
            };
            self.replica.recognise(&url, &digest.replica_id);
            if digest.phase == Phase::Ready && known.insert(digest.replica_id.clone()) {
                peers.push((url, digest));
            }
        }
        peers
    }

    /// Registrations that this replica missed.
    async fn take_over(&self, changes: compare::Changes, others: &[Digest]) {
        for Tombstone { key, instance, dp_rank, at_ms: _ } in changes.unregister {
            let what = Unregister {
                model: key.model.clone(),
                tenant: Some(key.tenant.clone()),
                instance: instance.clone(),
                rank: Some(DpRank(dp_rank)),
            };
            match self.registry.unregister(what).await {
                Ok(_) => info!(model = %key.model, %instance, dp_rank, "unregistered, as at a peer"),
                Err(error) => info!(model = %key.model, %instance, dp_rank, %error, "not unregistered as at a peer"),
            }
        }
        if changes.register.is_empty() {
            return;
        }
        let tombstones = others.iter().flat_map(|digest| digest.tombstones.iter().cloned()).collect();
        let restored = self.registry.restore(changes.register, tombstones).await;
        info!(added = restored.added, refused = restored.refused.len(), "registrations of peers are taken over");
    }

    /// Takes streams, one after the other.
    async fn refill(&mut self, offers: BTreeMap<StreamKey, Offer>) {
        self.refills.retain(|key, backoff| offers.contains_key(key) || backoff.until > Instant::now());
        for (key, offer) in offers {
            if self.refills.get(&key).is_some_and(|backoff| backoff.until > Instant::now()) {
                continue;
            }
            let taken = self.take_stream(&key, &offer.url).await;
            self.replica.count(|counters| counters.refill(taken.is_ok()));
            let (index, name) = &key;
            match taken {
                Ok(()) => {
                    info!(model = %index.model, instance = %name.instance, peer = offer.url, "a stream is refilled");
                    self.refills.remove(&key);
                }
                Err(reason) => {
                    warn!(model = %index.model, instance = %name.instance, peer = offer.url, %reason, "a stream is not refilled");
                    let before = self.refills.get(&key).map(|backoff| backoff.wait);
                    let wait = before.map_or(REFILL_MIN, |wait| (wait * 2).min(REFILL_MAX));
                    self.refills.insert(key, Backoff { until: Instant::now() + wait, wait });
                }
            }
        }
    }

    async fn take_stream(&self, key: &StreamKey, url: &str) -> Result<(), NotTaken> {
        let (index, name) = key;
        let instance = name.instance.to_string();
        let parameters = [
            ("model_name", index.model.as_str()),
            ("tenant_id", index.tenant.as_str()),
            ("instance_id", instance.as_str()),
        ];
        let from = Client::url(url, "/snapshot", &parameters)?;
        let refill = self.registry.begin_refill(index, name).await.ok_or(NotTaken::NotHere)?;
        let connects = || connections(self.registry).get(key).copied();
        let before = connects();
        let wanted: (_, StreamName) = (index.clone(), name.clone());
        let replica = self.replica;
        let load = self.client.load(
            from,
            |bytes| replica.add_bytes(bytes),
            move |feed| load::stream(feed, &wanted.0, &wanted.1),
        );
        let loaded = timeout(REFILL_TIME_MAX, load).await;
        // Whatever came: the stream holds what it hears until this.
        let (image, failed) = match loaded {
            // What was said between the state and another connection was never here.
            Ok(Ok(Some(_))) if connects() != before => (None, Some(NotTaken::Reconnected)),
            Ok(Ok(Some(image))) => (Some(image), None),
            Ok(Ok(None)) => (None, Some(NotTaken::NotThere)),
            Ok(Err(error)) => (None, Some(error.into())),
            Err(_) => (None, Some(NotTaken::TooSlow)),
        };
        let blocks = image.as_ref().map_or(0, |image| image.image.block_count() as u64);
        let taken = self.registry.end_refill(refill, image).await;
        if let Some(failed) = failed {
            return Err(failed);
        }
        if !taken {
            return Err(NotTaken::DoesNotFit);
        }
        self.replica.count(|counters| counters.blocks += blocks);
        Ok(())
    }
}

/// Why a stream was not taken.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("it is not here any more")]
    NotHere,
    #[error("the peer does not have it any more")]
    NotThere,
    #[error("the peer was too slow: a stream must not hold what it hears for longer")]
    TooSlow,
    #[error("its connection was replaced meanwhile")]
    Reconnected,
    #[error("the peer's state does not fit: it is older, not exact, or of other owners")]
    DoesNotFit,
    #[error(transparent)]
    Client(#[from] Error),
}
