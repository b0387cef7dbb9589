//! One socket: connect, handshake, read and write buffer, PING and PONG, silence. Knows no reconnect.
//!
//! Everything after the handshake is poll functions on `&mut self`: a dropped future loses nothing.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::codec::{self, Command, Decoder, Greeting, Item};
use super::endpoint::{Endpoint, Lookup};
use super::error::Error;
use super::socket::{self, Socket};
use super::{Message, Options, Timing};

/// Bytes asked from the socket at once: little while a connection is idle, so that 1,000 of them are cheap.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Same, for a busy connection. Beyond this the cost of the system call no longer matters.
const READ_BYTES_MAX: usize = 64 * 1024;
/// A read buffer that a huge message has grown beyond this is given back after it.
const RETAINED_BYTES_MAX: usize = 1024 * 1024;
/// Unsent PONGs and PINGs kept for a peer that sends but does not read. More are dropped.
const UNSENT_BYTES_MAX: usize = 4 * 1024;

/// Which side of a pattern we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Sub,
    Dealer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    fn accepts(self, theirs: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(theirs, b"PUB" | b"XPUB"),
            Self::Dealer => theirs == b"ROUTER",
        }
    }

    fn needed(self) -> &'static str {
        match self {
            Self::Sub => "PUB or XPUB (is this the replay port?)",
            Self::Dealer => "ROUTER (is this the event port?)",
        }
    }
}

/// How far the handshake is; the text says what is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Silent,
    Greeting,
    Ready,
    Done,
}

impl Stage {
    fn awaited(self) -> &'static str {
        match self {
            Self::Silent => "peer accepted the connection and sent nothing",
            Self::Greeting => "peer sent only a part of its greeting",
            Self::Ready => "peer sent its greeting but no READY",
            Self::Done => "peer did not read our READY",
        }
    }

    fn name(self, in_message: bool) -> &'static str {
        match self {
            Self::Silent => " before it sent anything",
            Self::Greeting => " in the middle of its greeting",
            Self::Ready => " after its greeting, before READY",
            Self::Done if in_message => " in the middle of a message",
            Self::Done => "",
        }
    }
}

/// One connection whose handshake is complete.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    stage: Stage,
    inbox: BytesMut,
    outbox: BytesMut,
    write_error: Option<io::Error>,
    read_bytes: usize,
    decoder: Decoder,
    partial: SmallVec<[Bytes; 4]>,
    clock: Clock,
}

impl Connection {
    /// Resolves, connects, shakes hands, subscribes.
    pub(super) async fn open(
        endpoint: &Endpoint,
        role: Role,
        options: &Options,
        lookup: &mut Lookup,
    ) -> Result<Self, Error> {
        if let Some(why) = endpoint.hopeless() {
            return Err(Error::Hopeless(why));
        }
        let (socket, address) = socket::connect(endpoint.target(), &options.timing, lookup).await?;
        let mut connection = Self::new(socket, options);
        let limit = options.timing.handshake;
        let done = match timeout(limit, connection.shake_hands(role, &options.topics)).await {
            Ok(done) => done,
            Err(_) => Err(Error::HandshakeTimeout { address, limit, stage: connection.stage.awaited() }),
        };
        if done.is_err() {
            lookup.pass_over();
        }
        done?;
        connection.clock.start();
        Ok(connection)
    }

    fn new(socket: Socket, options: &Options) -> Self {
        Self {
            socket,
            stage: Stage::Silent,
            inbox: BytesMut::new(),
            outbox: BytesMut::new(),
            write_error: None,
            read_bytes: READ_BYTES_MIN,
            decoder: Decoder::new(options.limits),
            partial: SmallVec::new(),
            clock: Clock::new(options.timing),
        }
    }

    async fn shake_hands(&mut self, role: Role, topics: &[Bytes]) -> Result<(), Error> {
        self.outbox.extend_from_slice(&codec::greeting());
        let greeting = loop {
            if let Some(greeting) = Greeting::parse(&self.inbox)? {
                break greeting;
            }
            self.receive_some().await?;
            self.stage = Stage::Greeting;
        };
        self.inbox.advance(codec::GREETING_BYTES);
        self.clock.pings = greeting.knows_ping();
        self.stage = Stage::Ready;
        codec::put_ready(&mut self.outbox, role.name(), (role == Role::Dealer).then_some(b""));
        loop {
            if let Some(item) = self.decoder.next(&mut self.inbox)? {
                check_ready(&item, role)?;
                break;
            }
            self.receive_some().await?;
        }
        self.stage = Stage::Done;
        if role == Role::Sub {
            put_subscriptions(&mut self.outbox, topics);
            self.try_send();
        }
        Ok(())
    }

