//! Recovery in this process: registries, a peer whose every answer a test decides, and short limits. The same against
//! whole replicas is in `recovery`.

mod serving;
mod starts;

use std::sync::Arc;
use std::time::Duration;

use kvindexer::ids::{BlockSize, IndexKey, Owner, Source};
use kvindexer::image::StreamImage;
use kvindexer::index::{Limits, OwnerSpec};
use kvindexer::ingest::{self, SystemClock};
use kvindexer::readiness::Readiness;
use kvindexer::recovery::{self, Outcome, Part, PeerList, RecoveryConfig, Replica, SnapshotWriter, Times};
use kvindexer::registry::{Endpoint, ExportFilter, Registry, RegistryConfig, WorkerSpec};
use kvindexer::trust::Trust;
use kvindexer::wire::digest::Phase;
use kvindexer::zmtp::{Context, Options};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::fake_peer::{Asked, Line};
use crate::harness::msgpack::{removed, stored, stored_on};
use crate::harness::{FakePeer, Publisher, wait_for};

/// One replica without HTTP.
struct Side {
    runtime: Runtime,
    registry: Arc<Registry>,
    replica: Replica,
    config: RecoveryConfig,
}

impl Side {
    /// Serves.
    fn serving() -> Self {
        let side = Self::new(false, &[]);
        side.replica.set_phase(Phase::Ready);
        side
    }

    /// Starts, and knows these peers.
    fn starting(peers: &[String]) -> Self {
        Self::new(true, peers)
    }

    fn new(recovering: bool, peers: &[String]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let registry = Registry::new(RegistryConfig {
            zmtp: Options::default(),
            context: Context::new(8),
            index_limits: Limits::default(),
            ingest_limits: ingest::Limits::default(),
            clock: Arc::new(SystemClock),
            recovering,
            threads: ingest::Threads::default(),
        });
        let times = Times {
            silence: Duration::from_millis(600),
            connect: Duration::from_millis(400),
            peer_progress: Duration::from_millis(1_500),
            settle: Duration::from_millis(50),
            handshakes: Duration::from_secs(5),
            round: Duration::from_millis(20),
            compare: Duration::from_millis(200),
            grace: Duration::from_secs(60),
            ..Times::default()
        };
        let config = RecoveryConfig { times, ..RecoveryConfig::default() };
        Self { runtime, registry, replica: Replica::new(PeerList::new(peers.iter().cloned())), config }
    }

    fn recover(&self) -> Outcome {
        let (_readiness, hold) = Readiness::starting("recovery");
        self.runtime.block_on(recovery::recover(&self.replica, &self.registry, &self.config, hold))
    }

    fn register(&self, instance: u64, endpoint: &str) {
        let spec = spec(instance, endpoint);
        self.runtime.block_on(self.registry.register(spec, Source::Manual, false)).unwrap();
    }

    /// Waits until this batch of an instance is in the index.
    #[track_caller]
    fn wait_seq(&self, instance: u64, seq: u64) {
        wait_for(&format!("number {seq} of {instance}"), || {
            let digest = self.replica.digest(&self.registry);
            let stream = digest.streams.iter().find(|stream| stream.instance_id == instance.into());
            let current = stream.and_then(|stream| stream.current.as_ref()).map(|sum| sum.seq.0);
            if current == Some(seq) { Ok(()) } else { Err(format!("{digest:?}")) }
        });
    }

    /// Everything that decides answers, stream by stream; the times at which things happened here, and who is connected,
    /// aside.
    fn state(&self) -> Vec<StreamImage> {
        let exports = self.registry.exports(&ExportFilter::default());
        let copy = |stream: StreamImage| {
            let mut stream = stream;
            stream.position.connected = false;
            stream.image.owners.iter_mut().for_each(|owner| {
                let mut trust = Trust::default();
                for reason in owner.trust.reasons() {
                    trust.set(reason, true, 0);
                }
                owner.trust = trust;
                owner.rest.removals.iter_mut().for_each(|removal| removal.at_ms = 0);
            });
            stream
        };
        exports.iter().filter_map(|export| export.copy()).map(copy).collect()
    }

