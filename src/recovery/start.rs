//! A start: carries out what the plan says, and ends with a registry whose streams go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::ids::Source;
use crate::image::{Registration, StreamName, Tombstone};
use crate::readiness::Hold;
use crate::recovery::client::{Client, Error};
use crate::recovery::compare::StreamKey;
use crate::recovery::load::{self, Loaded, Why};
use crate::recovery::plan::{self, Peer, Plan, Seen, Step, Summary};
use crate::recovery::resolve::{Address, resolve};
use crate::recovery::{Outcome, RecoveryConfig, Replica, disk};
use crate::registry::{Recovered, Registry, Status};
use crate::wire::digest::{Digest, Phase};
use crate::wire::snapshot;

/// A peer that the service names is asked again for so long while it cannot be reached: Pods of a set start within
/// seconds of each other, and one that is really gone must not hold up the others.
const PATIENCE: Duration = Duration::from_secs(5);

/// The name of the peer service is looked up again after this time.
const RESOLVED_FOR: Duration = Duration::from_secs(1);

/// Rhythm of looking at streams that connect.
const POLL: Duration = Duration::from_millis(25);

/// Longest wait before a busy peer is asked again, whatever it says.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Rhythm of progress in `/ready`, and in the log.
const SHOW: Duration = Duration::from_millis(100);
const LOG: Duration = Duration::from_secs(5);

/// One start.
pub(super) struct Start<'a> {
    replica: &'a Replica,
    registry: &'a Arc<Registry>,
    config: &'a RecoveryConfig,
    hold: &'a Hold,
    client: Client,
    began: Instant,
    /// Ranks whose connections were waited for: not again before others come.
    waited_for: AtomicUsize,
    /// What the peer service said, and when.
    service: Option<(Instant, BTreeSet<Address>)>,
    /// Registrations by hand that peers named last, and those taken back: in case no state can be had.
    heard: (Vec<Registration>, Vec<Tombstone>),
    /// The last peer was busy, and the reason says so.
    busy: bool,
}

impl<'a> Start<'a> {
    pub(super) fn new(
        replica: &'a Replica,
        registry: &'a Arc<Registry>,
        config: &'a RecoveryConfig,
        hold: &'a Hold,
    ) -> Self {
        let client = Client::new(&config.times);
        Self {
            replica,
            registry,
            config,
            hold,
            client,
            began: Instant::now(),
            waited_for: AtomicUsize::new(0),
            service: None,
            heard: Default::default(),
            busy: false,
        }
    }

    pub(super) async fn run(mut self) -> Outcome {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let times = self.config.times;
        let limits = plan::Limits { progress: ms(times.peer_progress), patience: ms(PATIENCE), pass: ms(times.round) };
        let mut plan = Plan::new(self.replica.id(), limits);
        if let Some(disk) = &self.config.disk {
            // What was taken back here must not come back from a peer that was not told.
            self.registry.restore(Vec::new(), disk::tombstones(disk).await).await;
        }
        let mut step = Step::Ask(0);
        let began = self.began;
        let now = || ms(began.elapsed());
        loop {
            step = match step {
                Step::Ask(after) => {
                    sleep(Duration::from_millis(after)).await;
                    let peers = self.ask().await;
                    plan.heard(now(), peers)
                }
                Step::Snapshot(url) => match self.take(&url, Kind::Snapshot).await {
                    Ok(_) => return Outcome::Recovered(url),
                    Err(Error::Busy { after }) => {
                        self.hold.set_reason(&format!("recovery: {url} is busy"));
                        self.busy = true;
                        plan.was_busy(now(), &url, ms(after.min(BUSY_WAIT_MAX)))
                    }
                    Err(error) if is_foreign(&error) => plan.has_only_a_dump(now(), &url),
                    Err(error) => plan.failed(now(), &url, error.had_state()),
                },
                Step::Dump(url) => match self.take(&url, Kind::Dump).await {
                    Ok(Taken::State) => return Outcome::Recovered(url),
                    Ok(Taken::Nothing) => plan.was_empty(now(), &url),
                    Err(error) => plan.failed(now(), &url, error.had_state()),
                },
                Step::File => match self.take_file().await {
                    Some(path) => return Outcome::Recovered(path),
                    None => plan.no_file(now()),
                },
                Step::Empty(registrations) => {
                    if let Some(url) = registrations
                        && let Err(error) = self.registrations(&url).await
                    {
                        warn!(peer = url, %error, "registrations of an empty peer are not taken");
                    }
                    self.registry.adopt(Recovered::default()).await;
                    info!("starts without a state: nobody has one");
                    return Outcome::Empty;
                }
                Step::Failed => {
                    // Who is registered by hand is known even so: their owners are stale, not absent.
                    let heard = std::mem::take(&mut self.heard);
                    self.restore(heard).await;
                    self.registry.adopt(Recovered::default()).await;
                    self.replica.count(|counters| counters.cold_starts += 1);
                    error!("starts without the state that a peer has: every attempt to take it failed");
                    return Outcome::Failed;
                }
            }
        }
    }

