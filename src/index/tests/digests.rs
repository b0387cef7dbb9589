//! Digests: equal for equal contents however they came about, different for different ones, O(1) to read.

use super::*;

/// Digest of `x` after a story; every owner's is checked against its records.
fn digest(steps: &str) -> OwnerDigest {
    let mut story = Story::new();
    story.tell(steps);
    story.index.audit().unwrap();
    for owner in story.index.owners() {
        let id = story.index.owner_id(&owner).unwrap();
        assert_eq!(story.index.digest(id), story.index.digest_from_records(id), "{steps}: {owner}");
    }
    let id = story.id("x");
    story.index.digest(id)
}

#[test]
fn equal_contents_have_equal_digests_however_they_came_about() {
    for (one, other) in [
        ("x +1,2,3=ABC", "x +1=A; x +1<2=B; x +2<3=C"),
        ("x +1,2,3=ABC", "x +2<3=C; x +1<2=B; x +1=A"),
        ("x +1,2,3=ABC", "y +91,92,93,94=ABCD; z +1=Q; x +1,2,3=ABC"),
        ("x +1,2,3=ABC", "x +1,2,3,4=ABCD; x -4; x +9=Z; x -9"),
        ("x +1,2=AB", "x +1,2=AB; x +1,2=AB; x +5<6=Q"),
        ("x +1=A; x +1=A cpu", "x +1=A cpu; x clear; x +1=A; x +1 cpu"),
        ("x +1=A; x +11=A", "x +11=A; x +1=A; x +7=G; x newlife; x +11=A; x +1=A"),
        ("x +7=AB/2", "x +7=AB/2; x -7; x +7=AB/2"),
        ("x +1,2=AB g0:full; x +1=A g1:full", "x +1=A g1:full; x +1,2=AB g0:full; x +3=C g1:full; x -3 g1"),
        ("x +1,2=AB g0:full; x +2=AB g1:mamba", "x +2=AB g1:mamba; x +1=AB g1:mamba; x +1,2=AB g0:full; x -1 g1"),
        ("y", "x +1=A; x -1"),
        ("y", "x +1,2=AB g0:full; x +2=AB g1:mamba; x clear"),
    ] {
        let ends = |steps: &str| if steps == "y" { OwnerDigest::default() } else { digest(steps) };
        assert_eq!(ends(one), ends(other), "{one} ? {other}");
    }
}

#[test]
fn digests_tell_owner_tier_hash_path_and_group() {
    let stories = [
        "x +1,2=AB",
        "x +1,2=AC",
        "x +1,2=CB",
        "x +1,2=BA",
        "x +2,1=AB",
        "x +1,3=AB",
        "x +1=A",
        "x +2=B",
        "x +1,2=AB cpu",
        "x +1,2=AB disk",
        "x +1,2=AB; x +1 cpu",
        "x +1,2=AB; x +11=A",
        "x +1,2=AB lora:l",
        "x +1,2=AB img:3",
        "x +1,2=AB g0:full; x +1=A g1:window4",
        "x +1,2=AB g0:full; x +2=AB g1:window4",
        "x +1,2=AB g0:full; x +2=AB g2:window4",
        "x +1,2=AB g0:full; x +2=AB g2:window4 cpu",
        "x +1,2=AB g0:full; x +1,2=AB g1:full",
        "x +1,2=AB g0:full; x +1=A g1:full",
        "x +7=AB/2",
    ];
    let mut seen: Vec<u64> = stories.map(|story| digest(story).value).to_vec();
    let mut story = Story::new();
    story.tell("w +1,2=AB");
    let id = story.id("w");
    seen.push(story.index.digest(id).value);
    for (at, value) in seen.iter().enumerate() {
        assert!(*value != 0 && !seen[..at].contains(value), "{:?}", stories.get(at));
    }
}

#[test]
fn blocks_that_others_placed_are_counted_apart() {
    for (story, value, foreign) in [
        ("y +1,2=AB; x +1,2 cpu", "y", 2),
        ("y +1,2=AB; x +1,2 cpu; x +1 disk", "y", 3),
        ("y +1,2=AB; x +1,2 cpu; x -1 cpu", "y", 1),
        ("y +1,2=AB; x +1,2 cpu; x -1,2 cpu; x +1,2=AB", "x +1,2=AB", 0),
        ("y +1,2=AB; x +1,2 cpu; x -1,2 cpu; x +1,2 cpu", "y", 2),
        ("y +7=AB/2; x +7 cpu", "y", 2),
        ("y +1,2=AB; x +1,2 cpu; x clear", "y", 0),
        ("y +1,2=AB; x +9=Q; x +1 cpu; x newlife; x +1=A", "x +1=A", 0),
    ] {
        let got = digest(story);
        let want = if value == "y" { 0 } else { digest(value).value };
        assert_eq!((got.value, got.foreign_blocks), (want, foreign), "{story}");
    }
    let spec = OwnerSpec { lower_tier_ttl_ms: Some(5), ..OwnerSpec::default() };
    let mut story = Story::with(spec, Limits::default(), 1);
    let id = story.id("x");
    assert!(story.index.digest(id).ages);
    assert_eq!(story.index.digest(OwnerId(99)), OwnerDigest::default(), "an owner that is not there");
}
