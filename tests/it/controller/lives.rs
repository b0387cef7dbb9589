//! Lives of Pods and containers as the built binary answers for them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Dir, Engine, MODEL, NS, annotated, bare, follow, gpu, object, restarted, wait_gpu};
use crate::fake_kube::{FakeKube, Kind};
use crate::harness::worker::tokens;
use crate::harness::{Service, compare, wait_for, wait_within};

/// One Pod that has stored a block, and a service that knows it.
struct Story {
    kube: FakeKube,
    service: Service,
    engine: Engine,
    _dir: Dir,
}

impl Story {
    fn begin(name: &str) -> Self {
        let (kube, dir, mut engine) = (FakeKube::start(), Dir::new(name), Engine::at("127.0.0.1"));
        kube.put(engine.pod("a"));
        let service = follow(&kube, &dir, &[]);
        service.wait_ready();
        engine.publisher.wait_subscribed();
        engine.store(1, &tokens(0, 4));
        wait_gpu(&service, MODEL, "a", &tokens(0, 4), Some(4));
        Self { kube, service, engine, _dir: dir }
    }

    #[track_caller]
    fn wait_gpu(&self, pod: &str, prompt: &[u32], want: Option<u64>) {
        wait_gpu(&self.service, MODEL, pod, prompt, want);
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        self.kube.edit(Kind::Pods, NS, "a", edit);
    }

    /// Waits until a change of another Pod is seen: what was changed before it has been seen too.
    #[track_caller]
    fn wait_seen(&self, marker: &str) {
        self.kube.put(annotated(marker, "127.0.0.1", 1));
        wait_for("the marker Pod", || {
            let listed = self.service.workers(MODEL).iter().any(|it| it["instance_id"] == format!("{NS}/{marker}"));
            if listed { Ok(()) } else { Err("not there".to_owned()) }
        });
    }
}

#[test]
fn f39_a_deleted_pod_is_gone_and_scores_nothing_within_two_seconds() {
    let story = Story::begin("f39");
    let deleted = Instant::now();
    story.kube.delete(Kind::Pods, NS, "a");
    wait_within(Duration::from_secs(2), "the Pod to be gone", || {
        let left = story.service.workers(MODEL);
        let scored = gpu(&story.service, MODEL, "a", &tokens(0, 4));
        if left.is_empty() && scored.is_none() { Ok(()) } else { Err(format!("{left:?}, {scored:?}")) }
    });
    assert!(deleted.elapsed() < Duration::from_secs(2));
}

