//! Rows of a query beside heavy work: dumps in a rhythm and a steady stream of events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::bench::{Bench, Pair};
use super::http::{Request, download};
use super::ingest::Stream;
use super::measure::{Window, window};
use super::rig::{Rig, token_query};
use super::service::Side;
use super::table::{Row, Target};
use super::workload::content::{self, QUERY_ID, unique_id};
use super::workload::play::store_sequence;
use super::workload::steady::{STEP_BLOCKS, Tape};
use super::workload::wire::Payload;

const GROUP: &str =
    "A 32 k-token query beside a dump every 2 s and 200 k stored blocks/s (p99 on a shared machine is noise)";
const WORKERS: u64 = 8;
const QUERY_DEPTH: u32 = 2_048;
const DEPTH: u32 = 512;
/// A faster service does not get more work.
const DUMP_RHYTHM: Duration = Duration::from_secs(2);

/// All rows.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    bench.say("mixed: filling");
    let tape = Tape::new(WORKERS);
    let mut pair = Pair::start(&bench.commands, WORKERS)?;
    let queried = (0..WORKERS).flat_map(|worker| with_worker(worker, QUERY_ID, QUERY_DEPTH));
    let sequences = bench.size(500_000, 50_000) / (WORKERS * u64::from(DEPTH));
    let unique = (0..sequences)
        .flat_map(|number| (0..WORKERS).flat_map(move |worker| with_worker(worker, unique_id(worker, number), DEPTH)));
    pair.fill(queried.chain(unique))?;
    bench.compare(&mut pair, "before dumps and stream", &[content::locals(QUERY_ID, QUERY_DEPTH)])?;
    let query = token_query(&content::tokens(QUERY_ID, 32_768), "");
    let length = Duration::from_millis(bench.size(6_000, 1_000));
    let row = |name: &str| Row::new(GROUP, name, "us");
    let mut calm = [row("alone: p50"), row("alone: p99")];
    let mut busy = [row("beside both: p50"), row("beside both: p99").target(Target::TimesLess(5.0))];
    let mut streams = [Stream::default(), Stream::default()];
    let mut work = vec![];
    for side in Side::ABBA {
        bench.say(&format!("mixed: {}", side.name()));
        let rig = pair.of(side);
        enter(&mut calm, side, window(&rig.service, &mut rig.client, &query, length)?);
        let stream = &mut streams[side as usize];
        stream.warm_up(&tape, &mut rig.fleet)?;
        rig.settle(Duration::from_millis(20))?;
        let beside = beside(rig, &query, length, (stream, &tape))?;
        work.push(format!(
            "{}: {} dumps, {:.0} k stored blocks/s",
            side.name(),
            beside.dumps,
            beside.blocks_per_s / 1e3
        ));
        enter(&mut busy, side, beside.window);
        rig.settle(Duration::from_millis(20))?;
        stream.check(rig)?;
    }
    busy[0].note = format!("work done beside, in windows of {} s: {}", length.as_secs_f64(), work.join("; "));
    calm.into_iter().chain(busy).for_each(|row| bench.push(row));
    bench.compare(&mut pair, "after dumps and stream", &[content::locals(QUERY_ID, QUERY_DEPTH)])
}

fn with_worker(worker: u64, id: u64, depth: u32) -> impl Iterator<Item = (u64, Payload)> {
    store_sequence(id, depth, None).into_iter().map(move |payload| (worker, payload))
}

fn enter(rows: &mut [Row; 2], side: Side, window: Window) {
    for (row, value) in rows.iter_mut().zip([window.p50_us, window.p99_us]) {
        row.add(side, value);
    }
}

struct Beside {
    window: Window,
    dumps: u64,
    blocks_per_s: f64,
}

/// A window of queries while one thread dumps in a rhythm and one publishes at a fixed rate.
fn beside(rig: &mut Rig, query: &Request, length: Duration, (stream, tape): (&mut Stream, &Tape)) -> Result<Beside> {
    let Rig { service, client, fleet, .. } = rig;
    let (stop, dumps) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_over = || stop.load(Ordering::Relaxed);
    let address = service.address;
    std::thread::scope(|scope| {
        let dumper = scope.spawn(|| -> Result<()> {
            while !is_over() {
                let began = Instant::now();
                download(address, "/dump")?;
                dumps.fetch_add(1, Ordering::Relaxed);
                while began.elapsed() < DUMP_RHYTHM && !is_over() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Ok(())
        });
        let publisher = scope.spawn(|| -> Result<f64> {
            let began = Instant::now();
            let steps = stream.run(tape, fleet, is_over)?;
            Ok(steps as f64 * f64::from(STEP_BLOCKS) / began.elapsed().as_secs_f64())
        });
        let window = window(service, client, query, length);
        stop.store(true, Ordering::Relaxed);
        let blocks_per_s = publisher.join().ok().context("the publisher panicked")??;
        dumper.join().ok().context("the dumper panicked")??;
        Ok(Beside { window: window?, dumps: dumps.load(Ordering::Relaxed), blocks_per_s })
    })
}
