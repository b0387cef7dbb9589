//! Two answers of `/digest`, stream by stream: equal, different, or not to be compared. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{IndexKey, Seq};
use crate::image::{Registration, StreamName};
use crate::wire::digest::{Digest, StreamDigest, Sum};

/// Which stream of which index.
pub(super) type Name = (IndexKey, StreamName);

/// What two digests say about one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// The same blocks after this batch.
    Equal(Seq),
    /// Other blocks after this batch.
    Different(Seq),
    /// No batch after which both know their digest; where each stands.
    Apart(Option<Seq>, Option<Seq>),
    /// The second does not know it.
    OnlyFirst,
    /// The first does not know it.
    OnlySecond,
}

/// One stream of either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) name: Name,
    pub(super) finding: Finding,
    /// What limits the comparison: a side that is not exact, blocks that the digests leave out.
    pub(super) notes: Vec<String>,
}

/// All streams of either that pass the filter, in order.
pub(super) fn compare(first: &Digest, second: &Digest, wanted: impl Fn(&IndexKey) -> bool) -> Vec<Pair> {
    let [ours, theirs] = [first, second].map(|digest| {
        let streams = digest.streams.iter().filter(|stream| wanted(&stream.key));
        streams.map(|stream| ((stream.key.clone(), stream.name()), stream)).collect::<BTreeMap<_, _>>()
    });
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).cloned().collect();
    names.into_iter().map(|name| pair(ours.get(&name).copied(), theirs.get(&name).copied(), name)).collect()
}

fn pair(first: Option<&StreamDigest>, second: Option<&StreamDigest>, name: Name) -> Pair {
    let finding = match (first, second) {
        (Some(first), Some(second)) => finding(first, second),
        (Some(_), None) => Finding::OnlyFirst,
        (None, _) => Finding::OnlySecond,
    };
    let mut notes = Vec::new();
    for (side, stream) in [("A", first), ("B", second)] {
        let Some(stream) = stream else {
            continue;
        };
        for rank in stream.ranks.iter().filter(|rank| rank.state != "exact") {
            let reasons =
                if rank.reasons.is_empty() { String::new() } else { format!(" ({})", rank.reasons.join(", ")) };
            notes.push(format!("rank {} is {} in {side}{reasons}", rank.dp_rank, rank.state));
        }
        if stream.foreign_blocks > 0 {
            let count = stream.foreign_blocks;
            notes.push(format!("{count} blocks in {side} were placed by what other instances said: left out"));
        }
    }
    if [first, second].into_iter().flatten().any(|stream| stream.ages) {
        notes.push("blocks of lower tiers age out: a difference may end by itself".to_owned());
    }
    Pair { name, finding, notes }
}

/// At the greatest number whose digest both know.
fn finding(first: &StreamDigest, second: &StreamDigest) -> Finding {
    let (ours, theirs) = (sums(first), sums(second));
    match ours.iter().rev().find_map(|(seq, digest)| theirs.get(seq).map(|other| (*seq, digest == other))) {
        Some((seq, true)) => Finding::Equal(seq),
        Some((seq, false)) => Finding::Different(seq),
        None => {
            let last = |sums: &BTreeMap<Seq, &str>| sums.keys().next_back().copied();
            Finding::Apart(last(&ours), last(&theirs))
        }
    }
}

fn sums(stream: &StreamDigest) -> BTreeMap<Seq, &str> {
    stream.history.iter().chain(&stream.current).map(|Sum { seq, digest }| (*seq, digest.as_str())).collect()
}

