//! Interleavings: what peers say at which time, and what this replica (id `m`) does about it.

use super::*;

const LIMITS: Limits = Limits { progress: 30_000, patience: 5_000, pass: 500 };

/// `a ready 3/40/9 | b loading 7 | c dump | d busy | e dead | .f dead`: address, what it says; a ready replica's exact
/// owners, applied numbers and blocks; progress; a dot before what the peer service names. The id is the address.
fn peers(text: &str) -> Vec<Peer> {
    text.split('|').map(str::trim).filter(|peer| !peer.is_empty()).map(peer).collect()
}

fn peer(text: &str) -> Peer {
    let words: Vec<_> = text.split_whitespace().collect();
    let number = |at: usize| words.get(at).map_or(0, |word| word.parse().unwrap());
    let replica = |phase, numbers: [u64; 3], progress| {
        Seen::Replica(Summary {
            replica_id: words[0].trim_start_matches('.').chars().next().unwrap().to_string(),
            phase,
            progress,
            exact_owners: numbers[0],
            applied: numbers[1],
            blocks: numbers[2],
            has_state: numbers[1] + numbers[2] > 0,
            has_owners: numbers[0] > 0,
        })
    };
    let seen = match words[1] {
        "ready" => {
            let numbers: Vec<u64> = words[2].split('/').map(|number| number.parse().unwrap()).collect();
            replica(Phase::Ready, numbers.try_into().unwrap(), 0)
        }
        "loading" => replica(Phase::Loading, [0; 3], number(2)),
        "waiting" => replica(Phase::Waiting, [0; 3], number(2)),
        "stopping" => replica(Phase::Stopping, [9; 3], 0),
        "dump" => Seen::Other { busy: false },
        "busy" => Seen::Other { busy: true },
        "dead" => Seen::Nobody,
        other => panic!("{other}"),
    };
    Peer { url: words[0].trim_start_matches('.').to_owned(), of_service: words[0].starts_with('.'), seen }
}

fn step(step: &Step) -> String {
    match step {
        Step::Ask(after) => format!("ask {after}"),
        Step::Snapshot(url) => format!("snapshot {url}"),
        Step::Dump(url) => format!("dump {url}"),
        Step::File => "file".to_owned(),
        Step::Empty(None) => "empty".to_owned(),
        Step::Empty(Some(url)) => format!("empty, registrations of {url}"),
        Step::Failed => "failed".to_owned(),
    }
}

/// Each line: time in ms, what happens, `->`, the step.
#[track_caller]
fn check(script: &str) {
    let mut plan = Plan::new("m", LIMITS);
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (happens, want) = line.split_once("->").unwrap();
        let (at, happens) = happens.trim().split_once(' ').unwrap();
        let at = at.parse().unwrap();
        let got = match happens.trim().split_once(' ').unwrap_or((happens, "")) {
            ("heard", text) => plan.heard(at, peers(text)),
            ("failed", url) => plan.failed(at, url, false),
            ("broke", url) => plan.failed(at, url, true),
            ("busy", text) => {
                let (url, after) = text.split_once(' ').unwrap();
                plan.was_busy(at, url, after.parse().unwrap())
            }
            ("foreign", url) => plan.has_only_a_dump(at, url),
            ("nothing", url) => plan.was_empty(at, url),
            ("nofile", _) => plan.no_file(at),
            other => panic!("{other:?}"),
        };
        assert_eq!(step(&got), want.trim(), "{line}");
    }
}

#[test]
fn the_best_ready_replica_is_the_source() {
    for (text, want) in [
        ("a ready 1/9/9 | b ready 2/1/1", "b"),
        ("a ready 2/1/99 | b ready 2/2/1", "b"),
        ("a ready 2/2/1 | b ready 2/2/5", "b"),
        ("b ready 2/2/1 | a ready 2/2/1", "a"),
        ("a ready 0/0/0 | b ready 0/1/0", "b"),
        ("a loading 9 | b ready 0/0/1", "b"),
        ("a stopping | b ready 0/0/1", "b"),
        ("a dump | b ready 0/0/1", "b"),
        // Self is the fullest, at whatever address.
        ("m1 ready 9/9/9 | b ready 0/0/1", "b"),
    ] {
        check(&format!("0 heard {text} -> snapshot {want}"));
    }
}

