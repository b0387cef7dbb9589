//! Sizes that a fleet reaches: a million tokens in one query, 64 publishers at once, 20,000 messages in a burst.

use serde_json::{Value, json};

use crate::harness::msgpack::{self, stored};
use crate::harness::worker::tokens;
use crate::harness::{Publisher, Service, Worker, wait_for};

const MILLION: u32 = 1_000_000;
const PUBLISHERS: u64 = 64;
const BATCHES_EACH: u64 = 50;
const BURST: u64 = 20_000;

#[test]
fn a_query_of_a_million_tokens_matches_to_its_end() {
    let service = Service::start();
    let mut worker = Worker::with(&service, "million", 1, json!({"block_size": 16}));
    let prompt = tokens(1, MILLION);
    // One batch of 62,500 blocks in events of 500.
    let events: Value = prompt
        .chunks(16 * 500)
        .enumerate()
        .map(|(i, part)| {
            let first = 1 + 500 * i as u64;
            let hashes: Vec<u64> = (first..).take(part.len() / 16).collect();
            let parent = (first > 1).then(|| first - 1);
            json!(["BlockStored", hashes, parent, part, 16, null, "GPU"])
        })
        .collect();
    worker.publish(events);
    assert_eq!(worker.tiers(&prompt), [u64::from(MILLION); 3]);
    let answer = service.query(&json!({"model_name": "million", "token_ids": prompt}));
    assert_eq!(answer["frequencies"].as_array().map(Vec::len), Some(MILLION as usize / 16));
    let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let reply = service.post_raw("/query?model_name=million", "application/octet-stream", &bytes);
    assert_eq!(reply.json()["instances"]["1"]["gpu"], MILLION, "the binary body");
}

#[test]
fn sixty_four_publishers_at_once_lose_nothing() {
    let service = Service::start();
    let publishers: Vec<Publisher> = (0..PUBLISHERS)
        .map(|id| {
            let publisher = Publisher::bind();
            let body =
                json!({"instance_id": id, "endpoint": publisher.endpoint, "model_name": "sixty-four", "block_size": 4});
            let reply = service.post("/register", &body);
            assert_eq!(reply.status, 201, "{}", reply.text());
            publisher
        })
        .collect();
    publishers.iter().for_each(Publisher::wait_subscribed);
    for seq in 0..BATCHES_EACH {
        let parent = seq.checked_sub(1).map(|before| 100 + before);
        let payload = msgpack::batch(json!([stored(&[100 + seq], parent, &tokens(4 * seq as u32 + 1, 4))]));
        publishers.iter().for_each(|publisher| publisher.send("", seq, &payload));
    }
    let all = 4 * BATCHES_EACH;
    wait_for("every worker to hold the whole chain", || {
        let answer = service.query(&json!({"model_name": "sixty-four", "token_ids": tokens(1, all as u32)}));
        let full = (0..PUBLISHERS).filter(|id| answer["instances"][id.to_string()]["gpu"] == all).count();
        if full as u64 == PUBLISHERS { Ok(()) } else { Err(format!("{full} workers are full")) }
    });
    for worker in service.workers("sixty-four") {
        assert_eq!(worker["listeners"]["0"]["trust"]["state"], "exact", "{worker}");
    }
}

#[test]
fn a_burst_of_20000_messages_has_no_unreported_loss() {
    let service = Service::start();
    let worker = Worker::new(&service, "burst");
    for seq in 0..BURST {
        worker.publisher.batch(seq, json!([stored(&[100 + seq], None, &[seq as u32, 1, 2, 3])]));
    }
    worker.wait_applied(BURST - 1);
    let missing = worker.metric("kvindexer_missing_batches_total", &[]);
    assert_eq!(worker.held().len() as f64, BURST as f64 - missing, "held and missing together are all that was sent");
    if missing == 0.0 {
        worker.assert_exact();
    } else {
        worker.assert_says("degraded", "gap");
    }
}
