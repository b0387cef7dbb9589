//! Statuses and Events as the API server gets them: the real controller against the API server double, with real
//! publishers.

mod events;
mod lease;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvindexer::controller::{self, ControllerConfig, Parts, PodInstanceId, Selector, Times, View};
use kvindexer::ids::{IndexKey, InstanceId, Owner, Source};
use kvindexer::index::Limits;
use kvindexer::ingest::{self, SystemClock};
use kvindexer::metrics::{ControllerMetrics, Metrics};
use kvindexer::readiness::Readiness;
use kvindexer::recovery::{PeerList, Replica};
use kvindexer::registry::{RankView, Registry, RegistryConfig, WorkerSpec};
use kvindexer::wire::digest::Phase;
use kvindexer::zmtp::{Context, Options};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::fake_kube::{Asked, FakeKube, Kind, Verb};
use crate::harness::{DEADLINE, FakePeer, Publisher, msgpack, wait_for, wait_within};

const NAMESPACE: &str = "serving";

/// A hundred times faster than in the service, but for the Lease: the API knows whole seconds.
fn times() -> Times {
    let ms = Duration::from_millis;
    Times {
        settle: ms(5),
        retry_min: ms(20),
        retry_max: ms(300),
        missing_kind: ms(300),
        status_min: ms(400),
        status_blocks_min: ms(1200),
        observe: ms(50),
        lease: ms(2000),
        discovery_retry: ms(50),
        ..Times::default()
    }
}

/// A replica that follows Kubernetes, and one more that has registered nothing and is asked for its digest.
struct Lab {
    runtime: Runtime,
    registry: Arc<Registry>,
    replica: Replica,
    metrics: Arc<ControllerMetrics>,
    identity: String,
    controller: Option<JoinHandle<()>>,
}

impl Lab {
    /// Serves, and follows `kube` under this name, with these other replicas.
    fn start(kube: &FakeKube, identity: &str, peers: &[String]) -> Self {
        let mut lab = Self::prepare(identity, peers);
        lab.replica.set_phase(Phase::Ready);
        lab.follow(kube);
        lab
    }

    /// Neither serves nor follows.
    fn prepare(identity: &str, peers: &[String]) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let index_limits = Limits::default();
        let registry = Registry::new(RegistryConfig {
            zmtp: Options::default(),
            context: Context::new(8),
            index_limits,
            ingest_limits: ingest::Limits::default(),
            clock: Arc::new(SystemClock),
            recovering: false,
            threads: ingest::Threads::default(),
        });
        let replica = Replica::named(identity.to_owned(), PeerList::new(peers.iter().cloned()), None);
        let metrics = Arc::new(ControllerMetrics::new(&Metrics::new(&[])));
        Self { runtime, registry, replica, metrics, identity: identity.to_owned(), controller: None }
    }

    /// Follows `kube` under its own name.
    fn follow(&mut self, kube: &FakeKube) {
        self.follow_with_lease(kube, "kvindexer");
    }

    fn follow_with_lease(&mut self, kube: &FakeKube, lease: &str) {
        let config = ControllerConfig {
            namespaces: Vec::new(),
            worker_selector: Selector::default(),
            pod_instance_id: PodInstanceId::Name,
            tenant_from_namespace: false,
            allow_endpoints: true,
            lease_namespace: "kvindexer".to_owned(),
            lease_name: lease.to_owned(),
            identity: self.identity.clone(),
            times: times(),
        };
        let inside = self.runtime.enter();
        let parts = Parts {
            client: kube.client(),
            config,
            registry: Arc::clone(&self.registry),
            replica: self.replica.clone(),
            readiness: Readiness::ready(),
            metrics: Arc::clone(&self.metrics),
            view: tokio::sync::watch::Sender::new(View::default()),
        };
        drop(inside);
        self.controller = Some(self.runtime.spawn(controller::run(parts)));
    }

    /// The controller ends, as with its process; the registry stays.
    fn end(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.abort();
            // Cancelled: that is what was asked for.
            let _ = self.runtime.block_on(controller);
        }
        self.metrics.leader.set(0);
    }

    /// Loses all workers, as a replica does that follows something else.
    fn forget(&self) {
        self.runtime.block_on(self.registry.converge(Source::Kubernetes, BTreeMap::<_, WorkerSpec>::new()));
    }

    fn leads(&self) -> bool {
        self.metrics.leader.get() == 1
    }

    fn writes(&self, outcome: &str) -> u64 {
        self.metrics.status_writes.with_label_values(&[outcome]).get()
    }

    fn rank(&self, pod: &str) -> Option<RankView> {
        let instance = InstanceId::parse(&format!("{NAMESPACE}/{pod}")).expect("an id");
        let owner = Owner::new(instance, 0);
        let mut workers = self.registry.workers(Some(&"m".into()), None).into_iter();
        let worker =
            workers.find(|worker| worker.key == IndexKey::new("m", "default") && worker.instance == owner.instance)?;
        worker.ranks.get(&owner.rank).cloned()
    }

    /// Serves what this replica would say of itself to others.
    fn as_peer(&self) -> FakePeer {
        let (replica, registry) = (self.replica.clone(), Arc::clone(&self.registry));
        FakePeer::start(move |asked, line| match asked.path() {
            "/digest" => line.json(200, &serde_json::to_value(replica.digest(&registry)).expect("it can be written")),
            _ => line.not_found(),
        })
    }
}

