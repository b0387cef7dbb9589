//! The outside of a listener: what it is made from, what it can be told, and what of it can be seen.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::ids::{DpRank, InstanceId};
use crate::image::Position;
use crate::index::{OwnerId, SharedIndex};
use crate::ingest::applied::{Adoption, Applied};
use crate::ingest::held::Budget;
use crate::ingest::sources::{Sources, StreamId};
use crate::ingest::{Limits, Mark, SharedClock, StreamReport};
use crate::zmtp::{Context, Endpoint, Options};

/// Parts that all listeners of a process share.
pub struct Shared {
    /// How to connect.
    pub options: Options,
    /// Bounds of name look-ups.
    pub context: Context,
    /// Bounds and times.
    pub limits: Limits,
    /// For trust and lag.
    pub clock: SharedClock,
    /// Places for replays.
    pub replays: Arc<Semaphore>,
    /// What may wait in all streams together.
    pub held: Budget,
    /// What Kubernetes does is not heard at the moment.
    pub unwatched: AtomicBool,
}

impl Shared {
    /// Shared parts with free places.
    #[must_use]
    pub fn new(options: Options, context: Context, limits: Limits, clock: SharedClock) -> Self {
        let (replays, held) = (Arc::new(Semaphore::new(limits.replays_max)), Budget::new(limits.held_bytes_total_max));
        Self { options, context, limits, clock, replays, held, unwatched: AtomicBool::new(false) }
    }
}

/// What one stream feeds, and how.
pub struct StreamSpec {
    /// Number of the stream.
    pub id: StreamId,
    /// The instance that its owners belong to.
    pub instance: InstanceId,
    /// The publisher.
    pub endpoint: Endpoint,
    /// The publisher's replay socket.
    pub replay_endpoint: Option<Endpoint>,
    /// Prefix of the topics to hear; none: what [`Options::topics`] says.
    pub topic: Option<String>,
    /// LoRA name of events that name none.
    pub default_lora: Option<String>,
    /// Registered ranks; the index knows them.
    pub ranks: Vec<DpRank>,
    /// Last batch of an earlier registration: only to recognise a restart.
    pub remembered: Option<Mark>,
    /// One replay at a time per worker.
    pub turn: Arc<Semaphore>,
    /// Only holds what it hears until [`Command::Adopt`].
    pub joining: bool,
    /// Kubernetes registered it: its address may become another Pod's.
    pub of_kubernetes: bool,
}

/// Where a stream writes.
#[derive(Clone)]
pub struct Destination {
    /// The index.
    pub index: Arc<SharedIndex>,
    /// Who feeds whom in it.
    pub sources: Arc<Sources>,
}

/// What a running listener can be told. Each is answered once it is done.
#[derive(Debug)]
pub enum Command {
    /// Feed one more rank, which the index knows.
    AddRank(DpRank, oneshot::Sender<()>),
    /// Write nothing more for a rank.
    RemoveRank(DpRank, oneshot::Sender<()>),
    /// Another replay endpoint, or none.
    SetReplay(Option<Endpoint>, oneshot::Sender<()>),
    /// Close the socket.
    Pause(oneshot::Sender<()>),
    /// Connect again.
    Resume(oneshot::Sender<()>),
    /// Apply nothing from here on: hold what comes.
    BeginJoin(oneshot::Sender<()>),
    /// The publisher is known to have begun anew. If the stream has begun a life of its own accord since it had had so many,
    /// and on the connection that it has, that is this one, and nothing changes. Answered with the number of lives; none while it only holds.
    BeginAnew {
        /// Lives when the previous one was recorded.
        lives: u64,
        /// How many there are by then.
        answer: oneshot::Sender<Option<u64>>,
    },
    /// Is this batch the last one applied, or among those that wait?
    Shows(Mark, oneshot::Sender<bool>),
    /// Stop holding; owners are looked up anew in the index first.
    Adopt {
        /// How it goes on.
        adoption: Adoption,
        /// Ranks whose content was replaced, registered or not.
        ranks: Vec<DpRank>,
        /// Answered once it is done.
        done: oneshot::Sender<()>,
    },
}

/// The outside of a listener.
#[derive(Clone)]
pub struct Handle {
    pub(super) report: Arc<Mutex<StreamReport>>,
    pub(super) applied: Arc<Mutex<Applied>>,
    pub(super) commands: mpsc::Sender<Command>,
}

impl Handle {
    /// What the stream has observed.
    #[must_use]
    pub fn report(&self) -> StreamReport {
        self.report.lock().clone()
    }

    /// What of the stream stands in the index. To be called while the caller holds a lock of that index.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.applied.lock().clone()
    }

    /// Shows that the content of these owners was replaced by a state at `position`, before the listener is told. To be
    /// called while the caller holds the write lock of the index under which it did so.
    pub fn replaced(&self, position: Position, owners: Vec<(DpRank, OwnerId)>) {
        let mut applied = self.applied.lock();
        let connected = applied.position.connected;
        applied.place(Position { connected, ..position });
        applied.owners = owners;
    }

    /// True if both are handles of one listener.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.report, &other.report)
    }

    /// True if the publisher's present life has this batch, as far as this stream has heard: it is the last one applied, or
    /// among those that wait.
    pub async fn shows(&self, mark: Mark) -> bool {
        let (answer, wait) = oneshot::channel();
        self.commands.send(Command::Shows(mark, answer)).await.is_ok() && wait.await.unwrap_or(false)
    }

    /// The publisher is known to have begun anew since the stream had had `lives` lives. Nothing of before stays; what the
    /// stream has heard of a life that it found by itself, on the connection that it has, does. The number of lives then;
    /// none if it only holds, or has ended.
    pub async fn begin_anew(&self, lives: u64) -> Option<u64> {
        let (answer, wait) = oneshot::channel();
        self.commands.send(Command::BeginAnew { lives, answer }).await.ok()?;
        wait.await.ok().flatten()
    }

    /// Tells the listener something and waits until it is done, or the listener has ended.
    pub async fn tell(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) {
        let (done, wait) = oneshot::channel();
        if self.commands.send(command(done)).await.is_ok() {
            // An error means that the listener has ended meanwhile: then there is nothing left to do.
            let _ended = wait.await;
        }
    }

    /// Lets a listener that holds go on as it was, without waiting for it.
    pub fn let_go(&self) {
        let (done, _nobody_waits) = oneshot::channel();
        // A full inbox means that the registry is talking to it; then an operation runs that ends the hold itself.
        let _full = self.commands.try_send(Command::Adopt { adoption: Adoption::Keep, ranks: Vec::new(), done });
    }
}
