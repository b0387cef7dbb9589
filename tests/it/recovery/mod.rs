//! Replicas as processes: what a start takes from peers of every kind, and whether replicas stay equal.

mod chaos;
mod disk;
mod equal;
mod evil_peers;
mod faults_recovery;
mod golden_recovery;
mod names;
mod reference;
mod registrations;
mod stop;

use serde_json::{Value, json};

use crate::harness::Service;

/// Local hash of the tokens 1 to 4 without a namespace.
pub(crate) const LOCAL_OF_1_TO_4: u64 = 14_643_705_804_678_351_452;

/// A dump in the reference's form: instance `worker` holds the block of the tokens 1 to 4 on the device.
pub(crate) fn small_dump(key: &str, worker: u64) -> Value {
    json!({key: {"block_size": 4, "events": [{
        "worker_id": worker, "storage_tier": "device", "event": {"event_id": 0, "dp_rank": 0, "data": {"stored": {
            "parent_hash": null, "start_position": null,
            "blocks": [{"block_hash": 11, "tokens_hash": LOCAL_OF_1_TO_4, "mm_extra_info": null}],
        }}},
    }]}})
}

/// What a made-up replica says of itself; `more` overrides fields.
pub(crate) fn digest(replica_id: &str, phase: &str, more: Value) -> Value {
    let mut digest = json!({
        "replica_id": replica_id, "version": "0.1.0", "phase": phase, "progress": 0, "owners": 0, "exact_owners": 0,
        "applied": 0, "blocks": 0, "streams": [], "registrations": [], "tombstones": [],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        digest[key] = value.clone();
    }
    digest
}

/// How a replica is told apart from others.
pub(crate) fn replica_id(service: &Service) -> String {
    let digest = service.get("/digest").json();
    digest["replica_id"].as_str().unwrap_or_else(|| panic!("no id in {digest}")).to_owned()
}
