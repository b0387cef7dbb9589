//! The connect side of ZeroMQ: a ZMTP 3.1 client with the NULL mechanism, as SUB and as DEALER, over tcp and ipc.
//! It moves frames; it knows nothing of events.
#![allow(missing_docs, unused_variables, dead_code, reason = "skeleton")]

use std::time::Duration;

use bytes::Bytes;

/// Where to connect: `tcp://host:port`, `tcp://[v6]:port`, `ipc://path`. Parsing follows the reference's texts (contract.md section 2 "Endpoint check").
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    text: String,
}

impl Endpoint {
    /// # Errors
    /// The text after ``invalid ZMQ endpoint `X`: `` of the contract.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        todo!()
    }
    pub fn as_str(&self) -> &str {
        &self.text
    }
    /// Why this endpoint can never connect (wildcard host, port 0, inproc), if so.
    pub fn hopeless(&self) -> Option<&'static str> {
        todo!()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("missing scheme")]
    MissingScheme,
    #[error("missing address")]
    MissingAddress,
    #[error("missing TCP port")]
    MissingPort,
    #[error("missing TCP host")]
    MissingHost,
    #[error("invalid TCP port: {0}")]
    InvalidPort(String),
    #[error("unsupported scheme `{0}`")]
    UnsupportedScheme(String),
}

/// Limits before allocation.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub frame_bytes_max: u64,
    pub message_bytes_max: u64,
    pub frames_max: usize,
}

/// Times of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    pub connect: Duration,
    pub handshake: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub stable_after: Duration,
    pub ping_interval: Duration,
    pub dead_after: Duration,
}

/// Process-wide bounds shared by all connections (name look-ups in flight).
#[derive(Debug, Clone)]
pub struct Context {/* Arc<Semaphore> .. */}
impl Context {
    pub fn new(lookups_max: usize) -> Self {
        todo!()
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    pub limits: Limits,
    pub timing: Timing,
    pub topics: Vec<Bytes>,
}

/// Frames of one message; slices of the read buffer. Decode at once, keep none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub frames: smallvec::SmallVec<[Bytes; 4]>,
}

/// What a subscriber observed.
#[derive(Debug)]
pub enum SubEvent {
    /// Handshake complete.
    Connected,
    Message(Message),
    /// Connection lost, or an attempt failed; another follows by itself. Says why.
    Disconnected {
        error: String,
    },
}

/// One endless subscription to one publisher. Not a task: whoever owns it polls it.
pub struct Subscriber {}

impl Subscriber {
    pub fn new(endpoint: Endpoint, options: Options, context: Context) -> Self {
        todo!()
    }
    /// Next observation. Never ends, reconnects for ever, resolves the name at every attempt, answers PING, sends PING to 3.1 peers. Cancel-safe.
    /// Consecutive failed attempts each report a `Disconnected`.
    pub async fn next(&mut self) -> SubEvent {
        todo!()
    }
    /// A message that is already complete in the read buffer; never waits, reads no socket.
    pub fn try_next(&mut self) -> Option<Message> {
        todo!()
    }
}

/// One DEALER connection for one exchange. No reconnect: an error or EOF ends it.
pub struct Dealer {}

impl Dealer {
    pub async fn connect(endpoint: &Endpoint, options: &Options, context: &Context) -> Result<Self, Error> {
        todo!()
    }
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        todo!()
    }
    /// Cancel-safe.
    pub async fn recv(&mut self) -> Result<Message, Error> {
        todo!()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String); // the builder makes this an enum by cause
