//! How a stream that only holds goes on from a state that was made elsewhere: the interleavings of what was heard, what
//! was adopted, and what the publisher did meanwhile.
//!
//! Words beside those of the other stories: `hold` the stream begins to hold, `keep`, `unplaced`, `adopt7` how it goes
//! on (`adopt7/1`: at number 7 of life 1; `!` the source was not connected, `?` it had holes; `adopt-` it had heard
//! nothing). In the end `[7]` shows where content was replaced by a state at 7.

use super::lab::Lab;

const WITH: bool = true;
const WITHOUT: bool = false;

#[track_caller]
fn check(has_replay: bool, table: &[(&str, &str)]) {
    for (story, want) in table {
        let mut lab = Lab::holding(has_replay);
        lab.tell(story);
        assert_eq!(lab.show(), *want, "{story}");
    }
}

#[test]
fn nothing_is_applied_or_asked_while_holding() {
    check(WITHOUT, &[("c 0 1 2 ~9000", "; not exact: nothing_heard")]);
    check(WITH, &[("p0 p1 c 5 6 ~9000", "; not exact: nothing_heard"), ("c ~9000", "; not exact: nothing_heard")]);
}

#[test]
fn what_the_state_covers_is_skipped_and_the_rest_applied() {
    check(
        WITHOUT,
        &[
            ("c 5 6 7 adopt5", "[5] 6 7"),
            ("c 5 6 7 adopt6 8", "[6] 7 8"),
            ("c 5 6 7 adopt7 8", "[7] 8"),
            ("c 0 1 2 adopt0", "[0] 1 2"),
            ("c 5 6 7 7 6 adopt6", "[6] 7 ; duplicates 2"),
        ],
    );
    check(WITH, &[("c 5 6 7 adopt5", "[5] 6 7"), ("c 5 6 7 adopt7 8 ~9000", "[7] 8")]);
}

#[test]
fn the_next_number_without_the_last_one_is_proved_where_it_can_be() {
    check(WITHOUT, &[("c 6 7 adopt5", "[5] 6 7")]);
    check(
        WITH,
        &[
            ("p5 c 6 7 adopt5", "[5] 6 7 ; asked 5 Complete"),
            ("p0 p1 c life p0 p1 p2 p3 p4 p5 6 adopt5/1", "[5] | 0 1 2 3 4 5 6 ; asked 5 0 Complete ; restarts 1"),
        ],
    );
}

#[test]
fn a_hole_behind_the_state_is_replayed_or_degrades() {
    check(WITHOUT, &[("c 8 9 adopt5", "[5] 8 9 ; missing 2 ; not exact: gap")]);
    check(
        WITH,
        &[
            ("p4 p5 p6 p7 c 8 9 adopt5", "[5] 6 7 8 9 ; asked 5 Complete ; gaps 1"),
            ("p7 c 8 adopt5", "[5] 7 8 ; asked 5 5 Complete ; gaps 1 ; missing 1 ; not exact: gap"),
            (
                "life p0 p1 c 8 adopt5/1 ~9000",
                "[5] 8 ; asked 5 5 Incomplete ; gaps 1 ; missing 2 ; not exact: gap replay_incomplete",
            ),
        ],
    );
}

#[test]
fn a_hole_at_the_last_number_itself_is_a_hole() {
    check(
        WITHOUT,
        &[
            ("c 4 7 8 adopt5", "[5] 7 8 ; missing 1 ; not exact: gap unverified_reconnect"),
            ("c 4 6 adopt5 7", "[5] 6 7 ; not exact: unverified_reconnect"),
        ],
    );
    check(WITH, &[("c 4 p5 p6 7 8 adopt5", "[5] 6 7 8 ; asked 5 Complete ; gaps 1")]);
}

#[test]
fn numbers_below_the_state_wait_until_its_last_one_comes() {
    for has_replay in [WITH, WITHOUT] {
        check(
            has_replay,
            &[
                ("c 3 4 adopt7", "[7]"),
                ("c 3 4 adopt7 ~4999 5 6 7 8", "[7] 8"),
                ("c adopt7 5 6 7 8", "[7] 8"),
                ("c adopt7 5 6 ~4000 7 8", "[7] 8"),
            ],
        );
    }
}

