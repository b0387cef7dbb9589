//! `kvindexer verify` against an engine whose replay tells something else than it published, or too little, or nothing.

use serde_json::json;

use super::run;
use crate::harness::msgpack::{batch, stored};
use crate::harness::worker::tokens;
use crate::harness::zmq_sockets::{Ring, Shape};
use crate::harness::{Router, Service, Worker, wait_for};

fn verify(worker: &Worker<'_>) -> (Option<i32>, String) {
    let (code, stdout, stderr) =
        run(&["verify", &worker.service.url(), "--model-name", &worker.model, "--instance-id", "1"], &[]);
    (code, stdout + &stderr)
}

#[test]
fn verify_names_what_the_live_state_lacks_and_has_too_much() {
    let service = Service::start();
    let ring = Ring::default();
    let router = ring.router(Shape::Three);
    let mut worker = Worker::with_replay(&service, "drift", 1, &router, &ring);
    worker.publish(json!([stored(&[11], None, &tokens(1, 4))]));
    // What was heard live is not what the engine remembers.
    ring.push(1, &batch(json!([stored(&[22], Some(11), &tokens(5, 4))])));
    worker.publisher.batch(1, json!([stored(&[33], Some(11), &tokens(9, 4))]));
    worker.wait_applied(1);
    worker.next = 2;
    worker.publish(json!([stored(&[44], None, &tokens(13, 4))]));
    let (code, text) = verify(&worker);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "1/0 at batch 2: 3 blocks live, 3 rebuilt from a replay that begins at 0",
        "the live state lacks: 1 blocks\n    device block 22,",
        "the live state has too much: 1 blocks\n    device block 33,",
        ", below 11",
        "DIFFERENT",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(worker.held(), [11, 33, 44], "the live state is left alone");

    let last = ring.since(2);
    ring.clear();
    ring.push(2, &last[0].1);
    let (code, text) = verify(&worker);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("does not remember its first batches"), "{text}");
}

#[test]
fn an_engine_that_does_not_answer_is_said_to_and_comparisons_are_one_at_a_time() {
    let service = Service::start();
    let mute = Router::start(Box::new(|_| Vec::new()));
    let mut worker = Worker::with(&service, "mute", 1, json!({"replay_endpoint": mute.endpoint}));
    worker.publish(json!([stored(&[11], None, &tokens(1, 4))]));
    let body = json!({"model_name": "mute", "instance_id": 1});
    std::thread::scope(|scope| {
        let first = scope.spawn(|| service.post("/verify", &body));
        wait_for("the first comparison to be at work", || {
            assert!(!first.is_finished(), "the engine did not answer, and yet there is an outcome");
            if mute.requests().is_empty() { Err("the engine was not asked".to_owned()) } else { Ok(()) }
        });
        let second = service.post("/verify", &body);
        assert_eq!((second.status, second.code().as_str()), (503, "overloaded"), "{}", second.text());
        let first = first.join().expect("the request ends");
        assert_eq!((first.status, first.code().as_str()), (504, "no_answer"), "{}", first.text());
    });
}
