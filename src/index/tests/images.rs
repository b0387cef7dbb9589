//! Images: every part of an owner's state travels, decides the same afterwards, and touches nobody else.

use super::*;
use crate::image::{Image, OwnerImage};

/// What the target of a copy holds: the same content under other hashes, hashes of the copied owner on other content.
const OTHERS: &str = "p +91,92,93=ABC; p +91<94,95=XY; p -93; q +1,2,3=ZYX; q +7=W cpu; q -3";

/// One part of an owner's state.
struct Case {
    name: &'static str,
    /// Limits, policy, ageing.
    story: fn() -> Story,
    /// What `x`, and others with it, said before the copy.
    before: &'static str,
    /// True if the image has the part.
    has: fn(&OwnerImage) -> bool,
    /// What `x` says afterwards.
    after: &'static str,
    /// What is asked then, and what it must find: a copy that agrees on nothing would agree as well.
    query: &'static str,
    want: &'static str,
}

fn plain() -> Story {
    Story::new()
}

fn of_two() -> Story {
    Story::with(OwnerSpec::default(), Limits::default(), 2)
}

fn ageing() -> Story {
    let spec = OwnerSpec { lower_tier_ttl_ms: Some(1_000), ..OwnerSpec::default() };
    Story::with(spec, Limits::default(), 1)
}

/// An index of the same kind with others in it.
fn target(like: &Story) -> Story {
    let mut here = Story { index: like.index.successor(), seq: 0, spec: like.spec };
    here.tell(OTHERS);
    here.seq = like.seq;
    here
}

fn image_of(story: &mut Story, name: &str) -> Image {
    let id = story.id(name);
    story.index.export(&[id])
}

/// Everything that can be told about an owner.
fn told(story: &mut Story, name: &str, query: &str) -> String {
    let id = story.id(name);
    let mut dump: Vec<String> = story.dump(name).split(", ").map(str::to_owned).collect();
    dump.sort();
    let rows = rows(&story.index.find(&locals(query, Namespace::default(), None)));
    let none = format!("{name} 0/0/0");
    let row = rows.split(" | ").find(|row| row.starts_with(&format!("{name} "))).unwrap_or(&none).to_owned();
    let explained = story.index.explain(&locals(query, Namespace::default(), None));
    let ends: Vec<_> = explained.into_iter().filter(|end| end.owner == owner(name)).collect();
    let ends: Vec<_> = ends.into_iter().map(|end| [end.device_end, end.total_end].map(without_others)).collect();
    let (digest, reasons) = (story.index.digest(id), story.reasons(name));
    assert_eq!(digest, story.index.digest_from_records(id), "{name}");
    format!("{row}; {reasons:?}; {digest:?}; {ends:?}; {dump:?}")
}

/// Whether nobody ever announced a content depends on the other owners.
fn without_others(mut end: MatchEnd) -> MatchEnd {
    if end.reason == StopReason::NeverStored {
        end.reason = StopReason::RemovedOrNeverStored;
    }
    end
}

