//! Public faults of comparable systems: events on the wire. Each test is one row.

use serde_json::{Value, json};

use crate::harness::msgpack::{self, removed, stored};
use crate::harness::worker::tokens;
use crate::harness::{Service, Worker, wait_for};

const CHUNK: u32 = 768;

#[test]
fn f01_array_and_map_events_are_both_indexed() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f01");
    worker.publish(json!([["BlockStored", [1], null, [1, 2, 3, 4], 4, null, "GPU", null]]));
    worker.publish(json!([{
        "type": "BlockStored", "block_hashes": [2], "parent_block_hash": null, "token_ids": [5, 6, 7, 8], "block_size": 4,
        "lora_id": null, "medium": "GPU", "lora_name": null,
    }]));
    assert_eq!(worker.gpu(&tokens(1, 4)), 4);
    assert_eq!(worker.gpu(&tokens(5, 4)), 4);
    assert!(worker.publisher.is_undisturbed(), "the listener reconnected");
    worker.assert_exact();
}

#[test]
fn f02_unknown_fields_and_signed_hashes_do_not_break_an_event() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f02");
    worker.publish(json!([{
        "type": "BlockStored", "block_hashes": [-5], "parent_block_hash": null, "token_ids": [1, 2, 3, 4], "block_size": 4,
        "medium": "GPU", "colour": "red", "weights": [1, 2], "nested": {"a": null},
    }]));
    let surplus = json!([
        "BlockStored",
        [u64::MAX],
        null,
        [5, 6, 7, 8],
        4,
        null,
        "GPU",
        null,
        null,
        null,
        null,
        null,
        null,
        null,
        "odd",
        7
    ]);
    worker.publish(json!([surplus]));
    assert_eq!((worker.gpu(&tokens(1, 4)), worker.gpu(&tokens(5, 4))), (4, 4));
    worker.publish(json!([["BlockRemoved", [-5], "GPU"], ["BlockRemoved", [u64::MAX], "GPU"]]));
    assert_eq!((worker.gpu(&tokens(1, 4)), worker.gpu(&tokens(5, 4))), (0, 0));
    assert_eq!(worker.held(), [] as [u64; 0]);
    worker.assert_exact();
}

#[test]
fn f03_hashes_of_32_bytes_are_indexed_and_removed() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f03");
    let hash = json!({"$hex": "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"});
    let event = json!(["BlockStored", [hash], null, [1, 2, 3, 4], 4, null, "GPU", null]);
    worker.publish(json!([stored(&[1], None, &tokens(10, 4)), event, stored(&[2], None, &tokens(20, 4))]));
    assert_eq!([1, 10, 20].map(|from| worker.gpu(&tokens(from, 4))), [4, 4, 4]);
    worker.publish(json!([["BlockRemoved", [hash], "GPU"]]));
    assert_eq!([1, 10, 20].map(|from| worker.gpu(&tokens(from, 4))), [0, 4, 4]);
    worker.assert_exact();
}

#[test]
fn f04_eagle_pairs_are_read_as_single_tokens() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f04");
    let pairs = json!([[1, 2], [2, 3], [3, 4], [4, 5]]);
    worker.publish(json!([["BlockStored", [1], null, pairs, 4, null, "GPU"], stored(&[2], None, &tokens(10, 4))]));
    assert_eq!((worker.gpu(&tokens(1, 4)), worker.gpu(&tokens(10, 4))), (4, 4));
    worker.assert_exact();
}

#[test]
fn f05_malformed_messages_are_counted_and_the_listener_goes_on() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f05");
    let payload = msgpack::batch(json!([stored(&[1], None, &tokens(1, 4))]));
    worker.publisher.send_frames(&[payload.as_slice()]);
    worker.publisher.send_frames(&[&0_u64.to_be_bytes(), payload.as_slice()]);
    worker.publisher.send_frames(&[b"kv-events".as_slice(), &[0], &payload]);
    worker.publish_payload(&payload);
    assert_eq!(worker.skipped("malformed_frames"), 3.0);
    assert_eq!(worker.gpu(&tokens(1, 4)), 4);
    assert_eq!(worker.listener()["status"], "active");
    assert!(worker.publisher.is_undisturbed(), "the listener reconnected");
    worker.assert_says("degraded", "skipped");
}

