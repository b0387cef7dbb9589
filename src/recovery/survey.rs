//! How the other replicas see the same owners, for whoever tells people.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{DpRank, IndexKey, Owner, Seq};
use crate::recovery::client::{Client, Error};
use crate::recovery::compare::{self, Verdict};
use crate::recovery::{Replica, Times};
use crate::registry::Registry;
use crate::trust::State;
use crate::wire::digest::{Digest, Phase, StreamDigest};

/// Another replica.
#[derive(Debug, Clone)]
pub struct PeerReport {
    /// The address that was asked.
    pub url: String,
    /// Its name; the address if it does not say one.
    pub name: String,
    /// What it says, or why it says nothing.
    pub answer: Result<PeerState, String>,
}

/// What another replica says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerState {
    /// It answers queries.
    pub ready: bool,
    /// The owners that it knows.
    pub ranks: BTreeMap<(IndexKey, Owner), PeerRank>,
}

/// One owner at another replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRank {
    /// How far it can be believed there.
    pub state: State,
    /// Why it is not exact, in the words of the API.
    pub reasons: Vec<String>,
    /// Held blocks.
    pub blocks: u64,
    /// Last applied number.
    pub last_seq: Option<Seq>,
    /// Both are exact, and hold something else after the same batch.
    pub differs: bool,
}

/// Asks all other replicas, at once and with the limits of `times`. One report per replica, and per address at which
/// nobody answers.
pub async fn survey(replica: &Replica, registry: &Registry, times: &Times) -> Vec<PeerReport> {
    replica.look_up_peers().await;
    let answers = Client::new(times).digests(replica.other_urls(), times.connect, |_| false).await;
    let ours = replica.digest(registry);
    let mut seen = BTreeSet::from([ours.replica_id.clone()]);
    let mut reports = Vec::new();
    for (url, answer) in answers {
        match answer {
            Ok(theirs) => {
                replica.recognise(&url, &theirs.replica_id);
                if seen.insert(theirs.replica_id.clone()) {
                    let name = if theirs.name.is_empty() { url.clone() } else { theirs.name.clone() };
                    reports.push(PeerReport { url, name, answer: Ok(state(&ours, &theirs)) });
                }
            }
            // Another service: it keeps no digest, and is no replica of this one.
            Err(Error::NotThere) => {}
            Err(error) => reports.push(PeerReport { name: url.clone(), url, answer: Err(error.to_string()) }),
        }
    }
    reports
}

fn state(ours: &Digest, theirs: &Digest) -> PeerState {
    let verdicts = compare::streams(ours, theirs);
    let differing: BTreeSet<_> =
        verdicts.into_iter().filter(|(_, verdict)| matches!(verdict, Verdict::Differ(_))).map(|(key, _)| key).collect();
    let mut ranks: BTreeMap<(IndexKey, Owner), PeerRank> = BTreeMap::new();
    for stream in &theirs.streams {
        let differs = differing.contains(&(stream.key.clone(), stream.name()));
        for (owner, seen) in owners(stream, differs) {
            match ranks.entry((stream.key.clone(), owner)) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(seen);
                }
                // Fed by two streams: the worse is what holds.
                std::collections::btree_map::Entry::Occupied(mut place) => {
                    let known = place.get_mut();
                    known.differs |= seen.differs;
                    if seen.state > known.state {
                        (known.state, known.reasons) = (seen.state, seen.reasons);
                    }
                }
            }
        }
    }
    PeerState { ready: theirs.phase == Phase::Ready, ranks }
}

fn owners(stream: &StreamDigest, differs: bool) -> impl Iterator<Item = (Owner, PeerRank)> + '_ {
    stream.ranks.iter().map(move |rank| {
        let known = State::ALL.iter().copied().find(|state| state.as_str() == rank.state);
        let seen = PeerRank {
            // A word of a later version is no reason to believe.
            state: known.unwrap_or(State::Stale),
            reasons: rank.reasons.clone(),
            blocks: rank.blocks,
            last_seq: stream.current.as_ref().map(|sum| sum.seq),
            differs,
        };
        (Owner { instance: stream.instance_id.clone(), rank: DpRank(rank.dp_rank) }, seen)
    })
}