#[test]
fn f39_a_pod_that_is_being_deleted_is_gone_at_once() {
    let story = Story::begin("f39-deleting");
    story.edit(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-30T12:00:30Z"));
    story.wait_gpu("a", &tokens(0, 4), None);
}

#[test]
fn f41_a_readiness_blip_keeps_blocks_and_connection() {
    let mut story = Story::begin("f41");
    for ready in ["False", "True"] {
        story.edit(|pod| {
            pod["status"]["conditions"][0]["status"] = json!(ready);
            pod["status"]["containerStatuses"][0]["ready"] = json!(ready == "True");
        });
    }
    story.wait_seen("b");
    assert_eq!(gpu(&story.service, MODEL, "a", &tokens(0, 4)), Some(4));
    assert!(story.engine.publisher.is_undisturbed(), "nobody subscribed again");
    story.engine.store(2, &tokens(100, 4));
    story.wait_gpu("a", &tokens(100, 4), Some(4));
}

#[test]
fn f42_the_same_name_at_another_address_is_heard_there_and_begins_empty() {
    let story = Story::begin("f42");
    let mut moved = Engine::at_port("127.0.0.2", story.engine.port);
    story.kube.delete(Kind::Pods, NS, "a");
    let mut pod = moved.pod("a");
    restarted(&mut pod, 7);
    story.kube.put(pod);
    moved.publisher.wait_subscribed();
    story.wait_gpu("a", &tokens(0, 4), Some(0));
    moved.store(5, &tokens(50, 4));
    story.wait_gpu("a", &tokens(50, 4), Some(4));
    let listener = story.service.listener(MODEL, "default", &format!("{NS}/a"), 0).unwrap();
    assert_eq!(listener["endpoint"], format!("tcp://127.0.0.2:{}", moved.port));
}

#[test]
fn f43_a_pod_that_gets_the_address_of_another_begins_at_nothing() {
    let mut story = Story::begin("f43");
    story.kube.delete(Kind::Pods, NS, "a");
    let mut heir = annotated("b", story.engine.ip, story.engine.port);
    heir["metadata"]["annotations"]["kvindexer.io/model"] = json!("other");
    story.kube.put(heir);
    // The publisher is the same process to us: only what it says from here on is the heir's.
    story.engine.publisher.wait_subscribed();
    wait_gpu(&story.service, "other", "b", &tokens(0, 4), Some(0));
    story.engine.store(9, &tokens(60, 4));
    wait_gpu(&story.service, "other", "b", &tokens(60, 4), Some(4));
    story.wait_gpu("a", &tokens(0, 4), None);
    assert_eq!(gpu(&story.service, "other", "b", &tokens(0, 4)), Some(0), "nothing of the Pod before");
}

#[test]
fn a_container_that_restarts_in_silence_loses_its_blocks() {
    let mut story = Story::begin("silent-restart");
    story.edit(|pod| restarted(pod, 1));
    story.wait_gpu("a", &tokens(0, 4), Some(0));
    story.engine.next = 0;
    story.engine.store(3, &tokens(30, 4));
    story.wait_gpu("a", &tokens(30, 4), Some(4));
    // The same container again, with other news about the Pod: nothing is cleared.
    story.edit(|pod| pod["metadata"]["labels"]["more"] = json!("yes"));
    story.wait_seen("b");
    assert_eq!(gpu(&story.service, MODEL, "a", &tokens(30, 4)), Some(4));
}

#[test]
fn a_container_that_is_down_scores_nothing_and_is_stale() {
    let story = Story::begin("down");
    story.edit(|pod| {
        pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    });
    story.wait_gpu("a", &tokens(0, 4), Some(0));
    wait_for("container_down", || {
        let listener = story.service.listener(MODEL, "default", &format!("{NS}/a"), 0).unwrap_or_default();
        let want = json!({"state": "stale", "reasons_include": ["container_down"]});
        compare::trust(&listener, &want).map_err(|error| format!("{error} in {listener}"))
    });
}

#[test]
fn labels_that_stop_matching_remove_and_an_object_brings_back() {
    let story = Story::begin("labels");
    story.edit(|pod| pod["metadata"]["labels"] = json!({"app": "llama"}));
    story.wait_gpu("a", &tokens(0, 4), None);
    story.kube.put(object("llama", "claimed", story.engine.port));
    story.engine.publisher.wait_subscribed();
    wait_gpu(&story.service, "claimed", "a", &tokens(0, 4), Some(0));
    story.kube.delete(Kind::IndexerWorkers, NS, "llama");
    wait_gpu(&story.service, "claimed", "a", &tokens(0, 4), None);
}

#[test]
fn f47_an_object_has_no_finalizer_and_does_not_come_back_when_it_was_deleted_while_nobody_ran() {
    let (kube, dir, engine) = (FakeKube::start(), Dir::new("f47"), Engine::at("127.0.0.1"));
    let mut pod = bare("a", engine.ip);
    pod["metadata"]["labels"] = json!({"app": "llama"});
    kube.put(pod);
    kube.put(object("llama", MODEL, engine.port));
    let mut service = follow(&kube, &dir, &[]);
    service.wait_ready();
    engine.publisher.wait_subscribed();
    let seen = kube.get(Kind::IndexerWorkers, NS, "llama").unwrap();
    assert_eq!(seen["metadata"]["finalizers"], Value::Null);
    service.terminate();
    assert!(kube.delete(Kind::IndexerWorkers, NS, "llama"), "nothing holds it");
    let service = follow(&kube, &dir, &[]);
    service.wait_ready();
    assert_eq!(service.workers(MODEL), [Value::Null; 0]);
}

#[test]
fn workers_of_kubernetes_are_not_changed_by_hand_and_others_are_left_alone() {
    let story = Story::begin("by-hand");
    let by_hand = Engine::at("127.0.0.1");
    let body = json!({"instance_id": 7, "model_name": MODEL, "block_size": 4, "endpoint": by_hand.publisher.endpoint});
    assert_eq!(story.service.post("/register", &body).status, 201);
    let body = json!({"instance_id": format!("{NS}/a"), "model_name": MODEL});
    let reply = story.service.post("/unregister", &body);
    assert_eq!((reply.status, reply.code().as_str()), (409, "owned_by_kubernetes"));
    story.kube.delete(Kind::Pods, NS, "a");
    story.wait_gpu("a", &tokens(0, 4), None);
    let left: Vec<Value> = story.service.workers(MODEL).iter().map(|it| it["instance_id"].clone()).collect();
    assert_eq!(left, [json!(7)]);
}

#[test]
fn each_namespace_to_watch_is_listed_by_itself_and_no_other_is_seen() {
    let (kube, dir) = (FakeKube::start(), Dir::new("namespaces"));
    for (namespace, name) in [(NS, "a"), ("other", "b"), ("third", "c")] {
        let mut pod = annotated(name, "127.0.0.1", 1);
        pod["metadata"]["namespace"] = json!(namespace);
        kube.put(pod);
    }
    let service = follow(&kube, &dir, &["--watch-namespaces", "serving,other"]);
    service.wait_ready();
    let seen: Vec<Value> = service.workers(MODEL).iter().map(|it| it["instance_id"].clone()).collect();
    assert_eq!(seen, [json!("other/b"), json!("serving/a")]);
    let asked = kube.asked().into_iter().filter(|asked| matches!(asked.kind, Kind::Pods | Kind::IndexerWorkers));
    let namespaces: BTreeSet<Option<String>> = asked.map(|asked| asked.namespace).collect();
    assert_eq!(namespaces, ["other", NS].map(|name| Some(name.to_owned())).into());
}
