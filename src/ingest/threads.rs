//! Threads that listen, each with a small runtime. All streams of one index belong on one of them.
//!
//! They write under one lock. On several threads they wait for it, wake each other, and each finds the index in the
//! cache of another core: 8 publishers on two cores cost a third more processor time than on one (measured). One thread
//! takes several million blocks a second, more than a fleet of one model stores.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Time for name look-ups of a thread's runtime at its end.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// The threads. They end when it is dropped, and what still runs on them is cut off.
#[derive(Debug)]
pub struct Threads {
    runtimes: Vec<Handle>,
    _end: DropGuard,
}

/// Number of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadId(usize);

impl Threads {
    /// Starts so many threads; with none, everything runs where it is spawned.
    ///
    /// # Errors
    /// The system gives no more threads or descriptors.
    pub fn start(count: usize) -> io::Result<Self> {
        let end = CancellationToken::new();
        let (guard, mut runtimes) = (end.clone().drop_guard(), Vec::with_capacity(count));
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let end = end.clone();
            // Nobody waits for it: its tasks are awaited one by one before it is told to end.
            thread::Builder::new().name(format!("ingest-{number}")).spawn(move || {
                runtime.block_on(end.cancelled());
                runtime.shutdown_timeout(RUNTIME_END);
            })?;
        }
        Ok(Self { runtimes, _end: guard })
    }

    /// The thread with the least to do, if thread `id` serves `load(id)`.
    #[must_use]
    pub fn least(&self, load: impl Fn(ThreadId) -> usize) -> ThreadId {
        (0..self.runtimes.len()).map(ThreadId).min_by_key(|id| load(*id)).unwrap_or_default()
    }

    /// Runs a task on a thread.
    ///
    /// # Panics
    /// Without threads of its own: outside of a runtime.
    pub fn spawn<T: Send + 'static>(
        &self,
        id: ThreadId,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match self.runtimes.get(id.0) {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        }
    }
}

impl Default for Threads {
    /// No threads of its own.
    fn default() -> Self {
        Self { runtimes: Vec::new(), _end: CancellationToken::new().drop_guard() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Option<String> {
        thread::current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn a_task_runs_on_its_thread_and_ends_with_it() {
        let threads = Threads::start(2).unwrap();
        let busy = threads.least(|id| usize::from(id == ThreadId(0)));
        let here = threads.spawn(busy, async { name() }).await.unwrap();
        assert_eq!(here.as_deref(), Some("ingest-1"));
        let endless = threads.spawn(ThreadId(0), std::future::pending::<()>());
        drop(threads);
        assert!(endless.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn without_threads_a_task_runs_where_it_is_spawned() {
        let threads = Threads::default();
        assert_eq!(threads.spawn(threads.least(|_| 0), async { name() }).await.unwrap(), name());
    }
}
