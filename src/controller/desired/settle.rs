//! Decides between those that want the same: the older wins, and the other says so.

use std::collections::BTreeMap;

use crate::controller::ControllerConfig;
use crate::controller::desired::pods::{self, Resolved};
use crate::controller::desired::template::{Template, Workers};
use crate::controller::desired::{Described, Desired, Fault, Member, PodFinding, Reason};
use crate::controller::facts::{ObjectKey, PodFacts};
use crate::ids::{BlockSize, IndexKey, InstanceId};
use crate::registry::{DesiredWorker, WorkerSpec};

/// What asks for workers. Its order is that of age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source<'a> {
    pub(super) created_us: i64,
    pub(super) key: &'a ObjectKey,
    pub(super) kind: Kind,
    pub(super) uid: &'a str,
}

/// Kind of a [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Object,
    Pod,
}

/// A source and what it wants.
pub(super) struct Group<'a> {
    pub(super) source: Source<'a>,
    pub(super) template: Template,
    /// Those that it claims; itself, if it is one.
    pub(super) pods: Vec<&'a PodFacts>,
}

/// Where an instance lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home<'a> {
    Pod(&'a ObjectKey),
    /// Fixed endpoints of this object.
    Fixed(&'a ObjectKey),
}

/// Decisions so far.
pub(super) struct Settling<'a> {
    described: &'a Described,
    config: &'a ControllerConfig,
    out: Desired,
    sizes: BTreeMap<IndexKey, (BlockSize, Source<'a>)>,
    /// Homes of instances, and whether somebody chose the id by hand: then its ranks may have several homes.
    homes: BTreeMap<(IndexKey, InstanceId), (Home<'a>, bool)>,
}

impl std::fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Object => write!(f, "IndexerWorker `{}`", self.key),
            Kind::Pod => write!(f, "Pod `{}`", self.key),
        }
    }
}

impl std::fmt::Display for Home<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "Pod `{key}`"),
            Self::Fixed(key) => write!(f, "IndexerWorker `{key}`"),
        }
    }
}

impl<'a> Settling<'a> {
    /// Nothing is decided but what is in `out`.
    pub(super) fn new(described: &'a Described, config: &'a ControllerConfig, out: Desired) -> Self {
        Self { described, config, out, sizes: BTreeMap::new(), homes: BTreeMap::new() }
    }

    /// Takes all groups, the oldest first.
    pub(super) fn settle(&mut self, mut groups: Vec<Group<'a>>) {
        groups.sort_by(|one, other| one.source.cmp(&other.source));
        for Group { source, template, mut pods } in groups {
            if let Err(fault) = self.fix_block_size(source, &template) {
                self.refuse(source, fault);
                continue;
            }
            match &template.workers {
                Workers::Pods(rule) => {
                    pods.sort_by_key(|pod| (pod.created_us, &pod.key));
                    for pod in pods {
                        match pods::resolve(pod, (&template, rule), self.described, self.config) {
                            Ok(resolved) => self.take_pod(source, pod, resolved, rule.instance.is_some()),
                            Err(fault) => self.report(source, &pod.key, fault),
                        }
                    }
                }
                Workers::Fixed(fixed) => {
                    for worker in fixed {
                        let spec = WorkerSpec {
                            key: template.index.clone(),
                            owner: worker.owner.clone(),
                            block_size: template.block_size,
                            endpoint: worker.endpoint.clone(),
                            replay_endpoint: worker.replay_endpoint.clone(),
                            topic: None,
                            additional_salt: None,
                            default_lora: None,
                            owner_spec: template.owner_spec,
                            incarnation: None,
                        };
                        if let Err(fault) = self.take(source, (Home::Fixed(source.key), true), spec.into()) {
                            self.report(source, source.key, fault);
                        }
                    }
                }
            }
        }
    }

