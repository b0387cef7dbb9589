//! An API server that fails, refuses, forgets or is away.

use std::time::{Duration, Instant};

use kvindexer::controller::Times;
use serde_json::json;

use super::{Dir, Engine, Lab, MODEL, NS, annotated, follow, quick, wait_gpu};
use crate::fake_kube::{FakeKube, Kind, Verb, What};
use crate::harness::worker::tokens;
use crate::harness::{Service, wait_for};

#[track_caller]
fn wait_not_ready(service: &Service, with: &str) {
    wait_for(&format!("/ready to name {with}"), || {
        let reply = service.get("/ready");
        if reply.status == 503 && reply.text().contains(with) { Ok(()) } else { Err(reply.text()) }
    });
}

#[test]
fn f40_what_was_deleted_while_the_watch_was_closed_is_removed_by_the_fresh_list() {
    let lab = Lab::start(|kube| kube.put_all([annotated("a", "127.0.0.1", 1), annotated("b", "127.0.0.1", 2)]));
    lab.wait_workers(&["a", "b"]);
    lab.wait_current();
    lab.kube.trouble(Kind::Pods, Verb::List, What::Delay(Duration::from_millis(200)), Some(1));
    lab.kube.trouble(Kind::Pods, Verb::Watch, What::Status(410), Some(1));
    lab.kube.close_watches();
    lab.wait_view("the Pods to be unheard", |view| !view.current);
    lab.kube.delete(Kind::Pods, NS, "b");
    lab.kube.expire();
    lab.wait_workers(&["a"]);
    lab.wait_current();
    assert_eq!(lab.errors("pods", "gone"), 1);
    assert_eq!(lab.changes("removed"), 1);
}

#[test]
fn f40_a_watch_that_is_told_410_in_its_stream_lists_anew() {
    let lab = Lab::start(|kube| drop(kube.put(annotated("a", "127.0.0.1", 1))));
    lab.wait_workers(&["a"]);
    lab.wait_current();
    // Long enough for the end of the watch to be an ordinary one: it is taken up at the version that is forgotten.
    std::thread::sleep(Duration::from_millis(1_100));
    lab.kube.expire();
    lab.kube.close_watches();
    lab.wait_lists(Kind::Pods, 2);
    lab.wait_current();
    lab.wait_workers(&["a"]);
    assert!(lab.errors("pods", "gone") >= 1);
    assert_eq!(lab.changes("replaced") + lab.changes("removed"), 0);
}

#[test]
fn a_watch_that_ends_in_order_is_taken_up_without_a_list_and_without_a_doubt() {
    let lab = Lab::start(|kube| drop(kube.put(annotated("a", "127.0.0.1", 1))));
    lab.wait_current();
    std::thread::sleep(Duration::from_millis(1_100));
    lab.kube.close_watches();
    wait_for("the second watch", || match lab.kube.count(Verb::Watch, Kind::Pods) {
        2.. => Ok(()),
        other => Err(other.to_string()),
    });
    assert!(lab.view().current);
    lab.kube.put(annotated("b", "127.0.0.1", 2));
    lab.wait_workers(&["a", "b"]);
    assert_eq!(lab.kube.count(Verb::List, Kind::Pods), 1);
}

/// A tenth of the product's waits, for a tenth of the time; `watch::failure` has the whole times without a server.
#[test]
fn f44_a_server_that_fails_is_not_hammered() {
    let product = Times::default();
    let times = Times { retry_min: product.retry_min / 10, retry_max: product.retry_max / 10, ..quick() };
    let lab = Lab::start_with(times, |kube| kube.trouble(None, None, What::Status(500), None));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(50));
    }
    for kind in [Kind::Pods, Kind::IndexerWorkers] {
        let asked = lab.kube.count(Verb::List, kind) + lab.kube.count(Verb::Watch, kind);
        assert!((3..25).contains(&asked), "{asked} requests for {kind:?}");
    }
    lab.kube.heal();
    lab.wait_current();
}

#[test]
fn a_server_that_lists_and_refuses_to_be_watched_is_not_hammered_either() {
    let times = Times { retry_min: Duration::from_millis(80), retry_max: Duration::from_secs(3), ..quick() };
    let lab = Lab::start_with(times, |kube| {
        kube.put(annotated("a", "127.0.0.1", 1));
        kube.trouble(Kind::Pods, Verb::Watch, What::Status(403), None);
    });
    // The lists are complete: they count, but nobody hears what changes.
    lab.wait_workers(&["a"]);
    lab.wait_view("a complete view that is not current", |view| view.complete && !view.current);
    std::thread::sleep(Duration::from_secs(2));
    let asked = lab.kube.count(Verb::List, Kind::Pods) + lab.kube.count(Verb::Watch, Kind::Pods);
    assert!(asked < 25, "{asked} requests");
    let trouble = lab.view().trouble.unwrap();
    assert!(trouble.contains("role lacks `watch` on pods in all namespaces"), "{trouble}");
}

