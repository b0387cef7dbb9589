//! The reference service beside ours: each recovers from the other's `/dump`, and both answer alike.
//!
//! Runs only when `KVINDEXER_REFERENCE_CMD` names commands that start it, separated by `;`, for example
//! `ref-1.6.1/bin/python -m dynamo.indexer;ref-1.3.1/bin/python -m dynamo.indexer`.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::http::{Reply, Request, exchange};
use crate::harness::msgpack::{batch_of_rank, removed, stored, stored_on};
use crate::harness::service::free_address;
use crate::harness::worker::tokens;
use crate::harness::{Publisher, Service, wait_for, wait_within};

const COMMANDS: &str = "KVINDEXER_REFERENCE_CMD";
const MODEL: &str = "compat";
const PROMPTS: u32 = 40;
const BLOCKS: u32 = 30;

/// A running reference service.
struct Reference {
    child: Child,
    address: SocketAddr,
}

impl Reference {
    fn start(command: &str, more: &[&str]) -> Self {
        let mut words = command.split_whitespace();
        let address = free_address();
        let child = Command::new(words.next().expect("a program"))
            .args(words)
            .args(["--port", &address.port().to_string()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        let reference = Self { child, address };
        wait_within(Duration::from_secs(30), "the reference to answer", || {
            let reply = exchange(address, &Request { method: "GET", path: "/health", ..Request::default() })?;
            if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
        });
        reference
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        post(self.address, path, body)
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    let body = body.to_string();
    let content_type = Some("application/json");
    exchange(address, &Request { method: "POST", path, content_type, body: Some(body.as_bytes()) }).expect("an answer")
}

/// Prompts share the first third of their blocks by fours.
fn prompt(number: u32) -> Vec<u32> {
    let shared = BLOCKS / 3 * 4;
    [tokens(1 + number / 4 * 10_000, shared), tokens(1_000_001 + number * 1_000, BLOCKS * 4 - shared)].concat()
}

fn hash(number: u32, block: u32) -> u64 {
    let owner = if block < BLOCKS / 3 { number - number % 4 } else { number };
    u64::from(owner) * 1_000 + u64::from(block) + 1
}

/// Batches of instance 1 (two ranks) and 2: stores, tails removed, host copies behind them.
fn batches(instance: u64) -> Vec<Vec<u8>> {
    let of = |number: u32| {
        let (prompt, rank) = (prompt(number), number % 2 * u32::from(instance == 1));
        let held = BLOCKS - number % 7;
        let hashes: Vec<u64> = (0..BLOCKS).map(|block| hash(number, block)).collect();
        let mut events = vec![stored(&hashes, None, &prompt)];
        for block in (held..BLOCKS).rev() {
            let at = block as usize;
            events.push(stored_on("CPU", &hashes[at..=at], Some(hashes[at - 1]), &prompt[4 * at..4 * at + 4]));
            events.push(removed(&hashes[at..=at], "GPU"));
        }
        batch_of_rank(events.into(), rank)
    };
    (0..PROMPTS).filter(|number| u64::from(number % 3) != instance).map(of).collect()
}

/// Registered at `source`, everything published and applied there.
fn feed(source: SocketAddr) -> Vec<Publisher> {
    let publishers: Vec<(u64, Publisher)> = [1, 2].map(|instance| (instance, Publisher::bind())).into();
    for (instance, publisher) in &publishers {
        let body =
            json!({"instance_id": instance, "model_name": MODEL, "block_size": 4, "endpoint": publisher.endpoint});
        let reply = post(source, "/register", &body);
        assert_eq!(reply.status, 201, "{}", reply.text());
        publisher.wait_subscribed();
        for (number, payload) in batches(*instance).into_iter().enumerate() {
            publisher.send("", number as u64, &payload);
        }
    }
    // Applied when the last prompt of each is there.
    for (instance, number) in [("1", PROMPTS - 2), ("2", PROMPTS - 1)] {
        wait_for("everything to be applied", || {
            let answer = ask(source, number);
            let held = u64::from(BLOCKS) * 4;
            match answer["instances"][instance]["cpu"].as_u64() {
                Some(tokens) if tokens == held => Ok(()),
                _ => Err(answer.to_string()),
            }
        });
    }
    publishers.into_iter().map(|(_, publisher)| publisher).collect()
}

fn ask(address: SocketAddr, number: u32) -> Value {
    post(address, "/query", &json!({"model_name": MODEL, "token_ids": prompt(number)})).json()
}

/// Tokens by instance and rank or tier, without those that hold nothing: the reference leaves them out.
fn held(answer: &Value) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for (instance, row) in answer["instances"].as_object().into_iter().flatten() {
        for tier in ["gpu", "cpu", "disk", "longest_matched"] {
            all.push((format!("{instance} {tier}"), row[tier].as_u64().unwrap_or(0)));
        }
        for (rank, tokens) in row["dp"].as_object().into_iter().flatten() {
            all.push((format!("{instance} rank {rank}"), tokens.as_u64().unwrap_or(0)));
        }
    }
    all.retain(|(_, tokens)| *tokens > 0);
    all.sort();
    all
}

#[track_caller]
fn answer_alike(source: SocketAddr, copy: SocketAddr, what: &str) {
    let mut tokens = 0;
    for number in 0..PROMPTS {
        let (want, got) = (held(&ask(source, number)), held(&ask(copy, number)));
        assert_eq!(got, want, "{what}, prompt {number}");
        tokens += want.iter().map(|(_, tokens)| tokens).sum::<u64>();
    }
    assert!(tokens > 10_000, "little was held");
    eprintln!("{what}: {PROMPTS} prompts answered alike");
}

#[test]
fn ours_and_the_reference_recover_from_each_other() {
    let Ok(commands) = std::env::var(COMMANDS) else {
        eprintln!("skipped: {COMMANDS} names no reference service");
        return;
    };
    for command in commands.split(';').filter(|command| !command.trim().is_empty()) {
        let reference = Reference::start(command, &[]);
        let publishers = feed(reference.address);
        let ours = Service::start_with(&["--peers", &reference.url()], &[]);
        answer_alike(reference.address, ours.address, &format!("ours from {command}"));
        let workers = ours.workers(MODEL);
        assert!(workers.len() == 2 && workers.iter().all(|worker| worker["source"] == "recovered"), "{workers:?}");
        let reply = reference.post("/unregister", &json!({"instance_id": 1, "model_name": MODEL}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        drop((publishers, reference, ours));

        let ours = Service::start();
        let publishers = feed(ours.address);
        let reference = Reference::start(command, &["--peers", &ours.url()]);
        answer_alike(ours.address, reference.address, &format!("{command} from ours"));
        drop(publishers);
    }
}