/// Registrations by hand that only one side has, as lines; other words for one owner count as well.
pub(super) fn registrations(first: &Digest, second: &Digest, wanted: impl Fn(&IndexKey) -> bool) -> Vec<String> {
    let [ours, theirs] = [first, second].map(|digest| {
        let wanted = digest.registrations.iter().filter(|registration| wanted(&registration.key));
        let line = |registration: &Registration| {
            let Registration { key, instance, dp_rank, endpoint, replay_endpoint, block_size, .. } = registration;
            let replay = replay_endpoint.as_ref().map(|replay| format!(" replay {replay}")).unwrap_or_default();
            format!(
                "model {} tenant {} instance {instance} rank {dp_rank} at {endpoint}{replay}, block size {block_size}",
                key.model, key.tenant
            )
        };
        wanted.map(line).collect::<BTreeSet<_>>()
    });
    let only = |side: &str, left: &BTreeSet<String>, right: &BTreeSet<String>| {
        left.difference(right).map(|line| format!("only in {side}: {line}")).collect::<Vec<_>>()
    };
    [only("A", &ours, &theirs), only("B", &theirs, &ours)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::digest::{Phase, RankDigest};

    /// `seq=digest` words; the last one is the present state.
    fn stream(instance: u64, sums: &str) -> StreamDigest {
        let mut sums: Vec<_> = sums
            .split_whitespace()
            .map(|word| {
                let (seq, digest) = word.split_once('=').unwrap();
                Sum { seq: Seq(seq.parse().unwrap()), digest: digest.to_owned() }
            })
            .collect();
        let current = sums.pop();
        StreamDigest {
            key: IndexKey::new("m", "t"),
            instance_id: instance.into(),
            endpoint: "tcp://h:1".to_owned(),
            topic: None,
            default_lora: None,
            exact: true,
            current,
            history: sums,
            ranks: vec![RankDigest { dp_rank: 0, state: "exact".to_owned(), reasons: vec![], blocks: 1 }],
            foreign_blocks: 0,
            ages: false,
        }
    }

    fn digest(streams: Vec<StreamDigest>) -> Digest {
        Digest {
            replica_id: "0".to_owned(),
            name: String::new(),
            version: String::new(),
            phase: Phase::Ready,
            progress: 0,
            owners: 1,
            exact_owners: 1,
            applied: 0,
            blocks: 0,
            streams,
            registrations: vec![],
            tombstones: vec![],
        }
    }

    #[test]
    fn streams_are_compared_at_the_greatest_number_that_both_know() {
        let seq = |number| Some(Seq(number));
        for (first, second, want) in [
            ("7=a", "7=a", Finding::Equal(Seq(7))),
            ("7=a", "7=b", Finding::Different(Seq(7))),
            ("", "", Finding::Apart(None, None)),
            ("7=a", "", Finding::Apart(seq(7), None)),
            ("7=a", "8=a", Finding::Apart(seq(7), seq(8))),
            // One runs ahead: the kept one decides.
            ("256=x 300=a", "256=x 290=b", Finding::Equal(Seq(256))),
            ("256=x 512=y 513=a", "256=z 512=y 600=b", Finding::Equal(Seq(512))),
            ("256=x 300=a", "256=z 290=b", Finding::Different(Seq(256))),
            // The present state of one is a kept one of the other.
            ("256=x", "256=x 300=a", Finding::Equal(Seq(256))),
        ] {
            let pairs = compare(&digest(vec![stream(1, first)]), &digest(vec![stream(1, second)]), |_| true);
            assert_eq!(pairs[0].finding, want, "{first} | {second}");
            assert!(pairs[0].notes.is_empty());
        }
    }

    #[test]
    fn what_only_one_side_has_and_what_limits_a_comparison_is_said() {
        let mut lame = stream(2, "7=a");
        lame.ranks[0].state = "degraded".to_owned();
        lame.ranks[0].reasons = vec!["gap".to_owned()];
        lame.ages = true;
        let first = digest(vec![stream(1, "7=a"), lame]);
        let second = digest(vec![stream(2, "7=b"), stream(3, "7=a")]);
        let pairs = compare(&first, &second, |_| true);
        let findings: Vec<_> = pairs.iter().map(|pair| pair.finding.clone()).collect();
        assert_eq!(findings, [Finding::OnlyFirst, Finding::Different(Seq(7)), Finding::OnlySecond]);
        assert_eq!(pairs[1].notes[0], "rank 0 is degraded in A (gap)");
        assert_eq!(pairs[1].notes.len(), 2);
        assert!(compare(&first, &second, |key| key.model.as_str() == "other").is_empty());
    }
}
