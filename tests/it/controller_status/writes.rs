//! What is written, when, and how failures are borne.

use std::time::{Duration, Instant};

use kvindexer::wire::digest::Phase;
use serde_json::{Value, json};

use super::{Engine, Lab, NAMESPACE, WELL, applied, idle_peer, object, pass_rounds, said, status, times, wait_well};
use crate::fake_kube::{FakeKube, Kind, Verb, What};
use crate::harness::wait_for;

#[test]
fn f46_nothing_is_written_while_nothing_changes_although_batches_arrive() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    let mut engines = ["a", "b", "c"].map(|pod| Engine::start(&kube, pod));
    for engine in &mut engines {
        engine.wait_heard(1);
        (0..20).for_each(|_| engine.publish(&[&lab]));
    }
    let first = wait_well(&kube, "llama", 3);
    assert_eq!((&first["observedBy"], &first["trust"]), (&json!("kvindexer-0"), &json!("Exact")));
    wait_for("the blocks to be told", || {
        let blocks = status(&kube, "llama")["blocks"].clone();
        if blocks == 60 { Ok(()) } else { Err(blocks.to_string()) }
    });
    let before = (applied(&kube).len(), kube.get(Kind::IndexerWorkers, NAMESPACE, "llama"));
    let objects = kube.count(Verb::List, Kind::IndexerWorkers);
    // Sequence numbers move on, the number of blocks by less than a tenth.
    for engine in &mut engines {
        engine.publish(&[&lab]);
    }
    pass_rounds(&peer, 40);
    let after = (applied(&kube).len(), kube.get(Kind::IndexerWorkers, NAMESPACE, "llama"));
    assert_eq!(after, before);
    assert_eq!(kube.count(Verb::List, Kind::IndexerWorkers), objects, "a status is no reason to list again");
}

#[test]
fn f46_an_object_is_written_at_most_once_in_its_time_however_often_it_flips() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    let mut engines = ["a", "b"].map(|pod| Engine::start(&kube, pod));
    for engine in &mut engines {
        engine.wait_heard(1);
        engine.publish(&[&lab]);
    }
    wait_well(&kube, "llama", 2);
    let (before, begin) = (applied(&kube).len(), Instant::now());
    for round in 0..80 {
        kube.edit(Kind::Pods, NAMESPACE, "b", |pod| {
            pod["metadata"]["labels"] = if round % 2 == 0 { json!({}) } else { json!({"app": "vllm"}) };
        });
        pass_rounds(&peer, 1);
    }
    let writes = applied(&kube).len() - before;
    // One at either end may belong to the time before and after.
    let most = begin.elapsed().as_millis() / times().status_min.as_millis() + 2;
    assert!(writes > 3, "flips are told: {writes}");
    assert!(writes as u128 <= most, "{writes} writes, at most {most}");
}

#[test]
fn a_status_is_one_apply_with_one_manager_and_force() {
    let kube = FakeKube::start();
    kube.put(object("llama"));
    let lab = Lab::start(&kube, "kvindexer-0", &[]);
    wait_for("a status", || {
        let status = status(&kube, "llama");
        if status.is_object() { Ok(()) } else { Err(said(&status)) }
    });
    let first = &applied(&kube)[0];
    assert!(
        first.status_only && first.query.contains("fieldManager=kvindexer") && first.query.contains("force=true"),
        "{first:?}"
    );
    assert_eq!(
        first.body["metadata"],
        json!({"name": "llama", "namespace": NAMESPACE}),
        "nothing but the status is ours"
    );
    assert!(first.body["spec"].is_null());
    let stored = kube.get(Kind::IndexerWorkers, NAMESPACE, "llama").expect("there");
    assert_eq!(stored["metadata"]["generation"], 1);
    assert!(stored["metadata"]["finalizers"].is_null());
    drop(lab);
}

#[test]
fn an_object_that_cannot_be_read_is_told_so_on_itself_and_harms_no_other() {
    let kube = FakeKube::start();
    let mut wrong = object("wrong");
    wrong["spec"]["blockSize"] = json!("many");
    kube.put(wrong);
    kube.put(object("llama"));
    let lab = Lab::start(&kube, "kvindexer-0", &[]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(1);
    engine.publish(&[&lab]);
    wait_well(&kube, "llama", 1);
    wait_for("the other to be refused", || {
        let status = status(&kube, "wrong");
        if said(&status).starts_with("Accepted:False/Unreadable ") { Ok(()) } else { Err(status.to_string()) }
    });
}

#[test]
fn a_refused_status_is_counted_and_tried_again_ever_more_slowly() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    kube.trouble(Kind::IndexerWorkers, Verb::Apply, What::Status(403), None);
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(1);
    engine.publish(&[&lab]);
    wait_for("refusals to be counted", || {
        let refused = lab.writes("forbidden");
        if refused > 0 { Ok(()) } else { Err("none".to_owned()) }
    });
    let begin = Instant::now();
    pass_rounds(&peer, 30);
    let (tried, most) = (applied(&kube).len() as u64, 7 + begin.elapsed().as_secs());
    assert!(tried <= most, "{tried} attempts, at most {most}");
    assert!(lab.leads() && lab.rank("a").is_some(), "the rest goes on");
    kube.heal();
    wait_well(&kube, "llama", 1);
}

