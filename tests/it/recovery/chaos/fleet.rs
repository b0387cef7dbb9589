//! Engines with real sockets: each publishes what its ranks do at its own pace, from a thread of its own, and keeps its
//! own truth.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cache::{BLOCK, Cache, Offload};
use crate::harness::msgpack;
use crate::harness::zmq_sockets::{Ring, Shape};
use crate::harness::{Publisher, Router};

/// Batches of a ring that does not hold the start for long.
const SHORT_RING: usize = 64;
/// An engine that starts anew publishes nothing before its model is loaded: all replicas listen again by then.
const LOADING_MAX: Duration = Duration::from_secs(8);
/// Fewer batches than these are no life worth ending.
const LIFE_MIN: u64 = 100;

/// What an engine keeps for replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It has no replay socket.
    Nothing,
    /// The latest batches.
    Short,
    /// Everything of this life.
    Whole,
}

/// Habits of an engine.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) model: &'static str,
    pub(super) tenant: &'static str,
    /// A number or a text.
    pub(super) instance: Value,
    pub(super) ranks: u32,
    pub(super) memory: Memory,
    pub(super) offload: Offload,
    /// It starts anew now and then.
    pub(super) restarts: bool,
}

impl Spec {
    /// Key in `instances` of an answer.
    pub(super) fn instance_text(&self) -> String {
        crate::harness::service::plain(&self.instance)
    }
}

/// One life of an engine, from number 0.
pub(super) struct Life {
    publisher: Publisher,
    ranks: Vec<Cache>,
    /// Number of the next batch.
    pub(super) next: u64,
    /// Lives before this one.
    pub(super) lives: u64,
}

impl Life {
    /// Number of the last batch.
    pub(super) fn last(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// By rank: tokens of the prompt on the device, and with host memory behind them.
    pub(super) fn held(&self, prompt: u32) -> Vec<[u64; 2]> {
        self.ranks.iter().map(|rank| rank.held(prompt)).collect()
    }
}

/// One engine.
pub(super) struct Engine {
    pub(super) spec: Spec,
    pub(super) endpoint: String,
    seed: u64,
    ring: Ring,
    router: Option<Router>,
    life: Mutex<Life>,
}

impl Engine {
    /// Bound, silent, empty.
    pub(super) fn new(spec: Spec, seed: u64) -> Self {
        let (publisher, ring) = (Publisher::bind(), Ring::default());
        let router = (spec.memory != Memory::Nothing).then(|| ring.router(Shape::Three));
        let ranks = caches(&spec, seed, 0);
        let endpoint = publisher.endpoint.clone();
        Self { spec, endpoint, seed, ring, router, life: Mutex::new(Life { publisher, ranks, next: 0, lives: 0 }) }
    }

    /// Bodies of `/register`, one for each rank.
    pub(super) fn registrations(&self) -> Vec<Value> {
        let of_rank = |rank| {
            let mut body = json!({
                "instance_id": self.spec.instance, "dp_rank": rank, "endpoint": self.endpoint, "block_size": BLOCK,
                "model_name": self.spec.model, "tenant_id": self.spec.tenant,
            });
            if let Some(router) = &self.router {
                body["replay_endpoint"] = json!(router.endpoint);
            }
            body
        };
        (0..self.spec.ranks).map(of_rank).collect()
    }

    /// Stands still while the guard lives.
    pub(super) fn pause(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("no holder panics")
    }

    /// [`Self::pause`], unless it is busy with a restart or somebody else looks at it.
    pub(super) fn try_pause(&self) -> Option<MutexGuard<'_, Life>> {
        self.life.try_lock().ok()
    }

    /// Waits for as many subscriptions.
    pub(super) fn wait_subscribed(&self, count: usize) {
        let life = self.pause();
        (0..count).for_each(|_| life.publisher.wait_subscribed());
    }

    /// One batch; the number of its events.
    fn publish(&self) -> usize {
        let mut life = self.pause();
        let seq = life.next;
        let rank = seq as usize % life.ranks.len();
        let events = life.ranks[rank].step();
        let count = events.len();
        let payload = msgpack::batch_of_rank(events.into(), rank as u32);
        match self.spec.memory {
            Memory::Nothing => {}
            Memory::Short => self.ring.push_bounded(seq, &payload, SHORT_RING),
            Memory::Whole => self.ring.push(seq, &payload),
        }
        life.publisher.send("kv-events", seq, &payload);
        life.next = seq + 1;
        count
    }

    /// The process ends and another one begins with number 0 and an empty cache. False if it had not lived long.
    pub(super) fn restart(&self, listeners: &AtomicUsize) -> bool {
        let mut life = self.pause();
        if life.next < LIFE_MIN {
            return false;
        }
        // Dropping the publisher frees its address; the other one only takes its place.
        life.publisher = Publisher::bind();
        self.ring.clear();
        life.lives += 1;
        life.next = 0;
        life.ranks = caches(&self.spec, self.seed, life.lives);
        life.publisher = Publisher::bind_to(&self.endpoint);
        let began = Instant::now();
        let mut heard = 0;
        while heard < listeners.load(Ordering::Relaxed) && (heard == 0 || began.elapsed() < LOADING_MAX) {
            heard += usize::from(life.publisher.hears_within(Duration::from_millis(50)));
        }
        true
    }
}

/// Hashes differ between engines, and between the lives of one.
fn caches(spec: &Spec, seed: u64, life: u64) -> Vec<Cache> {
    let mut random = fastrand::Rng::with_seed(seed ^ (life << 48));
    (0..spec.ranks).map(|_| Cache::new(random.u64(..), spec.offload, random.fork())).collect()
}

/// Pace and end of all engines.
pub(super) struct Pace {
    /// Events per second of one engine.
    pub(super) events_per_s: f64,
    pub(super) stop: AtomicBool,
    /// Processes that run at the moment.
    pub(super) listeners: AtomicUsize,
    /// Events so far.
    pub(super) events: AtomicUsize,
}

/// Publishes until told to stop.
pub(super) fn run(engine: &Engine, pace: &Pace, mut random: fastrand::Rng) {
    let began = Instant::now();
    let mut published = 0;
    let mut restart_at = random.u64(2_000..9_000);
    while !pace.stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * pace.events_per_s) as usize;
        // What a pause held up is not made up for at once.
        published = published.max(due.saturating_sub(pace.events_per_s as usize));
        while published < due {
            let events = engine.publish();
            published += events;
            pace.events.fetch_add(events, Ordering::Relaxed);
        }
        if engine.spec.restarts && began.elapsed().as_millis() as u64 > restart_at {
            engine.restart(&pace.listeners);
            restart_at = began.elapsed().as_millis() as u64 + random.u64(3_000..12_000);
        }
        std::thread::sleep(Duration::from_millis(random.u64(5..15)));
    }
    // One last word: of an engine that has started anew and says nothing, nobody can know that it has.
    engine.publish();
}
