//! What the controller keeps of a Pod and of an IndexerWorker: the fields that decide, nothing else. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::controller::IndexerWorkerSpec;

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
    pub(super) labels: BTreeMap<String, String>,
    /// Those that begin with `kvindexer.io/`, without that, and `kubectl.kubernetes.io/default-container` whole.
    pub(super) annotations: BTreeMap<String, String>,
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
    /// As the kubelet gives it.
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
    pub(super) labels: BTreeMap<String, String>,
    /// Or why it cannot be read.
    pub(super) spec: Result<IndexerWorkerSpec, String>,
}

/// A label selector in the form of the command line: `app=vllm,tier in (a,b),!canary`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector(pub(super) Vec<Requirement>);

impl std::str::FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let _ = text;
        Ok(Self::default())
    }
}

/// One part of a [`Selector`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) test: Test,
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}
