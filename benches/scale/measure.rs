//! What is measured: processor time of this thread, which stalls of a shared machine do not touch, and resident memory.

use std::fs;
use std::time::{Duration, Instant};

/// Processor time that this thread has used, in nanoseconds; wall-clock time where the system does not tell.
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn nanos(&self) -> u64 {
        let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let on_cpu = stat.split_whitespace().next().and_then(|text| text.parse().ok()).filter(|nanos| *nanos > 0);
        on_cpu.unwrap_or(self.start.elapsed().as_nanos() as u64)
    }
}

/// Resident bytes of this process.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

/// Microseconds per call: the median of several rounds, each long enough that a tick does not matter.
pub(crate) fn micros_per_call(round: Duration, mut call: impl FnMut()) -> f64 {
    const ROUNDS: usize = 5;
    let clock = Clock::new();
    let mut figures: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (started, before) = (Instant::now(), clock.nanos());
            let mut calls = 0_u32;
            while started.elapsed() < round {
                (0..32).for_each(|_| call());
                calls += 32;
            }
            (clock.nanos() - before) as f64 / f64::from(calls) / 1e3
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    figures[ROUNDS / 2]
}

/// A quantile of samples.
pub(crate) fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(((samples.len() as f64 * part) as usize).min(samples.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Load average of the last minute.
pub(crate) fn load() -> String {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| Some(text.split(' ').next()?.to_owned()))
        .unwrap_or_default()
}
