//! ZMTP 3.1 as bytes: greeting, frames, commands, and the limits on them.
//! Pure: no socket, no clock, no other room. Every length is judged before anything is allocated for it.
//!
//! ```text
//! greeting  64 bytes   FF 00*8 7F | major minor | mechanism, zero padded to 20 | as-server | 00*31
//! frame                flags | length (1 byte, or 8 bytes big endian when LONG) | body
//!                      flags: bit 0 MORE, bit 1 LONG, bit 2 COMMAND, others reserved
//! command   = frame    name length (1) name | data
//! READY data           *( name length (1) name | value length (4, big endian) value )
//! ERROR data           reason length (1) reason
//! PING data            ttl (2, tenths of a second) | context (0..16)      PONG data: the same context
//! ```
//! Specification: <https://rfc.zeromq.org/spec/37/>.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Length of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Longest command accepted. READY with generous metadata takes a few hundred bytes; nothing else is larger.
pub const COMMAND_BYTES_MAX: u64 = 64 * 1024;
/// Longest context of a PING, by the specification.
pub const PING_CONTEXT_MAX: usize = 16;

const SIGNATURE_BYTES: usize = 10;
const MECHANISM_BYTES: usize = 20;
const MORE: u8 = 0b001;
const LONG: u8 = 0b010;
const COMMAND: u8 = 0b100;

/// Limits before allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest body of one frame.
    pub frame_bytes_max: u64,
    /// Longest sum of the bodies of one message.
    pub message_bytes_max: u64,
    /// Most frames of one message.
    pub frames_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A store event of 1 M tokens is about 10 MB of msgpack; 64 MiB leaves room and still bounds a stray peer.
            frame_bytes_max: 64 * 1024 * 1024,
            // Topic and number are small: a message is one large frame.
            message_bytes_max: 64 * 1024 * 1024,
            // Engines send 3 or 4 frames.
            frames_max: 16,
        }
    }
}

/// Why bytes of a peer cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodecError {
    /// The first bytes are no ZMTP greeting; holds them, printable.
    NotZmtp(String),
    /// A ZMTP version other than 3.x.
    Version(u8, u8),
    /// A security mechanism other than NULL.
    Mechanism(String),
    /// A frame longer than allowed.
    FrameTooLong {
        /// Announced length.
        bytes: u64,
        /// Allowed length.
        bytes_max: u64,
    },
    /// A message longer than allowed.
    MessageTooLong {
        /// Allowed length.
        bytes_max: u64,
    },
    /// A message of more frames than allowed.
    TooManyFrames {
        /// Allowed number.
        frames_max: usize,
    },
    /// A command longer than [`COMMAND_BYTES_MAX`].
    CommandTooLong {
        /// Announced length.
        bytes: u64,
    },
    /// A frame or command that breaks the protocol; says how.
    Malformed(&'static str),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotZmtp(start) => write!(f, "peer does not speak ZMTP, it began with \"{start}\""),
            Self::Version(major, minor) => write!(f, "peer speaks ZMTP {major}.{minor}, 3.0 or 3.1 is needed"),
            Self::Mechanism(name) => write!(f, "peer demands security mechanism \"{name}\", only NULL is supported"),
            Self::FrameTooLong { bytes, bytes_max } => {
                write!(f, "peer announced a frame of {bytes} bytes, the limit is {bytes_max}")
            }
            Self::MessageTooLong { bytes_max } => {
                write!(f, "peer sent a message of more than {bytes_max} bytes, the limit")
            }
            Self::TooManyFrames { frames_max } => {
                write!(f, "peer sent a message of more than {frames_max} frames, the limit")
            }
            Self::CommandTooLong { bytes } => {
                write!(f, "peer announced a command of {bytes} bytes, the limit is {COMMAND_BYTES_MAX}")
            }
            Self::Malformed(what) => write!(f, "peer broke the protocol: {what}"),
        }
    }
}

impl std::error::Error for CodecError {}

/// What a peer's greeting says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Minor version; the major one is 3.
    pub minor: u8,
}

