//! What is kept of Pods and objects, and which labels a selector takes.

use super::*;
use crate::controller::{LabelSelector, SelectorOperator, SelectorRequirement};
use serde_json::{Value, json};

fn pod_of(value: Value) -> PodFacts {
    PodFacts::from(&serde_json::from_value::<Pod>(value).unwrap())
}

/// As a kubelet writes it, with much that nobody here reads.
fn engine() -> Value {
    json!({
        "metadata": {
            "namespace": "serving", "name": "llama-0", "uid": "u-1", "creationTimestamp": "2026-11-30T12:00:00Z",
            "labels": {"app": "vllm", "apps.kubernetes.io/pod-index": "0"},
            "annotations": {
                "kvindexer.io/model": "llama", "kubectl.kubernetes.io/default-container": "vllm", "other.io/x": "y",
            },
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {
            "initContainers": [
                {"name": "download", "image": "i"},
                {"name": "proxy", "image": "i", "restartPolicy": "Always"},
            ],
            "containers": [
                {"name": "log", "image": "i"},
                {"name": "vllm", "image": "i", "ports": [
                    {"name": "kv-events", "containerPort": 5557}, {"containerPort": 8000},
                ]},
            ],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
            "initContainerStatuses": [
                {"name": "proxy", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
                 "containerID": "containerd://p", "state": {"running": {}}},
            ],
            "containerStatuses": [
                {"name": "vllm", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                 "containerID": "containerd://v", "state": {"running": {"startedAt": "2026-11-30T12:00:10Z"}}},
                {"name": "log", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                 "containerID": "", "state": {"waiting": {"reason": "ContainerCreating"}}},
            ],
        },
    })
}

#[test]
fn a_pod_keeps_what_decides() {
    let facts = pod_of(engine());
    assert_eq!(facts.key.to_string(), "serving/llama-0");
    assert_eq!((facts.uid.as_str(), facts.created_us), ("u-1", 1_796_040_000_000_000));
    assert_eq!(facts.ip, Some("10.0.0.7".parse().unwrap()));
    assert!(facts.lives());
    let annotations: Vec<_> = facts.annotations.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(annotations, ["kubectl.kubernetes.io/default-container=vllm", "model=llama"]);
    let containers: Vec<_> = facts
        .containers
        .iter()
        .map(|c| (c.name.as_str(), c.sidecar, c.running, c.id.as_deref(), c.restart_count, c.ports.len()))
        .collect();
    assert_eq!(
        containers,
        [
            ("proxy", true, true, Some("containerd://p"), 1, 0),
            ("log", false, false, None, 0, 0),
            ("vllm", false, true, Some("containerd://v"), 3, 2),
        ]
    );
    assert_eq!(facts.containers[2].ports, [(Some("kv-events".to_owned()), 5557), (None, 8000)]);
}

#[test]
fn a_pod_whose_life_is_over_keeps_its_name_and_labels() {
    for (field, value) in [("phase", "Failed"), ("phase", "Succeeded"), ("deletionTimestamp", "2026-11-30T12:00:00Z")] {
        let mut pod = engine();
        let part = if field == "phase" { "status" } else { "metadata" };
        pod[part][field] = json!(value);
        let facts = pod_of(pod);
        assert!(!facts.lives(), "{value}");
        assert!(facts.ip.is_none() && facts.containers.is_empty() && facts.annotations.is_empty(), "{value}");
        assert_eq!(facts.labels.get("app").unwrap(), "vllm");
    }
}

#[test]
fn a_pod_without_status_or_spec_is_no_fault() {
    let facts = pod_of(json!({"metadata": {"namespace": "a", "name": "b"}}));
    assert_eq!((facts.ip, facts.containers.len(), facts.created_us), (None, 0, 0));
    let facts =
        pod_of(json!({"metadata": {}, "spec": {"containers": [{"name": "c"}]}, "status": {"podIP": "not an address"}}));
    assert_eq!((facts.ip, facts.containers[0].running), (None, false));
}

#[test]
fn an_ordinary_pod_keeps_less_than_a_kibibyte_of_text() {
    let facts = pod_of(engine());
    let mut bytes = size_of_val(&facts) + facts.key.namespace.len() + facts.key.name.len() + facts.uid.len();
    bytes +=
        facts.labels.iter().chain(&facts.annotations).map(|(name, value)| name.len() + value.len() + 48).sum::<usize>();
    for container in &facts.containers {
        bytes += size_of::<ContainerFacts>() + container.name.len() + container.id.as_ref().map_or(0, String::len);
        bytes += container.ports.iter().map(|(name, _)| 32 + name.as_ref().map_or(0, String::len)).sum::<usize>();
    }
    assert!(bytes < 1024, "{bytes} bytes");
}

#[test]
fn annotations_are_cut_in_number_and_length() {
    let mut pod = engine();
    pod["metadata"]["annotations"] =
        (0..100).map(|n| (format!("kvindexer.io/x{n}"), json!("é".repeat(5000)))).collect();
    let facts = pod_of(pod);
    assert_eq!(facts.annotations.len(), ANNOTATIONS_MAX);
    assert!(facts.annotations.values().all(|value| value.chars().count() == ANNOTATION_CHARS_MAX));
}

fn object_of(value: Value) -> ObjectFacts {
    object(&serde_json::from_value(value).unwrap())
}

#[test]
fn an_object_is_read_with_its_defaults() {
    let facts = object_of(json!({
        "apiVersion": "kvindexer.io/v1alpha1", "kind": "IndexerWorker",
        "metadata": {"namespace": "s", "name": "o", "uid": "u", "generation": 4, "labels": {"fleet": "a"},
                     "creationTimestamp": "2026-11-30T12:00:00Z"},
        "spec": {"modelName": "m", "blockSize": 16, "selector": {"matchLabels": {"app": "vllm"}},
                 "ports": {"events": 5557, "replay": "kv-replay"}, "addedLater": true},
        "status": {"workers": 1},
    }));
    assert_eq!((facts.key.to_string().as_str(), facts.uid.as_str(), facts.generation), ("s/o", "u", 4));
    assert_eq!((facts.created_us, facts.labels.get("fleet").unwrap().as_str()), (1_796_040_000_000_000, "a"));
    let spec = facts.spec.unwrap();
    assert_eq!((spec.tenant_id.as_str(), spec.block_size), ("default", 16));
    assert_eq!(spec.ports.unwrap().replay, Some("kv-replay".into()));
}

#[test]
fn an_object_that_cannot_be_read_says_why_and_keeps_its_name() {
    for (spec, want) in [
        (Value::Null, "it has no spec"),
        (json!({}), "missing field `modelName`"),
        (json!({"modelName": "m", "blockSize": "16"}), "invalid type: string"),
        (json!({"modelName": "m", "blockSize": 16, "discovery": "Maybe"}), "unknown variant `Maybe`"),
        (json!({"modelName": "m", "blockSize": 16, "ports": {"events": 5557.5}}), "a port number or the name"),
        (
            json!({"modelName": "m", "blockSize": 16, "ports": {"events": 5_000_000_000_u64}}),
            "a port number or the name",
        ),
        (
            json!({"modelName": "m", "blockSize": 16, "ports": {"events": -5_000_000_000_i64}}),
            "a port number or the name",
        ),
        (json!({"modelName": "m", "blockSize": 16, "discovery": "x".repeat(100_000)}), "unknown variant"),
    ] {
        let mut raw = json!({"apiVersion": "v", "kind": "k", "metadata": {"namespace": "s", "name": "o"}});
        if !spec.is_null() {
            raw["spec"] = spec;
        }
        let facts = object_of(raw);
        assert_eq!(facts.key.to_string(), "s/o");
        let error = facts.spec.unwrap_err();
        assert!(error.contains(want) && error.len() <= UNREADABLE_CHARS_MAX, "{want}: {error}");
    }
}

fn labels_of(text: &str) -> TextMap {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn selectors_match_as_kubernetes_does() {
    for (selector, matches, misses) in [
        ("", &["", "a=b"][..], &[][..]),
        ("  ", &[""], &[]),
        ("a=b", &["a=b", "a=b,c=d"], &["", "a=c", "b=a"]),
        ("a==b", &["a=b"], &["a=c"]),
        (" a = b ", &["a=b"], &["a=c"]),
        ("a=", &["a="], &["", "a=b"]),
        ("a!=b", &["", "a=c"], &["a=b"]),
        ("a", &["a=", "a=b"], &["", "b=a"]),
        ("!a", &["", "b=a"], &["a=", "a=b"]),
        ("a in (x,y)", &["a=x", "a=y"], &["", "a=z"]),
        ("a in(x)", &["a=x"], &["a=z"]),
        ("a notin (x, y)", &["", "a=z"], &["a=x", "a=y"]),
        ("a in (x,y),!b,c!=d", &["a=x", "a=y,c=e"], &["a=x,b=", "a=x,c=d", "c=e"]),
        ("example.com/tier in (gold)", &["example.com/tier=gold"], &["tier=gold"]),
        ("in in (in)", &["in=in"], &["in=notin"]),
    ] {
        let read: Selector = selector.parse().unwrap_or_else(|error| panic!("{selector}: {error}"));
        for labels in matches {
            assert!(read.matches(&labels_of(labels)), "`{selector}` must match `{labels}`");
        }
        for labels in misses {
            assert!(!read.matches(&labels_of(labels)), "`{selector}` must not match `{labels}`");
        }
    }
}

#[test]
fn a_selector_that_kubernetes_would_refuse_is_refused() {
    let long = "a".repeat(64);
    for selector in [
        ",",
        "a,",
        ",a",
        "a,,b",
        "=b",
        "!",
        "a in",
        "a in x",
        "a in (x",
        "a in x)",
        "a in ((x))",
        "a within (x)",
        "in (x)",
        "a b in (x)",
        "a=b=c",
        "a=b c",
        "a=(x)",
        "a>1",
        "-a=b",
        "a=-b",
        "A_/x=b",
        "a/b/c",
        "a=é",
        "a!b",
        &long,
        "a in (x) y",
    ] {
        assert!(selector.parse::<Selector>().is_err(), "`{selector}` must be refused");
    }
    assert!(format!("a={long}").parse::<Selector>().is_err());
}

#[test]
fn selectors_of_objects_say_the_same() {
    let requirement = |key: &str, operator, values: &[&str]| SelectorRequirement {
        key: key.to_owned(),
        operator,
        values: Some(values.iter().map(|value| (*value).to_owned()).collect())
            .filter(|values: &Vec<_>| !values.is_empty()),
    };
    let selector = |expressions| LabelSelector { match_labels: None, match_expressions: Some(expressions) };
    for (given, same) in [
        (requirement("a", SelectorOperator::In, &["x", "y"]), "a in (x,y)"),
        (requirement("a", SelectorOperator::NotIn, &["x"]), "a!=x"),
        (requirement("a", SelectorOperator::Exists, &[]), "a"),
        (requirement("a", SelectorOperator::DoesNotExist, &[]), "!a"),
    ] {
        assert_eq!(Selector::try_from(&selector(vec![given])), same.parse(), "{same}");
    }
    for given in [
        requirement("a", SelectorOperator::In, &[]),
        requirement("a", SelectorOperator::NotIn, &[]),
        requirement("a", SelectorOperator::Exists, &["x"]),
        requirement("a", SelectorOperator::DoesNotExist, &["x"]),
        requirement("", SelectorOperator::Exists, &[]),
        requirement("a b", SelectorOperator::Exists, &[]),
        requirement("a", SelectorOperator::In, &["not a value"]),
    ] {
        assert!(Selector::try_from(&selector(vec![given.clone()])).is_err(), "{given:?}");
    }
    assert_eq!(Selector::try_from(&builders::labels(&[("a", "x"), ("b", "y")])), "a=x,b=y".parse());
    assert!(Selector::try_from(&LabelSelector::default()).is_err());
    assert!(Selector::try_from(&builders::labels(&[])).is_err());
}
