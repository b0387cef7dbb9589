//! Content that nobody holds is given back, however much of it comes and goes.

use kvindexer::event::GroupInfo;
use kvindexer::ids::{BlockSize, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Limits, OwnerSpec, PrefixIndex, Stats};

use super::batches::{Letter, Said, batch};

/// Blocks of the prompt that stays.
const PROMPT: u32 = 8;
/// Blocks of each suffix.
const SUFFIX: u32 = 4;
/// Suffixes held at any time.
const LIVE: u64 = 50;

fn letters(from: u32, count: u32) -> Vec<Letter> {
    (from..from + count).map(|token| Letter { token, image: None }).collect()
}

fn stored(hashes: Vec<u64>, parent: Option<u64>, letters: Vec<Letter>) -> Said {
    let (named, group) = (Namespace::default(), GroupInfo::default());
    Said::Stored { hashes, parent, letters, block_tokens: 1, named, tier: Tier::Device, group }
}

fn suffix(n: u64) -> (Vec<u64>, Vec<Letter>) {
    let first = 1000 + n * u64::from(SUFFIX);
    let hashes = (first..first + u64::from(SUFFIX)).collect();
    (hashes, letters(u32::try_from(first).expect("small"), SUFFIX))
}

#[test]
fn many_suffixes_of_one_prompt_leave_the_index_no_larger() {
    let limits =
        Limits { recent_hashes_max: 64, pending_blocks_max: 64, removals_remembered_max: 64, held_blocks_max: 0 };
    let mut index = PrefixIndex::new(BlockSize::new(1).expect("one"), limits);
    let owner = index.register(&Owner::new(1, 0), OwnerSpec::default(), 0);
    let mut seq = 0;
    let mut say = |index: &mut PrefixIndex, said: &[Said]| {
        seq += 1;
        index.apply(owner, &batch(said, 1), ApplyContext { seq: Seq(seq), now_ms: seq });
    };
    let prompt: Vec<u64> = (1..=u64::from(PROMPT)).collect();
    say(&mut index, &[stored(prompt, None, letters(1, PROMPT))]);
    let mut at_the_beginning = Stats::default();
    for n in 0..10_000 {
        let (hashes, letters) = suffix(n);
        say(&mut index, &[stored(hashes, Some(u64::from(PROMPT)), letters)]);
        if let Some(old) = n.checked_sub(LIVE) {
            let (mut hashes, _) = suffix(old);
            hashes.reverse();
            say(
                &mut index,
                &[Said::Removed { hashes, tier: Tier::Device, group: GroupInfo::default(), remaining: None }],
            );
        }
        if n == 500 {
            at_the_beginning = index.stats();
        }
        assert!(index.stats().held_blocks <= u64::from(PROMPT) + (LIVE + 1) * u64::from(SUFFIX));
    }
    let stats = index.stats();
    assert!(at_the_beginning.content_blocks > 0, "{at_the_beginning:?}");
    assert!(stats.content_blocks <= at_the_beginning.content_blocks * 6 / 5, "{at_the_beginning:?} became {stats:?}");
    assert!(stats.nodes <= at_the_beginning.nodes * 6 / 5, "{at_the_beginning:?} became {stats:?}");
    let held_and_remembered = stats.held_blocks + 64;
    assert!(
        stats.content_blocks <= held_and_remembered + u64::from(PROMPT),
        "more content than anybody holds: {stats:?}"
    );
}