    /// What all peers say.
    async fn ask(&mut self) -> Vec<Peer> {
        self.resolve().await;
        let named: BTreeSet<_> = self
            .service
            .iter()
            .flat_map(|(_, found)| found)
            .filter(|address| !address.own)
            .map(|address| address.url.clone())
            .collect();
        let urls = self.replica.all_urls();
        if self.replica.phase() == Phase::Waiting && !std::mem::take(&mut self.busy) {
            self.hold.set_reason(&format!("recovery: asks {} peers", urls.len()));
        }
        let serves = |digest: &Digest| {
            digest.phase == Phase::Ready && digest.blocks > 0 && digest.replica_id != self.replica.id()
        };
        let answers = self.client.digests(urls, self.config.times.connect, serves).await;
        let mut peers = Vec::new();
        let mut heard = (Vec::new(), Vec::new());
        for (url, answer) in answers {
            let seen = match &answer {
                Ok(digest) => {
                    heard.0.extend(digest.registrations.iter().cloned());
                    heard.1.extend(digest.tombstones.iter().cloned());
                    self.replica.recognise(&url, &digest.replica_id);
                    Seen::Replica(Summary::from(digest))
                }
                Err(Error::NotThere) => Seen::Other { busy: false },
                Err(Error::Busy { .. }) => Seen::Other { busy: true },
                Err(error) => {
                    tracing::debug!(peer = url, %error, "peer does not answer");
                    Seen::Nobody
                }
            };
            peers.push(Peer { of_service: named.contains(&url), url, seen });
        }
        if peers.iter().any(|peer| matches!(peer.seen, Seen::Replica(_))) {
            self.heard = heard;
        }
        peers
    }

    async fn resolve(&mut self) {
        let Some(service) = &self.config.peer_service else {
            return;
        };
        let limit = match &self.service {
            Some((at, _)) if at.elapsed() < RESOLVED_FOR => return,
            Some(_) => Duration::ZERO,
            None => {
                self.hold.set_reason(&format!("recovery: looks up {service}"));
                self.config.times.resolve
            }
        };
        let mut found = resolve(service, limit).await;
        if found.is_empty()
            && let Some((_, before)) = self.service.take()
        {
            found = before;
        }
        self.replica.set_service(found.iter().map(|address| address.url.clone()).collect());
        self.service = Some((Instant::now(), found));
    }

    /// Takes a peer's state, and lets the streams go on from it.
    async fn take(&self, url: &str, kind: Kind) -> Result<Taken, Error> {
        self.replica.set_phase(Phase::Loading);
        let taken = match kind {
            Kind::Snapshot => self.take_snapshot(url).await,
            Kind::Dump => self.take_dump(url).await,
        };
        if let Err(error) = &taken {
            match error {
                Error::Busy { .. } => info!(peer = url, "a peer is busy"),
                error => warn!(peer = url, %error, "a peer's state is not taken"),
            }
            self.replica.set_phase(Phase::Waiting);
        }
        taken
    }

