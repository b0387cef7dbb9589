//! Kubernetes: watches Pods and IndexerWorkers, decides which workers should exist, and tells the registry. One more
//! caller of the registry, no other power.
//!
//! `facts`, `cut`, `desired`, `conditions` and `store` are pure: what the API server says goes in, workers and findings
//! come out. `watch` follows the API server and folds what it hears into `seen`, `drive` brings the registry to what is
//! desired, `discovery` asks engines to describe themselves, `status` writes what was found back, while this replica
//! holds the Lease.
//! Invariants: nothing is decided before the last complete lists of both kinds; every decision depends on the present
//! state only; an object or Pod that cannot be read harms no other; losing the API server changes no answer.

mod conditions;
mod crd;
mod cut;
mod desired;
mod discovery;
mod drive;
mod events;
mod facts;
mod lease;
mod seen;
mod status;
mod store;
mod trouble;
mod watch;

use std::sync::Arc;

use tokio::sync::watch as channel;

pub use crd::{
    DataParallel, Discovery, DuplicatePolicy, FixedEndpoint, IndexerWorker, IndexerWorkerSpec, IndexerWorkerStatus,
    InstanceStatus, LabelSelector, PortRef, Ports, SelectorOperator, SelectorRequirement, StartRankFrom, Trust, yaml,
};
pub use facts::Selector;

use crate::metrics::ControllerMetrics;
use crate::readiness::Readiness;
use crate::recovery::Replica;
use crate::registry::Registry;

/// What the controller is told at the start.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Namespaces to watch, one watch each; empty: all of them.
    pub namespaces: Vec<String>,
    /// Labels of the object that claims a Pod, or of the annotated Pod; empty: everything.
    pub worker_selector: Selector,
    /// How instances of Pods are named.
    pub pod_instance_id: PodInstanceId,
    /// The tenant is the namespace, whatever objects and annotations say.
    pub tenant_from_namespace: bool,
    /// Objects may name fixed endpoints.
    pub allow_endpoints: bool,
    /// Namespace of the Lease.
    pub lease_namespace: String,
    /// Name of the Lease: that of the StatefulSet.
    pub lease_name: String,
    /// Who holds it, and who observed a status: the Pod's name.
    pub identity: String,
    /// Waits and rhythms.
    pub times: Times,
}

/// How the instance of a Pod is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodInstanceId {
    /// `<namespace>/<pod name>`.
    #[default]
    Name,
    /// A stable number below 2^53, made from that.
    Hash,
}

/// Waits and rhythms; tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Changes are gathered for so long before the registry is told.
    pub settle: std::time::Duration,
    /// First wait after the API server failed; doubles, with jitter.
    pub retry_min: std::time::Duration,
    /// Longest such wait.
    pub retry_max: std::time::Duration,
    /// A custom resource that is not there counts as no objects after so long without a break; at the start at once.
    pub missing_kind: std::time::Duration,
    /// At most one status per object in this time.
    pub status_min: std::time::Duration,
    /// At most one status per object in this time if nothing but its number of blocks has changed.
    pub status_blocks_min: std::time::Duration,
    /// How often what goes into a status is looked at, and other replicas are asked.
    pub observe: std::time::Duration,
    /// A Lease that was not renewed for so long is free.
    pub lease: std::time::Duration,
    /// An engine that did not describe itself is asked again after so long; doubles up to four times that.
    pub discovery_retry: std::time::Duration,
    /// The API server is asked to end each watch after so long; in whole seconds, at least one. Sets how soon a dead
    /// connection is noticed.
    pub watch: std::time::Duration,
    /// A page of a list, or the beginning of a watch, is waited for no longer than this.
    pub answer: std::time::Duration,
    /// The registry is told what is desired so often even if nothing has changed.
    pub resync: std::time::Duration,
}

impl Default for Times {
    fn default() -> Self {
        use std::time::Duration;
        Self {
            settle: Duration::from_millis(50),
            retry_min: Duration::from_millis(800),
            retry_max: Duration::from_secs(10),
            missing_kind: Duration::from_secs(30),
            status_min: Duration::from_secs(10),
            status_blocks_min: Duration::from_secs(60),
            observe: Duration::from_secs(5),
            lease: Duration::from_secs(15),
            discovery_retry: Duration::from_secs(3),
            watch: Duration::from_secs(60),
            answer: Duration::from_secs(20),
            resync: Duration::from_secs(10),
        }
    }
}

/// How much is known of what the API server holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Both kinds were listed completely once, and the registry was told.
    pub complete: bool,
    /// Both watches are current: what changes is heard.
    pub current: bool,
    /// Why not, for people.
    pub trouble: Option<String>,
}

/// What the controller works with.
pub struct Parts {
    /// The API server.
    pub client: kube::Client,
    /// Options.
    pub config: ControllerConfig,
    /// Workers go there.
    pub registry: Arc<Registry>,
    /// Who this replica is, and who the others are.
    pub replica: Replica,
    /// Shows `kubernetes` beside the reasons of `/ready`.
    pub readiness: Readiness,
    /// Counters.
    pub metrics: Arc<ControllerMetrics>,
    /// How much is known; others wait for it.
    pub view: channel::Sender<View>,
}

/// Follows the API server and keeps the registry as it says. Ends only by being dropped.
pub async fn run(parts: Parts) {
    drive::Drive::new(parts).run().await;
}
