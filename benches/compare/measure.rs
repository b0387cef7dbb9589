//! Samples: windows of requests, and the load of the machine beside them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::http::{Client, Request};
use super::service::Service;

/// Requests before a window begins: connections, caches and pages are warm then.
const WARM_UP: usize = 20;

/// What a window of one request after the other cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Processor time of the service per request.
    pub(crate) cpu_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Sends one request again and again, one at a time, for `length`.
pub(crate) fn window(service: &Service, client: &mut Client, request: &Request, length: Duration) -> Result<Window> {
    for _ in 0..WARM_UP {
        client.expect(request)?;
    }
    let mut times_ns = Vec::with_capacity(1 << 17);
    let cpu = service.cpu_s()?;
    let began = Instant::now();
    let mut last = began;
    while last.duration_since(began) < length {
        client.expect(request)?;
        let now = Instant::now();
        times_ns.push(now.duration_since(last).as_nanos() as f64);
        last = now;
    }
    let cpu = service.cpu_s()? - cpu;
    ensure!(!times_ns.is_empty(), "an empty window");
    Ok(Window {
        cpu_us: cpu * 1e6 / times_ns.len() as f64,
        p50_us: quantile(&mut times_ns, 0.50) / 1e3,
        p99_us: quantile(&mut times_ns, 0.99) / 1e3,
    })
}

/// The value below which a part of all values lies; sorts them. Not a number if there are none.
pub(crate) fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// The middle value, or the mean of the two middle ones.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => f64::NAN,
        (length, middle) if length % 2 == 1 => values[middle],
        (_, middle) => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}
