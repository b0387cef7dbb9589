//! How cost grows: with owners, with blocks, with the length of a query, and with ingest beside the queries. In process,
//! one index.
//!
//! `cargo bench --bench scale [-- --short] [--out FOLDER]` prints tables and writes `figures.json` and one SVG per table
//! into the folder, `target/scale` without one. Asserts that answers are right, and no time. With 50 million blocks it
//! takes some 6 GB of memory.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

mod content;
mod measure;
mod plot;
mod runs;

use plot::{Line, Picture};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

/// A table: what its lines mean, and the picture that is made of it.
struct Table {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: Vec<Line>,
}

fn main() -> Result<(), Failure> {
    // As the service does.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_thp_disable(true)?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let short = arguments.iter().any(|argument| argument == "--short") || !arguments.iter().any(|a| a == "--bench");
    let folder = arguments.iter().skip_while(|argument| *argument != "--out").nth(1);
    let folder = folder.map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../scale"), PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    let mut figures = Vec::new();
    let started = std::time::Instant::now();
    for run in runs::ALL {
        let mut out = std::io::stdout().lock();
        for table in run(short) {
            write_text(&mut out, &table)?;
            write_picture(&folder, &table)?;
            figures.push(as_json(&table));
        }
        writeln!(out, "# {:.0} s, load {}", started.elapsed().as_secs_f64(), measure::load())?;
    }
    let all = json!({"short": short, "processor": processor(), "load": measure::load(), "tables": figures});
    std::fs::write(folder.join("figures.json"), serde_json::to_string_pretty(&all)? + "\n")?;
    Ok(())
}

fn write_text(out: &mut impl Write, table: &Table) -> std::io::Result<()> {
    writeln!(out, "\n{} ({} by {})", table.title, table.y, table.x)?;
    for (name, points) in &table.lines {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x}: {y:.2}")).collect();
        writeln!(out, "  {name:<28} {}", points.join("  "))?;
    }
    Ok(())
}

fn write_picture(folder: &Path, table: &Table) -> Result<(), Failure> {
    let picture = Picture { title: table.title, x: table.x, y: table.y, lines: &table.lines };
    picture.write(&folder.join(table.name).with_extension("svg"))
}

fn as_json(table: &Table) -> Value {
    let lines: Vec<Value> = table.lines.iter().map(|(name, points)| json!({"name": name, "points": points})).collect();
    json!({"name": table.name, "x": table.x, "y": table.y, "lines": lines})
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches(['\t', ' ', ':']).to_owned())
}
