//! Tiers, hash-only stores, pools, ageing, frequencies, explanations.

use super::*;

#[test]
fn lower_tiers_go_on_where_the_nearer_one_ends() {
    for (story, query, want) in [
        ("w +1,2=AB; w cpu +2<3=C", "ABCD", "w 2/3/3"),
        ("w cpu +1,2,3=ABC", "ABC", "w 0/3/3"),
        ("w +1=A; w disk +1<2=B; w cpu +2<3=C", "ABC", "w 1/1/2"),
        ("w +1=A; w cpu +1<2=B; w disk +2<3=C; w ext +3<4=D", "ABCD", "w 1/2/4"),
        ("w +1=A; w ext +1<2=B; w disk +2<3=C", "ABC", "w 1/1/2"),
        ("w +1=A; w cpu +1=A; w -1", "A", "w 0/1/1"),
        ("w +1=A; w cpu +1=A; w cpu -1", "A", "w 1/1/1"),
        ("w cpu +1,2,3=ABC; w cpu -2", "ABC", "w 0/1/1"),
        ("w +1,2=AB; w cpu +11,12,13=ABC", "ABC", "w 2/3/3"),
        ("w +1,2=AB; w cpu +11,12,13=ABC; w cpu -11", "ABC", "w 2/2/2"),
        ("w +1=A; w cpu +1,2=AB; w disk +1=A; w clear", "AB", "w 0/0/0"),
    ] {
        check(story, query, want);
    }
}

#[test]
fn hashes_without_tokens_name_what_was_announced() {
    for (story, query, want) in [
        ("w +1,2=AB; w cpu +1,2; w -1,2", "AB", "w 0/2/2"),
        ("w +1,2=AB; w -1,2; w cpu +1,2", "AB", "w 0/2/2"),
        ("w +1,2=AB; w clear; w cpu +1,2", "AB", "w 0/2/2"),
        ("w +1,2=AB; w newlife; w cpu +1,2", "AB", "w 0/0/0"),
        ("a +1,2=AB; w cpu +1,2", "AB", "a 2/2/2 | w 0/2/2"),
        ("a +1,2=AB; w cpu +1,2; w cpu -2", "AB", "a 2/2/2 | w 0/1/1"),
        ("a +1=A; b +1=B; w cpu +1", "A", "a 1/1/1 | b 0/0/0 | w 0/0/0"),
        ("w +1<2=B; w cpu +2; w -2; w +1=A", "AB", "w 1/2/2"),
        ("a +7=AB/2; w cpu +7", "AB", "a 2/2/2 | w 0/2/2"),
    ] {
        check(story, query, want);
    }
    let mut told = Story::new();
    told.tell("a +1=A; b +1=B; w cpu +1,9");
    assert_eq!(told.skipped("w", SkipReason::AmbiguousHash), 1);
    assert_eq!(told.skipped("w", SkipReason::UnknownHash), 1);
}

#[test]
fn removed_hashes_are_remembered_up_to_the_limit() {
    let mut told = Story::limited(2, 8);
    told.tell("w +1,2,3=ABC; w -1; w -2; w -3; w cpu +1,2,3");
    assert_eq!(told.skipped("w", SkipReason::UnknownHash), 1);
    assert_eq!(told.dump("w"), "host_pinned 1>2, host_pinned 2>3");
    told.tell("w newlife");
    assert_eq!(
        Stats { bytes: 0, ..told.index.stats() },
        Stats { held_blocks: 0, content_blocks: 0, nodes: 0, owners: 1, ..Stats::default() }
    );
}

#[test]
fn a_pool_extends_the_external_tier_of_everybody_and_is_not_listed() {
    for (story, query, want) in [
        ("w +1=A; pool cpu +1,2=AB", "AB", "w 1/1/2"),
        ("w +1,2=AB; pool ext +1,2; w -2", "AB", "w 1/1/2"),
        ("w +1=A; pool +2,3=AB; w +1<4=B; w +4<5=C; w -4", "ABC", "w 1/1/2"),
        ("w +1,2,3=ABC; pool ext +1; w -1; w +9=A", "ABC", "w 1/1/1"),
        ("w +1=A; w register; v register; pool +2,3=AB", "AB", "v 0/0/2 | w 1/1/2"),
    ] {
        check(story, query, want);
    }
}

