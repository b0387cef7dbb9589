//! When a status may be written. Pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::controller::Times;
use crate::controller::conditions::{self, Change};
use crate::controller::crd::IndexerWorkerStatus;

/// Doublings of a wait: beyond this the longest wait is reached anyway.
const DOUBLINGS_MAX: u32 = 16;
/// A missing right waits so many times longer than other failures: it does not end by itself.
const FORBIDDEN_FACTOR: u32 = 10;

/// One object, as its writer knows it.
#[derive(Debug)]
pub(super) struct Entry {
    /// Of the object; another one is another object.
    pub(super) uid: String,
    /// What the object says.
    pub(super) said: Option<IndexerWorkerStatus>,
    /// What it should say.
    pub(super) wanted: IndexerWorkerStatus,
    /// When it was written last, by whoever.
    pub(super) written: Option<Instant>,
    /// Not tried again before.
    pub(super) not_before: Option<Instant>,
    /// In a row.
    pub(super) failures: u32,
    /// A write is on its way.
    pub(super) in_flight: bool,
    /// Gaps of all its streams, over all writers.
    pub(super) gaps: u64,
}

impl Entry {
    /// When it is to be written; at `now` if nothing speaks against it, none if it need not.
    #[must_use]
    pub(super) fn due(&self, now: Instant, times: &Times) -> Option<Instant> {
        if self.in_flight {
            return None;
        }
        let rest = match conditions::change(self.said.as_ref(), &self.wanted) {
            Change::None => return None,
            Change::Quiet => times.status_blocks_min,
            Change::Loud => times.status_min,
        };
        // The rhythm counts from attempts too: one that failed may have been carried out.
        let rhythm = self.written.map(|written| written + rest);
        Some(rhythm.into_iter().chain(self.not_before).max().unwrap_or(now))
    }

    /// A write ended badly.
    pub(super) fn failed(&mut self, now: Instant, times: &Times, forbidden: bool) {
        let longest = if forbidden { times.retry_max * FORBIDDEN_FACTOR } else { times.retry_max };
        self.not_before = Some(now + backoff(times.retry_min, longest, self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

/// The wait after so many failures before this one, with jitter.
#[must_use]
pub(super) fn backoff(shortest: Duration, longest: Duration, failures: u32) -> Duration {
    let wait = shortest.saturating_mul(1 << failures.min(DOUBLINGS_MAX)).min(longest);
    wait.mul_f64(0.75 + 0.25 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(workers: i32, blocks: i64) -> IndexerWorkerStatus {
        IndexerWorkerStatus { workers: Some(workers), blocks: Some(blocks), ..IndexerWorkerStatus::default() }
    }

    fn entry(said: Option<IndexerWorkerStatus>, wanted: IndexerWorkerStatus, written: Option<Instant>) -> Entry {
        let uid = "u".to_owned();
        Entry { uid, said, wanted, written, not_before: None, failures: 0, in_flight: false, gaps: 0 }
    }

    #[test]
    fn a_status_waits_for_its_rhythm_and_blocks_for_a_longer_one() {
        let now = Instant::now();
        let times = Times::default();
        let after = |seconds| Some(now + Duration::from_secs(seconds));
        for (name, old, new, want) in [
            ("the same", said(1, 100), said(1, 100), None),
            ("a few blocks", said(1, 100), said(1, 109), None),
            ("a tenth of the blocks", said(1, 100), said(1, 110), after(60)),
            ("fewer blocks", said(1, 100), said(1, 90), after(60)),
            ("the first blocks", said(1, 0), said(1, 1), after(60)),
            ("a worker", said(1, 100), said(2, 100), after(10)),
            ("a worker and blocks", said(1, 100), said(2, 900), after(10)),
        ] {
            assert_eq!(entry(Some(old), new, Some(now)).due(now, &times), want, "{name}");
        }
        assert_eq!(entry(None, said(0, 0), None).due(now, &times), Some(now), "the first one");
        let mut flying = entry(None, said(0, 0), None);
        flying.in_flight = true;
        assert_eq!(flying.due(now, &times), None, "one at a time");
    }

    #[test]
    fn failures_wait_longer_and_longer_and_a_missing_right_longest() {
        let times = Times::default();
        let now = Instant::now();
        let wait = |failures, forbidden| {
            let mut tried = entry(None, said(0, 0), Some(now));
            (0..failures).for_each(|_| tried.failed(now, &times, forbidden));
            tried.due(now, &times).expect("it is wanted").duration_since(now)
        };
        assert_eq!(wait(1, false), times.status_min, "the rhythm holds for attempts");
        assert!((times.retry_max.mul_f64(0.75)..=times.retry_max).contains(&wait(20, false)));
        assert!(wait(20, true) > times.retry_max * 7);
    }
}
