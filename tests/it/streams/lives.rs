//! What Kubernetes says about containers, on streams that run: lives that end, containers that are down, and addresses that
//! nobody watches.

use std::collections::BTreeMap;

use kvindexer::ids::{BlockSize, Incarnation, Source};
use kvindexer::registry::{Converged, DesiredWorker, WorkerSpec};
use kvindexer::trust::Reason;

use super::{Lab, SHORT, payload, with_replay, worker};
use crate::harness::zmq_sockets::{Ring, Shape};
use crate::harness::{Publisher, wait_for};

impl Lab {
    fn converge(&self, workers: impl IntoIterator<Item = DesiredWorker>) -> Converged {
        let desired: BTreeMap<_, _> =
            workers.into_iter().map(|worker| ((worker.spec.key.clone(), worker.spec.owner.clone()), worker)).collect();
        self.runtime.block_on(self.registry.converge(Source::Kubernetes, desired))
    }

    fn lives(&self, instance: u64) -> u64 {
        self.view(instance, 0).expect("registered").stream.lives
    }
}

fn running(spec: WorkerSpec, container: &str, restart_count: u32) -> DesiredWorker {
    let incarnation = Incarnation { pod_uid: "pod".to_owned(), container_id: container.to_owned(), restart_count };
    WorkerSpec { incarnation: Some(incarnation), ..spec }.into()
}

fn down(spec: WorkerSpec, container: &str, restart_count: u32) -> DesiredWorker {
    DesiredWorker { container_down: true, ..running(spec, container, restart_count) }
}

#[test]
fn a_container_that_restarts_in_silence_loses_its_blocks_and_keeps_its_connection() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    let spec = worker(1, 0, &publisher.endpoint);
    lab.converge([running(spec.clone(), "a", 0)]);
    publisher.wait_subscribed();
    (0..3).for_each(|n| publisher.send("", n, &payload(n)));
    lab.wait_held(1, 0, &[100, 101, 102]);
    let converged = lab.converge([running(spec.clone(), "b", 1)]);
    assert_eq!(converged.replaced.len(), 1);
    lab.wait_held(1, 0, &[]);
    lab.wait_reasons(1, 0, &[Reason::NothingHeard]);
    assert!(publisher.is_undisturbed(), "the listener did not connect again");
    // The second look at the same container changes nothing.
    publisher.send("", 0, &payload(7));
    lab.wait_held(1, 0, &[107]);
    assert!(lab.converge([running(spec, "b", 1)]).replaced.is_empty());
    lab.wait_held(1, 0, &[107]);
    lab.wait_reasons(1, 0, &[]);
}

#[test]
fn a_restart_that_the_stream_noticed_first_is_not_cleared_twice() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    let spec = worker(1, 0, &publisher.endpoint);
    lab.converge([running(spec.clone(), "a", 0)]);
    publisher.wait_subscribed();
    (0..3).for_each(|n| publisher.send("", n, &payload(n)));
    lab.wait_held(1, 0, &[100, 101, 102]);
    // The next life speaks before the kubelet does.
    (0..2).for_each(|n| publisher.send("", n, &payload(10 + n)));
    lab.wait_held(1, 0, &[110, 111]);
    lab.converge([running(spec.clone(), "b", 1)]);
    lab.wait_held(1, 0, &[110, 111]);
    lab.wait_reasons(1, 0, &[]);
    assert_eq!(lab.lives(1), 1);
    // The one after that is another matter.
    lab.converge([running(spec, "c", 2)]);
    lab.wait_held(1, 0, &[]);
    assert_eq!(lab.lives(1), 2);
}

/// An engine began anew inside its container, long ago; then the container restarted, and what it said is lost up to the
/// very number that would follow.
#[test]
fn a_restart_noticed_on_an_earlier_connection_is_not_the_container_s() {
    let lab = Lab::new();
    let publisher = Publisher::bind();
    let address = publisher.endpoint.clone();
    let spec = worker(1, 0, &address);
    lab.converge([running(spec.clone(), "a", 0)]);
    publisher.wait_subscribed();
    (0..2).for_each(|n| publisher.send("", n, &payload(n)));
    lab.wait_held(1, 0, &[100, 101]);
    publisher.send("", 0, &payload(4));
    lab.wait_held(1, 0, &[104]);
    assert_eq!(lab.lives(1), 1);
    drop(publisher);
    let publisher = Publisher::bind_to(&address);
    publisher.wait_subscribed();
    publisher.send("", 1, &payload(8));
    lab.wait_seq(1, 0, 1);
    lab.converge([running(spec, "b", 1)]);
    lab.wait_held(1, 0, &[]);
    lab.wait_reasons(1, 0, &[Reason::NothingHeard]);
}

#[test]
fn another_block_size_takes_effect_for_all_workers_of_an_index_at_once() {
    let (lab, one, two) = (Lab::new(), Publisher::bind(), Publisher::bind());
    let eight = |spec: WorkerSpec| WorkerSpec { block_size: BlockSize::new(8).expect("not zero"), ..spec };
    let (a, b) = (worker(1, 0, &one.endpoint), worker(2, 0, &two.endpoint));
    lab.converge([running(a.clone(), "a", 0), running(b.clone(), "b", 0)]);
    one.wait_subscribed();
    two.wait_subscribed();
    let converged = lab.converge([running(eight(a.clone()), "a", 0), running(eight(b.clone()), "b", 0)]);
    assert!(converged.failed.is_empty(), "{converged:?}");
    assert_eq!((converged.removed.len(), converged.added.len()), (2, 2));
    one.wait_subscribed();
    two.wait_subscribed();
    // Where somebody else needs the old one, it stays, and that is said.
    lab.register(eight(worker(3, 0, "tcp://127.0.0.1:9")));
    let converged = lab.converge([running(a, "a", 0), running(b, "b", 0)]);
    assert_eq!((converged.removed.len(), converged.failed.len()), (0, 2));
    assert!(lab.view(1, 0).is_some_and(|view| view.spec.block_size.tokens() == 8));
}

