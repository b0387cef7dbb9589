//! What is wrong with an annotation or a spec, and what goes on nevertheless.

use super::*;

#[test]
fn a_wrong_annotation_is_named() {
    for (name, value, want) in [
        ("model", Some(""), "InvalidAnnotation: annotation kvindexer.io/model must not be empty"),
        ("model", None, "InvalidAnnotation: annotation kvindexer.io/model must be set"),
        ("tenant", Some(" "), "InvalidAnnotation: annotation kvindexer.io/tenant must not be empty"),
        ("block-size", None, "InvalidAnnotation: annotation kvindexer.io/block-size must be set"),
        ("block-size", Some("0"), "InvalidAnnotation: annotation kvindexer.io/block-size must be from 1 to 65536"),
        ("block-size", Some("+16"), "InvalidAnnotation: annotation kvindexer.io/block-size must be a whole number"),
        ("block-size", Some(""), "InvalidAnnotation: annotation kvindexer.io/block-size must be a whole number"),
        ("event-port", None, "InvalidAnnotation: annotation kvindexer.io/event-port must be set"),
        (
            "event-port",
            Some("99999999999"),
            "InvalidAnnotation: annotation kvindexer.io/event-port must be a port number from 1 to 65535 or a container port name",
        ),
        ("event-port", Some("kv-events"), "PortNotFound: no container of the Pod declares the event port `kv-events`"),
        ("replay-port", Some("5557"), "PortConflict: the event and replay port ranges (base + rank) must not overlap"),
        ("dp-size", Some("0"), "InvalidAnnotation: annotation kvindexer.io/dp-size size must be from 1 to 1024"),
        (
            "dp-start-rank",
            Some("70000"),
            "InvalidAnnotation: annotation kvindexer.io/dp-start-rank start rank must be from 0 to 65535",
        ),
        ("dp-start-rank", Some("60000"), "InvalidSpec: event port + last rank must not exceed 65535"),
        (
            "instance-id",
            Some("other/pod"),
            "InvalidAnnotation: annotation kvindexer.io/instance-id must not contain a slash: ids with a slash are <namespace>/<pod>",
        ),
        (
            "duplicate-policy",
            Some("twice"),
            "InvalidAnnotation: annotation kvindexer.io/duplicate-policy must be auto, set or copies",
        ),
        ("container-name", Some("x"), "ContainerNotFound: the Pod has no container `x`"),
    ] {
        let mut pod = pod("s/p").ip("10.0.0.1").running("c-0", 0).annotated("m");
        match value {
            Some(value) => pod = pod.annotation(name, value),
            None => drop(pod.annotations.remove(name)),
        }
        let desired = decide(&observed([pod], []));
        assert_eq!(show(&desired), format!("s/p {want}\n"));
        assert_eq!(desired.pods[&key("s/p")].uid, "uid-of-s/p");
    }
}

#[test]
fn what_the_api_server_should_have_refused_is_refused_here() {
    type Change = fn(&mut IndexerWorkerSpec);
    let changes: [(Change, &str); 22] = [
        (|spec| spec.model_name.clear(), "InvalidSpec: spec.modelName must not be empty"),
        (|spec| spec.model_name = "x".repeat(513), "InvalidSpec: spec.modelName must have at most 512 characters"),
        (|spec| spec.tenant_id.clear(), "InvalidSpec: spec.tenantId must not be empty"),
        (|spec| spec.block_size = 0, "InvalidSpec: spec.blockSize must be from 1 to 65536"),
        (|spec| spec.block_size = -16, "InvalidSpec: spec.blockSize must be from 1 to 65536"),
        (|spec| spec.block_size = 65_537, "InvalidSpec: spec.blockSize must be from 1 to 65536"),
        (|spec| spec.selector = None, "InvalidSpec: exactly one of spec.selector and spec.endpoints must be set"),
        (
            |spec| spec.endpoints = Some(vec![endpoint("a", 0, "tcp://a:1")]),
            "InvalidSpec: exactly one of spec.selector and spec.endpoints must be set",
        ),
        (|spec| spec.ports = None, "InvalidSpec: spec.ports must be set together with spec.selector"),
        (
            |spec| spec.selector = Some(crate::controller::LabelSelector::default()),
            "InvalidSelector: spec.selector must not be empty (it would select every Pod of the namespace)",
        ),
        (
            |spec| spec.selector = Some(crate::controller::facts::builders::labels(&[("a b", "c")])),
            "InvalidSelector: `a b` is no label key",
        ),
        (
            |spec| spec.ports.as_mut().unwrap().events = PortRef::Number(0),
            "InvalidSpec: spec.ports.events must be a port number from 1 to 65535 or a container port name",
        ),
        (
            |spec| spec.ports.as_mut().unwrap().replay = Some(PortRef::Name("KV".to_owned())),
            "InvalidSpec: spec.ports.replay must be a port number from 1 to 65535 or a container port name",
        ),
        (
            |spec| spec.ports.as_mut().unwrap().http = Some(PortRef::Name("80".to_owned())),
            "InvalidSpec: spec.ports.http must be a port number from 1 to 65535 or a container port name",
        ),
        (
            |spec| spec.ports.as_mut().unwrap().replay = Some(5557.into()),
            "PortConflict: the event and replay port ranges (base + rank) must not overlap",
        ),
        (
            |spec| {
                let name = PortRef::Name("kv".to_owned());
                spec.ports = Some(crate::controller::Ports { events: name.clone(), replay: Some(name), http: None });
            },
            "PortConflict: the event and replay port ranges (base + rank) must not overlap",
        ),
        (
            |spec| spec.data_parallel = Some(data_parallel(0, 0)),
            "InvalidSpec: spec.dataParallel: size must be from 1 to 1024",
        ),
        (
            |spec| spec.data_parallel = Some(data_parallel(-1, 0)),
            "InvalidSpec: spec.dataParallel: size must be from 1 to 1024",
        ),
        (
            |spec| spec.data_parallel = Some(data_parallel(1, -1)),
            "InvalidSpec: spec.dataParallel: start rank must be from 0 to 65535",
        ),
        (
            |spec| spec.data_parallel = Some(data_parallel(2, 59_978)),
            "InvalidSpec: event port + last rank must not exceed 65535",
        ),
        (|spec| spec.container_name = Some(String::new()), "InvalidSpec: spec.containerName must not be empty"),
        (
            |spec| spec.container_name = Some("x".repeat(64)),
            "InvalidSpec: spec.containerName must have at most 63 characters",
        ),
    ];
    for (change, want) in changes {
        check(&observed([engine("s/p", "10.0.0.1")], [object("s/o").with(change)]), &[&format!("s/o refused {want}")]);
    }
}

