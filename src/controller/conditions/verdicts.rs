//! The four conditions: status, reason and a message that names the Pod and the replica and says what to do. Pure.

use std::cmp::Reverse;

use crate::controller::conditions::ranks::{NOT_ON_EVERY_REPLICA, NOT_REGISTERED, REPLICA_DIFFERS, Rank};
use crate::controller::conditions::{Replicas, cut};
use crate::controller::desired::{Fault, ObjectFinding, Reason};
use crate::controller::facts::ObjectKey;
use crate::registry::Status;
use crate::trust;

/// Named in one message; the rest is a number.
const NAMED_MAX: usize = 3;
/// Longest message of a condition, in bytes: a screen, far below the schema's bound.
const BYTES_MAX: usize = 2048;

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// `True`, `False`, `Unknown`.
    pub(super) status: &'static str,
    /// CamelCase.
    pub(super) reason: String,
    /// For people.
    pub(super) message: String,
}

fn verdict(status: &'static str, reason: &str, message: impl Into<String>) -> Verdict {
    Verdict { status, reason: reason.to_owned(), message: cut(message.into(), BYTES_MAX) }
}

fn no_workers() -> Verdict {
    verdict("False", "NoWorkers", "no Pod with an address and a running container is selected; see condition Accepted")
}

/// The spec is in force, for every Pod that it selects.
pub(super) fn accepted(finding: &ObjectFinding) -> Verdict {
    if let Some(fault) = &finding.refused {
        let kept = if finding.members.is_empty() { "" } else { "; the last spec that was valid stays in force" };
        return verdict("False", fault.reason.as_str(), format!("{}{kept}", fault.message));
    }
    let mut faults: Vec<&(ObjectKey, Fault)> =
        finding.faults.iter().filter(|fault| !is_only_a_warning(finding, fault)).collect();
    faults.sort_by_key(|(key, fault)| (fault.reason, key));
    let Some((_, worst)) = faults.first() else {
        return verdict("True", "Accepted", "the spec is in force");
    };
    let named = faults.iter().map(|(key, fault)| format!("{key}: {}", fault.message));
    let message = format!("not registered as specified: {}", listed(named));
    verdict("False", worst.reason.as_str(), message)
}

/// The Pod is registered all the same, and its events tell the rest.
fn is_only_a_warning(finding: &ObjectFinding, (key, fault): &(ObjectKey, Fault)) -> bool {
    fault.reason == Reason::BlockSizeMismatch && finding.members.iter().any(|member| member.pod.as_ref() == Some(key))
}

/// All publishers are connected, at every replica.
pub(super) fn connected(ranks: &[Rank<'_>]) -> Verdict {
    if ranks.is_empty() {
        return no_workers();
    }
    let unregistered: Vec<&Rank<'_>> = ranks.iter().filter(|rank| rank.failed.is_some()).collect();
    if !unregistered.is_empty() {
        return verdict("False", "NotRegistered", of_all(&unregistered, ranks));
    }
    let away = |rank: &&Rank<'_>| {
        rank.local.is_none_or(|local| local.status != Status::Active) || rank.has(trust::Reason::NotConnected.as_str())
    };
    // Where no container runs, nobody can listen: that is another matter, and the first to look at.
    let down = trust::Reason::ContainerDown.as_str();
    let (down, away): (Vec<_>, Vec<_>) = ranks.iter().filter(away).partition(|rank| rank.has(down));
    if away.is_empty() && !down.is_empty() {
        let advice = advice(trust::Reason::ContainerDown.as_str());
        return verdict("False", "ContainerDown", format!("{}{advice}", of_all(&down, ranks)));
    }
    if away.is_empty() {
        return verdict("True", "AllConnected", "the publisher of every rank is connected");
    }
    let advice = "look whether the engine listens on this address and a NetworkPolicy allows it";
    verdict("False", "NotConnected", format!("{}: {advice}", of_all(&away, ranks)))
}

