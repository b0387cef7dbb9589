//! Costs of the index alone: nanoseconds per block applied, microseconds per query, bytes per pair. Prints; asserts no time.

use std::hint::black_box;
use std::time::Instant;

use kvindexer::event::{Batch, Event, GroupInfo, Removed, Stored};
use kvindexer::ids::{BlockSize, EngineHash, LocalHash, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Limits, OwnerId, OwnerSpec, PrefixIndex};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn local(sequence: u64, block: u64) -> u64 {
    mix(sequence << 20 ^ block)
}

fn store(sequence: u64, range: std::ops::Range<u64>, chain: u64) -> Batch {
    let engine = |block: u64| EngineHash(mix(local(sequence, block) ^ chain));
    let count = (range.end - range.start) as u32;
    let parent = range.start.checked_sub(1).map(engine);
    let tokens = count as usize * 64;
    Batch {
        events: vec![Event::Stored(Stored {
            hashes: 0..count,
            parent,
            token_bytes: 0..tokens as u32,
            block_size: Some(16),
            locals: 0..count,
            extras: 0..0,
            named: Namespace::default(),
            tier: Tier::Device,
            group: GroupInfo::default(),
        })],
        hashes: range.clone().map(engine).collect(),
        token_bytes: vec![0; tokens],
        locals: range.map(|block| LocalHash(local(sequence, block))).collect(),
        ..Batch::default()
    }
}

fn remove(sequence: u64, block: u64) -> Batch {
    Batch {
        events: vec![Event::Removed(Removed {
            hashes: 0..1,
            tier: Tier::Device,
            group: GroupInfo::default(),
            remaining_copies: None,
            remaining_copies_invalid: false,
        })],
        hashes: vec![EngineHash(mix(local(sequence, block)))],
        ..Batch::default()
    }
}

fn index(owners: u64) -> (PrefixIndex, Vec<OwnerId>) {
    let mut index = PrefixIndex::new(BlockSize::new(16).expect("not 0"), Limits::default());
    let ids = (0..owners).map(|owner| index.register(&Owner::new(owner, 0), OwnerSpec::default(), 1)).collect();
    (index, ids)
}

const CONTEXT: ApplyContext = ApplyContext { seq: Seq(0), now_ms: 1 };

fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Median of `rounds` timings of `calls` calls each, in nanoseconds per call.
fn time(rounds: usize, calls: u32, mut call: impl FnMut()) -> f64 {
    let mut figures: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / f64::from(calls)
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    figures[rounds / 2]
}

fn finds(out: &mut impl std::io::Write) -> std::io::Result<()> {
    for staggered in [false, true] {
        for owners in [1u64, 8, 64, 512] {
            let (mut index, ids) = index(owners);
            for (number, id) in ids.iter().enumerate() {
                let depth = if staggered { 8192 * (number as u64 + 1) / owners } else { 8192 };
                for start in (0..depth).step_by(512) {
                    index.apply(*id, &store(7, start..depth.min(start + 512), 0), CONTEXT);
                }
            }
            for depth in [16u64, 1024, 8192] {
                let query: Vec<LocalHash> = (0..depth).map(|block| LocalHash(local(7, block))).collect();
                let nanos = time(9, 200, || {
                    black_box(index.find(black_box(&query)));
                });
                writeln!(
                    out,
                    "find {depth:>5} blocks, {owners:>3} owners, staggered {staggered}: {:.2} us",
                    nanos / 1e3
                )?;
            }
        }
    }
    Ok(())
}

fn applies(out: &mut impl std::io::Write) -> std::io::Result<()> {
    for (name, owners, unique, chained) in [
        ("unique", 8u64, true, false),
        ("same", 8, false, false),
        ("same", 64, false, false),
        ("same, own chains", 8, false, true),
    ] {
        for pairs in [1u64 << 20, 1 << 22, 10 << 20] {
            let before = rss();
            let (mut index, ids) = index(owners);
            let sequences = pairs / owners / 512;
            let (mut nanos, mut blocks) = (0, 0);
            for sequence in 0..sequences {
                for (number, id) in ids.iter().enumerate() {
                    let sequence = if unique { (number as u64 + 1) << 24 | sequence } else { sequence };
                    let batch = store(sequence, 0..512, if chained { mix(number as u64 + 1) } else { 0 });
                    let start = Instant::now();
                    index.apply(*id, &batch, CONTEXT);
                    nanos += start.elapsed().as_nanos();
                    blocks += 512;
                }
            }
            let bytes = rss().saturating_sub(before);
            writeln!(
                out,
                "store {name}, {owners} owners, {pairs} pairs: {:.1} ns/block, {:.1} bytes/pair",
                nanos as f64 / blocks as f64,
                bytes as f64 / blocks as f64
            )?;
        }
    }
    Ok(())
}

