//! The connect side of ZeroMQ: a ZMTP 3.1 client with the NULL mechanism, as SUB and as DEALER, over tcp and ipc.
//! It moves frames; it knows nothing of events.
//!
//! * `codec`: bytes to frames and back, limits before allocation (pure).
//! * `endpoint`: the text of an address, and the look-up of its name.
//! * `connection`: one socket, handshake, read buffer, PING and PONG.
//! * `subscriber`: connections to one publisher, one after the other, for ever.
//! * `dealer`: one connection for one exchange.
//!
//! Invariants: no task is spawned here (a name look-up occupies a blocking thread); no queue lies between socket and
//! caller, so a slow caller becomes TCP back-pressure; whatever a peer sends, the process lives and memory is bounded
//! by [`Limits`]; no error ends a [`Subscriber`].

pub mod codec;
mod connection;
mod dealer;
mod endpoint;
mod error;
mod socket;
mod subscriber;

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

pub use codec::Limits;
pub use dealer::Dealer;
pub use endpoint::{Context, Endpoint, EndpointError};
pub use error::Error;
pub use subscriber::{SubEvent, Subscriber};

/// Times of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Longest wait for a name look-up, the wait for a place among other look-ups included.
    pub lookup: Duration,
    /// Longest wait for a connection, over all addresses of a name together.
    pub connect: Duration,
    /// Longest wait for greeting and READY together.
    pub handshake: Duration,
    /// Shortest pause between two attempts.
    pub backoff_min: Duration,
    /// Longest pause between two attempts.
    pub backoff_max: Duration,
    /// A connection that lived so long sets the pause back to the shortest.
    pub stable_after: Duration,
    /// Time between two PINGs to a peer that knows PING.
    pub ping_interval: Duration,
    /// Silence after which such a peer is dead; more than `ping_interval`. Also TCP_USER_TIMEOUT.
    pub dead_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // One try of the common resolver: it asks the next server after 5 s.
            lookup: Duration::from_secs(5),
            // Three SYNs (0, 1, 3 s); inside a cluster an answer takes milliseconds.
            connect: Duration::from_secs(5),
            // A peer that needs longer is no publisher, or is stopped.
            handshake: Duration::from_secs(5),
            // A restarted publisher is heard soon, and 1,000 dead endpoints make no storm.
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
            // A peer that closes just after READY must not be called at the shortest pause for ever.
            stable_after: Duration::from_secs(5),
            // libzmq answers from its own thread, but a process may be stopped for a while: do not hurry.
            ping_interval: Duration::from_secs(10),
            // Three missed PINGs, and the same 30 s that TCP keep-alive (15 + 3 * 5 s) needs.
            dead_after: Duration::from_secs(30),
        }
    }
}

/// How to connect.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Limits on what a peer may send.
    pub limits: Limits,
    /// Times.
    pub timing: Timing,
    /// Prefixes to subscribe to, as bytes; empty means everything. Not used by [`Dealer`].
    pub topics: Vec<Bytes>,
}

/// Frames of one message; slices of the read buffer, which stays alive as long as one of them. Decode at once, keep none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The frames in order, at least one.
    pub frames: SmallVec<[Bytes; 4]>,
}
