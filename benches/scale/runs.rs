//! The measurements, one per question.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvindexer::ids::BlockSize;
use kvindexer::index::{Limits, OwnerId, OwnerSpec, PrefixIndex, SharedIndex};

use super::Table;
use super::content::{CONTEXT, SEQUENCE_BLOCKS, fill, index, query, store};
use super::measure::{Clock, micros_per_call, quantile, resident_bytes};
use super::plot::Line;

/// One measurement; `true` makes it small.
pub(crate) type Run = fn(bool) -> Vec<Table>;

/// All of them, in order.
pub(crate) const ALL: [Run; 4] = [owners, lengths, blocks, beside_ingest];

/// The sequence that queries ask for.
const ASKED: u64 = 7;

const MILLION: u64 = 1 << 20;

fn round(short: bool) -> Duration {
    Duration::from_millis(if short { 5 } else { 120 })
}

/// An index in which owners hold a sequence: whole, or each to a depth of its own.
fn held(owners: u64, depth: u32, staggered: bool) -> (PrefixIndex, Vec<OwnerId>) {
    let (mut index, ids) = index(owners);
    for (number, id) in (1..).zip(&ids) {
        let own = if staggered { (u64::from(depth) * number / owners).max(1) as u32 } else { depth };
        fill(&mut index, *id, ASKED, own);
    }
    (index, ids)
}

/// A query against more and more owners that all match.
fn owners(short: bool) -> Vec<Table> {
    let counts: &[u64] = if short { &[1, 64] } else { &[1, 8, 64, 256, 512, 1_024, 4_096] };
    let mut lines = Vec::new();
    for (depth, staggered) in [(16, false), (1_024, false), (8_192, false), (8_192, true)] {
        let points = counts.iter().map(|count| {
            let (index, _) = held(*count, depth, staggered);
            let query = query(ASKED, depth);
            let answer = index.find(&query);
            assert_eq!(answer.owners().count() as u64, *count);
            assert!(answer.owners().all(|row| row.device > 0), "every owner matches");
            (*count as f64, micros_per_call(round(short), || drop(black_box(index.find(black_box(&query))))))
        });
        let name = format!("{depth} blocks{}", if staggered { ", staggered" } else { "" });
        lines.push((name, points.collect()));
    }
    let title = "A query against more owners, all of which match";
    vec![Table { name: "owners", title, x: "owners", y: "us of processor time per query", lines }]
}

/// Longer and longer queries.
fn lengths(short: bool) -> Vec<Table> {
    let depths: &[u32] = if short { &[16, 1_024] } else { &[16, 64, 256, 1_024, 4_096, 16_384, 65_536] };
    let lines = [1, 64, 512].map(|owners| -> Line {
        let deepest = depths.last().copied().unwrap_or(1);
        let (index, _) = held(owners, deepest, false);
        let points = depths.iter().map(|depth| {
            let query = query(ASKED, *depth);
            assert!(index.find(&query).owners().all(|row| row.device == *depth));
            (f64::from(*depth), micros_per_call(round(short), || drop(black_box(index.find(black_box(&query))))))
        });
        (format!("{owners} owners"), points.collect())
    });
    let title = "A longer query";
    vec![Table { name: "lengths", title, x: "blocks", y: "us of processor time per query", lines: lines.into() }]
}