impl Greeting {
    /// Reads the greeting at the start of `bytes`; `None` when more bytes are needed.
    ///
    /// Judges as early as possible, so that a peer of another protocol is named although it never sends 64 bytes.
    ///
    /// # Errors
    /// Another protocol, another version of ZMTP, another mechanism than NULL.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, CodecError> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        if first != 0xFF {
            return first_bytes_of_another_protocol(bytes).map_or(Ok(None), Err);
        }
        if bytes.len() < SIGNATURE_BYTES {
            return Ok(None);
        }
        // In ZMTP 1.0 these ten bytes are a long frame header, whose flags never have bit 0 set for an identity.
        if bytes[9] & 1 == 0 {
            return Err(CodecError::Version(1, 0));
        }
        if bytes[9] != 0x7F {
            return Err(CodecError::NotZmtp(printable(bytes)));
        }
        match bytes.get(10) {
            None => return Ok(None),
            Some(3) => {}
            // Revision 0 and 1 of the older numbering are ZMTP 1.0 and 2.0.
            Some(0) => return Err(CodecError::Version(1, 0)),
            Some(1 | 2) => return Err(CodecError::Version(2, 0)),
            Some(&major) => return Err(CodecError::Version(major, bytes.get(11).copied().unwrap_or(0))),
        }
        if bytes.len() < GREETING_BYTES {
            return Ok(None);
        }
        let mechanism = &bytes[12..12 + MECHANISM_BYTES];
        let end = mechanism.iter().position(|&b| b == 0).unwrap_or(MECHANISM_BYTES);
        if &mechanism[..end] != b"NULL" {
            return Err(CodecError::Mechanism(printable(&mechanism[..end])));
        }
        Ok(Some(Self { minor: bytes[11] }))
    }

    /// Whether the peer knows PING. Some 3.0 stacks cut the connection at a command they do not know.
    #[must_use]
    pub fn knows_ping(self) -> bool {
        self.minor >= 1
    }
}

/// Our greeting: ZMTP 3.1, NULL, not a server.
#[must_use]
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xFF;
    bytes[9] = 0x7F;
    bytes[10] = 3;
    bytes[11] = 1;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// `None` while a second byte is needed to tell ZMTP 1.0 (an anonymous peer begins with 01 00) from anything else.
fn first_bytes_of_another_protocol(bytes: &[u8]) -> Option<CodecError> {
    match bytes {
        [1] => None,
        [1, 0, ..] => Some(CodecError::Version(1, 0)),
        _ => Some(CodecError::NotZmtp(printable(bytes))),
    }
}

/// The first bytes as text for a log line: ASCII as it is, anything else escaped. A peer cannot make it long.
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    const SHOWN: usize = 24;
    bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string()
}

/// Header of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    more: bool,
    command: bool,
    header_bytes: usize,
    body_bytes: u64,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Option<Self>, CodecError> {
        let Some(&flags) = bytes.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(CodecError::Malformed("reserved flag bits are set in a frame"));
        }
        let (more, command) = (flags & MORE != 0, flags & COMMAND != 0);
        if more && command {
            return Err(CodecError::Malformed("a command has the MORE flag"));
        }
        let (header_bytes, body_bytes) = if flags & LONG == 0 {
            let Some(&len) = bytes.get(1) else { return Ok(None) };
            (2, u64::from(len))
        } else {
            let Some(len) = bytes[1..].first_chunk::<8>() else { return Ok(None) };
            (9, u64::from_be_bytes(*len))
        };
        Ok(Some(Self { more, command, header_bytes, body_bytes }))
    }
}

/// One piece of traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A frame of a message; `more` says whether the message goes on.
    Frame {
        /// The message goes on.
        more: bool,
        /// The body.
        body: Bytes,
    },
    /// The body of a command; see [`Command::parse`].
    Command(Bytes),
}

/// Cuts a byte stream into frames and commands. Keeps what it must remember of the message that is under way.
#[derive(Debug, Clone)]
pub struct Decoder {
    limits: Limits,
    frames: usize,
    message_bytes: u64,
    missing: usize,
}

impl Decoder {
    /// A decoder at the start of a message.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, frames: 0, message_bytes: 0, missing: 0 }
    }

    /// Takes the next frame or command off the front of `bytes`, as a slice of the same memory; `None` when it is not complete.
    ///
    /// # Errors
    /// A limit or the protocol is broken; the stream cannot be read further.
    pub fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Item>, CodecError> {
        let Some(header) = Header::parse(bytes)? else {
            self.missing = 1;
            return Ok(None);
        };
        let body_bytes = if header.command { command_length(&header)? } else { self.frame_length(&header)? };
        let whole = header.header_bytes + body_bytes;
        if bytes.len() < whole {
            self.missing = whole - bytes.len();
            return Ok(None);
        }
        bytes.advance(header.header_bytes);
        // An empty slice would keep the buffer alive for nothing.
        let body = if body_bytes == 0 { Bytes::new() } else { bytes.split_to(body_bytes).freeze() };
        if header.command {
            return Ok(Some(Item::Command(body)));
        }
        if header.more {
            self.frames += 1;
            self.message_bytes += header.body_bytes;
        } else {
            self.frames = 0;
            self.message_bytes = 0;
        }
        Ok(Some(Item::Frame { more: header.more, body }))
    }

    /// After a `None`: how many bytes are known to be missing at least (1 when not even the header is complete).
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Whether some frames of a message came and others did not.
    #[must_use]
    pub fn in_message(&self) -> bool {
        self.frames > 0
    }

    fn frame_length(&self, header: &Header) -> Result<usize, CodecError> {
        let Limits { frame_bytes_max, message_bytes_max, frames_max } = self.limits;
        if header.body_bytes > frame_bytes_max {
            return Err(CodecError::FrameTooLong { bytes: header.body_bytes, bytes_max: frame_bytes_max });
        }
        if self.frames >= frames_max {
            return Err(CodecError::TooManyFrames { frames_max });
        }
        if self.message_bytes.saturating_add(header.body_bytes) > message_bytes_max {
            return Err(CodecError::MessageTooLong { bytes_max: message_bytes_max });
        }
        usize::try_from(header.body_bytes)
            .map_err(|_| CodecError::FrameTooLong { bytes: header.body_bytes, bytes_max: frame_bytes_max })
    }
}

