//! Golden recovery cases: a fresh service with a fake peer that answers as recorded. Every key of `ours` is one check; a
//! key that no check reads, and a sentence that no check knows, fail the runner.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::small_dump;
use crate::harness::service::plain;
use crate::harness::zmq_sockets::DeadEndpoint;
use crate::harness::{FakePeer, Service, compare, data, in_parallel, try_within};

const CASES: usize = 15;
/// Cases mostly wait for time limits of the service.
const THREADS: usize = CASES;
const LIMIT: Duration = Duration::from_secs(20);
/// A peer that says nothing fails after 10 s.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// How long a dripping peer drips before it goes away.
const DRIP: Duration = Duration::from_secs(15);
const DRIP_INTERVAL: Duration = Duration::from_millis(500);
/// Key of an entry that is good in itself and stands beside the recorded one.
const NEIGHBOUR: &str = "also:t";

#[test]
fn golden_recovery_cases_end_as_recorded() {
    let cases: Vec<Value> = serde_json::from_str(&data("golden/recovery.json")).expect("an array of cases");
    let good = cases.iter().find(|case| case["name"] == "good_dump").expect("a case with a good dump");
    let wanted: usize = cases.iter().map(|case| case["ours"].as_object().expect("expectations").len()).sum();
    let outcomes = in_parallel(&cases, THREADS, |case| {
        let mut play = Play { case, good, ours: case["ours"].as_object().expect("expectations").clone(), checks: 0 };
        let outcome = play.run().and_then(|()| {
            let left: Vec<&String> = play.ours.keys().collect();
            if left.is_empty() { Ok(()) } else { Err(format!("expectations that no check reads: {left:?}")) }
        });
        (play.checks, outcome)
    });
    let mut failures = String::new();
    for (case, (_, outcome)) in cases.iter().zip(&outcomes) {
        if let Err(error) = outcome {
            failures.push_str(&format!("* {}: {error}\n", case["name"]));
        }
    }
    assert!(failures.is_empty(), "{} cases failed:\n{failures}", failures.lines().count());
    assert_eq!(cases.len(), CASES, "cases in the file");
    assert_eq!(outcomes.iter().map(|(checks, _)| checks).sum::<usize>(), wanted, "every expectation was checked");
}

struct Play<'a> {
    case: &'a Value,
    /// The case `good_dump`.
    good: &'a Value,
    /// Expectations not read yet.
    ours: Map<String, Value>,
    checks: usize,
}