/// A Pod with its engine.
struct Engine {
    pod: String,
    publisher: Publisher,
    next: u64,
}

impl Engine {
    /// A running Pod with label `app=vllm` and a port `kv` at which a publisher listens.
    fn start(kube: &FakeKube, pod: &str) -> Self {
        let publisher = Publisher::bind();
        let port: u16 = publisher.endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        kube.put(json!({
            "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": pod, "labels": {"app": "vllm"}},
            "spec": {"containers": [{"name": "vllm", "ports": [{"name": "kv", "containerPort": port}]}]},
            "status": {
                "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                "containerStatuses": [{
                    "name": "vllm", "containerID": format!("containerd://{pod}"), "restartCount": 0, "ready": true,
                    "image": "vllm", "imageID": "", "state": {"running": {"startedAt": "2026-11-30T12:00:00Z"}},
                }],
            },
        }));
        Self { pod: pod.to_owned(), publisher, next: 0 }
    }

    /// Publishes one block, and waits until these replicas have it.
    fn publish(&mut self, labs: &[&Lab]) {
        let seq = self.next;
        let parent = seq.checked_sub(1).map(|seq| seq + 1_000);
        let first = u32::try_from(4 * seq).expect("a short test");
        let tokens: Vec<u32> = (first..first + 4).collect();
        self.publisher.batch(seq, json!([msgpack::stored(&[seq + 1_000], parent, &tokens)]));
        self.next += 1;
        for lab in labs {
            wait_for("a batch to be applied", || {
                let seen = lab.rank(&self.pod).and_then(|rank| rank.stream.last_seq);
                if seen.is_some_and(|last| last.0 == seq) { Ok(()) } else { Err(format!("{seen:?}")) }
            });
        }
    }

    /// Waits until so many replicas listen.
    fn wait_heard(&self, times: usize) {
        (0..times).for_each(|_| self.publisher.wait_subscribed());
    }
}

/// An object that selects `app=vllm`.
fn object(name: &str) -> Value {
    json!({
        "kind": "IndexerWorker",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "modelName": "m", "blockSize": 4, "tenantId": "default",
            "selector": {"matchLabels": {"app": "vllm"}}, "ports": {"events": "kv"},
        },
    })
}

fn status(kube: &FakeKube, name: &str) -> Value {
    kube.get(Kind::IndexerWorkers, NAMESPACE, name).map_or(Value::Null, |object| object["status"].clone())
}

/// `Accepted:True/Accepted ...` as the object says it.
fn said(status: &Value) -> String {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let said =
        conditions.iter().map(|it| format!("{}:{}/{}", text(&it["type"]), text(&it["status"]), text(&it["reason"])));
    said.collect::<Vec<_>>().join(" ")
}

const WELL: &str = "Accepted:True/Accepted Connected:True/AllConnected Ingesting:True/Ingesting InSync:True/InSync";

/// Waits until an object says that all is well with so many workers.
#[track_caller]
fn wait_well(kube: &FakeKube, name: &str, workers: usize) -> Value {
    wait_for(&format!("{name} to be well"), || {
        let status = status(kube, name);
        let well = said(&status) == WELL && status["workers"] == workers && status["ready"] == workers;
        if well { Ok(status) } else { Err(status.to_string()) }
    })
}

/// Writes of statuses so far.
fn applied(kube: &FakeKube) -> Vec<Asked> {
    let status_writes = |asked: &Asked| asked.verb == Verb::Apply && asked.kind == Kind::IndexerWorkers;
    kube.asked().into_iter().filter(status_writes).collect()
}

/// Lets the writer look around so many times: each time it asks the peer.
fn pass_rounds(peer: &FakePeer, rounds: usize) {
    let before = peer.asked_for("/digest");
    // A loaded machine does few of them in a second.
    wait_within(DEADLINE * 4, "rounds to pass", || {
        let passed = peer.asked_for("/digest") - before;
        if passed > rounds { Ok(()) } else { Err(format!("{passed} rounds")) }
    });
}

/// A peer that serves, and has nothing: rounds are counted by it.
fn idle_peer() -> FakePeer {
    FakePeer::start(|asked, line| match asked.path() {
        "/digest" => line.json(
            200,
            &json!({"replica_id": "00000000000000aa", "name": "idle", "version": "0", "phase": "waiting", "progress": 0,
                    "owners": 0, "exact_owners": 0, "applied": 0, "blocks": 0, "streams": [], "registrations": [],
                    "tombstones": []}),
        ),
        _ => line.not_found(),
    })
}
