//! Public faults of comparable systems: HTTP and registration. Each test is one row.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::msgpack::stored;
use crate::harness::worker::tokens;
use crate::harness::{Publisher, Service, Worker, wait_for};

const MIB: usize = 1 << 20;

#[test]
fn f29_long_prompts_fit_and_larger_bodies_are_refused_as_json() {
    let service = Service::start();
    let mut worker = Worker::with(&service, "f29", 1, json!({"block_size": 16}));
    let prompt = tokens(100_000, 1_000_000).into_iter().map(|token| 100_000 + token % 900_000).collect::<Vec<u32>>();
    worker.publish(json!([stored(&[1, 2], None, &prompt[..32])]));
    assert_eq!(worker.gpu(&prompt), 32);
    let hashes = vec![u64::MAX - 5; 62_500];
    let reply = service.post("/query_by_hash", &json!({"model_name": "f29", "block_hashes": hashes}));
    assert_eq!(reply.status, 200, "{}", reply.text());
    for path in ["/query", "/query_by_hash"] {
        let mut body = br#"{"model_name": "f29", "token_ids": [], "block_hashes": [], "pad": ""#.to_vec();
        body.resize(64 * MIB + 1, b'x');
        body.extend_from_slice(b"\"}");
        let reply = service.post_raw(path, "application/json", &body);
        assert_eq!((reply.status, reply.code().as_str()), (413, "body_too_large"), "{path}");
    }
}

#[test]
fn f30_block_size_1_works_and_0_is_refused() {
    let service = Service::start();
    let mut worker = Worker::with(&service, "f30", 1, json!({"block_size": 1}));
    worker.publish(json!([["BlockStored", [1, 2, 3], null, [7, 8, 9], 1, null, "GPU"]]));
    assert_eq!(worker.gpu(&[7, 8, 9, 10]), 3);
    let body = json!({"instance_id": 2, "endpoint": "tcp://127.0.0.1:1", "model_name": "f30-zero", "block_size": 0});
    let reply = service.post("/register", &body);
    assert_eq!((reply.status, reply.code().as_str()), (400, "invalid_block_size"), "{}", reply.text());
    assert_eq!(service.workers("f30-zero"), [] as [Value; 0]);
}

#[test]
fn f32_a_name_that_does_not_resolve_is_never_active_and_delays_nobody() {
    let service = Service::start();
    let body = json!({"instance_id": 9, "endpoint": "tcp://no-such-host.invalid:5557", "model_name": "f32-dead", "block_size": 4});
    assert_eq!(service.post("/register", &body).status, 201);
    let mut worker = Worker::new(&service, "f32");
    let dead = || service.listener("f32-dead", "default", "9", 0).expect("it stays registered");
    wait_for("the cause", || {
        let listener = dead();
        if listener["last_error"].as_str().is_some_and(|text| text.contains("no-such-host.invalid")) {
            Ok(())
        } else {
            Err(listener.to_string())
        }
    });
    let mut delays: Vec<Duration> = (0..40_u32)
        .map(|i| {
            assert_eq!(dead()["status"], "pending");
            let start = Instant::now();
            worker.publish(json!([stored(&[u64::from(i)], None, &tokens(10 * i, 4))]));
            start.elapsed()
        })
        .collect();
    delays.sort_unstable();
    // The median, because the machine that runs the tests may be busy.
    assert!(delays[delays.len() / 2] < Duration::from_millis(100), "{delays:?}");
}

#[test]
fn f33_a_bracketed_ipv6_address_is_ingested_from() {
    let service = Service::start();
    let publisher = Publisher::bind_to("tcp://[::1]:*");
    assert!(publisher.endpoint.starts_with("tcp://[::1]:"), "{}", publisher.endpoint);
    let body = json!({"instance_id": 1, "endpoint": publisher.endpoint, "model_name": "f33", "block_size": 4});
    assert_eq!(service.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    publisher.batch(0, json!([stored(&[1], None, &tokens(1, 4))]));
    wait_for("the block", || {
        let answer = service.query(&json!({"model_name": "f33", "token_ids": tokens(1, 4)}));
        if answer["instances"]["1"]["gpu"] == 4 { Ok(()) } else { Err(answer.to_string()) }
    });
}
