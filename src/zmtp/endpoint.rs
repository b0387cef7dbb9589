//! Where to connect: the text of an endpoint, checked and taken apart; and the look-up of its host name.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::Error;

/// Where to connect: `tcp://host:port`, `tcp://[v6]:port`, `ipc://path`. The text is kept as it was given.
///
/// `inproc://name` parses, for it is well-formed, but is [hopeless](Self::hopeless).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    text: String,
    target: Target,
}

/// An endpoint taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// Host name or address (IPv6 without brackets), and port.
    Tcp { host: String, port: u16 },
    /// Path of a Unix socket; `@name` is Linux's abstract name.
    Ipc { path: String },
    /// In-process transport of other libraries.
    Inproc,
}

/// What is wrong with the text of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No `://`.
    #[error("missing scheme")]
    MissingScheme,
    /// Nothing behind `://`.
    #[error("missing address")]
    MissingAddress,
    /// No port.
    #[error("missing TCP port")]
    MissingPort,
    /// No host.
    #[error("missing TCP host")]
    MissingHost,
    /// A port that is no number from 0 to 65535.
    #[error("invalid TCP port: {0}")]
    InvalidPort(String),
    /// An IPv6 address without brackets, or with one of them: where its port begins is a guess.
    #[error("IPv6 address must be in brackets")]
    UnbracketedIpv6,
    /// A scheme other than tcp, ipc, inproc.
    #[error("unsupported scheme `{0}`")]
    UnsupportedScheme(String),
}

impl Endpoint {
    /// Checks and takes apart.
    ///
    /// # Errors
    /// The text after ``invalid ZMQ endpoint `X`: `` of the contract.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let (scheme, address) = text.split_once("://").ok_or(EndpointError::MissingScheme)?;
        let target = match scheme {
            "" => return Err(EndpointError::MissingScheme),
            "tcp" | "ipc" | "inproc" if address.is_empty() => return Err(EndpointError::MissingAddress),
            "tcp" => parse_tcp(address)?,
            "ipc" => Target::Ipc { path: address.to_owned() },
            "inproc" => Target::Inproc,
            other => return Err(EndpointError::UnsupportedScheme(other.to_owned())),
        };
        Ok(Self { text: text.to_owned(), target })
    }

    /// The text as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Why this endpoint can never connect (wildcard host, port 0, inproc), if so.
    ///
    /// `0.0.0.0` and `[::]` are no wildcards here: Linux connects them to the local machine.
    #[must_use]
    pub fn hopeless(&self) -> Option<&'static str> {
        match &self.target {
            Target::Tcp { host, .. } if host == "*" => {
                Some("host `*` is for the side that binds; name the publisher's host")
            }
            Target::Tcp { port: 0, .. } => Some("port 0 is for the side that binds; name the publisher's port"),
            Target::Ipc { path } if path == "*" => {
                Some("path `*` is for the side that binds; name the publisher's socket")
            }
            Target::Inproc => Some("inproc reaches only sockets of the same process"),
            Target::Tcp { .. } | Target::Ipc { .. } => None,
        }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse_tcp(address: &str) -> Result<Target, EndpointError> {
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(EndpointError::UnbracketedIpv6)?;
        (host, rest.strip_prefix(':').ok_or(EndpointError::MissingPort)?)
    } else {
        let (host, port) = address.rsplit_once(':').ok_or(EndpointError::MissingPort)?;
        if host.contains(':') {
            return Err(EndpointError::UnbracketedIpv6);
        }
        (host, port)
    };
    if host.is_empty() {
        return Err(EndpointError::MissingHost);
    }
    if port.is_empty() {
        return Err(EndpointError::MissingPort);
    }
    let port = parse_port(port).map_err(EndpointError::InvalidPort)?;
    Ok(Target::Tcp { host: host.to_owned(), port })
}

/// Digits only: the standard parser also takes a leading `+`.
fn parse_port(text: &str) -> Result<u16, String> {
    if text.starts_with('+') {
        return Err("invalid digit found in string".to_owned());
    }
    text.parse().map_err(|error: std::num::ParseIntError| error.to_string())
}

type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Process-wide bounds shared by all connections: name look-ups in flight. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    lookups: Arc<Semaphore>,
    resolve: Arc<Resolve>,
}

impl Context {
    /// At most `lookups_max` (at least 1) look-ups at once, by the system's resolver.
    ///
    /// Each occupies a blocking thread of the runtime until the system gives up, which may be long after we did.
    #[must_use]
    pub fn new(lookups_max: usize) -> Self {
        Self::with_resolver(lookups_max, |host, port| Ok((host, port).to_socket_addrs()?.collect()))
    }

    /// As [`Context::new`] with another resolver. `resolve` may block; it is called for names, never for addresses.
    #[must_use]
    pub fn with_resolver(
        lookups_max: usize,
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { lookups: Arc::new(Semaphore::new(lookups_max.max(1))), resolve: Arc::new(resolve) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("lookups_available", &self.lookups.available_permits()).finish_non_exhaustive()
    }
}

/// Look-ups of one endpoint, one at a time.
///
/// A look-up cannot be cancelled. When it outlives an attempt it stays here and the next attempt waits for it too,
/// so that an endpoint holds one place of the context, not one per attempt, and a dead name cannot take all places.
#[derive(Debug)]
pub(super) struct Lookup {
    context: Context,
    running: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    /// How many addresses to pass over: behind them somebody answered who is no publisher.
    passed_over: usize,
}

impl Lookup {
    pub(super) fn new(context: Context) -> Self {
        Self { context, running: None, passed_over: 0 }
    }

    /// The first address of the last answer is connected but not ours: the next answer begins with the one behind it.
    ///
    /// Without it a name with two addresses would end at the same stranger for ever.
    pub(super) fn pass_over(&mut self) {
        self.passed_over = self.passed_over.wrapping_add(1);
    }

    /// The addresses of `host`, at least one, within `limit`.
    pub(super) async fn addresses(&mut self, host: &str, port: u16, limit: Duration) -> Result<Vec<SocketAddr>, Error> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let answer = match timeout(limit, self.ask(host, port)).await {
            Ok(answer) => answer,
            Err(_) if self.running.is_some() => return Err(Error::ResolveTimeout { host: host.to_owned(), limit }),
            Err(_) => return Err(Error::ResolveBusy { host: host.to_owned(), limit }),
        };
        match answer {
            Ok(addresses) if addresses.is_empty() => {
                Err(Error::Resolve { host: host.to_owned(), source: io::Error::other("no addresses") })
            }
            Ok(mut addresses) => {
                let first = self.passed_over % addresses.len();
                addresses.rotate_left(first);
                Ok(addresses)
            }
            Err(source) => Err(Error::Resolve { host: host.to_owned(), source }),
        }
    }

    /// Cancel-safe: a look-up that runs is kept.
    async fn ask(&mut self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // An answer that came after its attempt had ended is old: ask again.
        self.running.take_if(|running| running.is_finished());
        let running = match &mut self.running {
            Some(running) => running,
            idle => {
                let permit = Arc::clone(&self.context.lookups).acquire_owned().await.expect("it is never closed");
                let (resolve, host) = (Arc::clone(&self.context.resolve), host.to_owned());
                idle.insert(tokio::task::spawn_blocking(move || {
                    let answer = resolve(&host, port);
                    drop(permit);
                    answer
                }))
            }
        };
        let answer = running.await;
        self.running = None;
        answer.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

#[cfg(test)]
mod tests;
