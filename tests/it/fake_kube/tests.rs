//! The double does what it says, and its shapes are those of a real server (`tests/data/kube/`).

use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::{FakeKube, Kind, Verb, What};

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "metadata": {"namespace": "serving", "name": name}})
}

fn object(name: &str) -> Value {
    json!({"kind": "IndexerWorker", "metadata": {"namespace": "serving", "name": name}, "spec": {"modelName": "m"}})
}

fn objects(client: &kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("kvindexer.io", "v1alpha1", "IndexerWorker");
    Api::namespaced_with(client.clone(), "serving", &ApiResource::from_gvk(&kind))
}

#[tokio::test]
async fn a_list_comes_in_pages_and_an_old_page_is_gone() {
    let kube = FakeKube::start();
    kube.put_all(["a", "b", "c"].map(pod));
    let pods: Api<Pod> = Api::all(kube.client());
    let first = pods.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(1)));
    let token = first.metadata.continue_.unwrap();
    let rest = pods.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(rest.items[0].metadata.name.as_deref(), Some("c"));
    assert_eq!(rest.metadata.continue_, None);
    kube.expire();
    let gone = pods.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap_err();
    assert!(matches!(gone, kube::Error::Api(status) if status.code == 410 && status.reason == "Expired"));
    assert_eq!(kube.count(Verb::List, Kind::Pods), 3);
    let asked = kube.asked();
    assert!(asked.is_sorted_by_key(|asked| asked.at) && asked.iter().all(|asked| asked.namespace.is_none()));
}