    /// All of it, in an order that depends on names only.
    pub(super) fn end(mut self) -> Desired {
        for finding in self.out.objects.values_mut() {
            finding.members.sort_by(|one, other| (&one.pod, &one.owner).cmp(&(&other.pod, &other.owner)));
            finding.faults.sort_by(|one, other| (&one.0, one.1.reason).cmp(&(&other.0, other.1.reason)));
        }
        self.out.probes.sort();
        self.out.probes.dedup();
        self.out
    }

    /// The oldest source of an index fixes its block size.
    fn fix_block_size(&mut self, source: Source<'a>, template: &Template) -> Result<(), Fault> {
        let (size, first) = *self.sizes.entry(template.index.clone()).or_insert((template.block_size, source));
        if size == template.block_size {
            return Ok(());
        }
        let IndexKey { model, tenant } = &template.index;
        Err(Reason::BlockSizeMismatch.because(format!(
            "model `{model}` of tenant `{tenant}` has blocks of {size} tokens since {first}, not {}",
            template.block_size
        )))
    }

    fn take_pod(&mut self, source: Source<'a>, pod: &'a PodFacts, resolved: Resolved, chosen: bool) {
        let Resolved { workers, probe, warnings } = resolved;
        for warning in warnings {
            self.warn(source, &pod.key, warning);
        }
        self.out.probes.extend(probe);
        let mut refused = None;
        for worker in workers {
            if let Err(fault) = self.take(source, (Home::Pod(&pod.key), chosen), worker) {
                refused.get_or_insert(fault);
            }
        }
        if let Some(fault) = refused {
            self.report(source, &pod.key, fault);
        }
    }

    fn take(
        &mut self,
        source: Source<'a>,
        (home, chosen): (Home<'a>, bool),
        worker: DesiredWorker,
    ) -> Result<(), Fault> {
        let spec = &worker.spec;
        let instance = (spec.key.clone(), spec.owner.instance.clone());
        let (first, first_chosen) = *self.homes.entry(instance).or_insert((home, chosen));
        let name = (spec.key.clone(), spec.owner.clone());
        let shared = first == home || (chosen && first_chosen);
        if !shared || self.out.workers.contains_key(&name) {
            let message =
                format!("instance `{}` rank {} belongs to an older one: {first}", name.1.instance, name.1.rank);
            return Err(Reason::InstanceConflict.because(message));
        }
        if let (Kind::Object, Some(finding)) = (source.kind, self.out.objects.get_mut(source.key)) {
            finding.members.push(Member {
                index: name.0.clone(),
                owner: name.1.clone(),
                address: spec.endpoint.as_str().to_owned(),
                pod: match home {
                    Home::Pod(key) => Some(key.clone()),
                    Home::Fixed(_) => None,
                },
                container_down: worker.container_down,
            });
        }
        self.out.workers.insert(name, worker);
        Ok(())
    }

    /// The source as a whole is not registered.
    fn refuse(&mut self, source: Source<'a>, fault: Fault) {
        match source.kind {
            Kind::Object => {
                if let Some(finding) = self.out.objects.get_mut(source.key) {
                    finding.refused.get_or_insert(fault);
                }
            }
            Kind::Pod => self.report(source, source.key, fault),
        }
    }

    /// Something of the source is not registered.
    fn report(&mut self, source: Source<'a>, at: &ObjectKey, fault: Fault) {
        match source.kind {
            Kind::Object => self.warn(source, at, fault),
            Kind::Pod => {
                // What keeps a Pod out outweighs a warning.
                self.out.pods.remove(source.key);
                self.warn(source, at, fault);
            }
        }
    }

    fn warn(&mut self, source: Source<'a>, at: &ObjectKey, fault: Fault) {
        match source.kind {
            Kind::Object => {
                if let Some(finding) = self.out.objects.get_mut(source.key) {
                    finding.faults.push((at.clone(), fault));
                }
            }
            Kind::Pod => {
                let uid = source.uid.to_owned();
                self.out.pods.entry(source.key.clone()).or_insert(PodFinding { uid, fault });
            }
        }
    }
}
