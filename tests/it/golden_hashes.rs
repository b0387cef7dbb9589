//! Golden hash vectors through the built binary: blocks stored by an engine show the recorded local hashes in `/dump`,
//! and `/query_by_hash` finds them by these and, in Mooncake's words, by the recorded rolling hashes.

use serde_json::{Value, json};

use crate::harness::service::CASE_DEADLINE;
use crate::harness::{Publisher, Service, data, in_parallel, msgpack, try_within};

const THREADS: usize = 8;

#[test]
fn golden_hash_vectors_are_the_hashes_of_stored_blocks() {
    let vectors: Vec<Value> = serde_json::from_str(&data("golden/hashes.json")).expect("an array of vectors");
    let service = Service::start();
    let outcomes = in_parallel(&vectors, THREADS, |vector| check(&service, vector));
    let failures: String = vectors
        .iter()
        .zip(outcomes)
        .filter_map(|(vector, outcome)| Some(format!("* {}: {}\n", vector["name"], outcome.err()?)))
        .collect();
    assert!(failures.is_empty(), "{} of {} vectors failed:\n{failures}", failures.lines().count(), vectors.len());
    assert_eq!(vectors.len(), 37, "vectors in the file");
}

fn check(service: &Service, vector: &Value) -> Result<(), String> {
    let publisher = Publisher::bind();
    let model = format!("hash-{}", vector["name"].as_str().expect("a name"));
    let block_size = vector["block_size"].as_u64().expect("a block size") as usize;
    let want = vector["ours"]["local_block_hashes"].as_array().ok_or("a vector without an expectation")?;
    let registration = json!({
        "instance_id": 1, "endpoint": publisher.endpoint, "model_name": model, "block_size": block_size, "tenant_id": "default",
    });
    let reply = service.post("/register", &registration);
    if block_size == 0 {
        let is_refused = reply.status == 400 && reply.code() == "invalid_block_size" && want.is_empty();
        return if is_refused { Ok(()) } else { Err(format!("got {} {}", reply.status, reply.text())) };
    }
    if reply.status != 201 {
        return Err(format!("register: {} {}", reply.status, reply.text()));
    }
    publisher.wait_subscribed();
    publisher.send("", 0, &msgpack::encode(&json!([1.0, [store(vector, block_size, want.len())], null])));
    try_within(CASE_DEADLINE, || {
        let listener = service.listener(&model, "default", "1", 0).unwrap_or(Value::Null);
        if listener["last_seq"] == 0 { Ok(()) } else { Err(format!("not applied: {listener}")) }
    })?;
    let dump = service.dump(&model);
    let mut blocks = dump[format!("{model}:default")]["blocks"].as_array().cloned().unwrap_or_default();
    blocks.sort_by_key(|block| block["block_hash"].as_u64());
    let got: Vec<&Value> = blocks.iter().map(|block| &block["tokens_hash"]).collect();
    if !got.iter().copied().eq(want.iter()) {
        return Err(format!(
            "got {got:?}, want {want:?}; {}",
            service.listener(&model, "default", "1", 0).unwrap_or_default()
        ));
    }
    let tokens = json!(want.len() * block_size);
    let answer = service.post("/query_by_hash", &json!({"model_name": model, "block_hashes": want})).json();
    if answer["instances"]["1"]["gpu"] != tokens {
        return Err(format!("block_hashes: got {answer}, want {tokens}"));
    }
    let rolling = &vector["ours"]["sequence_hashes"];
    let request = json!({"model": model, "block_size": block_size, "seq_hashes": rolling});
    let answer = service.post("/query_by_hash", &request).json();
    if answer["default"]["1"]["GPU"] == tokens {
        Ok(())
    } else {
        Err(format!("seq_hashes: got {answer}, want {tokens}"))
    }
}

/// The blocks of a vector as an engine would announce them: hashes 1, 2, 3, ..; only whole blocks.
fn store(vector: &Value, block_size: usize, blocks: usize) -> Value {
    let all = vector["token_ids"].as_array().expect("tokens");
    let whole = &all[..blocks * block_size];
    let tokens: Vec<Value> = if vector["is_eagle"] == true {
        // Block b covers the pairs of its own tokens; each pair ends with the token after it.
        (0..whole.len()).map(|i| json!([all[i], all.get(i + 1).cloned().unwrap_or(json!(0))])).collect()
    } else {
        whole.to_vec()
    };
    let mut event = json!({
        "type": "BlockStored", "block_hashes": (1..=blocks).collect::<Vec<_>>(), "parent_block_hash": null, "token_ids": tokens,
        "block_size": block_size, "lora_id": null, "medium": "GPU", "lora_name": vector.get("lora_name"),
    });
    if vector.get("cache_salt").is_some() {
        event["cache_salt"] = vector["cache_salt"].clone();
    }
    if vector.get("mm").is_some() {
        event["extra_keys"] = (0..blocks).map(|block| image_keys(&vector["mm"][block])).collect();
    }
    event
}

/// Image hashes in the padded form, `[hex, offset]`; null for a block without images.
fn image_keys(mm: &Value) -> Value {
    let objects = mm["mm_objects"].as_array().cloned().unwrap_or_default();
    if objects.is_empty() {
        return Value::Null;
    }
    objects
        .iter()
        .map(|object| json!([format!("{:016x}{}", object["mm_hash"].as_u64().expect("u64"), "0".repeat(48)), 0]))
        .collect()
}
