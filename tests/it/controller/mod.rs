//! The controller against an API server double that fails on command: what Pods, objects and a bad API server do to the
//! workers of the registry.
//!
//! Pods have loopback addresses, so that real publishers can be theirs. `lives` runs the built binary and looks at answers;
//! the other modules run the controller in this process, with short times.

mod discovery;
mod lives;
mod outages;
mod scale;
mod views;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvindexer::controller::{self, ControllerConfig, Parts, PodInstanceId, Selector, Times, View};
use kvindexer::ids::{InstanceId, Source};
use kvindexer::metrics::{ControllerMetrics, Metrics};
use kvindexer::readiness::Readiness;
use kvindexer::recovery::{PeerList, Replica};
use kvindexer::registry::{RankView, Registry, RegistryConfig};
use kvindexer::trust::Reason;
use kvindexer::zmtp::{Context, Options};
use kvindexer::{index, ingest};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::fake_kube::{FakeKube, Kind, Verb};
use crate::harness::msgpack::stored;
use crate::harness::{Publisher, Service, wait_for};

/// Namespace of all Pods and objects.
const NS: &str = "serving";

/// Model of all Pods, where a test names no other.
const MODEL: &str = "m";

/// Times that make tests short; ratios as in the product.
fn quick() -> Times {
    Times {
        settle: Duration::from_millis(5),
        retry_min: Duration::from_millis(20),
        retry_max: Duration::from_millis(300),
        missing_kind: Duration::from_millis(500),
        discovery_retry: Duration::from_millis(20),
        answer: Duration::from_secs(5),
        resync: Duration::from_millis(500),
        ..Times::default()
    }
}

/// The controller in this process.
struct Lab {
    kube: FakeKube,
    /// The controller ends with it.
    _runtime: Runtime,
    registry: Arc<Registry>,
    metrics: Arc<ControllerMetrics>,
    readiness: Readiness,
    view: watch::Receiver<View>,
}

impl Lab {
    /// On what `prepare` puts into the API server.
    fn start(prepare: impl FnOnce(&mut FakeKube)) -> Self {
        Self::start_with(quick(), prepare)
    }

    fn start_with(times: Times, prepare: impl FnOnce(&mut FakeKube)) -> Self {
        let mut kube = FakeKube::start();
        prepare(&mut kube);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let registry = Registry::new(RegistryConfig {
            zmtp: Options::default(),
            context: Context::new(8),
            index_limits: index::Limits::default(),
            ingest_limits: ingest::Limits::default(),
            clock: Arc::new(ingest::SystemClock),
            recovering: false,
            threads: ingest::Threads::default(),
        });
        let (sender, view) = watch::channel(View::default());
        let metrics = Arc::new(ControllerMetrics::new(&Metrics::new(&[])));
        let readiness = Readiness::ready();
        let client = {
            let _inside = runtime.enter();
            kube.client()
        };
        let parts = Parts {
            client,
            config: ControllerConfig {
                namespaces: Vec::new(),
                worker_selector: Selector::default(),
                pod_instance_id: PodInstanceId::Name,
                tenant_from_namespace: false,
                allow_endpoints: true,
                lease_namespace: "kvindexer".to_owned(),
                lease_name: "kvindexer".to_owned(),
                identity: "kvindexer-0".to_owned(),
                times,
            },
            registry: Arc::clone(&registry),
            replica: Replica::new(PeerList::new([])),
            readiness: readiness.clone(),
            metrics: Arc::clone(&metrics),
            view: sender,
        };
        runtime.spawn(controller::run(parts));
        Self { kube, _runtime: runtime, registry, metrics, readiness, view }
    }

    /// The view as it is.
    fn view(&self) -> View {
        self.view.borrow().clone()
    }

    #[track_caller]
    fn wait_view(&self, what: &str, holds: impl Fn(&View) -> bool) {
        wait_for(what, || {
            let view = self.view();
            if holds(&view) { Ok(()) } else { Err(format!("{view:?}")) }
        });
    }

    /// Both kinds are listed and watched, and the registry was told.
    #[track_caller]
    fn wait_current(&self) {
        self.wait_view("a current view", |view| view.complete && view.current);
    }

    /// Instances that Kubernetes registered.
    fn workers(&self) -> Vec<String> {
        let workers = self.registry.workers(None, None).into_iter();
        workers.filter(|worker| worker.source == Source::Kubernetes).map(|worker| worker.instance.to_string()).collect()
    }

