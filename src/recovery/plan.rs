//! Which peer a start takes its state from, when it waits, and when it goes on without: what peers say goes in, the next
//! step comes out. Pure; time is an argument.
//!
//! The rules, in order. A *pass* begins with the answers of all peers ([`Plan::heard`]).
//!
//! 1. This replica itself is no peer, and a replica at two addresses is one.
//! 2. A ready replica that has something (blocks, or an applied batch) is a source. The best one is taken: most exact
//!    owners, then the largest sum of applied numbers, then most blocks, then the first address. If it fails, the next.
//! 3. When all sources of a pass have failed, two further passes follow, each after twice the wait. One that is only busy
//!    has not failed: the others are tried first, and if none is left it is asked again when it says, for five minutes.
//!    One whose snapshot cannot be read (another version, or none) has only its dump from then on.
//! 4. A replica that loads is waited for; one that only waits is waited for if its id is the smaller one, so that of two
//!    that wait for each other one goes on. Either only until it has shown no progress for 30 s, by its address: a
//!    replica that starts again and again does not hold others up.
//! 5. A peer that the peer service names and that cannot be reached, or answers 503, is asked again for a few seconds:
//!    the Pods of a set start together. Any other that cannot be reached is asked three times in all, within the same
//!    time: one lost connection must not cost the state.
//! 6. Peers that have only a dump (no `/digest`: the reference service, an older release; or rule 3) are read one after the
//!    other, in order of their addresses. One that fails is read again in two further passes only if it had begun to give blocks.
//! 7. The file on disk. 8. The end: failed if anybody was known to have something, else empty.

use std::collections::{BTreeSet, HashMap};

use crate::wire::digest::{Digest, Phase};

/// Milliseconds since the start of the recovery.
pub(super) type Ms = u64;

/// Passes through sources that fail.
const PASSES_MAX: u32 = 3;

/// How often a peer that cannot be reached is asked.
const ASKS_MAX: u32 = 3;

/// Between two looks at peers that are waited for.
const POLL: Ms = 200;

/// A source that is busy and the only one is waited for so long: others recover from it, and end.
const BUSY_MAX: Ms = 300_000;

/// Waits of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A peer that recovers is waited for so long without progress.
    pub(super) progress: Ms,
    /// A peer that the service names is asked again for so long.
    pub(super) patience: Ms,
    /// Wait before the second pass.
    pub(super) pass: Ms,
}

/// What a replica says of itself, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) replica_id: String,
    pub(super) phase: Phase,
    pub(super) progress: u64,
    pub(super) exact_owners: u64,
    pub(super) applied: u64,
    pub(super) blocks: u64,
    /// It has blocks, or has applied a batch.
    pub(super) has_state: bool,
    /// Somebody is registered there.
    pub(super) has_owners: bool,
}

impl From<&Digest> for Summary {
    fn from(digest: &Digest) -> Self {
        let begun = digest.streams.iter().any(|stream| stream.current.is_some());
        Self {
            replica_id: digest.replica_id.clone(),
            phase: digest.phase,
            progress: digest.progress,
            exact_owners: digest.exact_owners,
            applied: digest.applied,
            blocks: digest.blocks,
            has_state: begun || digest.blocks > 0 || digest.applied > 0,
            has_owners: digest.owners > 0 || !digest.registrations.is_empty(),
        }
    }
}

/// How a peer answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// With its digest.
    Replica(Summary),
    /// In another way.
    Other {
        /// It said 503.
        busy: bool,
    },
    /// Not at all.
    Nobody,
}

/// One peer at the begin of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) url: String,
    /// The peer service names it, at an address that is not ours.
    pub(super) of_service: bool,
    pub(super) seen: Seen,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait so long, ask all peers, and say what they answered.
    Ask(Ms),
    /// Take the snapshot of this peer.
    Snapshot(String),
    /// Read this peer's dump.
    Dump(String),
    /// Read the file.
    File,
    /// Go on without. This peer, if there is one, knows registrations and nothing else.
    Empty(Option<String>),
    /// Go on without, though somebody had something.
    Failed,
}

