//! Ours and the reference service side by side: both run at the same time, get the same seeded workload in turn (A B B A),
//! and every figure is printed with its median, range, ratio and target. Answers are compared meanwhile; a difference
//! makes the run fail.
//!
//! Started by `benches/compare/run`, which installs the reference. `cargo bench --bench compare -- --self-check` needs
//! none: it only checks the workload.

#[path = "../workload/mod.rs"]
mod workload;

mod answers;
mod bench;
mod children;
mod dump;
mod http;
mod ingest;
mod machine;
mod measure;
mod memory;
mod mixed;
mod options;
mod processor;
mod queries;
mod replica;
mod rig;
mod service;
mod table;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use answers::Ledger;
use bench::Bench;
use options::Options;
use workload::play::{Play, Script};
use workload::trace::{self, Trace};

/// A group of rows.
struct Group {
    name: &'static str,
    run: fn(&mut Bench) -> Result<()>,
}

const GROUPS: &[Group] = &[
    Group { name: "queries", run: queries::run },
    Group { name: "ingest", run: ingest::run },
    Group { name: "memory", run: memory::run },
    Group { name: "dump", run: dump::run },
    Group { name: "recovery", run: replica::recovery },
    Group { name: "start", run: replica::starts },
    Group { name: "mixed", run: mixed::run },
];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nothing is left to tell it to when stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all steps came to an end and all answers were equal.
fn run() -> Result<bool> {
    if std::env::args().any(|word| word == "--self-check") {
        return self_check().map(|()| true);
    }
    let names: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
    let options = Options::parse(std::env::args().skip(1), &names)?;
    children::end_at_signals()?;
    let mut bench = Bench {
        commands: options.commands.clone(),
        short: options.short,
        began: Instant::now(),
        rows: vec![],
        ledger: Ledger::default(),
        failures: vec![],
    };
    for group in
        GROUPS.iter().filter(|group| options.rows.is_empty() || options.rows.iter().any(|row| row == group.name))
    {
        bench.say(&format!("== {}", group.name));
        if let Err(error) = (group.run)(&mut bench) {
            let failure = format!("{}: {error:#}", group.name);
            bench.say(&format!("FAILED: {failure}"));
            bench.failures.push(failure);
        }
    }
    let seconds = bench.began.elapsed().as_secs();
    let text = report(&bench, seconds);
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(path) = &options.out {
        std::fs::write(path, &text)?;
    }
    if let Some(path) = &options.json {
        std::fs::write(path, json(&bench, seconds).to_string())?;
    }
    Ok(bench.failures.is_empty() && bench.ledger.different == 0)
}

/// Plays all scripts of the ingest rows without any service, and compares their sums with known ones.
fn self_check() -> Result<()> {
    let trace = Trace::read()?;
    for (cast, name) in ingest::casts() {
        let script = Script::of_play(&mut Play::new(&trace, cast), trace::INGEST_REQUESTS);
        let sums = script.sums();
        ingest::check_sums(cast, trace::INGEST_REQUESTS, sums)?;
        let bytes: usize = script.messages.iter().map(|(_, payload)| payload.bytes.len()).sum();
        let (stored, removed, events) = sums;
        let megabytes = bytes / 1_000_000;
        let line =
            format!("{name}: {stored} stored, {removed} removed, {events} events, {megabytes} MB: as expected\n");
        std::io::stdout().write_all(line.as_bytes())?;
    }
    Ok(())
}

fn report(bench: &Bench, seconds: u64) -> String {
    let Bench { rows, ledger, failures, short, .. } = bench;
    let mut text = machine::text();
    if *short {
        text += "SHORT: small sizes, few samples; no figure here is one to believe\n";
    }
    text += &table::text(rows);
    text += &format!(
        "\nAnswers compared: {}, different: {}; sum of workers {}, of scores {} tokens\n",
        ledger.compared, ledger.different, ledger.workers, ledger.tokens
    );
    for line in ledger.lines.iter().chain(failures) {
        text += &format!("! {line}\n");
    }
    text += "Growth of costs, memory that comes back, and profiles: `cargo bench --bench scale`, docs/scale.md.\n";
    text += &format!("Took {} min {:02} s.\n", seconds / 60, seconds % 60);
    text
}

fn json(bench: &Bench, seconds: u64) -> serde_json::Value {
    let Bench { rows, ledger, failures, short, .. } = bench;
    serde_json::json!({
        "machine": machine::json(), "short": short, "seconds": seconds,
        "rows": rows.iter().map(table::Row::json).collect::<Vec<_>>(),
        "answers": {
            "compared": ledger.compared, "different": ledger.different,
            "sum_of_workers": ledger.workers, "sum_of_scores": ledger.tokens, "differences": ledger.lines,
        },
        "failures": failures,
    })
}
