//! The index's account of its memory against what the allocator was asked for, and memory that comes back.

use super::*;

/// An index of some owners without names to format.
struct Filled {
    index: PrefixIndex,
    ids: Vec<OwnerId>,
    seq: u64,
}

/// Local hash of a block.
fn local(sequence: u64, block: u64) -> u64 {
    tree::mix(sequence << 20 ^ block).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Engine hash of a block; a chain has hashes of its own.
fn engine(sequence: u64, block: u64, chain: u64) -> u64 {
    local(sequence, block) ^ chain.wrapping_mul(0x94D0_49BB_1331_11EB)
}

impl Filled {
    fn new(owners: u64, limits: Limits) -> Self {
        let mut index = PrefixIndex::new(BlockSize::new(1).unwrap(), limits);
        let ids = (0..owners).map(|owner| index.register(&Owner::new(owner, 0), OwnerSpec::default(), 1)).collect();
        Self { index, ids, seq: 0 }
    }

    fn apply(&mut self, owner: u64, batch: &Batch) {
        self.seq += 1;
        let context = ApplyContext { seq: Seq(self.seq), now_ms: self.seq };
        self.index.apply(self.ids[owner as usize], batch, context);
    }

    fn store(&mut self, owner: u64, (sequence, range): (u64, std::ops::Range<u64>), chain: u64, tier: Tier) {
        let count = (range.end - range.start) as u32;
        let batch = Batch {
            events: vec![Event::Stored(Stored {
                hashes: 0..count,
                parent: range.start.checked_sub(1).map(|block| EngineHash(engine(sequence, block, chain))),
                token_bytes: 0..count * 4,
                block_size: Some(1),
                locals: 0..count,
                extras: 0..0,
                named: Namespace::default(),
                tier,
                group: GroupInfo::default(),
            })],
            hashes: range.clone().map(|block| EngineHash(engine(sequence, block, chain))).collect(),
            token_bytes: vec![0; count as usize * 4],
            locals: range.map(|block| LocalHash(local(sequence, block))).collect(),
            ..Batch::default()
        };
        self.apply(owner, &batch);
    }

    fn remove(&mut self, owner: u64, hashes: impl Iterator<Item = u64>) {
        let hashes: Vec<EngineHash> = hashes.map(EngineHash).collect();
        let batch = Batch {
            events: vec![Event::Removed(Removed {
                hashes: 0..hashes.len() as u32,
                tier: Tier::Device,
                group: GroupInfo::default(),
                remaining_copies: None,
                remaining_copies_invalid: false,
            })],
            hashes,
            ..Batch::default()
        };
        self.apply(owner, &batch);
    }
}

/// What is done to an index.
type Story = fn(&mut Filled);

#[test]
fn the_account_agrees_with_the_allocator() {
    let stories: [(&str, u64, Story); 7] = [
        ("unique", 4, |filled| {
            for sequence in 0..40 {
                filled.store(sequence % 4, (sequence, 0..512), 0, Tier::Device);
            }
        }),
        ("same", 100, |filled| {
            for at in 0..1_000 {
                filled.store(at % 100, (at / 100, 0..256), 0, Tier::Device);
            }
        }),
        ("short appends of own hashes", 4, |filled| {
            for at in 0..1_600u64 {
                let (owner, sequence, step) = (at % 4, at / 4 % 20, at / 80);
                filled.store(owner, (sequence, step * 9..step * 9 + 9), owner, Tier::Device);
            }
        }),
        ("many short prompts", 2, |filled| {
            for sequence in 0..8_000 {
                filled.store(sequence % 2, (sequence, 0..3), 0, Tier::Device);
            }
        }),
        ("lower tiers and holes", 3, |filled| {
            for sequence in 0..60 {
                filled.store(sequence % 3, (sequence / 2, 0..300), 0, Tier::Device);
                filled.store(sequence % 3, (sequence / 2, 0..200), 0, Tier::HostPinned);
                let gone = (0..200).filter(|block| tree::mix(block ^ sequence << 9).is_multiple_of(2));
                filled.remove(sequence % 3, gone.map(|block| engine(sequence / 2, block, 0)));
            }
        }),
        ("waiting", 2, |filled| {
            for sequence in 0..400 {
                filled.store(sequence % 2, (sequence, 5..25), 0, Tier::Device);
            }
        }),
        ("most is gone", 4, |filled| {
            for sequence in 0..200 {
                filled.store(sequence % 4, (sequence, 0..256), 0, Tier::Device);
            }
            for sequence in 0..190 {
                filled.remove(sequence % 4, (0..256).rev().map(|block| engine(sequence, block, 0)));
            }
        }),
    ];
    for (name, owners, story) in stories {
        let limits = Limits { recent_hashes_max: 1_000, ..Limits::default() };
        let mut filled = None;
        let counted = allocation_counter::measure(|| {
            let mut new = Filled::new(owners, limits);
            story(&mut new);
            filled = Some(new);
        });
        let filled = filled.unwrap();
        let (told, asked) = (filled.index.stats().bytes as f64, counted.bytes_current as f64);
        assert!((told / asked - 1.0).abs() < 0.1, "{name}: {told} told, {asked} asked of the allocator");
    }
}
