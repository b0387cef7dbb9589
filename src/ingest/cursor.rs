//! Where a stream stands in its publisher's sequence, and what one more number means. Pure.

use crate::ids::Seq;
use crate::ingest::Mark;

/// Position of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Last applied batch. None on a fresh stream: nothing applied since registration, restart or rebuild.
    pub(super) last: Option<Mark>,
    /// Largest number of this life heard of: applied, waiting, or applied before an earlier unregistration.
    pub(super) newest: Option<Seq>,
}

/// Where on its connection a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The first well-formed message of a connection, with the largest number known when that connection opened.
    First {
        /// None when nothing was known: then no number can be old.
        known: Option<Seq>,
    },
    /// Any later message.
    Later,
}

/// What a number means behind the applied ones.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is the next one.
    Apply,
    /// It is covered already.
    Duplicate,
    /// Numbers before it are missing.
    Gap {
        /// How many.
        missing: u64,
    },
}

impl Cursor {
    /// A fresh cursor that still knows the last number of an earlier registration, only to recognise a restart.
    pub(super) fn remembering(mark: Option<Mark>) -> Self {
        Self { last: None, newest: mark.map(|mark| mark.seq) }
    }

    /// True if live number `seq` shows that the publisher began anew. All before it then belongs to another life, and
    /// `seq` itself is to be judged on a fresh cursor.
    pub(super) fn began_anew(&self, seq: Seq, place: Place) -> bool {
        let back_to_zero = seq.0 == 0 && self.newest.is_some_and(|newest| newest.0 > 0);
        let old_and_first = matches!(place, Place::First { known: Some(known) } if seq <= known);
        back_to_zero || old_and_first
    }

    /// What number `seq` of this life means.
    pub(super) fn observe(&self, seq: Seq) -> Step {
        let missing = match self.last {
            None => seq.0,
            Some(last) if seq <= last.seq => return Step::Duplicate,
            Some(last) => seq.0 - last.seq.0 - 1,
        };
        if missing == 0 { Step::Apply } else { Step::Gap { missing } }
    }

    /// Takes note that a batch was applied.
    pub(super) fn applied(&mut self, mark: Mark) {
        self.last = Some(mark);
        self.heard(mark.seq);
    }

    /// Takes note that a number of this life exists.
    pub(super) fn heard(&mut self, seq: Seq) {
        self.newest = self.newest.max(Some(seq));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u64) -> Cursor {
        Cursor { last: Some(Mark { seq: Seq(last), payload_hash: 0 }), newest: Some(Seq(last)) }
    }

    #[test]
    fn numbers_are_judged_in_the_order_of_the_rules() {
        const MAX: u64 = u64::MAX;
        let first = |known: u64| Place::First { known: Some(Seq(known)) };
        let unknown = Place::First { known: None };
        let (anew, apply, covered) = (None, Some(Step::Apply), Some(Step::Duplicate));
        let gap = |missing| Some(Step::Gap { missing });
        let remembering = Cursor::remembering(Some(Mark { seq: Seq(5), payload_hash: 0 }));
        let table: &[(&str, Cursor, u64, Place, Option<Step>)] = &[
            ("fresh 0", Cursor::default(), 0, unknown, apply),
            ("fresh 1", Cursor::default(), 1, unknown, gap(1)),
            ("fresh 7", Cursor::default(), 7, Place::Later, gap(7)),
            ("fresh largest", Cursor::default(), MAX, unknown, gap(MAX)),
            ("next", at(4), 5, Place::Later, apply),
            ("next, first", at(4), 5, first(4), apply),
            ("jump", at(4), 7, Place::Later, gap(2)),
            ("jump, first", at(4), 7, first(4), gap(2)),
            ("old", at(4), 3, Place::Later, covered),
            ("same", at(4), 4, Place::Later, covered),
            ("old, first of a connection", at(4), 3, first(4), anew),
            ("same, first of a connection", at(4), 4, first(4), anew),
            ("old, first, replay ran ahead since", at(9), 8, first(5), covered),
            ("old, first of the only connection", at(4), 3, unknown, covered),
            ("0 after larger", at(4), 0, Place::Later, anew),
            ("0 after larger, first", at(4), 0, first(4), anew),
            ("0 after 0", at(0), 0, Place::Later, covered),
            ("0 after 0, first", at(0), 0, first(0), anew),
            ("largest", at(MAX - 1), MAX, Place::Later, apply),
            ("old after largest", at(MAX), 17, Place::Later, covered),
            ("largest again", at(MAX), MAX, Place::Later, covered),
            ("0 after largest", at(MAX), 0, Place::Later, anew),
            ("remembered, old", remembering, 5, first(5), anew),
            ("remembered, 0", remembering, 0, first(5), anew),
            ("remembered, newer", remembering, 6, first(5), gap(6)),
        ];
        for (name, cursor, seq, place, want) in table {
            let seq = Seq(*seq);
            let got = (!cursor.began_anew(seq, *place)).then(|| cursor.observe(seq));
            assert_eq!(got, *want, "{name}");
        }
    }
}