impl Play<'_> {
    fn run(&mut self) -> Result<(), String> {
        match self.case["name"].as_str().expect("a name") {
            "good_dump" | "v1_6_1_extra_field" | "minimal_event_fields" | "removed_and_cleared_events" => self.taken(),
            "hang" => self.hang(),
            "slow_drip" => self.slow_drip(),
            "redirect_302" => self.redirect(),
            "trailing_slash_in_peer_url" => self.trailing_slash(),
            "all_peers_dead" => self.all_peers_dead(),
            "block_size_conflict" => self.block_size_conflict(),
            _ => self.rejected(),
        }
    }

    /// Reads an expectation and counts it as a check.
    fn take(&mut self, key: &str) -> Option<Value> {
        let value = self.ours.remove(key)?;
        self.checks += 1;
        Some(value)
    }

    /// Reads an expectation that is a sentence: the check that follows knows only this one.
    fn sentence(&mut self, key: &str, known: &str) -> Result<(), String> {
        match self.take(key) {
            Some(Value::String(text)) if text == known => Ok(()),
            other => Err(format!("{key}: no check for {other:?}")),
        }
    }

    fn taken(&mut self) -> Result<(), String> {
        let peer = FakePeer::with_dump(self.case["peer_response"]["json"].clone());
        let service = Service::start_with(&["--peers", &peer.url()], &[]);
        if let Some(want) = self.take("query_answer") {
            compare::query_answer(&service.query(&self.case["query"]), &want)?;
        }
        if let Some(query) = self.take("query") {
            let gpu = self.take("gpu");
            let got = service.query(&query)["instances"]["1"]["gpu"].clone();
            if Some(&got) != gpu.as_ref() {
                return Err(format!("gpu: got {got}, want {gpu:?}"));
            }
        }
        if self.ours.contains_key("workers") {
            self.sentence(
                "workers",
                "instances 1 and 2 with source \"recovered\" and trust \"stale\", until registered here or dropped after 60 s",
            )?;
            recovered_owners_are_visible(&service)?;
        }
        if let Some(status) = self.take("unregister_instance_1") {
            let reply = service.post("/unregister", &json!({"instance_id": 1, "model_name": "m", "tenant_id": "t"}));
            if status != reply.status {
                return Err(format!("unregister: {} {}", reply.status, reply.text()));
            }
            let left = service.query(&self.case["query"]);
            if !left["instances"]["1"].is_null() {
                return Err(format!("instance 1 is still there: {left}"));
            }
        }
        Ok(())
    }

    /// The recorded peer and, behind it, one that is good.
    fn rejected(&mut self) -> Result<(), String> {
        let response = self.case["peer_response"].clone();
        let (bad, next) = in_order(move || {
            let response = response.clone();
            FakePeer::start(move |asked, line| match asked.path() {
                "/dump" => {
                    let status = u16::try_from(response["status"].as_u64().expect("a status")).expect("a status");
                    match (&response["json"], response["body"].as_str()) {
                        (Value::Object(entries), _) => {
                            let mut entries = entries.clone();
                            entries.extend(small_dump(NEIGHBOUR, 3).as_object().expect("entries").clone());
                            line.json(status, &entries.into());
                        }
                        (_, body) => line.reply(status, "text/plain", body.unwrap_or_default().as_bytes()),
                    }
                }
                _ => line.not_found(),
            })
        });
        let service = Service::launch(&["--peers", &format!("{},{}", bad.url(), next.url())], &[]);
        self.next_peer_was_taken(&service, &bad, LIMIT)
    }

    fn next_peer_was_taken(&mut self, service: &Service, bad: &FakePeer, limit: Duration) -> Result<(), String> {
        ready_within(service, limit)?;
        if bad.asked_for("/dump") == 0 {
            return Err("the peer was never asked".to_owned());
        }
        if self.ours.contains_key("peer") {
            self.sentence("peer", "rejected as a whole, nothing of it is applied")?;
            let dump = service.get("/dump").json();
            for key in ["m:t", NEIGHBOUR, "nocolon"] {
                if dump.get(key).is_some() {
                    return Err(format!("{key} was applied: {dump}"));
                }
            }
        }
        if self.ours.contains_key("then") {
            self.sentence("then", "next peer")?;
        }
        let answer = service.query(&json!({"model_name": "next", "tenant_id": "t", "token_ids": [1, 2, 3, 4]}));
        if answer["instances"]["7"]["gpu"] != 4 {
            return Err(format!("the next peer's state is not there: {answer}"));
        }
        Ok(())
    }

    fn hang(&mut self) -> Result<(), String> {
        let (bad, next) = in_order(|| {
            FakePeer::start(|asked, line| match asked.path() {
                "/dump" => line.hang(),
                _ => line.not_found(),
            })
        });
        let began = Instant::now();
        let service = Service::launch(&["--peers", &format!("{},{}", bad.url(), next.url())], &[]);
        self.sentence("peer", "given up after 10 s without a byte")?;
        self.sentence("http", "open at once; /ready is 503 and queries are 503 until the end of recovery")?;
        asked_for_dump(&bad)?;
        let asked = Instant::now();
        not_ready(&service)?;
        self.next_peer_was_taken(&service, &bad, LIMIT)?;
        if asked.elapsed() < SILENCE_LIMIT - Duration::from_secs(1) {
            return Err(format!("given up after {:?}, {:?} after the start", asked.elapsed(), began.elapsed()));
        }
        Ok(())
    }

    fn slow_drip(&mut self) -> Result<(), String> {
        let (bad, next) = in_order(|| {
            FakePeer::start(|asked, line| match asked.path() {
                "/dump" => {
                    line.head(200, &[("Content-Type", "application/json")]);
                    let bytes = vec![b' '; (DRIP.as_millis() / DRIP_INTERVAL.as_millis()) as usize + 4];
                    line.drip(&bytes, DRIP_INTERVAL);
                }
                _ => line.not_found(),
            })
        });
        let service = Service::launch(&["--peers", &format!("{},{}", bad.url(), next.url())], &[]);
        self.sentence("peer", "read on as long as bytes come; given up only after 10 s without a byte")?;
        self.sentence("then", "still not ready after 15 s; next peer once this one fails")?;
        asked_for_dump(&bad)?;
        let asked = Instant::now();
        while asked.elapsed() < DRIP {
            not_ready(&service)?;
            std::thread::sleep(Duration::from_millis(200));
        }
        self.next_peer_was_taken(&service, &bad, LIMIT)
    }

    fn redirect(&mut self) -> Result<(), String> {
        let good = FakePeer::with_dump(self.good["peer_response"]["json"].clone());
        let location = format!("{}/dump", good.url());
        let peer = FakePeer::start(move |asked, line| match asked.path() {
            "/dump" => line.head(302, &[("Location", &location), ("Content-Length", "0")]),
            _ => line.not_found(),
        });
        let service = Service::start_with(&["--peers", &peer.url()], &[]);
        self.sentence("peer", "redirect is followed, recovery succeeds")?;
        if self.take("query_answer_like") != Some(json!("good_dump")) {
            return Err("query_answer_like names no case".to_owned());
        }
        compare::query_answer(&service.query(&self.good["query"]), &self.good["ours"]["query_answer"])
    }

    fn trailing_slash(&mut self) -> Result<(), String> {
        let peer = FakePeer::with_dump(self.good["peer_response"]["json"].clone());
        let service = Service::start_with(&["--peers", &format!("{}/", peer.url())], &[]);
        self.sentence("peer", "works like the same URL without the slash")?;
        let Some(Value::String(path)) = self.take("requests") else { return Err("requests: no path".to_owned()) };
        let strange: Vec<String> =
            peer.asked().into_iter().map(|asked| asked.target).filter(|target| target.starts_with("//")).collect();
        if peer.asked_for(&path) != 1 || !strange.is_empty() {
            return Err(format!("{} requests for {path}; {strange:?}", peer.asked_for(&path)));
        }
        compare::query_answer(&service.query(&self.good["query"]), &self.good["ours"]["query_answer"])
    }

    fn all_peers_dead(&mut self) -> Result<(), String> {
        let dead = [DeadEndpoint::reserve(), DeadEndpoint::reserve()];
        let urls: Vec<String> = dead.iter().map(|it| it.endpoint.replace("tcp://", "http://")).collect();
        self.sentence("http", "open at once")?;
        let service = Service::launch(&["--peers", &urls.join(",")], &[]);
        let limit = self.take("ready_within_s").and_then(|limit| limit.as_u64()).ok_or("no limit")?;
        ready_within(&service, Duration::from_secs(limit))?;
        self.sentence("state", "empty")?;
        if service.get("/dump").json() != json!({}) || service.get("/workers").json() != json!([]) {
            return Err(format!("not empty: {} {}", service.get("/dump").text(), service.get("/workers").text()));
        }
        self.sentence("peers", "still listed by /peers")?;
        let listed = service.get("/peers").text();
        if urls.iter().all(|url| listed.contains(url)) { Ok(()) } else { Err(format!("{urls:?} in {listed}")) }
    }

    fn block_size_conflict(&mut self) -> Result<(), String> {
        let mut entries = self.case["peer_response"]["json"].as_object().expect("entries").clone();
        entries.extend(small_dump(NEIGHBOUR, 3).as_object().expect("entries").clone());
        let peer = FakePeer::with_dump(entries.into());
        let local = self.case["local_block_size"].to_string();
        let publisher = DeadEndpoint::reserve();
        let workers = format!("9={}", publisher.endpoint);
        let args = ["--peers", &peer.url(), "--block-size", &local, "--model-name", "m", "--tenant-id", "t"];
        let service = Service::start_with(&[&args[..], &["--workers", &workers]].concat(), &[]);
        self.sentence("entry", "refused and counted, a warning names both sizes; other entries are applied")?;
        let named = |line: &str| line.contains("block_size") && line.contains("16") && line.contains("=4");
        service.has_logged(named).map_err(|log| format!("no warning names both sizes: {log}"))?;
        let refused = service.metric("kvindexer_recovery_refused_total", &[("reason", "block_size")]);
        if refused != 1.0 {
            return Err(format!("{refused} indexes were counted as refused"));
        }
        let neighbour = json!({"model_name": "also", "tenant_id": "t", "token_ids": [1, 2, 3, 4]});
        if service.query(&neighbour)["instances"]["3"]["gpu"] != 4 {
            return Err("the other entry was not applied".to_owned());
        }
        let blocks = service.get("/dump").json()["m:t"]["events"].as_array().map_or(0, Vec::len);
        if self.take("blocks_of_it_in_the_index") != Some(json!(blocks)) {
            return Err(format!("{blocks} events of the entry are in the index"));
        }
        Ok(())
    }
}