#[test]
fn a_restart_count_alone_is_another_life_and_a_learnt_container_is_not() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    let spec = worker(1, 0, &publisher.endpoint);
    lab.converge([spec.clone().into()]);
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_held(1, 0, &[100]);
    lab.converge([running(spec.clone(), "a", 0)]);
    lab.converge([spec.clone().into()]);
    lab.wait_held(1, 0, &[100]);
    lab.converge([running(spec.clone(), "a", 0)]);
    lab.converge([running(spec, "a", 1)]);
    lab.wait_held(1, 0, &[]);
}

#[test]
fn what_a_life_said_before_it_was_heard_is_asked_for() {
    let (lab, publisher, ring) = (Lab::new(), Publisher::bind(), Ring::default());
    let router = ring.router(Shape::Three);
    let spec = with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint);
    lab.converge([running(spec.clone(), "a", 0)]);
    publisher.wait_subscribed();
    (0..2).for_each(|n| {
        ring.push(n, &payload(n));
        publisher.send("", n, &payload(n));
    });
    lab.wait_held(1, 0, &[100, 101]);
    // The next life fills its buffer and then says nothing.
    ring.clear();
    (0..2).for_each(|n| ring.push(n, &payload(20 + n)));
    lab.converge([running(spec, "b", 1)]);
    lab.wait_held(1, 0, &[120, 121]);
    lab.wait_reasons(1, 0, &[]);
}

#[test]
fn a_container_that_is_down_scores_nothing_until_it_runs_again() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    let spec = worker(1, 0, &publisher.endpoint);
    lab.converge([running(spec.clone(), "a", 0)]);
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_held(1, 0, &[100]);
    lab.converge([down(spec.clone(), "a", 0)]);
    lab.wait_held(1, 0, &[]);
    lab.wait_reasons(1, 0, &[Reason::NotConnected, Reason::NothingHeard, Reason::ContainerDown]);
    let lives = lab.lives(1);
    // CrashLoopBackOff: the count goes up while it is down.
    assert!(lab.converge([down(spec.clone(), "b", 1)]).replaced.is_empty());
    assert_eq!(lab.lives(1), lives);
    // Whoever listens at this address meanwhile is somebody else.
    assert!(!publisher.hears_within(SHORT));
    publisher.send("", 0, &payload(5));
    lab.converge([running(spec, "c", 2)]);
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(6));
    lab.wait_held(1, 0, &[106]);
    lab.wait_reasons(1, 0, &[]);
    assert_eq!(lab.lives(1), lives, "cleared once");
}

#[test]
fn a_container_that_never_ran_is_not_registered() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    let spec = worker(1, 0, &publisher.endpoint);
    lab.converge([down(spec.clone(), "a", 3)]);
    assert!(lab.view(1, 0).is_none());
    lab.converge([running(spec, "b", 4)]);
    publisher.wait_subscribed();
}

#[test]
fn a_pod_at_another_address_takes_nothing_with_it() {
    let (lab, old, new) = (Lab::new(), Publisher::bind(), Publisher::bind());
    lab.converge([running(worker(1, 0, &old.endpoint), "a", 0)]);
    old.wait_subscribed();
    old.send("", 0, &payload(0));
    lab.wait_held(1, 0, &[100]);
    lab.converge([running(worker(1, 0, &new.endpoint), "b", 0)]);
    lab.wait_held(1, 0, &[]);
    new.wait_subscribed();
    old.send("", 1, &payload(1));
    new.send("", 0, &payload(9));
    lab.wait_held(1, 0, &[109]);
    lab.wait_reasons(1, 0, &[]);
}

#[test]
fn an_address_that_nobody_watches_is_doubted_after_a_new_connection() {
    let lab = Lab::new();
    let publisher = Publisher::bind();
    let address = publisher.endpoint.clone();
    let spec = worker(1, 0, &address);
    lab.converge([running(spec.clone(), "a", 0)]);
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_reasons(1, 0, &[]);
    lab.registry.set_unwatched(true);
    assert!(lab.view(1, 0).expect("registered").report.trust.reasons().next().is_none(), "the connection is the same");
    drop(publisher);
    let publisher = Publisher::bind_to(&address);
    publisher.wait_subscribed();
    publisher.send("", 1, &payload(1));
    lab.wait_seq(1, 0, 1);
    lab.wait_reasons(1, 0, &[Reason::Unconfirmed]);
    lab.registry.set_unwatched(false);
    assert!(lab.converge([running(spec, "a", 0)]).replaced.is_empty());
    lab.wait_reasons(1, 0, &[]);
    lab.wait_held(1, 0, &[100, 101]);
}

#[test]
fn a_worker_by_hand_is_not_doubted_whatever_kubernetes_does() {
    let lab = Lab::new();
    let publisher = Publisher::bind();
    let address = publisher.endpoint.clone();
    lab.register(worker(1, 0, &address));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    lab.wait_reasons(1, 0, &[]);
    lab.registry.set_unwatched(true);
    drop(publisher);
    let publisher = Publisher::bind_to(&address);
    publisher.wait_subscribed();
    publisher.send("", 1, &payload(1));
    lab.wait_seq(1, 0, 1);
    wait_for("the same life", || {
        let view = lab.view(1, 0).ok_or("not registered")?;
        if view.report.trust.reasons().next().is_none() { Ok(()) } else { Err(format!("{view:?}")) }
    });
}
