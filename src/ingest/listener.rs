//! The task of one stream: waits for messages, answers, commands and times, and carries out what the pure parts decide.
//!
//! Invariants: there is no queue between socket and index but the bounded one behind a replay; the report is published
//! after the index shows what it says; when the task has ended, nothing more is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::event::SkipReason;
use crate::hash;
use crate::ids::DpRank;
use crate::image::Position;
use crate::ingest::applied::{Adoption, Applied};
use crate::ingest::feed::{Feed, FeedTarget, Target};
use crate::ingest::handle::{Command, Destination, Handle, Shared, StreamSpec};
use crate::ingest::replay::{self, Exchange, Item, Question};
use crate::ingest::rounds::RoundEnd;
use crate::ingest::stream::{Bounds, Effect, Ms, Outcome, ReplayStep, Step, Stream};
use crate::ingest::{Limits, Mark, Status, StreamReport};
use crate::wire::{self, DecodeContext, ReplayAnswer};
use crate::zmtp::{Endpoint, Message, SubEvent, Subscriber};

/// Messages taken at one wake-up before other duties have their turn.
const MESSAGES_PER_WAKE: usize = 64;

/// A listener that has not begun. Its future ends after `stop` is cancelled and gives the last batch applied.
pub fn listener(
    shared: Arc<Shared>,
    to: Destination,
    spec: StreamSpec,
    stop: CancellationToken,
) -> (Handle, impl Future<Output = Option<Mark>> + Send) {
    let (commands, inbox) = mpsc::channel(8);
    let report = Arc::new(Mutex::new(StreamReport::default()));
    let applied = Arc::new(Mutex::new(Applied::default()));
    let handle = Handle { report: Arc::clone(&report), applied: Arc::clone(&applied), commands };
    let task = Task::new(shared, to, spec, Outside { report, applied });
    (handle, task.run(inbox, stop))
}

/// What a handle sees.
struct Outside {
    report: Arc<Mutex<StreamReport>>,
    applied: Arc<Mutex<Applied>>,
}

struct Task {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    replay_endpoint: Option<Endpoint>,
    topic: Option<String>,
    turn: Arc<Semaphore>,
    remembered: Option<Mark>,
    stream: Stream,
    feed: Feed,
    subscriber: Option<Subscriber>,
    exchange: Option<Exchange>,
    /// Messages without a number that came while the stream only held; counted once it goes on.
    unreadable: Option<SkipReason>,
    /// A state was adopted, and what waited behind it has not been judged.
    adopted: bool,
    /// Kubernetes registered it: its address may become another Pod's.
    of_kubernetes: bool,
    report: StreamReport,
    published: Arc<Mutex<StreamReport>>,
    origin: Instant,
}

enum Wake {
    Stop,
    Command(Command),
    Live(SubEvent),
    Replay(Item),
    Release,
    Timer,
}

impl Task {
    fn new(shared: Arc<Shared>, to: Destination, spec: StreamSpec, outside: Outside) -> Self {
        let decode = DecodeContext {
            block_size: to.index.block_size(),
            default_lora: spec.default_lora.as_deref().and_then(hash::lora_name),
        };
        let (id, instance, applied) = (spec.id, spec.instance, outside.applied);
        let Destination { index, sources } = to;
        let target = FeedTarget { index, sources, stream: id, instance, decode, applied };
        let mut feed = Feed::new(target, spec.joining);
        for rank in spec.ranks {
            feed.add_rank(rank, shared.clock.now_ms());
        }
        let budget = shared.held.clone();
        let mut stream = Stream::new(bounds(&shared.limits), spec.replay_endpoint.is_some(), spec.remembered, budget);
        if spec.joining {
            stream.begin_join();
        }
        let mut task = Self {
            shared,
            endpoint: spec.endpoint,
            replay_endpoint: spec.replay_endpoint,
            topic: spec.topic,
            turn: spec.turn,
            remembered: spec.remembered,
            stream,
            feed,
            subscriber: None,
            exchange: None,
            unreadable: None,
            adopted: false,
            of_kubernetes: spec.of_kubernetes,
            report: StreamReport { holding: spec.joining, ..StreamReport::default() },
            published: outside.report,
            origin: Instant::now(),
        };
        task.open();
        task
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, stop: CancellationToken) -> Option<Mark> {
        let mut guard = EndGuard { report: Arc::clone(&self.published), armed: true };
        loop {
            tokio::task::consume_budget().await;
            match self.wake(&mut inbox, &stop).await {
                Wake::Stop => break,
                Wake::Command(command) => self.command(command),
                Wake::Live(event) => self.live(event),
                Wake::Replay(item) => self.replayed(item),
                Wake::Release => self.release(),
                Wake::Timer => {
                    let now = self.now();
                    self.stream.timer(now);
                }
            }
            self.finish_wake();
        }
        guard.armed = false;
        self.stream.last().or(self.remembered)
    }