fn churn(out: &mut impl std::io::Write) -> std::io::Result<()> {
    for tail_first in [true, false] {
        let (mut index, ids) = index(8);
        let (mut stored, mut removed, mut removals) = (0u128, 0u128, 0u64);
        let mut marks = Vec::new();
        for round in 0..8_000u64 {
            let id = ids[(round % 8) as usize];
            let batch = store(round, 0..128, 0);
            let start = Instant::now();
            index.apply(id, &batch, CONTEXT);
            stored += start.elapsed().as_nanos();
            if round >= 800 {
                let batches: Vec<Batch> = (0..128)
                    .map(|block| remove(round - 800, if tail_first { 127 - block } else { mix(block) % 128 }))
                    .collect();
                let start = Instant::now();
                for batch in &batches {
                    index.apply(ids[((round - 800) % 8) as usize], batch, CONTEXT);
                }
                removed += start.elapsed().as_nanos();
                removals += 128;
            }
            if round % 2_000 == 1_999 {
                marks.push(rss() >> 20);
            }
        }
        writeln!(
            out,
            "churn, tail first {tail_first}: {:.1} ns per stored block, {:.1} ns per removal of one; RSS MiB {marks:?}; {:?}",
            stored as f64 / (8_000.0 * 128.0),
            removed as f64 / removals as f64,
            index.stats()
        )?;
    }
    Ok(())
}

/// Owners that leave one index and enter another, one image per owner, as replicas do.
fn exchanges(out: &mut impl std::io::Write) -> std::io::Result<()> {
    for (name, owners, sequences, chained) in [
        ("one owner", 1u64, 8_192u64, false),
        ("64 owners, same blocks", 64, 128, false),
        ("8 owners, own hashes of the same blocks", 8, 1_024, true),
    ] {
        let (mut from, ids) = index(owners);
        for sequence in 0..sequences {
            for (number, id) in ids.iter().enumerate() {
                let chain = if chained { mix(number as u64 + 1) } else { 0 };
                from.apply(*id, &store(sequence, 0..512, chain), CONTEXT);
            }
        }
        let start = Instant::now();
        let images: Vec<_> = ids.iter().map(|id| from.export(&[*id])).collect();
        let exported = start.elapsed();
        let (mut to, _) = index(0);
        let start = Instant::now();
        for image in &images {
            to.import(image, 1).expect("an image of our own fits");
        }
        let imported = start.elapsed();
        assert_eq!(from.stats().held_blocks, to.stats().held_blocks);
        writeln!(
            out,
            "exchange {name}, {} pairs: export {:.0} ms, import {:.0} ms",
            from.stats().held_blocks,
            exported.as_secs_f64() * 1e3,
            imported.as_secs_f64() * 1e3
        )?;
    }
    Ok(())
}

/// A way to fill an index.
struct Fill {
    name: &'static str,
    owners: u64,
    /// Pairs of block and owner.
    pairs: u64,
    /// Every owner has sequences of its own.
    unique: bool,
    /// Every owner has a chain seed of its own.
    chained: bool,
    /// Blocks at a time: 512, or 1 to 4 behind what a sequence has, many sequences at a time.
    short: bool,
}

const FILLS: [Fill; 8] = [
    Fill { name: "unique", owners: 1, pairs: 1 << 20, unique: true, chained: false, short: false },
    Fill { name: "unique", owners: 8, pairs: 1 << 22, unique: true, chained: false, short: false },
    Fill { name: "unique", owners: 64, pairs: 1 << 20, unique: true, chained: false, short: false },
    Fill { name: "unique, short appends", owners: 8, pairs: 1 << 21, unique: true, chained: false, short: true },
    Fill { name: "unique", owners: 8, pairs: 5 << 20, unique: true, chained: false, short: false },
    Fill { name: "same", owners: 64, pairs: 1 << 22, unique: false, chained: false, short: false },
    Fill { name: "same, own chains", owners: 8, pairs: 1 << 21, unique: false, chained: true, short: false },
    Fill {
        name: "same, own chains, short appends",
        owners: 8,
        pairs: 1 << 21,
        unique: false,
        chained: true,
        short: true,
    },
];

