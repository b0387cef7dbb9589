//! The sequence rules of one stream: live numbers, replays, reconnects, restarts. Pure: numbers, hashes and a
//! monotonic time in milliseconds go in; a step for the batch at hand and a list of effects come out.
//!
//! After each input the caller performs the effects, then the step, then calls [`Stream::advance`] and performs its
//! effects. Invariants: a batch is applied only directly behind `last`, or over a hole that was reported as lost;
//! at most one replay is open; live batches wait while one is, in order and bounded.

mod job;
mod joining;
mod words;

use crate::ids::{DpRank, Seq};
use crate::ingest::Mark;
use crate::ingest::cursor::{self, Cursor, Place};
use crate::ingest::held::{Budget, Held, HeldBatch};
use crate::wire;
use job::{Job, Kind};
use joining::Phase;
pub(super) use words::{Bounds, Effect, Outcome, ReplayStep, Step};

/// A monotonic time in milliseconds.
pub(super) type Ms = u64;

/// After a replay without any answer, gaps are not replayed for so long: each would hold live batches for two idle
/// limits, and a lossy stream would fall behind for ever.
const UNANSWERED_PAUSE_MS: Ms = 10_000;

/// When a stream with missing batches tries to rebuild itself.
#[derive(Debug)]
struct Repair {
    at: Option<Ms>,
    wait_ms: Ms,
    /// The buffer has lost its head in this life: a replay from 0 cannot come any more.
    impossible: bool,
}

/// State of one stream.
#[derive(Debug)]
pub(super) struct Stream {
    bounds: Bounds,
    has_replay: bool,
    cursor: Cursor,
    /// The publisher's first number is 1.
    counts_from_one: bool,
    held: Held,
    connection: u64,
    connected: bool,
    awaiting_first: bool,
    /// Largest number known when the connection opened.
    known: Option<Seq>,
    /// The buffer must be asked because the connection is new; at this time even without a message.
    proof_due: Option<Ms>,
    unverified: bool,
    lost_since_connect: bool,
    catching_up: bool,
    /// Numbers were given up in this life.
    holes: bool,
    /// Something came that could not be read and whose number is unknown.
    doubt: bool,
    /// The oldest waiting batch is applied over the hole before it.
    over_hole: bool,
    unanswered_until: Ms,
    repair: Repair,
    job: Option<Job>,
    joining: Vec<DpRank>,
    phase: Phase,
    /// While holding: the publisher was seen to begin anew.
    anew: bool,
    /// The owners hold content of unknown position.
    unplaced: bool,
    effects: Vec<Effect>,
}

impl Stream {
    /// A fresh stream. `remembered`: last batch of an earlier registration, only to recognise a restart.
    pub(super) fn new(bounds: Bounds, has_replay: bool, remembered: Option<Mark>, budget: Budget) -> Self {
        Self {
            bounds,
            has_replay,
            cursor: Cursor::remembering(remembered),
            counts_from_one: false,
            held: Held::new(bounds.held_bytes_max, bounds.held_batches_max, budget),
            connection: 0,
            connected: false,
            awaiting_first: false,
            known: None,
            proof_due: None,
            unverified: false,
            lost_since_connect: false,
            catching_up: false,
            holes: false,
            doubt: false,
            over_hole: false,
            unanswered_until: 0,
            repair: Repair { at: None, wait_ms: bounds.repair_min_ms, impossible: false },
            job: None,
            joining: Vec::new(),
            phase: Phase::Running,
            anew: false,
            unplaced: false,
            effects: Vec::new(),
        }
    }

    /// Takes the effects of the last input.
    pub(super) fn take_effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// Last applied batch.
    pub(super) fn last(&self) -> Option<Mark> {
        self.cursor.last
    }

    /// True while a replay is open.
    pub(super) fn is_replaying(&self) -> bool {
        self.job.is_some()
    }

    /// True if numbers were given up in this life.
    pub(super) fn has_holes(&self) -> bool {
        self.holes
    }

    /// True if waiting batches can go on.
    pub(super) fn can_release(&self) -> bool {
        self.phase == Phase::Running && self.job.is_none() && !self.held.is_empty()
    }

    /// A handshake is complete.
    pub(super) fn connected(&mut self, now: Ms) {
        self.drop_unjudged();
        self.connection += 1;
        self.connected = true;
        self.awaiting_first = true;
        self.known = self.cursor.newest;
        self.lost_since_connect = false;
        self.unanswered_until = 0;
        self.effects.push(Effect::Connected(true));
        if self.cursor.last.is_some() {
            self.set_unverified(true);
        }
        self.proof_due = self.has_replay.then_some(now + self.bounds.silence_ms);
        self.repair.wait_ms = self.bounds.repair_min_ms;
        if self.holes || self.doubt {
            self.schedule_repair(now + self.bounds.silence_ms);
        }
    }

    /// The connection is gone, or an attempt failed.
    pub(super) fn disconnected(&mut self) {
        self.awaiting_first = false;
        self.proof_due = None;
        self.stop_waiting_for_mark();
        // Nothing applied proves which life this was of, and a replay may come from the next one; it will bring them again.
        if self.has_replay && (self.cursor.last.is_none() || self.phase != Phase::Running) {
            self.held.clear();
        }
        if std::mem::take(&mut self.connected) {
            self.effects.push(Effect::Connected(false));
        }
    }