/// A start in progress.
pub(super) struct Plan {
    id: String,
    limits: Limits,
    began: Option<Ms>,
    peers: Vec<Peer>,
    /// Answers of all peers so far.
    asks: u32,
    /// Tried in this pass.
    tried: BTreeSet<String>,
    passes: u32,
    dump_passes: u32,
    /// How often each source has failed: passes that only wait for others do not try it for ever.
    failures: HashMap<String, u32>,
    /// A source has failed; a dump that had begun has failed.
    source_failed: bool,
    dump_failed: bool,
    /// A peer that has blocks recovers and has shown no progress for too long.
    stalled: bool,
    /// Sources that are busy: since when, and when to ask again.
    busy: HashMap<String, (Ms, Ms)>,
    /// Replicas of which only the dump can be read.
    dump_only: BTreeSet<String>,
    /// Dumps that are not read again.
    useless: BTreeSet<String>,
    /// Most progress of each peer that recovers, and since when.
    progress: HashMap<String, (u64, Ms)>,
    file_tried: bool,
}

impl Plan {
    /// The plan of the replica with this id. Begins by asking.
    pub(super) fn new(id: &str, limits: Limits) -> Self {
        Self {
            id: id.to_owned(),
            limits,
            began: None,
            peers: Vec::new(),
            asks: 0,
            tried: BTreeSet::new(),
            passes: 1,
            dump_passes: 1,
            failures: HashMap::new(),
            source_failed: false,
            dump_failed: false,
            stalled: false,
            busy: HashMap::new(),
            dump_only: BTreeSet::new(),
            useless: BTreeSet::new(),
            progress: HashMap::new(),
            file_tried: false,
        }
    }

    /// A pass begins with these answers.
    #[must_use]
    pub(super) fn heard(&mut self, now: Ms, mut peers: Vec<Peer>) -> Step {
        self.began.get_or_insert(now);
        self.asks += 1;
        peers.sort_by(|a, b| a.url.cmp(&b.url));
        let mut known = BTreeSet::from([self.id.clone()]);
        peers.retain(|peer| match &peer.seen {
            Seen::Replica(summary) => known.insert(summary.replica_id.clone()),
            _ => true,
        });
        self.peers = peers;
        self.tried.clear();
        self.next(now)
    }

    /// The peer of the last step could not be read. `had_state`: it had begun to give some.
    #[must_use]
    pub(super) fn failed(&mut self, now: Ms, url: &str, had_state: bool) -> Step {
        self.tried.insert(url.to_owned());
        if self.is_source(url) {
            self.source_failed = true;
            *self.failures.entry(url.to_owned()).or_default() += 1;
        } else if had_state {
            self.dump_failed = true;
        } else {
            self.useless.insert(url.to_owned());
        }
        self.next(now)
    }

    /// The peer of the last step asks to come again `after` this time.
    #[must_use]
    pub(super) fn was_busy(&mut self, now: Ms, url: &str, after: Ms) -> Step {
        let since = self.busy.get(url).map_or(now, |(since, _)| *since);
        if now - since >= BUSY_MAX {
            return self.failed(now, url, true);
        }
        self.tried.insert(url.to_owned());
        self.busy.insert(url.to_owned(), (since, after));
        self.next(now)
    }

    /// The snapshot of the last step cannot be read by this release.
    #[must_use]
    pub(super) fn has_only_a_dump(&mut self, now: Ms, url: &str) -> Step {
        self.dump_only.insert(url.to_owned());
        self.next(now)
    }

    /// The dump of the last step has nothing in it.
    #[must_use]
    pub(super) fn was_empty(&mut self, now: Ms, url: &str) -> Step {
        self.useless.insert(url.to_owned());
        self.next(now)
    }

    /// The file of the last step is not there or cannot be used.
    #[must_use]
    pub(super) fn no_file(&mut self, now: Ms) -> Step {
        self.next(now)
    }

