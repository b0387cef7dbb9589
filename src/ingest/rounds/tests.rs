//! Tables for replay rounds: each line is a list of answers and what must follow.

use super::*;

fn mark(seq: u64) -> Mark {
    Mark { seq: Seq(seq), payload_hash: seq.wrapping_mul(31) }
}

/// Feeds one round; shows each verdict by a letter and the outcome by a word.
fn round(rounds: &mut Rounds, answers: &[u64], how: RoundEnd, end: Option<u64>) -> (String, Next) {
    let mut shown = String::new();
    let mut how = how;
    for seq in answers {
        let letter = match rounds.answer(mark(*seq), end.map(Seq)) {
            Verdict::Ignore => "i",
            Verdict::Confirmed => "c",
            Verdict::OtherLife => "o",
            Verdict::Apply => "A",
            Verdict::HeadLost { missing } => &format!("L{missing}"),
            Verdict::Reached => "R",
            Verdict::Hole => "h",
        };
        shown.push_str(letter);
        if letter == "h" {
            how = RoundEnd::Cut;
            break;
        }
    }
    let next = rounds.over(how, end.map(Seq));
    (shown, next)
}

fn again(from: u64) -> Next {
    Next::Again { from: Seq(from), wait: false }
}

fn wait(from: u64) -> Next {
    Next::Again { from: Seq(from), wait: true }
}

#[test]
fn a_gap_is_filled_and_the_range_ends_the_replay() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    assert_eq!(round(&mut rounds, &[3, 4, 5], RoundEnd::Idle, Some(6)), ("cAA".into(), Next::Complete));
}

#[test]
fn without_a_range_the_marker_ends_the_replay() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    assert_eq!(round(&mut rounds, &[3, 4], RoundEnd::Marker, None), ("cA".into(), Next::Complete));
    assert_eq!(rounds.position(), Some(mark(4)));
}

#[test]
fn a_hole_is_asked_for_again_from_the_last_number_reached() {
    let mut rounds = Rounds::new(Some(mark(0)), false);
    assert_eq!(round(&mut rounds, &[0, 1, 2, 5, 6], RoundEnd::Marker, Some(9)), ("cAAh".into(), again(2)));
    assert_eq!(round(&mut rounds, &[2, 3, 4, 6], RoundEnd::Marker, Some(9)), ("cAAh".into(), again(4)));
    assert_eq!(round(&mut rounds, &[4, 5, 6, 7, 8, 9], RoundEnd::Marker, Some(9)), ("cAAAAh".into(), Next::Complete));
}

#[test]
fn two_rounds_without_progress_give_up() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    assert_eq!(round(&mut rounds, &[4, 50, 6], RoundEnd::Marker, Some(10)), ("Ah".into(), again(4)));
    assert_eq!(round(&mut rounds, &[4, 50, 6], RoundEnd::Marker, Some(10)), ("ch".into(), wait(4)));
    assert_eq!(round(&mut rounds, &[4, 50, 6], RoundEnd::Marker, Some(10)), ("ch".into(), Next::GiveUp));
}

#[test]
fn a_failed_round_waits_before_the_next_one() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    assert_eq!(rounds.over(RoundEnd::Failed, None), wait(3));
    assert_eq!(rounds.over(RoundEnd::Failed, None), Next::GiveUp);
    assert!(!rounds.was_answered());
}

#[test]
fn the_head_is_lost_when_two_rounds_begin_above_it() {
    let mut rounds = Rounds::new(None, false);
    assert_eq!(round(&mut rounds, &[4, 5], RoundEnd::Marker, Some(7)), ("h".into(), again(0)));
    assert_eq!(round(&mut rounds, &[4, 5, 6], RoundEnd::Marker, Some(7)), ("L4AA".into(), Next::Complete));
}

#[test]
fn the_head_of_a_buffer_that_moves_is_lost_too() {
    let mut rounds = Rounds::new(Some(mark(2)), false);
    assert_eq!(round(&mut rounds, &[9], RoundEnd::Marker, None), ("h".into(), again(2)));
    assert_eq!(round(&mut rounds, &[11, 12], RoundEnd::Marker, None), ("L8A".into(), Next::Complete));
}

