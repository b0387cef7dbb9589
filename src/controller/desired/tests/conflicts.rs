//! Several sources that want the same: the older wins, whatever the order of their names.

use super::*;

/// A Pod that joins by itself.
fn joining(name: &str, ip: &str) -> PodFacts {
    pod(name).ip(ip).running("c-0", 0).annotated("m")
}

#[test]
fn an_object_beats_annotations() {
    let pod = engine("s/p", "10.0.0.1").annotated("by-annotation");
    check(
        &observed([pod.clone()], [object("s/o").model("by-object").created(9)]),
        &["by-object:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0"],
    );
    check(&observed([pod], []), &["by-annotation:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0"]);
}

#[test]
fn of_two_objects_for_one_pod_the_older_wins_and_the_other_says_so() {
    let claimed = |loser: &str, winner: &str| {
        format!("s/{loser} s/p PodAlreadyClaimed: the Pod belongs to the older IndexerWorker `{winner}`")
    };
    for (a, b, winner, loser) in [(1, 2, "a", "b"), (2, 1, "b", "a"), (1, 1, "a", "b")] {
        let objects = [object("s/a").model("a").created(a), object("s/b").model("b").created(b)];
        check(
            &observed([engine("s/p", "10.0.0.1")], objects),
            &[&format!("{winner}:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0"), &claimed(loser, winner)],
        );
    }
}

#[test]
fn claims_are_judged_before_the_worker_selector() {
    let view = observed(
        [engine("s/p", "10.0.0.1")],
        [
            object("s/old").model("old").created(1).label("fleet", "a"),
            object("s/new").model("new").created(2).label("fleet", "b"),
        ],
    );
    let of_fleet = |fleet: &str| {
        let config = ControllerConfig { worker_selector: format!("fleet={fleet}").parse().unwrap(), ..config() };
        desired(&view, &Described::new(), &LastGood::new(), &config)
    };
    assert_eq!(show(&of_fleet("a")), "old:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0\n");
    assert_eq!(show(&of_fleet("b")), "s/new s/p PodAlreadyClaimed: the Pod belongs to the older IndexerWorker `old`\n");
    assert_eq!(of_fleet("a").objects.keys().collect::<Vec<_>>(), [&key("s/old")]);
    assert_eq!(of_fleet("c").objects.len(), 0);
    assert_eq!(of_fleet("b").last_good.len(), 2, "claims need the specs of all objects");
}

#[test]
fn annotated_pods_are_split_by_their_own_labels() {
    let view =
        observed([joining("s/a", "10.0.0.1").label("fleet", "a"), joining("s/b", "10.0.0.2").label("fleet", "b")], []);
    let config = ControllerConfig { worker_selector: "fleet in (b)".parse().unwrap(), ..config() };
    let desired = desired(&view, &Described::new(), &LastGood::new(), &config);
    assert_eq!(show(&desired), "m:default s/b/0 16 tcp://10.0.0.2:5557 life c-0:0\n");
}

#[test]
fn an_object_without_a_spec_in_force_claims_nothing() {
    let bad = object("s/bad").created(1).with(|spec| spec.block_size = 0);
    check(
        &observed([engine("s/p", "10.0.0.1")], [bad, object("s/o").created(2)]),
        &[
            "m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0",
            "s/bad refused InvalidSpec: spec.blockSize must be from 1 to 65536",
        ],
    );
}

#[test]
fn of_two_sources_for_one_instance_the_older_wins() {
    let box_1 = |created| object("s/o").created(created).endpoints(&[endpoint("box-1", 0, "tcp://10.9.9.9:5557")]);
    let pod = |created| joining("t/p", "10.0.0.1").created(created).annotation("instance-id", "box-1");
    let belongs = "InstanceConflict: instance `box-1` rank 0 belongs to an older one:";
    check(
        &observed([pod(2)], [box_1(1)]),
        &["m:default box-1/0 16 tcp://10.9.9.9:5557", &format!("t/p {belongs} IndexerWorker `s/o`")],
    );
    check(
        &observed([pod(1)], [box_1(2)]),
        &["m:default box-1/0 16 tcp://10.0.0.1:5557 life c-0:0", &format!("s/o s/o {belongs} Pod `t/p`")],
    );
    // Another index is another matter.
    check(
        &observed([pod(1)], [box_1(2).model("x")]),
        &["m:default box-1/0 16 tcp://10.0.0.1:5557 life c-0:0", "x:default box-1/0 16 tcp://10.9.9.9:5557"],
    );
}