#[test]
fn a_failed_source_is_followed_by_the_next_at_once() {
    check(
        "0 heard a ready 3/3/3 | b ready 2/2/2 | c ready 0/0/0 -> snapshot a
         10 failed a -> snapshot b
         20 failed b -> ask 500",
    );
}

#[test]
fn sources_that_fail_have_three_passes_then_others_the_file_and_a_failed_start() {
    check(
        "0 heard a ready 3/3/3 | d dump -> snapshot a
         1 broke a -> ask 500
         501 heard a ready 3/3/3 | d dump -> snapshot a
         502 failed a -> ask 1000
         1502 heard a ready 3/3/3 | d dump -> snapshot a
         1503 failed a -> dump d
         1504 nothing d -> file
         1505 nofile -> failed",
    );
}

#[test]
fn a_source_that_goes_away_between_passes_was_still_full() {
    check(
        "0 heard a ready 3/3/3 -> snapshot a
         1 failed a -> ask 500
         501 heard a dead -> ask 1000
         1501 heard a dead -> file
         1502 nofile -> failed",
    );
}

#[test]
fn a_source_that_failed_is_not_tried_for_ever_while_another_is_waited_for() {
    check(
        "0 heard a ready 3/3/3 | b loading 1 -> snapshot a
         1 failed a -> ask 500
         501 heard a ready 3/3/3 | b loading 2 -> snapshot a
         502 failed a -> ask 1000
         1502 heard a ready 3/3/3 | b loading 3 -> snapshot a
         1503 failed a -> ask 200
         1703 heard a ready 3/3/3 | b loading 4 -> ask 200
         1903 heard a ready 3/3/3 | b ready 1/1/1 -> snapshot b",
    );
}

#[test]
fn a_busy_source_is_left_for_another_and_asked_again_if_there_is_none() {
    check(
        "0 heard a ready 3/3/3 | b ready 2/2/2 -> snapshot a
         1 busy a 1000 -> snapshot b",
    );
    check(
        "0 heard a ready 3/3/3 | d dump -> snapshot a
         1 busy a 1000 -> ask 1000
         1001 heard a ready 3/3/3 | d dump -> snapshot a
         1002 busy a 3000 -> ask 3000
         4002 heard a ready 3/3/3 | b ready 9/9/9 -> snapshot b
         4003 failed b -> snapshot a
         4004 busy a 1000 -> ask 1000
         5004 heard a ready 3/3/3 | b ready 9/9/9 -> snapshot b
         5005 failed b -> snapshot a",
    );
    // Not for ever: it is a failed source in the end.
    check(
        "0 heard a ready 3/3/3 -> snapshot a
         1 busy a 1000 -> ask 1000
         300000 heard a ready 3/3/3 -> snapshot a
         300001 busy a 1000 -> ask 500
         300501 heard a ready 3/3/3 -> snapshot a
         300502 busy a 1000 -> ask 1000
         301502 heard a ready 3/3/3 -> snapshot a
         301503 busy a 1000 -> file
         301504 nofile -> failed",
    );
    // It is no source any more.
    check(
        "0 heard a ready 3/3/3 -> snapshot a
         1 busy a 1000 -> ask 1000
         1001 heard a dead -> ask 200
         1201 heard a dead -> file
         1202 nofile -> empty",
    );
}

#[test]
fn a_replica_whose_snapshot_cannot_be_read_is_read_through_its_dump_after_the_others() {
    check(
        "0 heard a ready 3/3/3 | b ready 2/2/2 -> snapshot a
         1 foreign a -> snapshot b",
    );
    check(
        "0 heard a ready 3/3/3 | c dump -> snapshot a
         1 foreign a -> dump a
         2 failed a -> dump c
         3 nothing c -> file",
    );
    check(
        "0 heard a ready 3/3/3 | b ready 2/2/2 -> snapshot a
         1 foreign a -> snapshot b
         2 failed b -> ask 500
         502 heard a ready 3/3/3 | b ready 2/2/2 -> snapshot b
         503 failed b -> ask 1000
         1503 heard a ready 3/3/3 | b ready 2/2/2 -> snapshot b
         1504 failed b -> dump a",
    );
}

#[test]
fn a_replica_that_loads_is_waited_for_while_it_gets_on() {
    check(
        "0 heard a loading 0 | d dump -> ask 200
         29000 heard a loading 5 | d dump -> ask 200
         58999 heard a loading 5 | d dump -> ask 200
         59000 heard a loading 5 | d dump -> dump d
         59001 nothing d -> file
         59002 nofile -> empty",
    );
}

