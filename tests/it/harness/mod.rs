//! The built binary as a child process, an HTTP client, and libzmq publishers and replay routers for tests.
//!
//! Nothing here sleeps as a protocol: [`wait_for`] looks again until a condition holds or its deadline fails the test.

pub(crate) mod compare;
pub(crate) mod fake_peer;
pub(crate) mod http;
pub(crate) mod msgpack;
pub(crate) mod service;
pub(crate) mod worker;
pub(crate) mod zmq_sockets;

use std::time::{Duration, Instant};

pub(crate) use fake_peer::FakePeer;
pub(crate) use service::Service;
pub(crate) use worker::Worker;
pub(crate) use zmq_sockets::{Publisher, Router};

/// Long enough for a loaded machine; a condition that holds is seen within milliseconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Asks until the answer is there.
///
/// # Panics
/// After [`DEADLINE`], naming what was waited for and the last thing seen.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    wait_within(DEADLINE, what, ask)
}

/// [`wait_for`] with a deadline of its own.
#[track_caller]
pub(crate) fn wait_within<T>(deadline: Duration, what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    match try_within(deadline, ask) {
        Ok(answer) => answer,
        Err(seen) => panic!("not within {deadline:?}: {what}; last seen: {seen}"),
    }
}

/// [`wait_within`] for runners that collect their failures: the last thing seen is the error.
pub(crate) fn try_within<T>(deadline: Duration, mut ask: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(seen) if start.elapsed() > deadline => return Err(seen),
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Text of a file below `tests/data`.
pub(crate) fn data(path: &str) -> String {
    let path = format!("{}/tests/data/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Bytes of a hex text.
///
/// # Panics
/// When it is none.
pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex text {text}");
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex digits")).collect()
}

/// Runs `play` on every item with a few threads at once, and returns the results in order.
pub(crate) fn in_parallel<I: Sync, R: Send>(items: &[I], threads: usize, play: impl Fn(&I) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results: Vec<std::sync::Mutex<Option<R>>> = items.iter().map(|_| std::sync::Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    *results[at].lock().expect("no player panics while it holds the lock") = Some(play(item));
                }
            });
        }
    });
    results.into_iter().map(|cell| cell.into_inner().expect("not poisoned").expect("every item was played")).collect()
}