/// Events arrive and can be used.
pub(super) fn ingesting(ranks: &[Rank<'_>], finding: &ObjectFinding) -> Verdict {
    if ranks.is_empty() {
        return no_workers();
    }
    let mut warnings: Vec<&(ObjectKey, Fault)> =
        finding.faults.iter().filter(|fault| is_only_a_warning(finding, fault)).collect();
    warnings.sort_by_key(|(key, _)| key);
    if !warnings.is_empty() {
        let named = warnings.iter().map(|(key, fault)| format!("{key}: {}", fault.message));
        return verdict("False", Reason::BlockSizeMismatch.as_str(), listed(named));
    }
    let causes = [
        trust::Reason::BlockSizeMismatch.as_str(),
        trust::Reason::ContainerDown.as_str(),
        NOT_REGISTERED,
        trust::Reason::NotConnected.as_str(),
        trust::Reason::NothingHeard.as_str(),
    ];
    for cause in causes {
        let hit: Vec<&Rank<'_>> = ranks.iter().filter(|rank| rank.has(cause)).collect();
        if !hit.is_empty() {
            return verdict("False", &camel_case(cause), format!("{}{}", of_all(&hit, ranks), advice(cause)));
        }
    }
    verdict("True", "Ingesting", "the events of every rank are applied")
}

/// Exact on every replica, and all replicas hold the same.
pub(super) fn in_sync(ranks: &[Rank<'_>], replicas: &Replicas) -> Verdict {
    if ranks.is_empty() {
        return no_workers();
    }
    let mut troubled: Vec<&Rank<'_>> = ranks.iter().filter(|rank| !rank.troubles.is_empty()).collect();
    // The worst leads: its reason is the condition's.
    troubled.sort_by_key(|rank| Reverse(rank.state));
    if let Some(worst) = troubled.first() {
        let reason = leading(worst);
        return verdict("False", &camel_case(&reason), format!("{}{}", of_all(&troubled, ranks), advice(&reason)));
    }
    let mut away: Vec<(&str, &str)> = replicas.unreachable().collect();
    away.sort_unstable();
    if !away.is_empty() {
        let named = away.iter().map(|(name, error)| format!("{name}: {error}"));
        let message = format!("no answer from {}; what it holds is not known", listed(named));
        return verdict("Unknown", "ReplicaUnreachable", message);
    }
    verdict("True", "InSync", "every rank is exact on every replica")
}

/// The reason that says most about a rank: of the worst state, the first in a fixed order.
fn leading(rank: &Rank<'_>) -> String {
    let worst = rank.troubles.iter().filter(|trouble| trouble.state == rank.state);
    let words: Vec<&str> = worst.flat_map(|trouble| trouble.reasons.iter().map(String::as_str)).collect();
    let order = [NOT_REGISTERED, trust::Reason::ContainerDown.as_str(), NOT_ON_EVERY_REPLICA, REPLICA_DIFFERS];
    let known = trust::Reason::ALL.iter().filter(|reason| reason.state() == rank.state).map(|reason| reason.as_str());
    let ordered = order.into_iter().chain(known).find(|word| words.contains(word));
    ordered.or(words.first().copied()).unwrap_or("degraded").to_owned()
}

/// What to do about a reason; empty where it ends by itself or the message says it.
fn advice(reason: &str) -> &'static str {
    match reason {
        "gap" => {
            "; batches were lost: with a replay endpoint (spec.ports.replay) they are fetched, else this ends when the \
             engine restarts or clears its cache"
        }
        "replay_incomplete" => "; the engine's replay buffer was too short: let it keep more batches",
        "pending_parents" => "; blocks wait for parents that were not announced: a complete replay repairs this",
        "skipped" => "; events could not be used: the reasons are counted in the worker's metrics and in /workers",
        "block_size_mismatch" => "; set spec.blockSize to the engine's block size",
        "unknown_group" | "ambiguous_groups" => {
            "; a hybrid model whose events do not name their cache groups: use an engine version that does"
        }
        "two_sources" => "; two publishers feed this rank: remove one of the registrations",
        "unverified_reconnect" => "; it ends with the next batch, or set a replay endpoint (spec.ports.replay)",
        "unconfirmed" => "; the Pod watch is not current: look at kvindexer_kubernetes_watch_current",
        "no_watermark" => "; the state came from a peer without sequence numbers: a replay repairs this",
        "memory" => "; raise the memory limit of the replicas",
        "container_down" => "; the container does not run: look at its logs",
        "not_connected" => "; look whether the engine listens on this address and a NetworkPolicy allows it",
        "nothing_heard" => "; it ends with the first batch: look whether KV events are switched on in the engine",
        NOT_ON_EVERY_REPLICA => "; look whether that replica's watch is current, and at its log",
        REPLICA_DIFFERS => "; `kvindexer diff` shows the blocks; a complete replay repairs this",
        _ => "",
    }
}

/// `2 of 5 ranks: a (kvindexer-1: gap), b (...)`.
fn of_all(some: &[&Rank<'_>], all: &[Rank<'_>]) -> String {
    let named = some.iter().map(|rank| match rank.message() {
        message if message.is_empty() => rank.name(),
        message => format!("{} ({message})", rank.name()),
    });
    format!("{} of {} ranks: {}", some.len(), all.len(), listed(named))
}

/// The first few, and how many more.
fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let count = items.len();
    let mut text = items.take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    if count > NAMED_MAX {
        text.push_str(&format!(", and {} more", count - NAMED_MAX));
    }
    text
}

/// `replay_incomplete` as `ReplayIncomplete`; what no reason may have is left out.
pub(super) fn camel_case(word: &str) -> String {
    let part = |part: &str| {
        let mut letters = part.chars().filter(char::is_ascii_alphanumeric);
        letters
            .next()
            .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + &letters.collect::<String>())
    };
    let text: String = word.split('_').map(part).collect();
    if text.starts_with(|first: char| first.is_ascii_alphabetic()) { text } else { "Degraded".to_owned() }
}