#[test]
fn a_replica_that_starts_again_and_again_is_not_waited_for_for_ever() {
    check(
        "0 heard a loading 900 -> ask 200
         20000 heard a dead -> file",
    );
    check(
        "0 heard a loading 900 -> ask 200
         20000 heard a loading 100 -> ask 200
         29999 heard a loading 800 -> ask 200
         30000 heard a loading 850 -> file",
    );
}

#[test]
fn of_two_that_wait_for_each_other_the_smaller_id_goes_on() {
    check("0 heard z waiting -> file");
    check(
        "0 heard a waiting -> ask 200
         200 heard a ready 0/0/0 -> file
         201 nofile -> empty",
    );
    check(
        "0 heard a waiting -> ask 200
         200 heard a ready 1/1/1 -> snapshot a",
    );
    // It hangs: not for ever either.
    check(
        "0 heard a waiting -> ask 200
         30000 heard a waiting -> file",
    );
    // The one that goes on may itself load from elsewhere.
    check(
        "0 heard a waiting | z waiting -> ask 200
         200 heard a loading 1 | z waiting -> ask 200
         400 heard a ready 2/2/2 | z waiting -> snapshot a",
    );
}

#[test]
fn empty_peers_are_no_source_but_may_know_registrations() {
    check(
        "0 heard a ready 0/0/0 -> file
         1 nofile -> empty",
    );
    check(
        "0 heard a ready 0/0/0 | b ready 2/0/0 -> file
         1 nofile -> empty, registrations of b",
    );
    check(
        "0 heard a dead | b dead -> ask 200
         200 heard a dead | b dead -> ask 200
         400 heard a dead | b dead -> file
         401 nofile -> empty",
    );
    check(
        "0 heard -> file
         1 nofile -> empty",
    );
}

#[test]
fn what_the_service_names_is_asked_again_for_a_while_and_others_three_times() {
    check(
        "0 heard a dead -> ask 200
         200 heard a ready 1/1/1 -> snapshot a",
    );
    // Each attempt takes long: then two must do.
    check(
        "0 heard a dead -> ask 200
         5000 heard a dead -> file",
    );
    check("10000 heard a dead -> file");
    check("0 heard a busy -> dump a");
    check(
        "0 heard .a dead | .b busy -> ask 200
         4999 heard .a dead | .b busy -> ask 200
         5000 heard .a dead | .b busy -> dump b",
    );
    check(
        "0 heard .a dead -> ask 200
         200 heard .a ready 1/1/1 -> snapshot a",
    );
    check("0 heard .a dead | b ready 1/1/1 -> snapshot b");
}

#[test]
fn dumps_are_read_in_order_and_again_only_if_they_had_begun() {
    check(
        "0 heard c dump | a dump | b dump -> dump a
         1 failed a -> dump b
         2 nothing b -> dump c
         3 failed c -> file
         4 nofile -> empty",
    );
    check(
        "0 heard a dump | b dump -> dump a
         1 broke a -> dump b
         2 failed b -> ask 500
         502 heard a dump | b dump -> dump a
         503 broke a -> ask 1000
         1503 heard a dump | b dump -> dump a
         1504 broke a -> file
         1505 nofile -> failed",
    );
}

#[test]
fn a_digest_says_whether_there_is_a_state() {
    let digest = |text: &str| serde_json::from_str::<Digest>(text).unwrap();
    let base = r#"{"replica_id":"a","version":"0","phase":"ready","progress":0,"owners":1,"exact_owners":0,"applied":0,
        "blocks":0,"streams":[STREAMS],"registrations":[],"tombstones":[]}"#;
    let stream = r#"{"model":"m","tenant":"t","instance_id":1,"endpoint":"e","exact":false,"current":CURRENT,"history":[],
        "ranks":[],"foreign_blocks":0,"ages":false}"#;
    for (current, want) in [("null", false), (r#"{"seq":0,"digest":"00"}"#, true)] {
        let text = base.replace("STREAMS", &stream.replace("CURRENT", current));
        assert_eq!(Summary::from(&digest(&text)).has_state, want, "{current}");
    }
    assert!(!Summary::from(&digest(&base.replace("STREAMS", ""))).has_state);
}
