//! What is freed, and when.

use super::*;

#[test]
fn nothing_is_left_when_everybody_is_gone() {
    for story in [
        "a +1,2,3=ABC; b +1,2=AB; b +2<9,8=XY; a -2; a gone; b gone",
        "a +1,2,3=ABC; b +7,8,9=ABC; b +8<5=Q; a +1<4=B; a -1; a clear; b gone; a gone",
        "a +1=A; a +2=B; a +2<1=C; a -1; b cpu +2; a gone; b gone",
        "a +7,8=ABCD/2; a +5<6=Z; a disk +8; a gone",
    ] {
        let mut told = Story::new();
        told.tell(story);
        assert_eq!(Stats { bytes: 0, ..told.index.stats() }, Stats::default(), "{story}");
    }
}

#[test]
fn a_removed_tail_is_freed_once_it_is_forgotten() {
    let mut told = Story::limited(1, 8);
    told.tell("w +1,2,3,4=ABCD; w -4; w -3; w -2");
    assert_eq!(
        Stats { bytes: 0, ..told.index.stats() },
        Stats { held_blocks: 1, content_blocks: 2, nodes: 1, owners: 1, ..Stats::default() }
    );
    told.tell("w -1");
    assert_eq!(told.index.stats().content_blocks, 1);
    told.tell("w +1=A; w +1<2=B; w +1<5=E");
    assert_eq!(told.answer("AE"), "w 2/2/2");
}

#[test]
fn churn_below_one_prompt_leaves_no_trace() {
    let mut told = Story::limited(16, 8);
    told.tell("w +1,2,3=ABC");
    for round in 0..2000u64 {
        let first = 100 + 10 * round;
        let tokens: String = (0..4).map(|shift| char::from(b'a' + (round >> (4 * shift) & 15) as u8)).collect();
        told.tell(&format!("w +3<{},{},{},{}={tokens}", first, first + 1, first + 2, first + 3));
        if round >= 5 {
            let old = first - 50;
            told.tell(&format!("w -{},{},{},{}", old + 3, old + 2, old + 1, old));
        }
    }
    let stats = told.index.stats();
    assert_eq!(stats.held_blocks, 3 + 5 * 4);
    assert!(stats.content_blocks <= 3 + 5 * 4 + 16, "{stats:?}");
    assert!(stats.nodes <= 3 + 5 * 4 + 16, "{stats:?}");
}

#[test]
fn a_hash_that_comes_back_is_not_forgotten_early() {
    let mut recents = recent::Recents::default();
    for hash in [1, 2, 3] {
        recents.push(hash);
    }
    recents.revive(1);
    recents.push(1);
    assert_eq!((recents.len(), recents.iter().collect::<Vec<_>>()), (3, vec![2, 3, 1]));
    assert_eq!([recents.pop(), recents.pop(), recents.pop(), recents.pop()], [Some(2), Some(3), Some(1), None]);
}

/// A batch without events dropped what it had to give back.
#[test]
fn blocks_that_age_out_by_a_batch_without_events_are_given_back() {
    let spec = OwnerSpec { lower_tier_ttl_ms: Some(10), ..OwnerSpec::default() };
    let limits = Limits { recent_hashes_max: 1, ..Limits::default() };
    let mut told = Story::with(spec, limits, 1);
    told.tell("x +1=A cpu at:100; x +2=B cpu at:101; x at:200");
    assert_eq!((told.index.stats().held_blocks, told.index.stats().content_blocks), (0, 1), "the latest is remembered");
    told.tell("x newlife");
    assert_eq!(told.index.stats().content_blocks, 0);
}
