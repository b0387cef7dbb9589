//! The sequence rules as one-line stories, in virtual time, against a publisher that is a list of numbers.
//!
//! Words of a story: `c` a handshake, `d` the connection is lost, `5` number 5 is published and heard, `p5` published and
//! not heard, `~900` so many milliseconds pass, `life` the publisher begins anew (empty buffer, other payloads), `dead`,
//! `silent`, `empty`, `alive` what its replay socket does, `noend` it loses end markers, `drop5` its buffer loses 5,
//! `once5` it loses 5 in the next answer only, `bad` a message nobody can read, `clear` the engine empties its cache,
//! `told` somebody who sees the publisher says that it began anew, `join` a rank joins, `pause`, `without` and `with` the replay endpoint is taken away or given.
//! The end of a story shows: what was applied (`|` between lives, `!` where one was told, `^` where a rebuild began), asked, counted, and why the
//! owner is not exact.

mod joining;
mod lab;
mod sim;

use lab::Lab;

#[track_caller]
fn with_replay(story: &str, want: &str) {
    let mut lab = Lab::new(true, None);
    lab.tell(story);
    assert_eq!(lab.show(), want, "{story}");
}

#[track_caller]
fn without_replay(story: &str, want: &str) {
    let mut lab = Lab::new(false, None);
    lab.tell(story);
    assert_eq!(lab.show(), want, "{story}");
}

#[test]
fn numbers_in_order_are_applied() {
    with_replay("c 0 1 2", "0 1 2");
    without_replay("c 0 1 2", "0 1 2");
}

#[test]
fn old_numbers_are_dropped_and_counted() {
    without_replay("c 0 1 2 1 2", "0 1 2 ; duplicates 2");
    without_replay("c 0 0", "0 ; duplicates 1");
}

#[test]
fn number_0_after_a_larger_one_is_a_restart() {
    without_replay("c 0 1 2 life 0 1", "0 1 2 | 0 1 ; restarts 1");
    with_replay("c 0 1 2 life 0 1", "0 1 2 | 0 1 ; restarts 1");
}

#[test]
fn an_old_number_first_on_a_connection_is_a_restart() {
    without_replay("c 0 1 2 3 d life c 2 3", "0 1 2 3 | 2 3 ; restarts 1 ; gaps 1 ; missing 2 ; not exact: gap");
    without_replay("c 0 1 2 3 d life c 3", "0 1 2 3 | 3 ; restarts 1 ; gaps 1 ; missing 3 ; not exact: gap");
    with_replay("c 0 1 2 3 d life p0 p1 c 2 3", "0 1 2 3 | 0 1 2 3 ; asked 0 Complete ; restarts 1 ; gaps 1");
}

#[test]
fn a_life_that_is_told_begins_with_nothing() {
    without_replay("c 0 1 told", "0 1 ! ; not exact: nothing_heard");
    without_replay("c 0 1 d told life c 0 1", "0 1 ! 0 1");
    without_replay("c 0 1 d told life c 2 3", "0 1 ! 2 3 ; gaps 1 ; missing 2 ; not exact: gap");
    // It was heard of before it was told: what comes next is still behind the old numbers.
    without_replay("c 0 1 told 2", "0 1 ! 2 ; gaps 1 ; missing 2 ; not exact: gap");
    without_replay("c 0 1 told 2 life 0 1", "0 1 ! 2 | 0 1 ; restarts 1 ; gaps 1 ; missing 2");
}

#[test]
fn a_life_that_is_told_is_asked_for_from_its_beginning() {
    with_replay("c 0 1 d life told c p0 p1 ~1000", "0 1 ! 0 1 ; asked 0 Complete");
    with_replay("c 0 1 life p0 p1 told ~1000", "0 1 ! 0 1 ; asked 0 Complete");
    with_replay("c 0 1 life told ~1000", "0 1 ! ; asked 0 Complete");
    // A replay of the old life that is under way ends with it.
    with_replay("c 0 silent 3 life told alive p0 ~1000", "0 ! 0 ; asked 0 0 Complete ; gaps 1");
}

