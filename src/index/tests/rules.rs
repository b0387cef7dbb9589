//! Stores, removals, parents, hashes, namespaces, waiting blocks.

use super::*;

#[test]
fn stores_removals_and_repeats_count_as_sets() {
    for (story, query, want) in [
        ("w +1,2,3=ABC", "ABC", "w 3/3/3"),
        ("w +1,2,3=ABC", "ABCD", "w 3/3/3"),
        ("w +1,2,3=ABC", "AB", "w 2/2/2"),
        ("w +1,2,3=ABC", "AXC", "w 1/1/1"),
        ("w +1,2,3=ABC", "", "w 0/0/0"),
        ("w +1,2=AB; w +2<3=C", "ABC", "w 3/3/3"),
        ("w +1,2=AB; w +1,2,3=ABC; w -3", "ABC", "w 2/2/2"),
        ("w +1,2,3=ABC; w -2", "ABC", "w 1/1/1"),
        ("w +1,2,3=ABC; w -2; w +1<2=B", "ABC", "w 3/3/3"),
        ("w +1,2,3=ABC; w +1,2,3=ABC; w -3", "ABC", "w 2/2/2"),
        ("w +1,2,3=ABC; w -9,3,8,2", "ABC", "w 1/1/1"),
        ("w +1,2,3=ABC; w +1<4,5=XY", "AXY", "w 3/3/3"),
        ("w +1,2,3=ABC; w +1<4,5=XY; w -1", "AXY", "w 0/0/0"),
        ("w +1,2,3=ABC; w +1<4,5=XY; w -1; w +1=A", "AXY", "w 3/3/3"),
        ("w +1,2,3=ABC; w clear", "ABC", "w 0/0/0"),
        ("w +1,2,3=ABC; w newlife", "ABC", "w 0/0/0"),
        ("w +1,2,3=ABC; w clear; w +1,2=AB", "ABC", "w 2/2/2"),
    ] {
        check(story, query, want);
    }
}

#[test]
fn owners_do_not_touch_each_other() {
    for (story, query, want) in [
        ("a +1,2=AB; b +1,2=AB; a -2", "AB", "a 1/1/1 | b 2/2/2"),
        ("a +1,2=AB; b +1,2=AB; a clear", "AB", "a 0/0/0 | b 2/2/2"),
        ("a +1,2=AB; b +1,2=AB; a gone", "AB", "b 2/2/2"),
        ("a +1,2=AB; b +7,8=AB; a -7; b -8", "AB", "a 2/2/2 | b 1/1/1"),
        ("a +1,2=AB; b +7,8=AB; b +8<9=C; a +2<3=C", "ABC", "a 3/3/3 | b 3/3/3"),
        ("a +1,2=AB; b +2,1=AB; b -1", "AB", "a 2/2/2 | b 1/1/1"),
        ("a +1,2=AB; b +2=X; b -2", "AB", "a 2/2/2 | b 0/0/0"),
        ("a +1,2=AB; b +2=X; a -2", "X", "a 0/0/0 | b 1/1/1"),
        ("a +1,2,3,4=ABCD; b +1,2=AB; b +2<5=E", "ABE", "a 2/2/2 | b 3/3/3"),
    ] {
        check(story, query, want);
    }
}

#[test]
fn equal_tokens_in_a_row_are_different_blocks() {
    let numbers: Vec<String> = (1..=50).map(|number| number.to_string()).collect();
    let tokens = "Z".repeat(50);
    let mut told = Story::new();
    told.tell(&format!("w +{}={tokens}", numbers.join(",")));
    for (length, want) in [(50, 50), (51, 50), (10, 10)] {
        assert_eq!(told.answer(&"Z".repeat(length)), format!("w {want}/{want}/{want}"));
    }
    told.tell("w -25");
    assert_eq!(told.answer(&tokens), "w 24/24/24");
    told.tell("w +24<25=Z");
    assert_eq!(told.answer(&tokens), "w 50/50/50");
}

