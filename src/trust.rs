//! How far an owner's blocks can be believed: a small pure machine beside the listener's state.
//!
//! Every fault raises a [`Reason`]; each reason ends by itself (the room that raised it clears it). Time is an argument.

use crate::event::words;

words! {
    /// Why an owner is not exact; the words are those of the HTTP API.
    Reason {
        /// Batches are missing.
        Gap = "gap",
        /// A replay ended before everything was there.
        ReplayIncomplete = "replay_incomplete",
        /// Blocks wait for a parent nobody has seen, or were dropped while waiting.
        PendingParents = "pending_parents",
        /// Something the engine said could not be used.
        Skipped = "skipped",
        /// The engine's block size does not fit the index.
        BlockSizeMismatch = "block_size_mismatch",
        /// A cache group without a kind.
        UnknownGroup = "unknown_group",
        /// A hybrid model whose events name no group.
        AmbiguousGroups = "ambiguous_groups",
        /// Two streams feed this owner.
        TwoSources = "two_sources",
        /// Reconnected, and nothing proves that it is the same life of the publisher.
        UnverifiedReconnect = "unverified_reconnect",
        /// The address may be another Pod's by now.
        Unconfirmed = "unconfirmed",
        /// The state came without a sequence number.
        NoWatermark = "no_watermark",
        /// Stores were skipped at the memory limit.
        Memory = "memory",
        /// Stale: no connection.
        NotConnected = "not_connected",
        /// Stale: nothing was heard yet.
        NothingHeard = "nothing_heard",
        /// Stale: the container is not running.
        ContainerDown = "container_down",
    }
}

words! {
    /// The worst of all reasons, best first.
    State {
        /// Answers equal the engine's cache.
        Exact = "exact",
        /// Something is known to be missing or unsure.
        Degraded = "degraded",
        /// Not connected, or nothing known yet.
        Stale = "stale",
    }
}

impl Reason {
    /// The state that this reason alone makes.
    #[must_use]
    pub fn state(self) -> State {
        match self {
            Self::NotConnected | Self::NothingHeard | Self::ContainerDown => State::Stale,
            _ => State::Degraded,
        }
    }

    fn bit(self) -> u32 {
        1 << (self as u8)
    }
}

/// Trust of one owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trust {
    reasons: u32,
    since_ms: u64,
}

impl Trust {
    /// Trust with one reason from the start.
    #[must_use]
    pub fn with(reason: Reason, now_ms: u64) -> Self {
        Self { reasons: reason.bit(), since_ms: now_ms }
    }

    /// The worst state of all reasons.
    #[must_use]
    pub fn state(&self) -> State {
        self.reasons().map(Reason::state).max().unwrap_or(State::Exact)
    }

    /// All reasons, in the order of [`Reason::ALL`].
    pub fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        Reason::ALL.iter().copied().filter(|reason| self.reasons & reason.bit() != 0)
    }

    /// True while the reason holds.
    #[must_use]
    pub fn has(&self, reason: Reason) -> bool {
        self.reasons & reason.bit() != 0
    }

    /// Milliseconds since 1970 of the last change of the set of reasons.
    #[must_use]
    pub fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Raises or ends a reason. Returns true if that changed anything.
    pub fn set(&mut self, reason: Reason, holds: bool, now_ms: u64) -> bool {
        let reasons = if holds { self.reasons | reason.bit() } else { self.reasons & !reason.bit() };
        if reasons == self.reasons {
            return false;
        }
        self.reasons = reasons;
        self.since_ms = now_ms;
        true
    }

    /// The union of two, with the later time.
    #[must_use]
    pub fn worst_of(self, other: Self) -> Self {
        Self { reasons: self.reasons | other.reasons, since_ms: self.since_ms.max(other.since_ms) }
    }
}
