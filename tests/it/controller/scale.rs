//! Thousands of Pods that are none of our business, and a few that are.

use serde_json::{Value, json};

use super::{Lab, NS, annotated, bare};
use crate::fake_kube::{Kind, Verb};

/// A Pod as large as real ones are: about 9 KB of JSON.
fn large(number: usize) -> Value {
    let mut pod = bare(&format!("web-{number:05}-7c9d8b6f5d-x2x4z"), "127.0.0.1");
    pod["metadata"]["labels"] = json!({
        "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{number}"), "pod-template-hash": "7c9d8b6f5d",
    });
    pod["metadata"]["annotations"] = json!({"example.com/notes": "n".repeat(1_000)});
    pod["metadata"]["managedFields"] =
        json!([{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:x": "y".repeat(3_000)}}]);
    let env: Vec<Value> =
        (0..60).map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "v".repeat(40)})).collect();
    pod["spec"]["containers"][0]["env"] = json!(env);
    pod["status"]["message"] = json!("m".repeat(500));
    pod
}

#[test]
fn thousands_of_pods_come_in_pages() {
    const PODS: usize = 1_200;
    let lab = Lab::start(|kube| {
        kube.put_all((0..PODS).map(large));
        kube.put_all(["a", "b"].map(|name| annotated(name, "127.0.0.1", 1)));
    });
    lab.wait_workers(&["a", "b"]);
    lab.wait_current();
    let lists: Vec<String> = lab
        .kube
        .asked()
        .into_iter()
        .filter(|asked| asked.verb == Verb::List && asked.kind == Kind::Pods)
        .map(|asked| asked.query)
        .collect();
    assert_eq!(lists.len(), PODS / 500 + 1);
    assert!(lists.iter().all(|query| query.contains("limit=500")), "{lists:?}");
    lab.kube.delete(Kind::Pods, NS, "a");
    lab.wait_workers(&["b"]);
}
