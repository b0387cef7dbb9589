//! A question sees each batch of an owner whole or not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvindexer::event::GroupInfo;
use kvindexer::hash;
use kvindexer::ids::{BlockSize, LocalHash, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Limits, OwnerSpec, SharedIndex};

use super::batches::{Letter, Said, batch, token_bytes};

const BATCHES: u64 = 2_000;
const BLOCKS: u32 = 6;

#[test]
fn a_question_never_sees_half_a_batch() {
    let limits =
        Limits { recent_hashes_max: 64, pending_blocks_max: 64, removals_remembered_max: 64, held_blocks_max: 0 };
    let shared = SharedIndex::new(BlockSize::new(1).expect("one"), limits);
    let owners = [1_u64, 2].map(|instance| shared.write().register(&Owner::new(instance, 0), OwnerSpec::default(), 0));
    let letters: Vec<Letter> = (1..=BLOCKS).map(|token| Letter { token, image: None }).collect();
    let seed = Namespace::default().seed();
    let query: Vec<LocalHash> = letters.iter().map(|l| hash::local_hash(&token_bytes(*l, 1), [], seed)).collect();
    let hashes: Vec<u64> = (1..=u64::from(BLOCKS)).collect();
    let group = GroupInfo::default();
    let one_by_one: Vec<Said> = (0..BLOCKS as usize)
        .map(|i| Said::Stored {
            hashes: vec![hashes[i]],
            parent: i.checked_sub(1).map(|above| hashes[above]),
            letters: vec![letters[i]],
            block_tokens: 1,
            named: Namespace::default(),
            tier: Tier::Device,
            group,
        })
        .collect();
    let removals: Vec<Said> = hashes
        .iter()
        .map(|hash| Said::Removed { hashes: vec![*hash], tier: Tier::Device, group, remaining: None })
        .collect();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 0..BATCHES {
                let said = if seq % 2 == 0 { &one_by_one } else { &removals };
                let batch = batch(said, 1);
                for owner in owners {
                    shared.write().apply(owner, &batch, ApplyContext { seq: Seq(seq), now_ms: seq });
                }
            }
            ended.store(true, Ordering::Release);
        });
        let mut seen = [0_u64; 2];
        while !ended.load(Ordering::Acquire) {
            let answer = shared.read().find(&query);
            for row in answer.owners() {
                assert!(row.device == 0 || row.device == BLOCKS, "half a batch: {row:?}");
                seen[usize::from(row.device > 0)] += 1;
            }
        }
        eprintln!("{seen:?} rows without and with the blocks");
    });
    assert_eq!(shared.read().stats().held_blocks, 0);
}
