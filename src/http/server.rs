//! Serves a router on a listener until it is told to stop: bounded connections, bounded time for a request head and for
//! a client that takes no answer, and an end in order.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::stall::StallLimit;

/// Wait after a failed accept: the usual cause is a lack of file descriptors, which needs time to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
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
            connections_max: 10_000,
            header_timeout: Duration::from_secs(30),
            header_bytes_max: 128 << 10,
            stall_timeout: Duration::from_secs(30),
            finish_timeout: Duration::from_secs(5),
        }
    }
}

/// Serves until `stop`; then accepts no more, finishes open requests, and returns when all connections are closed.
pub async fn serve(listener: TcpListener, router: Router, limits: ServerLimits, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        // The stop comes first; then ended connections make room; only then is another one taken.
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(async move {
                    connection(stream, router, limits, stop).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.finish_timeout, finished).await.is_err() {
        tracing::warn!(open = connections.len(), "requests still open at the end of their time are cut");
        connections.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn connection(stream: TcpStream, router: Router, limits: ServerLimits, stop: CancellationToken) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        // The read buffer bounds the head and is also the largest piece in which a body is read.
        .max_buf_size(limits.header_bytes_max.max(8192));
    let io = TokioIo::new(StallLimit::new(stream, limits.stall_timeout));
    let connection = builder.serve_connection(io, TowerToHyperService::new(router));
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
