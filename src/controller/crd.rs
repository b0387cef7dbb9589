//! The custom resource `IndexerWorker`, as Rust types from which `kvindexer crd` prints the CustomResourceDefinition.
//!
//! What stands above a field is what `kubectl explain` shows. Bounds stand at the fields, rules over several fields in
//! `rules`; `manifest` makes the schema structural and prints it. No `Option` of an enum: its schema would allow `null` as
//! a word, which older API servers refuse.

mod manifest;
mod rules;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

pub use manifest::yaml;

/// Which workers are indexed, and how: a group of Pods of this namespace (selector), or fixed addresses (endpoints).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "kvindexer.io",
    version = "v1alpha1",
    kind = "IndexerWorker",
    namespaced,
    status = "IndexerWorkerStatus",
    shortname = "iw",
    category = "kvindexer",
    doc = "A group of inference engine workers whose KV-cache events are indexed.",
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.modelName"),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenantId"),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workers"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.ready"),
    printcolumn(name = "Blocks", type_ = "integer", json_path = ".status.blocks"),
    printcolumn(name = "Gaps", type_ = "integer", json_path = ".status.gaps"),
    printcolumn(name = "Trust", type_ = "string", json_path = ".status.trust"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type==\"InSync\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[allow(clippy::duplicated_attributes, reason = "columns of one type are no duplicates")]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct IndexerWorkerSpec {
    /// Name of the model that the workers serve, as routers ask for it; with tenantId it names the index. 1 to 512
    /// characters. Example: meta-llama/Llama-3.1-8B.
    #[schemars(length(min = 1, max = 512))]
    pub model_name: String,
    /// Tenant whose index the workers feed; two tenants never see each other's blocks. 1 to 253 characters. Default:
    /// default.
    #[serde(default = "default_tenant")]
    #[schemars(length(min = 1, max = 253))]
    pub tenant_id: String,
    /// Tokens per block, 1 to 65536, as the engine is configured (vLLM: --block-size; SGLang: --page-size). All workers of
    /// one model and tenant must have the same; the oldest object decides. Example: 16.
    #[schemars(range(min = 1, max = 65536))]
    pub block_size: i32,
    /// Labels of the Pods that belong to this object, in its own namespace only. Exactly one of selector and endpoints must
    /// be set. A Pod that several objects select belongs to the oldest of them. A Pod is registered while its container
    /// runs, whether it is ready or not. Example: {matchLabels: {app: vllm}}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Workers at fixed addresses, outside of the cluster. Exactly one of selector and endpoints must be set. 1 to 256
    /// items; no two with the same instanceId and dpRank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["instanceId", "dpRank"])
    )]
    pub endpoints: Option<Vec<FixedEndpoint>>,
    /// Where the engines of selected Pods publish; required with selector, forbidden with endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// Data-parallel ranks of each selected Pod. Absent: one rank, 0; or what the engine says of itself, with discovery Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_parallel: Option<DataParallel>,
    /// Name of the container that holds the cache: when it restarts, its blocks are gone. Absent: the container that declares
    /// the events port, else the one named by the annotation kubectl.kubernetes.io/default-container, else the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container_name: Option<String>,
    /// How a block counts that is announced twice: Set (one block, one removal ends it), Copies (each removal takes one
    /// copy), or Auto (Copies for hybrid models, else Set). Default: Auto.
    #[serde(default)]
    pub duplicate_policy: DuplicatePolicy,
    /// Auto: ask each engine at ports.http for its ranks, ports and topic; what this object says wins, and blockSize stays
    /// required. Off: do not ask. Write "Off" in quotes, YAML would read it as false. Default: Off.
    #[serde(default)]
    pub discovery: Discovery,
}

/// Labels of Pods, as in a Deployment; all requirements must hold. Must not be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic", "x-kubernetes-validations" = rules::selector()))]
pub struct LabelSelector {
    /// Labels that a Pod must have, with these values. At most 32. Example: {app: vllm}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = rules::label_value()))]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Further requirements, at most 32. Example: [{key: role, operator: In, values: [decode, both]}].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Option<Vec<SelectorRequirement>>,
}

/// One requirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::requirement()))]
pub struct SelectorRequirement {
    /// Label that is looked at. Example: app.kubernetes.io/component.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// In: the label has one of the values. NotIn: it has none of them, or is absent. Exists: it is there. DoesNotExist: it
    /// is not.
    pub operator: SelectorOperator,
    /// Values for In and NotIn, 1 to 64; none for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Option<Vec<String>>,
}

/// How a label is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// One of the values.
    In,
    /// None of the values, or absent.
    NotIn,
    /// Present.
    Exists,
    /// Absent.
    DoesNotExist,
}

/// A worker at a fixed address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::endpoint()))]
pub struct FixedEndpoint {
    /// Id of the instance in answers to queries, 1 to 253 characters. A decimal number is a number there. Must not contain a
    /// slash: ids with a slash are NAMESPACE/POD. Example: gpu-box-1.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[^/]*$"))]
    pub instance_id: String,
    /// Data-parallel rank that publishes at this address, 0 to 65535. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 65535))]
    pub dp_rank: i32,
    /// Where it publishes events: tcp://host:port, an IPv6 address in brackets. Example: tcp://10.0.0.7:5557.
    #[schemars(length(min = 1, max = 512), regex(pattern = rules::ADDRESS))]
    pub address: String,
    /// Its replay socket, from which lost events are asked for. Absent: none, so that a gap makes the worker degraded. Must
    /// differ from address. Example: tcp://10.0.0.7:5558.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = rules::ADDRESS))]
    pub replay_address: Option<String>,
}

