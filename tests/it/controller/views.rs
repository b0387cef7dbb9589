//! Which lists count: half a view, a slow list, a kind that is missing, objects that cannot be read.

use std::time::Duration;

use serde_json::json;

use super::{Engine, Lab, NS, annotated, bare, object};
use crate::fake_kube::{Kind, Verb, What};
use crate::harness::wait_for;

#[test]
fn half_a_view_decides_nothing() {
    let lab = Lab::start(|kube| {
        kube.put(annotated("a", "127.0.0.1", 1));
        kube.trouble(Kind::IndexerWorkers, Verb::List, What::Status(500), None);
    });
    lab.wait_lists(Kind::IndexerWorkers, 3);
    wait_for(
        "the watch of Pods",
        || if lab.kube.open_watches(Kind::Pods) == 1 { Ok(()) } else { Err("no".to_owned()) },
    );
    let view = lab.view();
    assert!(!view.complete && !view.current, "{view:?}");
    assert!(view.trouble.as_deref().is_some_and(|why| why.starts_with("indexerworkers: ")), "{view:?}");
    assert_eq!(lab.workers(), [""; 0]);
    lab.kube.heal();
    lab.wait_current();
    lab.wait_workers(&["a"]);
    assert_eq!(lab.view().trouble, None);
}