#[test]
fn f06_every_topic_is_accepted() {
    let service = Service::start();
    let worker = Worker::new(&service, "f06");
    for (seq, topic) in ["", "kv-events", "kv@10.0.0.1:8000@org/model"].into_iter().enumerate() {
        let from = 1 + 10 * seq as u32;
        let payload = msgpack::batch(json!([stored(&[u64::from(from)], None, &tokens(from, 4))]));
        worker.publisher.send(topic, seq as u64, &payload);
        worker.wait_applied(seq as u64);
        assert_eq!(worker.gpu(&tokens(from, 4)), 4, "{topic:?}");
    }
}

#[test]
fn f07_another_block_size_is_shown_and_a_multiple_is_cut() {
    let service = Service::start();
    let mut worker = Worker::with(&service, "f07", 1, json!({"block_size": 16}));
    worker.publish(json!([stored(&[1], None, &tokens(1, 24))]));
    assert_eq!(worker.gpu(&tokens(1, 24)), 0);
    assert_eq!(worker.skipped("block_size"), 1.0);
    worker.assert_says("degraded", "block_size_mismatch");
    worker.publish(json!([stored(&[2], None, &tokens(1000, CHUNK))]));
    assert_eq!(worker.gpu(&tokens(1000, CHUNK)), u64::from(CHUNK));
    assert_eq!(worker.gpu(&tokens(1000, 40)), 32, "index blocks of 16 tokens");
    assert_eq!(worker.listener()["status"], "active");
    assert!(worker.publisher.is_undisturbed(), "the listener reconnected");
}

#[test]
fn f08_a_mamba_group_gates_the_attention_chain_and_disturbs_nothing() {
    let service = Service::start();
    let mut usable = Worker::with(&service, "f08-usable", 1, json!({"block_size": 16}));
    usable.publish(json!([mamba(13, 1, 48), attention(&[11, 12, 13], None, 1)]));
    assert_eq!(usable.gpu(&tokens(1, 48)), 48);
    usable.publish(json!([mamba(14, 49, 16), attention(&[14], Some(13), 49)]));
    assert_eq!(usable.gpu(&tokens(1, 64)), 64, "children link to the attention chain");
    let mut unusable = Worker::with(&service, "f08-unusable", 1, json!({"block_size": 16}));
    unusable.publish(json!([mamba(99, 1, 48), attention(&[11, 12, 13], None, 1)]));
    assert_eq!(unusable.gpu(&tokens(1, 48)), 0);
    usable.assert_exact();
    unusable.assert_exact();
}

fn mamba(hash: u64, from: u32, count: u32) -> Value {
    json!({
        "type": "BlockStored", "block_hashes": [hash], "parent_block_hash": null, "token_ids": tokens(from, count), "block_size": count,
        "medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "mamba",
    })
}

fn attention(hashes: &[u64], parent: Option<u64>, from: u32) -> Value {
    json!({
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens(from, 16 * hashes.len() as u32),
        "block_size": 16, "medium": "GPU", "group_idx": 3, "kv_cache_spec_kind": "full_attention",
    })
}

#[test]
fn f09_a_child_of_an_unknown_parent_waits_and_joins() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f09");
    worker.publish(json!([stored(&[2], Some(1), &tokens(5, 4))]));
    assert_eq!(worker.gpu(&tokens(5, 4)), 0, "never a root");
    assert_eq!(worker.gpu(&tokens(1, 8)), 0);
    worker.assert_says("degraded", "pending_parents");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    assert_eq!(worker.gpu(&tokens(1, 8)), 8);
    worker.assert_exact();
    worker.publish(json!([stored(&[9], Some(8), &tokens(50, 4))]));
    worker.assert_says("degraded", "pending_parents");
    worker.publish(json!([["AllBlocksCleared"]]));
    worker.assert_exact();
    assert_eq!(worker.held(), [] as [u64; 0]);
}

#[test]
fn f09_a_removed_pending_block_no_longer_degrades() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f09-removed");
    worker.publish(json!([stored(&[2], Some(1), &tokens(5, 4))]));
    worker.assert_says("degraded", "pending_parents");
    worker.publish(json!([removed(&[2], "GPU")]));
    wait_for(
        "no pending block",
        || if worker.held().is_empty() { Ok(()) } else { Err(format!("{:?}", worker.held())) },
    );
    worker.assert_exact();
}
