//! Who this replica is and how far it has come, for `/digest`, `/metrics` and `/ready`.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::ids::{IndexKey, Owner, Source};
use crate::recovery::PeerList;
use crate::recovery::peers;
use crate::recovery::resolve::resolve;
use crate::registry::{Registry, StreamView};
use crate::trust::State;
use crate::wire::digest::{Digest, Phase, RankDigest, StreamDigest, Sum};

/// Identity, peers, progress and counters of this process; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct Replica(Arc<Inner>);

struct Inner {
    id: String,
    name: String,
    peers: PeerList,
    peer_service: Option<String>,
    /// What the name of the peer service said last.
    service: Mutex<BTreeSet<String>>,
    /// Who answered last at each address: this replica too, and others at several.
    known: Mutex<BTreeMap<String, String>>,
    phase: Mutex<Phase>,
    bytes: AtomicU64,
    counters: Mutex<Counters>,
    /// One writer of the file at a time.
    file: Arc<Semaphore>,
}

/// What has happened so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Attempts to take a peer's state: kind of source (`snapshot`, `dump`, `disk`), outcome (`ok`, `failed`), count.
    pub attempts: Vec<(&'static str, &'static str, u64)>,
    /// Bytes of state read so far.
    pub bytes: u64,
    /// Blocks taken.
    pub blocks: u64,
    /// Starts without the state that a peer was known to have.
    pub cold_starts: u64,
    /// Indexes or files refused, by reason (`block_size`, `corrupt_file`, `foreign_file`, `old_file`).
    pub refused: Vec<(&'static str, u64)>,
    /// Streams that differ from a peer's at the last comparison.
    pub differing_streams: u64,
    /// Streams that were compared.
    pub compared_streams: u64,
    /// Owners taken from a peer at run time, by outcome (`ok`, `failed`).
    pub refills: Vec<(&'static str, u64)>,
    /// Registrations that differ from a peer's at the last comparison.
    pub differing_registrations: u64,
    /// Snapshots written to disk, by outcome.
    pub files_written: Vec<(&'static str, u64)>,
}

/// The word of an outcome in counters.
fn outcome(ok: bool) -> &'static str {
    if ok { "ok" } else { "failed" }
}

fn count(list: &mut Vec<(&'static str, u64)>, word: &'static str, by: u64) {
    match list.iter_mut().find(|(known, _)| *known == word) {
        Some((_, count)) => *count += by,
        None => list.push((word, by)),
    }
}

impl Counters {
    /// An attempt ended.
    pub(super) fn attempt(&mut self, source: &'static str, ok: bool) {
        let outcome = outcome(ok);
        match self.attempts.iter_mut().find(|(known, how, _)| *known == source && *how == outcome) {
            Some((_, _, count)) => *count += 1,
            None => self.attempts.push((source, outcome, 1)),
        }
    }

    /// So many indexes or files were refused.
    pub(super) fn refuse(&mut self, why: &'static str, by: u64) {
        if by > 0 {
            count(&mut self.refused, why, by);
        }
    }

    /// A refill ended.
    pub(super) fn refill(&mut self, ok: bool) {
        count(&mut self.refills, outcome(ok), 1);
    }

    /// A file was written, or not.
    pub(super) fn file(&mut self, ok: bool) {
        count(&mut self.files_written, outcome(ok), 1);
    }
}

impl Replica {
    /// A replica with a random id.
    #[must_use]
    pub fn new(peers: PeerList) -> Self {
        Self::named(String::new(), peers, None)
    }

    /// The same with a name for people, and with a name and port behind which all replicas stand.
    #[must_use]
    pub fn named(name: String, peers: PeerList, peer_service: Option<String>) -> Self {
        // Keys of a `RandomState` come from the system; the time and the process tell apart what shares them.
        let mut random = RandomState::new().build_hasher();
        random.write_u64(super::now_ms());
        random.write_u32(std::process::id());
        Self(Arc::new(Inner {
            id: format!("{:016x}", random.finish()),
            name,
            peers,
            peer_service,
            service: Mutex::default(),
            known: Mutex::default(),
            phase: Mutex::new(Phase::Waiting),
            bytes: AtomicU64::new(0),
            counters: Mutex::default(),
            file: Arc::new(Semaphore::new(1)),
        }))
    }

    /// 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What people call it; may be empty.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Addresses of the others.
    #[must_use]
    pub fn peers(&self) -> &PeerList {
        &self.0.peers
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *self.0.phase.lock()
    }

    /// It answers queries: what it observes is worth telling.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.phase() == Phase::Ready
    }

    /// Sets how far it is. A replica that is about to end stays so.
    pub fn set_phase(&self, phase: Phase) {
        let mut current = self.0.phase.lock();
        if *current != Phase::Stopping {
            *current = phase;
        }
    }

    /// Answer of `/digest`.
    #[must_use]
    pub fn digest(&self, registry: &Registry) -> Digest {
        let views = registry.digests();
        let exact = |view: &StreamView| {
            let owners = view.owners.iter().filter(|(_, trust, _)| trust.state() == State::Exact);
            owners.map(|(owner, ..)| (view.key.clone(), owner.clone())).collect::<Vec<_>>()
        };
        // An owner that two streams feed is one.
        let exact: BTreeSet<(IndexKey, Owner)> = views.iter().flat_map(exact).collect();
        // Owners that no stream feeds count too: whoever has only those is no empty peer.
        let sizes: Vec<_> = registry.indexes().iter().map(|(_, index)| index.read().stats()).collect();
        let applied = views.iter().filter_map(|view| view.position.mark);
        let mut registrations = registry.registrations();
        registrations.retain(|registration| registration.source == Source::Manual);
        Digest {
            replica_id: self.id().to_owned(),
            name: self.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            phase: self.phase(),
            progress: self.0.bytes.load(Ordering::Relaxed),
            owners: sizes.iter().map(|size| size.owners).sum(),
            exact_owners: exact.len() as u64,
            applied: applied.fold(0, |sum, mark| sum.saturating_add(mark.seq.0)),
            blocks: sizes.iter().map(|size| size.held_blocks).sum(),
            streams: views.into_iter().map(stream_digest).collect(),
            registrations,
            tombstones: registry.tombstones(),
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.0.counters.lock().clone();
        counters.bytes = self.0.bytes.load(Ordering::Relaxed);
        counters
    }

    /// Counts something.
    pub(super) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.0.counters.lock());
    }

    /// Bytes of a state were read.
    pub(super) fn add_bytes(&self, bytes: u64) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The right to write the file.
    pub(super) fn file_turn(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.file)
    }

    /// Asks the name of the peer service once more; an answer that says nothing changes nothing.
    pub(super) async fn look_up_peers(&self) {
        if let Some(service) = &self.0.peer_service {
            let found = resolve(service, Duration::ZERO).await;
            if !found.is_empty() {
                self.set_service(found.into_iter().map(|address| address.url).collect());
            }
        }
    }

    /// Replaces what the name of the peer service says.
    pub(super) fn set_service(&self, urls: BTreeSet<String>) {
        *self.0.service.lock() = urls;
    }

    /// The replica with this id answers there.
    pub(super) fn recognise(&self, url: &str, replica_id: &str) {
        self.0.known.lock().insert(url.to_owned(), replica_id.to_owned());
    }

    /// Known addresses in one form, listed and resolved ones, those of this replica among them.
    pub(super) fn all_urls(&self) -> BTreeSet<String> {
        let mut urls: BTreeSet<_> = self.0.peers.urls().iter().filter_map(|url| peers::base_url(url)).collect();
        urls.extend(self.0.service.lock().iter().cloned());
        urls
    }

    /// One address of each other replica, and those at which nobody has answered.
    #[must_use]
    pub fn other_urls(&self) -> Vec<String> {
        let urls = self.all_urls();
        let mut known = self.0.known.lock();
        known.retain(|url, _| urls.contains(url));
        let mut seen = BTreeSet::from([self.id()]);
        urls.into_iter().filter(|url| known.get(url).is_none_or(|id| seen.insert(id))).collect()
    }
}

