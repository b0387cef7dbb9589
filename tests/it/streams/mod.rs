//! Streams with real libzmq sockets, driven through the registry alone: no HTTP, no process.

mod lives;
mod recovery;
mod replicas;
mod sharing;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use kvindexer::ids::{BlockSize, DpRank, IndexKey, InstanceId, Owner, Source};
use kvindexer::index::{self, OwnerSpec};
use kvindexer::ingest::{self, SystemClock};
use kvindexer::registry::{Endpoint, RankView, Registry, RegistryConfig, Unregister, WorkerSpec};
use kvindexer::trust::Reason;
use kvindexer::zmtp::{Context, Options};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::harness::{msgpack, wait_for};

/// A registry with a runtime of its own. Dropping it ends all listeners.
struct Lab {
    runtime: Runtime,
    registry: Arc<Registry>,
}

impl Lab {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Streams only hold what they hear until a state is adopted.
    fn recovering() -> Self {
        Self::build(ingest::Limits::default(), true)
    }

    /// With other limits than the usual ones.
    fn with(change: impl FnOnce(&mut ingest::Limits)) -> Self {
        let mut ingest_limits = ingest::Limits::default();
        change(&mut ingest_limits);
        Self::build(ingest_limits, false)
    }

    fn build(ingest_limits: ingest::Limits, recovering: bool) -> Self {
        let index_limits = index::Limits::default();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let registry = Registry::new(RegistryConfig {
            zmtp: Options::default(),
            context: Context::new(8),
            index_limits,
            ingest_limits,
            clock: Arc::new(SystemClock),
            recovering,
            threads: ingest::Threads::default(),
        });
        Self { runtime, registry }
    }

    fn register(&self, spec: WorkerSpec) {
        self.runtime.block_on(self.registry.register(spec, Source::Manual, false)).expect("registered");
    }

    fn unregister(&self, instance: u64, rank: Option<u32>) {
        let what = Unregister { model: "m".into(), tenant: None, instance: instance.into(), rank: rank.map(DpRank) };
        self.runtime.block_on(self.registry.unregister(what)).expect("unregistered");
    }

    fn view(&self, instance: u64, rank: u32) -> Option<RankView> {
        let mut workers = self.registry.workers(None, None).into_iter();
        let worker = workers.find(|worker| worker.instance == InstanceId::Number(instance))?;
        worker.ranks.get(&DpRank(rank)).cloned()
    }

    /// Engine hashes that an owner holds, pending ones too, sorted.
    fn held(&self, instance: u64, rank: u32) -> Vec<u64> {
        let Some(index) = self.registry.index(&key()) else { return Vec::new() };
        let index = index.read();
        let Some(owner) = index.owner_id(&Owner::new(instance, rank)) else { return Vec::new() };
        let mut hashes: Vec<u64> = index.dump(owner).iter().map(|block| block.hash.0).collect();
        hashes.sort_unstable();
        hashes
    }

    #[track_caller]
    fn wait(&self, what: &str, instance: u64, rank: u32, holds: impl Fn(&RankView) -> bool) -> RankView {
        wait_for(what, || match self.view(instance, rank) {
            Some(view) if holds(&view) => Ok(view),
            other => Err(format!("{other:?}")),
        })
    }

    #[track_caller]
    fn wait_seq(&self, instance: u64, rank: u32, seq: u64) {
        self.wait(&format!("number {seq}"), instance, rank, |view| {
            view.stream.last_seq.is_some_and(|last| last.0 >= seq)
        });
    }

    #[track_caller]
    fn wait_held(&self, instance: u64, rank: u32, want: &[u64]) {
        wait_for(&format!("blocks {want:?}"), || {
            let held = self.held(instance, rank);
            if held == want { Ok(()) } else { Err(format!("{held:?}, {:?}", self.view(instance, rank))) }
        });
    }

    /// Waits until exactly these reasons hold.
    #[track_caller]
    fn wait_reasons(&self, instance: u64, rank: u32, want: &[Reason]) {
        self.wait(&format!("reasons {want:?}"), instance, rank, |view| {
            view.report.trust.reasons().collect::<Vec<_>>() == want
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.runtime.block_on(self.registry.shutdown());
    }
}

fn key() -> IndexKey {
    IndexKey::new("m", "default")
}

fn endpoint(text: &str) -> Endpoint {
    Endpoint::parse(text).expect("an endpoint")
}

/// A worker of the model `m` with blocks of four tokens.
fn worker(instance: u64, rank: u32, address: &str) -> WorkerSpec {
    WorkerSpec {
        key: key(),
        owner: Owner::new(instance, rank),
        block_size: BlockSize::new(4).expect("not zero"),
        endpoint: endpoint(address),
        replay_endpoint: None,
        topic: None,
        additional_salt: None,
        default_lora: None,
        owner_spec: OwnerSpec::default(),
        incarnation: None,
    }
}

fn with_replay(spec: WorkerSpec, address: &str) -> WorkerSpec {
    WorkerSpec { replay_endpoint: Some(endpoint(address)), ..spec }
}

/// Payload of number n: stores block 100 + n, a chain of its own.
fn payload(n: u64) -> Vec<u8> {
    msgpack::batch(store(n))
}

fn store(n: u64) -> serde_json::Value {
    let first = 4 * u32::try_from(n).expect("small");
    json!([msgpack::stored(&[100 + n], None, &[first + 1, first + 2, first + 3, first + 4])])
}

const SHORT: Duration = Duration::from_millis(300);
