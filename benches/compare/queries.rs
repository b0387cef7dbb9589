//! Rows of queries: processor time per request, gross and net of `/health`, and the median answer time.

use std::time::Duration;

use anyhow::Result;

use super::bench::{Bench, Pair};
use super::http::Request;
use super::measure::{Window, load, median, window};
use super::processor::Confined;
use super::rig::{binary_query, hash_query, token_query};
use super::service::Side;
use super::table::{Row, Target};
use super::workload::content::{self, QUERY_ID, unique_id};
use super::workload::play::store_sequence;
use super::workload::wire::Payload;

const GROUP: &str =
    "Queries (c = 1, client and services on one processor; the queried sequence is held by all W workers)";
/// Waking a thread on another processor costs as much as a small request, more on a virtual machine.
const SPREAD: &str = "Queries (the same, client and services on any processor)";
/// Depth of the queried sequence, in blocks.
const QUERY_DEPTH: u32 = 8_192;
/// Depth of the sequences behind it.
const FILL_DEPTH: u32 = 1_024;
/// A sequence that only a few of many workers hold.
const RARE_ID: u64 = 8;
const RARE_WORKERS: u64 = 8;
const RARE_DEPTH: u32 = 2_048;
/// Requests below this size are sampled more often.
const SHORT_BYTES: usize = 16 << 10;
/// What a fill leaves to do ends before the first window.
const CALM: Duration = Duration::from_secs(2);

/// A request with its targets.
struct Asked {
    name: &'static str,
    ours: Request,
    /// None: only our side understands it.
    reference: Option<Request>,
    /// The earlier request that it is then compared with.
    against: Option<&'static str>,
    gross: Target,
    net: Target,
}

impl Asked {
    fn both(name: &'static str, request: Request) -> Self {
        let reference = Some(request.clone());
        Self { name, ours: request, reference, against: None, gross: Target::None, net: Target::None }
    }
}

/// Samples of one request.
#[derive(Default)]
struct Samples {
    ours: Vec<Window>,
    reference: Vec<Window>,
    loads: Vec<f64>,
    note: String,
}

impl Samples {
    fn extend(&mut self, more: Self) {
        self.ours.extend(more.ours);
        self.reference.extend(more.reference);
        self.loads.extend(more.loads);
    }
}

/// All rows.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    for workers in bench.size(&[8, 64, 200][..], &[8, 200][..]) {
        with_workers(bench, *workers)?;
    }
    Ok(())
}

fn with_workers(bench: &mut Bench, workers: u64) -> Result<()> {
    bench.say(&format!("queries, {workers} workers: filling"));
    let mut pair = Pair::start(&bench.commands, workers)?;
    let background = bench.size(2_048.max(131_072 / workers), 1_024) / u64::from(FILL_DEPTH);
    let queried = store_sequence(QUERY_ID, QUERY_DEPTH, None);
    let held_by_all = (0..workers).flat_map(|worker| queried.iter().map(move |payload| (worker, payload.clone())));
    let rare = if workers > RARE_WORKERS { RARE_WORKERS } else { 0 };
    let held_by_few = (0..rare).flat_map(|worker| with_worker(worker, RARE_ID, RARE_DEPTH));
    let unique = (0..background)
        .flat_map(|number| (0..workers).map(move |worker| (worker, unique_id(worker, number))))
        .flat_map(|(worker, id)| with_worker(worker, id, FILL_DEPTH));
    pair.fill(held_by_all.chain(held_by_few).chain(unique))?;
    let mut questions: Vec<Vec<u64>> =
        [64, 512, 4_096, QUERY_DEPTH].map(|depth| content::locals(QUERY_ID, depth)).into();
    questions.extend((0..workers.min(16)).map(|worker| content::locals(unique_id(worker, 0), FILL_DEPTH)));
    questions.push(content::locals(RARE_ID, if rare > 0 { RARE_DEPTH } else { 1 }));
    bench.compare(&mut pair, &format!("{workers} workers filled for queries"), &questions)?;

    std::thread::sleep(CALM);
    let idle = Asked::both("GET /health", Request::get("/health"));
    if workers == 8 {
        for asked in spread(&idle) {
            let samples = sample(bench, &mut pair, &asked)?;
            push(bench, SPREAD, &format!("{}, W={workers}", asked.name), &samples, asked.gross);
        }
    }
    let confined = Confined::new([pair.ours.service.pid(), pair.reference.service.pid()]);
    if let Err(error) = &confined {
        bench.say(&format!("client and services stay on any processor: {error}"));
    }
    let mut health = sample(bench, &mut pair, &idle)?;
    let mut done: Vec<(Asked, Samples)> = vec![];
    for asked in asked(bench, workers) {
        let mut samples = sample(bench, &mut pair, &asked)?;
        if let Some((_, json)) = done.iter().find(|(earlier, _)| Some(earlier.name) == asked.against) {
            samples.reference.clone_from(&json.reference);
            samples.note = format!(
                "the reference's and our own JSON query of the same tokens took {:.0} and {:.0} us of processor time",
                median(&cpu(&json.reference)),
                median(&cpu(&json.ours))
            );
        }
        push(bench, GROUP, &format!("{}, W={workers}", asked.name), &samples, asked.gross);
        done.push((asked, samples));
    }
    health.extend(sample(bench, &mut pair, &idle)?);
    push(bench, GROUP, &format!("GET /health, W={workers}"), &health, Target::None);
    for (asked, samples) in done.iter().filter(|(asked, _)| asked.net != Target::None) {
        push_net(bench, &format!("{}, W={workers}", asked.name), (samples, &health), asked.net);
    }
    Ok(())
}

