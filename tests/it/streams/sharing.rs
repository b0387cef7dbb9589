//! Ranks that share a stream, streams that share an owner, instances that share an endpoint.

use kvindexer::ids::{DpRank, Source};
use kvindexer::registry::Error;
use kvindexer::trust::Reason;

use super::{Lab, payload, store, with_replay, worker};
use crate::harness::zmq_sockets::{Ring, Shape};
use crate::harness::{Publisher, msgpack};

#[test]
fn a_batch_without_a_rank_counts_for_each_rank_of_the_endpoint_over_one_connection() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    lab.register(worker(1, 5, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    publisher.send("", 1, &msgpack::batch_of_rank(store(1), 5));
    lab.wait_held(1, 0, &[100]);
    lab.wait_held(1, 5, &[100, 101]);
    assert!(publisher.is_undisturbed(), "one connection serves both");
    lab.wait_reasons(1, 0, &[]);
    lab.wait_reasons(1, 5, &[]);
}

#[test]
fn a_rank_that_only_batches_name_is_an_owner_and_goes_with_its_instance() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    lab.register(worker(2, 0, "tcp://127.0.0.1:1"));
    publisher.wait_subscribed();
    publisher.send("", 0, &msgpack::batch_of_rank(store(0), 9));
    lab.wait_held(1, 9, &[100]);
    assert!(lab.view(1, 9).is_none(), "it was never registered");
    lab.unregister(1, None);
    assert_eq!(lab.held(1, 9), Vec::<u64>::new());
}

#[test]
fn a_rank_that_joins_a_running_stream_is_filled_from_the_ring() {
    let (lab, publisher, ring) = (Lab::new(), Publisher::bind(), Ring::default());
    let router = ring.router(Shape::Four);
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    for n in 0..3 {
        ring.push(n, &payload(n));
        publisher.send("", n, &payload(n));
    }
    lab.wait_seq(1, 0, 2);
    lab.register(with_replay(worker(1, 1, &publisher.endpoint), &router.endpoint));
    lab.wait_held(1, 1, &[100, 101, 102]);
    lab.wait_reasons(1, 1, &[]);
    publisher.send("", 3, &payload(3));
    lab.wait_held(1, 1, &[100, 101, 102, 103]);
    lab.wait_held(1, 0, &[100, 101, 102, 103]);
    let stores = lab.view(1, 0).expect("registered").report.applied[0];
    assert_eq!(stores, 4, "the others do not get the history twice");
}

#[test]
fn a_rank_that_joins_without_a_replay_endpoint_is_degraded_until_a_clear() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_seq(1, 0, 0);
    lab.register(worker(1, 1, &publisher.endpoint));
    lab.wait_reasons(1, 1, &[Reason::Gap]);
    lab.wait_reasons(1, 0, &[]);
    publisher.send("", 1, &msgpack::batch(serde_json::json!([["AllBlocksCleared"]])));
    lab.wait_reasons(1, 1, &[]);
}

#[test]
fn a_rank_that_leaves_a_shared_stream_is_not_written_again() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    lab.register(worker(1, 1, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_held(1, 1, &[100]);
    lab.unregister(1, Some(1));
    publisher.send("", 1, &msgpack::batch_of_rank(store(1), 1));
    publisher.send("", 2, &payload(2));
    lab.wait_held(1, 0, &[100, 102]);
    assert_eq!(lab.held(1, 1), Vec::<u64>::new());
    assert!(publisher.is_undisturbed(), "the connection stays");
}

#[test]
fn two_streams_that_feed_one_owner_are_told_until_one_restarts() {
    let (lab, one, two) = (Lab::new(), Publisher::bind(), Publisher::bind());
    lab.register(worker(1, 0, &one.endpoint));
    lab.register(worker(1, 1, &two.endpoint));
    one.wait_subscribed();
    two.wait_subscribed();
    one.send("", 0, &payload(0));
    one.send("", 1, &payload(1));
    lab.wait_seq(1, 0, 1);
    two.send("", 0, &msgpack::batch_of_rank(store(7), 0));
    lab.wait_reasons(1, 0, &[Reason::TwoSources]);
    lab.wait_held(1, 0, &[100, 101, 107]);
    one.send("", 0, &payload(2));
    lab.wait_reasons(1, 0, &[]);
    lab.wait_held(1, 0, &[102]);
}

#[test]
fn one_endpoint_for_two_instances_is_accepted_and_counted() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    assert_eq!(lab.registry.shared_endpoints(), 0);
    lab.register(worker(2, 0, &publisher.endpoint));
    assert_eq!(lab.registry.shared_endpoints(), 1);
    publisher.wait_subscribed();
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_held(1, 0, &[100]);
    lab.wait_held(2, 0, &[100]);
}

#[test]
fn a_pause_closes_the_socket_and_a_resume_replays_what_was_missed() {
    let (lab, publisher, ring) = (Lab::new(), Publisher::bind(), Ring::default());
    let router = ring.router(Shape::Three);
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    publisher.wait_subscribed();
    ring.push(0, &payload(0));
    publisher.send("", 0, &payload(0));
    lab.wait_seq(1, 0, 0);
    let pause = || lab.runtime.block_on(lab.registry.pause(&1.into(), Some(DpRank(0))));
    let resume = || lab.runtime.block_on(lab.registry.resume(&1.into(), None));
    assert!(matches!(resume(), Err(Error::ListenerState { verb: "resumed", status: "active", .. })));
    pause().expect("active");
    assert!(matches!(pause(), Err(Error::ListenerState { verb: "paused", status: "paused", .. })));
    lab.wait_reasons(1, 0, &[Reason::NotConnected]);
    ring.push(1, &payload(1));
    resume().expect("paused");
    publisher.wait_subscribed();
    lab.wait_held(1, 0, &[100, 101]);
    lab.wait_reasons(1, 0, &[]);
    assert_eq!(router.starts().last(), Some(&0), "asked from the last number itself");
}

#[test]
fn another_replay_endpoint_keeps_blocks_and_connection() {
    let (lab, publisher, ring) = (Lab::new(), Publisher::bind(), Ring::default());
    lab.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    publisher.send("", 2, &payload(2));
    lab.wait_reasons(1, 0, &[Reason::Gap]);
    (0..3).for_each(|n| ring.push(n, &payload(n)));
    let router = ring.router(Shape::Three);
    let spec = with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint);
    let refused = lab.runtime.block_on(lab.registry.register(spec.clone(), Source::Manual, false));
    assert!(matches!(refused, Err(Error::AlreadyRegistered { .. })));
    lab.runtime.block_on(lab.registry.register(spec, Source::Manual, true)).expect("replaced");
    lab.wait_held(1, 0, &[100, 101, 102]);
    lab.wait_reasons(1, 0, &[]);
    assert!(publisher.is_undisturbed(), "the connection stays");
}