/// Ports of rank 0, each a number or the name of a container port; rank r listens at the number + r.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Port where rank 0 publishes events: a number, 1 to 65535, or the name of a container port; rank r uses this number + r.
    /// Example: 5557, or kv-events.
    pub events: PortRef,
    /// Port of the replay socket of rank 0, from which lost events are asked for: a number, 1 to 65535, or the name of a
    /// container port; rank r uses this number + r. Absent: none, so that a gap makes the worker degraded. The event and
    /// replay ranges must not overlap. Example: 6557, or kv-replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<PortRef>,
    /// Port of the engine's HTTP server, asked with discovery Auto: a number, 1 to 65535, or the name of a container port.
    /// Example: 8000, or http.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<PortRef>,
}

/// A port number, or the name of a container port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PortRef {
    /// The number.
    Number(i32),
    /// The name.
    Name(String),
}

impl<'de> Deserialize<'de> for PortRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = PortRef;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a port number or the name of a container port")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PortRef, E> {
                i32::try_from(number)
                    .map(PortRef::Number)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<PortRef, E> {
                let read = i32::try_from(number).map(PortRef::Number);
                read.map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<PortRef, E> {
                Ok(PortRef::Name(name.to_owned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for PortRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PortRef".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"x-kubernetes-int-or-string": true, "x-kubernetes-validations": rules::port()})
    }
}

/// Data-parallel ranks of one Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataParallel {
    /// Ranks in ONE Pod, 1 to 1024 (vLLM: --data-parallel-size-local). Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub size: i32,
    /// Rank of the first one, 0 to 65535; with a startRankFrom other than Fixed, that of the first Pod. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 65535))]
    pub start_rank: i32,
    /// What is added to startRank. Fixed: nothing. LeaderWorkerSetIndex, StatefulSetIndex: the index of the Pod in its group
    /// or set, times size. Example: with size 8, the Pod with index 1 has the ranks 8 to 15. Default: Fixed.
    #[serde(default)]
    pub start_rank_from: StartRankFrom,
}

/// What is added to the first rank, times the size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StartRankFrom {
    /// Nothing.
    #[default]
    Fixed,
    /// The worker index of the LeaderWorkerSet.
    LeaderWorkerSetIndex,
    /// The index of the Pod in its StatefulSet.
    StatefulSetIndex,
}

/// Whether a block that is announced twice counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DuplicatePolicy {
    /// Copies for hybrid models, else a set.
    #[default]
    Auto,
    /// Once.
    Set,
    /// As often as announced.
    Copies,
}

/// Whether engines are asked to describe themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Discovery {
    /// No.
    #[default]
    Off,
    /// Yes, at `ports.http`.
    Auto,
}

/// What the indexer observed; written by one of its replicas, about all of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IndexerWorkerStatus {
    /// Generation of the spec that this status is about; smaller than metadata.generation while a change is not yet looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the replica that wrote this status. Example: kvindexer-0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub observed_by: Option<String>,
    /// Number of registered ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<i32>,
    /// Number of ranks that are Exact on every replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
    /// Number of blocks that the ranks hold, over all tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<i64>,
    /// Number of gaps seen in the event streams of the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaps: Option<i64>,
    /// The worst of all ranks on all replicas. Exact: answers equal what the engine holds. Degraded: something is known to be
    /// missing or unsure. Stale: not connected, or nothing known yet. Unknown: not looked at yet.
    #[serde(default)]
    pub trust: Trust,
    /// The ranks, troubled ones first, at most 32; workers and ready count all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["instanceId", "dpRank"])
    )]
    pub instances: Vec<InstanceStatus>,
    /// Accepted: the spec is in force. Connected: every rank is connected. Ingesting: events come in. InSync: every rank is
    /// Exact on every replica, and the replicas agree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions")]
    pub conditions: Vec<Condition>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Id of its instance in answers to queries: NAMESPACE/POD, unless chosen otherwise.
    #[schemars(length(max = 317))]
    pub instance_id: String,
    /// Its data-parallel rank.
    #[schemars(range(min = 0))]
    pub dp_rank: i32,
    /// Where it publishes. Example: tcp://10.0.0.7:5557.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub address: Option<String>,
    /// The worst over all replicas: Exact, Degraded, Stale or Unknown.
    #[serde(default)]
    pub trust: Trust,
    /// Why it is not Exact, in the words of GET /workers. Example: gap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 64)), extend("x-kubernetes-list-type" = "set"))]
    pub reasons: Vec<String>,
    /// Number of the last applied batch, as text: it may exceed what JSON numbers hold exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20))]
    pub last_sequence: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// How far blocks can be believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Trust {
    /// Answers equal the engine's cache.
    Exact,
    /// Something is known to be missing or unsure.
    Degraded,
    /// Not connected, or nothing known yet.
    Stale,
    /// Nobody has looked yet.
    #[default]
    Unknown,
}

fn default_tenant() -> String {
    crate::ids::DEFAULT_TENANT.to_owned()
}

fn one() -> i32 {
    1
}