#[test]
fn lower_tiers_age_by_the_timestamps_of_batches() {
    let spec = OwnerSpec { lower_tier_ttl_ms: Some(100), ..OwnerSpec::default() };
    let mut told = Story::with(spec, Limits::default(), 1);
    told.tell("w +1=A at:1000; w cpu +1<2=B at:1000; w cpu +2<3=C at:1050");
    told.tell("w cpu +1<2=B at:1060; w +9=Z at:1140");
    assert_eq!(told.answer("ABC"), "w 1/3/3");
    told.tell("w -9 at:1155");
    assert_eq!(told.answer("ABC"), "w 1/2/2");
    told.tell("w +9=Z at:9000");
    assert_eq!(told.answer("ABC"), "w 1/1/1");
}

#[test]
fn frequencies_count_device_prefixes() {
    let mut told = Story::new();
    told.tell("a +1,2,3=ABC; b +1=A; c cpu +1,2=AB; d +1,2,3=ABC; d -2");
    assert_eq!(told.index.find(&locals("ABCD", Namespace::default(), None)).frequencies, Frequencies::of(&[3, 1, 1]));
    assert!(told.index.find(&locals("X", Namespace::default(), None)).frequencies.is_empty());
}

#[test]
fn mooncakes_prefixes_stand_on_one_medium_each() {
    let mut told = Story::new();
    told.tell("w +1=A; w cpu +1,2,3=ABC; w disk +1,2=AB");
    assert_eq!(
        told.index.find(&locals("ABC", Namespace::default(), None)).owners().next().unwrap().own_prefix,
        [1, 3, 2]
    );
}

#[test]
fn rolling_hashes_find_the_same() {
    let mut told = Story::new();
    told.tell("w +1,2,3=ABC; w +1<4,5=XY; w +4<6=Z; w +9=Q");
    for query in ["ABC", "AXY", "AXZ", "AXQ", "Q", "B", "", "ABCD"] {
        let path = locals(query, Namespace::default(), None);
        let mut rolling = Vec::new();
        for local in &path {
            rolling.push(hash::rolling(rolling.last().copied(), *local));
        }
        assert_eq!(rows(&told.index.find_rolling(&rolling)), rows(&told.index.find(&path)), "{query}");
    }
}

#[test]
fn owners_named_by_batches_are_listed_only_when_they_match() {
    let mut told = Story::new();
    told.tell("w +1=A");
    let like = told.id("w");
    let other = told.index.intern(&Owner::new(5, 3), like, 9);
    assert_eq!(told.answer("A"), "w 1/1/1");
    let mut batch = Batch::default();
    add(&mut batch, &["+1=A"], 1);
    told.index.apply(other, &batch, ApplyContext { seq: Seq(9), now_ms: 9 });
    assert_eq!(told.answer("A"), "5 1/1/1 | w 1/1/1");
    assert_eq!(told.answer("B"), "w 0/0/0");
}

#[test]
fn explanations_name_what_ends_a_match() {
    let reason = |story: &str, query: &str| {
        let mut told = Story::new();
        told.tell(story);
        let explained = told.index.explain(&locals(query, Namespace::default(), None));
        format!("{:?} / {:?}", explained[0].device_end.reason, explained[0].total_end.reason)
    };
    for (story, query, want) in [
        ("w +1=A", "A", "WholeQuery / WholeQuery"),
        ("w +1=A", "AB", "NeverStored / NeverStored"),
        (
            "w +1,2=AB; w -2",
            "AB",
            "Removed { hash: EngineHash(2), seq: Seq(1), at_ms: 1001 } / Removed { hash: EngineHash(2), seq: Seq(1), at_ms: 1001 }",
        ),
        ("w +1=A; w cpu +1<2=B", "AB", "OtherTier { tiers: [HostPinned] } / WholeQuery"),
        ("w +1=A; w +7<8=B", "AB", "PendingParent { pending: 1 } / PendingParent { pending: 1 }"),
        ("w +1=A; v +1,2=AB", "AB", "RemovedOrNeverStored / RemovedOrNeverStored"),
        ("w +1=A g0:full; w +1 g1:mamba; w +1<2=B g0:full", "AB", "SideGroup { group: 1 } / SideGroup { group: 1 }"),
        ("w +1,2,3=ABC; w +1<9=B; w -2", "ABC", "BrokenChain / BrokenChain"),
    ] {
        let mut told = Story::new();
        told.tell(story);
        let explained = told.index.explain(&locals(query, Namespace::default(), None));
        let explained = explained.iter().find(|row| row.owner == owner("w")).expect("w is registered");
        assert_eq!(format!("{:?} / {:?}", explained.device_end.reason, explained.total_end.reason), want, "{story}");
    }
    assert_eq!(reason("w register", "A"), "NotConnected / NotConnected");
}
