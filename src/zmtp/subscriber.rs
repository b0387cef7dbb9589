//! One publisher, heard for ever: connect, read, and connect again.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::connection::{Connection, Role};
use super::endpoint::{Context, Endpoint, Lookup};
use super::error::Error;
use super::{Message, Options, Timing};

/// What a subscriber observed.
#[derive(Debug)]
pub enum SubEvent {
    /// Handshake complete.
    Connected,
    /// A message.
    Message(Message),
    /// Connection lost, or an attempt failed; another follows by itself.
    Disconnected {
        /// Why; fit for an operator.
        error: String,
    },
}

/// One endless subscription to one publisher. Not a task: whoever owns it polls it, and nothing happens in between:
/// a caller that is busy elsewhere lets the kernel's buffers fill, and TCP slows the publisher down.
pub struct Subscriber {
    endpoint: Endpoint,
    options: Options,
    backoff: Backoff,
    state: State,
}

enum State {
    /// Before the first attempt, or between two. The look-up that the last attempt left behind waits here.
    Idle { lookup: Lookup, until: Option<Pin<Box<Sleep>>> },
    /// Resolving, connecting, shaking hands.
    Attempting(Attempt),
    /// Connected. `broken` is what [`Subscriber::try_next`] met and [`Subscriber::next`] will report.
    Live { lookup: Lookup, connection: Box<Connection>, since: Instant, broken: Option<Error> },
    /// Only inside a transition.
    Changing,
}

type Attempt = Pin<Box<dyn Future<Output = (Lookup, Result<Connection, Error>)> + Send>>;

impl Subscriber {
    /// A subscriber that has not begun: the first attempt is made by the first call of [`Self::next`].
    #[must_use]
    pub fn new(endpoint: Endpoint, options: Options, context: Context) -> Self {
        let backoff = Backoff::new(options.timing);
        Self { endpoint, options, backoff, state: State::Idle { lookup: Lookup::new(context), until: None } }
    }

    /// Next observation. Never ends, reconnects for ever, resolves the name at every attempt, answers PING, sends PING to peers that know it.
    ///
    /// * Cancel-safe: all state is in `self`.
    /// * Every failed attempt reports one [`SubEvent::Disconnected`].
    /// * Messages that are already buffered are returned without waiting and without a yield to the runtime; only
    ///   reads of the socket take part in its cooperation. A caller with other duties yields after a while by itself.
    pub async fn next(&mut self) -> SubEvent {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// A message that is already complete in the read buffer; never waits, reads no socket.
    ///
    /// `None` also when the buffer holds something that breaks the protocol: [`Self::next`] reports it.
    pub fn try_next(&mut self) -> Option<Message> {
        let State::Live { connection, broken: broken @ None, .. } = &mut self.state else { return None };
        match connection.buffered() {
            Ok(message) => message,
            Err(error) => {
                *broken = Some(error);
                None
            }
        }
    }

    fn poll_next(&mut self, cx: &mut TaskContext<'_>) -> Poll<SubEvent> {
        loop {
            match &mut self.state {
                State::Idle { until, .. } => {
                    if let Some(sleep) = until {
                        ready!(sleep.as_mut().poll(cx));
                    }
                    self.attempt();
                }
                State::Attempting(attempt) => {
                    let (lookup, outcome) = ready!(attempt.as_mut().poll(cx));
                    return Poll::Ready(match outcome {
                        Ok(connection) => self.connected(lookup, connection),
                        Err(error) => self.disconnected(lookup, &error),
                    });
                }
                State::Live { connection, broken, .. } => {
                    let error = match broken.take() {
                        Some(error) => error,
                        None => match ready!(connection.poll_message(cx)) {
                            Ok(message) => return Poll::Ready(SubEvent::Message(message)),
                            Err(error) => error,
                        },
                    };
                    return Poll::Ready(self.lost(&error));
                }
                State::Changing => unreachable!("each transition below ends in another state"),
            }
        }
    }

    fn attempt(&mut self) {
        if let State::Idle { mut lookup, .. } = std::mem::replace(&mut self.state, State::Changing) {
            let (endpoint, options) = (self.endpoint.clone(), self.options.clone());
            self.state = State::Attempting(Box::pin(async move {
                let outcome = Connection::open(&endpoint, Role::Sub, &options, &mut lookup).await;
                (lookup, outcome)
            }));
        }
    }

    fn connected(&mut self, lookup: Lookup, connection: Connection) -> SubEvent {
        self.state = State::Live { lookup, connection: Box::new(connection), since: Instant::now(), broken: None };
        SubEvent::Connected
    }

    fn lost(&mut self, error: &Error) -> SubEvent {
        match std::mem::replace(&mut self.state, State::Changing) {
            State::Live { lookup, since, .. } => {
                self.backoff.connection_lived(since.elapsed());
                self.disconnected(lookup, error)
            }
            _ => unreachable!("only a live connection is lost"),
        }
    }

    fn disconnected(&mut self, lookup: Lookup, error: &Error) -> SubEvent {
        let until = Some(Box::pin(sleep(self.backoff.pause())));
        self.state = State::Idle { lookup, until };
        SubEvent::Disconnected { error: error.to_string() }
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Idle { .. } => "idle",
            State::Attempting(_) => "attempting",
            State::Live { .. } => "live",
            State::Changing => "changing",
        };
        f.debug_struct("Subscriber").field("endpoint", &self.endpoint.as_str()).field("state", &state).finish()
    }
}

/// Pauses between attempts: uniform between the shortest and a ceiling that doubles with each failure.
///
/// The shortest pause is never undercut, so that one endpoint makes at most `1 / backoff_min` attempts per second.
#[derive(Debug)]
struct Backoff {
    timing: Timing,
    ceiling: Duration,
}

impl Backoff {
    fn new(timing: Timing) -> Self {
        let mut backoff = Self { timing, ceiling: timing.backoff_min };
        backoff.reset();
        backoff
    }

    fn reset(&mut self) {
        self.ceiling = (self.timing.backoff_min * 2).min(self.timing.backoff_max);
    }

    fn connection_lived(&mut self, life: Duration) {
        if life >= self.timing.stable_after {
            self.reset();
        }
    }

    fn pause(&mut self) -> Duration {
        let Timing { backoff_min, backoff_max, .. } = self.timing;
        let spread = self.ceiling.saturating_sub(backoff_min);
        let pause = backoff_min + spread.mul_f64(fastrand::f64());
        self.ceiling = (self.ceiling * 2).min(backoff_max);
        pause
    }
}

#[cfg(test)]
mod tests;
