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
