//! One source at a time: ports, ranks, containers, names, and what is wrong with a spec.

use super::*;

#[test]
fn f33_ipv6_addresses_stand_in_brackets() {
    check(
        &observed([engine("s/p", "fd00::5")], [object("s/o").replay(6557)]),
        &["m:default s/p/0 16 tcp://[fd00::5]:5557 replay tcp://[fd00::5]:6557 life c-0:0"],
    );
}

#[test]
fn f42_a_pod_with_another_address_and_uid_is_the_same_owner_in_another_life() {
    let before = decide(&observed([engine("s/p", "10.0.0.1").uid("one")], [object("s/o")]));
    let after = decide(&observed([engine("s/p", "10.0.0.2").uid("two")], [object("s/o")]));
    let only = |desired: &Desired| desired.workers.iter().next().map(|(k, v)| (k.clone(), v.spec.clone())).unwrap();
    let ((name_before, spec_before), (name_after, spec_after)) = (only(&before), only(&after));
    assert_eq!(name_before, name_after);
    assert_eq!(spec_after.endpoint.as_str(), "tcp://10.0.0.2:5557");
    assert_ne!(spec_before.incarnation, spec_after.incarnation);
}

#[test]
fn f43_an_address_that_another_pod_has_taken_is_another_owner() {
    let mut b = engine("s/b", "10.0.0.1").annotated("y");
    b.labels.remove("app");
    check(
        &observed([engine("s/a", "10.0.0.1"), b.clone()], [object("s/o").model("x")]),
        &["x:default s/a/0 16 tcp://10.0.0.1:5557 life c-0:0", "y:default s/b/0 16 tcp://10.0.0.1:5557 life c-0:0"],
    );
    let mut a = engine("s/a", "10.0.0.1");
    a.deleting = true;
    check(&observed([a, b], [object("s/o").model("x")]), &["y:default s/b/0 16 tcp://10.0.0.1:5557 life c-0:0"]);
}

#[test]
fn f48_rank_r_listens_on_port_plus_r() {
    let lines = |ranks: std::ops::Range<u32>| {
        let line = |rank| {
            let (events, replay) = (5557 + rank, 6557 + rank);
            format!("m:default s/p/{rank} 16 tcp://10.0.0.1:{events} replay tcp://10.0.0.1:{replay} life c-0:0")
        };
        ranks.map(line).collect::<Vec<_>>()
    };
    for (start, want) in [(0, lines(0..4)), (8, lines(8..12))] {
        let object = object("s/o").replay(6557).ranks(4, start, StartRankFrom::Fixed);
        let mut shown: Vec<String> =
            show(&decide(&observed([engine("s/p", "10.0.0.1")], [object]))).lines().map(str::to_owned).collect();
        shown.sort_by_key(|line| line.split("tcp://").nth(1).map(str::to_owned));
        assert_eq!(shown, want);
    }
}

#[test]
fn a_pod_is_registered_once_it_has_an_address_and_its_container_runs() {
    let object = || object("s/o");
    let base = || pod("s/p").label("app", "vllm");
    check(&observed([base()], [object()]), &[]);
    check(&observed([base().running("c-0", 0)], [object()]), &[]);
    check(&observed([base().ip("10.0.0.1")], [object()]), &["m:default s/p/0 16 tcp://10.0.0.1:5557 down"]);
    check(&observed([base().ip("10.0.0.1").running("c-0", 0)], [object()]), &[WORKER]);
    let crashed = base().ip("10.0.0.1").running("c-0", 0).down();
    check(&observed([crashed], [object()]), &["m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0 down"]);
}

#[test]
fn a_pod_is_gone_when_it_is_deleted_has_ended_or_matches_no_more() {
    type Change = fn(&mut PodFacts);
    let changes: [(&str, Change); 4] = [
        ("deleting", |pod| pod.deleting = true),
        ("ended", |pod| pod.ended = true),
        ("label removed", |pod| pod.labels.clear()),
        ("label changed", |pod| *pod.labels.get_mut("app").unwrap() = "other".to_owned()),
    ];
    for (name, change) in changes {
        let mut pod = engine("s/p", "10.0.0.1");
        change(&mut pod);
        assert_eq!(show(&decide(&observed([pod], [object("s/o")]))), "", "{name}");
    }
    check(&observed([], [object("s/o")]), &[]);
    check(&observed([engine("other/p", "10.0.0.1")], [object("s/o")]), &[]);
}

