//! Three replicas as processes that name each other, killed and started again, and what they may and must not answer.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvindexer::wire::digest::{Digest, Phase, StreamDigest};
use serde_json::{Value, json};

use super::cache::{self, PROMPTS};
use super::fleet::{Engine, Life};
use crate::harness::Service;
use crate::harness::http::{Reply, Request, exchange};
use crate::harness::service::{free_address, percent, plain};

/// One place in the set; the process in it changes.
pub(super) struct Replica {
    pub(super) address: SocketAddr,
    peers: String,
    process: Mutex<Option<Service>>,
    /// Changes at every end and start of the process.
    turn: AtomicU64,
}

/// What a sampled answer was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    /// Equal to the truth.
    Right,
    /// The owner says that it is not exact.
    Flagged,
    /// 503 `not_ready`.
    NotReady,
    /// Says nothing: the process ended or began meanwhile, or had not caught up.
    Missed,
}

impl Replica {
    /// As many, none running.
    pub(super) fn set(count: usize) -> Vec<Self> {
        let addresses: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
        let replica = |address: &SocketAddr| {
            let others = addresses.iter().filter(|other| *other != address).map(|other| format!("http://{other}"));
            let peers = others.collect::<Vec<_>>().join(",");
            Self { address: *address, peers, process: Mutex::new(None), turn: AtomicU64::new(0) }
        };
        addresses.iter().map(replica).collect()
    }

