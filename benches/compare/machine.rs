//! Where and with what was measured.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

/// `run` tells the versions.
const REFERENCE_VERSION: &str = "KVINDEXER_REFERENCE_VERSION";
const REVISION: &str = "KVINDEXER_REVISION";

struct Machine {
    processor: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    date: String,
    load: String,
    ours: String,
    reference: String,
}

fn read() -> Machine {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let kib = field(&file("/proc/meminfo"), "MemTotal");
    let kib: f64 = kib.trim_end_matches("kB").trim().parse().unwrap_or(f64::NAN);
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output();
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    Machine {
        processor: field(&file("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: kib / f64::from(1 << 20),
        kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
        date: date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default(),
        load: file("/proc/loadavg").trim().to_owned(),
        ours: format!("{} ({})", env!("CARGO_PKG_VERSION"), variable(REVISION)),
        reference: variable(REFERENCE_VERSION),
    }
}

/// For people.
pub(crate) fn text() -> String {
    let Machine { processor, cores, memory_gib, kernel, date, load, ours, reference } = read();
    format!(
        "kvindexer {ours} against {reference}\n{processor}, {cores} cores, {memory_gib:.1} GiB, Linux {kernel}; {date}; load at the end {load}\n"
    )
}

/// For programs.
pub(crate) fn json() -> Value {
    let Machine { processor, cores, memory_gib, kernel, date, load, ours, reference } = read();
    json!({
        "processor": processor, "cores": cores, "memory_gib": memory_gib, "kernel": kernel, "date": date,
        "load_at_end": load, "kvindexer": ours, "reference": reference,
    })
}