const CASES: &[Case] = &[
    Case {
        name: "a run",
        story: plain,
        before: "x +1,2,3=ABC",
        has: |x| x.rows[0] == [(0, 3)] && x.hashes.is_empty(),
        after: "x -2",
        query: "ABC",
        want: "x 1/1/1",
    },
    Case {
        name: "holes and tiers",
        story: plain,
        before: "x +1,2,3,4,5=ABCDE; x -3; x +2<3,4=CD cpu; x +2 disk; x -5",
        has: |x| x.rows[0] == [(0, 2), (3, 4)] && x.rows[1] == [(2, 4)] && x.rows[2] == [(1, 2)],
        after: "x -2; x +5",
        query: "ABCDE",
        want: "x 1/1/2",
    },
    Case {
        name: "a forgotten block above a held one keeps its hash",
        story: || Story::limited(1, 8),
        before: "y +71,72=AB; x +1,2,3=ABC; x -2; x -1; x +9=Q; x -9",
        has: |x| x.rows[4].len() == 1 && x.recents == [9],
        after: "x +1=A; x +1<2=B",
        query: "ABC",
        want: "x 3/3/3",
    },
    Case {
        name: "several hashes of a block",
        story: plain,
        before: "x +1,2=AB; x +11,12=AB",
        has: |x| x.rest.overlays.len() == 2,
        after: "x -1; x -12",
        query: "AB",
        want: "x 1/1/1",
    },
    Case {
        name: "a parent that is not the main hash",
        story: plain,
        before: "x +1,2=AB; x +11=A; x +11<3=C; x -1",
        has: |x| x.rest.overlays.iter().any(|overlay| overlay.records.iter().any(|(.., parents)| *parents == [11])),
        after: "x +3<4=D",
        query: "ACD",
        want: "x 3/3/3",
    },
    Case {
        name: "a hash at several places",
        story: plain,
        before: "x +1=B; x +1=A",
        has: |x| x.rest.multi.iter().any(|(hash, places)| *hash == 1 && *places == [1, 0] || *places == [0, 1]),
        after: "x +1<5=C",
        query: "AC",
        want: "x 2/2/2",
    },
    Case {
        name: "a block that others placed",
        story: plain,
        before: "y +1,2=AB; x +1,2 cpu",
        has: |x| x.rest.free.len() == 2,
        after: "x -2 cpu; x +1=A",
        query: "AB",
        want: "x 1/1/1",
    },
    Case {
        name: "copies",
        story: || Story::policy(DuplicatePolicy::Copies),
        before: "x +1=A; x +1=A; x +1=A",
        has: |x| x.rest.copies == [(1, 0, 3)],
        after: "x -1; x -1",
        query: "A",
        want: "x 1/1/1",
    },
    Case {
        name: "a hash for several blocks",
        story: plain,
        before: "x +7=AB/2; x +7<8=CD/2; x -8",
        has: |x| x.rest.spans == [(7, 2), (8, 2)] && x.rest.pieces.len() == 2,
        after: "x +8<9=E; x -7; x +7 cpu",
        query: "ABCDE",
        want: "x 0/2/2",
    },
    Case {
        name: "remembered hashes, oldest first",
        story: || Story::limited(2, 8),
        before: "x +1,2,3=ABC; x -3; x -2; x +1<2=B; x -2",
        has: |x| x.recents == [3, 2],
        after: "x -1; x +1=A; x +2<4=C",
        query: "AC",
        want: "x 1/1/1",
    },
    Case {
        name: "removals, and that there were more",
        story: || Story::limited(64, 8),
        before: "x +1,2,3,4,5,6,7,8,9=ABCDEFGHI; x -9,8,7,6,5,4,3,2,1",
        has: |x| x.rest.removals.len() == 8 && x.rest.removals_overflowed,
        after: "x +1=A",
        query: "AB",
        want: "x 1/1/1",
    },
    Case {
        name: "waiting blocks with tokens and extra keys",
        story: plain,
        before: "x +2<3,4=CD img:5; x +3<4=D cpu img:5; x +1<2=B",
        has: |x| x.rest.pending.len() == 3 && x.rest.pending.iter().any(|block| block.rows == 3 && block.extras == [5]),
        after: "x -4; x +1=A",
        query: "AB",
        want: "x 2/2/2",
    },
    Case {
        name: "a namespace that a waiting block gets from its parent",
        story: plain,
        before: "x +1=A lora:l; x +2<3=C",
        has: |x| x.rest.pending.len() == 1,
        after: "x +1<2=B lora:l",
        query: "A",
        want: "x 0/0/0",
    },
    Case {
        name: "a dropped waiting block",
        story: || Story::limited(8, 1),
        before: "x +2<3,4=CD; x -4",
        has: |x| x.rest.pending.is_empty() && x.rest.pending_dropped,
        after: "x +1=A; x +2=A",
        query: "A",
        want: "x 1/1/1",
    },
    Case {
        name: "a window",
        story: plain,
        before: "x +1,2,3=ABC g0:full; x +1,2,3=ABC g1:window3",
        has: |x| x.rest.groups.as_ref().is_some_and(|groups| groups.list.len() == 2 && !groups.sets),
        after: "x -2 g1",
        query: "ABC",
        want: "x 1/1/1",
    },
    Case {
        name: "states of Mamba",
        story: plain,
        before: "x +1,2,3=ABC g0:full; x +2=ABC g1:mamba",
        has: |x| x.rest.groups.as_ref().is_some_and(|groups| groups.list[1].held == [(2, 0, 1)]),
        after: "x +3=ABC g1:mamba; x -2 g1; x -3 g0",
        query: "ABC",
        want: "x 0/0/0",
    },
    Case {
        name: "two main groups",
        story: plain,
        before: "x +1,2=AB g0:full; x +1=A g1:full",
        has: |x| x.rest.groups.as_ref().is_some_and(|groups| groups.sets && groups.list[1].held.len() == 1),
        after: "x +1<2=B g1:full; x -1 g0",
        query: "AB",
        want: "x 0/0/0",
    },
    Case {
        name: "groups without kinds",
        story: plain,
        before: "x +1,2=AB g0; x +2=AB g1",
        has: |x| x.rest.groups.as_ref().is_some_and(|groups| groups.list.iter().any(|group| !group.complete)),
        after: "x -2 g1",
        query: "AB",
        want: "x 0/0/0",
    },
    Case {
        name: "ages",
        story: ageing,
        before: "x +1=A cpu at:5000; x +1<2=B cpu at:5500; x +1=A cpu at:5600",
        has: |x| x.rest.ages.as_ref().is_some_and(|ages| ages.clock_ms == 5600 && ages.queue.len() == 2),
        after: "x +9=Z at:6550",
        query: "AB",
        want: "x 0/1/1",
    },
    Case {
        name: "groups that stored whole blocks",
        story: of_two,
        before: "x +1=AB",
        has: |x| x.rest.whole_groups == [None],
        after: "x +1<2=C/1",
        query: "AB",
        want: "x 0/0/0",
    },
    Case {
        name: "twins",
        story: plain,
        before: "x +1=A; , x +1=A; x +2=B; , x +2=B; x +3=C; , x +3=C; x +4=D; , x +4=D; x +5=E; , x +5=E; x +6=F; , x +6=F; \
                 x +7=G; , x +7=G; x +8=H",
        has: |x| x.rest.twins == 0,
        after: "x +8=H; , x +8=H",
        query: "H",
        want: "x 1/1/1",
    },
    Case {
        name: "a block size that does not fit",
        story: of_two,
        before: "x +1=ABC/3",
        has: |x| x.rest.announced_block_size == Some(3),
        after: "x +2=ABC/3",
        query: "ABC",
        want: "x 0/0/0",
    },
    Case {
        name: "what a clear leaves",
        story: plain,
        before: "x +1,2=AB; x +4<5=E; x clear; x +1=A",
        has: |x| x.recents == [2] && x.rest.pending.is_empty(),
        after: "x +2<3=C; x +2 cpu",
        query: "ABC",
        want: "x 1/2/2",
    },
];