fn data_parallel(size: i32, start_rank: i32) -> crate::controller::DataParallel {
    crate::controller::DataParallel { size, start_rank, start_rank_from: StartRankFrom::Fixed }
}

#[test]
fn wrong_fixed_endpoints_are_refused() {
    let address = "must be tcp://host:port or tcp://[ipv6]:port, with a port from 1 to 65535";
    for (id, rank, given, want) in [
        ("", 0, "tcp://a:1", "[0].instanceId must not be empty".to_owned()),
        (
            "a/b",
            0,
            "tcp://a:1",
            "[0].instanceId must not contain a slash: ids with a slash are <namespace>/<pod>".to_owned(),
        ),
        ("a\nb", 0, "tcp://a:1", "[0].instanceId instance_id must not contain control characters".to_owned()),
        ("a", -1, "tcp://a:1", "[0].dpRank must be from 0 to 65535".to_owned()),
        ("a", 0, "ipc:///run/engine", format!("[0].address {address}")),
        ("a", 0, "inproc://x", format!("[0].address {address}")),
        ("a", 0, "tcp://*:5557", format!("[0].address {address}")),
        ("a", 0, "tcp://a:0", format!("[0].address {address}")),
        ("a", 0, "tcp://a", format!("[0].address {address}")),
        ("a", 0, "tcp://fd00::1:5557", format!("[0].address {address}")),
        ("a", 0, "tcp://a b:5557", format!("[0].address {address}")),
        ("7", 3, "tcp://b:1", ": instanceId `7` with dpRank 3 must not be listed twice".to_owned()),
    ] {
        let object = object("s/o").endpoints(&[endpoint(id, rank, given), endpoint("7", 3, "tcp://c:1")]);
        check(&observed([], [object]), &[&format!("s/o refused InvalidSpec: spec.endpoints{want}")]);
    }
    check(
        &observed([], [object("s/o").endpoints(&[])]),
        &["s/o refused InvalidSpec: spec.endpoints must have 1 to 256 items"],
    );
}

#[test]
fn an_object_that_becomes_invalid_keeps_its_last_good_registration() {
    let pods = || [engine("s/p", "10.0.0.1")];
    let good = decide(&observed(pods(), [object("s/o")]));
    assert_eq!(show(&good), format!("{WORKER}\n"));
    let unreadable = || ObjectFacts { spec: Err("no".to_owned()), ..object("s/o").generation(2) };
    for (bad, want) in [
        (
            object("s/o").generation(2).with(|spec| spec.block_size = 0),
            "InvalidSpec: spec.blockSize must be from 1 to 65536",
        ),
        (unreadable(), "Unreadable: the object cannot be read: no"),
    ] {
        let again = desired(&observed(pods(), [bad.clone()]), &Described::new(), &good.last_good, &config());
        assert_eq!(show(&again), format!("{WORKER}\ns/o refused {want}\n"));
        assert_eq!(again.objects[&key("s/o")].generation, 2);
        assert_eq!(again.last_good, good.last_good);
        // Nothing is known of a life before: nothing is registered.
        check(&observed(pods(), [bad.clone()]), &[&format!("s/o refused {want}")]);
        // Another object of that name is another object.
        let other = ObjectFacts { uid: "other".to_owned(), ..bad };
        let other = desired(&observed(pods(), [other]), &Described::new(), &good.last_good, &config());
        assert_eq!(show(&other), format!("s/o refused {want}\n"));
        assert!(other.last_good.is_empty());
    }
    let gone = desired(&observed(pods(), []), &Described::new(), &good.last_good, &config());
    assert!(gone.last_good.is_empty() && gone.workers.is_empty());
}

#[test]
fn an_object_that_cannot_be_read_harms_no_other() {
    let bad = ObjectFacts { spec: Err("no".to_owned()), ..object("s/a") };
    check(
        &observed([engine("s/p", "10.0.0.1")], [bad, object("s/o")]),
        &[WORKER, "s/a refused Unreadable: the object cannot be read: no"],
    );
}