#[test]
fn a_dropped_first_answer_is_no_lost_head() {
    let mut rounds = Rounds::new(None, false);
    assert_eq!(round(&mut rounds, &[1, 2], RoundEnd::Marker, None), ("h".into(), again(0)));
    assert_eq!(round(&mut rounds, &[0, 1, 2], RoundEnd::Marker, None), ("AAA".into(), Next::Complete));
}

#[test]
fn behind_the_position_a_missing_number_is_a_hole_and_no_lost_head() {
    let mut rounds = Rounds::new(Some(mark(4)), false);
    assert_eq!(round(&mut rounds, &[4, 6], RoundEnd::Marker, None), ("ch".into(), wait(4)));
    assert_eq!(round(&mut rounds, &[4, 6], RoundEnd::Marker, None), ("ch".into(), Next::GiveUp));
}

#[test]
fn a_beginning_beyond_the_range_brings_nothing() {
    let mut rounds = Rounds::new(Some(mark(0)), false);
    assert_eq!(round(&mut rounds, &[4], RoundEnd::Marker, Some(4)), ("h".into(), wait(0)));
    assert_eq!(round(&mut rounds, &[4], RoundEnd::Marker, Some(4)), ("h".into(), Next::GiveUp));
}

#[test]
fn another_payload_at_the_position_is_another_life() {
    let mut rounds = Rounds::new(Some(Mark { seq: Seq(3), payload_hash: 1 }), false);
    assert_eq!(rounds.answer(mark(3), None), Verdict::OtherLife);
}

#[test]
fn only_a_marker_is_an_empty_buffer() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    assert_eq!(round(&mut rounds, &[], RoundEnd::Marker, None), (String::new(), Next::Empty));
}

#[test]
fn a_sequence_that_begins_at_one_is_whole_when_told_so() {
    let mut rounds = Rounds::new(None, true);
    assert_eq!(round(&mut rounds, &[1, 2], RoundEnd::Marker, None), ("AA".into(), Next::Complete));
    let mut rounds = Rounds::new(None, true);
    assert_eq!(rounds.answer(mark(1), Some(Seq(1))), Verdict::Reached);
    let mut rounds = Rounds::new(None, true);
    assert_eq!(round(&mut rounds, &[0, 1], RoundEnd::Marker, Some(1)), ("Ah".into(), Next::Complete));
}

#[test]
fn a_lost_marker_costs_idle_rounds_and_what_came_is_confirmed() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    assert_eq!(round(&mut rounds, &[3, 4], RoundEnd::Idle, None), ("cA".into(), again(4)));
    assert_eq!(round(&mut rounds, &[4], RoundEnd::Idle, None), ("c".into(), wait(4)));
    assert_eq!(round(&mut rounds, &[4], RoundEnd::Idle, None), ("c".into(), Next::GiveUp));
    assert!(rounds.is_confirmed());
}

#[test]
fn old_answers_and_answers_after_the_largest_number_are_ignored() {
    let mut rounds = Rounds::new(Some(mark(u64::MAX)), false);
    assert_eq!(rounds.answer(mark(5), None), Verdict::Ignore);
    assert_eq!(rounds.answer(mark(u64::MAX), None), Verdict::Confirmed);
    assert_eq!(rounds.over(RoundEnd::Marker, None), Next::Complete);
}

#[test]
fn a_proof_is_owed_until_the_position_was_shown() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    rounds.demand_proof();
    assert!(!rounds.reaches(Some(Seq(4))));
    assert_eq!(rounds.over(RoundEnd::Failed, Some(Seq(4))), wait(3));
    assert_eq!(round(&mut rounds, &[3, 4], RoundEnd::Marker, Some(4)), ("ch".into(), Next::Complete));
}

#[test]
fn a_position_that_left_the_buffer_cannot_be_proved() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    rounds.demand_proof();
    assert_eq!(round(&mut rounds, &[4], RoundEnd::Marker, Some(4)), ("h".into(), Next::Complete));
}

#[test]
fn an_owed_proof_makes_a_lone_marker_an_empty_buffer() {
    let mut rounds = Rounds::new(Some(mark(3)), false);
    rounds.demand_proof();
    assert_eq!(round(&mut rounds, &[], RoundEnd::Marker, Some(4)), (String::new(), Next::Empty));
}
