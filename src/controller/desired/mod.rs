//! Which workers should exist, from what the API server says now. Pure: running it twice changes nothing, and neither does
//! the order in which things became known.
//!
//! An IndexerWorker or an annotated Pod asks for workers by a `template`; `pods` turns a Pod and a template into ranks and
//! addresses; `settle` decides between those that want the same. Who is older wins everywhere, names decide between equals.

mod annotations;
mod pods;
mod settle;
mod template;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::controller::ControllerConfig;
use crate::controller::crd::IndexerWorkerSpec;
use crate::controller::facts::{ObjectFacts, ObjectKey, PREFIX, PodFacts, Selector};
use crate::ids::{IndexKey, Owner};
use crate::registry::DesiredWorker;

use settle::{Group, Kind, Settling, Source};
use template::Template;

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

impl Probe {
    /// The Pod and the address, whatever the life of the container.
    pub(super) fn place(&self) -> (&str, &str) {
        (&self.pod_uid, &self.authority)
    }
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
    /// Pods that match and cannot be registered, and the reason; also warnings that leave the Pod registered. A fixed
    /// endpoint that cannot be registered stands under the object's own name.
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
    /// Another Pod or object, an older one, has this instance or this rank of it.
    InstanceConflict,
    /// The index exists with another block size, or the engine says another one.
    BlockSizeMismatch,
    EndpointsNotAllowed,
}

impl Reason {
    /// The word.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "Unreadable",
            Self::InvalidSpec => "InvalidSpec",
            Self::InvalidSelector => "InvalidSelector",
            Self::InvalidAnnotation => "InvalidAnnotation",
            Self::PortNotFound => "PortNotFound",
            Self::PortConflict => "PortConflict",
            Self::RankUnknown => "RankUnknown",
            Self::ContainerNotFound => "ContainerNotFound",
            Self::PodAlreadyClaimed => "PodAlreadyClaimed",
            Self::InstanceConflict => "InstanceConflict",
            Self::BlockSizeMismatch => "BlockSizeMismatch",
            Self::EndpointsNotAllowed => "EndpointsNotAllowed",
        }
    }

    /// A fault of this kind.
    fn because(self, message: impl Into<String>) -> Fault {
        Fault { reason: self, message: message.into() }
    }
}

/// An object, and what of it is in force.
struct Judged<'a> {
    facts: &'a ObjectFacts,
    refused: Option<Fault>,
    in_force: Option<InForce>,
    /// This replica set registers what it claims.
    cared_for: bool,
}

/// A spec that can be obeyed.
struct InForce {
    template: Template,
    /// None: it names fixed endpoints.
    selector: Option<Selector>,
}

/// Decides.
pub(super) fn desired(
    observed: &Observed,
    described: &Described,
    last_good: &LastGood,
    config: &ControllerConfig,
) -> Desired {
    let mut out = Desired::default();
    let mut judged: Vec<_> =
        observed.objects.values().map(|facts| judge(facts, last_good, config, &mut out.last_good)).collect();
    judged.sort_by_key(|object| (object.facts.created_us, &object.facts.key));
    for object in judged.iter().filter(|object| object.cared_for) {
        let finding = ObjectFinding {
            uid: object.facts.uid.clone(),
            generation: object.facts.generation,
            refused: object.refused.clone(),
            members: Vec::new(),
            faults: Vec::new(),
        };
        out.objects.insert(object.facts.key.clone(), finding);
    }
    let mut claimed = claim(observed, &judged, &mut out);
    let mut groups = annotated(&claimed, config, &mut out);
    for (at, object) in judged.into_iter().enumerate().filter(|(_, object)| object.cared_for) {
        let Some(InForce { template, .. }) = object.in_force else {
            continue;
        };
        let source = Source {
            created_us: object.facts.created_us,
            key: &object.facts.key,
            kind: Kind::Object,
            uid: &object.facts.uid,
        };
        groups.push(Group { source, template, pods: claimed.by_object.remove(&at).unwrap_or_default() });
    }
    let mut settling = Settling::new(described, config, out);
    settling.settle(groups);
    settling.end()
}