#[test]
fn numbers_that_stay_below_the_state_are_another_life_and_none_is_lost() {
    check(
        WITHOUT,
        &[
            ("life c 0 1 adopt7/1 ~5000 2", "[7] | 0 1 2 ; restarts 1"),
            ("life c adopt7/1 ~60000 0 1 ~5000 2", "[7] | 0 1 2 ; restarts 1"),
            ("life c 3 4 adopt7/1 ~5000 5", "[7] | 3 4 5 ; restarts 1 ; missing 3 ; not exact: gap"),
        ],
    );
    check(
        WITH,
        &[
            ("life p0 p1 p2 c 3 4 adopt7/1 ~5000 5", "[7] | 0 1 2 3 4 5 ; asked 0 Complete ; restarts 1 ; gaps 1"),
            (
                "dead life c adopt7/1 ~1500 3 4 ~20000",
                "[7] | 3 4 ; asked 7 7 Failed ; restarts 1 ; missing 3 ; not exact: gap",
            ),
        ],
    );
}

#[test]
fn another_payload_at_the_last_number_is_another_life() {
    check(
        WITHOUT,
        &[
            ("c life 0 1 2 adopt1/1", "[1] | 0 1 2 ; restarts 1"),
            ("c life 0 adopt2/1 1 2 3", "[2] | 0 1 2 3 ; restarts 1"),
            ("c life 5 6 adopt6/1", "[6] | 5 6 ; restarts 1 ; missing 5 ; not exact: gap"),
        ],
    );
    check(WITH, &[("life p0 p1 c 2 3 adopt2/1", "[2] | 0 1 2 3 ; asked 0 Complete ; restarts 1 ; gaps 1")]);
}

#[test]
fn a_restart_that_was_heard_while_holding_is_told_from_the_state_by_its_payloads() {
    check(
        WITHOUT,
        &[
            ("c 8 9 life 0 1 2 adopt1", "[1] 2"),
            ("c 8 9 life 0 1 2 adopt9/1 ~5000", "[9] | 0 1 2 ; restarts 1"),
            ("c 8 9 life 0 1 2 adopt1/1", "[1] | 0 1 2 ; restarts 1"),
            ("c 8 9 d life c 0 1 2 adopt1", "[1] 2"),
            // It began anew for certain; that 5 is of the life of 6 nobody can show.
            ("c 8 9 d life c 6 7 adopt5/1", "[5] | 6 7 ; restarts 1 ; missing 6 ; not exact: gap"),
            ("c 8 9 life 0 1 life 0 1 2 adopt1", "[1] 2"),
            ("c 8 9 life 0 1 life 0 1 2 adopt1/2", "[1] | 0 1 2 ; restarts 1"),
        ],
    );
    check(
        WITH,
        &[
            ("c 8 9 d life p5 c 6 7 adopt5", "[5] 6 7 ; asked 5 Complete"),
            (
                "c 8 9 d life p0 p1 p2 p3 p4 p5 c 6 7 adopt5/1",
                "[5] | 0 1 2 3 4 5 6 7 ; asked 5 0 Complete ; restarts 1",
            ),
        ],
    );
}

#[test]
fn a_restart_after_the_state_is_a_restart() {
    for has_replay in [WITH, WITHOUT] {
        check(has_replay, &[("c 5 6 adopt6 7 life 0 1", "[6] 7 | 0 1 ; restarts 1")]);
    }
    check(
        WITHOUT,
        &[
            ("c 5 adopt7 d life c 3", "[7] | 3 ; restarts 1 ; gaps 1 ; missing 3 ; not exact: gap"),
            ("c 5 adopt7 life 0 1 ~5000", "[7] | 0 1 ; restarts 1"),
        ],
    );
}

