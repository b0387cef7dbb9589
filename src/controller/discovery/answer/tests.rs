//! Answers in all forms that are known, and in some that are none.

use serde_json::json;

use super::*;

const POD: &str = "10.0.0.1:8000";

/// `rank:events/replay topic` of each rank, and the block size.
fn shown(description: Option<Description>) -> String {
    let Some(Description { block_size, ranks }) = description else {
        return "no description".to_owned();
    };
    let text = |port: Option<u16>| port.map_or_else(|| "-".to_owned(), |port| port.to_string());
    let mut words: Vec<String> = ranks
        .iter()
        .map(|(rank, it)| {
            let topic = it.topic.as_ref().map(|topic| format!(" {topic}")).unwrap_or_default();
            format!("{rank}:{}/{}{topic}", text(it.events_port), text(it.replay_port))
        })
        .collect();
    words.extend(block_size.map(|size| format!("block {size}")));
    words.join(", ")
}

#[test]
fn vllm_names_its_sources_as_a_list_bare_or_wrapped_or_by_rank() {
    let source = |rank: Value| json!({"data_parallel_rank": rank, "endpoint": "tcp://*:5557", "replay_endpoint": null, "topic": ""});
    let table = [
        ("published: a bare list", json!([source(json!(0))]), "0:5557/-"),
        ("published: wrapped", json!({"sources": [source(json!(3))]}), "3:5557/-"),
        (
            "by rank",
            json!({"sources": {"4": {"endpoint": "tcp://0.0.0.0:41001", "replay_endpoint": "tcp://0.0.0.0:41003", "topic": "kv"}}}),
            "4:41001/41003 kv",
        ),
        ("numbers as texts", json!([source(json!("2"))]), "2:5557/-"),
        ("rank by position", json!([{"endpoint": "tcp://*:1"}, {"endpoint": "tcp://*:2"}]), "0:1/-, 1:2/-"),
        ("a bare port", json!([{"data_parallel_rank": 0, "endpoint": 5557, "replay_endpoint": "5558"}]), "0:5557/5558"),
        ("no publisher", json!([]), ""),
        ("unknown fields", json!({"sources": [], "version": 9}), ""),
        ("IPv6", json!([{"endpoint": "tcp://[fd00::1]:5557"}]), "0:5557/-"),
        ("another transport", json!([{"transport": "grpc", "endpoint": "tcp://*:1"}]), ""),
        ("not reachable by tcp", json!([{"endpoint": "ipc:///tmp/x", "replay_endpoint": "inproc://y"}]), "0:-/-"),
        ("a port that was not bound", json!([{"endpoint": "tcp://*:0"}]), "0:-/-"),
        ("an error", json!({"detail": "Not Found"}), "no description"),
        ("a text", json!("hello"), "no description"),
        ("a rank beyond reason", json!([{"data_parallel_rank": 4_000_000_000u32, "endpoint": "tcp://*:1"}]), ""),
    ];
    for (name, answer, want) in table {
        assert_eq!(shown(vllm(&answer, POD)), want, "{name}");
    }
}

#[test]
fn ranks_of_other_hosts_are_left_out_only_where_hosts_tell_something() {
    let sources = |hosts: [&str; 2]| {
        json!([{"data_parallel_rank": 0, "endpoint": format!("tcp://{}:5557", hosts[0])},
               {"data_parallel_rank": 1, "endpoint": format!("tcp://{}:5558", hosts[1])}])
    };
    for (hosts, want) in [
        (["10.0.0.1", "10.0.0.2"], "0:5557/-"),
        (["*", "*"], "0:5557/-, 1:5558/-"),
        // An address of another network of the same Pod, for all that is known.
        (["192.168.7.1", "192.168.7.1"], "0:5557/-, 1:5558/-"),
        (["10.0.0.1", "127.0.0.1"], "0:5557/-, 1:5558/-"),
    ] {
        assert_eq!(shown(vllm(&sources(hosts), POD)), want, "{hosts:?}");
    }
}

#[test]
fn sglang_gives_bases_and_a_number_of_ranks() {
    let events = json!({
        "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "block_size": 64, "dp_size": 2,
        "load_endpoint_port_base": 5559, "load_topic": "load",
    });
    let with = |more: Value| {
        let mut events = events.clone();
        for (key, value) in more.as_object().unwrap() {
            events[key] = value.clone();
        }
        events
    };
    let table = [
        ("published", json!({"kv_events": events}), "0:5557/- kv, 1:5558/- kv, block 64"),
        (
            "with a replay endpoint",
            json!({"kv_events": with(json!({"replay_endpoint_port_base": 6000}))}),
            "0:5557/6000 kv, 1:5558/6001 kv, block 64",
        ),
        (
            "numbers as texts",
            json!({"kv_events": with(json!({"endpoint_port_base": "7000", "dp_size": "1", "block_size": 16.0}))}),
            "0:7000/- kv, block 16",
        ),
        (
            "the second of two nodes",
            json!({"nnodes": 2, "node_rank": 1, "kv_events": with(json!({"dp_size": 4}))}),
            "2:5559/- kv, 3:5560/- kv, block 64",
        ),
        (
            "past the last port",
            json!({"kv_events": with(json!({"endpoint_port_base": 65535}))}),
            "0:65535/- kv, 1:-/- kv, block 64",
        ),
        ("no publisher", json!({"kv_events": null, "version": "0.5.23"}), ""),
        ("the null publisher", json!({"kv_events": with(json!({"publisher": "null"}))}), ""),
        ("an old version", json!({"version": "0.5.9"}), "no description"),
        ("a number of ranks that is none", json!({"kv_events": with(json!({"dp_size": "many"}))}), "no description"),
        ("an error", json!([]), "no description"),
    ];
    for (name, answer, want) in table {
        assert_eq!(shown(sglang(&answer, POD)), want, "{name}");
    }
}