/// More and more blocks: cost of storing the last part, of a query, and bytes.
fn blocks(short: bool) -> Vec<Table> {
    let marks: &[u64] = if short { &[1, 2] } else { &[1, 2, 5, 10, 20, 50] };
    let (mut store, mut find, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for (name, owners, shared) in [("64 owners, same content", 64, true), ("8 owners, all unique", 8, false)] {
        let grown = grow(marks, owners, shared, short);
        let points = |of: fn(&Mark) -> f64| grown.iter().map(|mark| (mark.pairs, of(mark))).collect::<Vec<_>>();
        store.push((name.to_owned(), points(|mark| mark.store_nanos)));
        find.push((name.to_owned(), points(|mark| mark.find_micros)));
        bytes.push((name.to_owned(), points(|mark| mark.bytes)));
    }
    let x = "pairs of block and owner";
    let stored =
        Table { name: "blocks-store", title: "Storing into a larger index", x, y: "ns per block", lines: store };
    let found = Table {
        name: "blocks-find",
        title: "A query of 512 blocks in a larger index",
        x,
        y: "us per query",
        lines: find,
    };
    let held = Table { name: "blocks-memory", title: "Resident memory", x, y: "bytes per pair", lines: bytes };
    vec![stored, found, held]
}

/// An index of a size.
struct Mark {
    pairs: f64,
    store_nanos: f64,
    find_micros: f64,
    bytes: f64,
}

fn grow(marks: &[u64], owners: u64, shared: bool, short: bool) -> Vec<Mark> {
    let before = resident_bytes();
    let (mut index, ids) = index(owners);
    let (clock, mut pairs, mut sequence) = (Clock::new(), 0, 0);
    let mut grown = Vec::new();
    for mark in marks {
        let (mut nanos, mut stored) = (0, 0);
        while pairs < mark * MILLION {
            sequence += 1;
            for (number, id) in (1..).zip(&ids) {
                let content = if shared { sequence } else { number << 24 | sequence };
                let batch = store(content, 0..SEQUENCE_BLOCKS);
                let start = clock.nanos();
                index.apply(*id, &batch, CONTEXT);
                nanos += clock.nanos() - start;
                stored += u64::from(SEQUENCE_BLOCKS);
            }
            pairs += owners * u64::from(SEQUENCE_BLOCKS);
        }
        assert_eq!(index.stats().held_blocks, pairs);
        let asked = query(if shared { sequence / 2 + 1 } else { 1 << 24 | (sequence / 2 + 1) }, SEQUENCE_BLOCKS);
        grown.push(Mark {
            pairs: pairs as f64,
            store_nanos: nanos as f64 / stored as f64,
            find_micros: micros_per_call(round(short), || drop(black_box(index.find(black_box(&asked))))),
            bytes: resident_bytes().saturating_sub(before) as f64 / pairs as f64,
        });
    }
    grown
}

/// Queries of 2,048 blocks while another thread stores and removes at a rate: wall-clock time, as a router sees it.
fn beside_ingest(short: bool) -> Vec<Table> {
    let rates: &[u64] =
        if short { &[1_000, 100_000] } else { &[1_000, 50_000, 200_000, 500_000, 1_000_000, 2_000_000] };
    let (mut half, mut most) = (Vec::new(), Vec::new());
    for rate in rates {
        let mut samples =
            queries_beside(*rate, if short { Duration::from_millis(200) } else { Duration::from_secs(4) });
        half.push((*rate as f64, quantile(&mut samples, 0.5)));
        most.push((*rate as f64, quantile(&mut samples, 0.99)));
    }
    let lines = vec![("p50".to_owned(), half), ("p99".to_owned(), most)];
    let title = "A query of 2,048 blocks, 64 owners, beside ingest";
    vec![Table { name: "beside-ingest", title, x: "stored blocks per second", y: "us per query, wall clock", lines }]
}

fn queries_beside(rate: u64, time: Duration) -> Vec<f64> {
    const DEPTH: u32 = 2_048;
    const OWNERS: u64 = 64;
    let shared = SharedIndex::new(BlockSize::new(16).expect("not 0"), Limits::default());
    let ids: Vec<OwnerId> = (0..OWNERS)
        .map(|owner| shared.write().register(&kvindexer::ids::Owner::new(owner, 0), OwnerSpec::default(), 1))
        .collect();
    ids.iter().for_each(|id| fill(&mut shared.write(), *id, ASKED, DEPTH));
    let asked = query(ASKED, DEPTH);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let started = Instant::now();
            for sequence in 1_000_000.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let batch = store(sequence, 0..128);
                shared.write().apply(ids[(sequence % OWNERS) as usize], &batch, CONTEXT);
                let due = Duration::from_secs_f64((sequence - 999_999) as f64 * 128.0 / rate as f64);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
        });
        let started = Instant::now();
        let mut samples = Vec::new();
        while started.elapsed() < time {
            let before = Instant::now();
            let answer = shared.read().find(black_box(&asked));
            samples.push(before.elapsed().as_nanos() as f64 / 1e3);
            assert!(answer.owners().all(|row| row.device == DEPTH));
        }
        stop.store(true, Ordering::Relaxed);
        samples
    })
}
