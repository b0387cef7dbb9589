//! Every rule, on Pods and objects of one line each.

mod conflicts;
mod discovery;
mod properties;
mod refusals;
mod rules;

use std::fmt::Write;
use std::sync::Arc;

use super::*;
use crate::controller::facts::builders::{endpoint, key, object, pod};
use crate::controller::{PodInstanceId, PortRef, StartRankFrom, Times};

/// The only worker of many a test.
const WORKER: &str = "m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0";

/// A view of these.
fn observed(pods: impl IntoIterator<Item = PodFacts>, objects: impl IntoIterator<Item = ObjectFacts>) -> Observed {
    Observed {
        pods: pods.into_iter().map(|pod| (pod.key.clone(), Arc::new(pod))).collect(),
        objects: objects.into_iter().map(|object| (object.key.clone(), Arc::new(object))).collect(),
    }
}

fn config() -> ControllerConfig {
    ControllerConfig {
        namespaces: Vec::new(),
        worker_selector: Selector::default(),
        pod_instance_id: PodInstanceId::Name,
        tenant_from_namespace: false,
        allow_endpoints: true,
        lease_namespace: "kvindexer".to_owned(),
        lease_name: "kvindexer".to_owned(),
        identity: "kvindexer-0".to_owned(),
        times: Times::default(),
    }
}

/// A running engine of the object that [`object`] gives.
fn engine(name: &str, ip: &str) -> PodFacts {
    pod(name).label("app", "vllm").ip(ip).running("c-0", 0)
}

fn decide(observed: &Observed) -> Desired {
    desired(observed, &Described::new(), &LastGood::new(), &config())
}

/// One line for each worker, then for each finding.
fn show(desired: &Desired) -> String {
    let mut text = String::new();
    for ((index, owner), worker) in &desired.workers {
        let DesiredWorker { spec, container_down } = worker;
        assert_eq!((&spec.key, &spec.owner), (index, owner));
        write!(text, "{} {owner} {} {}", index.joined(), spec.block_size, spec.endpoint).unwrap();
        for (word, value) in [
            ("replay", spec.replay_endpoint.as_ref().map(ToString::to_string)),
            ("topic", spec.topic.clone()),
            ("life", spec.incarnation.as_ref().map(|life| format!("{}:{}", life.container_id, life.restart_count))),
            ("down", container_down.then(String::new)),
        ] {
            if let Some(value) = value {
                write!(text, " {word} {value}").unwrap();
            }
        }
        text = text.trim_end().to_owned() + "\n";
    }
    for (name, finding) in &desired.objects {
        if let Some(fault) = &finding.refused {
            writeln!(text, "{name} refused {}: {}", fault.reason.as_str(), fault.message).unwrap();
        }
        for (at, fault) in &finding.faults {
            writeln!(text, "{name} {at} {}: {}", fault.reason.as_str(), fault.message).unwrap();
        }
    }
    for (name, finding) in &desired.pods {
        writeln!(text, "{name} {}: {}", finding.fault.reason.as_str(), finding.fault.message).unwrap();
    }
    text
}

/// What follows from a view, as text.
#[track_caller]
fn check(observed: &Observed, want: &[&str]) {
    let shown = show(&decide(observed));
    assert_eq!(shown.lines().collect::<Vec<_>>(), want);
}
