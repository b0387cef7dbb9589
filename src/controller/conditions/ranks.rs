//! One rank as all replicas see it. Pure.

use std::collections::BTreeSet;

use crate::controller::conditions::Inputs;
use crate::controller::conditions::replicas::Sight;
use crate::controller::desired::Member;
use crate::ids::Seq;
use crate::registry::{RankView, Status};
use crate::trust::{Reason, State};

/// Reason of a rank that is not registered here.
pub(super) const NOT_REGISTERED: &str = "not_registered";
/// Reason of a rank that some replica does not have.
pub(super) const NOT_ON_EVERY_REPLICA: &str = "not_on_every_replica";
/// Reason of a rank of which two replicas hold something else after the same batch.
pub(super) const REPLICA_DIFFERS: &str = "replica_differs";

/// Longest reason of a rank, in bytes; the schema's bound.
const REASON_BYTES_MAX: usize = 64;

/// What this replica observes of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::controller) struct LocalRank {
    /// Of its listener.
    pub(in crate::controller) status: Status,
    /// Why it is not active.
    pub(in crate::controller) last_error: Option<String>,
    /// How far it can be believed.
    pub(in crate::controller) state: State,
    /// Why not fully.
    pub(in crate::controller) reasons: Vec<Reason>,
    /// Held blocks on all tiers.
    pub(in crate::controller) blocks: u64,
    /// Jumps seen by its stream.
    pub(in crate::controller) gaps: u64,
    /// New lives of its publisher.
    pub(in crate::controller) lives: u64,
    /// Last applied number.
    pub(in crate::controller) last_seq: Option<Seq>,
    /// The publisher: ranks with the same one share a stream.
    pub(in crate::controller) endpoint: String,
    /// Block size the engine announced when it does not fit.
    pub(in crate::controller) announced_block_size: Option<u32>,
}

impl From<&RankView> for LocalRank {
    fn from(view: &RankView) -> Self {
        Self {
            status: view.stream.status,
            last_error: view.stream.last_error.clone(),
            state: view.report.trust.state(),
            reasons: view.report.trust.reasons().collect(),
            blocks: view.report.blocks.iter().sum(),
            gaps: view.stream.gaps,
            lives: view.stream.lives,
            last_seq: view.stream.last_seq,
            endpoint: view.spec.endpoint.to_string(),
            announced_block_size: view.report.announced_block_size,
        }
    }
}

/// Something wrong with a rank at one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble<'a> {
    /// Name of the replica.
    pub(super) replica: &'a str,
    /// How bad.
    pub(super) state: State,
    /// Words of the API, and those of this file.
    pub(super) reasons: Vec<String>,
}

/// A rank as all replicas see it.
#[derive(Debug)]
pub(super) struct Rank<'a> {
    pub(super) member: &'a Member,
    pub(super) local: Option<&'a LocalRank>,
    /// Why the registry refused it.
    pub(super) failed: Option<&'a str>,
    /// The worst of all replicas.
    pub(super) state: State,
    /// By name of the replica: whoever writes, the words are the same.
    pub(super) troubles: Vec<Trouble<'a>>,
}

impl<'a> Rank<'a> {
    pub(super) fn of(member: &'a Member, inputs: &Inputs<'a>) -> Self {
        let key = (member.index.clone(), member.owner.clone());
        let local = inputs.local.get(&key);
        let failed = inputs.failed.get(&key).map(String::as_str);
        let mut troubles: Vec<Trouble<'a>> = own(member, local, failed)
            .map(|(state, reasons)| Trouble { replica: inputs.own_name, state, reasons })
            .into_iter()
            .collect();
        troubles.extend(inputs.replicas.sights(&key).filter_map(|(replica, sight)| theirs(replica, sight, member)));
        troubles.sort_by(|a, b| a.replica.cmp(b.replica));
        let state = troubles.iter().map(|trouble| trouble.state).max().unwrap_or(State::Exact);
        Self { member, local, failed, state, troubles }
    }

    /// `serving/llama-0 rank 0`.
    pub(super) fn name(&self) -> String {
        format!("{} rank {}", self.member.owner.instance, self.member.owner.rank)
    }

    /// All reasons at all replicas, each once, in order. A word that the schema does not take, from another version, is left
    /// out: it must not keep the whole status from being written.
    pub(super) fn reasons(&self) -> BTreeSet<String> {
        let words = self.troubles.iter().flat_map(|trouble| &trouble.reasons);
        words.filter(|word| word.len() <= REASON_BYTES_MAX).cloned().collect()
    }

    /// True if this is the reason at some replica.
    pub(super) fn has(&self, reason: &str) -> bool {
        self.troubles.iter().any(|trouble| trouble.reasons.iter().any(|word| word == reason))
    }

    /// Which replica says what; empty if all is well.
    pub(super) fn message(&self) -> String {
        let mut parts: Vec<String> = self
            .troubles
            .iter()
            .map(|trouble| format!("{}: {}", trouble.replica, trouble.reasons.join(", ")))
            .collect();
        parts.extend(self.failed.map(ToOwned::to_owned));
        let unconnected = self.local.filter(|local| local.status != Status::Active);
        parts.extend(unconnected.and_then(|local| local.last_error.clone()));
        parts.join("; ")
    }
}

fn own(member: &Member, local: Option<&LocalRank>, failed: Option<&str>) -> Option<(State, Vec<String>)> {
    let words = |reasons: &[Reason]| reasons.iter().map(|reason| reason.as_str().to_owned()).collect();
    let Some(local) = local else {
        let down = member.container_down.then_some(Reason::ContainerDown.as_str());
        return Some((State::Stale, vec![down.unwrap_or(NOT_REGISTERED).to_owned()]));
    };
    let mut reasons: Vec<String> = words(&local.reasons);
    let mut state = local.state;
    if member.container_down && !local.reasons.contains(&Reason::ContainerDown) {
        reasons.push(Reason::ContainerDown.as_str().to_owned());
        state = State::Stale;
    }
    // Registered with other words than the object's: what is held is of the registration before.
    if failed.is_some() {
        reasons.push(NOT_REGISTERED.to_owned());
        state = state.max(State::Degraded);
    }
    (state != State::Exact).then_some((state, reasons))
}

fn theirs<'a>(replica: &'a str, sight: Sight<'_>, member: &Member) -> Option<Trouble<'a>> {
    match sight {
        // A container that does not run is registered nowhere.
        Sight::Missing if member.container_down => None,
        Sight::Missing => {
            Some(Trouble { replica, state: State::Stale, reasons: vec![NOT_ON_EVERY_REPLICA.to_owned()] })
        }
        Sight::Known(rank) => {
            let mut reasons = rank.reasons.clone();
            let mut state = rank.state;
            if rank.differs {
                reasons.push(REPLICA_DIFFERS.to_owned());
                state = state.max(State::Degraded);
            }
            (state != State::Exact).then_some(Trouble { replica, state, reasons })
        }
    }
}