#[test]
fn every_part_of_an_owners_state_travels_and_decides_the_same() {
    for case in CASES {
        let mut there = (case.story)();
        there.tell(case.before);
        let image = image_of(&mut there, "x");
        assert!((case.has)(&image.owners[0]), "{}: {:?}", case.name, image.owners[0]);
        let mut here = target(&there);
        let others: Vec<String> = ["p", "q"].map(|name| told(&mut here, name, "ABC")).to_vec();
        here.index.import(&image, 9_000).unwrap();
        here.index.audit().unwrap();
        assert_eq!(image_of(&mut here, "x").owners, image.owners, "{}", case.name);
        assert_eq!(told(&mut here, "x", case.query), told(&mut there, "x", case.query), "{}: before", case.name);
        here.tell(case.after);
        there.tell(case.after);
        let told_here = told(&mut here, "x", case.query);
        assert_eq!(told_here, told(&mut there, "x", case.query), "{}: after", case.name);
        assert!(told_here.starts_with(case.want), "{}: {told_here}", case.name);
        let untouched: Vec<String> = ["p", "q"].map(|name| told(&mut here, name, "ABC")).to_vec();
        assert_eq!(untouched, others, "{}", case.name);
        here.index.audit().unwrap();
        // And back: the copy of a copy.
        let mut back = target(&there);
        back.index.import(&image_of(&mut here, "x"), 9_000).unwrap();
        assert_eq!(told(&mut back, "x", case.query), told_here, "{}: back", case.name);
    }
}

