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