#[test]
fn a_gap_without_a_replay_endpoint_degrades_and_goes_on() {
    without_replay("c 0 1 5 6", "0 1 5 6 ; gaps 1 ; missing 3 ; not exact: gap");
    without_replay("c 50", "50 ; gaps 1 ; missing 50 ; not exact: gap");
    without_replay("c 0 1 5 6 clear 7", "0 1 5 6 7 ; gaps 1 ; missing 3");
    without_replay("c 0 1 5 life 0", "0 1 5 | 0 ; restarts 1 ; gaps 1 ; missing 3");
}

#[test]
fn a_gap_is_replayed_from_the_last_number_itself() {
    with_replay("c 0 p1 2 3", "0 1 2 3 ; asked 0 Complete ; gaps 1");
    with_replay("c 0 1 2 p3 p4 p5 6", "0 1 2 3 4 5 6 ; asked 2 Complete ; gaps 1");
}

#[test]
fn the_largest_number_is_a_number_like_others() {
    let max = u64::MAX;
    without_replay(
        &format!("c {max} 7 {max} life 0 1"),
        &format!("{max} | 0 1 ; duplicates 2 ; restarts 1 ; gaps 1 ; missing {max}"),
    );
    with_replay(
        &format!("c 0 p1 {max} ~9000 5"),
        &format!(
            "0 1 {max} ; asked 0 1 1 Incomplete ; duplicates 1 ; gaps 1 ; missing {} ; not exact: gap replay_incomplete",
            max - 2
        ),
    );
}

#[test]
fn a_late_joiner_is_filled_from_the_beginning() {
    with_replay("p0 p1 p2 c 3 4", "0 1 2 3 4 ; asked 0 Complete ; gaps 1");
}

#[test]
fn a_publisher_that_counts_from_1_is_whole() {
    without_replay("c 1 2", "1 2");
    with_replay("c 1 2", "1 2 ; asked 0 Complete");
    with_replay("p0 c 1 2", "0 1 2 ; asked 0 Complete");
    with_replay("c 1 2 d life c 1 2", "1 2 | 1 2 ; asked 0 Complete 0 Complete ; restarts 1");
}

#[test]
fn without_its_first_answer_number_1_is_a_gap() {
    with_replay("dead c 1 ~9000", "1 ; asked 0 0 Failed ; missing 1 ; not exact: gap replay_incomplete");
}

#[test]
fn an_idle_engine_with_a_full_buffer_is_learnt_after_a_second() {
    with_replay("p0 p1 p2 c ~999", "; not exact: nothing_heard");
    with_replay("p0 p1 p2 c ~1000", "0 1 2 ; asked 0 Complete");
}

#[test]
fn an_empty_buffer_on_a_fresh_stream_means_nothing_was_ever_sent() {
    with_replay("c ~1000", "; asked 0 Complete");
    with_replay("c ~1000 0 1", "0 1 ; asked 0 Complete");
}

#[test]
fn a_fresh_stream_is_stale_until_its_replay_socket_answers() {
    with_replay("silent c ~9000", "; asked 0 0 Failed ; not exact: nothing_heard");
    with_replay("silent c ~9000 p0 p1 alive ~60000", "0 1 ; asked 0 0 Failed 0 Complete");
    without_replay("c ~9000", "; not exact: nothing_heard");
}

#[test]
fn a_reconnect_without_news_is_confirmed_by_the_buffer() {
    with_replay("c 0 1 d c ~999", "0 1 ; not exact: unverified_reconnect");
    with_replay("c 0 1 d c ~1000", "0 1 ; asked 1 Complete");
}

#[test]
fn what_was_missed_while_away_is_replayed() {
    with_replay("c 0 1 d p2 p3 c ~1000", "0 1 2 3 ; asked 1 Complete");
    with_replay("c 0 1 d p2 p3 c 4", "0 1 2 3 4 ; asked 1 Complete ; gaps 1");
}

#[test]
fn the_next_number_first_on_a_new_connection_is_checked() {
    with_replay("c 0 1 d c 2 3", "0 1 2 3 ; asked 1 Complete");
    with_replay("c 0 1 d life p0 p1 c 2 3", "0 1 | 0 1 2 3 ; asked 1 0 Complete ; restarts 1");
}

#[test]
fn a_restart_hidden_behind_larger_numbers_shows_by_the_payload() {
    with_replay("c 0 1 2 d life p0 p1 p2 p3 c 4", "0 1 2 | 0 1 2 3 4 ; asked 2 0 Complete ; restarts 1 ; gaps 1");
    with_replay("c 0 1 2 d life p0 p1 p2 p3 c ~1000", "0 1 2 | 0 1 2 3 ; asked 2 0 Complete ; restarts 1");
}