    async fn wake(&mut self, inbox: &mut mpsc::Receiver<Command>, stop: &CancellationToken) -> Wake {
        let deadline = self.stream.deadline().map(|at| self.origin + std::time::Duration::from_millis(at));
        let can_release = self.stream.can_release();
        let (subscriber, exchange) = (&mut self.subscriber, &mut self.exchange);
        // The end first, then commands: both must get through however busy the publisher is. The rest in random order,
        // so that neither live traffic nor a replay starves the other.
        tokio::select! {
            biased;
            () = stop.cancelled() => Wake::Stop,
            Some(command) = inbox.recv() => Wake::Command(command),
            wake = async {
                tokio::select! {
                    event = next_live(subscriber) => Wake::Live(event),
                    item = next_replayed(exchange) => Wake::Replay(item),
                    () = std::future::ready(()), if can_release => Wake::Release,
                    () = until(deadline) => Wake::Timer,
                }
            } => wake,
        }
    }

    fn live(&mut self, event: SubEvent) {
        match event {
            SubEvent::Connected => {
                self.report.status = Status::Active;
                self.report.last_error = None;
                self.report.connects += 1;
                if self.of_kubernetes && self.report.connects > 1 && self.shared.unwatched.load(Ordering::Acquire) {
                    self.feed.doubt_address(self.shared.clock.now_ms());
                }
                self.report.settled |= self.replay_endpoint.is_none() && !self.stream.is_holding();
                tracing::info!(endpoint = self.endpoint.as_str(), "connected");
                let now = self.now();
                self.stream.connected(now);
            }
            SubEvent::Disconnected { error } => {
                if self.report.status == Status::Active {
                    tracing::warn!(endpoint = self.endpoint.as_str(), %error, "connection lost");
                }
                self.report.status = Status::Pending;
                self.report.last_error = Some(error);
                self.stream.disconnected();
            }
            SubEvent::Message(message) => {
                self.message(&message);
                for _ in 1..MESSAGES_PER_WAKE {
                    let Some(message) = self.subscriber.as_mut().and_then(Subscriber::try_next) else {
                        break;
                    };
                    self.message(&message);
                }
            }
        }
    }

    fn message(&mut self, message: &Message) {
        let (now, now_ms) = (self.now(), self.shared.clock.now_ms());
        let frames: SmallVec<[&[u8]; 4]> = message.frames.iter().map(|frame| &frame[..]).collect();
        let (seq, payload) = match wire::live_message(&frames) {
            Ok(message) => message,
            Err(reason) => {
                self.report.malformed += 1;
                if self.stream.is_holding() {
                    self.unreadable = Some(reason);
                } else {
                    self.feed.skip(reason);
                }
                self.stream.malformed(now);
                return;
            }
        };
        self.report.last_event_ms = Some(now_ms);
        let step = self.stream.message(seq, payload, now);
        self.perform_effects();
        match step {
            Step::Apply(mark) => self.apply(mark, payload, now_ms),
            Step::Duplicate => self.report.duplicates += 1,
            Step::Held => {}
        }
        self.stream.advance(now);
        self.perform_effects();
    }

    fn apply(&mut self, mark: Mark, payload: &[u8], now_ms: u64) {
        self.report.settled |= !self.adopted;
        if let Some(timestamp_ms) = self.feed.batch(mark, payload, Target::All, now_ms) {
            self.report.lag_ms = Some(now_ms.saturating_sub(timestamp_ms));
        }
    }

