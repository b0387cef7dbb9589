//! Mooncake's dialect through the whole server, and registrations by its words.

use kvindexer::hash;
use kvindexer::ids::{BlockSize, IndexKey, Namespace, Owner, Tier};
use serde_json::json;

use super::{ENDPOINT, Server, tokens};

fn owner(name: &str) -> Owner {
    Owner { instance: kvindexer::ids::InstanceId::parse(name).unwrap(), rank: kvindexer::ids::DpRank(0) }
}

#[test]
fn mooncakes_words_register_query_and_unregister() {
    let server = Server::start();
    let body = json!({
        "type": "vLLM", "modelname": "deepseek", "instance_id": "vllm-1", "block_size": 4, "dp_rank": 0,
        "endpoint": ENDPOINT, "additionalsalt": "w8a8", "lora_name": "sql"
    });
    let reply = server.post("/register", &body);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), json!({"status": "registered successfully", "instance_id": "vllm-1"}));
    let worker = &server.get("/workers").json()[0];
    assert_eq!((&worker["additional_salt"], &worker["listeners"]["0"]["lora_name"]), (&json!("w8a8"), &json!("sql")));

    let (key, prompt) = (IndexKey::new("deepseek", "default"), tokens(16));
    server.store(&key, &owner("vllm-1"), Tier::Device, &prompt[..8]);
    server.store(&key, &owner("vllm-1"), Tier::HostPinned, &prompt[..12]);
    let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut rolling = Vec::new();
    for local in hash::local_hashes(&bytes, BlockSize::new(4).unwrap(), Namespace::default()) {
        rolling.push(hash::rolling(rolling.last().copied(), local));
    }
    let want = json!({"default": {"vllm-1": {"longest_matched": 12, "GPU": 8, "DP": {"0": 12}, "CPU": 12, "DISK": 0, "XPU": 8}}});
    for (path, fields) in [
        ("/query", json!({"token_ids": prompt})),
        ("/query", json!({"token_ids": prompt, "instance_id": "vllm-1", "block_size": 4, "tenant_id": "default"})),
        ("/query_by_hash", json!({"seq_hashes": rolling})),
        ("/query_by_hash", json!({"block_hash": rolling})),
    ] {
        let mut body = json!({"model": "deepseek"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = server.post(path, &body);
        assert_eq!(reply.json(), want, "{path} {fields}");
    }
    let ask = |fields: serde_json::Value| server.post("/query", &fields);
    let other = ask(json!({"model": "deepseek", "token_ids": prompt, "block_size": 8}));
    assert_eq!((other.status, other.code().as_str()), (400, "block_size_mismatch"));
    assert_eq!(
        ask(json!({"model": "deepseek", "token_ids": prompt, "instance_id": "x"})).json(),
        json!({"default": {}})
    );
    assert_eq!(ask(json!({"model": "a", "modelname": "b", "token_ids": []})).code(), "model_conflict");
    assert_eq!(ask(json!({"model": "deepseek"})).code(), "invalid_body");
    let salted = server.post("/query_by_hash", &json!({"model": "deepseek", "seq_hashes": rolling, "cache_salt": "s"}));
    assert_eq!(salted.code(), "salt_not_accepted");

    let gone = server
        .post("/unregister", &json!({"type": "vLLM", "modelname": "deepseek", "instance_id": "vllm-1", "dp_rank": 0}));
    let want = json!({"status": "unregistered successfully", "removed_instances": ["vllm-1|default|0"]});
    assert_eq!((gone.status, gone.json()), (200, want));
}

#[test]
fn a_shared_pool_is_no_row_and_extends_the_last_tier() {
    let server = Server::start();
    server.register(1, "m", &json!({}));
    server.register("pool", "m", &json!({"role": "store", "endpoint": "tcp://127.0.0.1:10"}));
    let (key, prompt) = (IndexKey::new("m", "default"), tokens(12));
    server.store(&key, &Owner::new(1, 0), Tier::Device, &prompt[..4]);
    server.store(&key, &owner("pool"), Tier::External, &prompt);
    let answer = server.post("/query", &json!({"model_name": "m", "token_ids": prompt})).json();
    assert_eq!(answer["scores"], json!({"1": {"0": 4}}));
    assert_eq!((&answer["instances"]["1"]["cpu"], &answer["instances"]["1"]["disk"]), (&json!(4), &json!(12)));
}
