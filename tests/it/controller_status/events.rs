//! Kubernetes Events: about what happened since the Lease was taken, and not too many.

use serde_json::{Value, json};

use super::{Engine, Lab, NAMESPACE, idle_peer, object, pass_rounds, status, wait_well};
use crate::fake_kube::{FakeKube, Kind, Verb, What};
use crate::harness::{msgpack, wait_for};

/// `reason kind/name related: note`, sorted.
fn events(kube: &FakeKube) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut events: Vec<String> = kube
        .all(Kind::Events)
        .iter()
        .map(|event| {
            let (of, related) = (&event["regarding"], &event["related"]["name"]);
            format!("{} {}/{} {}", text(&event["reason"]), text(&of["kind"]), text(&of["name"]), text(related))
        })
        .collect();
    events.sort();
    events
}

#[track_caller]
fn wait_events(kube: &FakeKube, want: &[&str]) {
    wait_for(&format!("events {want:?}"), || {
        let seen = events(kube);
        if seen == want { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

#[test]
fn gaps_restarts_and_block_sizes_are_told_of_the_object_and_its_pod() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(1);
    engine.publish(&[&lab]);
    wait_well(&kube, "llama", 1);
    pass_rounds(&peer, 3);
    engine.next += 5;
    engine.publish(&[&lab]);
    wait_events(&kube, &["Gap IndexerWorker/llama a"]);
    engine.next = 0;
    engine.publish(&[&lab]);
    wait_events(&kube, &["Gap IndexerWorker/llama a", "Restarted IndexerWorker/llama a"]);
    // No multiple of the index's four tokens.
    let tokens: Vec<u32> = (0..6).collect();
    engine.publisher.batch(1, json!([msgpack::stored(&[9], None, &tokens)]));
    let all =
        ["BlockSizeMismatch IndexerWorker/llama a", "Gap IndexerWorker/llama a", "Restarted IndexerWorker/llama a"];
    wait_events(&kube, &all);
    // More of the same within a minute waits.
    engine.next = 20;
    engine.publish(&[&lab]);
    pass_rounds(&peer, 30);
    wait_events(&kube, &all);
    let gap = kube.all(Kind::Events).into_iter().find(|event| event["reason"] == "Gap").expect("there");
    assert_eq!(
        gap["regarding"]["uid"],
        kube.get(Kind::IndexerWorkers, NAMESPACE, "llama").expect("there")["metadata"]["uid"]
    );
    assert_eq!(gap["related"]["uid"], kube.get(Kind::Pods, NAMESPACE, "a").expect("there")["metadata"]["uid"]);
    assert_eq!((&gap["type"], &gap["reportingInstance"]), (&json!("Warning"), &json!("kvindexer-0")));
    assert!(gap["eventTime"].is_string() && gap["action"].is_string() && gap["reportingController"].is_string());
}

#[test]
fn what_happened_before_a_take_over_is_not_told_again() {
    let kube = FakeKube::start();
    kube.put(object("llama"));
    kube.put(object("younger"));
    let (peer, other_peer) = (idle_peer(), idle_peer());
    let mut first = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    wait_for("the first to lead", || if first.leads() { Ok(()) } else { Err("not yet".to_owned()) });
    let second = Lab::start(&kube, "kvindexer-1", &[other_peer.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(2);
    engine.publish(&[&first, &second]);
    pass_rounds(&peer, 3);
    engine.next += 5;
    engine.publish(&[&first, &second]);
    let told = ["Gap IndexerWorker/llama a", "PodAlreadyClaimed IndexerWorker/younger a"];
    wait_events(&kube, &told);
    first.end();
    wait_for("the second to lead", || if second.leads() { Ok(()) } else { Err("not yet".to_owned()) });
    pass_rounds(&other_peer, 20);
    wait_events(&kube, &told);
    assert!(kube.all(Kind::Events).iter().all(|event| event["series"].is_null()), "not even as a repetition");
}

#[test]
fn a_wrong_annotation_is_told_on_the_pod() {
    let kube = FakeKube::start();
    let _lab = Lab::start(&kube, "kvindexer-0", &[]);
    let _engine = Engine::start(&kube, "a");
    kube.edit(Kind::Pods, NAMESPACE, "a", |pod| {
        pod["metadata"]["labels"] = json!({"kvindexer.io/enabled": "true"});
        pod["metadata"]["annotations"] = json!({
            "kvindexer.io/model": "m", "kvindexer.io/event-port": "kv", "kvindexer.io/block-size": "many",
        });
    });
    wait_events(&kube, &["InvalidAnnotation Pod/a -"]);
    let event = &kube.all(Kind::Events)[0];
    assert_eq!(event["metadata"]["namespace"], NAMESPACE);
    assert!(event["note"].as_str().expect("a text").contains("block-size"), "{event}");
}

#[test]
fn events_that_cannot_be_written_cost_nothing_else() {
    let (kube, peer) = (FakeKube::start(), idle_peer());
    kube.put(object("llama"));
    kube.put(object("younger"));
    kube.trouble(Kind::Events, None, What::Status(403), None);
    let lab = Lab::start(&kube, "kvindexer-0", &[peer.url()]);
    let mut engine = Engine::start(&kube, "a");
    engine.wait_heard(1);
    engine.publish(&[&lab]);
    wait_well(&kube, "llama", 1);
    wait_for("a failure to be counted", || {
        let failed = lab.metrics.events.with_label_values(&["failed"]).get();
        if failed > 0 { Ok(()) } else { Err("none".to_owned()) }
    });
    pass_rounds(&peer, 20);
    assert!(kube.count(Verb::Create, Kind::Events) <= 2, "it is not tried again and again");
    assert!(status(&kube, "younger")["conditions"][0]["reason"] == "PodAlreadyClaimed");
}
