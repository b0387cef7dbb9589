//! Rows of ingest: the trace at full speed, a steady stream, and how soon one block is visible.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::answers;
use super::bench::{Bench, Pair};
use super::measure::quantile;
use super::rig::{Fleet, Rig, hash_query};
use super::service::Side;
use super::table::{Row, Target};
use super::workload::BLOCK_SIZE;
use super::workload::content::{self, Naming};
use super::workload::engine::Eviction;
use super::workload::play::{Cast, Play, Script};
use super::workload::steady::{REMOVED_AFTER, STEP_BLOCKS, Tape, steady_id};
use super::workload::trace::{self, Trace};

const GROUP: &str = "Ingest";
/// Rare, so that asking whether all has arrived costs next to nothing.
const VISIBLE_POLL: Duration = Duration::from_millis(20);
/// Queries of the trace that are asked after it was played.
const ASKED: usize = 200;
/// Workers of the steady stream.
const STEADY_WORKERS: u64 = 8;
/// Stored blocks per second of the steady stream; as many are removed.
const STEADY_BLOCKS_PER_S: u32 = 200_000;
/// Calm before a single block is published.
const IDLE: Duration = Duration::from_millis(5);
/// Rhythm of the steady stream: a few steps each time.
const STEADY_TICK: Duration = Duration::from_millis(1);
const VISIBLE_MAX: Duration = Duration::from_secs(5);

/// Who plays in which row.
pub(crate) fn casts() -> [(Cast, &'static str); 5] {
    [
        (Cast::plain(1), "trace, 1 publisher"),
        (Cast::plain(8), "trace, 8 publishers"),
        (Cast::plain(64), "trace, 64 publishers"),
        (Cast { naming: Naming::PerWorker, ..Cast::plain(8) }, "trace, 8 publishers with chain seeds of their own"),
        (Cast { eviction: Eviction::Random, ..Cast::plain(8) }, "trace, 8 publishers with random eviction"),
    ]
}

/// All rows.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let trace = Trace::read()?;
    for (cast, name) in casts() {
        let target = if cast == Cast::plain(cast.workers) { Target::TimesLess(5.0) } else { Target::None };
        let row = Row::new(GROUP, name, "CPU s per M blocks").target(target);
        play(bench, &trace, cast, row)?;
    }
    steady_and_visible(bench)
}

/// Plays the trace to fresh services, one after the other, in both orders.
fn play(bench: &mut Bench, trace: &Trace, cast: Cast, mut row: Row) -> Result<()> {
    bench.say(&format!("ingest, {}: encoding", row.name));
    let requests = bench.size(trace::INGEST_REQUESTS, 250);
    let mut play = Play::new(trace, cast);
    let script = Script::of_play(&mut play, requests);
    let (stored, removed, events) = script.sums();
    check_sums(cast, requests, (stored, removed, events))?;
    row.note = format!("{stored} stored and {removed} removed blocks in {events} events");
    for order in bench.halves(2) {
        let mut pair = Pair::start(&bench.commands, cast.workers)?;
        for side in order {
            let rig = pair.of(side);
            let cpu_s = send_all(rig, &script)?;
            row.add(side, cpu_s / (stored + removed) as f64 * 1e6);
        }
        // What the figures stand for is the same in every round.
        if row.ours.len() == 1 {
            compare_play(bench, &mut pair, &mut play, &mut row)?;
        }
    }
    bench.push(row);
    Ok(())
}

/// The sums of whole rows. Those with tail eviction were computed by an independent program, too.
pub(crate) fn check_sums(cast: Cast, requests: usize, sums: (u64, u64, u64)) -> Result<()> {
    let want = match (cast.workers, cast.eviction) {
        (1, _) => (2_061_792, 1_996_256, 2_001_706),
        (8, Eviction::Tail) => (1_992_672, 1_861_600, 1_866_932),
        (8, Eviction::Random) => (1_994_878, 1_863_806, 1_915_523),
        _ => (1_719_552, 695_552, 700_441),
    };
    if requests == trace::INGEST_REQUESTS {
        ensure!(sums == want, "another workload: {sums:?} in place of {want:?} for {} workers", cast.workers);
    }
    Ok(())
}

/// Processor time of the service from the first batch until all is visible.
fn send_all(rig: &mut Rig, script: &Script) -> Result<f64> {
    let cpu = rig.service.cpu_s()?;
    for (worker, payload) in &script.messages {
        rig.fleet.send(*worker, payload)?;
    }
    rig.settle(VISIBLE_POLL)?;
    Ok(rig.service.cpu_s()? - cpu)
}

