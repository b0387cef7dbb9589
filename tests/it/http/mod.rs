//! The HTTP rooms in this process: the real server on a loopback port, a registry without engines, and blocks that the
//! tests write into the indexes themselves.

mod answers;
mod bounds;
mod dialects;
mod operation;
mod pieces;
mod replicas;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use kvindexer::event::{Batch, Event, GroupInfo, Stored};
use kvindexer::hash;
use kvindexer::http::{AppState, HttpConfig, PATHS, ServerLimits, Services, router, serve};
use kvindexer::ids::{EngineHash, IndexKey, Namespace, Owner, Seq, Tier};
use kvindexer::index::{self, ApplyContext};
use kvindexer::ingest::{self, SystemClock};
use kvindexer::metrics::Metrics;
use kvindexer::readiness::Readiness;
use kvindexer::recovery::{Forwarder, PeerList, Replica};
use kvindexer::registry::{Registry, RegistryConfig};
use kvindexer::zmtp;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::http::{Reply, Request, exchange};

/// Engines that the tests name and that nobody is: the port of "discard", where nothing listens.
const ENDPOINT: &str = "tcp://127.0.0.1:9";

/// What a server is made of where it is not the default.
struct Setup {
    config: HttpConfig,
    limits: ServerLimits,
    readiness: Readiness,
    /// Its registry waits for a state.
    recovering: bool,
    /// Other replicas, to which registrations are sent on; none: they are not.
    forwards_to: Option<Vec<String>>,
}

impl Default for Setup {
    fn default() -> Self {
        let (config, limits) = (HttpConfig::default(), ServerLimits::default());
        Self { config, limits, readiness: Readiness::ready(), recovering: false, forwards_to: None }
    }
}

/// A served API; ends with its value.
struct Server {
    address: SocketAddr,
    registry: Arc<Registry>,
    readiness: Readiness,
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl Server {
    fn start() -> Self {
        Self::build(Setup::default())
    }

    fn with(config: HttpConfig, limits: ServerLimits, readiness: Readiness) -> Self {
        Self::build(Setup { config, limits, readiness, ..Setup::default() })
    }

    fn build(setup: Setup) -> Self {
        let Setup { config, limits, readiness, recovering, forwards_to } = setup;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let registry = Registry::new(RegistryConfig {
            zmtp: zmtp::Options {
                limits: zmtp::Limits::default(),
                timing: zmtp::Timing::default(),
                topics: vec![Bytes::new()],
            },
            context: zmtp::Context::new(4),
            index_limits: index::Limits {
                recent_hashes_max: 1024,
                pending_blocks_max: 1024,
                removals_remembered_max: 64,
                held_blocks_max: 0,
            },
            ingest_limits: ingest::Limits::default(),
            clock: Arc::new(SystemClock),
            recovering,
            threads: ingest::Threads::default(),
        });
        let replica = Replica::new(PeerList::new(forwards_to.iter().flatten().cloned()));
        let state = AppState::new(Services {
            registry: Arc::clone(&registry),
            readiness: readiness.clone(),
            forwarder: forwards_to.map(|_| Forwarder::new(replica.clone())),
            replica,
            metrics: Arc::new(Metrics::new(PATHS)),
            access_log: None,
            config,
        });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = runtime.spawn(serve(listener, router(state), limits, stop.clone()));
        Self { address, registry, readiness, stop, serving: Some(serving), runtime: Some(runtime) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn send(&self, request: &Request<'_>) -> Reply {
        exchange(self.address, request).unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    fn get(&self, path: &str) -> Reply {
        self.send(&Request { method: "GET", path, ..Request::default() })
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        let body = body.to_string();
        let content_type = Some("application/json");
        self.send(&Request { method: "POST", path, content_type, body: Some(body.as_bytes()) })
    }

    /// Registers with block size 4; `more` adds or replaces fields.
    #[track_caller]
    fn register(&self, instance: impl Into<Value>, model: &str, more: &Value) {
        let mut body =
            json!({"instance_id": instance.into(), "endpoint": ENDPOINT, "model_name": model, "block_size": 4});
        for (key, value) in more.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        let reply = self.post("/register", &body);
        assert_eq!(reply.status, 201, "{}", reply.text());
    }

    /// Stores whole blocks of four tokens for a registered owner, from the root.
    fn store(&self, key: &IndexKey, owner: &Owner, tier: Tier, tokens: &[u32]) {
        self.store_named(key, owner, tier, tokens, Namespace::default());
    }

    fn store_named(&self, key: &IndexKey, owner: &Owner, tier: Tier, tokens: &[u32], named: Namespace) {
        let shared = self.registry.index(key).expect("the index is registered");
        let mut batch = Batch::default();
        batch.token_bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        batch.locals = hash::local_hashes(&batch.token_bytes, shared.block_size(), named);
        let mut rolling = None;
        for local in &batch.locals {
            rolling = Some(hash::rolling(rolling, *local));
            batch.hashes.extend(rolling.map(EngineHash));
        }
        let count = |length: usize| u32::try_from(length).unwrap();
        batch.events.push(Event::Stored(Stored {
            hashes: 0..count(batch.hashes.len()),
            parent: None,
            token_bytes: 0..count(batch.token_bytes.len()),
            block_size: Some(shared.block_size().tokens()),
            locals: 0..count(batch.locals.len()),
            extras: 0..0,
            named,
            tier,
            group: GroupInfo::default(),
        }));
        let mut index = shared.write();
        let id = index.owner_id(owner).expect("the owner is registered");
        index.apply(id, &batch, ApplyContext { seq: Seq(0), now_ms: 1 });
    }

    /// Stops and waits for the end of the server.
    fn stop_and_wait(&mut self) {
        self.stop.cancel();
        let (runtime, serving) = (self.runtime.as_ref().unwrap(), self.serving.take().unwrap());
        runtime.block_on(serving).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.registry.shutdown());
            runtime.shutdown_background();
        }
    }
}

/// Tokens `1..=count`.
fn tokens(count: u32) -> Vec<u32> {
    (1..=count).collect()
}

/// The answer without what depends on connections.
fn without_trust(mut answer: Value) -> Value {
    for instance in answer["instances"].as_object_mut().expect("an answer").values_mut() {
        instance.as_object_mut().unwrap().remove("trust");
    }
    answer
}