#[test]
fn a_refusal_is_loud_names_the_right_and_holds_readiness_back_at_the_start_only() {
    let (kube, dir) = (FakeKube::start(), Dir::new("forbidden"));
    kube.trouble(Kind::IndexerWorkers, Verb::List, What::Status(403), None);
    let service = follow(&kube, &dir, &[]);
    let right = "role lacks `list` on indexerworkers.kvindexer.io in all namespaces";
    wait_not_ready(&service, right);
    wait_for("three refusals", || {
        let refused = service
            .metric("kvindexer_kubernetes_watch_errors_total", &[("kind", "indexerworkers"), ("reason", "forbidden")]);
        if refused >= 3.0 { Ok(()) } else { Err(refused.to_string()) }
    });
    let said = service.log().iter().filter(|line| line.contains("ERROR") && line.contains(right)).count();
    assert_eq!(said, 1, "{:?}", service.log());
    kube.heal();
    service.wait_ready();
    kube.trouble(None, None, What::Status(403), None);
    kube.close_watches();
    wait_for("the note", || {
        let ready = service.get("/ready");
        assert_eq!(ready.status, 200, "{}", ready.text());
        if ready.text().contains("role lacks") { Ok(()) } else { Err(ready.text()) }
    });
}

#[test]
fn a_server_that_is_away_at_the_start_is_waited_for() {
    let (mut kube, dir) = (FakeKube::start(), Dir::new("away"));
    kube.put(annotated("a", "127.0.0.1", 1));
    kube.stop();
    let service = follow(&kube, &dir, &[]);
    wait_not_ready(&service, "kubernetes: pods: ");
    assert_eq!(service.post("/query", &json!({"model_name": MODEL, "token_ids": [1]})).status, 503);
    kube.start_again();
    service.wait_ready();
    assert_eq!(service.workers(MODEL).len(), 1);
}

#[test]
fn a_replica_that_starts_while_the_server_is_away_serves_what_its_peer_knows() {
    let (mut kube, dir, mut engine) = (FakeKube::start(), Dir::new("away-peer"), Engine::at("127.0.0.1"));
    kube.put_all([engine.pod("a"), annotated("b", "127.0.0.1", 1)]);
    let first = follow(&kube, &dir, &[]);
    first.wait_ready();
    engine.publisher.wait_subscribed();
    engine.store(1, &tokens(0, 4));
    wait_gpu(&first, MODEL, "a", &tokens(0, 4), Some(4));
    kube.stop();
    let second = follow(&kube, &dir, &["--peers", &first.url()]);
    second.wait_ready();
    let ready = second.get("/ready").text();
    assert!(ready.contains("kubernetes"), "{ready}");
    wait_gpu(&second, MODEL, "a", &tokens(0, 4), Some(4));
    let reasons = |service: &Service, pod: &str| {
        service.listener(MODEL, "default", &format!("{NS}/{pod}"), 0).unwrap_or_default()["trust"].to_string()
    };
    assert!(reasons(&second, "a").contains("unconfirmed"), "{}", reasons(&second, "a"));
    // One of them went meanwhile.
    kube.delete(Kind::Pods, NS, "b");
    kube.start_again();
    wait_for("the list to confirm one and to remove the other", || {
        let (left, why) = (second.workers(MODEL).len(), reasons(&second, "a"));
        if left == 1 && !why.contains("unconfirmed") { Ok(()) } else { Err(format!("{left} workers, {why}")) }
    });
    wait_gpu(&second, MODEL, "a", &tokens(0, 4), Some(4));
}

#[test]
fn a_worker_that_reconnects_while_nobody_watches_is_doubted_until_a_list_confirms_it() {
    let mut engine = Engine::at("127.0.0.1");
    let mut lab = Lab::start(|kube| drop(kube.put(engine.pod("a"))));
    lab.wait_current();
    engine.publisher.wait_subscribed();
    engine.store(1, &tokens(0, 4));
    lab.wait_rank("a", "the block", |rank| rank.stream.last_seq.is_some() && !Lab::is_doubted(rank));
    lab.kube.stop();
    lab.wait_view("the loss to be noticed", |view| view.complete && !view.current);
    let port = engine.port;
    drop(engine);
    lab.wait_rank("a", "the disconnection", |rank| rank.stream.last_error.is_some());
    let engine = Engine::at_port("127.0.0.1", port);
    engine.publisher.wait_subscribed();
    lab.wait_rank("a", "the doubt", Lab::is_doubted);
    lab.kube.start_again();
    lab.wait_current();
    lab.wait_rank("a", "the confirmation", |rank| !Lab::is_doubted(rank));
    assert_eq!(lab.changes("replaced"), 0);
}

