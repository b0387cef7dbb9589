//! Hybrid models: several cache groups with one hash per block.

use super::*;

/// Twelve blocks of a main group 0 and what a side group says.
fn hybrid(side: &str) -> Story {
    let mut told = Story::new();
    told.tell("w +1,2,3,4,5,6,7,8,9,10,11,12=ABCDEFGHIJKL g0:full").tell(side);
    told
}

#[test]
fn a_mamba_group_must_hold_the_state_that_ends_there() {
    let told = hybrid("w +4,8 g1:mamba");
    for (query, want) in [("ABC", 0), ("ABCD", 4), ("ABCDEFG", 4), ("ABCDEFGH", 8), ("ABCDEFGHIJKL", 8), ("ABCDX", 4)] {
        assert_eq!(told.answer(query), format!("w {want}/{want}/{want}"), "{query}");
    }
    let mut told = hybrid("w +4,8 g1:mamba; w -8 g1; w -4 g1");
    assert_eq!(told.answer("ABCDEFGH"), "w 0/0/0");
    told.tell("w +2 g1:mamba");
    assert_eq!(told.answer("ABCDEFGH"), "w 2/2/2");
}

#[test]
fn a_window_group_must_hold_the_last_blocks() {
    // Window of 5 tokens, block of 1: the last 4 blocks.
    let told = hybrid("w +1,2,3,4,5,6,7,8,9,10,11,12 g1:window5; w -1,2,3 g1");
    for (query, want) in [("A", 0), ("ABCDEF", 0), ("ABCDEFG", 7), ("ABCDEFGHIJKL", 12)] {
        assert_eq!(told.answer(query), format!("w {want}/{want}/{want}"), "{query}");
    }
}

#[test]
fn several_main_groups_are_intersected() {
    let mut told = hybrid("w +1,2,3,4,5,6,7,8,9,10,11,12=ABCDEFGHIJKL g1:full; w -6 g0; w -9 g1");
    assert_eq!(told.answer("ABCDEFGHIJKL"), "w 5/5/5");
    told.tell("w +5<6=F g0:full");
    assert_eq!(told.answer("ABCDEFGHIJKL"), "w 8/8/8");
    told.tell("w -9 g0");
    let id = told.id("w");
    assert_eq!(told.index.report(id).blocks[0], 11);
}

#[test]
fn a_main_group_is_not_carried_by_another_groups_hash_of_the_same_content() {
    let mut told = Story::new();
    told.tell("w +1,2,3=ABC g0:full; w -2 g0; w +7,8,9=ABC g3:full; w +7,8=AB g0:full");
    assert_eq!(told.answer("ABC"), "w 2/2/2");
}

#[test]
fn main_groups_of_different_block_sizes_agree_on_common_multiples() {
    let told = hybrid("w +2,4,6=ABCDEF/2 g1:full");
    for (query, want) in [("ABC", 2), ("ABCD", 4), ("ABCDEFGH", 6)] {
        assert_eq!(told.answer(query), format!("w {want}/{want}/{want}"), "{query}");
    }
}

#[test]
fn groups_without_a_kind_degrade_and_ask_for_the_last_block() {
    let mut told = Story::new();
    told.tell("w +1,2,3,4=ABCD g0; w +1,2,3,4=ABCD g1; w -2 g1");
    assert_eq!(told.reasons("w"), ["unknown_group"]);
    for (query, want) in [("AB", 1), ("ABCD", 4), ("ABC", 3)] {
        assert_eq!(told.answer(query), format!("w {want}/{want}/{want}"), "{query}");
    }
    told.tell("w -2 g0");
    assert_eq!(told.answer("ABCD"), "w 1/1/1");
}

#[test]
fn group_0_with_fewer_hashes_than_blocks_is_no_main_group() {
    let mut told = Story::new();
    told.tell("w +4=ABCD g0; w +1,2,3,4=ABCD g1");
    for (query, want) in [("ABC", 0), ("ABCD", 4)] {
        assert_eq!(told.answer(query), format!("w {want}/{want}/{want}"), "{query}");
    }
}

#[test]
fn group_0_is_the_main_group_even_before_its_first_store() {
    let mut told = Story::new();
    told.tell("w +1,2=AB g1");
    assert_eq!((told.answer("AB"), told.reasons("w")), ("w 0/0/0".into(), vec!["unknown_group"]));
    told.tell("w +1,2=AB g0");
    assert_eq!(told.answer("AB"), "w 2/2/2");
}

#[test]
fn side_groups_make_copies_count() {
    let mut told = hybrid("w +12 g1:mamba; w +11<12=L g0:full; w -12 g0");
    assert_eq!(told.answer("ABCDEFGHIJKL"), "w 12/12/12", "one copy is left");
    told.tell("w -12 g0");
    assert_eq!(told.answer("ABCDEFGHIJKL"), "w 0/0/0");
}

#[test]
fn side_blocks_may_lie_on_any_tier_that_the_walk_reaches() {
    let told = hybrid("w +4 cpu g1:mamba");
    assert_eq!(told.answer("ABCD"), "w 0/4/4");
}

#[test]
fn groups_stay_announced_over_a_clear_and_are_forgotten_in_a_new_life() {
    let mut told = hybrid("w +4 g1:mamba; w clear; w +1,2=AB g0:full");
    assert_eq!(told.answer("AB"), "w 0/0/0");
    told.tell("w newlife; w +1,2=AB g0:full");
    assert_eq!(told.answer("AB"), "w 2/2/2");
}

#[test]
fn sixteen_twins_in_a_row_are_ambiguous_until_a_store_without_one() {
    let mut told = Story::new();
    told.tell("w -1");
    for pair in 0..8u64 {
        assert!(told.reasons("w").is_empty(), "after {pair} pairs");
        told.tell(&format!("w +{pair}=A; , w +{pair}=A"));
    }
    assert_eq!(told.reasons("w"), ["ambiguous_groups"]);
    told.tell("w +99=B");
    assert!(told.reasons("w").is_empty());
}

#[test]
fn a_group_that_turns_out_to_be_a_window_leaves_the_tree() {
    let mut told = Story::new();
    told.tell("w +1,2=AB g1; w +1,2=AB g0:full; w +1,2=AB g1:window2; w -2 g0");
    assert_eq!(told.answer("AB"), "w 1/1/1");
    let id = told.id("w");
    assert_eq!(told.index.report(id).blocks[0], 1);
}

#[test]
fn group_0_with_fewer_hashes_than_blocks_alone_leaves_no_main_group() {
    check("w +5<1=BA g0; w +2=A g0", "A", "w 0/0/0");
}

#[test]
fn a_waiting_block_that_is_dropped_counts_in_no_group() {
    let mut told = Story::new();
    told.tell("w +1,2=AB g1:full; w +9<3=C lora:x g0:full; w +1,2,9=ABD g1:full; w +1,2=AB g0:full; w +9<3=C g1:full");
    assert_eq!(told.answer("ABDC"), "w 2/2/2");
}
