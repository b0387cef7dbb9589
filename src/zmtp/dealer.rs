//! One question to a ROUTER and its answers, over a connection of its own.

use std::future::poll_fn;

use super::connection::{Connection, Role};
use super::endpoint::{Context, Endpoint, Lookup};
use super::error::Error;
use super::{Message, Options};

/// One DEALER connection for one exchange. No reconnect: an error or the end of the stream ends it.
#[derive(Debug)]
pub struct Dealer {
    connection: Connection,
}

impl Dealer {
    /// Resolves, connects and shakes hands with a ROUTER.
    ///
    /// # Errors
    /// Any cause, within the sum of the look-up, connect and handshake limits.
    pub async fn connect(endpoint: &Endpoint, options: &Options, context: &Context) -> Result<Self, Error> {
        let mut lookup = Lookup::new(context.clone());
        let connection = Connection::open(endpoint, Role::Dealer, options, &mut lookup).await?;
        Ok(Self { connection })
    }

    /// Sends one message as it is: an empty delimiter, where wanted, is the caller's first frame.
    ///
    /// Waits while the peer does not read; the caller limits the time.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        self.connection.send(frames).await
    }

    /// The next message. Cancel-safe. Waits for ever on a peer that is alive and says nothing; the caller limits the time.
    ///
    /// # Errors
    /// The peer closed, is silent against PING, or broke a limit or the protocol. At once, never by a time limit, when the peer closed.
    pub async fn recv(&mut self) -> Result<Message, Error> {
        poll_fn(|cx| self.connection.poll_message(cx)).await
    }
}
