//! Replays from sockets that are silent, dead, killed, late or lossy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use kvindexer::trust::{Reason, State};

use super::{Lab, SHORT, payload, with_replay, worker};
use crate::harness::zmq_sockets::{DeadEndpoint, Ring, Router, Shape, start_of};
use crate::harness::{Publisher, wait_for};

/// A router that answers only while it is switched on.
fn switched(ring: &Ring) -> (Router, Arc<AtomicBool>) {
    let (ring, on) = (ring.clone(), Arc::new(AtomicBool::new(false)));
    let is_on = Arc::clone(&on);
    let router = Router::start(Box::new(move |request| match start_of(request) {
        Some(start) if is_on.load(Ordering::Relaxed) => {
            let kept = ring.since(start).into_iter().map(|(seq, payload)| Shape::Three.message(seq, &payload));
            kept.chain([Shape::Three.end()]).collect()
        }
        _ => Vec::new(),
    }));
    (router, on)
}

#[test]
fn an_owner_with_a_gap_heals_by_itself_once_the_replay_socket_answers() {
    let lab = Lab::with(|limits| {
        limits.replay_idle = SHORT;
        limits.repair_min = SHORT;
    });
    let (publisher, ring) = (Publisher::bind(), Ring::default());
    let (router, on) = switched(&ring);
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    for n in [0, 2] {
        publisher.send("", n, &payload(n));
    }
    (0..3).for_each(|n| ring.push(n, &payload(n)));
    lab.wait_reasons(1, 0, &[Reason::Gap, Reason::ReplayIncomplete]);
    lab.wait_held(1, 0, &[100, 102]);
    on.store(true, Ordering::Relaxed);
    lab.wait_held(1, 0, &[100, 101, 102]);
    lab.wait_reasons(1, 0, &[]);
    let stream = lab.view(1, 0).expect("registered").stream;
    assert_eq!((stream.gaps, stream.missing_batches, stream.restarts), (1, 1, 0));
    assert!(stream.replays_failed >= 1 && stream.replays_complete >= 1, "{stream:?}");
}

#[test]
fn a_router_killed_in_mid_replay_costs_what_it_did_not_send() {
    let lab = Lab::with(|limits| limits.replay_idle = SHORT);
    let publisher = Publisher::bind();
    let router = Router::start(Box::new(|_| (0..5).map(|n| Shape::Three.message(n, &payload(n))).collect()));
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 9, &payload(9));
    lab.wait_held(1, 0, &[100, 101, 102, 103, 104]);
    drop(router);
    lab.wait_held(1, 0, &[100, 101, 102, 103, 104, 109]);
    lab.wait_reasons(1, 0, &[Reason::Gap, Reason::ReplayIncomplete]);
    assert_eq!(lab.view(1, 0).expect("registered").stream.missing_batches, 4);
}

#[test]
fn an_answer_that_always_loses_something_ends_complete() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    let rounds = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&rounds);
    // Each round brings seven batches, then a hole, then much more, and never an end marker.
    let router = Router::start(Box::new(move |request| {
        let start = start_of(request).expect("well-formed");
        counted.fetch_add(1, Ordering::Relaxed);
        (start..40).filter(|n| *n != start + 7).map(|n| Shape::Three.message(n, &payload(n))).collect()
    }));
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 40, &payload(40));
    lab.wait_held(1, 0, &(100..=140).collect::<Vec<_>>());
    lab.wait_reasons(1, 0, &[]);
    assert!(rounds.load(Ordering::Relaxed) >= 6);
}

#[test]
fn an_idle_engine_whose_end_marker_is_lost_is_known_and_exact() {
    let lab = Lab::with(|limits| {
        limits.replay_idle = SHORT;
        limits.silence = SHORT;
    });
    let publisher = Publisher::bind();
    let router = Router::start(Box::new(|request| {
        (start_of(request).expect("well-formed")..3).map(|n| Shape::Three.message(n, &payload(n))).collect()
    }));
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    lab.wait_held(1, 0, &[100, 101, 102]);
    lab.wait_reasons(1, 0, &[]);
}

