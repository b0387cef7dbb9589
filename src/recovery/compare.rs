//! Two digests beside each other: which streams differ, which owners could be taken from the other, which registrations
//! one of them missed. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ids::{IndexKey, InstanceId, Seq};
use crate::image::{Registration, StreamName, Tombstone};
use crate::wire::digest::{Digest, StreamDigest};

/// A stream of an index.
pub(super) type StreamKey = (IndexKey, StreamName);

/// Outcome for one stream that both know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Equal after this batch.
    Equal(Seq),
    /// Different after this batch.
    Differ(Seq),
    /// An owner is not exact at one of them, no batch is common to what they remember, or they differ where they may:
    /// blocks age out, or were placed by what others announced.
    NotComparable,
}

/// Every stream that both know.
pub(super) fn streams(ours: &Digest, theirs: &Digest) -> Vec<(StreamKey, Verdict)> {
    pairs(ours, theirs).map(|(key, ours, theirs)| (key, verdict(ours, theirs))).collect()
}

fn pairs<'a>(
    ours: &'a Digest,
    theirs: &'a Digest,
) -> impl Iterator<Item = (StreamKey, &'a StreamDigest, &'a StreamDigest)> {
    let key = |stream: &StreamDigest| (stream.key.clone(), stream.name());
    let known: BTreeMap<StreamKey, _> = theirs.streams.iter().map(|stream| (key(stream), stream)).collect();
    // Without an address there is no publisher whose numbers could be compared.
    let fed = ours.streams.iter().filter(|stream| !stream.endpoint.is_empty());
    fed.filter_map(move |stream| {
        let key = key(stream);
        let theirs = *known.get(&key)?;
        Some((key, stream, theirs))
    })
}

fn verdict(ours: &StreamDigest, theirs: &StreamDigest) -> Verdict {
    if !ours.exact || !theirs.exact {
        return Verdict::NotComparable;
    }
    let sums = |stream: &StreamDigest| -> HashMap<Seq, String> {
        let sums = stream.history.iter().chain(&stream.current);
        sums.map(|sum| (sum.seq, sum.digest.clone())).collect()
    };
    let (ours_by_seq, theirs_by_seq) = (sums(ours), sums(theirs));
    let Some(at) = ours_by_seq.keys().filter(|seq| theirs_by_seq.contains_key(seq)).max() else {
        return Verdict::NotComparable;
    };
    if ours_by_seq[at] == theirs_by_seq[at] {
        return Verdict::Equal(*at);
    }
    let may_differ = |stream: &StreamDigest| stream.ages || stream.foreign_blocks > 0;
    if may_differ(ours) || may_differ(theirs) { Verdict::NotComparable } else { Verdict::Differ(*at) }
}

/// Streams that are degraded here and could be taken from the other, with the last number that it has applied.
pub(super) fn refills(ours: &Digest, theirs: &Digest) -> Vec<(StreamKey, Seq)> {
    let candidates = pairs(ours, theirs).filter(|(_, ours, theirs)| theirs.exact && is_curable(ours));
    candidates
        .filter_map(|(key, ours, theirs)| {
            let at = theirs.current.as_ref()?.seq;
            let ahead = ours.current.as_ref().is_none_or(|ours| ours.seq <= at);
            ahead.then_some((key, at))
        })
        .collect()
}

/// Another state of its owners would make them exact. What lies with this replica or the registration stays: no
/// connection, no memory, two sources, a Pod that is not confirmed.
fn is_curable(stream: &StreamDigest) -> bool {
    let has = |words: &[&str]| {
        let mut reasons = stream.ranks.iter().flat_map(|rank| &rank.reasons);
        reasons.any(|reason| words.contains(&reason.as_str()))
    };
    let lasting = ["not_connected", "container_down", "memory", "two_sources", "unconfirmed"];
    !stream.exact && !stream.ranks.is_empty() && !has(&lasting)
}

/// What this replica missed of registrations by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Somebody has them and we do not.
    pub(super) register: Vec<Registration>,
    /// We have them, and somebody knows that they were taken back later.
    pub(super) unregister: Vec<Tombstone>,
    /// Registrations that differ in any way, these included.
    pub(super) differing: u64,
}

type OwnerKey = (IndexKey, InstanceId, u32);

/// Compares registrations by hand with those of all others.
pub(super) fn registrations(ours: &Digest, others: &[Digest]) -> Changes {
    let of = |one: &Registration| -> OwnerKey { (one.key.clone(), one.instance.clone(), one.dp_rank) };
    let our: BTreeMap<OwnerKey, &Registration> = ours.registrations.iter().map(|one| (of(one), one)).collect();
    let mut their: BTreeMap<OwnerKey, &Registration> = BTreeMap::new();
    let mut withdrawn: BTreeMap<OwnerKey, &Tombstone> = BTreeMap::new();
    for one in others.iter().flat_map(|digest| &digest.registrations) {
        let latest = their.entry(of(one)).or_insert(one);
        if one.registered_ms > latest.registered_ms {
            *latest = one;
        }
    }
    // Ours count too: what was taken back here is not registered again.
    for one in others.iter().chain([ours]).flat_map(|digest| &digest.tombstones) {
        let latest = withdrawn.entry((one.key.clone(), one.instance.clone(), one.dp_rank)).or_insert(one);
        if one.at_ms > latest.at_ms {
            *latest = one;
        }
    }
    let mut changes = Changes::default();
    let all: BTreeSet<&OwnerKey> = our.keys().chain(their.keys()).collect();
    for key in all {
        let (our, their) = (our.get(key).copied(), their.get(key).copied());
        let latest = our.into_iter().chain(their).map(|one| one.registered_ms).max().unwrap_or(0);
        let tombstone = withdrawn.get(key).filter(|tombstone| tombstone.at_ms > latest);
        match (our, their, tombstone) {
            (Some(_), _, Some(tombstone)) => changes.unregister.push((*tombstone).clone()),
            (None, Some(their), None) => changes.register.push(their.clone()),
            (Some(our), Some(their), None) if !is_same(our, their) => {}
            // Known here alone: the others take it over, if they do that. Equal, or gone everywhere.
            _ => continue,
        }
        changes.differing += 1;
    }
    changes
}

/// Equal in all that a registration says.
fn is_same(a: &Registration, b: &Registration) -> bool {
    let said = |one: &Registration| Registration { registered_ms: 0, superseded: None, ..one.clone() };
    said(a) == said(b)
}

#[cfg(test)]
mod tests;