/// A bad peer and a good one (`next:t`, instance 7) of which the bad one is asked first: equal ones are asked in the
/// order of their addresses.
fn in_order(bad: impl Fn() -> FakePeer) -> (FakePeer, FakePeer) {
    loop {
        let (bad, next) = (bad(), FakePeer::with_dump(small_dump("next:t", 7)));
        if bad.url() < next.url() {
            return (bad, next);
        }
    }
}

fn ready_within(service: &Service, limit: Duration) -> Result<(), String> {
    try_within(limit, || {
        let reply = service.get("/ready");
        if reply.status == 200 { Ok(()) } else { Err(format!("not ready within {limit:?}: {}", reply.text())) }
    })
}

fn asked_for_dump(peer: &FakePeer) -> Result<(), String> {
    try_within(LIMIT, || match peer.asked_for("/dump") {
        0 => Err("the peer was not asked for its dump".to_owned()),
        _ => Ok(()),
    })
}

/// Alive, not ready, says why, and answers no query.
fn not_ready(service: &Service) -> Result<(), String> {
    let (health, ready) = (service.get("/health"), service.get("/ready"));
    let query = service.post("/query", &json!({"model_name": "next", "tenant_id": "t", "token_ids": [1, 2, 3, 4]}));
    if health.status != 200 || ready.status != 503 || query.status != 503 || query.code() != "not_ready" {
        return Err(format!("{} {} {} {}", health.status, ready.text(), query.status, query.text()));
    }
    if ready.text().contains("recovery") { Ok(()) } else { Err(format!("no reason: {}", ready.text())) }
}

fn recovered_owners_are_visible(service: &Service) -> Result<(), String> {
    for (instance, rank) in [("1", "0"), ("2", "1")] {
        let worker = worker(service, instance)?;
        let trust = &worker["listeners"][rank]["trust"];
        if worker["source"] != "recovered" || trust["state"] != "stale" {
            return Err(format!("instance {instance}: {worker}"));
        }
    }
    let publisher = DeadEndpoint::reserve();
    let body = json!({"instance_id": 2, "dp_rank": 1, "endpoint": publisher.endpoint, "model_name": "m",
        "tenant_id": "t", "block_size": 4});
    let reply = service.post("/register", &body);
    let worker = worker(service, "2")?;
    if reply.status == 201 && worker["source"] == "zmq" && worker["listeners"]["1"]["blocks"]["device"] == 1 {
        Ok(())
    } else {
        Err(format!("registered: {} {worker}", reply.text()))
    }
}

fn worker(service: &Service, instance: &str) -> Result<Value, String> {
    let workers = service.workers("m");
    let found = workers.iter().find(|worker| plain(&worker["instance_id"]) == instance);
    found.cloned().ok_or_else(|| format!("no instance {instance} in {workers:?}"))
}
