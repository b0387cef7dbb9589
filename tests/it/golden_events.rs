//! Golden event cases: streams over real sockets into the built binary, and every recorded question.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::service::{CASE_DEADLINE, percent, plain};
use crate::harness::zmq_sockets::Frames;
use crate::harness::{Publisher, Service, compare, data, from_hex, in_parallel, try_within};

const THREADS: usize = 8;

/// Dump checks without a recorded answer, and what must hold instead: at least one block, none with these content hashes.
/// Blocks of unknown identity must not look like plain ones.
const NOT_DECIDED: [(&str, &[u64]); 3] = [
    ("lora_id_only", &[14_643_705_804_678_351_452]),
    ("extra_keys_odd", &[14_643_705_804_678_351_452]),
    ("event_block_size_other", &[]),
];

#[test]
fn golden_event_cases_are_answered_as_recorded() {
    let cases: Vec<Value> = serde_json::from_str(&data("golden/events.json")).expect("an array of cases");
    let wanted = cases.iter().map(checks_in).sum::<usize>();
    let service = Service::start();
    let outcomes = in_parallel(&cases, THREADS, |case| play(&service, case));
    let checks = outcomes.iter().map(|outcome| outcome.checks).sum::<usize>();
    let failures: Vec<&String> = outcomes.iter().flat_map(|outcome| &outcome.failures).collect();
    assert!(failures.is_empty(), "{} of {checks} checks failed:\n{}", failures.len(), join(&failures));
    assert_eq!(cases.len(), 145, "cases in the file");
    assert_eq!(checks, wanted, "every check of the file was made");
}

fn join(failures: &[&String]) -> String {
    failures.iter().map(|failure| format!("* {failure}\n")).collect()
}

fn checks_in(case: &Value) -> usize {
    let steps = case["steps"].as_array().expect("steps");
    steps.iter().filter(|step| step.get("ours").is_some()).count()
}

#[derive(Default)]
struct Outcome {
    checks: usize,
    failures: Vec<String>,
}

/// One case with its publishers; each feeds one worker.
struct Play<'a> {
    service: &'a Service,
    case: &'a Value,
    model: &'a str,
    streams: BTreeMap<&'a str, Stream<'a>>,
}

struct Stream<'a> {
    publisher: Publisher,
    worker: &'a Value,
    last: Cell<Option<u64>>,
    duplicates: Cell<f64>,
    malformed: Cell<f64>,
}

fn play(service: &Service, case: &Value) -> Outcome {
    let mut outcome = Outcome::default();
    let name = case["name"].as_str().expect("a name");
    let play = match Play::start(service, case) {
        Ok(play) => play,
        Err(error) => {
            outcome.failures.push(format!("{name}: start: {error}"));
            return outcome;
        }
    };
    for (number, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
        let op = step["op"].as_str().expect("an op");
        let is_check = step.get("ours").is_some();
        outcome.checks += usize::from(is_check);
        let result = match op {
            "publish" | "frames" => play.publish(step),
            _ if !is_check => Err("a check without an expectation".to_owned()),
            "query" | "query_by_hash" => play.ask(op, step),
            "unregister" => play.unregister(step),
            "dump" => play.dump(step),
            "workers" => play.workers(step),
            "trust" => play.trust(step),
            _ => Err("unknown op".to_owned()),
        };
        if let Err(error) = result {
            outcome.failures.push(format!("{name} step {number} ({op}): {error}"));
        }
    }
    outcome
}