/// Asks both sides for requests of the trace, and the model what is right.
///
/// The reference is known to differ from it in two modes, and there only our side has to be right. With random eviction:
/// it forgets what lies behind a removed block. With seeds per worker: a worker's branch from a block that another worker
/// stored first, under another name, is lost.
fn compare_play(bench: &mut Bench, pair: &mut Pair, play: &mut Play<'_>, row: &mut Row) -> Result<()> {
    let (position, asked) = (play.position(), bench.size(ASKED, 50));
    // Half are requests that were played last, half are still to come.
    let requests: Vec<usize> = (position - asked / 2..position + asked / 2).collect();
    let mut right = (0, 0);
    for request in requests {
        let query = hash_query(&play.query(request));
        let want = answers::of_prefixes(&play.prefixes(request));
        let (ours, theirs) = (pair.ours.ask(&query)?, pair.reference.ask(&query)?);
        right = (right.0 + usize::from(ours == want), right.1 + usize::from(theirs == want));
        if play.cast() == Cast::plain(play.cast().workers) {
            bench.ledger.enter(&format!("{}, request {request}", row.name), &ours, &theirs);
        }
    }
    let line =
        format!("{}: equal to the engines' own caches: ours {}, reference {} of {asked}", row.name, right.0, right.1);
    bench.say(&format!("  {line}"));
    row.note = format!(
        "{}; answers equal to the engines' own caches: ours {} of {asked}, reference {}",
        row.note, right.0, right.1
    );
    if right.0 < asked {
        bench.failures.push(line);
    }
    Ok(())
}

fn steady_and_visible(bench: &mut Bench) -> Result<()> {
    bench.say("ingest, steady stream: encoding");
    let tape = Tape::new(STEADY_WORKERS);
    let mut pair = Pair::start(&bench.commands, STEADY_WORKERS)?;
    let mut visible = Row::new(GROUP, "publish to visible, idle: p50", "us")
        .target(Target::TimesLess(2.0))
        .note("8 workers, one block at a time");
    let samples = bench.size(200, 20);
    for side in bench.halves(2).into_flattened() {
        let mut times = publish_to_visible(pair.of(side), samples)?;
        visible.add(side, quantile(&mut times, 0.5));
    }
    bench.push(visible);

    let name = format!("steady {} k stored blocks/s, as many removed", STEADY_BLOCKS_PER_S / 1_000);
    let mut row = Row::new(GROUP, name, "CPU s per M blocks");
    let length = Duration::from_millis(bench.size(3_000, 500));
    let mut streams = [Stream::default(), Stream::default()];
    for side in bench.halves(2).into_flattened() {
        let (rig, stream) = (pair.of(side), &mut streams[side as usize]);
        stream.warm_up(&tape, &mut rig.fleet)?;
        rig.settle(VISIBLE_POLL)?;
        let cpu = rig.service.cpu_s()?;
        let began = Instant::now();
        let steps = stream.run(&tape, &mut rig.fleet, || began.elapsed() >= length)?;
        rig.settle(VISIBLE_POLL)?;
        let blocks = steps as f64 * 2.0 * f64::from(STEP_BLOCKS);
        row.add(side, (rig.service.cpu_s()? - cpu) / blocks * 1e6);
    }
    bench.push(row);
    for side in [Side::Ours, Side::Reference] {
        streams[side as usize].check(pair.of(side))?;
    }
    Ok(())
}

/// Where the steady stream to one service stands.
#[derive(Default)]
pub(crate) struct Stream {
    step: u64,
}

impl Stream {
    /// Brings it so far that every step removes as many blocks as it stores.
    pub(crate) fn warm_up(&mut self, tape: &Tape, fleet: &mut Fleet) -> Result<()> {
        while self.step < tape.warm_up_steps() {
            self.send(tape, fleet)?;
        }
        Ok(())
    }

    /// Goes on at the fixed rate until told to stop; number of steps.
    pub(crate) fn run(&mut self, tape: &Tape, fleet: &mut Fleet, mut stop: impl FnMut() -> bool) -> Result<u64> {
        let (began, first) = (Instant::now(), self.step);
        while !stop() {
            let due = began.elapsed().as_secs_f64() * f64::from(STEADY_BLOCKS_PER_S) / f64::from(STEP_BLOCKS);
            while ((self.step - first) as f64) < due {
                self.send(tape, fleet)?;
            }
            std::thread::sleep(STEADY_TICK);
        }
        Ok(self.step - first)
    }

    /// The sequences stored last must be held, those removed last must not.
    pub(crate) fn check(&self, rig: &mut Rig) -> Result<()> {
        let workers = rig.fleet.workers() as u64;
        for back in 1..=workers {
            let (worker, number) = ((self.step - back) % workers, (self.step - back) / workers);
            let whole = u64::from(STEP_BLOCKS * BLOCK_SIZE);
            for (number, want) in [(number, Some(whole)), (number - REMOVED_AFTER, None)] {
                let locals = content::locals(steady_id(worker, number), STEP_BLOCKS);
                let got = rig.ask(&hash_query(&locals))?.get(&(worker + 1, 0)).copied();
                ensure!(got == want, "{}: steady stream: {got:?} in place of {want:?}", rig.service.side.name());
            }
        }
        Ok(())
    }

    fn send(&mut self, tape: &Tape, fleet: &mut Fleet) -> Result<()> {
        let (worker, payload) = tape.at(self.step);
        self.step += 1;
        fleet.send(worker, payload)
    }
}

/// Times from sending one block until a query shows it, asked without a pause.
fn publish_to_visible(rig: &mut Rig, samples: u64) -> Result<Vec<f64>> {
    let mut times = vec![];
    for at in 0..samples {
        let (payload, query) = rig.fleet.next_sentinel();
        std::thread::sleep(IDLE);
        let began = Instant::now();
        rig.fleet.send(at % rig.fleet.workers() as u64, &payload)?;
        while rig.ask(&query)?.is_empty() {
            if began.elapsed() > VISIBLE_MAX {
                bail!("{}: a block does not become visible", rig.service.side.name());
            }
        }
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}
