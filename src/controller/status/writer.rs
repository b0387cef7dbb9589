//! The work of the Lease's holder: looks around, decides what every object should say, and writes what is due.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use tokio::time::Instant;

use crate::controller::conditions::{self, Inputs, LocalRank, Replicas};
use crate::controller::crd::{IndexerWorker, IndexerWorkerStatus};
use crate::controller::drive::Findings;
use crate::controller::events::{self, Ledger, Occurrence, Tracker};
use crate::controller::facts::ObjectKey;
use crate::controller::status::StatusParts;
use crate::controller::status::happened;
use crate::controller::status::pace::{Entry, backoff};
use crate::controller::trouble::{Told, kind_of};
use crate::ids::{IndexKey, Owner, Source};
use crate::recovery::{self, PeerReport};
use crate::registry::Registry;

/// The one field manager of all replicas.
const MANAGER: &str = "kvindexer";
/// Statuses written at once.
const WRITES_MAX: usize = 8;
/// Events sent at once.
const SENDS_MAX: usize = 4;
/// Events that wait to be sent; what comes beyond is lost and counted.
const QUEUE_MAX: usize = 256;
/// Longest wait for one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Objects in one page of the first list.
const PAGE: u32 = 500;
/// Rounds that findings ask for come no faster than this part of the rhythm.
const HASTE: u32 = 5;

/// What a request ended with.
enum Done {
    Surveyed(Vec<PeerReport>),
    Written { key: ObjectKey, uid: String, said: Box<IndexerWorkerStatus>, outcome: Outcome },
    Sent(bool),
}

/// Of a write: an error, or none in time.
type Outcome = Option<kube::Result<()>>;

/// What objects say, by UID.
type Said = BTreeMap<String, IndexerWorkerStatus>;

/// One tenure.
pub(super) struct Writer {
    parts: StatusParts,
    began: Instant,
    said: Said,
    objects: BTreeMap<ObjectKey, Entry>,
    replicas: Replicas,
    tracker: Tracker,
    faults: happened::Faults,
    ledger: Ledger,
    queue: VecDeque<Occurrence>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    writing: usize,
    sending: usize,
    surveying: bool,
    /// The API server fails: how often in a row, and until when nothing is tried.
    away: (u32, Option<Instant>),
    told: Told,
}

impl Writer {
    /// At the begin of a tenure.
    pub(super) fn new(parts: StatusParts) -> Self {
        Self {
            parts,
            began: Instant::now(),
            said: Said::new(),
            objects: BTreeMap::new(),
            replicas: Replicas::default(),
            tracker: Tracker::default(),
            faults: happened::Faults::default(),
            ledger: Ledger::default(),
            queue: VecDeque::new(),
            work: FuturesUnordered::new(),
            writing: 0,
            sending: 0,
            surveying: false,
            away: (0, None),
            told: Told::new("indexerworkers/status", "patch indexerworkers/status"),
        }
    }

    /// Ends only by being dropped.
    pub(super) async fn run(mut self) {
        self.read_first().await;
        let observe = self.parts.config.times.observe;
        let mut next = Instant::now();
        let mut last = next - observe;
        loop {
            if Instant::now() >= next && !self.surveying {
                self.survey();
                last = Instant::now();
                next = last + observe;
            }
            let due = self.start_due().map_or(next, |due| due.min(next));
            tokio::select! {
                biased;
                Some(done) = self.work.next(), if !self.work.is_empty() => self.settle(done),
                changed = self.parts.findings.changed() => match changed {
                    Ok(()) => next = next.min((last + observe / HASTE).max(Instant::now())),
                    // Nobody finds anything any more: the end is near.
                    Err(_) => return std::future::pending().await,
                },
                () = tokio::time::sleep_until(due), if due > Instant::now() || !self.surveying => {}
            }
        }
    }

    /// Reads what objects say, until that succeeds: transitions keep their times, and nothing is written twice.
    async fn read_first(&mut self) {
        let mut told = Told::new("indexerworkers", "list indexerworkers");
        let times = self.parts.config.times;
        for failures in 0.. {
            match tokio::time::timeout(REQUEST_MAX, read(&self.parts)).await {
                Ok(Ok(said)) => {
                    self.said = said;
                    self.began = Instant::now();
                    return;
                }
                Ok(Err(error)) => told.failed(&error),
                Err(_) => tracing::warn!("the API server gives no list of IndexerWorkers; asking again"),
            }
            tokio::time::sleep(backoff(times.retry_min, times.retry_max, failures)).await;
        }
    }

