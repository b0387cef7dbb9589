//! Synthetic batches that are cheap to make, so that tens of millions of blocks can be stored: no tokens, no wire form.

use std::ops::Range;

use kvindexer::event::{Batch, Event, GroupInfo, Stored};
use kvindexer::ids::{BlockSize, EngineHash, LocalHash, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Limits, OwnerId, OwnerSpec, PrefixIndex};

/// Blocks of one sequence, and of one Stored event.
pub(crate) const SEQUENCE_BLOCKS: u32 = 512;

/// Tokens per block.
const BLOCK_SIZE: u32 = 16;

/// Number and time of every batch: nothing here depends on them.
pub(crate) const CONTEXT: ApplyContext = ApplyContext { seq: Seq(0), now_ms: 1 };

/// splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn local(sequence: u64, block: u32) -> u64 {
    mix(sequence << 20 ^ u64::from(block))
}

/// An index with so many registered owners.
pub(crate) fn index(owners: u64) -> (PrefixIndex, Vec<OwnerId>) {
    let mut index = PrefixIndex::new(BlockSize::new(BLOCK_SIZE).expect("not 0"), Limits::default());
    let ids = (0..owners).map(|owner| index.register(&Owner::new(owner, 0), OwnerSpec::default(), 1)).collect();
    (index, ids)
}

/// The batch that stores a part of a sequence on the device.
pub(crate) fn store(sequence: u64, range: Range<u32>) -> Batch {
    let engine = |block: u32| EngineHash(mix(local(sequence, block)));
    let count = range.len() as u32;
    let token_bytes = count * BLOCK_SIZE * 4;
    let event = Stored {
        hashes: 0..count,
        parent: range.start.checked_sub(1).map(engine),
        token_bytes: 0..token_bytes,
        block_size: Some(BLOCK_SIZE),
        locals: 0..count,
        extras: 0..0,
        named: Namespace::default(),
        tier: Tier::Device,
        group: GroupInfo::default(),
    };
    Batch {
        events: vec![Event::Stored(event)],
        hashes: range.clone().map(engine).collect(),
        // Their number must fit; nobody reads them, for the local hashes are there.
        token_bytes: vec![0; token_bytes as usize],
        locals: range.map(|block| LocalHash(local(sequence, block))).collect(),
        ..Batch::default()
    }
}

/// Stores the first `depth` blocks of a sequence for one owner.
pub(crate) fn fill(index: &mut PrefixIndex, id: OwnerId, sequence: u64, depth: u32) {
    for from in (0..depth).step_by(SEQUENCE_BLOCKS as usize) {
        index.apply(id, &store(sequence, from..depth.min(from + SEQUENCE_BLOCKS)), CONTEXT);
    }
}

/// Local hashes of the first `depth` blocks of a sequence.
pub(crate) fn query(sequence: u64, depth: u32) -> Vec<LocalHash> {
    (0..depth).map(|block| LocalHash(local(sequence, block))).collect()
}
