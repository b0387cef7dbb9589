//! Answers of the queries, `/explain` and `/dump` over blocks that are known exactly.

use std::collections::BTreeMap;

use kvindexer::hash;
use kvindexer::ids::{BlockSize, IndexKey, Namespace, Owner, Tier};
use serde_json::{Value, json};

use super::{Server, tokens, without_trust};
use crate::harness::http::Request;

#[test]
fn tiers_are_cumulative_and_ranks_stand_together() {
    let server = Server::start();
    let key = IndexKey::new("m", "default");
    server.register(7, "m", &json!({}));
    server.register(7, "m", &json!({"dp_rank": 1, "endpoint": "tcp://127.0.0.1:10"}));
    server.register("serving/a", "m", &json!({}));
    let prompt = tokens(18);
    server.store(&key, &Owner::new(7, 0), Tier::Device, &prompt[..8]);
    server.store(&key, &Owner::new(7, 1), Tier::Device, &prompt[..4]);
    server.store(&key, &Owner::new(7, 1), Tier::HostPinned, &prompt[..12]);
    server.store(&key, &Owner::new(7, 1), Tier::External, &prompt[..16]);
    let body = json!({"model_name": "m", "token_ids": prompt});
    let reply = server.post("/query", &body);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let want = json!({
        "scores": {"7": {"0": 8, "1": 4}, "serving/a": {"0": 0}},
        "frequencies": [2, 1],
        "instances": {
            "7": {"longest_matched": 16, "gpu": 8, "dp": {"0": 8, "1": 4}, "cpu": 12, "disk": 16},
            "serving/a": {"longest_matched": 0, "gpu": 0, "dp": {"0": 0}, "cpu": 0, "disk": 0}
        }
    });
    assert_eq!(without_trust(reply.json()), want);
    assert_eq!(reply.json()["instances"]["7"]["trust"]["state"], "stale", "nobody listens at the endpoint");

    let matched = server.post("/query", &json!({"model_name": "m", "token_ids": prompt, "matched_only": true}));
    let (mut want_matched, removed) = (want, "serving/a");
    want_matched["scores"].as_object_mut().unwrap().remove(removed);
    want_matched["instances"].as_object_mut().unwrap().remove(removed);
    assert_eq!(without_trust(matched.json()), want_matched);
}

#[test]
fn every_form_of_one_question_has_one_answer() {
    let server = Server::start();
    let key = IndexKey::new("m", "default");
    server.register(1, "m", &json!({}));
    let prompt = tokens(64);
    server.store(&key, &Owner::new(1, 0), Tier::Device, &prompt[..40]);
    let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let locals = hash::local_hashes(&bytes, BlockSize::new(4).unwrap(), Namespace::default());
    let hash_bytes: Vec<u8> = locals.iter().flat_map(|local| local.0.to_le_bytes()).collect();
    let numbers: Vec<u64> = locals.iter().map(|local| local.0).collect();
    let signed: Vec<i64> = numbers.iter().map(|number| number.cast_signed()).collect();
    let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let by_hash = |hashes: Value| server.post("/query_by_hash", &json!({"model_name": "m", "block_hashes": hashes}));
    let binary = |path: &str, body: &[u8]| {
        let content_type = Some("application/octet-stream");
        server.send(&Request { method: "POST", path, content_type, body: Some(body) })
    };
    let want = server.post("/query", &json!({"model_name": "m", "token_ids": prompt})).json();
    assert_eq!(want["scores"], json!({"1": {"0": 40}}));
    for (form, reply) in [
        ("u64", by_hash(json!(numbers))),
        ("i64", by_hash(json!(signed))),
        ("text", by_hash(json!(texts))),
        ("binary tokens", binary("/query?model_name=m", &bytes)),
        ("binary hashes", binary("/query_by_hash?model_name=m&tenant_id=default", &hash_bytes)),
    ] {
        assert_eq!(reply.json(), want, "{form}");
    }
}

#[test]
fn a_prompt_matches_in_its_own_namespace_only() {
    let server = Server::start();
    let key = IndexKey::new("m", "default");
    for instance in 1..=4 {
        server.register(instance, "m", &json!({}));
    }
    let (lora, salt) = (hash::lora_name("ad"), hash::salt("s"));
    let prompt = tokens(8);
    for (instance, named) in [
        (1, Namespace::default()),
        (2, Namespace { lora, salt: None }),
        (3, Namespace { lora: None, salt }),
        (4, Namespace { lora: Some(hash::lora_id(7)), salt: None }),
    ] {
        server.store_named(&key, &Owner::new(instance, 0), Tier::Device, &prompt, named);
    }
    for (fields, matched) in [
        (json!({}), Some(1)),
        (json!({"lora_name": "ad"}), Some(2)),
        (json!({"lora_name": "ad", "lora_id": 7}), Some(2)),
        (json!({"cache_salt": "s"}), Some(3)),
        (json!({"lora_id": 7}), Some(4)),
        (json!({"lora_name": "other"}), None),
        (json!({"cache_salt": "other"}), None),
        (json!({"lora_name": "ad", "cache_salt": "s"}), None),
        (json!({"extra_keys": [["s"], null]}), Some(3)),
        (json!({"extra_keys": [[["img", 0]], null]}), None),
        (json!({"extra_keys": [[{"hex": "00ff"}], null]}), None),
        (json!({"extra_keys": [null, null]}), Some(1)),
    ] {
        let mut body = json!({"model_name": "m", "token_ids": prompt, "matched_only": true});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let scores = server.post("/query", &body).json()["scores"].clone();
        let want = matched.map_or(json!({}), |instance: u64| json!({instance.to_string(): {"0": 8}}));
        assert_eq!(scores, want, "{fields}");
    }
    let explained = server.post("/explain", &json!({"model_name": "m", "token_ids": prompt})).json();
    let reasons: Vec<_> =
        explained["owners"].as_array().unwrap().iter().map(|o| o["device"]["reason"].clone()).collect();
    assert_eq!(reasons, ["whole_query", "other_namespace", "other_namespace", "other_namespace"]);
}

