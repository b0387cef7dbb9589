//! No silent fault: every reason that can be raised from outside is raised, seen in `/workers`, `/query` and `/metrics`, and ended.

use serde_json::{Value, json};

use crate::harness::msgpack::{self, stored};
use crate::harness::worker::{BLOCK, tokens};
use crate::harness::zmq_sockets::{DeadEndpoint, Ring, Shape};
use crate::harness::{Publisher, Service, Worker, wait_for};

const CLEAR: &str = "AllBlocksCleared";

/// Raises a reason by `events`, sees it everywhere, and ends it by a clear and by a restart.
#[track_caller]
fn raised_by_events(reason: &str, batches: &[Value]) {
    let service = Service::start();
    for ended_by_restart in [false, true] {
        let mut worker = Worker::new(&service, &format!("trust-{reason}-{ended_by_restart}"));
        worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
        worker.assert_exact();
        batches.iter().for_each(|events| worker.publish(events.clone()));
        worker.assert_says("degraded", reason);
        if ended_by_restart {
            worker.restart_publisher();
            worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
        } else {
            worker.publish(json!([[CLEAR]]));
        }
        worker.assert_exact();
    }
}

#[test]
fn pending_parents_is_said_and_ends() {
    raised_by_events("pending_parents", &[json!([stored(&[9], Some(8), &tokens(50, 4))])]);
}

#[test]
fn skipped_is_said_and_ends() {
    raised_by_events("skipped", &[json!([["BlockStored", ["text"], null, [1, 2, 3, 4], 4, null, "GPU"]])]);
}

#[test]
fn an_undecodable_batch_is_skipped_and_uses_its_number() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "trust-undecodable");
    worker.publish_payload(&[0xc1]);
    assert_eq!(worker.skipped("undecodable_batch"), 1.0);
    worker.assert_says("degraded", "skipped");
    worker.publish(json!([[CLEAR]]));
    worker.assert_exact();
}

#[test]
fn block_size_mismatch_is_said_and_ends() {
    raised_by_events("block_size_mismatch", &[json!([["BlockStored", [9], null, tokens(50, 6), 6, null, "GPU"]])]);
}

#[test]
fn unknown_group_is_said_and_ends() {
    let of_group =
        |group: u32, hash: u64| json!(["BlockStored", [hash], null, tokens(50, 4), 4, null, "GPU", null, null, group]);
    raised_by_events("unknown_group", &[json!([of_group(0, 9), of_group(1, 9)])]);
}

#[test]
fn ambiguous_groups_is_said_after_16_twins_and_ends() {
    let twins = |n: u32| {
        let store = stored(&[u64::from(100 + n)], None, &tokens(100 * n, 4));
        json!([store, store])
    };
    raised_by_events("ambiguous_groups", &(1..=16).map(twins).collect::<Vec<_>>());
}

#[test]
fn ambiguous_groups_ends_with_a_store_without_a_twin() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "trust-twins");
    for n in 1..=16 {
        let store = stored(&[u64::from(100 + n)], None, &tokens(100 * n, 4));
        worker.publish(json!([store, store]));
    }
    worker.assert_says("degraded", "ambiguous_groups");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.assert_exact();
}

#[test]
fn gap_is_said_and_ends() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "trust-gap");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.jump_to(7, json!([stored(&[2], None, &tokens(10, 4))]));
    worker.assert_says("degraded", "gap");
    worker.publish(json!([[CLEAR]]));
    worker.assert_exact();
}

#[test]
fn a_replay_that_stays_incomplete_is_said_and_ends() {
    let service = Service::start();
    let dead = DeadEndpoint::reserve();
    let mut worker = Worker::with(&service, "trust-replay", 1, json!({"replay_endpoint": dead.endpoint}));
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.jump_to(7, json!([stored(&[2], None, &tokens(10, 4))]));
    worker.assert_says("degraded", "replay_incomplete");
    worker.publish(json!([[CLEAR]]));
    worker.assert_exact();
}

#[test]
fn a_complete_replay_from_0_heals_a_gap() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Three);
    let mut worker = Worker::with_replay(&service, "trust-heal", 1, &router, &ring);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    ring.push(1, &msgpack::batch(json!([stored(&[2], Some(1), &tokens(5, 4))])));
    worker.jump_to(2, json!([stored(&[3], Some(2), &tokens(9, 4))]));
    assert_eq!(worker.gpu(&tokens(1, 12)), 12);
    worker.assert_exact();
}

#[test]
fn unverified_reconnect_is_said_and_ends_with_the_next_number() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "trust-reconnect");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.assert_exact();
    worker.reconnect();
    worker.assert_says("degraded", "unverified_reconnect");
    assert_eq!(worker.gpu(&tokens(1, 4)), 4, "the blocks stay");
    worker.publish(json!([stored(&[2], Some(1), &tokens(5, 4))]));
    assert_eq!(worker.gpu(&tokens(1, 8)), 8);
    worker.assert_exact();
}

