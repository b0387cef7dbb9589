//! Public faults of comparable systems: sequence, gaps, replay, streams, removed workers. Each test is one row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::msgpack::{self, removed, stored};
use crate::harness::worker::tokens;
use crate::harness::zmq_sockets::{Ring, Shape, start_of};
use crate::harness::{Publisher, Router, Service, Worker, wait_for, wait_within};

/// Block `100 + n` below block `99 + n`, with tokens `4 n + 1 ..`; the first has no parent.
fn link(number: u64) -> Value {
    stored(&[100 + number], number.checked_sub(1).map(|before| 100 + before), &tokens(4 * number as u32 + 1, 4))
}

fn chain(blocks: u64) -> Vec<u32> {
    tokens(1, 4 * blocks as u32)
}

fn payload(number: u64) -> Vec<u8> {
    msgpack::batch(json!([link(number)]))
}

#[test]
fn f19_a_restart_at_number_0_without_replay_clears_the_worker() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f19");
    (0..10).for_each(|number| worker.publish(json!([link(number)])));
    assert_eq!(worker.gpu(&chain(10)), 40);
    worker.restart_publisher();
    worker.publish(json!([stored(&[1], None, &tokens(1000, 4))]));
    assert_eq!((worker.gpu(&chain(10)), worker.gpu(&tokens(1000, 4))), (0, 4));
    assert_eq!(worker.held(), [1]);
    assert_eq!(worker.metric("kvindexer_publisher_restarts_total", &[]), 1.0);
    worker.assert_exact();
}

#[test]
fn f20_history_before_the_first_message_is_asked_for() {
    let service = Service::start();
    let ring = Ring::default();
    (0..10).for_each(|number| ring.push(number, &payload(number)));
    let router = ring.router(Shape::Three);
    let mut worker = Worker::with_replay(&service, "f20", 1, &router, &ring);
    worker.jump_to(10, json!([link(10)]));
    assert_eq!(worker.gpu(&chain(11)), 44);
    assert_eq!(worker.held(), (100..111).collect::<Vec<u64>>());
    worker.assert_exact();
}

#[test]
fn f21_both_framings_of_a_replay_are_read() {
    let service = Service::start();
    for shape in [Shape::Three, Shape::Four] {
        let ring = Ring::default();
        let router = ring.router(shape);
        let mut worker = Worker::with_replay(&service, &format!("f21-{shape:?}"), 1, &router, &ring);
        worker.publish(json!([link(0)]));
        (1..5).for_each(|number| ring.push(number, &payload(number)));
        worker.jump_to(5, json!([link(5)]));
        assert_eq!(worker.gpu(&chain(6)), 24, "{shape:?}");
        worker.assert_exact();
    }
}

#[test]
fn f22_a_router_that_needs_the_delimiter_fills_the_worker_with_exactly_its_batches() {
    let service = Service::start();
    let router = Router::start(Box::new(|request| {
        let Some(start) = start_of(request) else { return Vec::new() };
        (start..100).map(|number| Shape::Three.message(number, &payload(number))).chain([Shape::Three.end()]).collect()
    }));
    let worker = Worker::with(&service, "f22", 1, json!({"replay_endpoint": router.endpoint}));
    worker.wait_applied(99);
    assert_eq!(worker.gpu(&chain(100)), 400);
    assert_eq!(worker.held(), (100..200).collect::<Vec<u64>>());
    assert!(router.requests().iter().all(|request| start_of(request).is_some()), "{:?}", router.requests());
    worker.assert_exact();
}

#[test]
fn f22_a_replay_without_an_end_is_given_up_and_counted() {
    let service = Service::start();
    // Batches 0 to 4 and no end marker; live traffic goes on at 8.
    let router = Router::start(Box::new(|request| {
        let Some(start) = start_of(request) else { return Vec::new() };
        (start..5).map(|number| Shape::Three.message(number, &payload(number))).collect()
    }));
    let mut worker = Worker::with(&service, "f22-endless", 1, json!({"replay_endpoint": router.endpoint}));
    worker.jump_to(8, json!([link(8)]));
    assert_eq!(worker.gpu(&chain(9)), 20, "what came in sequence is applied");
    assert_eq!(worker.held(), [100, 101, 102, 103, 104, 108]);
    let given_up =
        ["incomplete", "failed"].map(|outcome| worker.metric("kvindexer_replays_total", &[("outcome", outcome)]));
    assert!(given_up.iter().sum::<f64>() >= 1.0, "{given_up:?}");
    assert_eq!(worker.listener()["status"], "active");
    worker.wait_trust("degraded", None);
    worker.publish(json!([stored(&[900], None, &tokens(5000, 4))]));
    assert_eq!(worker.gpu(&tokens(5000, 4)), 4, "the listener is alive");
}

