//! Stop signals of the process.

use anyhow::Context;
use tokio::signal::unix::{self, SignalKind};

/// What asks for a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: drain first.
    Terminate,
    /// SIGINT: do not wait.
    Interrupt,
}

/// Both stop signals. From its creation on neither ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = |kind| unix::signal(kind).context("failed to listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The next one. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            Some(()) = self.terminate.recv() => Signal::Terminate,
            Some(()) = self.interrupt.recv() => Signal::Interrupt,
            // Both streams end only with the runtime.
            else => std::future::pending().await,
        }
    }
}
