//! One replay as a series of rounds: what each answer of the publisher's buffer means, and when to ask again. Pure.
//!
//! A buffer answers in ascending order but may drop any of its answers, the end marker too. So only numbers that
//! continue without a hole count, a round ends at its first hole, and the next one asks from the last number reached.

use crate::ids::Seq;
use crate::ingest::Mark;

/// Rounds in a row without progress that end a replay.
const FRUITLESS_ROUNDS_MAX: u8 = 2;

/// How a round ended, as seen on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// The end marker came.
    Marker,
    /// No progress for the idle limit.
    Idle,
    /// No connection, connection lost, or an answer that is none.
    Failed,
    /// We stopped reading: what follows is of no use.
    Cut,
}

/// What one answer means.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Outside the asked range, or there already.
    Ignore,
    /// It is the batch we stand at, unchanged: the same life.
    Confirmed,
    /// The number we stand at carries something else: another life.
    OtherLife,
    /// It continues; the position has moved to it.
    Apply,
    /// Two rounds began here: all before it is lost. The position has moved to it; apply it.
    HeadLost {
        /// How many numbers are lost.
        missing: u64,
    },
    /// The range is complete without it.
    Reached,
    /// It leaves a hole: end the round.
    Hole,
}

/// What follows a round.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// All there.
    Complete,
    /// The buffer holds nothing from the asked number on.
    Empty,
    /// Ask again from `from`; at once, unless `wait`: then not before the idle limit has passed since this round began.
    Again {
        /// First number to ask for.
        from: Seq,
        /// Nothing came of this round: give the publisher time.
        wait: bool,
    },
    /// Two rounds without progress.
    GiveUp,
}

/// Progress of one replay.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Where we stand: asked from here, answered first. None: from the beginning.
    position: Option<Mark>,
    /// A sequence that begins at 1 is whole.
    counts_from_one: bool,
    /// The batch at the position must be shown once before the replay can be complete.
    needs_proof: bool,
    head: Option<Seq>,
    fruitless: u8,
    was_answered: bool,
    confirmed: bool,
    round: Round,
}

#[derive(Debug, Default, Clone, Copy)]
struct Round {
    /// It contained the position, or continued it.
    begun: bool,
    confirmed: bool,
    progress: bool,
    answered: bool,
    /// It began above the first missing number for the first time.
    new_head: bool,
}

impl Rounds {
    /// A replay from `position` on, from the beginning if there is none.
    pub(super) fn new(position: Option<Mark>, counts_from_one: bool) -> Self {
        Self {
            position,
            counts_from_one,
            needs_proof: false,
            head: None,
            fruitless: 0,
            was_answered: false,
            confirmed: false,
            round: Round::default(),
        }
    }

    /// Makes the replay incomplete until the batch at the position was shown unchanged, or is seen to have left the buffer.
    pub(super) fn demand_proof(&mut self) {
        self.needs_proof = self.position.is_some();
    }

    /// First number to ask for.
    pub(super) fn from(&self) -> Seq {
        self.position.map_or(Seq(0), |mark| mark.seq)
    }

    /// Where the replay stands.
    pub(super) fn position(&self) -> Option<Mark> {
        self.position
    }

    /// True if any answer came at all.
    pub(super) fn was_answered(&self) -> bool {
        self.was_answered
    }

    /// True if the last round showed the batch it began at, unchanged.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// From here on a sequence that begins at 1 is whole.
    pub(super) fn allow_from_one(&mut self) {
        self.counts_from_one = true;
    }

    /// True once nothing is missing before `end`, the number that waits behind this replay, and no proof is owed.
    pub(super) fn reaches(&self, end: Option<Seq>) -> bool {
        !self.needs_proof && self.is_contiguous_to(end)
    }

    /// True if nothing is missing before `end`.
    pub(super) fn is_contiguous_to(&self, end: Option<Seq>) -> bool {
        end.is_some() && self.expected() == end
    }

    /// Judges one answer. `end` is the first number beyond the range, if it has one.
    pub(super) fn answer(&mut self, mark: Mark, end: Option<Seq>) -> Verdict {
        self.was_answered = true;
        if let Some(position) = self.position {
            if mark.seq < position.seq {
                return Verdict::Ignore;
            }
            if mark.seq == position.seq {
                return self.compare(mark, position);
            }
        }
        self.round.answered = true;
        let Some(expected) = self.expected() else {
            return Verdict::Ignore;
        };
        let whole_from_one = self.position.is_none() && self.counts_from_one && mark.seq == Seq(1);
        if !self.round.begun {
            self.needs_proof = false;
        }
        if end.is_some_and(|end| mark.seq >= end) {
            return if whole_from_one { Verdict::Reached } else { Verdict::Hole };
        }
        if mark.seq == expected || whole_from_one {
            self.advance(mark);
            return Verdict::Apply;
        }
        if self.round.begun {
            return Verdict::Hole;
        }
        // A later beginning than before is the same news: the buffer moved on between the two rounds.
        if self.head.is_some_and(|head| mark.seq >= head) {
            self.advance(mark);
            return Verdict::HeadLost { missing: mark.seq.0 - expected.0 };
        }
        self.head = Some(mark.seq);
        self.round.new_head = true;
        Verdict::Hole
    }

    /// Decides what follows a round that ended.
    pub(super) fn over(&mut self, how: RoundEnd, end: Option<Seq>) -> Next {
        let round = std::mem::take(&mut self.round);
        self.confirmed = round.confirmed;
        self.was_answered |= how == RoundEnd::Marker;
        if self.reaches(end) {
            return Next::Complete;
        }
        if how == RoundEnd::Marker && !round.answered {
            return Next::Empty;
        }
        if how == RoundEnd::Marker && round.begun && end.is_none() {
            return Next::Complete;
        }
        if round.progress {
            self.fruitless = 0;
            return Next::Again { from: self.from(), wait: false };
        }
        self.fruitless += 1;
        if self.fruitless >= FRUITLESS_ROUNDS_MAX {
            return Next::GiveUp;
        }
        Next::Again { from: self.from(), wait: !round.new_head }
    }

    /// An empty buffer is no news for this replay: counts as a round without progress.
    pub(super) fn over_empty(&mut self) -> Next {
        self.fruitless += 1;
        if self.fruitless >= FRUITLESS_ROUNDS_MAX {
            return Next::GiveUp;
        }
        Next::Again { from: self.from(), wait: true }
    }

    fn compare(&mut self, mark: Mark, position: Mark) -> Verdict {
        if mark.payload_hash != position.payload_hash {
            return Verdict::OtherLife;
        }
        self.needs_proof = false;
        self.round = Round { answered: true, begun: true, confirmed: true, ..self.round };
        Verdict::Confirmed
    }

    fn advance(&mut self, mark: Mark) {
        self.position = Some(mark);
        self.round.begun = true;
        self.round.progress = true;
    }

    fn expected(&self) -> Option<Seq> {
        self.position.map_or(Some(Seq(0)), |mark| mark.seq.next())
    }
}

#[cfg(test)]
mod tests;
