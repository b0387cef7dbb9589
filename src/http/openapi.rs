//! `/openapi.json`: the description of the API, generated from the handlers and their types.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::{OpenApi, ToSchema};

use super::workers::TrustView;
use super::{dump, explain, overview, peers, query, register, replicas, routes, scrape, test_routes, verify, workers};

/// Id of an instance: a number, or any other text of 1 to 317 bytes.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) enum InstanceId {
    /// An unsigned 64-bit number.
    Number(u64),
    /// Any other text.
    Text(String),
}

/// Answer of the queries; written without this type, which describes it.
#[derive(ToSchema)]
#[cfg_attr(test, derive(Debug, serde::Deserialize))]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct QueryAnswer {
    /// Device tokens by instance and rank.
    scores: HashMap<String, HashMap<String, u64>>,
    /// For each block of the longest device match: how many ranks hold it.
    frequencies: Vec<u32>,
    /// By instance.
    instances: HashMap<String, InstanceScores>,
}

/// One instance in an answer, in tokens.
#[derive(ToSchema)]
#[cfg_attr(test, derive(Debug, serde::Deserialize))]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct InstanceScores {
    /// Longest prefix over all ranks and tiers.
    longest_matched: u64,
    /// Prefix on the device tier, the most of all ranks.
    gpu: u64,
    /// Prefix on the device tier by rank.
    dp: HashMap<String, u64>,
    /// Prefix on device and host.
    cpu: u64,
    /// Prefix on all tiers.
    disk: u64,
    /// Only when not exact.
    #[cfg_attr(test, serde(skip))]
    trust: Option<TrustView>,
}

/// One index in a dump.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct DumpEntry {
    /// Tokens per block.
    block_size: u32,
    /// Model of the index.
    model_name: String,
    /// Tenant of the index.
    tenant_id: String,
    /// Stored events, parents before children.
    #[schema(value_type = Vec<Object>)]
    events: Vec<serde_json::Value>,
    /// Where each stream stood when its owners were copied.
    streams: Vec<DumpStream>,
}

/// One stream of an index in a dump.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct DumpStream {
    /// The instance.
    #[schema(value_type = InstanceId)]
    instance_id: serde_json::Value,
    /// Address of the publisher; empty if unknown.
    endpoint: String,
    /// Number of the last batch in the events; null if none was applied.
    last_seq: Option<u64>,
    /// Ranks that it feeds.
    dp_ranks: Vec<u32>,
}

/// Answer of `/digest`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct DigestAnswer {
    /// Random, made at the start of the process; 16 hexadecimal digits.
    replica_id: String,
    /// What people call it: the name of its Pod; may be empty.
    name: String,
    /// Version of the program.
    version: String,
    /// `waiting`, `loading`, `ready` or `stopping`.
    phase: String,
    /// Bytes of a state read so far.
    progress: u64,
    /// All ranks.
    owners: u64,
    /// Ranks that are exact.
    exact_owners: u64,
    /// Sum of the last applied numbers.
    applied: u64,
    /// Held blocks.
    blocks: u64,
    /// Every stream with its digests.
    streams: Vec<StreamDigest>,
    /// Registrations by hand.
    #[schema(value_type = Vec<Object>)]
    registrations: Vec<serde_json::Value>,
    /// Registrations by hand that were taken back lately.
    #[schema(value_type = Vec<Object>)]
    tombstones: Vec<serde_json::Value>,
}

/// One stream in `/digest`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct StreamDigest {
    /// Model of the index.
    model: String,
    /// Tenant of the index.
    tenant: String,
    /// The instance.
    #[schema(value_type = InstanceId)]
    instance_id: serde_json::Value,
    /// Address of the publisher.
    endpoint: String,
    /// Topic that it hears, if not all.
    topic: Option<String>,
    /// LoRA name of events that name none.
    default_lora: Option<String>,
    /// Every rank is exact: the digests can be compared.
    exact: bool,
    /// Digest after the last applied batch.
    current: Option<Sum>,
    /// Digests at multiples of 256 batches, oldest first.
    history: Vec<Sum>,
    /// The ranks.
    #[schema(value_type = Vec<Object>)]
    ranks: Vec<serde_json::Value>,
    /// Blocks that the digest leaves out, because another rank's announcement placed them.
    foreign_blocks: u64,
    /// Blocks of lower tiers age out: replicas may differ for a while.
    ages: bool,
}

/// A digest after a batch.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON form only")]
pub(crate) struct Sum {
    /// Number of the batch.
    seq: u64,
    /// 16 hexadecimal digits.
    digest: String,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "kvindexer",
        description = "Exact, live index of every KV-cache block in an LLM inference fleet: how many leading tokens of a prompt does each worker hold, on which tier?"
    ),
    paths(
        query::query,
        query::query_by_hash,
        explain::explain,
        register::register,
        register::unregister,
        workers::workers,
        peers::peers,
        peers::register_peer,
        peers::deregister_peer,
        routes::health,
        routes::ready,
        routes::reopen_logs,
        dump::dump,
        replicas::snapshot,
        replicas::digest,
        verify::verify,
        scrape::metrics,
        openapi,
        overview::page,
        test_routes::pause_listener,
        test_routes::resume_listener,
    )
)]
struct Document;

static TEXT: LazyLock<Bytes> = LazyLock::new(|| {
    let document = Document::openapi();
    Bytes::from(serde_json::to_vec(&document).expect("the document consists of texts and lists"))
});

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses((status = 200, description = "OpenAPI 3.1")))]
pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], TEXT.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_has_exactly_the_routes() {
        let document: serde_json::Value = serde_json::from_slice(&TEXT).unwrap();
        let documented: BTreeSet<_> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(documented, routes::PATHS.iter().copied().collect());
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn required_fields_are_marked_and_other_words_are_not_shown() {
        let document: serde_json::Value = serde_json::from_slice(&TEXT).unwrap();
        let body = &document["components"]["schemas"]["RegisterBody"];
        let required: BTreeSet<_> = body["required"].as_array().unwrap().iter().filter_map(|v| v.as_str()).collect();
        assert_eq!(required, BTreeSet::from(["instance_id", "endpoint", "model_name", "block_size"]));
        assert!(body["properties"]["modelname"].is_null() && body["properties"]["topic"].is_object());
    }
}
