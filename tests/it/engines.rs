//! Recorded streams of real engines over sockets into the built binary: every question of every run of every file.

use serde_json::{Value, json};

use crate::harness::service::{CASE_DEADLINE, plain};
use crate::harness::zmq_sockets::{Frames, Ring, Shape};
use crate::harness::{Publisher, Router, Service, compare, data, from_hex, in_parallel, try_within};

const THREADS: usize = 8;
const FILES: usize = 52;
const QUESTIONS: usize = 149;

#[test]
fn engines_recorded_streams_are_answered_right() {
    let files = files();
    assert_eq!(files.len(), FILES, "files");
    let questions: usize = files.iter().map(|file| file["queries"].as_array().expect("queries").len()).sum();
    assert_eq!(questions, QUESTIONS, "questions in the files");
    let runs: Vec<(&Value, &Value)> = files
        .iter()
        .flat_map(|file| file["register"].as_array().expect("runs").iter().map(move |run| (file, run)))
        .collect();
    let wanted: usize = runs.iter().map(|(file, run)| questions_of(file, run).count()).sum();
    let service = Service::start();
    let outcomes = in_parallel(&runs, THREADS, |(file, run)| play(&service, file, run));
    let checks: usize = outcomes.iter().map(|outcome| outcome.checks).sum();
    let failures: String = outcomes.into_iter().flat_map(|outcome| outcome.failures).collect();
    assert!(failures.is_empty(), "{} of {checks} answers are wrong:\n{failures}", failures.lines().count());
    assert_eq!(checks, wanted, "every question was asked");
}

fn files() -> Vec<Value> {
    let folder = format!("{}/tests/data/engines", env!("CARGO_MANIFEST_DIR"));
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("plain names"))
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    names.iter().map(|name| serde_json::from_str(&data(&format!("engines/{name}"))).expect("JSON")).collect()
}

/// The default run answers every question; another run those that have an answer under its key.
fn questions_of<'a>(file: &'a Value, run: &'a Value) -> impl Iterator<Item = &'a Value> {
    let key = run["answer"].as_str().expect("the key of the answer");
    let all = file["queries"].as_array().expect("queries");
    all.iter().filter(move |question| key == "ours" || question.get(key).is_some())
}

#[derive(Default)]
struct Outcome {
    checks: usize,
    failures: Vec<String>,
}

struct Play<'a> {
    service: &'a Service,
    file: &'a Value,
    run: &'a Value,
    publisher: Publisher,
    ring: Ring,
    router: Router,
    frames: Vec<Frames>,
}

fn play(service: &Service, file: &Value, run: &Value) -> Outcome {
    let mut outcome = Outcome::default();
    let name = format!("{} ({})", file["name"], run["answer"]);
    let mut play = Play::new(service, file, run);
    for sent in 0..=play.frames.len() {
        if let Err(error) = play.register_after(sent) {
            outcome.failures.push(format!("* {name} before frame {sent}: {error}\n"));
        }
        for question in questions_of(file, run).filter(|question| question["after_frames"] == sent) {
            outcome.checks += 1;
            if let Err(error) = play.ask(question, sent) {
                outcome.failures.push(format!("* {name} after {sent} frames, {}: {error}\n", question["label"]));
            }
        }
        if sent < play.frames.len()
            && let Err(error) = play.send(sent)
        {
            outcome.failures.push(format!("* {name} frame {sent}: {error}\n"));
        }
    }
    outcome
}

impl<'a> Play<'a> {
    fn new(service: &'a Service, file: &'a Value, run: &'a Value) -> Self {
        let frames = file["frames"].as_array().expect("frames").iter().map(message).collect();
        let has_topic = file["replay_answer_from_1"][0].as_array().is_some_and(|frames| frames.len() == 4);
        let ring = Ring::default();
        let router = ring.router(if has_topic { Shape::Four } else { Shape::Three });
        Self { service, file, run, publisher: Publisher::bind(), ring, router, frames }
    }

    fn model(&self, worker: &str) -> String {
        format!("{}-{}-{worker}", plain(&self.file["name"]), plain(&self.run["answer"]))
    }