    async fn take_snapshot(&self, url: &str) -> Result<Taken, Error> {
        let loaded = self.load_snapshot(url).await;
        if !matches!(loaded, Err(Error::NotThere)) {
            self.replica.count(|counters| counters.attempt("snapshot", loaded.is_ok()));
        }
        self.adopt(url, loaded?).await;
        Ok(Taken::State)
    }

    /// Registrations first, so that connections are there before the state that they go on from.
    async fn load_snapshot(&self, url: &str) -> Result<Loaded, Error> {
        self.registrations(url).await?;
        self.handshakes().await;
        let before = connections(self.registry);
        let registry = Arc::clone(self.registry);
        let from = Client::url(url, "/snapshot", &[])?;
        let mut progress = self.progress(url);
        let loaded =
            self.client.load(from, |bytes| progress.add(bytes), move |feed| load::snapshot(&registry, feed)).await;
        let mut loaded = loaded?;
        // Whoever was registered since the first question.
        self.restore(loaded.take_registrations()).await;
        let after = connections(self.registry);
        for (key, index) in &mut loaded.recovered.indexes {
            for stream in &mut index.streams {
                let stream_key = (key.clone(), stream.name.clone());
                let (before, after) = (before.get(&stream_key), after.get(&stream_key));
                // Else what was said between the state and the connection was never here, and nothing shows it.
                stream.position.connected &= before.is_some_and(|connects| *connects > 0) && before == after;
            }
        }
        Ok(loaded)
    }

    /// Takes over who is registered at a peer.
    async fn registrations(&self, url: &str) -> Result<(), Error> {
        let from = Client::url(url, "/snapshot", &[("part", "registrations")])?;
        let registry = Arc::clone(self.registry);
        let mut progress = self.progress(url);
        let loaded = self.client.load(from, |bytes| progress.add(bytes), move |feed| load::snapshot(&registry, feed));
        self.restore(loaded.await?.take_registrations()).await;
        Ok(())
    }

    async fn restore(&self, (registrations, tombstones): (Vec<Registration>, Vec<Tombstone>)) {
        let restored = self.registry.restore(registrations, tombstones).await;
        for (key, owner, error) in &restored.refused {
            warn!(model = %key.model, tenant = %key.tenant, %owner, %error, "registration is not taken over");
        }
        if restored.added > 0 {
            info!(added = restored.added, kept = restored.kept, "registrations are taken over");
        }
    }

    async fn take_dump(&self, url: &str) -> Result<Taken, Error> {
        self.handshakes().await;
        let known = load::known_indexes(self.registry);
        let registry = Arc::clone(self.registry);
        let from = Client::url(url, "/dump", &[])?;
        let mut progress = self.progress(url);
        let loaded =
            self.client.load(from, |bytes| progress.add(bytes), move |feed| load::dump(&registry, &known, feed));
        let loaded = loaded.await;
        self.replica.count(|counters| counters.attempt("dump", loaded.is_ok()));
        let loaded = loaded?;
        if loaded.owners == 0 {
            self.replica.count(|counters| counters.refuse("block_size", loaded.refused));
            self.replica.set_phase(Phase::Waiting);
            info!(peer = url, "a peer has nothing");
            return Ok(Taken::Nothing);
        }
        self.adopt(url, loaded).await;
        Ok(Taken::State)
    }

    /// Takes the state of the file; gives its name.
    async fn take_file(&self) -> Option<String> {
        let disk = self.config.disk.as_ref()?;
        let path = disk::path(&disk.dir).display().to_string();
        self.replica.set_phase(Phase::Loading);
        self.hold.set_reason(&format!("recovery: reads {path}"));
        let Some(mut loaded) = disk::read(self.replica, self.registry, disk).await else {
            self.replica.set_phase(Phase::Waiting);
            return None;
        };
        self.restore(loaded.take_registrations()).await;
        self.handshakes().await;
        // Nobody has listened since the file was written: that its streams are the publishers' present lives, with nothing
        // said meanwhile, is for each publisher to prove.
        for index in loaded.recovered.indexes.values_mut() {
            index.streams.iter_mut().for_each(|stream| stream.position.connected = false);
        }
        self.adopt(&path, loaded).await;
        Some(path)
    }

