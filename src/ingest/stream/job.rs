//! The replay side of a stream: what each answer and each end of a round does. Pure.

use crate::ids::Seq;
use crate::ingest::Mark;
use crate::ingest::rounds::{Next, RoundEnd, Rounds, Verdict};
use crate::ingest::stream::{Effect, Ms, Outcome, ReplayStep, Stream, UNANSWERED_PAUSE_MS};

/// Why a replay runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Numbers before a live batch are missing.
    Gap,
    /// The connection is new: is it the same life, and what was missed?
    Proof,
    /// Owners miss batches: everything again from the beginning.
    Rebuild {
        /// The buffer showed its beginning and the content was forgotten.
        begun: bool,
        /// The batch that must come by again.
        check: Mark,
    },
    /// Ranks that joined need the history up to this batch.
    Fill {
        /// Last batch that the other owners have.
        upto: Mark,
    },
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Asked for; it has no turn yet.
    Queued,
    /// A round runs.
    Running { began: Ms, deadline: Ms },
    /// The next round begins at a time.
    Waiting { until: Ms, from: Seq },
    /// Two rounds brought nothing; the publisher is given the rest of the second idle time.
    Ending { until: Ms },
}

/// An open replay.
#[derive(Debug)]
pub(super) struct Job {
    kind: Kind,
    rounds: Rounds,
    head_lost: bool,
    state: State,
}

impl Job {
    /// When it needs the timer.
    pub(super) fn deadline(&self) -> Option<Ms> {
        match self.state {
            State::Queued => None,
            State::Running { deadline, .. } => Some(deadline),
            State::Waiting { until, .. } | State::Ending { until } => Some(until),
        }
    }

    fn progress(&mut self, now: Ms, idle_ms: Ms) {
        if let State::Running { deadline, .. } = &mut self.state {
            *deadline = now + idle_ms;
        }
    }
}

impl Stream {
    /// The replay has its turn: a connection is being opened.
    pub(in crate::ingest) fn round_begun(&mut self, now: Ms) {
        if let Some(job) = &mut self.job {
            job.state = State::Running { began: now, deadline: now + self.bounds.idle_ms };
        }
    }

    /// One answer with a payload.
    pub(in crate::ingest) fn answer(&mut self, mark: Mark, now: Ms) -> ReplayStep {
        let end = self.range_end();
        let Some(job) = &mut self.job else {
            return ReplayStep::Drop;
        };
        let before = job.rounds.position();
        let verdict = job.rounds.answer(mark, end);
        if before.is_none()
            && mark.seq == Seq(1)
            && matches!(verdict, Verdict::Apply | Verdict::Reached)
            && !std::mem::replace(&mut self.counts_from_one, true)
        {
            self.effects.push(Effect::CountsFromOne);
        }
        match verdict {
            Verdict::Ignore => ReplayStep::Drop,
            Verdict::Confirmed => {
                job.progress(now, self.bounds.idle_ms);
                if matches!(job.kind, Kind::Gap | Kind::Proof) {
                    self.no_longer_behind();
                    self.life_proved();
                }
                ReplayStep::Drop
            }
            Verdict::OtherLife => self.other_life(),
            Verdict::Apply => self.accept(mark, 0, now),
            Verdict::HeadLost { missing } => self.accept(mark, missing, now),
            Verdict::Reached => {
                self.complete();
                ReplayStep::Drop
            }
            Verdict::Hole => {
                self.round_over(RoundEnd::Cut, now);
                ReplayStep::Drop
            }
        }
    }

    /// A round ended.
    pub(in crate::ingest) fn round_over(&mut self, how: RoundEnd, now: Ms) {
        let end = self.range_end();
        let Some(job) = &mut self.job else {
            return;
        };
        self.effects.push(Effect::StopReplay);
        let mut next = job.rounds.over(how, end);
        if next == Next::Empty {
            if matches!(job.kind, Kind::Proof | Kind::Rebuild { begun: false, .. }) {
                self.nothing_there();
                return;
            }
            next = job.rounds.over_empty();
        }
        match next {
            Next::Complete | Next::Empty => self.complete(),
            Next::GiveUp => match job.state {
                State::Running { began, .. } if how == RoundEnd::Failed && began + self.bounds.idle_ms > now => {
                    job.state = State::Ending { until: began + self.bounds.idle_ms };
                }
                _ => self.give_up(now),
            },
            Next::Again { from, wait } => self.again(from, wait, now),
        }
    }