    fn release(&mut self) {
        let (now, now_ms) = (self.now(), self.shared.clock.now_ms());
        for _ in 0..MESSAGES_PER_WAKE {
            let batch = self.stream.release(now);
            self.perform_effects();
            let Some(batch) = batch else {
                break;
            };
            self.apply(batch.mark, &batch.payload, now_ms);
        }
    }

    fn replayed(&mut self, item: Item) {
        let (now, now_ms) = (self.now(), self.shared.clock.now_ms());
        match item {
            Item::Begun => self.stream.round_begun(now),
            Item::Failed(error) => {
                tracing::debug!(endpoint = self.endpoint.as_str(), %error, "replay connection failed");
                self.stream.round_over(RoundEnd::Failed, now);
            }
            Item::Answer(message) => {
                let frames: SmallVec<[&[u8]; 4]> = message.frames.iter().map(|frame| &frame[..]).collect();
                match wire::replay_answer(&frames) {
                    Ok(ReplayAnswer::End) => self.stream.round_over(RoundEnd::Marker, now),
                    Err(SkipReason::MalformedFrames | _) => self.stream.round_over(RoundEnd::Failed, now),
                    Ok(ReplayAnswer::Batch { seq, payload }) => {
                        let mark = Mark { seq, payload_hash: wire::payload_hash(payload) };
                        let step = self.stream.answer(mark, now);
                        self.perform_effects();
                        match step {
                            ReplayStep::Drop => {}
                            ReplayStep::Apply => {
                                self.feed.batch(mark, payload, Target::All, now_ms);
                            }
                            ReplayStep::ApplyToJoining => {
                                self.feed.batch(mark, payload, Target::Joining, now_ms);
                            }
                        }
                    }
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        let (now, now_ms) = (self.now(), self.shared.clock.now_ms());
        self.feed.flush(now_ms);
        let done = match command {
            Command::AddRank(rank, done) => {
                if !self.feed.add_rank(rank, now_ms) {
                    self.stream.join(rank);
                }
                done
            }
            Command::RemoveRank(rank, done) => {
                self.stream.leave(rank);
                self.feed.remove_rank(rank);
                done
            }
            Command::SetReplay(endpoint, done) => {
                self.replay_endpoint = endpoint;
                self.stream.set_replay(self.replay_endpoint.is_some(), now);
                done
            }
            Command::BeginJoin(done) => {
                self.stream.begin_join();
                done
            }
            Command::Shows(mark, answer) => {
                // Whoever asked may have gone.
                let _asker_gone = answer.send(self.stream.shows(mark));
                return;
            }
            Command::BeginAnew { lives, answer } => {
                if self.report.holding {
                    let _asker_gone = answer.send(None);
                    return;
                }
                // A life that was noticed on an earlier connection is not the one that is told: a container that restarts
                // takes its connections along.
                let on_this_connection =
                    self.report.status == Status::Active && self.report.connects == self.report.life_connects;
                if self.report.lives <= lives || !on_this_connection {
                    self.stream.begin_anew(now);
                }
                self.finish_wake();
                let _asker_gone = answer.send(Some(self.report.lives));
                return;
            }
            Command::Adopt { adoption, ranks, done } => {
                self.adopt(adoption, &ranks, now_ms);
                done
            }
            Command::Pause(done) => {
                self.subscriber = None;
                self.report.status = Status::Paused;
                self.stream.paused();
                done
            }
            Command::Resume(done) => {
                self.report.status = Status::Pending;
                self.report.last_error = None;
                self.open();
                done
            }
        };
        self.finish_wake();
        // Whoever asked may have gone; the work is done all the same.
        let _asker_gone = done.send(());
    }

    fn adopt(&mut self, adoption: Adoption, ranks: &[DpRank], now_ms: u64) {
        let without_history = self.feed.adopt(adoption, ranks, now_ms);
        let now = self.now();
        self.stream.adopt(adoption, now);
        self.perform_effects();
        without_history.into_iter().for_each(|rank| self.stream.join(rank));
        if let Some(reason) = self.unreadable.take() {
            self.feed.skip(reason);
        }
        match adoption {
            Adoption::Snapshot(Position { mark: Some(_), .. }) => self.adopted = true,
            _ => self.report.settled |= self.report.status == Status::Active && self.replay_endpoint.is_none(),
        }
    }

    /// Starts what waits, carries everything out, and shows it.
    fn finish_wake(&mut self) {
        let (now, now_ms) = (self.now(), self.shared.clock.now_ms());
        self.perform_effects();
        self.stream.advance(now);
        self.perform_effects();
        self.feed.flush(now_ms);
        if self.stream.has_holes() && !self.feed.misses_batches() {
            self.stream.healed();
        }
        self.report.last_seq = self.stream.last().map(|mark| mark.seq);
        self.report.replaying = self.stream.is_replaying();
        self.report.holding = self.stream.is_holding();
        if self.adopted && self.stream.is_settled() {
            (self.adopted, self.report.settled) = (false, true);
        }
        self.published.lock().clone_from(&self.report);
    }

    fn perform_effects(&mut self) {
        for effect in self.stream.take_effects() {
            match effect {
                Effect::StartReplay { from } => {
                    self.exchange = self.replay_endpoint.clone().map(|endpoint| {
                        let (shared, turn) = (Arc::clone(&self.shared), Arc::clone(&self.turn));
                        replay::exchange(Question { endpoint, from, shared, turn })
                    });
                }
                Effect::StopReplay => self.exchange = None,
                Effect::ReplayEnded(outcome) => {
                    self.report.settled |= !self.adopted;
                    match outcome {
                        Outcome::Complete => self.report.replays_complete += 1,
                        Outcome::Incomplete => self.report.replays_incomplete += 1,
                        Outcome::Failed => self.report.replays_failed += 1,
                    }
                    tracing::info!(endpoint = self.endpoint.as_str(), ?outcome, "replay ended");
                }
                Effect::Restarted => {
                    self.report.restarts += 1;
                    self.report.lives += 1;
                    self.report.life_connects = self.report.connects;
                    tracing::warn!(endpoint = self.endpoint.as_str(), "publisher restarted");
                }
                Effect::ToldAnew => {
                    self.report.lives += 1;
                    self.report.life_connects = self.report.connects;
                }
                Effect::Lost { missing } => {
                    self.report.missing_batches = self.report.missing_batches.saturating_add(missing);
                    tracing::warn!(endpoint = self.endpoint.as_str(), missing, "batches are missing");
                }
                Effect::GapSeen => self.report.gaps += 1,
                Effect::DuplicateReleased => self.report.duplicates += 1,
                _ => {}
            }
            self.feed.effect(effect);
        }
    }

    fn open(&mut self) {
        let mut options = self.shared.options.clone();
        if let Some(topic) = &self.topic {
            options.topics = vec![topic.clone().into()];
        }
        self.subscriber = Some(Subscriber::new(self.endpoint.clone(), options, self.shared.context.clone()));
    }

    fn now(&self) -> Ms {
        Ms::try_from(self.origin.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }
}

/// Shows that a listener ended without being told to: a fault of ours.
struct EndGuard {
    report: Arc<Mutex<StreamReport>>,
    armed: bool,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if self.armed {
            let mut report = self.report.lock();
            report.status = Status::Failed;
            report.last_error = Some("listener ended unexpectedly".into());
        }
    }
}

async fn next_live(subscriber: &mut Option<Subscriber>) -> SubEvent {
    match subscriber {
        Some(subscriber) => subscriber.next().await,
        None => std::future::pending().await,
    }
}

async fn next_replayed(exchange: &mut Option<Exchange>) -> Item {
    let item = match exchange {
        Some(exchange) => exchange.next().await,
        None => None,
    };
    match item {
        Some(item) => item,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn bounds(limits: &Limits) -> Bounds {
    let ms = |duration: std::time::Duration| Ms::try_from(duration.as_millis()).unwrap_or(Ms::MAX);
    Bounds {
        held_bytes_max: limits.held_bytes_max,
        held_batches_max: limits.held_batches_max,
        silence_ms: ms(limits.silence),
        idle_ms: ms(limits.replay_idle),
        repair_min_ms: ms(limits.repair_min),
        repair_max_ms: ms(limits.repair_max),
    }
}