#[test]
fn one_hash_at_two_places_matches_at_both_and_goes_at_once() {
    for (story, query, want) in [
        ("w +1=A; w +2=B; w +2<1=C", "A", "w 1/1/1"),
        ("w +1=A; w +2=B; w +2<1=C", "BC", "w 2/2/2"),
        ("w +1=A; w +2=B; w +2<1=C; w -1", "A", "w 0/0/0"),
        ("w +1=A; w +2=B; w +2<1=C; w -1", "BC", "w 1/1/1"),
        ("w +1=A; w +2=B; w +2<1=C; w +1<3=D", "BCD", "w 3/3/3"),
        ("w +1=A; w +2=B; w +2<1=C; w +1<3=D", "AD", "w 1/1/1"),
        ("w +1=A; w -1; w +2=B; w +2<1=C", "A", "w 0/0/0"),
        ("w +1=A; w +1=B; w +1=A; w +1<5=E", "AE", "w 2/2/2"),
    ] {
        check(story, query, want);
    }
}

#[test]
fn a_second_hash_for_the_same_content_does_not_carry_children_of_the_first() {
    for (story, query, want) in [
        ("w +1,2,3=ABC; w +1<9=B; w -2", "ABC", "w 2/2/2"),
        ("w +1,2,3=ABC; w +1<9=B; w -9", "ABC", "w 3/3/3"),
        ("w +1,2,3=ABC; w -2; w +1<9=B", "ABC", "w 2/2/2"),
        ("w +1,2,3=ABC; w -2; w +1<9=B; w +9<3=C", "ABC", "w 3/3/3"),
        ("w +1,2=AB; w +1<9=B; w +9<3=C; w -9", "ABC", "w 2/2/2"),
        ("w +1,2=AB; w +1<9=B; w +9<3=C; w -2", "ABC", "w 3/3/3"),
        ("w +1,2=AB; w +1<9=B; w +9<3=C; w -9; w +1<9=B", "ABC", "w 3/3/3"),
    ] {
        check(story, query, want);
    }
    let mut told = Story::new();
    told.tell("w +1,2=AB; w +1<9=B");
    let id = told.id("w");
    assert_eq!(told.index.report(id).blocks[0], 3, "two hashes are two blocks");
}

#[test]
fn a_child_of_an_unknown_parent_waits_and_joins() {
    for (story, query, want) in [
        ("w +5<6=A", "A", "w 0/0/0"),
        ("w +1<2,3=BC; w +1=A", "ABC", "w 3/3/3"),
        ("w +2<3=C; w +1<2=B; w +1=A", "ABC", "w 3/3/3"),
        ("w +1<2,3=BC; w -2; w +1=A", "ABC", "w 1/1/1"),
        ("w +1<2,3=BC; w -3; w +1=A", "ABC", "w 2/2/2"),
        ("w +1<2,3=BC; w clear; w +1=A", "ABC", "w 1/1/1"),
        ("w +1<2=B; w cpu +1<2=B; w -2; w +1=A", "AB", "w 1/2/2"),
        ("v +1=A; w +1<2=B", "AB", "v 1/1/1 | w 0/0/0"),
        ("w +1=A; w -1; w +1<2=B", "AB", "w 0/0/0"),
        ("w +1=A; w -1; w +1<2=B; w +1=A", "AB", "w 2/2/2"),
    ] {
        check(story, query, want);
    }
    let mut told = Story::new();
    told.tell("w +1<2,3=BC");
    assert_eq!(told.reasons("w"), ["pending_parents"]);
    assert_eq!(told.dump("w"), "device 1>2?, device 2>3?");
    told.tell("w +1=A");
    assert!(told.reasons("w").is_empty());
    assert_eq!(told.dump("w"), "device root>1, device 1>2, device 2>3");
}

#[test]
fn too_many_waiting_blocks_drop_the_oldest_and_stay_known_until_a_clear() {
    let mut told = Story::limited(8, 2);
    told.tell("w +1<2,3,4=BCD");
    assert_eq!(told.skipped("w", SkipReason::PendingOverflow), 1);
    assert_eq!(told.dump("w"), "device 2>3?, device 3>4?");
    told.tell("w +1=A; w +1<2=B");
    assert_eq!(told.answer("ABCD"), "w 4/4/4");
    assert_eq!(told.reasons("w"), ["pending_parents"]);
    told.tell("w clear");
    assert!(told.reasons("w").is_empty());
}

