//! Names of every kind survive both ways of recovery: as they are, and never as another one's.

use serde_json::{Value, json};

use crate::harness::msgpack::{batch, encode, stored};
use crate::harness::service::plain;
use crate::harness::worker::tokens;
use crate::harness::{FakePeer, Publisher, Service, wait_for};

/// Model, tenant, instance. The fourth and fifth pair have one joined form.
fn names() -> Vec<(String, String, Value)> {
    let text = |model: &str, tenant: &str, instance: Value| (model.to_owned(), tenant.to_owned(), instance);
    vec![
        text("org/llama:8b", "default", json!("serving/llama-0")),
        text("org/llama:8b", "acme:eu", json!("serving/llama-0")),
        text("plain", "acme:eu:1", json!(7)),
        text("a:b", "c", json!("007")),
        text("a", "b:c", json!(u64::MAX)),
        text("", "", json!("a:b/c?d=e&f#g%20h")),
        text("", "default", json!("x".repeat(317))),
        text(":", ":", json!("Instanz \"ä\" \\ 模型")),
        text(&" ".repeat(200 * 1024), "default", json!("under a long name")),
    ]
}

/// One worker for each name, each with a prompt of its own.
struct Fleet {
    workers: Vec<(String, String, Value, Publisher)>,
}

impl Fleet {
    fn at(service: &Service) -> Self {
        let workers = names().into_iter().enumerate().map(|(number, (model, tenant, instance))| {
            let publisher = Publisher::bind();
            let reply = service.post(
                "/register",
                &json!({"instance_id": instance, "model_name": model, "tenant_id": tenant, "block_size": 4,
                    "endpoint": publisher.endpoint}),
            );
            assert_eq!(reply.status, 201, "{}", reply.text());
            publisher.wait_subscribed();
            publisher.send("kv-events", 0, &batch(json!([stored(&[1, 2], None, &prompt(number))])));
            (model, tenant, instance, publisher)
        });
        let fleet = Self { workers: workers.collect() };
        wait_for("all batches to be applied", || fleet.check(service, true));
        fleet
    }

    /// Each name answers with its own worker and its own prompt only.
    fn check(&self, service: &Service, registered: bool) -> Result<(), String> {
        for (number, (model, tenant, instance, publisher)) in self.workers.iter().enumerate() {
            for other in 0..self.workers.len() {
                let request = json!({"model_name": model, "tenant_id": tenant, "token_ids": prompt(other)});
                let answer = service.query(&request);
                let instances = answer["instances"].as_object().ok_or("no instances")?;
                let want = if other == number { 8 } else { 0 };
                let got = instances.get(&plain(instance)).map_or(json!(0), |it| it["gpu"].clone());
                if got != want || instances.len() > 1 {
                    return Err(format!("{number} asked for the prompt of {other}: {answer}"));
                }
            }
            let workers = service.get("/workers").json();
            let worker = workers.as_array().into_iter().flatten().find(|worker| {
                worker["model_name"] == *model && worker["tenant_id"] == *tenant && worker["instance_id"] == *instance
            });
            let worker = worker.ok_or_else(|| format!("{number} is no worker: {instance}"))?;
            let endpoint = if registered { json!(publisher.endpoint) } else { Value::Null };
            if worker["endpoints"]["0"] != endpoint && registered {
                return Err(format!("{number}: {worker}"));
            }
        }
        Ok(())
    }
}

fn prompt(number: usize) -> Vec<u32> {
    tokens(1 + 8 * number as u32, 8)
}

#[test]
fn names_of_every_kind_survive_a_snapshot() {
    let source = Service::start();
    let fleet = Fleet::at(&source);
    let service = Service::start_with(&["--peers", &source.url()], &[]);
    wait_for("all names", || fleet.check(&service, true));
    for (_, _, _, publisher) in &fleet.workers {
        publisher.send("kv-events", 1, &batch(json!([stored(&[3], None, &tokens(90_001, 4))])));
    }
    for (model, tenant, instance, _) in &fleet.workers {
        wait_for("the batch after the start", || {
            let request = json!({"model_name": model, "tenant_id": tenant, "token_ids": tokens(90_001, 4)});
            let answer = service.query(&request);
            let owner = &answer["instances"][plain(instance)];
            if owner["gpu"] == 4 && owner["trust"].is_null() { Ok(()) } else { Err(owner.to_string()) }
        });
    }
}

#[test]
fn names_of_every_kind_survive_a_dump() {
    let source = Service::start();
    let fleet = Fleet::at(&source);
    let dump = source.get("/dump").body;
    // No replica of our kind: only the dump is served.
    let peer = FakePeer::start(move |asked, line| match asked.path() {
        "/dump" => line.reply(200, "application/json", &dump),
        _ => line.not_found(),
    });
    let service = Service::start_with(&["--peers", &peer.url()], &[]);
    wait_for("all names", || fleet.check(&service, false));
}

#[test]
fn namespaces_survive_a_snapshot() {
    let source = Service::start();
    let publisher = Publisher::bind();
    let body = json!({"instance_id": 1, "model_name": "spaces", "block_size": 4, "endpoint": publisher.endpoint});
    assert_eq!(source.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    let lora = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": tokens(1, 8),
        "block_size": 4, "lora_id": 3, "lora_name": "poet", "medium": "GPU"});
    let by_id = json!({"type": "BlockStored", "block_hashes": [3], "parent_block_hash": null, "token_ids": tokens(1, 4),
        "block_size": 4, "lora_id": 4, "medium": "GPU"});
    let salted = json!({"type": "BlockStored", "block_hashes": [5, 6, 7], "parent_block_hash": null,
        "token_ids": tokens(1, 12), "block_size": 4, "medium": "GPU", "cache_salt": "pepper",
        "extra_keys": [["pepper"], null, null]});
    publisher.send("kv-events", 0, &encode(&json!([1.0, [lora, by_id, salted], null])));
    let questions = [
        json!({}),
        json!({"lora_name": "poet"}),
        json!({"lora_id": 4}),
        json!({"lora_id": 3}),
        json!({"cache_salt": "pepper"}),
        json!({"cache_salt": "salt"}),
    ];
    let answers = |service: &Service| -> Vec<Value> {
        let ask = |more: &Value| {
            let mut request = json!({"model_name": "spaces", "token_ids": tokens(1, 12)});
            more.as_object().into_iter().flatten().for_each(|(key, value)| request[key] = value.clone());
            service.query(&request)["instances"]["1"]["gpu"].clone()
        };
        questions.iter().map(ask).collect()
    };
    let want = wait_for("the batch to be applied", || {
        let seen = answers(&source);
        if seen[1] == 8 && seen[2] == 4 { Ok(seen) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!(want[0], 0, "a plain query sees plain blocks only");
    let service = Service::start_with(&["--peers", &source.url()], &[]);
    assert_eq!(answers(&service), want);
    // A child inherits from a parent that only the snapshot told of.
    let child = stored(&[8], Some(2), &tokens(9, 4));
    publisher.send("kv-events", 1, &batch(json!([child])));
    for replica in [&source, &service] {
        wait_for("the child to be applied", || {
            let seen = answers(replica);
            if seen[1] == 12 { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
    assert_eq!(answers(&service), answers(&source));
}