/// What is also asked without confining anything.
fn spread(idle: &Asked) -> impl Iterator<Item = Asked> {
    let json = [KIB_TOKENS[0], KIB_TOKENS[2], KIB_TOKENS[3]];
    let json = json.map(|(name, _, count)| Asked::both(name, token_query(&content::tokens(QUERY_ID, count), "")));
    std::iter::once(Asked::both(idle.name, idle.ours.clone())).chain(json)
}

fn with_worker(worker: u64, id: u64, depth: u32) -> impl Iterator<Item = (u64, Payload)> {
    store_sequence(id, depth, None).into_iter().map(move |payload| (worker, payload))
}

const KIB_TOKENS: [(&str, &str, usize); 4] = [
    ("JSON 1 k tokens", "binary 1 k tokens", 1_024),
    ("JSON 8 k tokens", "binary 8 k tokens", 8_192),
    ("JSON 32 k tokens", "binary 32 k tokens", 32_768),
    ("JSON 128 k tokens", "binary 128 k tokens", 131_072),
];
const HASHES: [(&str, u32); 3] = [("64 hashes", 64), ("512 hashes", 512), ("4096 hashes", 4_096)];

/// The requests of a number of workers, those that others are compared with first.
fn asked(bench: &Bench, workers: u64) -> Vec<Asked> {
    let (tokens, hashes) = match workers {
        8 => (&KIB_TOKENS[..], &HASHES[..]),
        64 => (&[KIB_TOKENS[0], KIB_TOKENS[2], KIB_TOKENS[3]][..], &HASHES[1..2]),
        _ => (&[KIB_TOKENS[0], KIB_TOKENS[2]][..], &HASHES[..1]),
    };
    let net_1k = match workers {
        8 => 5.0,
        64 => 9.0,
        _ => 14.0,
    };
    let mut all = vec![];
    for (name, _, count) in tokens {
        let asked = Asked::both(name, token_query(&content::tokens(QUERY_ID, *count), ""));
        all.push(match count {
            1_024 => Asked { net: Target::TimesLess(net_1k), ..asked },
            32_768 | 131_072 => Asked { gross: Target::TimesLess(6.0), ..asked },
            _ => asked,
        });
    }
    for (json, name, count) in tokens.iter().filter(|(_, _, count)| *count >= 32_768) {
        let ours = binary_query(&content::tokens(QUERY_ID, *count));
        let gross = if *count == 131_072 { Target::TimesLess(25.0) } else { Target::None };
        all.push(Asked { name, ours, reference: None, against: Some(json), gross, net: Target::None });
    }
    for (name, count) in hashes {
        let net = if workers == 200 { Target::TimesLess(20.0) } else { Target::None };
        all.push(Asked { net, ..Asked::both(name, hash_query(&content::locals(QUERY_ID, *count))) });
    }
    if workers > RARE_WORKERS && (workers == 200 || bench.short) {
        let tokens = content::tokens(RARE_ID, 1_024);
        let plain = token_query(&tokens, "");
        let matched = token_query(&tokens, ",\"matched_only\":true");
        all.push(Asked::both("JSON 1 k tokens, 8 workers match", plain.clone()));
        let name = "JSON 1 k tokens, 8 workers match, matched_only";
        all.push(Asked { ours: matched, ..Asked::both(name, plain) });
    }
    all
}

/// A B B A, or ours alone.
fn sample(bench: &Bench, pair: &mut Pair, asked: &Asked) -> Result<Samples> {
    let length = Duration::from_millis(bench.size(2_000, 250));
    let mut samples = Samples::default();
    // The shorter a request, the more other programs disturb it.
    let rounds = if asked.ours.bytes() < SHORT_BYTES { 3 } else { 2 };
    for _ in 0..bench.size(rounds, 1) {
        for side in Side::ABBA {
            let rig = pair.of(side);
            match (side, &asked.reference) {
                (Side::Ours, _) => {
                    samples.ours.push(window(&rig.service, &mut rig.client, &asked.ours, length)?);
                }
                (Side::Reference, Some(request)) => {
                    samples.reference.push(window(&rig.service, &mut rig.client, request, length)?);
                }
                (Side::Reference, None) => continue,
            }
            samples.loads.push(load());
        }
    }
    Ok(samples)
}

fn cpu(windows: &[Window]) -> Vec<f64> {
    windows.iter().map(|window| window.cpu_us).collect()
}

fn p50(windows: &[Window]) -> Vec<f64> {
    windows.iter().map(|window| window.p50_us).collect()
}

fn push(bench: &mut Bench, group: &'static str, title: &str, samples: &Samples, target: Target) {
    let row = |name: String, of: fn(&[Window]) -> Vec<f64>| Row {
        ours: of(&samples.ours),
        reference: of(&samples.reference),
        loads: samples.loads.clone(),
        ..Row::new(group, name, "us")
    };
    bench.push(row(format!("{title}: CPU"), cpu).target(target).note(samples.note.clone()));
    bench.push(row(format!("{title}: p50"), p50));
}

/// What is left above the same server's `/health` of the same run.
fn push_net(bench: &mut Bench, title: &str, (samples, health): (&Samples, &Samples), target: Target) {
    let net = |windows: &[Window], idle: &[Window]| {
        let idle = median(&cpu(idle));
        cpu(windows).into_iter().map(|cpu| cpu - idle).collect()
    };
    bench.push(Row {
        ours: net(&samples.ours, &health.ours),
        reference: net(&samples.reference, &health.reference),
        loads: samples.loads.clone(),
        target,
        ..Row::new(GROUP, format!("{title}: CPU net of /health"), "us")
    });
}
