//! Rows of the dump: what writing out the whole state costs the service.

use anyhow::{Result, ensure};

use super::bench::{Bench, Pair};
use super::http::download;
use super::rig::Rig;
use super::service::Side;
use super::table::{Row, Target};
use super::workload::content::{self, unique_id};
use super::workload::play::store_sequence;

const GROUP: &str = "Dump (unique pairs, the first dump of a fresh service)";
const WORKERS: u64 = 64;
const DEPTH: u32 = 512;
const MIB: f64 = (1 << 20) as f64;
/// Workers of whom a sequence is asked.
const ASKED: u64 = 8;

/// What one download cost the service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    cpu_s: f64,
    /// Largest resident memory above that before, in MiB.
    pub(crate) peak_mib: f64,
    megabytes: f64,
}

/// Downloads and throws away.
pub(crate) fn cost(rig: &Rig, path: &str) -> Result<Cost> {
    let service = &rig.service;
    service.reset_peak()?;
    let (before, cpu) = (service.rss()?, service.cpu_s()?);
    let (bytes, last) = download(service.address, path)?;
    ensure!(path != "/dump" || last == b'}', "{}: the dump breaks off", service.side.name());
    let peak = service.peak()?.saturating_sub(before);
    Ok(Cost { cpu_s: service.cpu_s()? - cpu, peak_mib: peak as f64 / MIB, megabytes: bytes as f64 / 1e6 })
}

/// All rows.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let pairs = bench.size(1_000_000_u64, 100_000);
    let sequences = pairs.div_ceil(WORKERS * u64::from(DEPTH));
    let name = |what: &str| format!("{what}, {:.2} M pairs", pairs as f64 / 1e6);
    let rows = |what: &str, cpu, peak| {
        [
            Row::new(GROUP, format!("{}: CPU", name(what)), "s").target(cpu),
            Row::new(GROUP, format!("{}: peak above before", name(what)), "MiB").target(peak),
            Row::new(GROUP, format!("{}: body", name(what)), "MB"),
        ]
    };
    let mut dump = rows("/dump", Target::TimesLess(10.0), Target::AtMost(64.0));
    let mut snapshot = rows("/snapshot against the reference's /dump", Target::None, Target::None);
    for order in bench.halves(1) {
        bench.say("dump: filling");
        let mut pair = Pair::start(&bench.commands, WORKERS)?;
        let messages = (0..sequences).flat_map(|number| {
            (0..WORKERS).flat_map(move |worker| {
                let payloads = store_sequence(unique_id(worker, number), DEPTH, None);
                payloads.into_iter().map(move |payload| (worker, payload))
            })
        });
        pair.fill(messages)?;
        for side in order {
            let of_dump = cost(pair.of(side), "/dump")?;
            enter(&mut dump, side, of_dump);
            let of_snapshot = match side {
                Side::Ours => cost(pair.of(side), "/snapshot")?,
                Side::Reference => of_dump,
            };
            enter(&mut snapshot, side, of_snapshot);
        }
        let asked: Vec<_> = (0..ASKED).map(|worker| content::locals(unique_id(worker, 0), DEPTH)).collect();
        bench.compare(&mut pair, "after dumps", &asked)?;
    }
    dump.into_iter().chain(snapshot).for_each(|row| bench.push(row));
    Ok(())
}

fn enter(rows: &mut [Row; 3], side: Side, cost: Cost) {
    for (row, value) in rows.iter_mut().zip([cost.cpu_s, cost.peak_mib, cost.megabytes]) {
        row.add(side, value);
    }
}