    /// Ends a replay that has reached its goal, and starts what waits for its turn. To be called after each input, once
    /// its step was performed.
    pub(in crate::ingest) fn advance(&mut self, now: Ms) {
        if self.is_holding() {
            return;
        }
        self.await_mark(now);
        let end = self.range_end();
        let from_one = self.cursor.last.is_none() && self.held.front() == Some(Seq(1));
        if let Some(job) = &mut self.job {
            if from_one && !matches!(job.kind, Kind::Fill { .. }) {
                job.rounds.allow_from_one();
            }
            if job.rounds.reaches(end) {
                self.complete();
            }
        }
        if self.job.is_some() || !self.held.is_empty() || self.joining.is_empty() {
            return;
        }
        match self.cursor.last {
            Some(upto) if self.can_replay(now) => self.start(Kind::Fill { upto }),
            Some(_) => self.end_join(Effect::JoinLost),
            None => self.end_join(Effect::Joined),
        }
    }

    pub(super) fn start(&mut self, kind: Kind) {
        debug_assert!(self.job.is_none(), "one replay at a time");
        let position = match kind {
            Kind::Gap | Kind::Proof => self.cursor.last,
            Kind::Rebuild { .. } | Kind::Fill { .. } => None,
        };
        match kind {
            Kind::Gap => self.set_catching_up(true),
            Kind::Fill { .. } => self.effects.push(Effect::FillBegins),
            Kind::Proof | Kind::Rebuild { .. } => {}
        }
        if matches!(kind, Kind::Gap | Kind::Proof) {
            self.proof_due = None;
        }
        let mut rounds = Rounds::new(position, self.counts_from_one);
        match kind {
            Kind::Proof => rounds.demand_proof(),
            Kind::Gap if self.held.front() == Some(Seq(1)) => rounds.allow_from_one(),
            Kind::Gap | Kind::Rebuild { .. } | Kind::Fill { .. } => {}
        }
        self.effects.push(Effect::StartReplay { from: rounds.from() });
        self.job = Some(Job { kind, rounds, head_lost: false, state: State::Queued });
    }

    pub(super) fn job_timer(&mut self, now: Ms) {
        let Some(job) = &mut self.job else {
            return;
        };
        match job.state {
            State::Running { deadline, .. } if deadline <= now => self.round_over(RoundEnd::Idle, now),
            State::Waiting { until, from } if until <= now => {
                job.state = State::Queued;
                self.effects.push(Effect::StartReplay { from });
            }
            State::Ending { until } if until <= now => self.give_up(now),
            _ => {}
        }
    }

    pub(super) fn end_join(&mut self, how: Effect) {
        self.joining.clear();
        self.effects.push(how);
    }

    /// First number beyond the asked range, if it has one.
    fn range_end(&self) -> Option<Seq> {
        match self.job.as_ref()?.kind {
            Kind::Fill { upto } => upto.seq.next(),
            // What waits then lies before the range.
            _ if self.is_behind() => None,
            _ => self.held.front(),
        }
    }

    /// A batch that continues, or the first after a lost head.
    fn accept(&mut self, mark: Mark, missing: u64, now: Ms) -> ReplayStep {
        let Some(job) = &mut self.job else {
            return ReplayStep::Drop;
        };
        job.progress(now, self.bounds.idle_ms);
        job.head_lost |= missing > 0;
        match job.kind {
            Kind::Rebuild { begun: false, .. } if missing > 0 => {
                self.repair.impossible = true;
                self.repair.at = None;
                self.end(Outcome::Incomplete);
                return ReplayStep::Drop;
            }
            Kind::Rebuild { check, .. } | Kind::Fill { upto: check }
                if mark.seq == check.seq && mark.payload_hash != check.payload_hash =>
            {
                return self.other_life();
            }
            Kind::Fill { .. } => return ReplayStep::ApplyToJoining,
            Kind::Rebuild { ref mut begun, .. } => {
                if !std::mem::replace(begun, true) {
                    self.no_longer_behind();
                    (self.cursor.last, self.unplaced) = (None, false);
                    self.effects.push(Effect::BeginRebuild);
                    self.set_catching_up(true);
                }
            }
            Kind::Gap => {}
            Kind::Proof => self.set_catching_up(true),
        }
        if self.cursor.last.is_none() && missing == 0 {
            self.began(mark.seq);
        }
        if missing > 0 {
            self.repair.impossible = true;
            self.repair.at = None;
            self.lose(missing);
        }
        self.cursor.applied(mark);
        self.no_longer_behind();
        ReplayStep::Apply
    }

