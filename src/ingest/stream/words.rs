//! What a stream says: steps for the batch at hand, and effects for everything else.

use crate::ids::{DpRank, Seq};
use crate::ingest::Mark;
use crate::ingest::stream::Ms;
#[cfg(doc)]
use crate::ingest::stream::Stream;

/// What to do with a live batch.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ingest) enum Step {
    /// Apply it.
    Apply(Mark),
    /// Drop it; it is covered.
    Duplicate,
    /// It waits inside the stream; [`Stream::release`] gives it back.
    Held,
}

/// What to do with a replayed batch.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ingest) enum ReplayStep {
    /// Drop it.
    Drop,
    /// Apply it to all owners.
    Apply,
    /// Apply it to the ranks that are joining only.
    ApplyToJoining,
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ingest) enum Outcome {
    /// Everything was there.
    Complete,
    /// Given up after some answers.
    Incomplete,
    /// Given up without any answer.
    Failed,
}

/// What the caller performs, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ingest) enum Effect {
    /// The handshake is complete, or the connection is gone.
    Connected(bool),
    /// Another life of the publisher: clear all owners, end all reasons, count.
    Restarted,
    /// The same, but told from outside: nothing of the new life has been heard.
    ToldAnew,
    /// A replay from 0 follows: forget the content, keep the reasons.
    BeginRebuild,
    /// That replay is complete: end `gap`, `replay_incomplete` and `no_watermark`.
    Rebuilt,
    /// Batches are known to be missing while a replay runs, or that is over.
    CatchingUp(bool),
    /// Numbers were given up for good: `gap`.
    Lost {
        /// How many.
        missing: u64,
    },
    /// A replay ended before everything was there.
    Incomplete,
    /// Nothing proves that it is the same life, or that has ended.
    Unverified(bool),
    /// It is known that nothing was ever sent.
    NothingSent,
    /// The publisher's first number is 1.
    CountsFromOne,
    /// Content of unknown position was replaced: the sequence is whole from its beginning. End `no_watermark`.
    Placed,
    /// Ranks that wait for their history are about to get it from the beginning: forget what they have.
    FillBegins,
    /// A jump in the numbers was seen.
    GapSeen,
    /// A waiting batch turned out to be covered.
    DuplicateReleased,
    /// Open a replay connection and ask from this number.
    StartReplay {
        /// First number to ask for.
        from: Seq,
    },
    /// Close the replay connection.
    StopReplay,
    /// Count the end of a replay.
    ReplayEnded(Outcome),
    /// This rank waits for its history and is not fed.
    JoinWaits(DpRank),
    /// All waiting ranks have their history.
    Joined,
    /// All waiting ranks are fed from here on without their history.
    JoinLost,
}

/// Times and bounds of a stream.
#[derive(Debug, Clone, Copy)]
pub(in crate::ingest) struct Bounds {
    /// Payload bytes that may wait.
    pub(in crate::ingest) held_bytes_max: usize,
    /// Batches that may wait.
    pub(in crate::ingest) held_batches_max: usize,
    /// Silence after a handshake before the buffer is asked.
    pub(in crate::ingest) silence_ms: Ms,
    /// A round without progress for so long is over.
    pub(in crate::ingest) idle_ms: Ms,
    /// First wait before a rebuild.
    pub(in crate::ingest) repair_min_ms: Ms,
    /// Longest wait before a rebuild.
    pub(in crate::ingest) repair_max_ms: Ms,
}
