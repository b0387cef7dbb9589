//! Serves the API on a listener until it is told to stop: bounded connections, bounded time for a request head and for
//! a client that takes no answer, and an end in order.
//!
//! Connections live on threads of their own, each with a small runtime. A query is answered on the thread that read it:
//! on a runtime of many threads most of the time of a short query went into waking other threads, which steal its task
//! from each other between two reads. And a query never waits behind a task that decodes events.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::routes::Routes;
use super::stall::StallLimit;

/// Wait after a failed accept: the usual cause is a lack of file descriptors, which needs time to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepted connections that wait until their thread takes them.
const INBOX: usize = 64;

/// Time for blocking work of a thread's runtime at its end: pieces of bodies whose connections are cut.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// Bounds of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Threads that serve connections, at least one.
    pub threads: usize,
    /// Open connections; more wait in the backlog of the kernel.
    pub connections_max: usize,
    /// Time for the head of a request, and for the next request on a connection that stays open.
    pub header_timeout: Duration,
    /// Bytes of a request head.
    pub header_bytes_max: usize,
    /// A client that takes none of an answer for so long is cut off.
    pub stall_timeout: Duration,
    /// Time for open requests after the stop; then their connections are cut.
    pub finish_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            threads: 4,
            connections_max: 10_000,
            header_timeout: Duration::from_secs(30),
            header_bytes_max: 128 << 10,
            stall_timeout: Duration::from_secs(30),
            finish_timeout: Duration::from_secs(5),
        }
    }
}

/// Serves until `stop`; then accepts no more, finishes open requests, and returns when all connections are closed.
pub async fn serve(listener: TcpListener, routes: Routes, limits: ServerLimits, stop: CancellationToken) {
    let work = Work { routes: Arc::new(routes), limits, stop, main: Handle::current() };
    let threads: io::Result<Vec<_>> = (0..limits.threads.max(1)).map(|number| Thread::start(number, &work)).collect();
    match threads {
        Ok(threads) => {
            accept_all(&listener, &threads, &work).await;
            drop(listener);
            // All are told before one is waited for.
            let ends: Vec<_> = threads.into_iter().map(Thread::close).collect();
            for end in ends {
                end.await;
            }
        }
        Err(error) => tracing::error!(%error, "threads of the http server not started"),
    }
}

/// Hands each connection to the thread with the fewest, until the stop.
async fn accept_all(listener: &TcpListener, threads: &[Thread], work: &Work) {
    let places = Arc::new(Semaphore::new(work.limits.connections_max));
    loop {
        let accepted = tokio::select! {
            biased;
            () = work.stop.cancelled() => return,
            accepted = accept(listener, &places) => accepted,
        };
        let handed = match accepted {
            Ok((stream, permit)) => {
                let thread = threads.iter().min_by_key(|thread| thread.open.load(Ordering::Relaxed));
                thread.expect("there is at least one thread").take(stream, permit).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = handed {
            tracing::warn!(%error, "connection not accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

/// What every connection is served with.
#[derive(Clone)]
struct Work {
    routes: Arc<Routes>,
    limits: ServerLimits,
    stop: CancellationToken,
    /// The runtime of everything else.
    main: Handle,
}

/// A thread that serves connections.
struct Thread {
    inbox: mpsc::Sender<Accepted>,
    /// Connections that it has or is about to get.
    open: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
    handle: thread::JoinHandle<()>,
}

/// A connection on its way to a thread.
struct Accepted {
    stream: std::net::TcpStream,
    place: Place,
}

/// The place of a connection among all, and on its thread.
struct Place {
    _permit: OwnedSemaphorePermit,
    open: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Thread {
    fn start(number: usize, work: &Work) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (inbox, accepted) = mpsc::channel(INBOX);
        let (end, ended) = oneshot::channel();
        let work = work.clone();
        let handle = thread::Builder::new().name(format!("http-{number}")).spawn(move || {
            serve_accepted(runtime, accepted, &work);
            // Nobody waits any more if the server was dropped.
            let _ = end.send(());
        })?;
        Ok(Self { inbox, open: Arc::default(), ended, handle })
    }

    async fn take(&self, stream: TcpStream, permit: OwnedSemaphorePermit) -> io::Result<()> {
        self.open.fetch_add(1, Ordering::Relaxed);
        let place = Place { _permit: permit, open: Arc::clone(&self.open) };
        let stream = stream.into_std()?;
        let gone = |_| io::Error::other("the thread has ended");
        self.inbox.send(Accepted { stream, place }).await.map_err(gone)
    }

    /// Gives it no more connections; ends when its last one is closed.
    fn close(self) -> impl Future<Output = ()> {
        let Self { ended, handle, .. } = self;
        async move {
            // It tells, or it panicked; either way it is at its end.
            let _ = ended.await;
            if handle.join().is_err() {
                tracing::error!("a thread of the http server panicked");
            }
        }
    }
}

fn serve_accepted(runtime: Runtime, mut accepted: mpsc::Receiver<Accepted>, work: &Work) {
    runtime.block_on(async {
        let mut connections = JoinSet::new();
        loop {
            // Ended connections are cleared away before another one is taken.
            tokio::select! {
                biased;
                Some(_) = connections.join_next() => {}
                next = accepted.recv() => match next {
                    Some(Accepted { stream, place }) => {
                        let work = work.clone();
                        connections.spawn(async move {
                            connection(stream, &work).await;
                            drop(place);
                        });
                    }
                    None => break,
                },
            }
        }
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(work.limits.finish_timeout, finished).await.is_err() {
            tracing::warn!(open = connections.len(), "requests still open at the end of their time are cut");
            connections.shutdown().await;
        }
    });
    runtime.shutdown_timeout(RUNTIME_END);
}

async fn connection(stream: std::net::TcpStream, work: &Work) {
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(%error, "connection not accepted");
            return;
        }
    };
    let Work { routes, limits, stop, main } = work;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        // The read buffer bounds the head and is also the largest piece in which a body is read.
        .max_buf_size(limits.header_bytes_max.max(8192));
    let io = TokioIo::new(StallLimit::new(stream, limits.stall_timeout));
    let service = service_fn(async |request| Ok::<_, Infallible>(routes.answer(request, main).await));
    let connection = builder.serve_connection(io, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}