#[test]
fn ranks_of_a_chosen_instance_may_live_in_several_pods() {
    let pod = |name, ip, rank| joining(name, ip).annotation("instance-id", "e").annotation("dp-start-rank", rank);
    check(
        &observed([pod("s/a", "10.0.0.1", "0"), pod("s/b", "10.0.0.2", "1")], []),
        &["m:default e/0 16 tcp://10.0.0.1:5557 life c-0:0", "m:default e/1 16 tcp://10.0.0.2:5558 life c-0:0"],
    );
}

#[test]
fn a_number_made_of_a_name_that_another_one_has_is_a_conflict_even_at_another_rank() {
    let config = ControllerConfig { pod_instance_id: PodInstanceId::Hash, ..config() };
    let number = pods::hashed("s/p").to_string();
    let thief = |created| {
        joining("t/thief", "10.0.0.9")
            .created(created)
            .annotation("instance-id", &number)
            .annotation("dp-start-rank", "5")
    };
    for (created, want) in [(-1, "s/o s/p InstanceConflict"), (1, "t/thief InstanceConflict")] {
        let view = observed([engine("s/p", "10.0.0.1"), thief(created)], [object("s/o")]);
        let desired = desired(&view, &Described::new(), &LastGood::new(), &config);
        let shown = show(&desired);
        assert!(desired.workers.len() == 1 && shown.contains(want), "{shown}");
    }
}

#[test]
fn two_pods_may_share_an_address() {
    check(
        &observed([engine("s/a", "10.0.0.1"), engine("s/b", "10.0.0.1")], [object("s/o")]),
        &["m:default s/a/0 16 tcp://10.0.0.1:5557 life c-0:0", "m:default s/b/0 16 tcp://10.0.0.1:5557 life c-0:0"],
    );
}

#[test]
fn the_oldest_source_of_an_index_fixes_its_block_size() {
    let since = "BlockSizeMismatch: model `m` of tenant `default` has blocks of";
    let big = |created| object("t/big").created(created).with(|spec| spec.block_size = 32);
    let pods = || [engine("s/p", "10.0.0.1"), engine("t/q", "10.0.0.2")];
    check(
        &observed(pods(), [object("s/o").created(1), big(2)]),
        &[
            "m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0",
            &format!("t/big refused {since} 16 tokens since IndexerWorker `s/o`, not 32"),
        ],
    );
    check(
        &observed(pods(), [object("s/o").created(2), big(1)]),
        &[
            "m:default t/q/0 32 tcp://10.0.0.2:5557 life c-0:0",
            &format!("s/o refused {since} 32 tokens since IndexerWorker `t/big`, not 16"),
        ],
    );
    let annotated = joining("s/a", "10.0.0.3").created(5).annotation("block-size", "64");
    check(
        &observed([annotated], [object("s/o").created(1)]),
        &[&format!("s/a {since} 16 tokens since IndexerWorker `s/o`, not 64")],
    );
    // Another tenant has an index of its own.
    let other = object("s/o").created(1).with(|spec| (spec.tenant_id, spec.block_size) = ("x".to_owned(), 8));
    check(
        &observed(pods(), [other, big(2)]),
        &["m:default t/q/0 32 tcp://10.0.0.2:5557 life c-0:0", "m:x s/p/0 8 tcp://10.0.0.1:5557 life c-0:0"],
    );
}

#[test]
fn members_say_where_they_come_from() {
    let object = object("s/o").ranks(2, 0, StartRankFrom::Fixed);
    let desired = decide(&observed([engine("s/b", "10.0.0.2").down(), engine("s/a", "10.0.0.1")], [object]));
    let finding = &desired.objects[&key("s/o")];
    let members: Vec<_> = finding
        .members
        .iter()
        .map(|m| format!("{} {} {} {}", m.pod.as_ref().unwrap(), m.owner, m.address, m.container_down))
        .collect();
    assert_eq!(
        members,
        [
            "s/a s/a/0 tcp://10.0.0.1:5557 false",
            "s/a s/a/1 tcp://10.0.0.1:5558 false",
            "s/b s/b/0 tcp://10.0.0.2:5557 true",
            "s/b s/b/1 tcp://10.0.0.2:5558 true",
        ]
    );
    assert_eq!(finding.uid, "uid-of-s/o");
}
