//! Which workers should exist, from what the API server says now. Pure: running it twice changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::controller::ControllerConfig;
use crate::controller::crd::IndexerWorkerSpec;
use crate::controller::facts::{ObjectFacts, ObjectKey, PodFacts};
use crate::ids::{IndexKey, Owner};
use crate::registry::DesiredWorker;

/// The last complete view of both kinds.
#[derive(Debug, Clone, Default)]
pub(super) struct Observed {
    pub(super) pods: BTreeMap<ObjectKey, Arc<PodFacts>>,
    pub(super) objects: BTreeMap<ObjectKey, Arc<ObjectFacts>>,
}

/// What engines said of themselves, by question.
pub(super) type Described = BTreeMap<Probe, Description>;

/// A question to an engine: one life of one container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Probe {
    pub(super) pod_uid: String,
    pub(super) container_id: String,
    /// Host and port of its HTTP server, as in a URL.
    pub(super) authority: String,
}

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Description {
    /// Tokens per block, where it says so.
    pub(super) block_size: Option<u32>,
    /// By global rank; hosts in it are not believed, ports are.
    pub(super) ranks: BTreeMap<u32, DescribedRank>,
}

/// One rank of a [`Description`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DescribedRank {
    pub(super) events_port: Option<u16>,
    pub(super) replay_port: Option<u16>,
    pub(super) topic: Option<String>,
}

/// Specs of objects that were valid, by UID: an object that becomes invalid keeps its last good registration.
pub(super) type LastGood = BTreeMap<String, IndexerWorkerSpec>;

/// What follows from a view.
#[derive(Debug, Clone, Default)]
pub(super) struct Desired {
    pub(super) workers: BTreeMap<(IndexKey, Owner), DesiredWorker>,
    /// One per object that this replica set cares for.
    pub(super) objects: BTreeMap<ObjectKey, ObjectFinding>,
    /// Annotated Pods that cannot be registered as they say, and why.
    pub(super) pods: BTreeMap<ObjectKey, PodFinding>,
    /// Engines to be asked for their description.
    pub(super) probes: Vec<Probe>,
    pub(super) last_good: LastGood,
}

/// What was found about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectFinding {
    pub(super) uid: String,
    pub(super) generation: i64,
    /// Why its spec as it stands is not in force.
    pub(super) refused: Option<Fault>,
    /// Owners that it wants, with the Pod they come from (none: a fixed endpoint), in order.
    pub(super) members: Vec<Member>,
    /// Pods that match and cannot be registered, and the reason; also warnings that leave the Pod registered.
    pub(super) faults: Vec<(ObjectKey, Fault)>,
}

/// An owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) index: IndexKey,
    pub(super) owner: Owner,
    pub(super) address: String,
    pub(super) pod: Option<ObjectKey>,
    pub(super) container_down: bool,
}

/// What was found about an annotated Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodFinding {
    pub(super) uid: String,
    pub(super) fault: Fault,
}

/// Something wrong, for people and for conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// The word of a [`Fault`]: CamelCase on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reason {
    /// The object cannot be read at all.
    Unreadable,
    /// A value is out of range, or two contradict each other.
    InvalidSpec,
    InvalidSelector,
    /// An annotation is missing or cannot be read.
    InvalidAnnotation,
    PortNotFound,
    PortConflict,
    RankUnknown,
    ContainerNotFound,
    PodAlreadyClaimed,
    /// Another Pod or object, an older one, has this instance and rank.
    InstanceConflict,
    /// The index exists with another block size, or the engine says another one.
    BlockSizeMismatch,
    EndpointsNotAllowed,
}

/// Decides.
pub(super) fn desired(
    observed: &Observed,
    described: &Described,
    last_good: &LastGood,
    config: &ControllerConfig,
) -> Desired {
    let _ = (observed, described, last_good, config);
    Desired::default()
}