#[test]
fn a_connection_made_after_the_state_is_judged_like_any_reconnect() {
    check(
        WITHOUT,
        &[
            ("adopt5 c ~9000", "[5] ; not exact: unverified_reconnect"),
            ("adopt5 c 6", "[5] 6"),
            ("adopt5 c 5", "[5] | 5 ; restarts 1 ; gaps 1 ; missing 5 ; not exact: gap"),
            ("c 4 d adopt5 c 6", "[5] 6"),
            ("c 3 adopt7 d c 8", "[7] 8"),
            ("c 3 adopt7 d ~9000 c ~9000", "[7] ; not exact: unverified_reconnect"),
        ],
    );
    check(
        WITH,
        &[
            ("p5 adopt5 c ~1000", "[5] ; asked 5 Complete"),
            ("p0 p1 life p0 adopt5/1 c ~1000", "[5] | 0 ; asked 5 Complete 0 Complete ; restarts 1"),
        ],
    );
}

#[test]
fn a_reconnect_while_holding_drops_what_came_before() {
    check(WITHOUT, &[("c 5 6 d c 8 adopt6", "[6] 8 ; missing 1 ; not exact: gap"), ("c 5 6 d c 7 adopt6", "[6] 7")]);
    check(WITH, &[("c 5 6 d p7 c 8 adopt5", "[5] 6 7 8 ; asked 5 Complete ; gaps 1")]);
}

#[test]
fn an_idle_publisher_is_asked_where_it_can_be() {
    check(WITHOUT, &[("c adopt5 ~60000", "[5]"), ("c adopt5! ~60000", "[5] ; not exact: unverified_reconnect")]);
    check(
        WITH,
        &[
            ("p5 c adopt5 ~999", "[5]"),
            ("p5 c adopt5 ~1000", "[5] ; asked 5 Complete"),
            ("p5 p6 c adopt5 ~1000 7", "[5] 6 7 ; asked 5 Complete"),
            ("p5 c adopt5! ~1000", "[5] ; asked 5 Complete"),
            ("p0 p1 life p0 p1 c adopt1/1 ~1000", "[1] | 0 1 ; asked 1 0 Complete ; restarts 1"),
        ],
    );
}

#[test]
fn what_the_source_was_unsure_of_stays_unsure_until_it_is_shown() {
    check(
        WITHOUT,
        &[
            ("c 5 adopt5!", "[5]"),
            ("c adopt5! 6", "[5] 6"),
            ("c 6 adopt5!", "[5] 6"),
            ("c adopt5?", "[5] ; not exact: gap"),
        ],
    );
    check(WITH, &[("p0 p1 c adopt1? ~2000", "[1] ^ 0 1 ; asked 1 Complete 0 Complete")]);
}

#[test]
fn a_source_that_heard_nothing_leaves_a_fresh_stream() {
    check(
        WITHOUT,
        &[
            ("c adopt- 0 1", "[-] 0 1"),
            ("c 1 2 adopt-", "[-] 1 2"),
            ("c 3 adopt-", "[-] 3 ; missing 3 ; not exact: gap"),
        ],
    );
    check(WITH, &[("p0 p1 c 2 adopt-", "[-] 0 1 2 ; asked 0 Complete ; gaps 1")]);
}

#[test]
fn without_any_state_it_begins_fresh_with_what_it_holds() {
    check(
        WITHOUT,
        &[
            ("c 0 1 keep 2", "0 1 2"),
            ("c 1 2 keep 3", "1 2 3"),
            ("c 5 keep 6", "5 6 ; missing 5 ; not exact: gap"),
            ("c keep 0", "0"),
            ("keep c 0", "0"),
            ("c 8 life 0 1 keep", "| 0 1 ; restarts 1"),
        ],
    );
    check(
        WITH,
        &[
            ("p0 p1 c 2 keep 3", "0 1 2 3 ; asked 0 Complete ; gaps 1"),
            ("c 1 2 keep", "1 2 ; asked 0 Complete ; gaps 1"),
            ("p0 p1 c keep ~1000", "0 1 ; asked 0 Complete"),
        ],
    );
}