    async fn adopt(&self, from: &str, loaded: Loaded) {
        let Loaded { recovered, blocks, owners, refused, .. } = loaded;
        let adopted = self.registry.adopt(recovered).await;
        self.replica.count(|counters| {
            counters.blocks += blocks;
            counters.refuse("block_size", refused + adopted.refused as u64);
        });
        info!(
            from,
            blocks,
            owners,
            taken = adopted.owners,
            indexes = adopted.indexes,
            streams = adopted.streams,
            seconds = self.began.elapsed().as_secs_f64(),
            "state is taken"
        );
    }

    /// Waits until every stream has connected, and a little longer, or until the time for that is over.
    async fn handshakes(&self) {
        let times = self.config.times;
        let began = Instant::now();
        let (mut done_before, mut last) = (0, began);
        loop {
            let (done, open) = self.streams();
            if done != done_before {
                (done_before, last) = (done, Instant::now());
            }
            let settled = open == 0 && (done == 0 || last.elapsed() >= times.settle);
            let known = self.waited_for.load(Ordering::Relaxed) == done + open;
            if known || settled || began.elapsed() >= times.handshakes {
                self.waited_for.store(done + open, Ordering::Relaxed);
                return;
            }
            self.hold.set_reason(&format!("recovery: {done} of {} streams have connected", done + open));
            sleep(POLL).await;
        }
    }

    /// Registered ranks whose stream has connected or never will, and the others.
    fn streams(&self) -> (usize, usize) {
        let workers = self.registry.workers(None, None);
        let ranks = workers.iter().flat_map(|worker| worker.ranks.values());
        let ranks = ranks.filter(|rank| rank.source != Source::Recovered);
        let (done, open): (Vec<_>, Vec<_>) = ranks.partition(|rank| {
            rank.stream.connects > 0 || matches!(rank.stream.status, Status::Failed | Status::Paused)
        });
        (done.len(), open.len())
    }

    fn progress<'b>(&'b self, url: &'b str) -> Progress<'b> {
        let now = Instant::now();
        Progress { start: self, url, bytes: 0, shown: None, logged: now }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Snapshot,
    Dump,
}

enum Taken {
    State,
    Nothing,
}

/// Completed handshakes of every stream of a registration.
pub(super) fn connections(registry: &Registry) -> BTreeMap<StreamKey, u64> {
    let mut connections = BTreeMap::new();
    for worker in registry.workers(None, None) {
        for rank in worker.ranks.into_values() {
            let name = StreamName {
                instance: rank.spec.owner.instance,
                endpoint: rank.spec.endpoint.as_str().to_owned(),
                topic: rank.spec.topic,
                default_lora: rank.spec.default_lora,
            };
            connections.insert((rank.spec.key, name), rank.stream.connects);
        }
    }
    connections
}

/// Another path may still be readable: there is no snapshot, or one of another version. What is no snapshot at all was
/// spoilt, and says nothing of the sort.
fn is_foreign(error: &Error) -> bool {
    match error {
        Error::NotThere => true,
        Error::Load(load) => matches!(load.why, Why::Snapshot(snapshot::Error::Version { .. })),
        _ => false,
    }
}

/// Bytes of one answer, shown as they come.
struct Progress<'a> {
    start: &'a Start<'a>,
    url: &'a str,
    bytes: u64,
    shown: Option<Instant>,
    logged: Instant,
}

impl Progress<'_> {
    fn add(&mut self, bytes: u64) {
        self.start.replica.add_bytes(bytes);
        self.bytes += bytes;
        let now = Instant::now();
        if self.shown.is_none_or(|shown| now - shown >= SHOW) {
            self.shown = Some(now);
            self.start.hold.set_reason(&format!("recovery: {} from {}", size(self.bytes), self.url));
        }
        if now - self.logged >= LOG {
            self.logged = now;
            info!(peer = self.url, bytes = self.bytes, "a peer's state is being read");
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