impl<'a> Play<'a> {
    fn start(service: &'a Service, case: &'a Value) -> Result<Self, String> {
        let model = case["model_name"].as_str().expect("a model");
        let mut play = Self { service, case, model, streams: BTreeMap::new() };
        for worker in case["workers"].as_array().expect("workers") {
            let publisher = Publisher::bind();
            let reply = service.post(
                "/register",
                &json!({
                    "instance_id": worker["instance_id"], "dp_rank": worker["dp_rank"], "tenant_id": worker["tenant_id"],
                    "endpoint": publisher.endpoint, "model_name": model, "block_size": case["block_size"],
                }),
            );
            if reply.status != 201 {
                return Err(format!("register: {} {}", reply.status, reply.text()));
            }
            publisher.wait_subscribed();
            let stream = Stream {
                publisher,
                worker,
                last: Cell::default(),
                duplicates: Cell::default(),
                malformed: Cell::default(),
            };
            try_within(CASE_DEADLINE, || {
                let listener = play.listener(&stream).unwrap_or(Value::Null);
                if listener["status"] == "active" { Ok(()) } else { Err(format!("not active: {listener}")) }
            })?;
            let before = play.streams.insert(worker["publisher"].as_str().expect("a publisher"), stream);
            assert!(before.is_none(), "{model}: a publisher feeds one worker");
        }
        Ok(play)
    }

    fn listener(&self, stream: &Stream<'_>) -> Option<Value> {
        let worker = stream.worker;
        let tenant = worker["tenant_id"].as_str().expect("a tenant");
        let rank = worker["dp_rank"].as_u64().expect("a rank") as u32;
        self.service.listener(self.model, tenant, &plain(&worker["instance_id"]), rank)
    }

    /// Sends, then waits until the service has dealt with it: applied, counted as a duplicate, or counted as malformed.
    fn publish(&self, step: &Value) -> Result<(), String> {
        let name = step["publisher"].as_str().expect("a publisher");
        let stream = self.streams.get(name).ok_or("unknown publisher")?;
        let instance = plain(&stream.worker["instance_id"]);
        let labels = [("model", self.model), ("instance_id", instance.as_str())];
        let is_registered = self.listener(stream).is_some();
        let frames = frames_of(step);
        stream.publisher.send_frames(&frames);
        let [_, number, _] = frames.as_slice() else {
            return self.wait_malformed(stream, &labels);
        };
        let Ok(number) = <[u8; 8]>::try_from(number.as_slice()) else {
            return self.wait_malformed(stream, &labels);
        };
        let seq = u64::from_be_bytes(number);
        if !is_registered {
            return Ok(()); // the listener ended before /unregister was answered
        }
        let is_restart = seq == 0 && stream.last.get().is_some_and(|last| last > 0);
        if stream.last.get().is_some_and(|last| seq <= last) && !is_restart {
            stream.duplicates.set(stream.duplicates.get() + 1.0);
            return self.wait_metric("kvindexer_duplicate_batches_total", &labels, stream.duplicates.get());
        }
        stream.last.set(Some(seq));
        try_within(CASE_DEADLINE, || {
            let listener = self.listener(stream).unwrap_or(Value::Null);
            if listener["last_seq"] == seq { Ok(()) } else { Err(format!("batch {seq} is not applied: {listener}")) }
        })
    }

    fn wait_malformed(&self, stream: &Stream<'_>, labels: &[(&str, &str); 2]) -> Result<(), String> {
        stream.malformed.set(stream.malformed.get() + 1.0);
        let labels = [labels[0], labels[1], ("reason", "malformed_frames")];
        self.wait_metric("kvindexer_skipped_events_total", &labels, stream.malformed.get())
    }

    fn wait_metric(&self, name: &str, labels: &[(&str, &str)], want: f64) -> Result<(), String> {
        try_within(CASE_DEADLINE, || {
            let got = self.service.metric(name, labels);
            if got >= want { Ok(()) } else { Err(format!("{name} {labels:?}: got {got}, want {want}")) }
        })
    }

    fn ask(&self, op: &str, step: &Value) -> Result<(), String> {
        let reply = self.service.post(&format!("/{op}"), &step["request"]);
        status_and_code(reply.status, &reply.json(), &step["ours"])?;
        if reply.status >= 400 { Ok(()) } else { compare::query_answer(&reply.json(), &step["ours"]["json"]) }
    }

