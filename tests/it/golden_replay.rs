//! Golden replay scenarios: a publisher and a replay server of the test, the built binary between them, each
//! scenario with a model of its own. Every key of `ours` is one check; a key that no check reads fails the runner.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::harness::zmq_sockets::{DeadEndpoint, Frames, Ring, Shape, start_of};
use crate::harness::{Publisher, Router, Service, compare, data, from_hex, in_parallel, msgpack, try_within};

const SCENARIOS: usize = 15;
/// Scenarios mostly wait for time limits of the service.
const THREADS: usize = SCENARIOS;
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);
/// "Immediate", beside what a plain request takes on the machine at hand: the time limits that it must not wait for are
/// 2 s and 4 s.
const IMMEDIATE: Duration = Duration::from_millis(500);
const PLAIN_REQUESTS: usize = 5;
const INSTANCE: &str = "1";
const MARKER_TOKENS: [u32; 4] = [9; 4];
/// A block that no batch of the file stores, for a number outside the asked range.
const STRANGER: u64 = 950;

#[test]
fn golden_replay_scenarios_end_as_recorded() {
    let file: Value = serde_json::from_str(&data("golden/replay.json")).expect("JSON");
    let scenarios = file["scenarios"].as_array().expect("scenarios");
    let wanted: usize =
        scenarios.iter().map(|scenario| scenario["ours"].as_object().expect("expectations").len()).sum();
    let service = Service::start();
    let outcomes = in_parallel(scenarios, THREADS, |scenario| {
        let mut play = Play::new(&service, &file, scenario);
        if let Err(error) = play.run() {
            play.failures.push(error);
        }
        let left: Vec<&String> = play.ours.keys().collect();
        if play.failures.is_empty() && !left.is_empty() {
            play.failures.push(format!("expectations that no check reads: {left:?}"));
        }
        (play.checks, play.failures)
    });
    let mut failures = String::new();
    for (scenario, (_, errors)) in scenarios.iter().zip(&outcomes) {
        errors.iter().for_each(|error| failures.push_str(&format!("* {}: {error}\n", scenario["name"])));
    }
    assert!(failures.is_empty(), "{} checks failed:\n{failures}", failures.lines().count());
    assert_eq!(scenarios.len(), SCENARIOS, "scenarios in the file");
    assert_eq!(outcomes.iter().map(|(checks, _)| checks).sum::<usize>(), wanted, "every expectation was checked");
}

struct Play<'a> {
    service: &'a Service,
    file: &'a Value,
    scenario: &'a Value,
    model: String,
    publisher: Publisher,
    ring: Ring,
    /// None when the replay endpoint is dead.
    router: Option<Router>,
    dead: DeadEndpoint,
    /// Expectations not read yet.
    ours: Map<String, Value>,
    checks: usize,
    failures: Vec<String>,
    sent: BTreeSet<u64>,
    last_sent_at: Instant,
}

