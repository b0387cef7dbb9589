//! Rows of memory: resident bytes per (block, owner) pair.

use std::time::Duration;

use anyhow::Result;

use super::bench::{Bench, Pair};
use super::table::{Row, Target};
use super::workload::content::{self, unique_id};
use super::workload::play::store_sequence;

const GROUP: &str = "Memory (resident bytes, net of those before the first batch)";
/// Depth of every sequence, in blocks.
const DEPTH: u32 = 512;
/// Calm before memory is read: allocators give pages back a little later.
const CALM: Duration = Duration::from_millis(1_500);
/// Sequences whose answers are compared.
const ASKED: u64 = 16;

/// What is stored.
struct Fill {
    workers: u64,
    pairs: u64,
    /// All workers hold the same sequences.
    is_same: bool,
    target: f64,
}

/// All rows.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let fill = |workers, pairs, is_same, target| Fill { workers, pairs, is_same, target };
    let fills = [
        fill(64, bench.size(4_000_000, 260_000), true, 20.0),
        fill(8, bench.size(4_000_000, 130_000), false, 2.5),
        fill(64, bench.size(1_000_000, 130_000), false, 2.5),
        fill(1, bench.size(1_000_000, 130_000), false, 2.5),
    ];
    for fill in fills {
        row(bench, &fill)?;
    }
    Ok(())
}

fn row(bench: &mut Bench, fill: &Fill) -> Result<()> {
    let Fill { workers, pairs, is_same, target } = *fill;
    let content = if is_same { "the same content" } else { "unique content" };
    let millions = pairs as f64 / 1e6;
    let name = format!("{workers} workers, {content}, {millions:.2} M pairs");
    bench.say(&format!("memory, {name}: filling"));
    let mut row = Row::new(GROUP, name, "bytes per pair").target(Target::TimesLess(target));
    let sequences = pairs.div_ceil(workers * u64::from(DEPTH));
    let id = |worker, number| if is_same { number } else { unique_id(worker, number) };
    for order in bench.halves(1) {
        let mut pair = Pair::start(&bench.commands, workers)?;
        let messages = (0..sequences).flat_map(|number| {
            let same = is_same.then(|| store_sequence(id(0, number), DEPTH, None));
            (0..workers).flat_map(move |worker| {
                let payloads = same.clone().unwrap_or_else(|| store_sequence(id(worker, number), DEPTH, None));
                payloads.into_iter().map(move |payload| (worker, payload))
            })
        });
        let filled = pair.fill(messages)?;
        std::thread::sleep(CALM);
        for side in order {
            let rig = pair.of(side);
            let net = rig.service.rss()?.saturating_sub(rig.empty_bytes);
            row.add(side, net as f64 / filled.pairs as f64);
        }
        if row.ours.len() == 1 {
            row.note = format!("{} pairs", filled.pairs);
            let asked =
                (0..ASKED).map(|at| content::locals(id(at % workers, at % sequences), DEPTH)).collect::<Vec<_>>();
            bench.compare(&mut pair, &row.name, &asked)?;
        }
    }
    bench.push(row);
    Ok(())
}
