//! What happened, as Events: whose they are and what they say. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::controller::desired::{Fault, Member, ObjectFinding};
use crate::controller::drive::Findings;
use crate::controller::events::{Happened, Occurrence, What};
use crate::controller::facts::ObjectKey;
use crate::controller::status::writer::reference;
use crate::ids::{IndexKey, Owner};

/// A Pod, for an Event. Without a UID it is still found by its name.
fn pod(key: &ObjectKey, findings: &Findings) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: findings.observed.pods.get(key).map(|pod| pod.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Events about streams: of the object that wants the owner, with its Pod; else of the annotated Pod.
pub(super) fn occurrences<'a>(
    findings: &'a Findings,
    happened: Vec<Happened>,
) -> impl Iterator<Item = Occurrence> + use<'a> {
    happened.into_iter().filter_map(move |it| {
        let (regarding, related) = whose(findings, &it.owner)?;
        let lasting = matches!(it.what, What::BlockSizeMismatch(_));
        let name = format!("{} rank {}", it.owner.1.instance, it.owner.1.rank);
        let (warning, reason, note) = match it.what {
            What::Restarted => {
                (false, "Restarted", format!("the publisher of {name} began anew: what its previous life left is cleared"))
            }
            What::Gap => (true, "Gap", format!("batches of {name} did not arrive: they are fetched where it has a replay endpoint")),
            What::BlockSizeMismatch(size) => (
                true,
                "BlockSizeMismatch",
                format!("{name} announces blocks of {size} tokens, which is not the block size of its index: they are skipped"),
            ),
        };
        Some(Occurrence { regarding, related, warning, reason, note, times: it.times, lasting })
    })
}

fn whose(findings: &Findings, owner: &(IndexKey, Owner)) -> Option<(ObjectReference, Option<ObjectReference>)> {
    let is_it = |member: &&Member| (&member.index, &member.owner) == (&owner.0, &owner.1);
    let of = |finding: &ObjectFinding| finding.members.iter().find(is_it).map(|member| member.pod.clone());
    let mut objects = findings.desired.objects.iter();
    if let Some((key, uid, of)) = objects.find_map(|(key, finding)| Some((key, &finding.uid, of(finding)?))) {
        return Some((reference(key, uid), of.map(|key| pod(&key, findings))));
    }
    let wanted = findings.desired.workers.get(owner)?;
    let uid = &wanted.spec.incarnation.as_ref()?.pod_uid;
    let key = findings.observed.pods.iter().find(|(_, pod)| pod.uid == *uid).map(|(key, _)| key)?;
    Some((pod(key, findings), None))
}

/// Faults that were told, so that one that lasts is told once.
#[derive(Debug, Default)]
pub(super) struct Faults(BTreeSet<Told>);

/// What makes a fault another one: whose, which reason, of which Pod, in which words.
type Told = (String, &'static str, Option<ObjectKey>, String);

impl Faults {
    /// Those that came.
    pub(super) fn look<'a>(&mut self, findings: &'a Findings) -> impl Iterator<Item = Occurrence> + use<'a> {
        let before = std::mem::take(&mut self.0);
        let mut came = Vec::new();
        for (regarding, related, fault) in all(findings) {
            let uid = regarding.uid.clone().unwrap_or_default();
            let told: Told = (uid, fault.reason.as_str(), related.cloned(), fault.message.clone());
            if !before.contains(&told) && !self.0.contains(&told) {
                came.push((regarding, related, fault));
            }
            self.0.insert(told);
        }
        came.into_iter().map(move |(regarding, related, fault)| Occurrence {
            regarding,
            related: related.map(|key| pod(key, findings)),
            warning: true,
            reason: fault.reason.as_str(),
            note: related.map_or_else(|| fault.message.clone(), |key| format!("{key}: {}", fault.message)),
            times: 1,
            lasting: true,
        })
    }
}

/// All faults, with the object or Pod that they are told about.
fn all(findings: &Findings) -> Vec<(ObjectReference, Option<&ObjectKey>, &Fault)> {
    let mut faults = Vec::new();
    for (key, finding) in &findings.desired.objects {
        let regarding = reference(key, &finding.uid);
        faults.extend(finding.refused.iter().map(|fault| (regarding.clone(), None, fault)));
        faults.extend(finding.faults.iter().map(|(pod, fault)| (regarding.clone(), Some(pod), fault)));
    }
    for (key, finding) in &findings.desired.pods {
        let uid = Some(finding.uid.clone());
        faults.push((ObjectReference { uid, ..pod(key, findings) }, None, &finding.fault));
    }
    faults
}
