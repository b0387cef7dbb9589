//! Listeners: one task per stream reads a publisher, keeps its sequence, and feeds the index.
//!
//! `cursor`, `rounds`, `held` and `stream` are pure: numbers and hashes in, decisions out, time as an argument. `feed`
//! carries decisions to the index under its lock; `listener` and `replay` do the I/O, on `threads`. A listener knows nothing of the
//! registry: it gets what it needs and gives back its last number when it ends.

mod applied;
mod cursor;
mod feed;
mod handle;
mod held;
mod listener;
mod replay;
mod rounds;
mod sources;
mod stream;
mod threads;
mod verify;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use crate::ids::Mark;
use crate::ids::Seq;
pub use applied::{Adoption, Applied};
pub use handle::{Command, Destination, Handle, Shared, StreamSpec};
pub use held::Budget;
pub use listener::listener;
pub use sources::{Sources, StreamId};
pub use threads::{ThreadId, Threads};
pub use verify::{RebuildSpec, Rebuilt, rebuild};

/// State of a listener, as observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// No connection yet, or lost; another attempt follows by itself.
    #[default]
    Pending,
    /// The handshake with the publisher is complete.
    Active,
    /// Closed by request.
    Paused,
    /// The endpoint can never connect; no task runs.
    Failed,
}

impl Status {
    /// The word in `/workers` and in metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

/// What a stream has observed so far; copied out for `/workers` and metrics.
///
/// Invariant: `last_seq` is published only after the index shows the batch.
#[derive(Debug, Clone, Default)]
pub struct StreamReport {
    /// State of the listener.
    pub status: Status,
    /// Why it is not active; none while it is.
    pub last_error: Option<String>,
    /// Last applied number.
    pub last_seq: Option<Seq>,
    /// When the last batch arrived here, in milliseconds since 1970.
    pub last_event_ms: Option<u64>,
    /// Arrival time minus the batch's timestamp, of the last live batch.
    pub lag_ms: Option<u64>,
    /// Jumps seen in the numbers, repaired ones too.
    pub gaps: u64,
    /// Numbers given up for good.
    pub missing_batches: u64,
    /// Replays that ended with everything there.
    pub replays_complete: u64,
    /// Replays given up after some progress.
    pub replays_incomplete: u64,
    /// Replays given up without any answer.
    pub replays_failed: u64,
    /// Batches dropped because their number was covered already.
    pub duplicates: u64,
    /// New lives of the publisher.
    pub restarts: u64,
    /// The same, with those that the stream was told of.
    pub lives: u64,
    /// Handshakes that were complete when the present life was noticed.
    pub life_connects: u64,
    /// Messages whose frames could not be read.
    pub malformed: u64,
    /// True while a replay runs or waits for its turn.
    pub replaying: bool,
    /// True while it only holds what it hears, until a state is adopted.
    pub holding: bool,
    /// Completed handshakes.
    pub connects: u64,
    /// True once the first question after the first handshake is answered: a batch was applied, the first replay has
    /// ended, or there is no replay endpoint to ask; after the adoption of a state once nothing waits behind it. Start-up
    /// waits for it.
    pub settled: bool,
}

/// Gives the time in milliseconds since 1970, for trust and lag. The sequence rules never see it.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Bounds and times of all streams together.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Payload bytes that may wait for a replay or a recovery, per stream. Beyond it the oldest become a hole to replay.
    pub held_bytes_max: usize,
    /// The same for all streams together; the oldest of the stream that goes beyond it go.
    pub held_bytes_total_max: usize,
    /// Batches that may wait for a replay, per stream.
    pub held_batches_max: usize,
    /// Replays at once in the process: engines serve them in their publishing thread.
    pub replays_max: usize,
    /// Longest random wait before a replay when `replays_max` are running already.
    pub replay_jitter_max: Duration,
    /// A round without progress for so long is over.
    pub replay_idle: Duration,
    /// Silence after a handshake before the replay endpoint is asked.
    pub silence: Duration,
    /// First wait before an owner with missing batches is rebuilt; doubles up to `repair_max`.
    pub repair_min: Duration,
    /// Longest wait between two attempts to rebuild.
    pub repair_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            held_bytes_max: 8 << 20,
            held_bytes_total_max: 512 << 20,
            held_batches_max: 65_536,
            replays_max: 16,
            replay_jitter_max: Duration::from_secs(2),
            replay_idle: Duration::from_secs(2),
            silence: Duration::from_secs(1),
            repair_min: Duration::from_secs(30),
            repair_max: Duration::from_secs(600),
        }
    }
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;