#[test]
fn a_reconnect_with_a_replay_endpoint_is_proved_without_news() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Three);
    let mut worker = Worker::with_replay(&service, "trust-proof", 1, &router, &ring);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let asked = router.requests().len();
    worker.reconnect();
    wait_for("a question from the last number", || {
        let starts = router.starts();
        if starts.len() > asked && starts.last() == Some(&0) { Ok(()) } else { Err(format!("{starts:?}")) }
    });
    worker.assert_exact();
    assert_eq!(worker.held(), [1]);
}

#[test]
fn an_empty_ring_after_a_reconnect_is_a_restart() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Three);
    let mut worker = Worker::with_replay(&service, "trust-emptied", 1, &router, &ring);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.restart_publisher();
    wait_for("the old blocks to go", || {
        if worker.held().is_empty() { Ok(()) } else { Err(worker.listener().to_string()) }
    });
    assert_eq!(worker.metric("kvindexer_publisher_restarts_total", &[]), 1.0);
    worker.assert_exact();
}

#[test]
fn a_hidden_restart_at_larger_numbers_is_found_by_its_payload() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Three);
    let mut worker = Worker::with_replay(&service, "trust-hidden", 1, &router, &ring);
    for n in 0..3_u32 {
        worker.publish(json!([stored(&[u64::from(n)], None, &tokens(100 * n + 1, 4))]));
    }
    // Another life has already come to number 4 when the connection is back.
    worker.restart_publisher();
    for n in 0..4_u64 {
        ring.push(n, &msgpack::batch(json!([stored(&[50 + n], None, &tokens(5000 + 10 * n as u32, 4))])));
    }
    worker.jump_to(4, json!([stored(&[54], None, &tokens(6000, 4))]));
    assert_eq!(worker.held(), [50, 51, 52, 53, 54]);
    assert_eq!(worker.metric("kvindexer_publisher_restarts_total", &[]), 1.0);
    worker.assert_exact();
}

#[test]
fn two_sources_is_said_and_a_restart_of_either_clears_it() {
    let service = Service::start();
    let mut first = Worker::new(&service, "trust-two");
    let second = Publisher::bind();
    let body = json!({
        "instance_id": 1, "dp_rank": 1, "endpoint": second.endpoint, "model_name": "trust-two", "block_size": BLOCK,
    });
    assert_eq!(service.post("/register", &body).status, 201);
    second.wait_subscribed();
    first.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    first.wait_trust("exact", None);
    // The publisher of rank 1 speaks for rank 0.
    second.send("", 0, &msgpack::batch_of_rank(json!([stored(&[2], None, &tokens(10, 4))]), 0));
    wait_for("two_sources", || {
        let listener = first.listener();
        if listener.to_string().contains("two_sources") { Ok(()) } else { Err(listener.to_string()) }
    });
    let said = service.query(&json!({"model_name": "trust-two", "token_ids": []}))["instances"]["1"]["trust"].clone();
    assert!(said.to_string().contains("two_sources"), "{said}");
    assert_eq!(first.metric("kvindexer_trust", &[("state", "degraded"), ("dp_rank", "0")]), 1.0);
    first.restart_publisher();
    first.publish(json!([stored(&[3], None, &tokens(20, 4))]));
    wait_for("the state of the new life", || {
        let listener = first.listener();
        if listener.to_string().contains("two_sources") { Err(listener.to_string()) } else { Ok(()) }
    });
    assert_eq!(first.gpu(&tokens(1, 4)), 0);
    assert_eq!(first.gpu(&tokens(10, 4)), 0, "what the other stream had said of this rank is gone too");
}

#[test]
fn memory_is_said_and_removals_go_on() {
    // A limit that any process exceeds.
    let service = Service::start_with(&["--memory-limit", "1"], &[]);
    let mut worker = Worker::new(&service, "trust-memory");
    let mut hash = 0;
    wait_for("a store to be refused", || {
        hash += 1;
        worker.publish(json!([stored(&[hash], None, &tokens(10 * hash as u32, 4))]));
        if worker.skipped("memory") > 0.0 { Ok(()) } else { Err(worker.listener().to_string()) }
    });
    worker.assert_says("degraded", "memory");
    worker.publish(json!([["BlockRemoved", (1..=hash).collect::<Vec<_>>(), "GPU"]]));
    assert_eq!(worker.held(), [] as [u64; 0]);
}

#[test]
fn stale_is_said_until_something_was_heard_and_when_the_connection_is_lost() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "trust-stale");
    worker.assert_says("stale", "nothing_heard");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.assert_exact();
    let endpoint = worker.publisher.endpoint.clone();
    worker.disconnect();
    worker.assert_says("stale", "not_connected");
    assert!(worker.listener()["last_error"].is_string(), "{}", worker.listener());
    worker.publisher = Publisher::bind_to(&endpoint);
    worker.publisher.wait_subscribed();
    worker.publish(json!([stored(&[2], None, &tokens(10, 4))]));
    worker.assert_exact();
}

#[test]
fn an_engine_that_never_sent_anything_is_exact_once_its_empty_ring_was_read() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Four);
    let worker = Worker::with_replay(&service, "trust-silent", 1, &router, &ring);
    worker.assert_exact();
    assert_eq!(worker.listener()["last_seq"], Value::Null);
}
