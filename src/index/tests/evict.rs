//! The bound on held blocks: which blocks go, and what is said about it.

use super::*;

fn bounded(max: u64) -> Story {
    Story::with(OwnerSpec::default(), Limits { held_blocks_max: max, ..Limits::default() }, 1)
}

#[test]
fn the_oldest_blocks_of_the_largest_owner_go_ends_of_chains_first() {
    for (story, want) in [
        ("w +1=A; w +2=B; w +3=C; w +4=D", "w: 1 2 3 4"),
        ("w +1=A; w +2=B; w +3=C; w +4=D; w +5=E", "w: 2 3 4 5"),
        ("w +1,2,3=ABC; w +4=X; w +5=Y", "w: 1 2 4 5"),
        ("w +1,2,3=ABC; w +4=X; w +5=Y; w +6=Z", "w: 1 4 5 6"),
        ("w +1,2,3=ABC; w +4=X; w +5=Y; w +6=Z; w +7=Q", "w: 4 5 6 7"),
        ("w +1=A; w +2=B; w +3=C; w +4=D; w +1=A; w +5=E", "w: 1 3 4 5"),
        ("w +1=A; w +2=B; w +3=C; w +1<4=D; w +5=E", "w: 1 3 4 5"),
        ("w +1=A; w +2=B; w +3=C; w +1<4=D; w +5=E; w -4; w +6=F; w +7=G", "w: 3 5 6 7"),
        ("w +1=A; w +2=B; w -1; w +3=C; w +4=D; w +1=A; w +5=E", "w: 1 3 4 5"),
        ("v +1,2,3=ABC; w +4=X; w +5=Y", "v: 1 2 | w: 4 5"),
        ("v +1=A; w +1=A; w +2=B; v +2=B; w +3=C", "v: 1 2 | w: 2 3"),
        ("v +11=A; w +1=A; w +2=B; w +3=C; w +4=D", "v: 11 | w: 2 3 4"),
        ("w +1=A; w cpu +1; w +2=B; w +3=C; w +4=D", "w: 2 3 4"),
        ("w +1=A; w +2=B; w +3=C; w +4=D; w cpu +1", "w: 1 1 3 4"),
        ("w +7=AB/2; w +8=CD/2; w +9=E", "w: 8 9 + 1"),
        ("w +1=A; w +1<7=BC/2; w +2=X; w +3=Y; w +4=Z", "w: 1 2 3 4"),
        ("w +1,2,3,4,5,6=ABCDEF", "w: 1 2 3 4"),
        ("w +1,2,3,4,5,6=ABCDEF; w clear; w +7,8=GH", "w: 7 8"),
        ("w +1,2,3,4,5,6=ABCDEF; w newlife; w +1,2,3,4=ABCD", "w: 1 2 3 4"),
        ("w +1=A; v +2=B; v +2<1=C; v +3=D; v +4=E; v +5=F; w gone", "v: 3 4 5"),
        // Two hashes with two places each, all of which have a block below: only others can go, or both at once.
        ("w +1=A; w +2=B; w +2<1=C; w +1<2=D; w +5=E", "w: 1 1 2 2"),
        ("w +1=A; w +2=B; w +2<1=C; w +1<2=D; w cpu +1", "w: 2 2"),
    ] {
        let mut told = bounded(4);
        told.tell(story);
        told.index.audit().unwrap_or_else(|what| panic!("{story}: {what}"));
        let mut shown = Vec::new();
        for owner in told.index.owners() {
            let id = told.index.owner_id(&owner).unwrap();
            let hashes = told.index.dump(id).into_iter().filter(|block| !block.pending).map(|block| block.hash.0);
            let (mut hashes, mut pieces) = (hashes.collect::<Vec<_>>(), 0);
            hashes.sort_unstable();
            hashes.retain(|hash| {
                pieces += u32::from(*hash > 1000);
                *hash <= 1000
            });
            let hashes: Vec<String> = hashes.iter().map(u64::to_string).collect();
            let more = if pieces > 0 { format!(" + {pieces}") } else { String::new() };
            shown.push(format!("{}: {}{more}", owner.instance, hashes.join(" ")));
        }
        assert_eq!(shown.join(" | "), want, "{story}");
    }
}

#[test]
fn an_owner_that_lost_blocks_is_degraded_until_it_is_emptied_and_does_not_err_when_it_removes_them() {
    let mut told = bounded(2);
    told.tell("v +9=Z; w +1=A; w +1<2=B");
    assert_eq!((told.reasons("w"), told.reasons("v")), (vec!["memory"], vec![]));
    let id = told.id("w");
    let report = told.index.report(id);
    assert_eq!((report.evicted_blocks, told.index.stats().evicted_blocks), (1, 1));
    told.tell("w -2; w -1");
    assert_eq!(told.index.report(id).ignored.iter().sum::<u64>(), 0);
    told.tell("w clear; w -1");
    assert!(told.reasons("w").is_empty());
    assert_eq!(told.index.report(id).ignored.iter().sum::<u64>(), 1);
    assert_eq!((told.index.report(id).evicted_blocks, told.answer("AB")), (1, "v 0/0/0 | w 0/0/0".into()));
}

#[test]
fn what_is_given_up_keeps_its_place_for_what_comes_below_it() {
    let mut told = bounded(2);
    told.tell("w +1,2=AB; w +8=X; w +2<3=C; w +1<2=B");
    assert_eq!(told.index.stats().held_blocks, 2);
    told.tell("w -8; w -2; w -3; w -1; w +1,2=AB");
    assert_eq!(told.answer("ABC"), "w 2/2/2");
}

#[test]
fn a_bound_holds_for_images_and_costs_nothing_when_it_is_off() {
    let mut there = Story::new();
    there.tell("x +1,2,3=ABC; x +4=Q");
    let id = there.id("x");
    assert!(there.index.state(id).unwrap().order.is_none());
    let mut here = bounded(2);
    here.index.import(&there.index.export(&[id]), 5).unwrap();
    here.index.audit().unwrap();
    assert_eq!((here.index.stats().held_blocks, here.reasons("x")), (2, vec!["memory"]));
    here.tell("x +7=R");
    assert_eq!((here.index.stats().held_blocks, here.answer("R")), (2, "x 1/1/1".into()));
}