#[test]
fn ports_are_numbers_or_names_that_a_container_declares() {
    let base = || engine("s/p", "10.0.0.1").port("kv-events", 6000);
    let object = || object("s/o").events("kv-events");
    check(&observed([base()], [object()]), &["m:default s/p/0 16 tcp://10.0.0.1:6000 life c-0:0"]);
    let not_found = "s/o s/p PortNotFound: no container of the Pod declares the";
    check(&observed([engine("s/p", "10.0.0.1")], [object()]), &[&format!("{not_found} event port `kv-events`")]);
    // A replay port that is not there costs the replay only.
    check(
        &observed([base()], [object().replay("kv-replay")]),
        &["m:default s/p/0 16 tcp://10.0.0.1:6000 life c-0:0", &format!("{not_found} replay port `kv-replay`")],
    );
    // The Pod's containers share its address.
    check(
        &observed([base().container("proxy").port("kv-replay", 7000)], [object().replay("kv-replay")]),
        &["m:default s/p/0 16 tcp://10.0.0.1:6000 replay tcp://10.0.0.1:7000 life c-0:0"],
    );
    check(
        &observed([base().port("kv-replay", 6001)], [object().replay("kv-replay").ranks(2, 0, StartRankFrom::Fixed)]),
        &["s/o s/p PortConflict: port 6001 would be an event port and a replay port: the ranges (base + rank) overlap"],
    );
}

#[test]
fn ranks_begin_where_the_pod_stands_among_its_like() {
    let lws = "leaderworkerset.sigs.k8s.io/worker-index";
    let index = "apps.kubernetes.io/pod-index";
    let unknown_lws = format!("s/o s/p-1 RankUnknown: the Pod has no label {lws} with a number");
    for (pod, from, want) in [
        (engine("s/p-1", "10.0.0.1"), StartRankFrom::Fixed, "3 4"),
        (engine("s/p-1", "10.0.0.1").label(lws, "2"), StartRankFrom::LeaderWorkerSetIndex, "7 8"),
        (engine("s/p-1", "10.0.0.1").label(index, "5"), StartRankFrom::StatefulSetIndex, "13 14"),
        (engine("s/p-1", "10.0.0.1"), StartRankFrom::StatefulSetIndex, "5 6"),
        (engine("s/p-1", "10.0.0.1"), StartRankFrom::LeaderWorkerSetIndex, &unknown_lws),
        (engine("s/p-1", "10.0.0.1").label(lws, "first"), StartRankFrom::LeaderWorkerSetIndex, &unknown_lws),
        (
            engine("s/p-x", "10.0.0.1"),
            StartRankFrom::StatefulSetIndex,
            "s/o s/p-x RankUnknown: the Pod has no label apps.kubernetes.io/pod-index with a number, and its name ends with none",
        ),
        (
            engine("s/p-1", "10.0.0.1").label(lws, "100000"),
            StartRankFrom::LeaderWorkerSetIndex,
            "s/o s/p-1 RankUnknown: rank 200003 is above 65535",
        ),
        (
            engine("s/p-1", "10.0.0.1").label(lws, "4294967295"),
            StartRankFrom::LeaderWorkerSetIndex,
            "s/o s/p-1 RankUnknown: rank 8589934593 is above 65535",
        ),
        (
            engine("s/p-1", "10.0.0.1").label(lws, "29988"),
            StartRankFrom::LeaderWorkerSetIndex,
            "s/o s/p-1 PortConflict: the event port 65536 of rank 59979 is above 65535",
        ),
    ] {
        let desired = decide(&observed([pod], [object("s/o").ranks(2, 3, from)]));
        let ranks: Vec<_> = desired.workers.keys().map(|(_, owner)| owner.rank.to_string()).collect();
        let shown = if ranks.is_empty() { show(&desired).trim_end().to_owned() } else { ranks.join(" ") };
        assert_eq!(shown, want);
        for worker in desired.workers.values() {
            let port = 5557 + worker.spec.owner.rank.0;
            assert_eq!(worker.spec.endpoint.as_str(), format!("tcp://10.0.0.1:{port}"));
        }
    }
}

#[test]
fn the_container_whose_restarts_matter_is_found() {
    // engine, b and side each have another life.
    let pods = |annotation: Option<&str>| {
        let mut pod = engine("s/p", "10.0.0.1").container("b").running("c-b", 0).container("side").running("c-side", 0);
        pod.containers.rotate_right(1);
        pod.containers[0].sidecar = true;
        match annotation {
            Some(name) => pod.annotation("kubectl.kubernetes.io/default-container", name),
            None => pod,
        }
    };
    let declares = |mut pod: PodFacts, at: usize, port: u16| {
        pod.containers[at].ports.push((Some("kv-events".to_owned()), port));
        pod
    };
    let named = |name: &str| object("s/o").with(|spec| spec.container_name = Some(name.to_owned()));
    for (name, pod, object, want) in [
        ("the first regular one", pods(None), object("s/o"), "c-0"),
        ("the one that tools take", pods(Some("b")), object("s/o"), "c-b"),
        ("an annotation that names nothing", pods(Some("x")), object("s/o"), "c-0"),
        ("the owner of the number", declares(pods(Some("b")), 1, 5557), object("s/o"), "c-0"),
        ("the owner of the name", declares(pods(None), 2, 5557), object("s/o").events("kv-events"), "c-b"),
        ("a sidecar that owns it", declares(pods(None), 0, 5557), object("s/o"), "c-side"),
        ("the named one", declares(pods(None), 1, 5557), named("b"), "c-b"),
        ("a named sidecar", pods(None), named("side"), "c-side"),
    ] {
        let desired = decide(&observed([pod], [object]));
        let lives: Vec<_> =
            desired.workers.values().map(|w| w.spec.incarnation.clone().unwrap().container_id).collect();
        assert_eq!(lives, [want], "{name}");
    }
    check(&observed([pods(None)], [named("x")]), &["s/o s/p ContainerNotFound: the Pod has no container `x`"]);
}

