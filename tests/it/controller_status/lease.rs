//! One replica writes, and another goes on where it stopped.

use std::time::Instant;

use serde_json::json;

use super::{Engine, Lab, NAMESPACE, applied, idle_peer, object, pass_rounds, status, times, wait_well};
use crate::fake_kube::{FakeKube, Kind, Verb, What};
use crate::harness::wait_for;

#[track_caller]
fn wait_leader(lab: &Lab) {
    wait_for(&format!("{} to lead", lab.identity), || if lab.leads() { Ok(()) } else { Err("it does not".to_owned()) });
}

#[test]
fn of_two_replicas_one_writes_and_the_other_goes_on_without_writing_again() {
    let kube = FakeKube::start();
    kube.put(object("llama"));
    let (peer, other_peer) = (idle_peer(), idle_peer());
    let mut first = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    wait_leader(&first);
    let second = Lab::start(&kube, "kvindexer-1", &[other_peer.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(2);
    (0..5).for_each(|_| engine.publish(&[&first, &second]));
    wait_well(&kube, "llama", 1);
    wait_for("the blocks to be told", || {
        let blocks = status(&kube, "llama")["blocks"].clone();
        if blocks == 5 { Ok(()) } else { Err(blocks.to_string()) }
    });
    assert!(!second.leads());
    let before = (applied(&kube), kube.get(Kind::IndexerWorkers, NAMESPACE, "llama").expect("there"));
    assert!(before.0.iter().all(|asked| asked.body["status"]["observedBy"] == "kvindexer-0"));
    first.end();
    let begin = Instant::now();
    wait_leader(&second);
    assert!(begin.elapsed() > times().lease / 4, "a Lease is not taken while it may be held");
    pass_rounds(&other_peer, 30);
    let after = (applied(&kube).len(), kube.get(Kind::IndexerWorkers, NAMESPACE, "llama").expect("there"));
    assert_eq!(after, (before.0.len(), before.1), "nothing has changed, nothing is written");
    let lease = kube.get(Kind::Leases, "kvindexer", "kvindexer").expect("there");
    assert_eq!(
        (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]),
        (&json!("kvindexer-1"), &json!(1))
    );
    // What changes is told by the next, and other transitions keep their times.
    let _more = Engine::start(&kube, "b");
    let status = wait_for("the second worker", || {
        let status = status(&kube, "llama");
        if status["workers"] == 2 { Ok(status) } else { Err(status.to_string()) }
    });
    assert_eq!(status["observedBy"], "kvindexer-1");
    assert_eq!(status["conditions"][0], after.1["status"]["conditions"][0], "Accepted did not flip");
}

#[test]
fn a_holder_that_restarts_goes_on_at_once_and_writes_nothing_twice() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    let mut lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(1);
    (0..5).for_each(|_| engine.publish(&[&lab]));
    wait_well(&kube, "llama", 1);
    wait_for("the blocks to be told", || {
        let blocks = status(&kube, "llama")["blocks"].clone();
        if blocks == 5 { Ok(()) } else { Err(blocks.to_string()) }
    });
    // A jump: its gap is counted, and stays counted.
    engine.next += 3;
    engine.publish(&[&lab]);
    wait_for("the gap to be told", || {
        let status = status(&kube, "llama");
        if status["gaps"] == 1 && status["trust"] == "Degraded" { Ok(()) } else { Err(status.to_string()) }
    });
    lab.end();
    let before = (applied(&kube).len(), status(&kube, "llama"));
    lab.follow(&kube);
    wait_leader(&lab);
    pass_rounds(&peer, 30);
    assert_eq!((applied(&kube).len(), status(&kube, "llama")), before);
    assert_eq!(kube.get(Kind::Leases, "kvindexer", "kvindexer").expect("there")["spec"]["leaseTransitions"], 0);
}

#[test]
fn who_does_not_serve_does_not_lead() {
    let kube = FakeKube::start();
    kube.put(object("llama"));
    let mut idle = Lab::prepare("kvindexer-0", &[]);
    idle.follow(&kube);
    wait_for("its lists", || {
        let lists = kube.count(Verb::List, Kind::IndexerWorkers);
        if lists > 0 { Ok(()) } else { Err("none".to_owned()) }
    });
    let second = Lab::start(&kube, "kvindexer-1", &[]);
    wait_leader(&second);
    assert!(!idle.leads());
}

#[test]
fn a_holder_that_cannot_renew_stops_writing_before_another_begins() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    wait_leader(&lab);
    kube.trouble(Kind::Leases, None, What::Status(500), None);
    let begin = Instant::now();
    wait_for("it to stop", || if lab.leads() { Err("it leads".to_owned()) } else { Ok(()) });
    assert!(begin.elapsed() < times().lease * 2, "{:?}", begin.elapsed());
    let before = applied(&kube).len();
    kube.put(object("more"));
    // Its requests for the Lease go on, its statuses do not.
    let asked = |kube: &FakeKube| kube.asked().iter().filter(|asked| asked.kind == Kind::Leases).count();
    let from = asked(&kube);
    wait_for("attempts", || if asked(&kube) > from + 4 { Ok(()) } else { Err("few".to_owned()) });
    assert_eq!(applied(&kube).len(), before);
    kube.heal();
    wait_leader(&lab);
    wait_for("the other object", || {
        let status = status(&kube, "more");
        if status.is_object() { Ok(()) } else { Err(status.to_string()) }
    });
}

#[test]
fn a_lease_that_another_took_is_not_fought_for() {
    let kube = FakeKube::start();
    let lab = Lab::start(&kube, "kvindexer-0", &[]);
    wait_leader(&lab);
    kube.edit(Kind::Leases, "kvindexer", "kvindexer", |lease| {
        lease["spec"]["holderIdentity"] = json!("kvindexer-2");
        lease["spec"]["leaseDurationSeconds"] = json!(3600);
    });
    wait_for("it to stop", || if lab.leads() { Err("it leads".to_owned()) } else { Ok(()) });
    let lease = kube.get(Kind::Leases, "kvindexer", "kvindexer").expect("there");
    assert_eq!(lease["spec"]["holderIdentity"], "kvindexer-2");
}