    /// Registers the workers that connect when `sent` frames have been sent.
    fn register_after(&self, sent: usize) -> Result<(), String> {
        for (name, worker) in self.file["workers"].as_object().expect("workers") {
            if worker["connect_after_frames"] != sent {
                continue;
            }
            let mut body = json!({
                "instance_id": worker["instance_id"], "dp_rank": worker["dp_rank"], "block_size": worker["block_size"],
                "endpoint": self.publisher.endpoint, "model_name": self.model(name),
            });
            if worker["replay"] == true {
                body["replay_endpoint"] = json!(self.router.endpoint);
            }
            for (key, value) in self.run["extra"].as_object().expect("extra fields") {
                body[key] = value.clone();
            }
            let reply = self.service.post("/register", &body);
            if reply.status != 201 {
                return Err(format!("register {name}: {} {}", reply.status, reply.text()));
            }
            self.publisher.wait_subscribed();
            self.wait_status(name, "active")?;
        }
        Ok(())
    }

    fn listener(&self, worker: &str) -> Value {
        let spec = &self.file["workers"][worker];
        let rank = spec["dp_rank"].as_u64().expect("a rank") as u32;
        self.service.listener(&self.model(worker), "default", &plain(&spec["instance_id"]), rank).unwrap_or(Value::Null)
    }

    fn wait_status(&self, worker: &str, status: &str) -> Result<(), String> {
        try_within(CASE_DEADLINE, || {
            let listener = self.listener(worker);
            if listener["status"] == status { Ok(()) } else { Err(format!("{worker} is not {status}: {listener}")) }
        })
    }

    fn send(&mut self, number: usize) -> Result<(), String> {
        if self.file["restart_before_frame"] == number {
            self.restart()?;
        }
        let frames = &self.frames[number];
        self.ring.push(number_of(frames), &frames[2]);
        self.publisher.send_frames(frames);
        // Each frame is applied before the next: a connection that was just made must not hide a wrong order.
        let connected = self.file["workers"].as_object().expect("workers").iter();
        let connected = connected.filter(|(_, spec)| spec["connect_after_frames"].as_u64() <= Some(number as u64));
        connected.map(|(name, _)| name).try_for_each(|name| self.wait_applied(name, number))
    }

    /// The engine died: its socket goes, the listener notices, another process takes the address.
    fn restart(&mut self) -> Result<(), String> {
        let endpoint = self.publisher.endpoint.clone();
        self.publisher = Publisher::bind();
        self.wait_status("main", "pending")?;
        self.publisher = Publisher::bind_to(&endpoint);
        self.publisher.wait_subscribed();
        self.wait_status("main", "active")
    }

    fn wait_applied(&self, worker: &str, number: usize) -> Result<(), String> {
        let seq = number_of(&self.frames[number]);
        try_within(CASE_DEADLINE, || {
            let listener = self.listener(worker);
            if listener["last_seq"] == seq {
                Ok(())
            } else {
                Err(format!("{seq} is not applied by {worker}: {listener}"))
            }
        })
    }

    fn ask(&self, question: &Value, sent: usize) -> Result<(), String> {
        let worker = question["worker"].as_str().expect("a worker");
        self.wait_applied(worker, sent - 1)?;
        let mut request = json!({"model_name": self.model(worker), "token_ids": question["token_ids"]});
        for (key, value) in question["args"].as_object().expect("other fields") {
            request[key] = value.clone();
        }
        let want = &question[self.run["answer"].as_str().expect("a key")];
        if !["gpu", "cpu", "disk"].iter().all(|tier| want[tier].is_u64()) {
            return Err("a question without an expectation".to_owned());
        }
        let reply = self.service.post("/query", &request);
        if reply.status != 200 {
            return Err(format!("got {} {}", reply.status, reply.text()));
        }
        let id = plain(&self.file["workers"][worker]["instance_id"]);
        let got = &reply.json()["instances"][id];
        let absent = json!({"gpu": 0, "cpu": 0, "disk": 0, "dp": {}});
        compare::includes(if got.is_null() { &absent } else { got }, want, "answer")
            .map_err(|error| format!("{error}; got {got}, want {want}"))
    }
}

fn message(frames: &Value) -> Frames {
    frames.as_array().expect("frames").iter().map(|frame| from_hex(frame.as_str().expect("hex"))).collect()
}

fn number_of(frames: &Frames) -> u64 {
    u64::from_be_bytes(frames[1].as_slice().try_into().expect("eight bytes"))
}