    #[track_caller]
    fn wait_workers(&self, names: &[&str]) {
        let want: Vec<String> = names.iter().map(|name| format!("{NS}/{name}")).collect();
        wait_for(&format!("the workers {want:?}"), || {
            let seen = self.workers();
            if seen == want { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    fn rank(&self, pod: &str) -> Option<RankView> {
        let name = InstanceId::parse(&format!("{NS}/{pod}")).unwrap();
        let worker = self.registry.workers(None, None).into_iter().find(|worker| worker.instance == name)?;
        worker.ranks.into_values().next()
    }

    #[track_caller]
    fn wait_rank(&self, pod: &str, what: &str, holds: impl Fn(&RankView) -> bool) {
        wait_for(what, || match self.rank(pod) {
            Some(rank) if holds(&rank) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    fn is_doubted(rank: &RankView) -> bool {
        rank.report.trust.has(Reason::Unconfirmed)
    }

    /// Failures of a kind by their reason.
    fn errors(&self, kind: &str, reason: &str) -> u64 {
        self.metrics.watch_errors.with_label_values(&[kind, reason]).get()
    }

    fn changes(&self, change: &str) -> u64 {
        self.metrics.changes.with_label_values(&[change]).get()
    }

    /// Waits for so many additions, replacements and removals: they are counted a moment after they are made.
    #[track_caller]
    fn wait_changes(&self, want: [u64; 3]) {
        wait_for(&format!("the changes {want:?}"), || {
            match ["added", "replaced", "removed"].map(|it| self.changes(it)) {
                seen if seen == want => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        });
    }

    /// Waits until the API server was asked so often for lists of a kind.
    #[track_caller]
    fn wait_lists(&self, kind: Kind, count: usize) {
        wait_for(&format!("{count} lists of {kind:?}"), || match self.kube.count(Verb::List, kind) {
            seen if seen >= count => Ok(()),
            seen => Err(seen.to_string()),
        });
    }
}

/// An engine in a Pod: a publisher at the Pod's address.
struct Engine {
    ip: &'static str,
    port: u16,
    publisher: Publisher,
    next: u64,
}

impl Engine {
    /// At a free port of a loopback address.
    fn at(ip: &'static str) -> Self {
        let publisher = Publisher::bind_to(&format!("tcp://{ip}:*"));
        let port = publisher.endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        Self { ip, port, publisher, next: 0 }
    }

    /// At an address that another engine has left, or has at another host.
    fn at_port(ip: &'static str, port: u16) -> Self {
        Self { ip, port, publisher: Publisher::bind_to(&format!("tcp://{ip}:{port}")), next: 0 }
    }

    /// Its Pod: annotated, running.
    fn pod(&self, name: &str) -> Value {
        annotated(name, self.ip, self.port)
    }

    /// Announces one block of these four tokens.
    fn store(&mut self, hash: u64, tokens: &[u32]) {
        self.publisher.batch(self.next, json!([stored(&[hash], None, tokens)]));
        self.next += 1;
    }
}

/// A Pod that asks by itself to be registered.
fn annotated(name: &str, ip: &str, port: u16) -> Value {
    let mut pod = bare(name, ip);
    pod["metadata"]["labels"] = json!({"kvindexer.io/enabled": "true"});
    pod["metadata"]["annotations"] = json!({"kvindexer.io/model": MODEL, "kvindexer.io/block-size": "4", "kvindexer.io/event-port": port.to_string()});
    pod
}

/// A running Pod that nobody asked to be registered.
fn bare(name: &str, ip: &str) -> Value {
    json!({
        "kind": "Pod", "metadata": {"namespace": NS, "name": name},
        "spec": {"containers": [{"name": "engine", "image": "engine:1"}]},
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "engine", "image": "engine:1", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": format!("containerd://{name}-0"), "state": {"running": {"startedAt": "2026-11-30T12:00:00Z"}},
            }],
        },
    })
}

/// An IndexerWorker that claims Pods with the label `app` = its name.
fn object(name: &str, model: &str, port: u16) -> Value {
    json!({
        "kind": "IndexerWorker", "metadata": {"namespace": NS, "name": name},
        "spec": {"modelName": model, "blockSize": 4, "selector": {"matchLabels": {"app": name}}, "ports": {"events": port}},
    })
}

/// The container of a Pod began anew.
fn restarted(pod: &mut Value, count: u32) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let status = &mut pod["status"]["containerStatuses"][0];
    status["restartCount"] = json!(count);
    status["containerID"] = json!(format!("containerd://{name}-{count}"));
    status["state"] = json!({"running": {"startedAt": "2026-11-30T12:01:00Z"}});
}

/// A folder of its own, removed in the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvindexer-test-{}-controller-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The built binary that follows an API server; not yet ready.
fn follow(kube: &FakeKube, dir: &Dir, args: &[&str]) -> Service {
    let path = kube.kubeconfig(&dir.0);
    let env = [("KUBECONFIG", path.to_str().expect("a text")), ("KVINDEXER_KUBERNETES", "on")];
    Service::launch(args, &env)
}

/// `gpu` in tokens of a Pod for a prompt; none if it is not listed.
fn gpu(service: &Service, model: &str, pod: &str, tokens: &[u32]) -> Option<u64> {
    let reply = service.post("/query", &json!({"model_name": model, "token_ids": tokens}));
    if reply.status != 200 {
        return None;
    }
    reply.json()["instances"][format!("{NS}/{pod}")]["gpu"].as_u64()
}

#[track_caller]
fn wait_gpu(service: &Service, model: &str, pod: &str, tokens: &[u32], want: Option<u64>) {
    wait_for(&format!("{pod} to score {want:?}"), || match gpu(service, model, pod, tokens) {
        seen if seen == want => Ok(()),
        seen => Err(format!("{seen:?} {:?}", service.workers(model))),
    });
}
