//! How an engine describes its own event sources over HTTP: what an indexer that discovers them reads. Pure.

use serde_json::{Value, json};

use super::SimArgs;
use super::encode::EngineKind;
use super::fleet::RankStatus;

/// vLLM's `GET /kv_event_sources`: by global rank, where it publishes. Without a block size. Null for another engine.
pub(super) fn kv_event_sources(ranks: &[RankStatus], args: &SimArgs) -> Value {
    if args.engine != EngineKind::Vllm {
        return Value::Null;
    }
    let source = |rank: &RankStatus| {
        let source = json!({
            "publisher": "zmq",
            "endpoint": format!("tcp://{}", rank.address),
            "replay_endpoint": rank.replay_address.map(|address| format!("tcp://{address}")),
            "topic": args.topic,
            "buffer_steps": args.replay_batches,
        });
        (rank.owner.rank.to_string(), source)
    };
    Value::Object(first_instance(ranks).map(source).collect())
}

/// SGLang's `GET /server_info`, as far as it concerns events. Null for another engine.
pub(super) fn server_info(ranks: &[RankStatus], args: &SimArgs) -> Value {
    let Some(first) = first_instance(ranks).next().filter(|_| args.engine == EngineKind::Sglang) else {
        return Value::Null;
    };
    let base = |port: u16| u32::from(port).saturating_sub(first.owner.rank.0);
    json!({
        "served_model_name": args.model_name,
        "speculative_algorithm": null,
        "kv_events": {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": base(first.address.port()),
            "replay_endpoint_port_base": first.replay_address.map(|address| base(address.port())),
            "topic": args.topic,
            "block_size": first.block_size,
            "dp_size": args.ranks,
        },
    })
}

/// One engine describes itself only; the others of the fleet would do it at addresses of their own.
fn first_instance(ranks: &[RankStatus]) -> impl Iterator<Item = &RankStatus> {
    ranks.iter().filter(|rank| rank.owner.instance == ranks[0].owner.instance)
}