    fn unregister(&self, step: &Value) -> Result<(), String> {
        let reply = self.service.post("/unregister", &step["request"]);
        status_and_code(reply.status, &reply.json(), &step["ours"])?;
        compare::includes(&reply.json(), &step["ours"]["json"], "answer")
    }

    fn dump(&self, step: &Value) -> Result<(), String> {
        let got = self.service.dump(self.model);
        if step["ours"].is_null() {
            return self.dump_of_an_undecided_case(&got);
        }
        let (mine, want) = (got.as_object().ok_or("no object")?, step["ours"].as_object().ok_or("no expectation")?);
        if !mine.keys().eq(want.keys()) {
            return Err(format!("keys: got {:?}, want {:?}", mine.keys(), want.keys()));
        }
        want.iter().try_for_each(|(key, want)| {
            if mine[key]["block_size"] != want["block_size"] {
                return Err(format!("block_size: got {}, want {}", mine[key]["block_size"], want["block_size"]));
            }
            let list = |value: &Value| value["blocks"].as_array().cloned().unwrap_or_default();
            compare::includes_in_any_order(&list(&mine[key]), &list(want), key)
        })
    }

    fn dump_of_an_undecided_case(&self, got: &Value) -> Result<(), String> {
        let (_, plain_hashes) =
            NOT_DECIDED.iter().find(|(name, _)| self.case["name"] == *name).ok_or("a check without an expectation")?;
        let blocks: Vec<&Value> = got
            .as_object()
            .into_iter()
            .flat_map(serde_json::Map::values)
            .flat_map(|entry| entry["blocks"].as_array().into_iter().flatten())
            .collect();
        if blocks.is_empty() {
            return Err("no block in the dump".to_owned());
        }
        let looks_plain =
            |block: &&&Value| block["tokens_hash"].as_u64().is_some_and(|hash| plain_hashes.contains(&hash));
        blocks.iter().find(looks_plain).map_or(Ok(()), |block| Err(format!("looks like a plain block: {block}")))
    }

    fn workers(&self, step: &Value) -> Result<(), String> {
        let mut got = self.service.workers(self.model);
        for worker in &mut got {
            for listener in worker["listeners"].as_object_mut().ok_or("no listeners")?.values_mut() {
                *listener = listener["status"].clone();
            }
        }
        if step["ours"]["status"] != 200 {
            return Err("a check without an expectation".to_owned());
        }
        compare::includes_in_any_order(&got, step["ours"]["workers"].as_array().ok_or("no expectation")?, "workers")
    }

    fn trust(&self, step: &Value) -> Result<(), String> {
        if step["ours"]["state"].is_null() {
            return Err("a check without an expectation".to_owned());
        }
        let reply = self.service.get(&format!("/workers?model_name={}", percent(self.model)));
        let all = reply.json();
        let worker = all
            .as_array()
            .into_iter()
            .flatten()
            .find(|worker| plain(&worker["instance_id"]) == plain(&step["instance_id"]))
            .ok_or_else(|| format!("not in {all}"))?;
        compare::trust(&worker["listeners"][plain(&step["dp_rank"])], &step["ours"])
    }
}

fn frames_of(step: &Value) -> Frames {
    let hex = |frame: &Value| from_hex(frame.as_str().expect("hex"));
    if let Some(frames) = step["frames_hex"].as_array() {
        return frames.iter().map(hex).collect();
    }
    let number = step["seq"].as_u64().expect("a number");
    let topic = step["topic"].as_str().expect("a topic");
    vec![topic.as_bytes().to_vec(), number.to_be_bytes().to_vec(), hex(&step["payload_hex"])]
}

fn status_and_code(status: u16, got: &Value, want: &Value) -> Result<(), String> {
    if want["status"].is_null() {
        return Err("a check without an expectation".to_owned());
    }
    if want["status"] != status || (status >= 400 && got["code"] != want["json"]["code"]) {
        return Err(format!("got {status} {got}, want {want}"));
    }
    Ok(())
}