#[test]
fn f23_a_replay_that_overlaps_live_traffic_applies_each_batch_once() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Three);
    // Copies show a batch that was applied twice: one removal per store must leave nothing.
    let extra = json!({"replay_endpoint": router.endpoint, "duplicate_policy": "copies"});
    let mut worker = Worker::with(&service, "f23", 1, extra);
    let store = msgpack::batch(json!([stored(&[7], None, &tokens(70, 4))]));
    let remove = msgpack::batch(json!([removed(&[7], "GPU")]));
    let all = [payload(0), store, payload(1), remove, payload(2)];
    all.iter().enumerate().for_each(|(number, payload)| ring.push(number as u64, payload));
    worker.next = 0;
    worker.publish_payload(&all[0]);
    worker.next = 2;
    worker.publisher.send("", 2, &all[2]); // shows the gap; the replay returns it and more
    worker.publisher.send("", 3, &all[3]);
    worker.publisher.send("", 4, &all[4]);
    worker.wait_applied(4);
    assert_eq!(worker.held(), [100, 101, 102]);
    assert_eq!(worker.gpu(&tokens(70, 4)), 0);
    worker.assert_exact();
}

#[test]
fn f24_a_gap_that_cannot_be_repaired_is_shown_everywhere() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f24");
    worker.publish(json!([link(0)]));
    worker.jump_to(51, json!([stored(&[1], None, &tokens(1000, 4))]));
    assert_eq!(worker.metric("kvindexer_gaps_total", &[]), 1.0);
    assert_eq!(worker.metric("kvindexer_missing_batches_total", &[]), 50.0);
    let counters = worker.listener()["counters"].clone();
    assert_eq!((&counters["gaps"], &counters["missing_batches"]), (&json!(1), &json!(50)), "{counters}");
    worker.assert_says("degraded", "gap");
    worker.publish(json!([["AllBlocksCleared"]]));
    worker.assert_exact();
    worker.jump_to(100, json!([link(0)]));
    worker.assert_says("degraded", "gap");
    worker.restart_publisher();
    worker.publish(json!([link(0)]));
    worker.assert_exact();
}

/// A publisher at full speed in a thread of its own, until stopped.
struct Traffic {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Traffic {
    fn start(publisher: Publisher, events_per_second: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                while u128::from(sent) < start.elapsed().as_millis() * u128::from(events_per_second) / 1000 {
                    let hash = 1000 + sent;
                    publisher.batch(sent, json!([stored(&[hash], None, &[sent as u32, 1, 2, 3])]));
                    sent += 1;
                }
                std::thread::yield_now();
            }
            sent
        });
        Self { stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the publisher does not panic")
    }
}

#[test]
fn f31_f49_nothing_of_a_worker_comes_back_after_unregister_under_traffic() {
    let service = Service::start();
    let publisher = Publisher::bind();
    let register = |id: u64, endpoint: &str| {
        let reply = service
            .post("/register", &json!({"instance_id": id, "endpoint": endpoint, "model_name": "f31", "block_size": 4}));
        assert_eq!(reply.status, 201, "{}", reply.text());
    };
    register(77, &publisher.endpoint);
    publisher.wait_subscribed();
    let stays = Worker::with(&service, "f31", 2, json!({}));
    let traffic = Traffic::start(publisher, 5000);
    wait_for("traffic to arrive", || {
        let listener = service.listener("f31", "default", "77", 0).unwrap_or(Value::Null);
        if listener["last_seq"].as_u64() > Some(1000) { Ok(()) } else { Err(listener.to_string()) }
    });
    assert!(service.metric("kvindexer_blocks", &[("instance_id", "77")]) > 0.0);
    let reply = service.post("/unregister", &json!({"instance_id": 77, "model_name": "f31"}));
    assert_eq!(reply.status, 200, "{}", reply.text());
    // The publisher goes on for a second; every look in that time must show nothing.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let answer = service.query(&json!({"model_name": "f31", "token_ids": [5, 1, 2, 3]}));
        assert!(answer["instances"].get("77").is_none(), "{answer}");
        let dump = service.dump("f31");
        assert!(!dump.to_string().contains("\"worker_id\":77"), "blocks in the dump");
        let page = service.get("/metrics").text();
        let series: Vec<&str> = page.lines().filter(|line| line.contains("\"77\"")).collect();
        assert!(series.is_empty(), "{series:?}");
    }
    assert!(traffic.stop() > 5000, "traffic went on");
    assert_eq!(stays.listener()["status"], "active");
}

#[test]
fn f50_every_life_of_a_publisher_is_indexed() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f50");
    worker.publish(json!([link(0)]));
    for life in 1..=5_u32 {
        let endpoint = worker.publisher.endpoint.clone();
        worker.disconnect();
        worker.publisher = Publisher::bind_to(&endpoint);
        let start = Instant::now();
        worker.publisher.wait_subscribed();
        let prompt = tokens(1000 * life, 4);
        worker.publisher.batch(0, json!([stored(&[1], None, &prompt)]));
        let left = Duration::from_secs(3).saturating_sub(start.elapsed());
        wait_within(left, "the events of this life within 3 s of its start", || {
            let got = worker.gpu(&prompt);
            if got == 4 { Ok(()) } else { Err(format!("life {life}: {got}, {}", worker.listener())) }
        });
        assert_eq!(worker.held(), [1], "life {life}");
    }
}