#[test]
fn tenants_and_models_never_see_each_other() {
    let server = Server::start();
    server.register(1, "m", &json!({"tenant_id": "t1"}));
    server.store(&IndexKey::new("m", "t1"), &Owner::new(1, 0), Tier::Device, &tokens(8));
    let ask = |fields: Value| {
        let mut body = json!({"model_name": "m", "token_ids": tokens(8)});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = server.post("/query", &body);
        if reply.status == 200 { reply.json()["scores"]["1"]["0"].to_string() } else { reply.code() }
    };
    assert_eq!(ask(json!({})), "unknown_index");
    assert_eq!(ask(json!({"tenant_id": "t1"})), "8");
    assert_eq!(ask(json!({"routing_group": "t1"})), "8");
    assert_eq!(ask(json!({"tenant_id": "t1", "routing_group": "t2"})), "tenant_conflict");
    assert_eq!(ask(json!({"tenant_id": "t1", "model": "n"})), "model_conflict");
}

#[test]
fn explain_tells_where_and_why_a_match_ends() {
    let server = Server::start();
    let key = IndexKey::new("m", "default");
    server.register(1, "m", &json!({}));
    server.register(2, "m", &json!({}));
    let prompt = tokens(12);
    server.store(&key, &Owner::new(1, 0), Tier::Device, &prompt);
    server.store(&key, &Owner::new(2, 0), Tier::Device, &prompt[..4]);
    let explained = server.post("/explain", &json!({"model_name": "m", "token_ids": prompt})).json();
    assert_eq!((&explained["block_size"], &explained["blocks"]), (&json!(4), &json!(3)));
    let owners = explained["owners"].as_array().unwrap();
    assert_eq!(owners.len(), 2);
    assert_eq!(owners[0]["device"]["reason"], "whole_query");
    assert_eq!((&owners[1]["instance_id"], &owners[1]["device"]["tokens"]), (&json!(2), &json!(4)));
    assert_ne!(owners[1]["all_tiers"]["reason"], "whole_query");
    assert_eq!(server.post("/explain", &json!({"model_name": "x", "token_ids": []})).code(), "unknown_index");
}

/// Blocks of a dump: (worker, rank, tier, parent, hash, local).
fn blocks(dump: &Value, key: &str) -> Vec<(String, u64, String, Option<u64>, u64, u64)> {
    let mut found = Vec::new();
    for event in dump[key]["events"].as_array().expect("events") {
        let stored = &event["event"]["data"]["stored"];
        let mut parent = stored["parent_hash"].as_u64();
        for block in stored["blocks"].as_array().unwrap() {
            let hash = block["block_hash"].as_u64().unwrap();
            let worker = event["worker_id"].to_string();
            let rank = event["event"]["dp_rank"].as_u64().unwrap();
            let tier = event["storage_tier"].as_str().unwrap().to_owned();
            found.push((worker, rank, tier, parent, hash, block["tokens_hash"].as_u64().unwrap()));
            parent = Some(hash);
        }
    }
    found
}

#[test]
fn a_dump_holds_every_block_once_over_many_pieces() {
    let server = Server::start();
    server.register(1, "m", &json!({}));
    server.register("a", "m", &json!({}));
    server.register(1, "a:b", &json!({"tenant_id": "c"}));
    server.register(1, "a", &json!({"tenant_id": "b:c"}));
    let key = IndexKey::new("m", "default");
    // Long enough for several pieces of text.
    let prompt = tokens(4 * 5000);
    server.store(&key, &Owner::new(1, 0), Tier::Device, &prompt);
    server.store(&key, &Owner::new(1, 0), Tier::HostPinned, &prompt[..8]);
    let text: kvindexer::ids::InstanceId = kvindexer::ids::InstanceId::parse("a").unwrap();
    server.store(&key, &Owner { instance: text, rank: kvindexer::ids::DpRank(0) }, Tier::Device, &prompt[..4]);
    let reply = server.get("/dump");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let dump = reply.json();
    assert_eq!(dump.as_object().map(serde_json::Map::len), Some(3), "two names that join to one text are both there");
    assert_eq!((&dump["m:default"]["model_name"], &dump["m:default"]["tenant_id"]), (&json!("m"), &json!("default")));
    let found = blocks(&dump, "m:default");
    let mut count = BTreeMap::new();
    for (worker, rank, tier, ..) in &found {
        *count.entry((worker.as_str(), *rank, tier.as_str())).or_insert(0) += 1;
    }
    let want = [(("\"a\"", 0, "device"), 1), (("1", 0, "device"), 5000), (("1", 0, "host_pinned"), 2)];
    assert_eq!(count, BTreeMap::from(want));
    let device: Vec<_> = found.iter().filter(|block| block.0 == "1" && block.2 == "device").collect();
    assert!(
        device.iter().all(
            |block| block.3.is_none() || device.iter().take_while(|b| b.4 != block.4).any(|b| Some(b.4) == block.3)
        ),
        "parents first"
    );
    assert_eq!(server.get("/dump?model_name=a").json().as_object().unwrap().keys().collect::<Vec<_>>(), ["a:b:c"]);
}