    /// A message that is complete in the read buffer. Reads no socket; answers a PING met on the way as far as the socket takes it.
    pub(super) fn buffered(&mut self) -> Result<Option<Message>, Error> {
        while let Some(item) = self.decoder.next(&mut self.inbox)? {
            match item {
                Item::Frame { more, body } => {
                    self.partial.push(body);
                    if !more {
                        return Ok(Some(Message { frames: std::mem::take(&mut self.partial) }));
                    }
                }
                Item::Command(body) => self.obey(&body)?,
            }
        }
        Ok(None)
    }

    /// The next message. Drives PING, PONG and the silence clock. All state is in `self`.
    pub(super) fn poll_message(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Message, Error>> {
        loop {
            if let Some(message) = self.buffered()? {
                return Poll::Ready(Ok(message));
            }
            self.poll_send(cx);
            // Read before judging silence: after a pause of ours the peer's bytes are waiting in the socket.
            if let Poll::Ready(received) = self.poll_receive(cx) {
                received?;
                continue;
            }
            match ready!(self.clock.poll_tick(cx)) {
                Tick::Dead(error) => return Poll::Ready(Err(error)),
                Tick::Ping => {
                    if self.outbox.len() <= UNSENT_BYTES_MAX {
                        codec::put_ping(&mut self.outbox);
                    }
                    self.rest();
                }
                Tick::Nothing => self.rest(),
            }
        }
    }

    /// Sends a message. A dropped future leaves the rest to be sent by the next call.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        if let Some((last, first)) = frames.split_last() {
            for frame in first {
                codec::put_frame(&mut self.outbox, frame, true);
            }
            codec::put_frame(&mut self.outbox, last, false);
        }
        self.send_all().await
    }

    fn obey(&mut self, body: &[u8]) -> Result<(), Error> {
        match Command::parse(body)? {
            Command::Ping { context } => {
                if self.outbox.len() <= UNSENT_BYTES_MAX {
                    codec::put_pong(&mut self.outbox, context);
                    // At once if the socket takes it: the caller may be long with the messages behind.
                    self.try_send();
                }
                Ok(())
            }
            Command::Error { reason } => Err(Error::Peer(reason.escape_ascii().to_string())),
            Command::Ready { .. } | Command::Pong | Command::Unknown => Ok(()),
        }
    }

    /// Gives memory back while nothing happens.
    fn rest(&mut self) {
        if self.inbox.is_empty() {
            self.inbox = BytesMut::new();
            self.read_bytes = READ_BYTES_MIN;
        }
        if self.outbox.is_empty() {
            self.outbox = BytesMut::new();
        }
    }

    /// Makes room for the next read: never more than was received so far plus one read, whatever a header announces.
    fn make_room(&mut self) {
        let earned = self.inbox.len().max(self.read_bytes);
        let room = self.decoder.missing().clamp(self.read_bytes, earned);
        if self.inbox.capacity() > RETAINED_BYTES_MAX && self.inbox.len() + room <= READ_BYTES_MAX * 2 {
            let mut small = BytesMut::with_capacity(self.inbox.len() + room);
            small.extend_from_slice(&self.inbox);
            self.inbox = small;
        }
        self.inbox.reserve(room);
    }

    /// Ready when bytes came; an error at the end of the stream.
    fn poll_receive(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.socket.poll_read_ready(cx)).map_err(|error| self.lost(error))?;
            self.make_room();
            let room = self.inbox.capacity() - self.inbox.len();
            match self.socket.try_read(&mut self.inbox) {
                Ok(0) => {
                    return Poll::Ready(Err(match self.write_error.take() {
                        Some(error) => self.lost(error),
                        None => Error::Closed { stage: self.stage() },
                    }));
                }
                Ok(n) => {
                    if n == room {
                        self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
                    }
                    self.clock.heard();
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(self.lost(error))),
            }
        }
    }

    /// Sends what waits, as far as the socket takes it, and asks to be woken for the rest.
    fn poll_send(&mut self, cx: &mut TaskContext<'_>) {
        while !self.outbox.is_empty() {
            match self.socket.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => self.try_send(),
                Poll::Ready(Err(error)) => self.unsendable(error),
                Poll::Pending => return,
            }
        }
    }

    /// One write without waiting; a failure is left to the read side.
    fn try_send(&mut self) {
        if let Err(error) = self.write_some() {
            self.unsendable(error);
        }
    }

    fn write_some(&mut self) -> io::Result<()> {
        match self.socket.try_write(&self.outbox) {
            Ok(n) => {
                self.outbox.advance(n);
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The connection ends when the read side ends: the peer's last words may still lie there.
    ///
    /// The system tells a cause once. One that the read side will not see again (a time-out) is kept for it.
    fn unsendable(&mut self, error: io::Error) {
        self.outbox.clear();
        if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            self.write_error.get_or_insert(error);
        }
    }

    /// Sends everything that waits; unlike [`Self::poll_send`] a broken connection is an error.
    async fn send_all(&mut self) -> Result<(), Error> {
        poll_fn(|cx| {
            while !self.outbox.is_empty() {
                ready!(self.socket.poll_write_ready(cx)).map_err(|error| self.lost(error))?;
                self.write_some().map_err(|error| self.lost(error))?;
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    async fn receive_some(&mut self) -> Result<(), Error> {
        poll_fn(|cx| {
            self.poll_send(cx);
            self.poll_receive(cx)
        })
        .await
    }

    fn stage(&self) -> &'static str {
        self.stage.name(self.decoder.in_message() || !self.inbox.is_empty())
    }

    fn lost(&self, source: io::Error) -> Error {
        Error::Lost { stage: self.stage(), source }
    }
}

fn check_ready(item: &Item, role: Role) -> Result<(), Error> {
    let Item::Command(body) = item else {
        return Err(codec::CodecError::Malformed("a message came before READY").into());
    };
    match Command::parse(body)? {
        Command::Ready { socket_type: Some(theirs) } if role.accepts(theirs) => Ok(()),
        Command::Ready { socket_type: Some(theirs) } => {
            Err(Error::SocketType { ours: role.name(), theirs: codec::printable(theirs), needed: role.needed() })
        }
        Command::Ready { socket_type: None } => Err(codec::CodecError::Malformed("READY names no socket type").into()),
        Command::Error { reason } => Err(Error::Peer(reason.escape_ascii().to_string())),
        Command::Ping { .. } | Command::Pong | Command::Unknown => {
            Err(codec::CodecError::Malformed("another command came instead of READY").into())
        }
    }
}

fn put_subscriptions(out: &mut BytesMut, topics: &[Bytes]) {
    if topics.is_empty() {
        codec::put_subscribe(out, b"");
    }
    for topic in topics {
        codec::put_subscribe(out, topic);
    }
}

/// What a tick of the clock asks for.
enum Tick {
    Ping,
    Nothing,
    Dead(Error),
}

/// When to send PING, and when silence means death.
#[derive(Debug)]
struct Clock {
    timing: Timing,
    pings: bool,
    timer: Pin<Box<Sleep>>,
    heard_at: Instant,
    ping_at: Instant,
    /// When the first PING without any byte after it was sent.
    unanswered_since: Option<Instant>,
}

impl Clock {
    fn new(timing: Timing) -> Self {
        let now = Instant::now();
        // Zero would make a clock that never rests.
        let timing = Timing { ping_interval: timing.ping_interval.max(Duration::from_millis(1)), ..timing };
        let ping_at = now + timing.ping_interval;
        Self {
            timing,
            pings: false,
            timer: Box::pin(sleep_until(ping_at)),
            heard_at: now,
            ping_at,
            unanswered_since: None,
        }
    }

    /// The handshake is complete: silence counts from here.
    fn start(&mut self) {
        self.heard();
        self.ping_at = self.heard_at + self.timing.ping_interval;
        self.timer.as_mut().reset(self.ping_at);
    }

    fn heard(&mut self) {
        self.heard_at = Instant::now();
        self.unanswered_since = None;
    }

    fn poll_tick(&mut self, cx: &mut TaskContext<'_>) -> Poll<Tick> {
        ready!(self.timer.as_mut().poll(cx));
        let now = Instant::now();
        if let Some(dead_at) = self.dead_at()
            && now >= dead_at
        {
            return Poll::Ready(Tick::Dead(Error::Silent { silence: now - self.heard_at }));
        }
        let mut tick = Tick::Nothing;
        if now >= self.ping_at {
            self.ping_at = now + self.timing.ping_interval;
            if self.pings {
                self.unanswered_since.get_or_insert(now);
                tick = Tick::Ping;
            }
        }
        let next = self.dead_at().map_or(self.ping_at, |dead_at| dead_at.min(self.ping_at));
        self.timer.as_mut().reset(next);
        Poll::Ready(tick)
    }

    /// Only a peer that was asked can be found dead: when we slept, it had no reason to speak.
    fn dead_at(&self) -> Option<Instant> {
        let asked = self.unanswered_since? + self.timing.dead_after.saturating_sub(self.timing.ping_interval);
        Some(asked.max(self.heard_at + self.timing.dead_after))
    }
}

#[cfg(test)]
mod tests;
