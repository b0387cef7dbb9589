//! A stream that only holds what it hears, and how it goes on from a state that was made elsewhere. Pure.
//!
//! While it holds, nothing is judged: the state that is to come may be of any moment, of another life of the publisher
//! too. Then the batch with the state's last number decides. Where it has not come by on this connection, what has come
//! is kept until it does, or until it is clear that it never will.

use crate::ids::Seq;
use crate::image::Position;
use crate::ingest::Mark;
use crate::ingest::applied::Adoption;
use crate::ingest::cursor::{Cursor, Place};
use crate::ingest::held::HeldBatch;
use crate::ingest::stream::{Effect, Ms, Step, Stream};

/// A connection that brings only smaller numbers than the adopted one for so long belongs to another life.
const BEHIND_MS_MAX: Ms = 5_000;

/// Whether what comes is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// By the sequence rules.
    Running,
    /// Everything waits for [`Stream::adopt`].
    Holding {
        /// It was behind an adopted number before.
        behind: bool,
        /// A replay was stopped for it.
        interrupted: bool,
    },
    /// A state was adopted whose last number has not come by on this connection, nor a larger one.
    Behind {
        /// Then it never will. None while nothing has come at all.
        until: Option<Ms>,
    },
}

impl Stream {
    /// True until [`Self::adopt`].
    pub(in crate::ingest) fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. })
    }

    /// True if nothing waits to be judged or applied.
    pub(in crate::ingest) fn is_settled(&self) -> bool {
        !self.is_holding() && self.job.is_none() && self.held.is_empty()
    }

    /// True if this batch is the last one applied, or waits.
    pub(in crate::ingest) fn shows(&self, mark: Mark) -> bool {
        self.cursor.last == Some(mark) || self.held.find(mark.seq) == Some(mark)
    }

    /// From here on everything is held.
    pub(in crate::ingest) fn begin_join(&mut self) {
        if self.is_holding() {
            return;
        }
        let interrupted = self.job.take().is_some();
        if interrupted {
            self.effects.push(Effect::StopReplay);
        }
        self.held.keep_connection(self.connection);
        self.phase = Phase::Holding { behind: matches!(self.phase, Phase::Behind { .. }), interrupted };
        self.anew = false;
    }

    /// Stops holding.
    pub(in crate::ingest) fn adopt(&mut self, adoption: Adoption, now: Ms) {
        self.begin_join();
        let Phase::Holding { behind, interrupted } = self.phase else {
            return;
        };
        self.phase = Phase::Running;
        match adoption {
            Adoption::Keep => self.keep(behind, interrupted, now),
            Adoption::Unplaced => {
                self.forget_position();
                self.unplaced = true;
            }
            Adoption::Snapshot(position) => self.take_over(position, now),
        }
    }

    /// What came with a connection that is gone is of no use to a stream that has judged none of it.
    pub(super) fn drop_unjudged(&mut self) {
        match self.phase {
            Phase::Running => return,
            Phase::Holding { .. } => {}
            Phase::Behind { .. } => self.phase = Phase::Running,
        }
        self.held.clear();
    }

    /// The connection that might have brought the adopted number is gone.
    pub(super) fn stop_waiting_for_mark(&mut self) {
        if let Phase::Behind { until } = &mut self.phase {
            *until = None;
        }
    }

    /// Keeps a batch for later.
    pub(super) fn hold_unjudged(&mut self, mark: Mark, payload: &[u8], place: Place) -> Step {
        if self.cursor.began_anew(mark.seq, place) {
            self.held.clear();
            self.cursor.newest = None;
            self.anew = true;
        } else if self.cursor.newest.is_some_and(|newest| mark.seq <= newest) {
            return Step::Duplicate;
        }
        self.hold(mark, payload)
    }

    /// Keeps a batch and looks whether it decides which life the adopted state belongs to.
    pub(super) fn hold_behind(&mut self, mark: Mark, payload: &[u8], now: Ms) -> Step {
        if let Some(back) = self.held.back() {
            if mark.seq == Seq(0) && back > mark.seq {
                self.held.clear();
                self.anew = true;
            } else if mark.seq <= back {
                return Step::Duplicate;
            }
        }
        self.held.push(HeldBatch { mark, payload: payload.into(), connection: self.connection });
        self.decide(now);
        Step::Held
    }

    /// No number up to the adopted one came for too long: the adopted state is of another life.
    pub(super) fn mark_never_came(&mut self) {
        self.new_life();
    }

    /// The adopted number was shown by a replay, or passed: what waits is covered up to where the stream stands.
    pub(super) fn no_longer_behind(&mut self) {
        if let Phase::Behind { .. } = self.phase {
            self.phase = Phase::Running;
            if let Some(last) = self.cursor.last {
                self.held.drop_to(last.seq);
            }
        }
    }

    /// True while only smaller numbers than the adopted one have come.
    pub(super) fn is_behind(&self) -> bool {
        matches!(self.phase, Phase::Behind { .. })
    }

    fn keep(&mut self, behind: bool, interrupted: bool, now: Ms) {
        if self.anew {
            self.new_life();
            return;
        }
        if behind {
            self.phase = Phase::Behind { until: None };
            self.decide(now);
        }
        if !self.has_replay && self.catching_up {
            if self.held.is_empty() {
                (self.holes, self.lost_since_connect) = (true, true);
                self.effects.push(Effect::Incomplete);
            }
            self.set_catching_up(false);
        }
        if interrupted && self.has_replay && self.connected && self.held.is_empty() {
            self.proof_due = Some(now);
        }
        if self.holes || self.doubt {
            self.schedule_repair(now + self.bounds.silence_ms);
        }
    }

    /// Everything known of the position goes; what waits and what is known of the connection stays.
    fn forget_position(&mut self) {
        self.cursor = Cursor { last: None, newest: self.cursor.newest.max(self.held.back()) };
        (self.holes, self.lost_since_connect, self.over_hole) = (false, false, false);
        (self.unplaced, self.anew) = (false, false);
        self.set_catching_up(false);
        self.repair.impossible = false;
        self.repair.at = None;
        if !std::mem::take(&mut self.joining).is_empty() {
            self.effects.push(Effect::Joined);
        }
        self.unverified = false;
        self.effects.push(Effect::Unverified(false));
    }

    fn take_over(&mut self, position: Position, now: Ms) {
        let anew = self.anew;
        self.forget_position();
        if position.counts_from_one && !std::mem::replace(&mut self.counts_from_one, true) {
            self.effects.push(Effect::CountsFromOne);
        }
        let Some(mark) = position.mark else {
            return;
        };
        self.anew = anew;
        self.cursor = Cursor { last: Some(mark), newest: Some(mark.seq).max(self.held.back()) };
        self.holes = position.holes;
        self.set_unverified(position.unverified || !position.connected);
        if self.holes || self.doubt {
            self.schedule_repair(now + self.bounds.silence_ms);
        }
        if !self.connected && self.held.is_empty() {
            return;
        }
        self.phase = Phase::Behind { until: None };
        self.proof_due = (self.has_replay && self.connected).then_some(now + self.bounds.silence_ms);
        self.decide(now);
    }

    /// Compares what has come with the adopted number, and goes on by the rules once it is clear which life it is.
    fn decide(&mut self, now: Ms) {
        let (Some(mark), Some(back)) = (self.cursor.last, self.held.back()) else {
            return;
        };
        if back < mark.seq {
            self.await_mark(now);
            return;
        }
        let shown = self.held.find(mark.seq);
        let another = shown.is_some_and(|shown| shown.payload_hash != mark.payload_hash);
        // That the publisher began anew is certain; that the state is of the new life nobody can show.
        let unprovable = shown.is_none() && self.anew && !self.has_replay;
        if another || unprovable {
            self.new_life();
            return;
        }
        // This connection has brought smaller numbers and larger ones, but lost the one that would tell.
        let passed_over = shown.is_none() && self.held.front().is_some_and(|front| front < mark.seq);
        self.anew = false;
        self.cursor.heard(back);
        self.no_longer_behind();
        if shown.is_some() {
            self.proof_due = None;
            self.life_proved();
        } else if self.has_replay {
            self.proof_due = Some(now);
        } else if passed_over {
            self.lost_since_connect = true;
            self.set_unverified(true);
        }
    }

    /// Sets the time after which the adopted number will not come any more.
    pub(super) fn await_mark(&mut self, now: Ms) {
        let waits = self.connected && self.job.is_none() && !self.held.is_empty();
        if let Phase::Behind { until: until @ None } = &mut self.phase
            && waits
        {
            *until = Some(now + BEHIND_MS_MAX);
        }
    }
}
