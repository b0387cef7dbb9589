//! What a status says, from findings and from what all replicas observe. Pure: equal observations give equal statuses, so
//! nothing is written while nothing changes.

mod ranks;
mod replicas;
mod verdicts;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::controller::crd::{IndexerWorkerStatus, InstanceStatus, Trust};
use crate::controller::desired::ObjectFinding;
use crate::ids::{IndexKey, Owner};
use crate::trust::State;
pub(super) use ranks::LocalRank;
use ranks::Rank;
pub(super) use replicas::Replicas;
use verdicts::Verdict;

#[cfg(test)]
pub(super) mod tests;

/// Ranks in one status: a person reads them, and an object has a bounded size.
const INSTANCES_MAX: usize = 32;
/// Longest message of an instance, in bytes; the schema's bound.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Reasons of one rank; the schema's bound.
const REASONS_MAX: usize = 8;
/// A number of blocks that has changed by less than one part in so many is not worth a write.
const BLOCKS_PART: u64 = 10;

/// What all statuses are made from.
pub(super) struct Inputs<'a> {
    /// Name of this replica.
    pub(super) own_name: &'a str,
    /// What the registry refused, and why.
    pub(super) failed: &'a BTreeMap<(IndexKey, Owner), String>,
    /// Ranks that Kubernetes registered here.
    pub(super) local: &'a BTreeMap<(IndexKey, Owner), LocalRank>,
    /// The other replicas.
    pub(super) replicas: &'a Replicas,
    /// For transitions.
    pub(super) now: Timestamp,
}

/// The status of one object. `gaps` is counted by the caller over the lives of streams and of writers; `previous` is what
/// the object says, for the times of transitions.
#[must_use]
pub(super) fn status(
    finding: &ObjectFinding,
    inputs: &Inputs<'_>,
    gaps: u64,
    previous: Option<&IndexerWorkerStatus>,
) -> IndexerWorkerStatus {
    let mut ranks: Vec<Rank<'_>> = finding.members.iter().map(|member| Rank::of(member, inputs)).collect();
    ranks.sort_by(|a, b| a.member.owner.cmp(&b.member.owner).then_with(|| a.member.index.cmp(&b.member.index)));
    let verdicts = [
        ("Accepted", verdicts::accepted(finding)),
        ("Connected", verdicts::connected(&ranks)),
        ("Ingesting", verdicts::ingesting(&ranks, finding)),
        ("InSync", verdicts::in_sync(&ranks, inputs.replicas)),
    ];
    let registered = ranks.iter().filter(|rank| rank.local.is_some());
    let blocks: u64 = ranks.iter().filter_map(|rank| rank.local).map(|local| local.blocks).sum();
    IndexerWorkerStatus {
        observed_generation: Some(finding.generation),
        observed_by: Some(inputs.own_name.to_owned()),
        workers: Some(count(registered.count())),
        ready: Some(count(ranks.iter().filter(|rank| rank.state == State::Exact).count())),
        blocks: Some(i64::try_from(blocks).unwrap_or(i64::MAX)),
        gaps: Some(i64::try_from(gaps).unwrap_or(i64::MAX)),
        trust: ranks.iter().map(|rank| trust(rank.state)).max().unwrap_or(Trust::Unknown),
        conditions: verdicts.into_iter().map(|it| condition(it, finding.generation, previous, inputs.now)).collect(),
        instances: instances(ranks),
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn trust(state: State) -> Trust {
    match state {
        State::Exact => Trust::Exact,
        State::Degraded => Trust::Degraded,
        State::Stale => Trust::Stale,
    }
}

fn condition(
    (kind, verdict): (&str, Verdict),
    generation: i64,
    previous: Option<&IndexerWorkerStatus>,
    now: Timestamp,
) -> Condition {
    let before = previous.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == kind));
    let since = match before {
        Some(before) if before.status == verdict.status => before.last_transition_time.clone(),
        _ => Time(now),
    };
    Condition {
        type_: kind.to_owned(),
        status: verdict.status.to_owned(),
        reason: verdict.reason,
        message: verdict.message,
        observed_generation: Some(generation),
        last_transition_time: since,
    }
}

/// The worst first, then by name; one per instance and rank, as the schema's keys want it.
fn instances(mut ranks: Vec<Rank<'_>>) -> Vec<InstanceStatus> {
    ranks.sort_by(|a, b| b.state.cmp(&a.state).then_with(|| a.member.owner.cmp(&b.member.owner)));
    let mut listed: Vec<InstanceStatus> = Vec::new();
    for rank in ranks {
        if listed.len() == INSTANCES_MAX {
            break;
        }
        let instance_id = rank.member.owner.instance.to_string();
        let dp_rank = i32::try_from(rank.member.owner.rank.0).unwrap_or(i32::MAX);
        if listed.iter().any(|known| known.instance_id == instance_id && known.dp_rank == dp_rank) {
            continue;
        }
        let message = Some(rank.message()).filter(|text| !text.is_empty());
        listed.push(InstanceStatus {
            instance_id,
            dp_rank,
            address: Some(rank.member.address.clone()),
            trust: trust(rank.state),
            reasons: rank.reasons().into_iter().take(REASONS_MAX).collect(),
            last_sequence: rank.local.and_then(|local| local.last_seq).map(|seq| seq.to_string()),
            message: message.map(|text| cut(text, MESSAGE_BYTES_MAX)),
        });
    }
    listed
}

/// At most so many bytes, at the border of a character.
pub(super) fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// How much two statuses differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Nothing that is worth a write: the last number of a stream, the writer's name, a few blocks.
    None,
    /// The number of blocks, or the words of a message.
    Quiet,
    /// A fact.
    Loud,
}

/// How much `new` differs from what the object says.
#[must_use]
pub(super) fn change(old: Option<&IndexerWorkerStatus>, new: &IndexerWorkerStatus) -> Change {
    let Some(old) = old else {
        return Change::Loud;
    };
    if facts(old) != facts(new) {
        return Change::Loud;
    }
    let blocks =
        |status: &IndexerWorkerStatus| status.blocks.and_then(|blocks| u64::try_from(blocks).ok()).unwrap_or(0);
    let (before, after) = (blocks(old), blocks(new));
    let difference = before.abs_diff(after);
    if difference > 0 && difference >= before / BLOCKS_PART || texts(old) != texts(new) {
        return Change::Quiet;
    }
    Change::None
}

/// A status without what changes all the time.
fn facts(status: &IndexerWorkerStatus) -> IndexerWorkerStatus {
    let mut facts = status.clone();
    facts.observed_by = None;
    facts.blocks = None;
    for instance in &mut facts.instances {
        instance.last_sequence = None;
        instance.message = None;
    }
    for condition in &mut facts.conditions {
        condition.message.clear();
        // Follows from the statuses of the conditions.
        condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
    }
    facts
}

fn texts(status: &IndexerWorkerStatus) -> Vec<&str> {
    let conditions = status.conditions.iter().map(|condition| condition.message.as_str());
    conditions.chain(status.instances.iter().map(|instance| instance.message.as_deref().unwrap_or_default())).collect()
}