#[test]
fn a_slow_first_list_is_waited_for() {
    let lab = Lab::start(|kube| {
        kube.put(annotated("a", "127.0.0.1", 1));
        kube.trouble(Kind::Pods, Verb::List, What::Delay(Duration::from_millis(400)), Some(1));
    });
    lab.wait_view("objects only", |view| !view.complete);
    wait_for("the objects", || match lab.kube.open_watches(Kind::IndexerWorkers) {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    assert!(!lab.view().complete && lab.workers().is_empty());
    lab.wait_workers(&["a"]);
    lab.wait_current();
}

#[test]
fn a_relist_keeps_the_last_complete_list_until_it_is_complete_itself() {
    let lab = Lab::start(|kube| kube.put_all([annotated("a", "127.0.0.1", 1), annotated("b", "127.0.0.1", 2)]));
    lab.wait_workers(&["a", "b"]);
    lab.wait_current();
    lab.kube.trouble(Kind::Pods, Verb::List, What::Delay(Duration::from_millis(500)), Some(1));
    lab.kube.trouble(Kind::Pods, Verb::Watch, What::Status(410), Some(1));
    lab.kube.close_watches();
    lab.wait_view("the Pods to be unheard", |view| !view.current);
    lab.kube.delete(Kind::Pods, NS, "b");
    assert!(lab.view().complete, "what was complete once stays so");
    assert_eq!(lab.workers().len(), 2, "the list is still coming in");
    lab.wait_workers(&["a"]);
    lab.wait_current();
}

#[test]
fn without_the_crd_annotated_pods_are_registered_and_objects_follow_once_it_is_there() {
    let engine = Engine::at("127.0.0.1");
    let lab = Lab::start(|kube| {
        kube.set_missing(Kind::IndexerWorkers, true);
        kube.put(annotated("a", "127.0.0.1", 1));
        let mut claimed = bare("b", engine.ip);
        claimed["metadata"]["labels"] = json!({"app": "llama"});
        kube.put(claimed);
    });
    lab.wait_workers(&["a"]);
    lab.wait_current();
    let trouble = lab.view().trouble.unwrap();
    assert!(trouble.contains("the CRD is not installed"), "{trouble}");
    assert_eq!(lab.readiness.notes()["kubernetes"], trouble);
    lab.kube.set_missing(Kind::IndexerWorkers, false);
    lab.kube.put(object("llama", "claimed", engine.port));
    lab.wait_workers(&["b", "a"]);
    lab.wait_view("no trouble", |view| view.current && view.trouble.is_none());
    assert!(lab.readiness.notes().is_empty());
}

#[test]
fn a_crd_that_goes_missing_removes_its_workers_only_after_a_while() {
    let engine = Engine::at("127.0.0.1");
    let lab = Lab::start(|kube| {
        let mut claimed = bare("b", engine.ip);
        claimed["metadata"]["labels"] = json!({"app": "llama"});
        kube.put_all([claimed, object("llama", "claimed", engine.port)]);
    });
    lab.wait_workers(&["b"]);
    lab.wait_current();
    // An API server that has just begun answers for Pods before it answers for custom resources.
    lab.kube.set_missing(Kind::IndexerWorkers, true);
    wait_for("two refusals", || match lab.errors("indexerworkers", "not_found") {
        0 | 1 => Err("fewer".to_owned()),
        _ => Ok(()),
    });
    assert_eq!(lab.workers().len(), 1, "not yet");
    lab.kube.set_missing(Kind::IndexerWorkers, false);
    lab.wait_view("both kinds again", |view| view.current);
    assert_eq!(lab.changes("removed"), 0);
    lab.kube.set_missing(Kind::IndexerWorkers, true);
    lab.wait_workers(&[]);
}

#[test]
fn an_object_that_cannot_be_read_harms_no_other() {
    let lab = Lab::start(|kube| {
        let mut claimed = bare("a", "127.0.0.1");
        claimed["metadata"]["labels"] = json!({"app": "good"});
        let mut bad = object("bad", "bad", 1);
        bad["spec"]["blockSize"] = json!("many");
        kube.put_all([claimed, object("good", "good", 1), bad]);
    });
    lab.wait_workers(&["a"]);
    lab.wait_current();
    assert_eq!(lab.metrics.faults.with_label_values(&["Unreadable"]).get(), 1);
    // An object that becomes unreadable keeps what it had registered.
    lab.kube.edit(Kind::IndexerWorkers, NS, "good", |object| object["spec"]["ports"] = json!("none"));
    wait_for("two faults", || match lab.metrics.faults.with_label_values(&["Unreadable"]).get() {
        2 => Ok(()),
        other => Err(other.to_string()),
    });
    lab.wait_workers(&["a"]);
    assert_eq!(lab.changes("removed"), 0);
}

#[test]
fn a_pod_that_cannot_be_read_keeps_what_is_known_of_it_and_harms_no_other() {
    let lab = Lab::start(|kube| kube.put_all([annotated("a", "127.0.0.1", 1), annotated("b", "127.0.0.1", 2)]));
    lab.wait_workers(&["a", "b"]);
    lab.wait_current();
    lab.kube.edit(Kind::Pods, NS, "a", |pod| pod["spec"]["containers"] = json!("none"));
    lab.kube.put(annotated("c", "127.0.0.1", 3));
    lab.wait_workers(&["a", "b", "c"]);
    assert_eq!(lab.errors("pods", "unreadable"), 1);
    lab.kube.expire();
    lab.kube.close_watches();
    lab.wait_lists(Kind::Pods, 2);
    lab.kube.put(annotated("d", "127.0.0.1", 4));
    lab.wait_workers(&["a", "b", "c", "d"]);
    assert_eq!(lab.changes("removed"), 0);
}

#[test]
fn a_status_that_comes_back_changes_nothing_in_the_registry() {
    let lab = Lab::start(|kube| {
        let mut claimed = bare("a", "127.0.0.1");
        claimed["metadata"]["labels"] = json!({"app": "llama"});
        kube.put_all([claimed, object("llama", "m", 1)]);
    });
    lab.wait_workers(&["a"]);
    lab.wait_current();
    lab.kube.edit(Kind::IndexerWorkers, NS, "llama", |object| object["status"] = json!({"workers": 1}));
    lab.kube.put(annotated("b", "127.0.0.1", 2));
    lab.wait_workers(&["a", "b"]);
    lab.wait_changes([2, 0, 0]);
}
