//! Taking state from other replicas, and staying equal to them.
//!
//! `plan` and `compare` are pure: what peers say goes in, what to do next comes out. `peers` is the list of addresses and
//! `resolve` the name behind which more of them stand; `export` turns a registry into the bytes of `/snapshot`, `load`
//! turns a peer's or a file's bytes into indexes built apart; `client` asks peers; `disk` keeps a snapshot in a file;
//! `forward` tells peers of registrations by hand. `start` and `watch` bring these together, before and while a replica
//! serves. Invariants: nothing of a state is applied before all of it was read and verified; no wait is without a limit;
//! a replica that recovers never serves.

mod client;
mod compare;
mod disk;
mod export;
mod forward;
mod load;
mod peers;
mod plan;
mod replica;
mod resolve;
mod start;
mod survey;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use export::{Part, SnapshotWriter};
pub use forward::{FORWARDED_HEADER, Forwarder, Outcomes};
pub use peers::{PEERS_MAX, PeerList};
pub use replica::{Counters, Replica};
pub use survey::{PeerRank, PeerReport, PeerState, survey};

use crate::readiness::Hold;
use crate::registry::Registry;
use crate::wire::digest::Phase;

/// What recovery is told at the start.
#[derive(Debug, Clone, Default)]
pub struct RecoveryConfig {
    /// Name and port of the headless Service of the replica set.
    pub peer_service: Option<String>,
    /// Registrations by hand are forwarded among replicas, and taken over when one was missed.
    pub forward_registrations: bool,
    /// Directory and rhythm of the snapshot on disk.
    pub disk: Option<DiskConfig>,
    /// Waits and rhythms.
    pub times: Times,
}

/// The snapshot on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Where it lies.
    pub dir: PathBuf,
    /// How often it is written.
    pub interval: Duration,
    /// An older one is not used.
    pub age_max: Duration,
}

/// Waits and rhythms; tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// A peer that sends no byte for so long has failed.
    pub silence: Duration,
    /// Longest wait for a peer's connection, or for its `/digest`.
    pub connect: Duration,
    /// The name of the peer service is asked for again for so long while it gives no answer with our own address.
    pub resolve: Duration,
    /// A peer that recovers itself is waited for until it makes no progress for so long.
    pub peer_progress: Duration,
    /// Quiet time after the last handshake before the snapshot is asked for.
    pub settle: Duration,
    /// Longest wait for handshakes.
    pub handshakes: Duration,
    /// First wait between two rounds through the peers; doubles.
    pub round: Duration,
    /// Rhythm of the comparison between replicas.
    pub compare: Duration,
    /// Owners that nobody registered go so long after the replica is ready.
    pub grace: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(10),
            connect: Duration::from_secs(2),
            resolve: Duration::from_secs(8),
            peer_progress: Duration::from_secs(30),
            settle: Duration::from_millis(250),
            handshakes: Duration::from_secs(5),
            round: Duration::from_millis(500),
            compare: Duration::from_secs(30),
            grace: Duration::from_secs(60),
        }
    }
}

/// What a start ended with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// State was taken: from this peer, or from the file.
    Recovered(String),
    /// Nobody had anything, and nobody was said to.
    Empty,
    /// A peer was known to have state, and nothing could be taken: owners are stale.
    Failed,
}

/// Takes the state of the best peer, else of the file, into a registry whose streams only hold; ends that in every case.
/// Shows how far it is in `hold`, which it drops when it is done. With a state the replica is ready for others to take it
/// on; without one it still loads, from its workers, until the caller says that it is ready.
pub async fn recover(replica: &Replica, registry: &Arc<Registry>, config: &RecoveryConfig, hold: Hold) -> Outcome {
    replica.set_phase(Phase::Waiting);
    let outcome = start::Start::new(replica, registry, config, &hold).run().await;
    replica.set_phase(if matches!(outcome, Outcome::Recovered(_)) { Phase::Ready } else { Phase::Loading });
    drop(hold);
    outcome
}

/// What goes on while a replica serves, until it is dropped: comparison with peers, refill, registrations, the file, and
/// the end of owners that nobody registered. `listed` ends once everybody who registers workers by itself has done so: the
/// time of grace begins then.
pub async fn watch(
    replica: &Replica,
    registry: &Arc<Registry>,
    config: &RecoveryConfig,
    listed: impl Future<Output = ()>,
) {
    watch::Watch::new(replica, registry, config).run(listed).await;
}

/// Writes the file once more, if one is wanted; gives up at `limit`, and the previous one stays.
pub async fn write_last(replica: &Replica, registry: &Arc<Registry>, config: &RecoveryConfig, limit: Duration) {
    if let Some(disk) = &config.disk {
        disk::write(replica, registry, &disk.dir, limit).await;
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