    /// Starts a process; it need not be ready.
    pub(super) fn start(&self) {
        let log = "error,kvindexer::recovery=info,kvindexer::registry=info";
        let args = ["--peers", &self.peers, "--threads", "2", "--compare-interval-s", "3", "--log", log];
        let service = Service::launch_at(self.address, &args, &[]);
        *self.process.lock().expect("no holder panics") = Some(service);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the process without a warning.
    pub(super) fn kill(&self) {
        self.turn.fetch_add(1, Ordering::SeqCst);
        if let Some(mut service) = self.process.lock().expect("no holder panics").take() {
            service.kill();
        }
    }

    /// Last lines of the log of the running process.
    pub(super) fn log(&self) -> Vec<String> {
        self.process.lock().expect("no holder panics").as_ref().map(Service::log).unwrap_or_default()
    }

    pub(super) fn turn(&self) -> u64 {
        self.turn.load(Ordering::SeqCst)
    }

    pub(super) fn get(&self, path: &str) -> Result<Reply, String> {
        exchange(self.address, &Request { method: "GET", path, ..Request::default() })
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Reply, String> {
        let body = body.to_string();
        let content_type = Some("application/json");
        exchange(self.address, &Request { method: "POST", path, content_type, body: Some(body.as_bytes()) })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sum of the samples of a metric.
    pub(super) fn metric(&self, name: &str) -> f64 {
        self.process.lock().expect("no holder panics").as_ref().map_or(0.0, |service| service.metric(name, &[]))
    }

    pub(super) fn digest(&self) -> Result<Digest, String> {
        let reply = self.get("/digest")?;
        serde_json::from_slice(&reply.body).map_err(|error| format!("{error}: {}", reply.text()))
    }

    /// Owners that have lost something for good, by what they say. A connection that is away at the moment is no loss.
    pub(super) fn lacks(&self) -> Result<Vec<String>, String> {
        const NO_LOSS: [&str; 3] = ["not_connected", "nothing_heard", "unverified_reconnect"];
        let digest = self.digest()?;
        if digest.phase != Phase::Ready {
            return Err(format!("{:?}", digest.phase));
        }
        let lacks = digest.streams.iter().filter(|stream| {
            let mut reasons = stream.ranks.iter().flat_map(|rank| &rank.reasons);
            reasons.any(|reason| !NO_LOSS.contains(&reason.as_str()))
        });
        Ok(lacks.map(|stream| format!("{} {:?}", stream.instance_id, stream.ranks)).collect())
    }

    /// Last applied number of an engine's stream; none when there is none, or no such stream.
    pub(super) fn last_seq(&self, engine: &Engine) -> Option<u64> {
        let path =
            format!("/workers?model_name={}&tenant_id={}", percent(engine.spec.model), percent(engine.spec.tenant));
        let workers = self.get(&path).ok()?.json();
        let instance = engine.spec.instance_text();
        let worker = workers.as_array()?.iter().find(|worker| plain(&worker["instance_id"]) == instance)?;
        worker["listeners"]["0"]["last_seq"].as_u64()
    }

    /// Has applied everything that a silent engine said.
    pub(super) fn has_caught_up(&self, engine: &Engine, life: &Life) -> bool {
        life.next > 0 && self.last_seq(engine) == life.last()
    }

    /// Asks for a prompt and compares with the truth of an engine that stands still and has been caught up with.
    ///
    /// # Errors
    /// An answer that must not be.
    pub(super) fn ask(&self, engine: &Engine, life: &Life, prompt: u32) -> Result<Sample, String> {
        let turn = self.turn();
        let request = json!({
            "model_name": engine.spec.model, "tenant_id": engine.spec.tenant, "token_ids": cache::tokens(prompt),
        });
        let Ok(reply) = self.post("/query", &request) else { return Ok(Sample::Missed) };
        let judged = judge(&reply, engine, life, prompt);
        // A process that has ended meanwhile, or begun, is none of whom the question was for.
        if self.turn() != turn {
            return Ok(Sample::Missed);
        }
        if judged == Ok(Sample::Right)
            && reply.status == 200
            && self.get("/ready").is_ok_and(|ready| ready.status != 200)
        {
            return if self.turn() == turn { Err("answers and is not ready".to_owned()) } else { Ok(Sample::Missed) };
        }
        judged.map_err(|error| {
            format!(
                "{} {}, prompt {prompt}, batch {:?} of life {}: {error}",
                self.address,
                engine.spec.instance,
                life.last(),
                life.lives
            )
        })
    }
}

fn judge(reply: &Reply, engine: &Engine, life: &Life, prompt: u32) -> Result<Sample, String> {
    if reply.status == 503 && reply.code() == "not_ready" {
        return Ok(Sample::NotReady);
    }
    if reply.status != 200 {
        return Err(format!("{} {}", reply.status, reply.text()));
    }
    let instance = &reply.json()["instances"][engine.spec.instance_text()];
    if instance.is_null() {
        return Err(format!("the instance is not there: {}", reply.text()));
    }
    if !instance["trust"].is_null() {
        return Ok(Sample::Flagged);
    }
    let held = life.held(prompt);
    let most = |at: usize| held.iter().map(|rank| rank[at]).max().unwrap_or(0);
    let dp: serde_json::Map<String, Value> =
        held.iter().enumerate().map(|(rank, [device, _])| (rank.to_string(), json!(device))).collect();
    for (key, want) in [("dp", dp.into()), ("gpu", json!(most(0))), ("cpu", json!(most(1))), ("disk", json!(most(1)))] {
        if instance[key] != want {
            return Err(format!("{key}: got {}, truth {want}; {instance}", instance[key]));
        }
    }
    Ok(Sample::Right)
}

/// Everything that keeps the set from being equal, exact and up to the engines' last batches; empty at the end.
pub(super) fn differences(replicas: &[Replica], engines: &[Engine]) -> Vec<String> {
    let mut found = Vec::new();
    let mut digests = Vec::new();
    for replica in replicas {
        match replica.digest() {
            Ok(digest) => digests.push((replica.address, digest)),
            Err(error) => found.push(format!("{}: {error}", replica.address)),
        }
    }
    for engine in engines {
        let last = engine.pause().last();
        let streams: Vec<(SocketAddr, Option<&StreamDigest>)> =
            digests.iter().map(|(address, digest)| (*address, stream_of(digest, engine))).collect();
        for (address, stream) in &streams {
            let Some(stream) = stream else {
                found.push(format!("{address}: no stream of {}", engine.spec.instance));
                continue;
            };
            let at = stream.current.as_ref().map(|sum| sum.seq.0);
            if at != last || !stream.exact {
                found.push(format!("{address} {} is at {at:?} of {last:?}: {:?}", engine.spec.instance, stream.ranks));
            }
        }
        found.extend(unequal(&streams, engine));
    }
    found
}

/// Sums at numbers that several replicas have.
fn unequal(streams: &[(SocketAddr, Option<&StreamDigest>)], engine: &Engine) -> Vec<String> {
    let mut by_number = std::collections::BTreeMap::<u64, Vec<(SocketAddr, String)>>::new();
    for (address, stream) in streams.iter().filter_map(|(address, stream)| Some((address, (*stream)?))) {
        for sum in stream.history.iter().chain(&stream.current) {
            by_number.entry(sum.seq.0).or_default().push((*address, sum.digest.clone()));
        }
    }
    let differs = |sums: &Vec<(SocketAddr, String)>| sums.iter().any(|(_, digest)| *digest != sums[0].1);
    let unequal = by_number.into_iter().filter(|(_, sums)| differs(sums));
    unequal.map(|(number, sums)| format!("{} after batch {number}: {sums:?}", engine.spec.instance)).collect()
}

fn stream_of<'a>(digest: &'a Digest, engine: &Engine) -> Option<&'a StreamDigest> {
    digest.streams.iter().find(|stream| {
        stream.endpoint == engine.endpoint && stream.instance_id.to_string() == engine.spec.instance_text()
    })
}

/// All prompts of all engines at all replicas against the truth: all answers must be there, flagged by nothing, and right.
pub(super) fn all_wrong_answers(replicas: &[Replica], engines: &[Engine]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (replica, engine) in replicas.iter().flat_map(|replica| engines.iter().map(move |engine| (replica, engine))) {
        let life = engine.pause();
        for prompt in 0..PROMPTS {
            match replica.ask(engine, &life, prompt) {
                Ok(Sample::Right) => {}
                other => wrong.push(format!("{} {}: {other:?}", replica.address, engine.spec.instance)),
            }
        }
    }
    wrong
}

/// How long quiet may need: owners that lost something on the way are taken from a peer one by one, at the next
/// comparison of replicas.
pub(super) const QUIET_MAX: Duration = Duration::from_secs(180);
