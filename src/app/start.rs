//! What must hold before queries are answered: enough workers, and their first replays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio::time::{Instant, interval};
use tracing::{info, warn};

use crate::config::InitialWorkers;
use crate::ids::{IndexKey, Owner, Source};
use crate::index::OwnerSpec;
use crate::readiness::Hold;
use crate::registry::{Endpoint, Registry, WorkerSpec};

/// Rhythm of looking at the registry.
const POLL: Duration = Duration::from_millis(25);

/// A stream that has not connected so long after the start is not waited for.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// The first replays are not waited for longer than this.
const REPLAY_WAIT: Duration = Duration::from_secs(30);

/// Registrations of the command line.
pub(super) fn worker_specs(workers: InitialWorkers) -> anyhow::Result<BTreeMap<(IndexKey, Owner), WorkerSpec>> {
    let InitialWorkers { key, block_size, entries } = workers;
    let endpoint = |text: &str, what: &str| {
        Endpoint::parse(text).map_err(|error| anyhow!("--workers: invalid {what} `{text}`: {error}"))
    };
    entries
        .into_iter()
        .map(|entry| {
            let replay = entry.replay_endpoint.as_deref();
            let spec = WorkerSpec {
                key: key.clone(),
                owner: entry.owner.clone(),
                block_size,
                endpoint: endpoint(&entry.endpoint, "ZMQ endpoint")?,
                replay_endpoint: replay.map(|text| endpoint(text, "replay endpoint")).transpose()?,
                topic: None,
                additional_salt: None,
                default_lora: None,
                owner_spec: OwnerSpec::default(),
                incarnation: None,
            };
            Ok(((key.clone(), entry.owner), spec))
        })
        .collect()
}

/// Registers the workers of the command line.
pub(super) async fn register(
    registry: &Registry,
    desired: BTreeMap<(IndexKey, Owner), WorkerSpec>,
) -> anyhow::Result<()> {
    if desired.is_empty() {
        return Ok(());
    }
    let converged = registry.converge(Source::CommandLine, desired).await;
    if let Some(((_, owner), error)) = converged.failed.into_iter().next() {
        return Err(anyhow!(error).context(format!("--workers: {owner} is not registered")));
    }
    info!(workers = converged.added.len(), "workers of the command line are registered");
    Ok(())
}

/// Keeps the hold until so many distinct instances are registered.
pub(super) async fn hold_for_workers(registry: &Arc<Registry>, hold: Option<Hold>, wanted: usize) {
    let Some(hold) = hold else {
        return;
    };
    let mut ticks = interval(POLL);
    let mut last = None;
    loop {
        ticks.tick().await;
        let present = registry.instance_count();
        if present >= wanted {
            info!(present, wanted, "enough workers are registered");
            return;
        }
        if last != Some(present) {
            hold.set_reason(&format!("workers: {present} of {wanted} registered"));
            last = Some(present);
        }
    }
}

/// Keeps the hold until the first replay of each stream that connected in time has ended.
pub(super) async fn hold_for_replays(registry: &Arc<Registry>, hold: Option<Hold>) {
    let Some(hold) = hold else {
        return;
    };
    let start = Instant::now();
    let mut cold_start = ColdStart::default();
    let mut ticks = interval(POLL);
    loop {
        ticks.tick().await;
        let workers = registry.workers(None, None);
        let streams = workers.iter().flat_map(|worker| {
            worker.ranks.iter().map(|(rank, view)| {
                let owner = Owner { instance: worker.instance.clone(), rank: *rank };
                let id = (worker.key.clone(), owner);
                Observed { id, connected: view.stream.connects > 0, settled: view.stream.settled }
            })
        });
        match cold_start.observe(start.elapsed(), streams.collect()) {
            Waiting::No => return,
            Waiting::For(count) => hold.set_reason(&format!("first replays: {count} to come")),
            Waiting::Late(count) => {
                warn!(owners = count, "ready without their first replays: the time is over");
                return;
            }
        }
    }
}

/// Which streams a start waits for. Pure.
#[derive(Debug, Default)]
struct ColdStart {
    /// Those that had connected when the time to connect was over.
    waited_for: Option<Vec<(IndexKey, Owner)>>,
}

struct Observed {
    id: (IndexKey, Owner),
    connected: bool,
    settled: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Waiting {
    /// For nobody.
    No,
    /// For so many owners.
    For(usize),
    /// For so many owners, but no longer.
    Late(usize),
}

impl ColdStart {
    fn observe(&mut self, elapsed: Duration, streams: Vec<Observed>) -> Waiting {
        if elapsed >= CONNECT_WAIT && self.waited_for.is_none() {
            let connected = streams.iter().filter(|stream| stream.connected).map(|stream| stream.id.clone());
            self.waited_for = Some(connected.collect());
        }
        let counts = |id| self.waited_for.as_ref().is_none_or(|waited_for| waited_for.contains(id));
        match streams.iter().filter(|stream| !stream.settled && counts(&stream.id)).count() {
            0 => Waiting::No,
            open if elapsed >= REPLAY_WAIT => Waiting::Late(open),
            open => Waiting::For(open),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One word per stream: its number, `c` for connected, `s` for settled.
    fn observe(cold_start: &mut ColdStart, seconds: f64, streams: &str) -> Waiting {
        let stream = |word: &str| Observed {
            id: (IndexKey::new("m", "t"), Owner::new(word[..1].parse::<u64>().unwrap(), 0)),
            connected: word.contains('c'),
            settled: word.contains('s'),
        };
        cold_start.observe(Duration::from_secs_f64(seconds), streams.split_whitespace().map(stream).collect())
    }

    #[test]
    fn a_start_waits_for_the_first_replay_of_streams_that_connect_in_time() {
        for (steps, want) in [
            (&[(0.0, "")][..], Waiting::No),
            (&[(0.0, "1 2")], Waiting::For(2)),
            (&[(0.1, "1cs 2")], Waiting::For(1)),
            (&[(0.1, "1cs 2cs")], Waiting::No),
            // The second never connects.
            (&[(0.1, "1cs 2"), (2.0, "1cs 2")], Waiting::No),
            // The second connects too late to be waited for.
            (&[(2.0, "1c 2"), (3.0, "1cs 2c")], Waiting::No),
            // It connected in time and was lost again: its replay is still waited for.
            (&[(2.0, "1cs 2c"), (29.9, "1cs 2c")], Waiting::For(1)),
            (&[(2.0, "1cs 2c"), (30.0, "1cs 2c")], Waiting::Late(1)),
            // Unregistered meanwhile.
            (&[(2.0, "1cs 2c"), (3.0, "1cs")], Waiting::No),
        ] {
            let mut cold_start = ColdStart::default();
            let last = steps.iter().map(|(at, streams)| observe(&mut cold_start, *at, streams)).last();
            assert_eq!(last, Some(want), "{steps:?}");
        }
    }
}