    fn survey(&mut self) {
        let (replica, registry) = (self.parts.replica.clone(), Arc::clone(&self.parts.registry));
        self.surveying = true;
        // Without an object nobody reads what the others say.
        let wanted = !self.parts.findings.borrow().desired.objects.is_empty();
        let times = recovery::Times::default();
        self.work.push(Box::pin(async move {
            Done::Surveyed(if wanted { recovery::survey(&replica, &registry, &times).await } else { Vec::new() })
        }));
    }

    fn settle(&mut self, done: Done) {
        match done {
            Done::Surveyed(reports) => {
                self.surveying = false;
                self.replicas.absorb(reports);
                if self.parts.replica.serves() {
                    self.decide();
                }
            }
            Done::Written { key, uid, said, outcome } => {
                self.writing -= 1;
                self.written(&key, &uid, *said, outcome);
            }
            Done::Sent(ok) => {
                self.sending -= 1;
                self.count_event(if ok { "ok" } else { "failed" }, 1);
            }
        }
    }

    /// What every object should say, and what has happened.
    fn decide(&mut self) {
        let findings: Findings = self.parts.findings.borrow_and_update().clone();
        let local = local_ranks(&self.parts.registry);
        let (happened, new_gaps) = self.tracker.look(&local);
        let inputs = Inputs {
            own_name: &self.parts.config.identity,
            failed: &findings.failed,
            local: &local,
            replicas: &self.replicas,
            now: Timestamp::now(),
        };
        let mut before = std::mem::take(&mut self.objects);
        for (key, finding) in &findings.desired.objects {
            let known = before.remove(key).filter(|entry| entry.uid == finding.uid);
            let members = finding.members.iter().map(|member| (member.index.clone(), member.owner.clone()));
            let came: u64 = members.filter_map(|member| new_gaps.get(&member)).sum();
            let entry = match known {
                Some(mut entry) => {
                    entry.gaps = entry.gaps.saturating_add(came);
                    entry.wanted = conditions::status(finding, &inputs, entry.gaps, entry.said.as_ref());
                    entry
                }
                None => {
                    let said = self.said.remove(&finding.uid);
                    let counted = said.as_ref().and_then(|said| said.gaps).and_then(|gaps| u64::try_from(gaps).ok());
                    let gaps = counted.unwrap_or(came);
                    Entry {
                        uid: finding.uid.clone(),
                        wanted: conditions::status(finding, &inputs, gaps, said.as_ref()),
                        // Who wrote it, and when, is not known: as late as can be.
                        written: said.is_some().then_some(self.began),
                        said,
                        not_before: None,
                        failures: 0,
                        in_flight: false,
                        gaps,
                    }
                }
            };
            self.objects.insert(key.clone(), entry);
        }
        // Objects that are not ours, or that went meanwhile.
        self.said.clear();
        let occurrences = happened::occurrences(&findings, happened).chain(self.faults.look(&findings));
        let lost = occurrences.map(|what| self.ledger.note(what)).filter(|noted| !noted).count();
        self.count_event("dropped", lost);
        self.gather_events();
    }

    fn gather_events(&mut self) {
        let due = self.ledger.due(Instant::now());
        let room = QUEUE_MAX.saturating_sub(self.queue.len());
        self.count_event("dropped", due.len().saturating_sub(room));
        self.queue.extend(due.into_iter().take(room));
    }

    fn count_event(&self, outcome: &str, by: usize) {
        self.parts.metrics.events.with_label_values(&[outcome]).inc_by(by as u64);
    }