#[test]
fn a_registered_owner_keeps_its_id_its_spec_and_its_connection() {
    let mut there = Story::new();
    there.tell("x +1,2=AB; x +3<4=Q");
    let id = there.id("x");
    there.index.set_reason(id, Reason::Gap, true, 5);
    let image = image_of(&mut there, "x");
    let mut here = target(&there);
    here.spec.policy = DuplicatePolicy::Copies;
    here.tell("x +8,9=GH; x -9; x +7<6=R");
    let id = here.id("x");
    for (reason, holds) in [(Reason::NotConnected, true), (Reason::Skipped, true), (Reason::NothingHeard, true)] {
        here.index.set_reason(id, reason, holds, 6);
    }
    here.index.import(&image, 7).unwrap();
    here.index.audit().unwrap();
    assert_eq!(here.id("x"), id);
    assert!(here.index.report(id).registered);
    assert_eq!(here.index.export(&[id]).owners[0].spec.policy, DuplicatePolicy::Copies);
    assert_eq!(here.reasons("x"), ["gap", "pending_parents", "not_connected"]);
    assert_eq!((here.dump("x"), here.index.digest(id)), (there.dump("x"), there.index.digest(OwnerId(0))));
}

#[test]
fn owners_of_one_stream_come_in_one_image_and_another_owner_comes_unregistered() {
    let mut there = Story::new();
    there.tell("x +1,2,3=ABC; y +1,2=AB; y +93<94=Q; z +11,12,13,14=ABCD; w +1=A; z -11; y gone");
    let ids = ["z", "x", "y"].map(|name| there.index.owner_id(&owner(name)).unwrap_or(OwnerId(77)));
    let image = there.index.export(&ids);
    let names: Vec<String> = image.owners.iter().map(|image| image.owner.instance.to_string()).collect();
    assert_eq!(names, ["x", "z"], "in order, without those that are gone");
    assert_eq!((image.runs.len(), image.block_count()), (1, 4), "{:?}", image.runs);
    assert_eq!(image.engines, [1, 2, 3, 14]);
    assert_eq!(image.owners[1].hashes, [(0, vec![11, 12, 13])]);
    let mut here = target(&there);
    here.index.import(&image, 1).unwrap();
    assert!(!here.index.report(here.index.owner_id(&owner("z")).unwrap()).registered);
    for name in ["x", "z"] {
        assert_eq!(told(&mut here, name, "ABCD"), told(&mut there, name, "ABCD"));
    }
    here.tell("z +11=A; z -12");
    there.tell("z +11=A; z -12");
    assert_eq!(told(&mut here, "z", "ABCD"), told(&mut there, "z", "ABCD"));
}

#[test]
fn a_successor_is_empty_and_never_reuses_an_id() {
    let mut there = Story::limited(2, 2);
    there.tell("x +1=A; y +1=A; y gone");
    there.index.set_memory_pressure(true, 0);
    let mut next = Story { index: there.index.successor(), seq: 0, spec: there.spec };
    assert_eq!(Stats { bytes: 0, ..next.index.stats() }, Stats::default());
    assert_eq!((there.id("x"), next.id("x")), (OwnerId(0), OwnerId(2)));
    let mut apart = Story::new();
    apart.tell("z +1=A; w +1=A; w gone; x +2=B");
    apart.index.follow(&there.index);
    assert_eq!((apart.id("x"), apart.id("z"), apart.answer("B")), (OwnerId(3), OwnerId(4), "x 1/1/1 | z 0/0/0".into()));
    assert_eq!(apart.index.owners(), [owner("x"), owner("z")]);
    apart.index.audit().unwrap();
    next.tell("x +1=A");
    assert_eq!(next.skipped("x", SkipReason::Memory), 1, "the memory pressure stays");
}