fn command_length(header: &Header) -> Result<usize, CodecError> {
    if header.body_bytes > COMMAND_BYTES_MAX {
        return Err(CodecError::CommandTooLong { bytes: header.body_bytes });
    }
    usize::try_from(header.body_bytes).map_err(|_| CodecError::CommandTooLong { bytes: header.body_bytes })
}

/// A command of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// End of the handshake. Holds the peer's socket type, if it names one.
    Ready {
        /// Value of the property `Socket-Type`.
        socket_type: Option<&'a [u8]>,
    },
    /// The peer refuses us; holds its reason.
    Error {
        /// The peer's words.
        reason: &'a [u8],
    },
    /// The peer asks for a sign of life. Its time to live is not used: silence is judged by our own clock.
    Ping {
        /// To be echoed.
        context: &'a [u8],
    },
    /// Answer to our PING.
    Pong,
    /// Anything else; to be ignored.
    Unknown,
}

impl<'a> Command<'a> {
    /// Reads the body of a command.
    ///
    /// # Errors
    /// Lengths that lead out of the body, a PING without time to live.
    pub fn parse(body: &'a [u8]) -> Result<Self, CodecError> {
        let (name, data) = short_text(body).ok_or(CodecError::Malformed("a command's name is cut off"))?;
        match name {
            b"READY" => Ok(Self::Ready { socket_type: socket_type(data)? }),
            b"ERROR" => {
                let (reason, _) =
                    short_text(data).ok_or(CodecError::Malformed("the reason of an ERROR command is cut off"))?;
                Ok(Self::Error { reason })
            }
            b"PING" => {
                let context = data.get(2..).ok_or(CodecError::Malformed("a PING has no time to live"))?;
                Ok(Self::Ping { context: &context[..context.len().min(PING_CONTEXT_MAX)] })
            }
            b"PONG" => Ok(Self::Pong),
            _ => Ok(Self::Unknown),
        }
    }
}

/// Walks all properties of a READY, so that a malformed one never passes, and returns the socket type.
fn socket_type(mut data: &[u8]) -> Result<Option<&[u8]>, CodecError> {
    let mut found = None;
    while !data.is_empty() {
        let (name, rest) = short_text(data).ok_or(CodecError::Malformed("a property name of READY is cut off"))?;
        let (len, rest) =
            rest.split_first_chunk::<4>().ok_or(CodecError::Malformed("a property of READY has no value"))?;
        let len = usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX);
        let (value, rest) =
            rest.split_at_checked(len).ok_or(CodecError::Malformed("a property value of READY is cut off"))?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = Some(value);
        }
        data = rest;
    }
    Ok(found)
}

/// A text with a length byte before it, and the rest.
fn short_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(len))
}

/// Appends a frame of a message.
pub fn put_frame(out: &mut BytesMut, body: &[u8], more: bool) {
    put(out, if more { MORE } else { 0 }, &[body]);
}

/// Appends a READY command. `identity` is for sockets that have one; empty lets the peer choose.
pub fn put_ready(out: &mut BytesMut, socket_type: &str, identity: Option<&[u8]>) {
    let mut data = BytesMut::new();
    put_property(&mut data, b"Socket-Type", socket_type.as_bytes());
    if let Some(identity) = identity {
        put_property(&mut data, b"Identity", identity);
    }
    put(out, COMMAND, &[b"\x05READY", &data]);
}

/// Appends a PING without context. Time to live 0: the peer need not cut us when we are slow.
pub fn put_ping(out: &mut BytesMut) {
    put(out, COMMAND, &[b"\x04PING", &[0, 0]]);
}

/// Appends the answer to a PING.
pub fn put_pong(out: &mut BytesMut, context: &[u8]) {
    put(out, COMMAND, &[b"\x04PONG", context]);
}

/// Appends a subscription in the form of ZMTP 3.0: a message, which every peer since then understands.
pub fn put_subscribe(out: &mut BytesMut, prefix: &[u8]) {
    put(out, 0, &[&[1], prefix]);
}

fn put_property(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_u8(u8::try_from(name.len()).expect("our property names are short"));
    out.put_slice(name);
    out.put_u32(u32::try_from(value.len()).expect("our property values are short"));
    out.put_slice(value);
}

fn put(out: &mut BytesMut, flags: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(len) {
        Ok(short) => out.put_slice(&[flags, short]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(len as u64);
        }
    }
    for part in parts {
        out.put_slice(part);
    }
}

#[cfg(test)]
mod tests;
