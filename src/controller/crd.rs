//! The custom resource `IndexerWorker`, as Rust types from which `kvindexer crd` prints the CustomResourceDefinition.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A group of inference engine workers whose KV-cache events are indexed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "kvindexer.io",
    version = "v1alpha1",
    kind = "IndexerWorker",
    namespaced,
    status = "IndexerWorkerStatus",
    shortname = "iw"
)]
#[serde(rename_all = "camelCase")]
pub struct IndexerWorkerSpec {
    /// Model that the workers serve.
    pub model_name: String,
    /// Tenant whose index the workers feed.
    #[serde(default = "default_tenant")]
    pub tenant_id: String,
    /// Tokens per block.
    pub block_size: i32,
    /// Pods of the same namespace; or `endpoints`, exactly one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Workers outside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Vec<FixedEndpoint>>,
    /// Where Pods publish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// Ranks of one Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_parallel: Option<DataParallel>,
    /// Container whose restarts matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// Whether a block that is announced twice counts once.
    #[serde(default)]
    pub duplicate_policy: DuplicatePolicy,
    /// Whether engines are asked to describe themselves.
    #[serde(default)]
    pub discovery: Discovery,
}

/// Labels of Pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that a Pod must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_expressions: Option<Vec<SelectorRequirement>>,
}

/// One requirement of a selector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectorRequirement {
    /// Label.
    pub key: String,
    /// How it is compared.
    pub operator: SelectorOperator,
    /// With what, for In and NotIn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
pub struct FixedEndpoint {
    /// Its id.
    pub instance_id: String,
    /// Its rank.
    #[serde(default)]
    pub dp_rank: i32,
    /// Where it publishes.
    pub address: String,
    /// Where it replays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_address: Option<String>,
}

/// Ports of rank 0; rank r uses the port + r.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Events.
    pub events: PortRef,
    /// Replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<PortRef>,
    /// HTTP server of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<PortRef>,
}

/// A port number, or the name of a container port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    /// The number.
    Number(i32),
    /// The name.
    Name(String),
}

impl JsonSchema for PortRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PortRef".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"x-kubernetes-int-or-string": true})
    }
}

/// Data-parallel ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataParallel {
    /// Ranks in one Pod.
    #[serde(default = "one")]
    pub size: i32,
    /// First rank.
    #[serde(default)]
    pub start_rank: i32,
    /// What is added to it.
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

/// What was observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IndexerWorkerStatus {
    /// Generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Replica that wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_by: Option<String>,
    /// Registered ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<i32>,
    /// Ranks that are exact on every replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
    /// Blocks held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<i64>,
    /// Gaps seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaps: Option<i64>,
    /// The worst of all ranks over all replicas.
    #[serde(default)]
    pub trust: Trust,
    /// Up to 32 ranks, troubled first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceStatus>,
    /// Accepted, Connected, Ingesting, InSync.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// The instance.
    pub instance_id: String,
    /// The rank.
    pub dp_rank: i32,
    /// Where it publishes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The worst over all replicas.
    #[serde(default)]
    pub trust: Trust,
    /// Why it is not exact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Last applied batch, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sequence: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// The CustomResourceDefinition as YAML: what stands in `crds/`.
#[must_use]
pub fn yaml() -> String {
    String::new()
}