/// Loads a chain `parent<hash,hash=AB` of a dump.
fn load(story: &mut Story, name: &str, tier: Tier, chain: &str) {
    let (hashes, tokens) = chain.split_once('=').unwrap();
    let (parent, hashes) = hashes.split_once('<').map_or((None, hashes), |(parent, rest)| (parent.parse().ok(), rest));
    let hashes = hashes.split(',').map(|hash| EngineHash(hash.parse().unwrap()));
    let blocks: Vec<_> = hashes.zip(locals(tokens, Namespace::default(), None)).collect();
    let id = story.id(name);
    story.index.load(id, tier, (parent.map(EngineHash), &blocks), ApplyContext { seq: Seq(0), now_ms: 1 });
    story.index.audit().unwrap();
}

#[test]
fn chains_of_hashes_are_held_wait_for_their_parent_and_go_on_with_events() {
    let mut told = Story::new();
    told.tell("y +91,92,93=ABC");
    for (tier, chain) in [
        (Tier::Device, "2<3=C"),
        (Tier::HostPinned, "2<3=C"),
        (Tier::Device, "1<2=B"),
        (Tier::Device, "1=A"),
        (Tier::HostPinned, "3<4=D"),
        (Tier::HostPinned, "1,2=AB"),
        (Tier::HostPinned, "1,2=AB"),
    ] {
        load(&mut told, "x", tier, chain);
    }
    assert_eq!(told.answer("ABCD"), "x 3/4/4 | y 3/3/3");
    assert_eq!(told.reasons("x"), ["nothing_heard"], "nothing waits");
    let id = told.id("x");
    let mut other = Story::new();
    other.tell("x +1,2,3=ABC; x +1,2,3=ABC cpu; x +3<4=D cpu");
    let same = other.id("x");
    assert_eq!(told.index.digest(id), other.index.digest(same));
    told.tell("x -3; x +3<5=E; x -1 cpu");
    assert_eq!(told.answer("ABC"), "x 2/3/3 | y 3/3/3", "a second load is no second copy");
}

#[test]
fn a_chain_that_waits_is_counted_and_bounded() {
    let mut told = Story::limited(8, 2);
    load(&mut told, "x", Tier::Device, "1<2,3,4=BCD");
    assert_eq!(told.reasons("x"), ["pending_parents", "nothing_heard"]);
    let id = told.id("x");
    assert_eq!((told.index.report(id).pending_blocks, told.skipped("x", SkipReason::PendingOverflow)), (2, 1));
    // A namespace that only the parent shows does not change local hashes that are given.
    let mut told = Story::new();
    load(&mut told, "x", Tier::Device, "1<2=B");
    told.tell("x +1=A lora:l");
    assert!(told.dump("x").contains("device 1>2"), "{}", told.dump("x"));
    let id = told.id("x");
    let content = locals("B", Namespace::default(), None)[0];
    assert!(told.index.dump(id).iter().any(|block| block.hash.0 == 2 && block.local == content));
}

/// What one owner forgot at once was given back before the next one of the image held it.
#[test]
fn an_image_from_an_index_with_wider_bounds_is_cut_to_ours() {
    let mut there = Story::limited(64, 64);
    there.tell("x +1,2,3,4=ABCD; x -4,3,2; y +1,2,3,4=ABCD; y -4,3; x +9<10,11,12=QRS");
    let ids = ["x", "y"].map(|name| there.id(name));
    let mut here = Story::limited(1, 1);
    here.index.import(&there.index.export(&ids), 1).unwrap();
    here.index.audit().unwrap();
    assert_eq!(here.answer("ABCD"), "x 1/1/1 | y 2/2/2");
    assert_eq!(here.skipped("x", SkipReason::PendingOverflow), 2);
    here.tell("x newlife; y newlife");
    assert_eq!(here.index.stats().content_blocks, 0);
}