    fn next(&mut self, now: Ms) -> Step {
        if let Some(url) = self.best_source() {
            return Step::Snapshot(url);
        }
        let busy = self.sources().filter_map(|(peer, _)| self.busy.get(&peer.url));
        if let Some(after) = busy.filter(|(since, _)| now - since < BUSY_MAX).map(|(_, after)| *after).min() {
            return Step::Ask(after);
        }
        if self.source_failed && self.passes < PASSES_MAX {
            self.passes += 1;
            return Step::Ask(self.limits.pass << (self.passes - 2));
        }
        if self.waits(now) {
            return Step::Ask(POLL);
        }
        let unread = self.peers.iter().find(|peer| {
            let has_dump = matches!(peer.seen, Seen::Other { .. }) || self.dump_only.contains(&peer.url);
            has_dump && !self.tried.contains(&peer.url) && !self.useless.contains(&peer.url)
        });
        if let Some(peer) = unread {
            return Step::Dump(peer.url.clone());
        }
        if self.dump_failed && self.dump_passes < PASSES_MAX {
            self.dump_passes += 1;
            return Step::Ask(self.limits.pass << (self.dump_passes - 2));
        }
        if !std::mem::replace(&mut self.file_tried, true) {
            return Step::File;
        }
        if self.source_failed || self.dump_failed || self.stalled {
            return Step::Failed;
        }
        Step::Empty(self.knows_registrations())
    }

    fn sources(&self) -> impl Iterator<Item = (&Peer, &Summary)> {
        self.peers.iter().filter_map(|peer| match &peer.seen {
            Seen::Replica(summary)
                if summary.phase == Phase::Ready && summary.has_state && !self.dump_only.contains(&peer.url) =>
            {
                Some((peer, summary))
            }
            _ => None,
        })
    }

    fn is_source(&self, url: &str) -> bool {
        self.sources().any(|(peer, _)| peer.url == url)
    }

    fn best_source(&self) -> Option<String> {
        let given_up = |url: &str| self.failures.get(url).is_some_and(|failures| *failures >= PASSES_MAX);
        let untried = self.sources().filter(|(peer, _)| !self.tried.contains(&peer.url) && !given_up(&peer.url));
        // Of equal ones `max_by` gives the last, so the order of addresses is turned round.
        let best = untried.max_by(|(a, x), (b, y)| {
            let rank = |summary: &Summary| (summary.exact_owners, summary.applied, summary.blocks);
            rank(x).cmp(&rank(y)).then_with(|| b.url.cmp(&a.url))
        });
        best.map(|(peer, _)| peer.url.clone())
    }

    /// Somebody may become a source soon.
    fn waits(&mut self, now: Ms) -> bool {
        let mut waits = false;
        let patient = now.saturating_sub(self.began.unwrap_or(now)) < self.limits.patience;
        for peer in &self.peers {
            match &peer.seen {
                Seen::Replica(summary) if matches!(summary.phase, Phase::Waiting | Phase::Loading) => {
                    let (most, since) = self.progress.entry(peer.url.clone()).or_insert((summary.progress, now));
                    if summary.progress > *most {
                        (*most, *since) = (summary.progress, now);
                    }
                    let moves = now - *since < self.limits.progress;
                    self.stalled |= !moves && summary.has_state;
                    waits |= moves && (summary.phase == Phase::Loading || summary.replica_id < self.id);
                }
                Seen::Nobody if peer.of_service => waits |= patient,
                // One that is silent for its whole time is not asked again.
                Seen::Nobody => waits |= self.asks < ASKS_MAX && now < self.limits.patience,
                Seen::Other { busy: true } => waits |= patient && peer.of_service,
                Seen::Replica(_) | Seen::Other { busy: false } => {}
            }
        }
        waits
    }

    fn knows_registrations(&self) -> Option<String> {
        let ready = self.peers.iter().find(|peer| match &peer.seen {
            Seen::Replica(summary) => summary.phase == Phase::Ready && summary.has_owners,
            _ => false,
        });
        ready.map(|peer| peer.url.clone())
    }
}

#[cfg(test)]
mod tests;