    /// Starts what may be written, and says when the next may.
    fn start_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.start_sending();
        let (failures, away) = self.away;
        if let Some(away) = away.filter(|away| *away > now) {
            return Some(away);
        }
        // While the API server fails, one at a time finds out when that ends.
        let limit = if failures > 0 { 1 } else { WRITES_MAX };
        let mut next: Option<Instant> = None;
        let mut starting = Vec::new();
        for (key, entry) in &mut self.objects {
            let Some(due) = entry.due(now, &self.parts.config.times) else {
                continue;
            };
            if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
            } else if self.writing < limit {
                self.writing += 1;
                entry.in_flight = true;
                entry.written = Some(now);
                starting.push((key.clone(), entry.uid.clone(), entry.wanted.clone()));
            }
            // Else the end of a write looks here again.
        }
        for (key, uid, said) in starting {
            let client = self.parts.client.clone();
            self.work.push(Box::pin(async move {
                let outcome = tokio::time::timeout(REQUEST_MAX, write(client, &key, &said)).await.ok();
                Done::Written { key, uid, said: Box::new(said), outcome }
            }));
        }
        next
    }

    fn start_sending(&mut self) {
        while self.sending < SENDS_MAX
            && let Some(what) = self.queue.pop_front()
        {
            self.sending += 1;
            let (client, identity) = (self.parts.client.clone(), self.parts.config.identity.clone());
            self.work.push(Box::pin(async move {
                let sent = tokio::time::timeout(REQUEST_MAX, events::send(client, &what, &identity)).await;
                if let Ok(Err(error)) = &sent {
                    tracing::debug!(%error, reason = what.reason, "an event could not be written");
                }
                Done::Sent(matches!(sent, Ok(Ok(()))))
            }));
        }
    }

    fn written(&mut self, key: &ObjectKey, uid: &str, said: IndexerWorkerStatus, outcome: Outcome) {
        let now = Instant::now();
        let times = self.parts.config.times;
        let kind = match &outcome {
            Some(Ok(())) => "ok",
            Some(Err(error)) => kind_of(error),
            None => "unreachable",
        };
        let label = match kind {
            "ok" | "conflict" | "forbidden" | "not_found" => kind,
            _ => "failed",
        };
        self.parts.metrics.status_writes.with_label_values(&[label]).inc();
        match &outcome {
            Some(Ok(())) => self.told.well(),
            // Deleted meanwhile, or made anew: the watch will say so.
            Some(Err(_)) if matches!(kind, "not_found" | "conflict") => {}
            Some(Err(error)) => self.told.failed(error),
            None => tracing::debug!(object = %key, "no answer to a status in time"),
        }
        let server_fails = match &outcome {
            Some(Err(kube::Error::Api(status))) => status.code >= 500 || status.code == 429,
            Some(Err(_)) => true,
            // A single slow object holds no other back.
            Some(Ok(())) | None => false,
        };
        if server_fails {
            let (failures, _) = self.away;
            let wait = backoff(times.retry_min, times.retry_max, failures);
            self.away = (failures.saturating_add(1), Some(now + wait));
        } else if outcome.is_some() {
            self.away = (0, None);
        }
        let Some(entry) = self.objects.get_mut(key) else {
            return;
        };
        if entry.uid != uid {
            // Made anew under the same name: it may have got what was meant for the one before.
            entry.said = None;
            return;
        }
        entry.in_flight = false;
        if kind == "ok" {
            entry.failures = 0;
            entry.not_before = None;
            entry.said = Some(said);
        } else {
            entry.failed(now, &times, kind == "forbidden");
        }
    }
}

/// Ranks that Kubernetes registered here.
fn local_ranks(registry: &Registry) -> BTreeMap<(IndexKey, Owner), LocalRank> {
    let mut ranks = BTreeMap::new();
    for worker in registry.workers(None, None) {
        for (rank, view) in worker.ranks.iter().filter(|(_, view)| view.source == Source::Kubernetes) {
            let owner = Owner { instance: worker.instance.clone(), rank: *rank };
            ranks.insert((worker.key.clone(), owner), LocalRank::from(view));
        }
    }
    ranks
}

/// What all watched objects say. No CRD: nothing.
async fn read(parts: &StatusParts) -> kube::Result<Said> {
    let namespaces = &parts.config.namespaces;
    let (client, resource) = (&parts.client, ApiResource::erase::<IndexerWorker>(&()));
    let apis: Vec<Api<DynamicObject>> = if namespaces.is_empty() {
        vec![Api::all_with(client.clone(), &resource)]
    } else {
        namespaces.iter().map(|namespace| Api::namespaced_with(client.clone(), namespace, &resource)).collect()
    };
    let mut said = Said::new();
    for api in apis {
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = match api.list(&page).await {
                Err(error) if kind_of(&error) == "not_found" => break,
                other => other?,
            };
            for object in list.items {
                let status = object.data.get("status").cloned();
                let status = status.and_then(|status| serde_json::from_value(status).ok());
                if let (Some(uid), Some(status)) = (object.metadata.uid, status) {
                    said.insert(uid, status);
                }
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
    }
    Ok(said)
}

async fn write(client: kube::Client, key: &ObjectKey, status: &IndexerWorkerStatus) -> kube::Result<()> {
    let resource = ApiResource::erase::<IndexerWorker>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &resource);
    let body = serde_json::json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"namespace": key.namespace, "name": key.name},
        "status": status,
    });
    api.patch_status(&key.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await.map(drop)
}

/// The object, for an Event.
pub(super) fn reference(key: &ObjectKey, uid: &str) -> ObjectReference {
    let resource = ApiResource::erase::<IndexerWorker>(&());
    ObjectReference {
        api_version: Some(resource.api_version),
        kind: Some(resource.kind),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
