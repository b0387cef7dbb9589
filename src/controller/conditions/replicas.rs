//! What the other replicas said, smoothed: one lost question, or a worker that one replica has not heard of yet, is no
//! news. Pure.

use std::collections::BTreeMap;

use crate::ids::{IndexKey, Owner};
use crate::recovery::{PeerRank, PeerReport, PeerState};

/// A replica that gave no answer so often in a row is unreachable.
const MISSES: u32 = 2;

/// The other replicas, by address.
#[derive(Debug, Default)]
pub(in crate::controller) struct Replicas(BTreeMap<String, Peer>);

#[derive(Debug, Default)]
struct Peer {
    name: String,
    last: Option<PeerState>,
    /// The answer before that.
    before: Option<PeerState>,
    misses: u32,
    error: String,
}

/// How one replica sees an owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sight<'a> {
    /// It has it.
    Known(&'a PeerRank),
    /// It serves, and did not have it twice in a row.
    Missing,
}

impl Replicas {
    /// Takes what a survey found. Addresses that are not in it are forgotten.
    pub(in crate::controller) fn absorb(&mut self, reports: Vec<PeerReport>) {
        let mut known = std::mem::take(&mut self.0);
        for report in reports {
            let mut peer = known.remove(&report.url).unwrap_or_default();
            match report.answer {
                Ok(state) => {
                    peer.name = report.name;
                    peer.before = peer.last.replace(state);
                    peer.misses = 0;
                }
                Err(error) => {
                    if peer.name.is_empty() {
                        peer.name = report.name;
                    }
                    peer.misses = peer.misses.saturating_add(1);
                    peer.error = error;
                }
            }
            self.0.insert(report.url, peer);
        }
    }

    /// How each replica that serves sees an owner, by name; replicas that have not been heard twice say nothing of owners
    /// that they do not have.
    pub(super) fn sights<'s, 'k>(
        &'s self,
        of: &'k (IndexKey, Owner),
    ) -> impl Iterator<Item = (&'s str, Sight<'s>)> + use<'s, 'k> {
        self.serving().filter_map(move |(peer, last)| match last.ranks.get(of) {
            Some(rank) => Some((peer.name.as_str(), Sight::Known(rank))),
            None => {
                let before = peer.before.as_ref().filter(|before| before.ready)?;
                (!before.ranks.contains_key(of)).then_some((peer.name.as_str(), Sight::Missing))
            }
        })
    }

    /// Replicas that give no answer, and why.
    pub(super) fn unreachable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.values().filter(|peer| peer.misses >= MISSES).map(|peer| (peer.name.as_str(), peer.error.as_str()))
    }

    fn serving(&self) -> impl Iterator<Item = (&Peer, &PeerState)> {
        let reachable = self.0.values().filter(|peer| peer.misses < MISSES);
        reachable.filter_map(|peer| Some((peer, peer.last.as_ref().filter(|last| last.ready)?)))
    }
}