    /// The listener stops for a while: nothing is kept that can be asked for again.
    pub(super) fn paused(&mut self) {
        self.disconnected();
        self.drop_unjudged();
        self.held.clear();
        self.over_hole = false;
        if self.job.take().is_some() {
            self.effects.push(Effect::StopReplay);
        }
    }

    /// The replay endpoint appeared or went away.
    pub(super) fn set_replay(&mut self, has_replay: bool, now: Ms) {
        self.has_replay = has_replay;
        self.unanswered_until = 0;
        self.repair.impossible = false;
        if !has_replay {
            self.give_up(now);
            (self.proof_due, self.repair.at) = (None, None);
        }
        if has_replay && (self.holes || self.doubt) {
            self.schedule_repair(now);
        }
        if has_replay && self.connected && (self.cursor.last.is_none() || self.unverified) {
            self.proof_due = Some(now + self.bounds.silence_ms);
        }
    }

    /// A message came whose frames cannot be read. A replay from 0 can prove that nothing was lost.
    pub(super) fn malformed(&mut self, now: Ms) {
        if self.has_replay && !self.doubt {
            self.doubt = true;
            self.schedule_repair(now + self.repair.wait_ms);
        }
    }

    /// No owner misses anything any more (the engine emptied its cache).
    pub(super) fn healed(&mut self) {
        self.holes = false;
        if !self.doubt {
            self.repair.at = None;
        }
    }

    /// A rank joins. On a stream that has applied something it needs a history of its own.
    pub(super) fn join(&mut self, rank: DpRank) {
        if self.cursor.last.is_none() {
            return;
        }
        self.effects.push(Effect::JoinWaits(rank));
        self.joining.push(rank);
        if !self.has_replay {
            self.end_join(Effect::JoinLost);
        }
    }

    /// Somebody who sees the publisher itself says that it began anew, and its numbers have not shown that. What waits is
    /// of the old life, too. The buffer is asked soon: the new life may have spoken before it was heard.
    pub(super) fn begin_anew(&mut self, now: Ms) {
        self.held.clear();
        self.forget_life(Effect::ToldAnew);
        self.proof_due = (self.connected && self.has_replay).then_some(now + self.bounds.silence_ms);
    }

    /// A rank leaves.
    pub(super) fn leave(&mut self, rank: DpRank) {
        self.joining.retain(|joining| *joining != rank);
    }

    /// A live batch with readable frames.
    pub(super) fn message(&mut self, seq: Seq, payload: &[u8], now: Ms) -> Step {
        let mark = Mark { seq, payload_hash: wire::payload_hash(payload) };
        let first = std::mem::take(&mut self.awaiting_first);
        let place = if first { Place::First { known: self.known } } else { Place::Later };
        match self.phase {
            Phase::Running => {}
            Phase::Holding { .. } => return self.hold_unjudged(mark, payload, place),
            Phase::Behind { .. } => return self.hold_behind(mark, payload, now),
        }
        if self.cursor.began_anew(seq, place) {
            self.held.clear();
            self.new_life();
        } else if self.job.is_some() || !self.held.is_empty() {
            if self.cursor.newest.is_some_and(|newest| seq <= newest) {
                return Step::Duplicate;
            }
            return self.hold(mark, payload);
        }
        match self.cursor.observe(seq) {
            cursor::Step::Duplicate => Step::Duplicate,
            cursor::Step::Apply if self.proof_due.is_some() && self.cursor.last.is_some() && self.can_replay(now) => {
                self.start(Kind::Proof);
                self.hold(mark, payload)
            }
            cursor::Step::Apply => self.apply(mark),
            cursor::Step::Gap { missing } => self.gap(mark, missing, payload, now),
        }
    }

    /// The next waiting batch, to be applied. None when nothing can go on; a hole before it opens a replay.
    pub(super) fn release(&mut self, now: Ms) -> Option<HeldBatch> {
        while self.can_release() {
            let seq = self.held.front()?;
            match self.cursor.observe(seq) {
                cursor::Step::Duplicate => {
                    let _covered = self.held.pop();
                    self.effects.push(Effect::DuplicateReleased);
                    continue;
                }
                cursor::Step::Apply
                    if self.proof_due.is_some() && self.cursor.last.is_some() && self.can_replay(now) =>
                {
                    self.start(Kind::Proof);
                    return None;
                }
                cursor::Step::Apply => {}
                cursor::Step::Gap { .. } if self.is_beginning(seq) => {}
                cursor::Step::Gap { .. } if !self.over_hole && self.can_replay(now) => {
                    self.effects.push(Effect::GapSeen);
                    self.start(Kind::Gap);
                    return None;
                }
                cursor::Step::Gap { missing } => self.lose(missing),
            }
            self.over_hole = false;
            let batch = self.held.pop()?;
            let _apply = self.apply(batch.mark);
            return Some(batch);
        }
        None
    }