#[tokio::test]
async fn a_watch_hears_changes_and_bookmarks_of_its_namespace_and_ends_with_410() {
    let kube = FakeKube::start();
    let made = kube.put(pod("a"));
    let pods: Api<Pod> = Api::namespaced(kube.client(), "serving");
    let mut heard = Box::pin(
        pods.watch(&WatchParams::default(), made["metadata"]["resourceVersion"].as_str().unwrap()).await.unwrap(),
    );
    kube.put(json!({"kind": "Pod", "metadata": {"namespace": "other", "name": "x"}}));
    kube.put(pod("b"));
    kube.edit(Kind::Pods, "serving", "a", |pod| pod["metadata"]["labels"] = json!({"app": "vllm"}));
    kube.delete(Kind::Pods, "serving", "b");
    let mut words = vec![];
    while words.len() < 3 {
        words.push(match heard.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(pod) => format!("added {}", pod.metadata.name.unwrap()),
            WatchEvent::Modified(pod) => format!("modified {}", pod.metadata.name.unwrap()),
            WatchEvent::Deleted(pod) => format!("deleted {}", pod.metadata.name.unwrap()),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(words, ["added b", "modified a", "deleted b"]);
    kube.bookmark();
    assert!(matches!(heard.try_next().await.unwrap().unwrap(), WatchEvent::Bookmark(_)));
    kube.put(pod("missed"));
    kube.expire();
    let mut last = heard.try_next().await.unwrap().unwrap();
    if matches!(last, WatchEvent::Added(_)) {
        last = heard.try_next().await.unwrap().unwrap();
    }
    assert!(matches!(last, WatchEvent::Error(status) if status.code == 410));
    assert!(heard.try_next().await.unwrap().is_none(), "the watch ends");
}

#[tokio::test]
async fn a_status_is_applied_by_name_of_the_manager_and_the_same_again_moves_no_version() {
    let kube = FakeKube::start();
    kube.put(object("llama"));
    let api = objects(&kube.client());
    let status = |blocks: i64| {
        let body =
            json!({"apiVersion": "kvindexer.io/v1alpha1", "kind": "IndexerWorker", "status": {"blocks": blocks}});
        Patch::Apply(body)
    };
    let ours = PatchParams::apply("kvindexer").force();
    let first = api.patch_status("llama", &ours, &status(1)).await.unwrap();
    let again = api.patch_status("llama", &ours, &status(1)).await.unwrap();
    assert_eq!(first.metadata.resource_version, again.metadata.resource_version);
    assert_eq!(again.metadata.generation, Some(1), "a status is no new generation");
    let other = api.patch_status("llama", &PatchParams::apply("other"), &status(2)).await.unwrap_err();
    assert!(matches!(other, kube::Error::Api(status) if status.code == 409));
    let missing = api.patch_status("nope", &ours, &status(1)).await.unwrap_err();
    assert!(matches!(missing, kube::Error::Api(status) if status.code == 404));
    let stored = kube.get(Kind::IndexerWorkers, "serving", "llama").unwrap();
    assert_eq!(stored["status"]["blocks"], 1);
    assert_eq!(stored["metadata"]["managedFields"][0]["manager"], "kvindexer");
    assert_eq!(kube.count(Verb::Apply, Kind::IndexerWorkers), 4);
    let last = kube.asked().pop().expect("asked");
    assert_eq!((last.namespace.as_deref(), last.name.as_deref()), (Some("serving"), Some("nope")));
}

#[tokio::test]
async fn of_two_who_replace_a_lease_the_later_loses() {
    let kube = FakeKube::start();
    let api: Api<Lease> = Api::namespaced(kube.client(), "kvindexer");
    let lease = Lease { metadata: kube::api::ObjectMeta { name: Some("l".into()), ..Default::default() }, spec: None };
    let made = api.create(&PostParams::default(), &lease).await.unwrap();
    let twice = api.create(&PostParams::default(), &lease).await.unwrap_err();
    assert!(matches!(twice, kube::Error::Api(status) if status.reason == "AlreadyExists"));
    api.replace("l", &PostParams::default(), &made).await.unwrap();
    let late = api.replace("l", &PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(late, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"));
}

#[tokio::test]
async fn trouble_comes_as_often_as_it_was_asked_for() {
    let mut kube = FakeKube::start();
    let pods: Api<Pod> = Api::all(kube.client());
    kube.trouble(Kind::Pods, Verb::List, What::Status(403), Some(1));
    let refused = pods.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403 && status.reason == "Forbidden"));
    kube.trouble(None, None, What::Drop, Some(1));
    assert!(pods.list(&ListParams::default()).await.is_err());
    pods.list(&ListParams::default()).await.unwrap();
    kube.set_missing(Kind::Pods, true);
    assert!(
        matches!(pods.list(&ListParams::default()).await.unwrap_err(), kube::Error::Api(status) if status.code == 404)
    );
    kube.set_missing(Kind::Pods, false);
    kube.stop();
    assert!(pods.list(&ListParams::default()).await.is_err());
    kube.start_again();
    pods.list(&ListParams::default()).await.unwrap();
    let answers: Vec<u16> = kube.asked().iter().map(|asked| asked.answer).collect();
    assert_eq!(answers, [403, 0, 200, 404, 200]);
}

/// What a real server said, by name.
fn recorded() -> Value {
    serde_json::from_str(&crate::harness::data("kube/recorded.json")).expect("it is JSON")
}

/// Names of the fields, with the kinds of their values; what lies below objects of free form is left out.
fn shape(value: &Value) -> Value {
    const FREE: [&str; 6] = ["spec", "status", "labels", "managedFields", "items", "series"];
    match value {
        Value::Object(fields) => {
            let known = fields.iter().filter(|(name, value)| !FREE.contains(&name.as_str()) && !value.is_null());
            Value::Object(known.map(|(name, value)| (name.clone(), shape(value))).collect())
        }
        Value::Array(_) => json!("list"),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!("number"),
        other => other.clone(),
    }
}

/// Fields that a real server gives and the double does not need.
fn without_extras(mut shape: Value) -> Value {
    for (place, names) in [
        ("/metadata", &["continue", "creationTimestamp", "generation"][..]),
        ("/details", &["causes"]),
        ("", &["deprecatedSource"]),
    ] {
        if let Some(Value::Object(fields)) = shape.pointer_mut(place) {
            names.iter().for_each(|name| drop(fields.remove(*name)));
        }
    }
    shape
}

#[test]
fn the_double_answers_in_the_shapes_of_a_real_server() {
    use crate::harness::http::{Request, exchange};
    let kube = FakeKube::start();
    let (objects, leases) = (
        "/apis/kvindexer.io/v1alpha1/namespaces/serving/indexerworkers",
        "/apis/coordination.k8s.io/v1/namespaces/serving/leases",
    );
    let events = "/apis/events.k8s.io/v1/namespaces/serving/events";
    let status = |name: &str| format!("{objects}/{name}/status?fieldManager=kvindexer&force=true");
    let apply = json!({"apiVersion": "kvindexer.io/v1alpha1", "kind": "IndexerWorker", "status": {"workers": 1}});
    let lease = json!({"metadata": {"name": "kvindexer"}, "spec": {"holderIdentity": "kvindexer-0"}});
    let mut old_lease = lease.clone();
    old_lease["metadata"]["resourceVersion"] = json!("1");
    let event = json!({
        "metadata": {"name": "llama.1", "namespace": "serving"}, "reason": "Restarted", "note": "n", "type": "Normal",
        "action": "Index", "eventTime": "2026-11-30T17:00:00.000000Z", "reportingController": "kvindexer.io/kvindexer",
        "reportingInstance": "kvindexer-0",
        "regarding": {"apiVersion": "kvindexer.io/v1alpha1", "kind": "IndexerWorker", "name": "llama", "namespace": "serving"},
    });
    let other = status("llama").replace("kvindexer&force=true", "other");
    let differs = json!({"status": {"workers": 2}});
    let none = Value::Null;
    kube.put_all(["a", "b", "c"].map(pod));
    let plain = "application/json";
    let (applies, merges) = ("application/apply-patch+yaml", "application/merge-patch+json");
    let asked: [(&str, &str, &str, &str, &Value); 16] = [
        ("list_page_1", "GET", "/api/v1/pods?limit=2", plain, &none),
        ("list_no_objects", "GET", "/apis/kvindexer.io/v1alpha1/indexerworkers", plain, &none),
        ("object_missing", "GET", &format!("{objects}/nope"), plain, &none),
        ("object_created", "POST", objects, plain, &object("llama")),
        ("list_objects", "GET", "/apis/kvindexer.io/v1alpha1/indexerworkers", plain, &none),
        ("status_applied", "PATCH", &status("llama"), applies, &apply),
        ("status_applied_again", "PATCH", &status("llama"), applies, &apply),
        ("status_of_another_manager", "PATCH", &other, applies, &differs),
        ("status_of_nothing", "PATCH", &status("nope"), applies, &apply),
        ("lease_missing", "GET", &format!("{leases}/kvindexer"), plain, &none),
        ("lease_created", "POST", leases, plain, &lease),
        ("lease_created_twice", "POST", leases, plain, &lease),
        ("lease_conflict", "PUT", &format!("{leases}/kvindexer"), plain, &old_lease),
        ("event_created", "POST", events, plain, &event),
        ("event_series", "PATCH", &format!("{events}/llama.1"), merges, &json!({"series": {"count": 2}})),
        ("continue_expired", "GET", "/api/v1/pods?limit=2&continue=0:serving:a", plain, &none),
    ];
    let recorded = recorded();
    for (name, method, path, content_type, body) in asked {
        if name == "continue_expired" {
            kube.expire();
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let body = (!body.is_empty()).then_some(body.as_slice());
        let request = Request { method, path, content_type: Some(content_type), body };
        let reply = exchange(kube.address, &request).expect("an answer");
        let real = &recorded[name];
        assert_eq!(json!(reply.status), real["status"], "{name}: {}", reply.text());
        assert_eq!(reply.header("content-type"), real["content_type"].as_str(), "{name}");
        let ours: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let (found, want) = (without_extras(shape(&ours)), without_extras(shape(&real["body"])));
        assert_eq!(found, want, "{name}: {ours}");
        if name.starts_with("list_") && !real["body"]["items"][0].is_null() {
            let says = |list: &Value| list["items"][0]["kind"].is_string();
            assert_eq!(says(&ours), says(&real["body"]), "{name}: whether items say what they are");
        }
        for part in ["reason", "code", "kind"] {
            if real["body"]["kind"] == "Status" {
                assert_eq!(ours[part], real["body"][part], "{name}");
            }
        }
    }
}

#[tokio::test]
async fn watches_of_the_double_are_like_those_of_a_real_server() {
    let recorded = recorded();
    let line = |name: &str, word: &str| -> Value {
        let lines = recorded[name]["lines"].as_array().expect("lines");
        lines.iter().find(|line| line["type"] == word).expect("it is there")["object"].clone()
    };
    let version = json!("7");
    for (name, kind) in [("watch_pods", Kind::Pods), ("watch_objects", Kind::IndexerWorkers)] {
        let mut real = line(name, "BOOKMARK");
        real["metadata"]["resourceVersion"] = version.clone();
        assert_eq!(super::serve::bookmark(kind, 7), real, "{name}");
    }
    for name in ["watch_gone_pods", "watch_gone_objects"] {
        let real = line(name, "ERROR");
        let ours = super::serve::failure(410, "Expired", real["message"].as_str().expect("a text"));
        assert_eq!(ours, real, "{name}");
    }
    let missing = &recorded["crd_missing_list"];
    assert_eq!((&missing["status"], &missing["text"]), (&json!(404), &json!("404 page not found\n")));
}