#[test]
fn an_address_that_another_pod_got_while_nobody_watched_is_doubted_and_then_left() {
    let mut engine = Engine::at("127.0.0.1");
    let mut lab = Lab::start(|kube| drop(kube.put(engine.pod("a"))));
    lab.wait_current();
    engine.publisher.wait_subscribed();
    engine.store(1, &tokens(0, 4));
    lab.wait_rank("a", "the block", |rank| rank.stream.last_seq.is_some());
    lab.kube.stop();
    lab.wait_view("the loss to be noticed", |view| !view.current);
    lab.kube.delete(Kind::Pods, NS, "a");
    let mut heir = engine.pod("b");
    heir["metadata"]["annotations"]["kvindexer.io/model"] = json!("other");
    lab.kube.put(heir);
    let port = engine.port;
    drop(engine);
    lab.wait_rank("a", "the disconnection", |rank| rank.stream.last_error.is_some());
    let engine = Engine::at_port("127.0.0.1", port);
    engine.publisher.wait_subscribed();
    lab.wait_rank("a", "the doubt", Lab::is_doubted);
    lab.kube.start_again();
    lab.wait_workers(&["b"]);
    lab.wait_rank("b", "an heir without doubt and without blocks", |rank| {
        !Lab::is_doubted(rank) && rank.report.blocks.iter().all(|count| *count == 0)
    });
}

#[test]
fn a_doubt_outlives_decisions_that_rest_on_an_old_list() {
    let mut engine = Engine::at("127.0.0.1");
    let lab = Lab::start(|kube| drop(kube.put(engine.pod("a"))));
    lab.wait_current();
    engine.publisher.wait_subscribed();
    engine.store(1, &tokens(0, 4));
    lab.wait_rank("a", "the block", |rank| rank.stream.last_seq.is_some());
    // Pods cannot be heard, objects can.
    lab.kube.trouble(Kind::Pods, None, What::Status(500), None);
    lab.kube.close_watches();
    lab.wait_view("the loss to be noticed", |view| !view.current);
    let port = engine.port;
    drop(engine);
    lab.wait_rank("a", "the disconnection", |rank| rank.stream.last_error.is_some());
    let engine = Engine::at_port("127.0.0.1", port);
    engine.publisher.wait_subscribed();
    lab.wait_rank("a", "the doubt", Lab::is_doubted);
    let mut fixed = super::object("fixed", MODEL, 1);
    let spec = fixed["spec"].as_object_mut().unwrap();
    spec.retain(|field, _| field == "modelName" || field == "blockSize");
    spec.insert("endpoints".to_owned(), json!([{"instanceId": "box", "address": "tcp://127.0.0.1:1"}]));
    lab.kube.put(fixed);
    wait_for("the fixed endpoint", || if lab.changes("added") == 2 { Ok(()) } else { Err("not yet".to_owned()) });
    assert!(lab.rank("a").is_some_and(|rank| Lab::is_doubted(&rank)), "nobody has listed the Pods since");
    lab.kube.heal();
    lab.wait_rank("a", "the confirmation", |rank| !Lab::is_doubted(rank));
}

#[test]
fn a_connection_that_is_dropped_or_never_answers_is_an_error_like_others() {
    let times = Times { answer: Duration::from_millis(200), ..quick() };
    let lab = Lab::start_with(times, |kube| {
        kube.put(annotated("a", "127.0.0.1", 1));
        kube.trouble(Kind::Pods, Verb::List, What::Delay(Duration::from_secs(30)), Some(1));
        kube.trouble(Kind::IndexerWorkers, Verb::List, What::Drop, Some(2));
    });
    lab.wait_workers(&["a"]);
    lab.wait_current();
    assert_eq!((lab.errors("pods", "unreachable"), lab.errors("indexerworkers", "unreachable")), (1, 2));
}

#[test]
fn a_watch_that_is_dead_is_given_up() {
    // Ten seconds of margin come on top: the test costs a little more than that.
    let times = Times { watch: Duration::from_secs(1), ..quick() };
    let lab = Lab::start_with(times, |kube| drop(kube.put(annotated("a", "127.0.0.1", 1))));
    lab.wait_current();
    lab.kube.trouble(Kind::Pods, Verb::Watch, What::Delay(Duration::from_secs(60)), Some(1));
    lab.kube.close_watches();
    lab.wait_view("the silence to be noticed", |view| {
        let why = view.trouble.as_deref().unwrap_or_default();
        !view.current && why.contains("pods: unreachable: ")
    });
    lab.wait_current();
    assert!(lab.errors("pods", "unreachable") >= 1);
}

#[test]
fn workers_that_go_by_more_than_half_go_with_a_warning() {
    let (kube, dir) = (FakeKube::start(), Dir::new("half"));
    kube.put_all((0..4).map(|number| annotated(&format!("p{number}"), "127.0.0.1", 1 + number)));
    let service = follow(&kube, &dir, &[]);
    service.wait_ready();
    assert_eq!(service.workers(MODEL).len(), 4);
    // All of them in one list.
    kube.trouble(Kind::Pods, Verb::List, What::Delay(Duration::from_millis(300)), Some(1));
    kube.trouble(Kind::Pods, Verb::Watch, What::Status(410), Some(1));
    kube.close_watches();
    wait_for("the loss", || match service.metric("kvindexer_kubernetes_watch_current", &[("kind", "pods")]) {
        seen if seen < 1.0 => Ok(()),
        seen => Err(seen.to_string()),
    });
    (0..3).for_each(|number| assert!(kube.delete(Kind::Pods, NS, &format!("p{number}"))));
    wait_for("one worker", || match service.workers(MODEL).len() {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    service.has_logged(|line| line.contains("over half of the workers went at once")).unwrap();
}