#[test]
fn namespaces_come_from_the_parent_and_never_mix() {
    let lora = Namespace { lora: hash::lora_name("x"), salt: None };
    let salt = Namespace { lora: None, salt: hash::salt("s") };
    let both = Namespace { lora: lora.lora, salt: salt.salt };
    for (story, namespace, want) in [
        ("w +1,2=AB lora:x", Namespace::default(), "w 0/0/0"),
        ("w +1,2=AB lora:x", lora, "w 2/2/2"),
        ("w +1=A salt:s; w +1<2=B", salt, "w 2/2/2"),
        ("w +1=A salt:s; w +1<2=B", Namespace::default(), "w 0/0/0"),
        ("w +1<2=B; w +1=A salt:s", salt, "w 2/2/2"),
        ("w +1=A salt:s lora:x; w +1<2=B lora:x", both, "w 2/2/2"),
        ("w +1=A; w +1<2=B lora:x", Namespace::default(), "w 1/1/1"),
    ] {
        let mut told = Story::new();
        told.tell(story);
        assert_eq!(told.answer_in("AB", namespace), want, "{story}");
    }
    let mut told = Story::new();
    told.tell("w +1=A salt:s; w +1<2=B salt:t; w +7<8=C lora:x; w +7=A");
    assert_eq!(told.skipped("w", SkipReason::NamespaceConflict), 2);
    assert_eq!(told.reasons("w"), ["skipped"]);
}

#[test]
fn blocks_with_an_image_are_no_plain_blocks() {
    let mut told = Story::new();
    told.tell("w +1=A; w +1<2=B img:7; w +2<3=C; w +1<4=B img:8");
    assert_eq!(told.answer("ABC"), "w 1/1/1");
    let mut path = locals("A", Namespace::default(), None);
    path.extend(locals("B", Namespace::default(), Some(7)));
    path.extend(locals("C", Namespace::default(), None));
    assert_eq!(rows(&told.index.find(&path)), "w 3/3/3");
}

#[test]
fn copies_are_taken_one_by_one_only_where_the_policy_says_so() {
    let twice = "w +1,2=AB; w +1,2=AB; w -2";
    for (policy, want) in
        [(DuplicatePolicy::Auto, "w 1/1/1"), (DuplicatePolicy::Set, "w 1/1/1"), (DuplicatePolicy::Copies, "w 2/2/2")]
    {
        let mut told = Story::policy(policy);
        told.tell(twice);
        assert_eq!(told.answer("AB"), want, "{policy:?}");
    }
    let mut told = Story::policy(DuplicatePolicy::Copies);
    told.tell(twice).tell("w -2");
    assert_eq!(told.answer("AB"), "w 1/1/1");
    for policy in [DuplicatePolicy::Auto, DuplicatePolicy::Copies] {
        let mut told = Story::policy(policy);
        told.tell("w +1,2=AB; w -2 left:3");
        assert_eq!(told.answer("AB"), "w 2/2/2", "more keeps");
        told.tell("w -2 left:0");
        assert_eq!(told.answer("AB"), "w 1/1/1", "0 removes");
    }
}

#[test]
fn larger_engine_blocks_are_cut_into_index_blocks() {
    for (story, query, want) in [
        ("w +7,8=ABCD/2", "ABCD", "w 4/4/4"),
        ("w +7,8=ABCD/2", "ABC", "w 3/3/3"),
        ("w +7,8=ABCD/2; w -7", "ABCD", "w 0/0/0"),
        ("w +7,8=ABCD/2; w -8", "ABCD", "w 2/2/2"),
        ("w +7=AB/2; w +7<8=CD/2", "ABCD", "w 4/4/4"),
        ("w +7=AB/2; w +7<9=C", "ABC", "w 3/3/3"),
        ("w +1,2=AB; w cpu +7,8=ABCD/2", "ABCD", "w 2/4/4"),
        ("w +1,2=AB; w cpu +7,8=ABCD/2; w cpu -7", "ABCD", "w 2/2/2"),
        ("w +7<8=CD/2; w +7=AB/2", "ABCD", "w 4/4/4"),
        ("w +7=AB/2; w cpu +7; w -7", "AB", "w 0/2/2"),
    ] {
        check(story, query, want);
    }
}