#[test]
fn only_an_end_marker_after_a_reconnect_is_a_restart() {
    with_replay("c 0 1 d life c ~1000", "0 1 | ; asked 1 Complete 0 Complete ; restarts 1");
    with_replay("c 0 1 d life c ~1000 0", "0 1 | 0 ; asked 1 Complete 0 Complete ; restarts 1");
    with_replay(
        "c 0 1 d empty c 2 ~9000",
        "0 1 | 2 ; asked 1 Complete 0 0 Incomplete ; restarts 1 ; gaps 1 ; missing 2 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn without_a_replay_endpoint_a_reconnect_is_unverified_until_the_next_number() {
    without_replay("c 0 1 d c ~9000", "0 1 ; not exact: unverified_reconnect");
    without_replay("c 0 1 d c 2", "0 1 2");
    without_replay("c 0 1 d c 4 5", "0 1 4 5 ; gaps 1 ; missing 2 ; not exact: gap unverified_reconnect");
    without_replay("c 0 1 d c clear", "0 1");
    without_replay("c 0 1 d life c 0", "0 1 | 0 ; restarts 1");
    without_replay("c 0 5 d c 6", "0 5 6 ; gaps 1 ; missing 4 ; not exact: gap");
}

#[test]
fn an_unanswered_proof_is_asked_again_later() {
    with_replay("c 0 1 dead d c ~9000", "0 1 ; asked 1 1 Failed ; not exact: unverified_reconnect");
    with_replay("c 0 1 dead d c ~9000 alive ~60000", "0 1 ; asked 1 1 Failed 1 Complete");
    with_replay("c 0 1 dead d c ~9000 2", "0 1 2 ; asked 1 1 Failed");
    with_replay("c 0 1 dead d c 2 ~9000", "0 1 2 ; asked 1 1 Failed");
}

#[test]
fn holes_in_an_answer_are_asked_for_again() {
    with_replay("p0 p1 p2 p3 p4 once2 c 5", "0 1 2 3 4 5 ; asked 0 1 Complete ; gaps 1");
    with_replay("p0 p1 p2 p3 p4 once0 c 5", "0 1 2 3 4 5 ; asked 0 0 Complete ; gaps 1");
}

#[test]
fn a_hole_that_stays_is_given_up_after_two_rounds_without_progress() {
    with_replay(
        "p0 p1 p2 p3 drop2 c 4 ~9000 5",
        "0 1 4 5 ; asked 0 1 1 Incomplete ; gaps 1 ; missing 2 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn a_lost_head_is_counted_and_the_rest_is_kept() {
    with_replay("p4 p5 p6 c 7 8", "4 5 6 7 8 ; asked 0 0 Complete ; gaps 1 ; missing 4 ; not exact: gap");
    with_replay("p4 p5 c ~1000", "4 5 ; asked 0 0 Complete ; missing 4 ; not exact: gap");
}

#[test]
fn what_is_missing_behind_the_last_number_is_no_lost_head() {
    with_replay(
        "c 0 p1 p2 p3 drop1 drop2 4 ~9000",
        "0 4 ; asked 0 0 Incomplete ; gaps 1 ; missing 3 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn nothing_in_the_asked_range_is_given_up() {
    with_replay(
        "c 0 4 ~9000 5",
        "0 4 5 ; asked 0 0 Incomplete ; gaps 1 ; missing 3 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn a_dead_or_silent_replay_socket_is_left_after_two_idle_times() {
    for socket in ["dead", "silent"] {
        with_replay(&format!("c 0 {socket} 2 3 ~3999"), "0 ; asked 0 0 ; gaps 1 ; not exact: catching_up");
        with_replay(
            &format!("c 0 {socket} 2 3 ~4000 4"),
            "0 2 3 4 ; asked 0 0 Failed ; gaps 1 ; missing 1 ; not exact: gap replay_incomplete",
        );
    }
}

#[test]
fn after_no_answer_the_next_gaps_do_not_wait() {
    with_replay(
        "c 0 dead 2 ~4000 4 6",
        "0 2 4 6 ; asked 0 0 Failed ; gaps 3 ; missing 3 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn a_lost_end_marker_costs_nothing_when_a_live_number_bounds_the_range() {
    with_replay("noend c 0 p1 2", "0 1 2 ; asked 0 Complete ; gaps 1");
    with_replay("noend p0 p1 c ~1000 ~9000", "0 1 ; asked 0 1 1 Incomplete");
}

#[test]
fn a_missing_batch_is_healed_by_a_rebuild_in_the_background() {
    with_replay(
        "c 0 dead p1 2 ~4000 alive ~29999",
        "0 2 ; asked 0 0 Failed ; gaps 1 ; missing 1 ; not exact: gap replay_incomplete",
    );
    with_replay(
        "c 0 dead p1 2 ~4000 alive ~30000 3",
        "0 2 ^ 0 1 2 3 ; asked 0 0 Failed 0 Complete ; gaps 1 ; missing 1",
    );
}

#[test]
fn a_reconnect_heals_sooner() {
    with_replay(
        "c 0 dead p1 2 ~4000 alive d c ~2000",
        "0 2 ^ 0 1 2 ; asked 0 0 Failed 2 Complete 0 Complete ; gaps 1 ; missing 1",
    );
}

#[test]
fn a_buffer_without_its_head_leaves_content_alone_and_is_not_asked_again() {
    with_replay(
        "c 0 dead p1 2 ~4000 alive drop0 ~600000 3",
        "0 2 3 ; asked 0 0 Failed 0 0 Incomplete ; gaps 1 ; missing 1 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn rebuilds_are_tried_with_growing_pauses() {
    // 30 s, 60 s, 120 s, 120 s after each other, and what each attempt itself takes.
    with_replay(
        "c 0 dead p1 2 ~4000 ~340000",
        "0 2 ; asked 0 0 Failed 0 0 Failed 0 0 Failed 0 0 Failed ; gaps 1 ; missing 1 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn a_rebuild_that_meets_another_life_is_a_restart() {
    with_replay(
        "c 0 dead p1 2 ~4000 life p0 p1 p2 p3 alive ~30000",
        "0 2 ^ 0 1 | 0 1 2 3 ; asked 0 0 Failed 0 0 Complete ; restarts 1 ; gaps 1 ; missing 1",
    );
    with_replay(
        "c 0 1 2 3 dead 5 ~4000 life p0 alive ~30000",
        "0 1 2 3 5 ^ 0 | 0 ; asked 3 3 Failed 0 0 Complete ; restarts 1 ; gaps 1 ; missing 1",
    );
}

#[test]
fn an_unreadable_message_is_followed_by_a_rebuild_that_proves_all_is_there() {
    with_replay("c 0 1 bad 2 ~30000 3", "0 1 2 ^ 0 1 2 3 ; asked 0 Complete");
    without_replay("c 0 1 bad 2 ~90000 3", "0 1 2 3");
}

#[test]
fn live_batches_beyond_the_bound_become_a_hole_that_is_replayed() {
    // Eight wait; twelve arrive.
    with_replay(
        "c 0 silent p1 2 3 4 5 6 7 8 9 10 11 12 13 alive ~2000",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 ; asked 0 0 Complete ; gaps 1",
    );
    with_replay(
        "c 0 silent p1 2 3 4 5 6 7 8 9 10 11 12 13 ~9000",
        "0 6 7 8 9 10 11 12 13 ; asked 0 0 Failed ; gaps 1 ; missing 5 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn live_numbers_that_a_replay_brought_are_applied_once() {
    with_replay("c 0 silent p1 2 3 3 2 alive ~2000", "0 1 2 3 ; asked 0 0 Complete ; duplicates 2 ; gaps 1");
    with_replay("p0 p1 p2 silent c ~1000 3 alive ~2000 4", "0 1 2 3 4 ; asked 0 0 Complete");
}

#[test]
fn a_restart_ends_a_replay_of_the_old_life() {
    with_replay("c 0 silent p1 2 3 life 0 1", "0 | 0 1 ; asked 0 ; restarts 1 ; gaps 1");
    with_replay(
        "c 0 silent p1 2 3 d life c 2 alive ~3000",
        "0 | 2 ; asked 0 0 0 Incomplete ; restarts 1 ; gaps 2 ; missing 2 ; not exact: gap replay_incomplete",
    );
}

#[test]
fn waiting_batches_of_an_old_connection_do_not_survive_a_hidden_restart() {
    with_replay(
        "c 0 silent p1 2 3 d life p0 p1 p2 p3 c 4 alive ~3000",
        "0 | 0 1 2 3 4 ; asked 0 0 0 Complete ; restarts 1 ; gaps 1",
    );
}

#[test]
fn a_remembered_number_recognises_a_restart_and_nothing_else() {
    let check = |story: &str, want: &str| {
        let mut lab = Lab::new(true, Some(2));
        lab.tell(story);
        assert_eq!(lab.show(), want, "{story}");
    };
    check("p0 p1 p2 p3 c 4", "0 1 2 3 4 ; asked 0 Complete ; gaps 1");
    check("p0 p1 p2 p3 c ~1000", "0 1 2 3 ; asked 0 Complete");
    check("c 0 1", "| 0 1 ; restarts 1");
    check("p0 p1 c 2", "| 0 1 2 ; asked 0 Complete ; restarts 1 ; gaps 1");
    check("c ~1000", "| ; asked 0 Complete ; restarts 1");
}

#[test]
fn a_pause_keeps_the_last_number_and_what_was_missed_is_replayed() {
    with_replay("c 0 1 pause p2 p3 c 4", "0 1 2 3 4 ; asked 1 Complete ; gaps 1");
    with_replay("c 0 silent p1 2 pause alive c 3", "0 1 2 3 ; asked 0 0 Complete ; gaps 2");
}

#[test]
fn a_replay_endpoint_may_come_and_go() {
    with_replay(
        "c 0 silent p1 2 without 3",
        "0 2 3 ; asked 0 Failed ; gaps 1 ; missing 1 ; not exact: gap replay_incomplete",
    );
    without_replay("c 0 p1 2 with ~0", "0 2 ^ 0 1 2 ; asked 0 Complete ; gaps 1 ; missing 1");
    without_replay("p0 p1 c with ~1000", "0 1 ; asked 0 Complete");
}

#[test]
fn a_rank_that_joins_gets_the_history_and_the_others_do_not_get_it_twice() {
    with_replay("c 0 1 2 join 3", "0 1 2 3 ; join 0 1 2 ; asked 0 Complete");
    with_replay("c join 0 1", "0 1");
    with_replay("c 0 1 silent join 2 alive ~2000", "0 1 2 ; join 0 1 ; asked 0 0 Complete");
}

#[test]
fn a_rank_that_joins_without_history_is_degraded() {
    without_replay("c 0 1 join 2", "0 1 2 ; not exact: join_lost");
    with_replay("c 0 1 2 drop0 join 3", "0 1 2 3 ; join 1 2 ; asked 0 0 Complete ; not exact: join_lost");
    with_replay("c 0 1 dead join 2 ~4000", "0 1 2 ; asked 0 0 Failed ; not exact: join_lost");
    with_replay("c 0 1 life p0 p1 join", "0 1 | 0 1 ; join 0 ; asked 0 0 Complete ; restarts 1");
}

#[test]
fn any_mix_of_stories_applies_in_order_and_reports_every_hole() {
    proptest::proptest!(|(words in proptest::collection::vec(0..14u8, 1..60), has_replay: bool)| {
        let mut lab = Lab::new(has_replay, None);
        let mut next = 0_u64;
        for word in words {
            let story = match word {
                0..=4 => { next += 1; (next - 1).to_string() }
                5 => { next += 1; format!("p{}", next - 1) }
                6 => { next = 0; "d life c".to_owned() }
                7 => "d c".to_owned(),
                8 => "dead".to_owned(),
                9 => "silent".to_owned(),
                10 => "alive".to_owned(),
                11 => "~2500".to_owned(),
                12 => "bad".to_owned(),
                _ => { let drop = next / 2; format!("drop{drop}") }
            };
            lab.tell(&story);
        }
        lab.tell("alive ~700000");
        let life = lab.applied.rsplit(['|', '^']).next().unwrap();
        let numbers: Vec<u64> = life.split_whitespace().map(|number| number.parse().unwrap()).collect();
        proptest::prop_assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{}", lab.applied);
        let whole = numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]) && numbers.first().is_none_or(|first| *first <= 1);
        if !whole {
            proptest::prop_assert!(lab.reasons.contains("gap"), "{}", lab.show());
        }
    });
}
