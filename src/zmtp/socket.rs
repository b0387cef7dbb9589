//! A stream socket, tcp or ipc, and how it is connected. Moves bytes; knows nothing of ZMTP.

use std::io;
use std::net::SocketAddr;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};

use super::Timing;
use super::endpoint::{Lookup, Target};
use super::error::Error;

/// Addresses of one name that are tried in one attempt. Each gets an equal share of the time that is left.
const ADDRESSES_MAX: usize = 8;
/// Keep-alive finds a dead peer after 15 + 3 * 5 = 30 s, also where PING is not possible.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// A connected stream.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn poll_read_ready(&self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    pub(super) fn poll_write_ready(&self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Appends to `buffer` what fits into its spare room.
    pub(super) fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }
}

/// Resolves and connects. Also returns the address as text, for errors that come later.
pub(super) async fn connect(target: &Target, timing: &Timing, lookup: &mut Lookup) -> Result<(Socket, String), Error> {
    match target {
        Target::Tcp { host, port } => {
            let addresses = lookup.addresses(host, *port, timing.lookup).await?;
            let (stream, address) = connect_tcp(&addresses, timing.connect).await?;
            tune(&stream, timing);
            Ok((Socket::Tcp(stream), address.to_string()))
        }
        Target::Ipc { path } => {
            let stream = connect_unix(path, timing.connect).await?;
            Ok((Socket::Unix(stream), path.clone()))
        }
        Target::Inproc => Err(Error::Hopeless("inproc reaches only sockets of the same process")),
    }
}

/// The first address that answers; else the error of the last one tried.
async fn connect_tcp(addresses: &[SocketAddr], limit: Duration) -> Result<(TcpStream, SocketAddr), Error> {
    let deadline = Instant::now() + limit;
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    let mut failure = None;
    for (i, &address) in addresses.iter().enumerate() {
        let untried = u32::try_from(addresses.len() - i).expect("at most ADDRESSES_MAX");
        let share = deadline.saturating_duration_since(Instant::now()) / untried;
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) if is_connected_to_itself(&stream) => failure = Some(refused(&address.to_string())),
            Ok(Ok(stream)) => return Ok((stream, address)),
            Ok(Err(error)) => failure = Some(connect_error(address.to_string(), error)),
            Err(_) => failure = Some(Error::ConnectTimeout { address: address.to_string(), limit: whole_ms(share) }),
        }
    }
    Err(failure.expect("a look-up gives at least one address"))
}

/// For people.
fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX))
}

/// A port of the local machine on which nobody listens may be given to our own side of the connection; TCP then
/// connects the socket with itself, and the publisher could not bind its port any more.
fn is_connected_to_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

async fn connect_unix(path: &str, limit: Duration) -> Result<UnixStream, Error> {
    // Linux's abstract names begin with a zero byte; libzmq writes it as `@`.
    let name = path.strip_prefix('@').map_or_else(|| path.to_owned(), |name| format!("\0{name}"));
    match timeout(limit, UnixStream::connect(name)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(connect_error(path.to_owned(), error)),
        Err(_) => Err(Error::ConnectTimeout { address: path.to_owned(), limit }),
    }
}

fn connect_error(address: String, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => refused(&address),
        _ => Error::Connect { address, source },
    }
}

fn refused(address: &str) -> Error {
    Error::Refused { address: address.to_owned() }
}

/// Options that notice a dead peer. A system that lacks one (a sandboxed kernel) still has PING and the others.
fn tune(stream: &TcpStream, timing: &Timing) {
    let socket = SockRef::from(stream);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    let kept = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let kept = kept.and(socket.set_tcp_user_timeout(Some(timing.dead_after)));
    // PONG and replay requests are small and awaited.
    if let Err(error) = kept.and(stream.set_nodelay(true)) {
        tracing::debug!(%error, "socket options not set");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zmtp::Context;

    #[tokio::test]
    async fn a_tcp_connection_is_watched_by_the_system_too() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Target::Tcp { host: "127.0.0.1".to_owned(), port };
        let mut lookup = Lookup::new(Context::new(1));
        let (socket, address) = connect(&target, &Timing::default(), &mut lookup).await.unwrap();
        assert_eq!(address, format!("127.0.0.1:{port}"));
        let Socket::Tcp(stream) = socket else { panic!("not tcp") };
        let options = SockRef::from(&stream);
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
        assert_eq!(options.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
        assert_eq!(options.tcp_keepalive_retries().unwrap(), 3);
        #[cfg(target_os = "linux")]
        assert_eq!(options.tcp_user_timeout().unwrap(), Some(Duration::from_secs(30)));
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_missing_ipc_socket_is_named() {
        let error = connect_unix("/nonexistent/kv.sock", Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to connect to /nonexistent/kv.sock: No such file or directory (os error 2)"
        );
    }
}