/// Finds the spec of an object that is in force: its own, else its last good one; and keeps that.
fn judge<'a>(
    facts: &'a ObjectFacts,
    last_good: &LastGood,
    config: &ControllerConfig,
    kept: &mut LastGood,
) -> Judged<'a> {
    let read = |spec| template::read(spec, &facts.key.namespace, config);
    let own = match &facts.spec {
        Ok(spec) => read(spec).map(|in_force| (in_force, spec)),
        Err(error) => Err(Reason::Unreadable.because(format!("the object cannot be read: {error}"))),
    };
    let (refused, in_force) = match own {
        Ok(own) => (None, Some(own)),
        Err(fault) => {
            let before = last_good.get(&facts.uid);
            (Some(fault), before.and_then(|spec| Some((read(spec).ok()?, spec))))
        }
    };
    if let Some((_, spec)) = &in_force {
        kept.insert(facts.uid.clone(), (*spec).clone());
    }
    let cared_for = config.worker_selector.matches(&facts.labels);
    Judged { facts, refused, in_force: in_force.map(|(in_force, _)| in_force), cared_for }
}

/// Who has which Pod.
struct Claimed<'a> {
    /// Pods of an object, by its place in the order of age.
    by_object: BTreeMap<usize, Vec<&'a PodFacts>>,
    /// Pods that no object claims.
    free: Vec<&'a PodFacts>,
}

/// Gives each living Pod to the oldest object that selects it; the others say so. Whether this replica set cares for an
/// object plays no part: else two sets would register one Pod.
fn claim<'a>(observed: &'a Observed, judged: &[Judged<'_>], out: &mut Desired) -> Claimed<'a> {
    let mut selectors: BTreeMap<&str, Vec<(usize, &Selector)>> = BTreeMap::new();
    for (at, object) in judged.iter().enumerate() {
        if let Some(InForce { selector: Some(selector), .. }) = &object.in_force {
            selectors.entry(&object.facts.key.namespace).or_default().push((at, selector));
        }
    }
    let mut claimed = Claimed { by_object: BTreeMap::new(), free: Vec::new() };
    for pod in observed.pods.values().map(|pod| &**pod).filter(|pod| pod.lives()) {
        let of_namespace = selectors.get(pod.key.namespace.as_str()).into_iter().flatten();
        let mut matching = of_namespace.filter(|(_, selector)| selector.matches(&pod.labels)).map(|(at, _)| *at);
        let Some(winner) = matching.next() else {
            claimed.free.push(pod);
            continue;
        };
        claimed.by_object.entry(winner).or_default().push(pod);
        for loser in matching {
            if let Some(finding) = out.objects.get_mut(&judged[loser].facts.key) {
                let older = &judged[winner].facts.key.name;
                let message = format!("the Pod belongs to the older IndexerWorker `{older}`");
                finding.faults.push((pod.key.clone(), Reason::PodAlreadyClaimed.because(message)));
            }
        }
    }
    claimed
}

/// Pods that join by themselves: labelled, claimed by no object, and cared for by this replica set.
fn annotated<'a>(claimed: &Claimed<'a>, config: &ControllerConfig, out: &mut Desired) -> Vec<Group<'a>> {
    let enabled = format!("{PREFIX}enabled");
    let joins = |pod: &&&PodFacts| pod.labels.get(&enabled).is_some_and(|value| value == "true");
    let mut groups = Vec::new();
    for pod in claimed.free.iter().filter(joins).filter(|pod| config.worker_selector.matches(&pod.labels)) {
        let fault = match annotations::read(pod, config) {
            Ok((template, warning)) => {
                let source = Source { created_us: pod.created_us, key: &pod.key, kind: Kind::Pod, uid: &pod.uid };
                groups.push(Group { source, template, pods: vec![*pod] });
                warning
            }
            Err(fault) => Some(fault),
        };
        if let Some(fault) = fault {
            out.pods.insert(pod.key.clone(), PodFinding { uid: pod.uid.clone(), fault });
        }
    }
    groups
}