    fn trust(&self, instance: u64) -> Vec<&'static str> {
        let index = self.registry.index(&key()).expect("the index is there");
        let index = index.read();
        let owner = index.owner_id(&Owner::new(instance, 0)).expect("the owner is there");
        index.trust(owner).reasons().map(|reason| reason.as_str()).collect()
    }

    fn held_blocks(&self) -> u64 {
        self.registry.indexes().iter().map(|(_, index)| index.read().stats().held_blocks).sum()
    }

    fn attempts(&self, source: &str, outcome: &str) -> u64 {
        let attempts = self.replica.counters().attempts;
        attempts.iter().find(|(of, how, _)| (*of, *how) == (source, outcome)).map_or(0, |(_, _, count)| *count)
    }

    /// A copy of what a peer needs to answer.
    fn voice(&self) -> Voice {
        Voice { registry: Arc::clone(&self.registry), replica: self.replica.clone() }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.runtime.block_on(self.registry.shutdown());
    }
}

/// The answers of a side.
struct Voice {
    registry: Arc<Registry>,
    replica: Replica,
}

impl Voice {
    fn digest(&self) -> Value {
        serde_json::to_value(self.replica.digest(&self.registry)).unwrap()
    }

    fn snapshot(&self, target: &str) -> Vec<u8> {
        let part = if target.contains("part=registrations") { Part::Registrations } else { Part::All };
        let instance = target.split(['?', '&']).find_map(|word| word.strip_prefix("instance_id="));
        let instance = instance.map(|text| kvindexer::ids::InstanceId::parse(text).unwrap());
        let filter = ExportFilter { instance, ..ExportFilter::default() };
        let mut writer = SnapshotWriter::new(&self.replica, &self.registry, &filter, part);
        std::iter::from_fn(|| writer.next_piece()).flatten().collect()
    }

    /// What a good peer answers.
    fn answer(&self, asked: &Asked, line: &mut Line) {
        match asked.path() {
            "/digest" => line.json(200, &self.digest()),
            "/snapshot" => line.reply(200, "application/octet-stream", &self.snapshot(&asked.target)),
            _ => line.not_found(),
        }
    }

    /// A server with these answers.
    fn serve(self) -> FakePeer {
        FakePeer::start(move |asked, line| self.answer(asked, line))
    }

    /// A server that looks better than any other under another id, and spoils its whole snapshot.
    fn serve_spoilt(self, spoil: impl Fn(&[u8], &mut Line) + Send + Sync + 'static) -> FakePeer {
        FakePeer::start(move |asked, line| {
            if asked.path() == "/digest" {
                let mut digest = self.digest();
                digest["replica_id"] = json!("0000000000000000");
                digest["exact_owners"] = json!(1_000);
                line.json(200, &digest);
            } else if asked.is_whole_snapshot() {
                spoil(&self.snapshot(&asked.target), line);
            } else {
                self.answer(asked, line);
            }
        })
    }
}

fn key() -> IndexKey {
    IndexKey::new("org/llama:8b", "a:b")
}

/// A worker with blocks of four tokens and no replay endpoint.
fn spec(instance: u64, endpoint: &str) -> WorkerSpec {
    WorkerSpec {
        key: key(),
        owner: Owner::new(instance, 0),
        block_size: BlockSize::new(4).unwrap(),
        endpoint: Endpoint::parse(endpoint).unwrap(),
        replay_endpoint: None,
        topic: None,
        additional_salt: None,
        default_lora: None,
        owner_spec: OwnerSpec::default(),
        incarnation: None,
    }
}

/// A publisher whose batches are numbered from 0.
struct Engine {
    publisher: Publisher,
    next: u64,
}

impl Engine {
    fn new() -> Self {
        Self { publisher: Publisher::bind(), next: 0 }
    }

    fn publish(&mut self, events: Value) {
        self.publisher.batch(self.next, events);
        self.next += 1;
    }

    /// Registers at a side and waits for its subscription.
    fn register_at(&self, side: &Side, instance: u64) {
        side.register(instance, &self.publisher.endpoint);
        self.publisher.wait_subscribed();
    }
}

/// Tokens of one block of its own.
fn block(number: u32) -> [u32; 4] {
    [4 * number, 4 * number + 1, 4 * number + 2, 4 * number + 3]
}

/// A chain, a removal in it, blocks of another tier, and one that waits for its parent.
fn fill(engine: &mut Engine) {
    let tokens: Vec<u32> = (1..=3).flat_map(block).collect();
    engine.publish(json!([stored(&[1, 2, 3], None, &tokens)]));
    engine.publish(json!([stored_on("CPU", &[1, 2], None, &tokens[..8])]));
    engine.publish(json!([removed(&[2], "GPU")]));
}