impl<'a> Play<'a> {
    fn new(service: &'a Service, file: &'a Value, scenario: &'a Value) -> Self {
        let ring = Ring::default();
        let router = router_of(file, scenario, &ring);
        Self {
            service,
            file,
            scenario,
            model: format!("replay-{}", scenario["name"].as_str().expect("a name")),
            publisher: Publisher::bind(),
            ring,
            router,
            dead: DeadEndpoint::reserve(),
            ours: scenario["ours"].as_object().expect("expectations").clone(),
            checks: 0,
            failures: Vec::new(),
            sent: BTreeSet::new(),
            last_sent_at: Instant::now(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        if self.take("each_applies_every_batch").is_some() {
            return self.two_ranks_on_one_endpoint();
        }
        for number in numbers(&self.scenario["ring"]) {
            self.ring.push(number, &self.payload(number));
        }
        self.register(&self.model, 0)?;
        for number in numbers(&self.scenario["live_before"]) {
            self.send(number);
            self.wait_last_seq(number, DEFAULT_LIMIT)?;
        }
        let mut requests_before = 0;
        if self.scenario["unregister_then_register"] == true {
            self.unregister()?;
            numbers(&self.scenario["missed"]).for_each(|number| self.send(number));
            requests_before = self.requests().len();
            self.register(&self.model, 0)?;
        }
        numbers(&self.scenario["live"]).for_each(|number| self.send(number));
        numbers(&self.scenario["live_after"]).for_each(|number| self.send(number));
        if self.scenario["then_live_marker"] == true {
            self.send_marker();
        }
        self.while_waiting()?;
        self.first_request(requests_before)?;
        self.restart()?;
        self.in_the_end()?;
        self.what_was_applied()
    }

    /// Reads an expectation and counts it as a check.
    fn take(&mut self, key: &str) -> Option<Value> {
        let value = self.ours.remove(key)?;
        self.checks += 1;
        Some(value)
    }

    fn expect(&mut self, what: &str, result: Result<(), String>) {
        if let Err(error) = result {
            self.failures.push(format!("{what}: {error}"));
        }
    }

    fn payload(&self, number: u64) -> Vec<u8> {
        payload(self.file, number - self.scenario["numbers_from"].as_u64().unwrap_or(0))
    }

    fn register(&self, model: &str, rank: u32) -> Result<(), String> {
        let replay_endpoint = self.router.as_ref().map_or(&self.dead.endpoint, |router| &router.endpoint);
        let body = json!({
            "instance_id": 1, "dp_rank": rank, "endpoint": self.publisher.endpoint, "replay_endpoint": replay_endpoint,
            "model_name": model, "block_size": self.file["block_size"],
        });
        let reply = self.service.post("/register", &body);
        if reply.status != 201 {
            return Err(format!("register: {} {}", reply.status, reply.text()));
        }
        if rank == 0 {
            self.publisher.wait_subscribed();
        }
        Ok(())
    }

    fn unregister(&self) -> Result<(), String> {
        let reply = self.service.post("/unregister", &json!({"instance_id": 1, "model_name": self.model}));
        if reply.status == 200 { Ok(()) } else { Err(format!("unregister: {} {}", reply.status, reply.text())) }
    }

    /// Publishes a number. By default it is buffered together with all numbers below it; `buffer` and `ring` say otherwise.
    fn send(&mut self, number: u64) {
        let payload = self.payload(number);
        if self.scenario.get("ring").is_some() {
            self.ring.push(number, &payload);
        } else if self.scenario.get("buffer").is_some() {
            if numbers(&self.scenario["buffer"]).any(|kept| kept == number) {
                self.ring.push(number, &payload);
            }
        } else {
            let from = self.ring.since(0).last().map_or(0, |(last, _)| last + 1);
            (from..=number).for_each(|number| self.ring.push(number, &self.payload(number)));
        }
        self.publish(number, &payload);
    }

    fn send_marker(&mut self) {
        let number = self.sent.last().map_or(0, |last| last + 1);
        let payload = from_hex(self.file["marker_payload_hex"].as_str().expect("hex"));
        self.ring.push(number, &payload);
        self.publish(number, &payload);
    }

    fn publish(&mut self, number: u64, payload: &[u8]) {
        self.publisher.send("kv-events", number, payload);
        self.sent.insert(number);
        self.last_sent_at = Instant::now();
    }

    fn requests(&self) -> Vec<Frames> {
        self.router.as_ref().map(Router::requests).unwrap_or_default()
    }

    fn listener(&self) -> Value {
        self.service.listener(&self.model, "default", INSTANCE, 0).unwrap_or(Value::Null)
    }

    fn wait_last_seq(&self, want: u64, limit: Duration) -> Result<(), String> {
        try_within(limit, || {
            let listener = self.listener();
            if listener["last_seq"] == want { Ok(()) } else { Err(format!("want last_seq {want}: {listener}")) }
        })
    }

    fn gpu(&self, model: &str, tokens: &Value) -> u64 {
        let answer = self.service.query(&json!({"model_name": model, "token_ids": tokens}));
        answer["instances"][INSTANCE]["gpu"].as_u64().unwrap_or(0)
    }

    fn wait_gpu(&self, model: &str, tokens: &Value, want: &Value, limit: Duration) -> Result<(), String> {
        try_within(limit, || {
            let got = self.gpu(model, tokens);
            if *want == got { Ok(()) } else { Err(format!("got {got} tokens, want {want}; {}", self.listener())) }
        })
    }

    fn held(&self) -> Vec<u64> {
        let dump = self.service.dump(&self.model);
        let blocks = dump.as_object().into_iter().flat_map(Map::values).flat_map(|entry| entry["blocks"].as_array());
        let mut hashes: Vec<u64> = blocks.flatten().filter_map(|block| block["block_hash"].as_u64()).collect();
        hashes.sort_unstable();
        hashes
    }

    /// Live batches behind a gap wait for the replay.
    fn while_waiting(&mut self) -> Result<(), String> {
        let Some(want) = self.take("marker_tokens_while_waiting") else { return Ok(()) };
        self.wait_last_seq(numbers(&self.scenario["live"]).next().expect("a live batch"), DEFAULT_LIMIT)?;
        let got = self.gpu(&self.model, &json!(MARKER_TOKENS));
        self.expect(
            "marker_tokens_while_waiting",
            if want == got { Ok(()) } else { Err(format!("got {got}, want {want}")) },
        );
        if self.take("unregister_is_immediate").is_some() {
            self.unregister_while_it_waits()?;
        }
        Ok(())
    }

    fn unregister_while_it_waits(&mut self) -> Result<(), String> {
        let after = self.take("marker_tokens_after_10_s_if_not_unregistered").expect("it stands in the scenario");
        let time = |act: &dyn Fn() -> Result<(), String>| {
            let start = Instant::now();
            act().map(|()| start.elapsed())
        };
        let look = || {
            self.listener();
            Ok(())
        };
        let plain = (0..PLAIN_REQUESTS).map(|_| time(&look)).collect::<Result<Vec<_>, _>>()?;
        let took = time(&|| self.unregister())?;
        let limit = IMMEDIATE + 2 * plain.iter().sum::<Duration>();
        self.expect(
            "unregister_is_immediate",
            if took < limit { Ok(()) } else { Err(format!("took {took:?}, {plain:?}")) },
        );
        // The same once more under another model, which stays.
        let other = format!("{}-stays", self.model);
        self.register(&other, 0)?;
        let live: Vec<u64> = numbers(&self.scenario["live"]).collect();
        live.iter().for_each(|number| self.send(*number));
        self.send_marker();
        let result = self.wait_gpu(&other, &json!(MARKER_TOKENS), &after, DEFAULT_LIMIT);
        self.expect("marker_tokens_after_10_s_if_not_unregistered", result);
        Ok(())
    }

    fn first_request(&mut self, before: usize) -> Result<(), String> {
        let Some(want) = self.take("first_request_frames_after_identity") else { return Ok(()) };
        let want: Frames =
            want.as_array().expect("frames").iter().map(|frame| from_hex(frame.as_str().expect("hex"))).collect();
        let first = try_within(DEFAULT_LIMIT, || {
            self.requests().into_iter().nth(before).ok_or_else(|| format!("no request; {}", self.listener()))
        })?;
        let result = if first == want { Ok(()) } else { Err(format!("got {first:?}, want {want:?}")) };
        self.expect("first_request_frames_after_identity", result);
        Ok(())
    }

    /// The publisher starts again on the same connection: each batch of the second life is looked at.
    fn restart(&mut self) -> Result<(), String> {
        let again: Vec<u64> = numbers(&self.scenario["restart_live"]).collect();
        if again.is_empty() {
            return Ok(());
        }
        self.wait_last_seq(*self.sent.last().expect("a first life"), DEFAULT_LIMIT)?;
        self.ring.clear();
        self.sent.clear();
        let applied = self.take("applied_after_restart").expect("it stands in the scenario");
        let old_stay = self.take("old_blocks_stay").expect("it stands in the scenario");
        if applied != json!(again) || old_stay != json!(false) {
            return Err(format!("the runner knows no such expectation: {applied}, {old_stay}"));
        }
        for (i, number) in again.iter().enumerate() {
            self.send(*number);
            self.wait_last_seq(*number, DEFAULT_LIMIT)?;
            let (got, want): (_, Vec<u64>) = (self.held(), again[..=i].iter().map(|number| 100 + number).collect());
            self.expect(
                "blocks of the second life",
                if got == want { Ok(()) } else { Err(format!("got {got:?}, want {want:?}")) },
            );
        }
        Ok(())
    }

    /// What must hold within the limit after the last batch sent.
    fn in_the_end(&mut self) -> Result<(), String> {
        let seconds = self.take("within_s").or_else(|| self.take("gives_up_within_s"));
        let limit = seconds.map_or(DEFAULT_LIMIT, |limit| Duration::from_secs(limit.as_u64().expect("seconds")));
        let left = |play: &Self| limit.saturating_sub(play.last_sent_at.elapsed());
        if self.scenario["name"] != "replay_endpoint_silent_then_unregister"
            && let Some(last) = self.sent.last().copied()
        {
            let result = self.wait_last_seq(last, left(self));
            self.expect("the last batch sent", result);
        }
        let prompt =
            self.scenario.get("query_tokens").cloned().unwrap_or_else(|| json!((1..=24).collect::<Vec<u32>>()));
        if let Some(want) = self.take("tokens") {
            let result = self.wait_gpu(&self.model, &prompt, &want, left(self));
            self.expect("tokens", result);
        }
        for key in ["marker_tokens", "marker_tokens_after_giving_up"] {
            if let Some(want) = self.take(key) {
                let result = self.wait_gpu(&self.model, &json!(MARKER_TOKENS), &want, left(self));
                self.expect(key, result);
            }
        }
        if let Some(want) = self.take("trust") {
            let result = try_within(left(self), || {
                let listener = self.listener();
                compare::trust(&listener, &want).map_err(|error| format!("{error} in {listener}"))
            });
            self.expect("trust", result);
        }
        if let Some(want) = self.take("holds_blocks") {
            let want: Vec<u64> = numbers(&want).collect();
            let got = self.held();
            self.expect("holds_blocks", if got == want { Ok(()) } else { Err(format!("got {got:?}, want {want:?}")) });
        }
        for key in ["last_seq", "status"] {
            if let Some(want) = self.take(key) {
                let got = self.listener()[key].clone();
                self.expect(key, if got == want { Ok(()) } else { Err(format!("got {got}, want {want}")) });
            }
        }
        if let Some(then) = self.take("then") {
            self.send_marker();
            let result = self.wait_gpu(&self.model, &then["query_tokens"], &then["tokens"], DEFAULT_LIMIT);
            self.expect("then", result);
        }
        if let Some(want) = self.take("restarts_counted") {
            let got = self.service.metric("kvindexer_publisher_restarts_total", &[("model", self.model.as_str())]);
            self.expect(
                "restarts_counted",
                if want.as_f64() == Some(got) { Ok(()) } else { Err(format!("got {got}, want {want}")) },
            );
        }
        Ok(())
    }

    /// Which numbers of a bad answer were applied, seen by their blocks, and where the later requests start.
    fn what_was_applied(&mut self) -> Result<(), String> {
        let Some(applied) = self.take("applied") else { return Ok(()) };
        let held = self.held();
        let block = |number: u64| if number == 50 { STRANGER } else { 100 + number };
        for key in ["ignored", "used_up", "then_live_applied"] {
            let want = self.take(key).ok_or_else(|| format!("no {key}"))?;
            let is_there = key == "then_live_applied";
            for number in numbers(&want) {
                let result = if held.contains(&block(number)) == is_there {
                    Ok(())
                } else {
                    Err(format!("{number}: holds {held:?}"))
                };
                self.expect(key, result);
            }
        }
        for number in numbers(&self.scenario["reply_seqs"]) {
            let is_wanted = numbers(&applied).any(|wanted| wanted == number);
            let result = if held.contains(&block(number)) == is_wanted {
                Ok(())
            } else {
                Err(format!("{number}: holds {held:?}"))
            };
            self.expect("applied", result);
        }
        let want = self.take("later_requests_start_at").ok_or("no later_requests_start_at")?;
        let starts: Vec<Option<u64>> = self.requests().iter().skip(1).map(|frames| start_of(frames)).collect();
        let all_right = !starts.is_empty() && starts.iter().all(|start| *start == want.as_u64());
        self.expect(
            "later_requests_start_at",
            if all_right { Ok(()) } else { Err(format!("got {starts:?}, want {want}")) },
        );
        Ok(())
    }

    /// Ranks 0 and 1 of one instance on one endpoint: a batch without a rank counts for both.
    fn two_ranks_on_one_endpoint(&mut self) -> Result<(), String> {
        self.register(&self.model, 0)?;
        self.register(&self.model, 1)?;
        for number in 0..3 {
            self.send(number);
            self.wait_last_seq(number, DEFAULT_LIMIT)?;
        }
        let prompt = json!((1..=12).collect::<Vec<u32>>());
        let result = try_within(DEFAULT_LIMIT, || {
            let answer = self.service.query(&json!({"model_name": self.model, "token_ids": prompt}));
            if answer["scores"] == json!({"1": {"0": 12, "1": 12}}) { Ok(()) } else { Err(answer.to_string()) }
        });
        self.expect("each_applies_every_batch", result);
        Ok(())
    }
}

fn numbers(list: &Value) -> impl Iterator<Item = u64> + use<> {
    let list: Vec<u64> =
        list.as_array().into_iter().flatten().map(|number| number.as_u64().expect("a number")).collect();
    list.into_iter()
}

fn payload(file: &Value, number: u64) -> Vec<u8> {
    from_hex(file["payload_hex_by_seq"][number.to_string()].as_str().expect("a payload"))
}

/// The replay server that the scenario asks for.
fn router_of(file: &Value, scenario: &Value, ring: &Ring) -> Option<Router> {
    let reply = scenario["reply"].as_str().unwrap_or_default();
    match scenario["name"].as_str().expect("a name") {
        "replay_endpoint_dead" => None,
        "replay_endpoint_silent_then_unregister" => Some(Router::start(Box::new(|_| Vec::new()))),
        "reply_with_2_frames" => Some(Router::start(Box::new(|_| vec![vec![b"x".to_vec(), b"y".to_vec()]]))),
        _ if scenario.get("reply_seqs").is_some() => {
            let undecodable: Vec<u64> = numbers(&scenario["undecodable"]).collect();
            let answer = |number| match number {
                50 => msgpack::batch(json!([msgpack::stored(&[STRANGER], None, &[50; 4])])),
                _ if undecodable.contains(&number) => vec![0xc1],
                _ => payload(file, number),
            };
            let messages = numbers(&scenario["reply_seqs"]).map(|number| Shape::Three.message(number, &answer(number)));
            let messages: Vec<Frames> = messages.chain([Shape::Three.end()]).collect();
            Some(Router::start(Box::new(move |_| messages.clone())))
        }
        _ => Some(ring.router(if reply.contains("topic") { Shape::Four } else { Shape::Three })),
    }
}