#[test]
fn an_api_server_that_fails_is_asked_by_one_object_at_a_time() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put_all((0..30).map(|number| object(&format!("o{number:02}"))));
    kube.trouble(Kind::IndexerWorkers, Verb::Apply, What::Status(503), None);
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    wait_for("failures to be counted", || {
        let failed = lab.writes("failed");
        if failed > 8 { Ok(()) } else { Err(failed.to_string()) }
    });
    let before = applied(&kube).len();
    let start = Instant::now();
    pass_rounds(&peer, 20);
    // One every quarter of a second is the slowest; the first waits are shorter.
    let most = 8 + start.elapsed().as_millis() as usize / 100;
    let tried = applied(&kube).len() - before;
    assert!(tried <= most, "{tried} attempts, at most {most}");
    kube.heal();
    wait_for("all to be written", || {
        let missing = (0..30).filter(|number| status(&kube, &format!("o{number:02}")).is_null()).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} missing")) }
    });
}

#[test]
fn an_object_that_is_deleted_meanwhile_is_no_trouble_and_one_made_anew_gets_its_own_status() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    kube.put(object("other"));
    // The object goes while its status is on the way.
    kube.trouble(Kind::IndexerWorkers, Verb::Apply, What::Delay(Duration::from_millis(300)), Some(2));
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    wait_for("writes to be on their way", || {
        let writes = applied(&kube).len();
        if writes == 2 { Ok(()) } else { Err(writes.to_string()) }
    });
    kube.delete(Kind::IndexerWorkers, NAMESPACE, "llama");
    wait_for("the write to end", || {
        let missed = lab.writes("not_found");
        if missed == 1 { Ok(()) } else { Err(missed.to_string()) }
    });
    pass_rounds(&peer, 30);
    assert_eq!(lab.writes("not_found"), 1, "what is gone is not asked for again");
    assert!(status(&kube, "other").is_object());
    kube.put(object("llama"));
    wait_for("the next one to be told", || {
        let status = status(&kube, "llama");
        if status.is_object() { Ok(()) } else { Err(status.to_string()) }
    });
}

#[test]
fn a_slow_object_holds_no_other_back() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("slow"));
    kube.trouble(Kind::IndexerWorkers, Verb::Apply, What::Delay(Duration::from_secs(60)), Some(1));
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    wait_for("the first write", || if applied(&kube).is_empty() { Err("none".to_owned()) } else { Ok(()) });
    kube.put_all((0..20).map(|number| object(&format!("o{number:02}"))));
    wait_for("the others", || {
        let missing = (0..20).filter(|number| status(&kube, &format!("o{number:02}")).is_null()).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} missing")) }
    });
    assert!(status(&kube, "slow").is_null());
    drop(lab);
}

#[test]
fn replicas_that_differ_or_lack_a_worker_are_named() {
    let kube = FakeKube::start();
    kube.put(object("llama"));
    // Another replica that hears the same engine; its own Lease keeps it from writing here first.
    kube.put(json!({"kind": "Lease", "metadata": {"namespace": "kvindexer", "name": "other"},
                    "spec": {"holderIdentity": "nobody", "leaseDurationSeconds": 3600}}));
    let mut other = Lab::prepare("kvindexer-1", &[]);
    other.replica.set_phase(Phase::Ready);
    other.follow_with_lease(&kube, "other");
    let there = other.as_peer();
    let lab = Lab::start(&kube, "kvindexer-0", &[there.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(2);
    (0..10).for_each(|_| engine.publish(&[&lab, &other]));
    wait_well(&kube, "llama", 1);
    // The other replica stops to follow, and loses the worker by hand.
    other.end();
    other.forget();
    let status = wait_for("the lack to be told", || {
        let status = status(&kube, "llama");
        if said(&status).contains("InSync:False/NotOnEveryReplica") { Ok(status) } else { Err(status.to_string()) }
    });
    let message = status["conditions"][3]["message"].as_str().expect("a text");
    assert!(message.contains("serving/a rank 0 (kvindexer-1: not_on_every_replica)"), "{message}");
    assert_eq!((&status["workers"], &status["ready"], &status["trust"]), (&json!(1), &json!(0), &json!("Stale")));
    drop(there);
    wait_for("silence to be told", || {
        let status = status_text(&kube);
        if status.contains("InSync:Unknown/ReplicaUnreachable") { Ok(()) } else { Err(status) }
    });
    assert!(status_text(&kube).starts_with(WELL.split(" InSync").next().expect("a text")));
}

fn status_text(kube: &FakeKube) -> String {
    let status: Value = status(kube, "llama");
    said(&status)
}