fn stream_digest(view: StreamView) -> StreamDigest {
    let sum = |seq, digest: u64| Sum { seq, digest: format!("{digest:016x}") };
    StreamDigest {
        exact: view.owners.iter().all(|(_, trust, _)| trust.state() == State::Exact),
        current: view.position.mark.map(|mark| sum(mark.seq, view.digest)),
        history: view.history.iter().map(|(seq, digest)| sum(*seq, *digest)).collect(),
        ranks: view
            .owners
            .iter()
            .map(|(owner, trust, blocks)| RankDigest {
                dp_rank: owner.rank.0,
                state: trust.state().as_str().to_owned(),
                reasons: trust.reasons().map(|reason| reason.as_str().to_owned()).collect(),
                blocks: *blocks,
            })
            .collect(),
        key: view.key,
        instance_id: view.name.instance,
        endpoint: view.name.endpoint,
        topic: view.name.topic,
        default_lora: view.name.default_lora,
        foreign_blocks: view.foreign_blocks,
        ages: view.ages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_and_have_16_digits() {
        let ids: BTreeSet<_> = (0..100).map(|_| Replica::new(PeerList::default()).id().to_owned()).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit())));
    }

    #[test]
    fn a_replica_that_ends_does_not_come_back() {
        let replica = Replica::new(PeerList::default());
        replica.set_phase(Phase::Loading);
        replica.set_phase(Phase::Stopping);
        replica.set_phase(Phase::Ready);
        assert_eq!(replica.phase(), Phase::Stopping);
    }

    #[test]
    fn every_other_replica_is_told_once_and_this_one_never() {
        let replica = Replica::new(PeerList::new(["a:1/".to_owned(), "http://b:1".to_owned(), String::new()]));
        replica.set_service(BTreeSet::from(["http://c:1".to_owned()]));
        replica.recognise("http://b:1", replica.id());
        assert_eq!(replica.other_urls(), ["http://a:1", "http://c:1"]);
        replica.recognise("http://b:1", "another");
        assert_eq!(replica.other_urls().len(), 3);
        // One replica at two addresses is told once.
        replica.recognise("http://c:1", "another");
        assert_eq!(replica.other_urls(), ["http://a:1", "http://b:1"]);
    }

    #[test]
    fn counters_are_kept_by_word() {
        let mut counters = Counters::default();
        counters.attempt("dump", true);
        counters.attempt("dump", true);
        counters.attempt("dump", false);
        counters.refuse("block_size", 0);
        counters.refuse("block_size", 2);
        assert_eq!(counters.attempts, [("dump", "ok", 2), ("dump", "failed", 1)]);
        assert_eq!(counters.refused, [("block_size", 2)]);
    }
}
