//! Thousands of Pods that are none of our business, and a few that are.

use serde_json::{Value, json};

use super::{Dir, Lab, MODEL, NS, annotated, bare, follow};
use crate::fake_kube::{FakeKube, Kind, Verb};

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

/// Pages that are read cost the same however many there are: what more Pods cost is what is kept of them, and what the
/// allocator keeps for itself, which differs by some megabytes from run to run. Whole Pods would cost over 20 KB each.
#[test]
fn a_pod_costs_little_memory() {
    const FEW: usize = 600;
    const MANY: usize = 3_000;
    let resident = |pods: usize| {
        let (kube, dir) = (FakeKube::start(), Dir::new(&format!("memory-{pods}")));
        kube.put_all((0..pods).map(large));
        kube.put(annotated("a", "127.0.0.1", 1));
        let service = follow(&kube, &dir, &[]);
        service.wait_ready();
        assert_eq!(service.workers(MODEL).len(), 1);
        service.resident_bytes()
    };
    let (few, many) = (resident(FEW), resident(MANY));
    let each = many.saturating_sub(few) / (MANY - FEW) as u64;
    assert!(each < 8_192, "{each} B of resident memory per Pod; {few} B with {FEW}");
}