/// Blocks of a sequence in the memory rows.
const DEPTH: u64 = 512;
/// Sequences that grow at a time with short appends.
const OPEN: u64 = 32;

impl Fill {
    fn batch(&self, owner: u64, sequence: u64, range: std::ops::Range<u64>) -> Batch {
        let sequence = if self.unique { (owner + 1) << 24 | sequence } else { sequence };
        store(sequence, range, if self.chained { mix(owner + 1) } else { 0 })
    }

    fn run(&self, index: &mut PrefixIndex, ids: &[OwnerId]) {
        let sequences = self.pairs / self.owners / DEPTH;
        if !self.short {
            for sequence in 0..sequences {
                for (owner, id) in (0..).zip(ids) {
                    index.apply(*id, &self.batch(owner, sequence, 0..DEPTH), CONTEXT);
                }
            }
            return;
        }
        for first in (0..sequences).step_by(OPEN as usize) {
            let mut done = vec![0; ids.len() * OPEN as usize];
            while done.iter().any(|done| *done < DEPTH) {
                for (at, done) in (0..).zip(&mut done) {
                    let (owner, sequence) = (at / OPEN, first + at % OPEN);
                    let end = DEPTH.min(*done + 1 + mix(at << 32 | *done) % 4);
                    if *done < end && sequence < sequences {
                        index.apply(ids[owner as usize], &self.batch(owner, sequence, *done..end), CONTEXT);
                    }
                    *done = end;
                }
            }
        }
    }

    /// Fills an index in a process of its own, so that memory of other rows does not count.
    fn measure(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let warm = index(self.owners);
        let before = rss();
        let (mut index, ids) = index(self.owners);
        let start = Instant::now();
        self.run(&mut index, &ids);
        let nanos = start.elapsed().as_nanos() as f64;
        let at_once = rss().saturating_sub(before) as f64;
        settle();
        let settled = rss().saturating_sub(before) as f64;
        let stats = index.stats();
        let pairs = stats.held_blocks as f64;
        drop(warm);
        writeln!(
            out,
            "memory {}, {} owners, {pairs} pairs, {} nodes: {:.2} bytes/pair by its own account, resident {:.2} at once, \
             {:.2} after a pause; {:.0} ns per block with making it",
            self.name,
            self.owners,
            stats.nodes,
            stats.bytes as f64 / pairs,
            at_once / pairs,
            settled / pairs,
            nanos / pairs,
        )
    }
}

/// Lets the allocator give back what it keeps for a moment: it looks when something is asked of it.
fn settle() {
    for _ in 0..150 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        black_box((0..64).map(|size| vec![0u8; 64 << (size % 12)]).collect::<Vec<_>>());
    }
}

/// Every fill in a child process.
fn memory() -> std::io::Result<()> {
    for number in 0..FILLS.len() {
        let myself = std::env::current_exe()?;
        std::process::Command::new(myself).args(["fill", &number.to_string()]).status()?;
    }
    Ok(())
}

/// Words choose what runs (`finds`, `applies`, `churn`, `exchanges`, `memory`); without one, all of it.
fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut out = std::io::stdout();
    if let [word, number] = &words[..]
        && word == "fill"
    {
        let fill = number.parse().ok().and_then(|number: usize| FILLS.get(number));
        return fill.map_or(Ok(()), |fill| fill.measure(&mut out));
    }
    let wanted = |word: &str| words.is_empty() || words.iter().any(|other| other == word);
    if wanted("finds") {
        finds(&mut out)?;
    }
    if wanted("applies") {
        applies(&mut out)?;
    }
    if wanted("churn") {
        churn(&mut out)?;
    }
    if wanted("exchanges") {
        exchanges(&mut out)?;
    }
    if wanted("memory") {
        memory()?;
    }
    Ok(())
}