#[test]
fn a_worker_that_waits_for_a_silent_router_is_unregistered_at_once() {
    let (lab, publisher, ring) = (Lab::new(), Publisher::bind(), Ring::default());
    let (router, _off) = switched(&ring);
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 3, &payload(3));
    lab.wait("a replay", 1, 0, |view| view.stream.replaying);
    let start = Instant::now();
    lab.unregister(1, None);
    assert!(start.elapsed().as_millis() < 1_500, "{:?}", start.elapsed());
    assert!(lab.registry.index(&super::key()).is_none());
}

#[test]
fn nothing_is_known_until_a_connection_and_something_heard() {
    let (lab, dead) = (Lab::new(), DeadEndpoint::reserve());
    lab.register(worker(1, 0, &dead.endpoint));
    let view = lab.wait("an error", 1, 0, |view| view.stream.last_error.is_some());
    assert_eq!(view.stream.status.as_str(), "pending");
    assert_eq!(view.report.trust.state(), State::Stale);
    lab.wait_reasons(1, 0, &[Reason::NotConnected, Reason::NothingHeard]);

    let publisher = Publisher::bind();
    lab.register(worker(2, 0, &publisher.endpoint));
    lab.wait_reasons(2, 0, &[Reason::NothingHeard]);
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_reasons(2, 0, &[]);
    drop(publisher);
    lab.wait_reasons(2, 0, &[Reason::NotConnected]);
    assert_eq!(lab.held(2, 0), [100], "the blocks stay");
}

#[test]
fn a_name_that_does_not_resolve_is_pending_and_delays_nobody() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, "tcp://no-such-host.invalid:5557"));
    lab.register(worker(2, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_held(2, 0, &[100]);
    let view = lab.wait("an error", 1, 0, |view| view.stream.last_error.is_some());
    let error = view.stream.last_error.expect("seen");
    assert!(error.contains("no-such-host.invalid"), "{error}");
    assert_eq!((view.stream.status.as_str(), view.stream.connects), ("pending", 0));
}

#[test]
fn the_last_number_survives_unregister_and_recognises_a_restart() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    (0..4).for_each(|n| publisher.send("", n, &payload(n)));
    lab.wait_seq(1, 0, 3);
    lab.unregister(1, None);
    lab.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 1, &payload(1));
    lab.wait_held(1, 0, &[101]);
    assert_eq!(lab.view(1, 0).expect("registered").stream.restarts, 1);
}

#[test]
fn every_life_of_a_publisher_on_one_address_is_heard() {
    let lab = Lab::new();
    let mut publisher = Publisher::bind();
    let address = publisher.endpoint.clone();
    lab.register(worker(1, 0, &address));
    for life in 0..4 {
        publisher.wait_subscribed();
        publisher.send("", 0, &payload(10 * life));
        publisher.send("", 1, &payload(10 * life + 1));
        lab.wait_held(1, 0, &[100 + 10 * life, 101 + 10 * life]);
        lab.wait_reasons(1, 0, &[]);
        drop(publisher);
        publisher = Publisher::bind_to(&address);
    }
    assert_eq!(lab.view(1, 0).expect("registered").stream.restarts, 3);
}

#[test]
fn messages_without_three_frames_are_counted_and_the_next_one_is_applied() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send_frames(&[&payload(0)[..]]);
    publisher.send_frames(&[b"" as &[u8], b"\x01", &payload(0)]);
    publisher.send_frames(&[b"" as &[u8], b"", &0_u64.to_be_bytes(), &payload(0)]);
    publisher.send("topic", 0, &payload(0));
    lab.wait_held(1, 0, &[100]);
    assert_eq!(lab.view(1, 0).expect("registered").stream.malformed, 3);
    lab.wait_reasons(1, 0, &[Reason::Skipped]);
}

#[test]
fn a_complete_replay_ends_what_an_unreadable_message_raised() {
    let lab = Lab::with(|limits| limits.repair_min = SHORT);
    let (publisher, ring) = (Publisher::bind(), Ring::default());
    let router = ring.router(Shape::Three);
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    for n in 0..2 {
        ring.push(n, &payload(n));
        publisher.send("", n, &payload(n));
    }
    publisher.send_frames(&[b"one frame"]);
    wait_for("a rebuild", || {
        let view = lab.view(1, 0).expect("registered");
        let done = view.stream.malformed == 1 && view.report.trust.state() == State::Exact;
        if done { Ok(()) } else { Err(format!("{view:?}")) }
    });
    assert_eq!(lab.held(1, 0), [100, 101]);
}