    /// When [`Stream::timer`] is to be called, if nothing else happens before.
    pub(super) fn deadline(&self) -> Option<Ms> {
        if let Phase::Holding { .. } = self.phase {
            return None;
        }
        if let Some(job) = &self.job {
            return job.deadline();
        }
        if let Phase::Behind { until: Some(until) } = self.phase {
            return Some(until);
        }
        if !self.connected || !self.has_replay || !self.held.is_empty() {
            return None;
        }
        [self.proof_due, self.repair.at].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(super) fn timer(&mut self, now: Ms) {
        if self.job.is_some() {
            self.job_timer(now);
            return;
        }
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if let Phase::Behind { until: Some(_) } = self.phase {
            self.mark_never_came();
            return;
        }
        if self.proof_due.is_some_and(|due| due <= now) {
            self.start(Kind::Proof);
            return;
        }
        self.repair.at = None;
        self.repair.wait_ms = (self.repair.wait_ms * 2).min(self.bounds.repair_max_ms);
        match self.cursor.last {
            Some(check) if self.holes || self.doubt => self.start(Kind::Rebuild { begun: false, check }),
            Some(_) if !self.unverified => {}
            _ => self.start(Kind::Proof),
        }
    }

    /// True for the first number of a publisher that counts from 1, as far as can be known without a replay endpoint.
    fn is_beginning(&self, seq: Seq) -> bool {
        let asks_nobody = !self.has_replay && !self.held.has_overflowed();
        self.cursor.last.is_none() && seq == Seq(1) && (self.counts_from_one || asks_nobody)
    }

    fn apply(&mut self, mark: Mark) -> Step {
        if self.cursor.last.is_none() && mark.seq.0 <= 1 {
            self.began(mark.seq);
        }
        self.cursor.applied(mark);
        self.proof_due = None;
        self.life_proved();
        Step::Apply(mark)
    }

    /// The publisher's first batch follows: content of unknown position is superseded by it.
    fn began(&mut self, seq: Seq) {
        if seq == Seq(1) && !std::mem::replace(&mut self.counts_from_one, true) {
            self.effects.push(Effect::CountsFromOne);
        }
        if std::mem::take(&mut self.unplaced) {
            self.effects.push(Effect::BeginRebuild);
            self.effects.push(Effect::Placed);
        }
    }

    /// `last` was shown, or its successor came: the same life, unless numbers were lost on the way there.
    fn life_proved(&mut self) {
        if !self.lost_since_connect {
            self.set_unverified(false);
        }
    }

    fn hold(&mut self, mark: Mark, payload: &[u8]) -> Step {
        self.cursor.heard(mark.seq);
        self.held.push(HeldBatch { mark, payload: payload.into(), connection: self.connection });
        Step::Held
    }

    fn gap(&mut self, mark: Mark, missing: u64, payload: &[u8], now: Ms) -> Step {
        let begins_at_one = self.cursor.last.is_none() && mark.seq == Seq(1);
        if begins_at_one && !self.has_replay {
            return self.apply(mark);
        }
        if !begins_at_one {
            self.effects.push(Effect::GapSeen);
        }
        if self.can_replay(now) {
            let step = self.hold(mark, payload);
            self.start(Kind::Gap);
            return step;
        }
        self.lose(missing);
        if self.has_replay {
            self.schedule_repair(now + self.repair.wait_ms);
        }
        self.apply(mark)
    }

    fn lose(&mut self, missing: u64) {
        (self.holes, self.lost_since_connect) = (true, true);
        self.effects.push(Effect::Lost { missing });
    }

    fn can_replay(&self, now: Ms) -> bool {
        self.has_replay && now >= self.unanswered_until
    }

    /// Forgets all of the old life; what waits is the caller's business.
    fn new_life(&mut self) {
        self.forget_life(Effect::Restarted);
    }

    fn forget_life(&mut self, effect: Effect) {
        if self.job.take().is_some() {
            self.effects.push(Effect::StopReplay);
        }
        self.effects.push(effect);
        self.phase = Phase::Running;
        (self.anew, self.unplaced) = (false, false);
        self.cursor = Cursor { last: None, newest: self.held.back() };
        self.known = None;
        (self.unverified, self.lost_since_connect, self.catching_up) = (false, false, false);
        (self.holes, self.doubt, self.over_hole) = (false, false, false);
        self.repair = Repair { at: None, wait_ms: self.bounds.repair_min_ms, impossible: false };
        self.joining.clear();
    }

    fn set_unverified(&mut self, holds: bool) {
        if self.unverified != holds {
            self.unverified = holds;
            self.effects.push(Effect::Unverified(holds));
        }
    }

    fn set_catching_up(&mut self, holds: bool) {
        if self.catching_up != holds {
            self.catching_up = holds;
            self.effects.push(Effect::CatchingUp(holds));
        }
    }

    fn schedule_repair(&mut self, at: Ms) {
        if self.has_replay && !self.repair.impossible && self.repair.at.is_none_or(|planned| planned > at) {
            self.repair.at = Some(at);
        }
    }
}

#[cfg(test)]
mod tests;