#[test]
fn only_the_container_that_matters_takes_a_worker_down() {
    let pod = engine("s/p", "10.0.0.1").container("log").running("c-log", 7).down();
    check(&observed([pod], [object("s/o")]), &[WORKER]);
}

#[test]
fn annotated_pods_join_by_label() {
    let base = || pod("s/p").ip("10.0.0.1").running("c-0", 0).annotated("m");
    check(&observed([base()], []), &[WORKER]);
    let mut unlabelled = base();
    unlabelled.labels.clear();
    check(&observed([unlabelled], []), &[]);
    check(&observed([base().label("kvindexer.io/enabled", "false")], []), &[]);
    let full = base()
        .annotation("tenant", "blue")
        .annotation("block-size", "32")
        .annotation("event-port", "kv-events")
        .annotation("replay-port", "6557")
        .annotation("dp-size", "2")
        .annotation("dp-start-rank", "4")
        .annotation("instance-id", "7")
        .annotation("duplicate-policy", "Copies")
        .annotation("container-name", "b")
        .container("b")
        .port("kv-events", 6000)
        .running("c-b", 2);
    let desired = decide(&observed([full], []));
    assert_eq!(
        show(&desired),
        "m:blue 7/4 32 tcp://10.0.0.1:6004 replay tcp://10.0.0.1:6561 life c-b:2\n\
         m:blue 7/5 32 tcp://10.0.0.1:6005 replay tcp://10.0.0.1:6562 life c-b:2\n"
    );
    let policies: Vec<_> = desired.workers.values().map(|worker| worker.spec.owner_spec.policy).collect();
    assert_eq!(policies, [crate::ids::DuplicatePolicy::Copies; 2]);
}

#[test]
fn a_misspelled_annotation_is_a_warning() {
    let pod = pod("s/p").ip("10.0.0.1").running("c-0", 0).annotated("m").annotation("replayport", "5558");
    check(
        &observed([pod], []),
        &[WORKER, "s/p InvalidAnnotation: annotation kvindexer.io/replayport is unknown and has no effect"],
    );
}

#[test]
fn fixed_endpoints_are_workers_without_a_life() {
    let mut second = endpoint("gpu-1", 1, "tcp://gpu-1.example.com:5557");
    second.replay_address = Some("tcp://gpu-1.example.com:5558".to_owned());
    let object = object("s/o").endpoints(&[
        endpoint("gpu-1", 0, "tcp://[fd00::1]:5557"),
        second,
        endpoint("9", 0, "tcp://10.9.9.9:1"),
    ]);
    check(
        &observed([], [object.clone()]),
        &[
            "m:default 9/0 16 tcp://10.9.9.9:1",
            "m:default gpu-1/0 16 tcp://[fd00::1]:5557",
            "m:default gpu-1/1 16 tcp://gpu-1.example.com:5557 replay tcp://gpu-1.example.com:5558",
        ],
    );
    let closed = ControllerConfig { allow_endpoints: false, ..config() };
    let desired = desired(&observed([], [object]), &Described::new(), &LastGood::new(), &closed);
    assert_eq!(
        show(&desired),
        "s/o refused EndpointsNotAllowed: fixed endpoints are switched off here (--allow-endpoints=false)\n"
    );
    assert!(desired.last_good.is_empty());
}

#[test]
fn names_may_be_numbers_and_tenants_namespaces() {
    let hash = ControllerConfig { pod_instance_id: PodInstanceId::Hash, ..config() };
    let view = observed([engine("s/p", "10.0.0.1")], [object("s/o")]);
    let by_number = desired(&view, &Described::new(), &LastGood::new(), &hash);
    // Golden: a client that stored this number must find it again after an upgrade.
    assert_eq!(show(&by_number), "m:default 2603744614133119/0 16 tcp://10.0.0.1:5557 life c-0:0\n");
    let tenants = ControllerConfig { tenant_from_namespace: true, ..config() };
    let annotated = pod("t/a").ip("10.0.0.2").running("c-0", 0).annotated("m").annotation("tenant", "s");
    let view =
        observed([engine("s/p", "10.0.0.1"), annotated], [object("s/o").with(|spec| spec.tenant_id = "t".to_owned())]);
    let desired = desired(&view, &Described::new(), &LastGood::new(), &tenants);
    assert_eq!(
        show(&desired),
        "m:s s/p/0 16 tcp://10.0.0.1:5557 life c-0:0\nm:t t/a/0 16 tcp://10.0.0.2:5557 life c-0:0\n"
    );
}