    /// The buffer belongs to another life: forget, keep what this connection brought, ask from the beginning.
    fn other_life(&mut self) -> ReplayStep {
        self.keep_present_connection();
        self.new_life();
        self.start(if self.held.is_empty() { Kind::Proof } else { Kind::Gap });
        ReplayStep::Drop
    }

    /// Of what waits, only what an open connection brought can be of the life that is there at this moment.
    fn keep_present_connection(&mut self) {
        if self.connected {
            self.held.keep_connection(self.connection);
        } else {
            self.held.clear();
        }
    }

    /// Only an end marker on a new connection.
    fn nothing_there(&mut self) {
        self.end(Outcome::Complete);
        let asked_above_the_beginning = self.cursor.last.is_some_and(|last| last.seq > Seq(0));
        if self.cursor.last.is_some() || self.cursor.newest > self.held.back() {
            self.keep_present_connection();
            self.new_life();
        }
        if asked_above_the_beginning && self.held.is_empty() {
            // The other life may have sent something below the number that was asked for.
            self.start(Kind::Proof);
            return;
        }
        if self.held.is_empty() {
            if std::mem::take(&mut self.unplaced) {
                self.effects.push(Effect::BeginRebuild);
                self.effects.push(Effect::Placed);
            }
            self.effects.push(Effect::NothingSent);
        }
    }

    fn complete(&mut self) {
        let Some(job) = &self.job else {
            return;
        };
        let (kind, head_lost, position) = (job.kind, job.head_lost, job.rounds.position());
        if let Kind::Rebuild { check, .. } = kind
            && position.is_some_and(|reached| reached.seq < check.seq)
        {
            let _drop = self.other_life();
            return;
        }
        self.end(Outcome::Complete);
        match kind {
            Kind::Fill { .. } => {
                if !head_lost {
                    self.no_longer_behind();
                }
                self.end_join(if head_lost { Effect::JoinLost } else { Effect::Joined });
            }
            Kind::Rebuild { .. } => {
                (self.holes, self.doubt, self.lost_since_connect) = (false, false, false);
                self.repair.at = None;
                self.effects.push(Effect::Rebuilt);
                self.life_proved();
            }
            Kind::Gap | Kind::Proof => self.life_proved(),
        }
    }

    pub(super) fn give_up(&mut self, now: Ms) {
        let end = self.range_end();
        let Some(job) = &self.job else {
            return;
        };
        let (kind, answered) = (job.kind, job.rounds.was_answered());
        let known_to_miss = end.is_some() && !job.rounds.is_contiguous_to(end);
        let unsure = !job.rounds.is_confirmed() && self.catching_up;
        self.end(if answered { Outcome::Incomplete } else { Outcome::Failed });
        if !answered {
            self.unanswered_until = now + UNANSWERED_PAUSE_MS;
        }
        match kind {
            Kind::Fill { .. } => {
                self.end_join(Effect::JoinLost);
                return;
            }
            Kind::Rebuild { begun: false, .. } => {}
            Kind::Gap | Kind::Proof | Kind::Rebuild { .. } => {
                self.over_hole = known_to_miss;
                if known_to_miss || unsure {
                    self.holes = true;
                    self.effects.push(Effect::Incomplete);
                }
            }
        }
        if self.holes || self.doubt || self.unverified || self.cursor.last.is_none() {
            self.schedule_repair(now + self.repair.wait_ms);
        }
    }

    fn again(&mut self, from: Seq, wait: bool, now: Ms) {
        let idle_ms = self.bounds.idle_ms;
        let Some(job) = &mut self.job else {
            return;
        };
        let until = match job.state {
            State::Running { began, .. } => began + idle_ms,
            State::Queued | State::Waiting { .. } | State::Ending { .. } => now + idle_ms,
        };
        if wait && until > now {
            job.state = State::Waiting { until, from };
            return;
        }
        job.state = State::Queued;
        self.effects.push(Effect::StartReplay { from });
    }

    /// Closes the replay and counts it.
    fn end(&mut self, outcome: Outcome) {
        self.job = None;
        self.effects.push(Effect::StopReplay);
        self.effects.push(Effect::ReplayEnded(outcome));
        self.set_catching_up(false);
    }
}
