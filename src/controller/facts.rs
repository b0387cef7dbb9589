//! What the controller keeps of a Pod and of an IndexerWorker: the fields that decide, nothing else. Pure.
//!
//! A Pod whose life is over keeps its name and labels only. Labels are kept whole: a selector may ask for any of them, and
//! `notin` would match a Pod whose label was cut away. Of annotations only our own are kept, each cut to a length at which
//! it is too long to be accepted.

mod selector;

#[cfg(test)]
pub(super) mod builders;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use litemap::LiteMap;

use crate::controller::IndexerWorkerSpec;

pub use selector::Selector;

/// Every annotation of ours begins so; the label that lets a Pod join does too.
pub(super) const PREFIX: &str = "kvindexer.io/";

/// Names the container that tools should take, where a Pod has several.
pub(super) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Annotations kept of one Pod: there are ten of ours, and a misspelled one should be seen.
const ANNOTATIONS_MAX: usize = 24;

/// Longest kept value of an annotation, in characters: one more than the longest that is accepted, a model's name.
const ANNOTATION_CHARS_MAX: usize = 513;

/// Longest kept reason why an object cannot be read, in characters.
const UNREADABLE_CHARS_MAX: usize = 512;

/// Names and values. Sorted in one allocation: a tree of so few entries would cost more than what is in it.
pub(super) type TextMap = LiteMap<String, String>;

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjectKey {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// For who is older; in microseconds since 1970.
    pub(super) created_us: i64,
    pub(super) labels: TextMap,
    /// Those that begin with [`PREFIX`], without it, and [`DEFAULT_CONTAINER`] whole.
    pub(super) annotations: TextMap,
    /// The first of its addresses.
    pub(super) ip: Option<IpAddr>,
    /// It has a deletionTimestamp.
    pub(super) deleting: bool,
    /// Phase Failed or Succeeded.
    pub(super) ended: bool,
    /// Containers that run for the life of the Pod: native sidecars first, then regular ones, in order.
    pub(super) containers: Vec<ContainerFacts>,
}

/// A container of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ContainerFacts {
    pub(super) name: String,
    /// An init container that restarts.
    pub(super) sidecar: bool,
    /// Declared ports: name, number.
    pub(super) ports: Vec<(Option<String>, u16)>,
    /// As the kubelet gives it: that of the last run, if it does not run.
    pub(super) id: Option<String>,
    pub(super) running: bool,
    pub(super) restart_count: u32,
}

/// An IndexerWorker.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ObjectFacts {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) generation: i64,
    /// For who is older; in microseconds since 1970.
    pub(super) created_us: i64,
    pub(super) labels: TextMap,
    /// Or why it cannot be read.
    pub(super) spec: Result<IndexerWorkerSpec, String>,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodFacts {
    /// It may still hold a cache.
    pub(super) fn lives(&self) -> bool {
        !self.deleting && !self.ended
    }
}

impl From<&ObjectMeta> for ObjectKey {
    fn from(meta: &ObjectMeta) -> Self {
        Self { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
    }
}

impl From<&Pod> for PodFacts {
    fn from(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let status = pod.status.as_ref();
        let mut facts = Self {
            key: meta.into(),
            uid: meta.uid.clone().unwrap_or_default(),
            created_us: created_us(meta),
            labels: labels(meta),
            annotations: TextMap::default(),
            ip: None,
            deleting: meta.deletion_timestamp.is_some(),
            ended: matches!(status.and_then(|status| status.phase.as_deref()), Some("Failed" | "Succeeded")),
            containers: Vec::new(),
        };
        if facts.lives() {
            facts.annotations = annotations(meta);
            facts.ip = status.and_then(address);
            facts.containers = containers(pod);
        }
        facts
    }
}

/// An IndexerWorker as the API server sent it; one that cannot be read says so, and harms no other.
pub(super) fn object(raw: &DynamicObject) -> ObjectFacts {
    let spec = match raw.data.get("spec") {
        None => Err("it has no spec".to_owned()),
        Some(spec) => serde::Deserialize::deserialize(spec)
            .map_err(|error: serde_json::Error| cut(&error.to_string(), UNREADABLE_CHARS_MAX)),
    };
    ObjectFacts {
        key: (&raw.metadata).into(),
        uid: raw.metadata.uid.clone().unwrap_or_default(),
        generation: raw.metadata.generation.unwrap_or_default(),
        created_us: created_us(&raw.metadata),
        labels: labels(&raw.metadata),
        spec,
    }
}

fn created_us(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_microsecond())
}

fn labels(meta: &ObjectMeta) -> TextMap {
    meta.labels.iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn annotations(meta: &ObjectMeta) -> TextMap {
    let all = meta.annotations.iter().flatten();
    let ours = all.filter_map(|(name, value)| {
        let name = if name == DEFAULT_CONTAINER { name } else { name.strip_prefix(PREFIX)? };
        Some((name.to_owned(), cut(value, ANNOTATION_CHARS_MAX)))
    });
    ours.take(ANNOTATIONS_MAX).collect()
}

fn address(status: &PodStatus) -> Option<IpAddr> {
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    status.pod_ip.as_deref().into_iter().chain(listed).find_map(|text| text.parse().ok())
}

fn containers(pod: &Pod) -> Vec<ContainerFacts> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let status = pod.status.as_ref();
    let states = |of: fn(&PodStatus) -> &Option<Vec<ContainerStatus>>| {
        status.and_then(|status| of(status).as_deref()).unwrap_or_default()
    };
    let restarts = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(restarts);
    let sidecars = sidecars.map(|container| facts(container, true, states(|status| &status.init_container_statuses)));
    let regular = spec.containers.iter();
    let regular = regular.map(|container| facts(container, false, states(|status| &status.container_statuses)));
    // Thousands of these are kept: no room is left in them.
    let mut all: Vec<_> = sidecars.chain(regular).collect();
    all.shrink_to_fit();
    all
}

fn facts(container: &Container, sidecar: bool, states: &[ContainerStatus]) -> ContainerFacts {
    let state = states.iter().find(|state| state.name == container.name);
    let ports = container.ports.iter().flatten();
    let ports = ports.filter_map(|port| Some((port.name.clone(), u16::try_from(port.container_port).ok()?)));
    let mut ports: Vec<_> = ports.collect();
    ports.shrink_to_fit();
    ContainerFacts {
        name: container.name.clone(),
        sidecar,
        ports,
        id: state.and_then(|state| state.container_id.clone()).filter(|id| !id.is_empty()),
        running: state.and_then(|state| state.state.as_ref()).is_some_and(|state| state.running.is_some()),
        restart_count: state.map_or(0, |state| u32::try_from(state.restart_count).unwrap_or_default()),
    }
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}
