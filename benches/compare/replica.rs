//! Rows of a start: without peers, and with a peer that has everything.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::answers;
use super::bench::{Bench, fill_one};
use super::dump;
use super::http::{Client, Request};
use super::rig::{Rig, hash_query};
use super::service::{Service, Side};
use super::table::{Row, Target};
use super::workload::content::{self, unique_id};
use super::workload::play::store_sequence;
use super::workload::{BLOCK_SIZE, mix};

const GROUP: &str = "Start and recovery";
const WORKERS: u64 = 8;
const DEPTH: u32 = 512;
/// Sequences whose owner must hold them wholly before a replica counts as full.
const ASKED: u64 = 64;
/// Longest wait for a full second replica. The reference gives up by itself after ten seconds and starts empty.
const FULL_MAX: Duration = Duration::from_secs(60);
/// Wait for a reference that says yes and is not full: it loads nothing later.
const EMPTY_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
const START_MAX: Duration = Duration::from_secs(30);

/// Rows of a start without peers.
pub(crate) fn starts(bench: &mut Bench) -> Result<()> {
    bench.say("starts without peers");
    let mut time = Row::new(GROUP, "start to ready, no peers", "ms").target(Target::AtMost(30.0));
    let mut rss = Row::new(GROUP, "resident after the start", "MiB");
    for _ in 0..bench.size(8, 1) {
        for side in Side::ABBA {
            let mut service = Service::launch(&bench.commands, side, &[])?;
            time.add(side, service.wait_ready(START_MAX)?.as_secs_f64() * 1e3);
            rss.add(side, service.rss()? as f64 / f64::from(1 << 20));
        }
    }
    [time, rss].into_iter().for_each(|row| bench.push(row));
    Ok(())
}

/// Rows of a second replica.
pub(crate) fn recovery(bench: &mut Bench) -> Result<()> {
    let both: &[Side] = bench.size(&Side::ABBA, &[Side::Ours, Side::Reference]);
    recover(bench, bench.size(4_000_000, 200_000), both)?;
    recover(bench, bench.size(10_000_000, 400_000), bench.size(&[Side::Ours, Side::Ours], &[Side::Ours]))
}

/// What was seen of a second replica.
struct Seen {
    /// From its start; infinite if it never answered fully.
    full_s: f64,
    /// It said that it may be asked while answers were not full.
    said_yes_too_early: bool,
}

fn recover(bench: &mut Bench, pairs: u64, sides: &[Side]) -> Result<()> {
    let name = format!("{:.1} M unique pairs", pairs as f64 / 1e6);
    let limit = if pairs <= 4_000_000 { Target::AtMost(5.0) } else { Target::AtMost(FULL_MAX.as_secs_f64()) };
    let mut full = Row::new(GROUP, format!("second replica answers fully, {name}"), "s after start").target(limit);
    let mut early =
        Row::new(GROUP, format!("said ready while not full, {name}"), "times of 1").target(Target::AtMost(0.0));
    let mut peak =
        Row::new(GROUP, format!("/dump of the first, {name}: peak above before"), "MiB").target(Target::AtMost(64.0));
    for side in sides {
        bench.say(&format!("recovery, {}, {name}: filling", side.name()));
        let sequences = pairs.div_ceil(WORKERS * u64::from(DEPTH));
        let mut first = Rig::start(&bench.commands, *side, WORKERS)?;
        let messages = (0..sequences).flat_map(|number| {
            (0..WORKERS).flat_map(move |worker| {
                let payloads = store_sequence(unique_id(worker, number), DEPTH, None);
                payloads.into_iter().map(move |payload| (worker, payload))
            })
        });
        fill_one(&mut first, messages)?;
        let questions = Questions::of(sequences);
        let mut client = Client::connect(first.service.address)?;
        ensure!(questions.are_answered_by(&mut client)?, "{}: the first replica is not full", side.name());
        bench.say(&format!("recovery, {}, {name}: starting the second", side.name()));
        let seen = watch_second(bench, &first, &questions)?;
        full.add(*side, seen.full_s);
        early.add(*side, f64::from(u8::from(seen.said_yes_too_early)));
        if *side == Side::Ours {
            peak.add(*side, dump::cost(&first, "/dump")?.peak_mib);
        }
    }
    [full, early, peak].into_iter().for_each(|row| bench.push(row));
    Ok(())
}

/// Starts a second replica and watches it until it is full, or will never be.
fn watch_second(bench: &Bench, first: &Rig, questions: &Questions) -> Result<Seen> {
    let peers = ["--peers".to_owned(), first.service.url()];
    let second = Service::launch(&bench.commands, first.service.side, &peers)?;
    let mut seen = Seen { full_s: f64::INFINITY, said_yes_too_early: false };
    let mut first_yes = None;
    while second.began.elapsed() < FULL_MAX {
        if second.says_yes() {
            let yes = *first_yes.get_or_insert_with(Instant::now);
            let at = second.began.elapsed().as_secs_f64();
            let mut client = Client::connect(second.address)?;
            if questions.are_answered_by(&mut client)? {
                seen.full_s = at;
                break;
            }
            seen.said_yes_too_early = true;
            if yes.elapsed() > EMPTY_MAX {
                break;
            }
        }
        std::thread::sleep(POLL);
    }
    Ok(seen)
}

/// Queries with their answers.
struct Questions(Vec<(Request, answers::Scores)>);

impl Questions {
    /// Sequences from the beginning to the end of the fill, of all workers.
    fn of(sequences: u64) -> Self {
        let question = |at: u64| {
            let (worker, number) = (at % WORKERS, if at < WORKERS { sequences - 1 } else { mix(at) % sequences });
            let score = u64::from(DEPTH * BLOCK_SIZE);
            let locals = content::locals(unique_id(worker, number), DEPTH);
            (hash_query(&locals), answers::Scores::from([((worker + 1, 0), score)]))
        };
        Self((0..ASKED).map(question).collect())
    }

    /// False at the first answer that is not the right one, an unknown model included.
    fn are_answered_by(&self, client: &mut Client) -> Result<bool> {
        for (query, want) in &self.0 {
            let reply = client.call(query).context("the second replica does not answer")?;
            if reply.status != 200 || answers::scores(reply.body)? != *want {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
