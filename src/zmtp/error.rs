//! Why a connection could not be made or ended, by cause. The text becomes a worker's `last_error`: it must tell an
//! operator what to repair.

use std::io;
use std::time::Duration;

use super::codec::CodecError;

/// Why a connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint can never connect; says why.
    #[error("endpoint can never connect: {0}")]
    Hopeless(&'static str),
    /// The host name is unknown, or the resolver failed.
    #[error("failed to resolve host `{host}`: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// The resolver does not answer.
    #[error("failed to resolve host `{host}`: no answer within {limit:?}")]
    ResolveTimeout {
        /// The name.
        host: String,
        /// Longest wait.
        limit: Duration,
    },
    /// Other look-ups are slow, and this one found no place within the limit.
    #[error("failed to resolve host `{host}`: too many slow name look-ups, none ended within {limit:?}")]
    ResolveBusy {
        /// The name.
        host: String,
        /// Longest wait.
        limit: Duration,
    },
    /// Nobody listens there.
    #[error("connection refused by {address}: nobody listens there")]
    Refused {
        /// Address or path.
        address: String,
    },
    /// The connection cannot be made for another reason.
    #[error("failed to connect to {address}: {source}")]
    Connect {
        /// Address or path.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The peer does not answer at all.
    #[error("failed to connect to {address}: no answer within {limit:?}")]
    ConnectTimeout {
        /// Address or path.
        address: String,
        /// Longest wait.
        limit: Duration,
    },
    /// The peer accepted the connection but did not complete the handshake in time.
    #[error("handshake with {address} not complete within {limit:?}: {stage}")]
    HandshakeTimeout {
        /// Address or path.
        address: String,
        /// Longest wait.
        limit: Duration,
        /// What was waited for.
        stage: &'static str,
    },
    /// The peer demands CURVE, PLAIN or another mechanism.
    #[error("{0}")]
    Mechanism(CodecError),
    /// The peer is a socket of a type that does not match ours.
    #[error("peer is a {theirs} socket, {ours} needs {needed}")]
    SocketType {
        /// Our type.
        ours: &'static str,
        /// The peer's type, printable.
        theirs: String,
        /// What ours can talk to.
        needed: &'static str,
    },
    /// The peer announced or sent more than allowed.
    #[error("{0}")]
    Limit(CodecError),
    /// The peer does not speak the protocol, or breaks it.
    #[error("{0}")]
    Protocol(CodecError),
    /// The peer sent an ERROR command; holds its words, printable.
    #[error("peer refused with ERROR: \"{0}\"")]
    Peer(String),
    /// The peer closed the connection.
    #[error("peer closed the connection{stage}")]
    Closed {
        /// Empty, or where in the protocol it was.
        stage: &'static str,
    },
    /// The connection broke.
    #[error("connection lost{stage}: {source}")]
    Lost {
        /// Empty, or where in the protocol it was.
        stage: &'static str,
        /// The system's word for it.
        source: io::Error,
    },
    /// The peer neither sends nor answers PING.
    #[error("peer is silent: no byte and no answer to PING for {silence:.1?}")]
    Silent {
        /// How long nothing was heard.
        silence: Duration,
    },
}

impl From<CodecError> for Error {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Mechanism(_) => Self::Mechanism(error),
            CodecError::FrameTooLong { .. }
            | CodecError::MessageTooLong { .. }
            | CodecError::TooManyFrames { .. }
            | CodecError::CommandTooLong { .. } => Self::Limit(error),
            CodecError::NotZmtp(_) | CodecError::Version(..) | CodecError::Malformed(_) => Self::Protocol(error),
        }
    }
}