#[test]
fn block_sizes_that_do_not_fit_are_told_and_partial_tails_ignored() {
    let mut told = Story::with(OwnerSpec::default(), Limits::default(), 2);
    told.tell("w +1=ABC/3");
    assert_eq!(told.reasons("w"), ["block_size_mismatch"]);
    let id = told.id("w");
    assert_eq!(told.index.report(id).announced_block_size, Some(3));
    assert_eq!(told.skipped("w", SkipReason::BlockSize), 1);
    told.tell("w clear; w +2=AB; w +2<3=C/1");
    assert!(told.reasons("w").is_empty());
    assert_eq!(told.index.report(id).ignored[crate::event::IgnoreReason::PartialTail as usize], 1);
}

#[test]
fn tokens_that_do_not_fit_the_hashes_are_skipped() {
    let mut told = Story::new();
    told.tell("w +1,2=A");
    assert_eq!((told.skipped("w", SkipReason::TokenCount), told.reasons("w")), (1, vec!["skipped"]));
    told.tell("w newlife; w +1=AB");
    assert_eq!(told.reasons("w"), ["skipped", "ambiguous_groups"]);
    told.tell("w +3=X");
    assert_eq!(told.reasons("w"), ["skipped"]);
}

#[test]
fn stores_are_skipped_over_the_memory_limit_and_removals_are_not() {
    let mut told = Story::new();
    told.tell("w +1,2=AB");
    told.index.set_memory_pressure(true, 5);
    told.tell("w -2; w +1<3=C");
    assert_eq!(told.answer("AC"), "w 1/1/1");
    assert_eq!(told.reasons("w"), ["memory"]);
    told.index.set_memory_pressure(false, 6);
    told.tell("w +1<3=C");
    assert_eq!(told.answer("AC"), "w 2/2/2");
    assert_eq!(told.reasons("w"), ["memory"], "not refilled");
}

#[test]
fn trust_begins_stale_and_a_batch_is_something_heard() {
    let mut index = PrefixIndex::new(BlockSize::new(1).expect("not 0"), Limits::default());
    let id = index.register(&owner("w"), OwnerSpec::default(), 7);
    assert_eq!(index.trust(id).state(), State::Stale);
    index.apply(id, &Batch::default(), ApplyContext { seq: Seq(0), now_ms: 8 });
    assert_eq!(index.trust(id).reasons().collect::<Vec<_>>(), [Reason::NotConnected]);
}

// Histories that a naive model found: each was answered wrongly once.

#[test]
fn a_child_keeps_the_hash_it_named_when_that_is_forgotten_and_another_takes_the_place() {
    let mut told = Story::limited(1, 8);
    told.tell("w +1,2,3=ABC; w -2; w +8=Q; w -8; w +1<9=B");
    assert_eq!(told.answer("ABC"), "w 2/2/2");
    told.tell("w +1<2=B");
    assert_eq!(told.answer("ABC"), "w 3/3/3");
}

#[test]
fn copies_count_over_places_waiting_blocks_and_policies() {
    for (story, want) in [
        ("w +1=A; w +7<1=B; w -1", "w 1/1/1"),
        ("w +7<1=B; w +1=A; w -1", "w 1/1/1"),
        ("w +1=A; w +2=B; w +2<1=C; w -1", "w 1/1/1"),
        ("w +1=A; w +7<1=B; w -1; w -1", "w 0/0/0"),
    ] {
        let mut told = Story::policy(DuplicatePolicy::Copies);
        told.tell(story);
        assert_eq!(told.answer("A"), want, "{story}");
    }
    let mut told = Story::policy(DuplicatePolicy::Set);
    told.tell("w +1=A; w +1=A");
    let copies = OwnerSpec { policy: DuplicatePolicy::Copies, ..OwnerSpec::default() };
    told.index.register(&owner("w"), copies, 5);
    told.tell("w -1");
    assert_eq!(told.answer("A"), "w 1/1/1");
}

#[test]
fn a_hash_that_names_different_lengths_is_ambiguous() {
    let mut told = Story::new();
    told.tell("a +5=AB/2; b +1,5=AB; w cpu +5");
    assert_eq!(told.skipped("w", SkipReason::AmbiguousHash), 1);
}

#[test]
fn a_remembered_place_takes_children_only_when_the_hash_is_held_nowhere() {
    check("w +1=A; w cpu +1; w +2=B; w +2<1=C; w -1; w +1<3=D", "AD", "w 0/1/1");
    check("w +1=A; w cpu +1; w +2=B; w +2<1=C; w -1; w cpu -1; w cpu +1", "BC", "w 1/2/2");
}