#[test]
fn beyond_the_bound_the_oldest_held_become_a_hole() {
    // Eight are held.
    check(WITHOUT, &[("c 0 1 2 3 4 5 6 7 8 9 10 adopt1", "[1] 3 4 5 6 7 8 9 10 ; missing 1 ; not exact: gap")]);
    check(WITH, &[("c 0 1 2 3 4 5 6 7 8 9 10 adopt1", "[1] 2 3 4 5 6 7 8 9 10 ; asked 1 Complete ; gaps 1")]);
    // Not the beginning of a publisher that counts from 1.
    check(WITHOUT, &[("c 0 1 2 3 4 5 6 7 8 keep", "1 2 3 4 5 6 7 8 ; missing 1 ; not exact: gap")]);
}

#[test]
fn a_running_stream_is_refilled_or_goes_on_as_it_was() {
    let check = |has_replay, story: &str, want: &str| {
        let mut lab = Lab::new(has_replay, None);
        lab.tell(story);
        assert_eq!(lab.show(), want, "{story}");
    };
    check(WITHOUT, "c 0 1 3 hold 4 5 adopt4 6", "0 1 3 [4] 5 6 ; gaps 1 ; missing 1");
    check(WITHOUT, "c 0 1 3 hold adopt3 4", "0 1 3 [3] 4 ; gaps 1 ; missing 1");
    check(WITHOUT, "c 0 1 3 hold 4 5 keep 6", "0 1 3 4 5 6 ; gaps 1 ; missing 1 ; not exact: gap");
    check(WITHOUT, "c 0 1 2 hold life 0 1 keep", "0 1 2 | 0 1 ; restarts 1");
    check(WITHOUT, "c 0 1 2 hold d life c 2 3 keep", "0 1 2 | 2 3 ; restarts 1 ; missing 2 ; not exact: gap");
    check(WITHOUT, "c 0 2 hold life 0 1 adopt5/1 ~5000", "0 2 [5] | 0 1 ; restarts 1 ; gaps 1 ; missing 1");
    check(WITH, "c 0 silent p1 2 hold 3 alive keep", "0 1 2 3 ; asked 0 0 Complete ; gaps 2");
    check(WITH, "c 0 1 d p2 silent c ~1000 hold alive keep ~0", "0 1 2 ; asked 1 1 Complete");
    check(WITH, "c 0 silent p1 2 hold 3 without keep", "0 2 3 ; asked 0 ; gaps 1 ; missing 1 ; not exact: gap");
}

#[test]
fn content_of_unknown_position_goes_when_the_beginning_comes() {
    check(
        WITHOUT,
        &[
            ("c unplaced 0 1", "^ 0 1"),
            ("c 0 1 unplaced", "^ 0 1"),
            ("c 1 2 unplaced", "^ 1 2"),
            ("c 5 unplaced 6", "5 6 ; missing 5 ; not exact: gap no_watermark"),
            ("c 5 unplaced life 0", "5 | 0 ; restarts 1 ; missing 5"),
            ("c unplaced ~60000", "; not exact: no_watermark"),
        ],
    );
    check(
        WITH,
        &[
            ("p0 p1 c 2 unplaced 3", "^ 0 1 2 3 ; asked 0 Complete ; gaps 1"),
            ("p0 p1 c unplaced ~1000 2", "^ 0 1 2 ; asked 0 Complete"),
            ("c 1 2 unplaced", "^ 1 2 ; asked 0 Complete ; gaps 1"),
            ("p3 p4 c 5 unplaced", "3 4 5 ; asked 0 0 Complete ; gaps 1 ; missing 3 ; not exact: gap no_watermark"),
            ("c unplaced ~1000", "^ ; asked 0 Complete"),
            (
                "dead c 5 unplaced ~4000",
                "5 ; asked 0 0 Failed ; gaps 1 ; missing 5 ; not exact: gap no_watermark replay_incomplete",
            ),
        ],
    );
}
