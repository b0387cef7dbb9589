//! Writes statuses and Events, while this replica holds the Lease and serves.
//!
//! A status is written when it changed (`conditions::change`), not more often than `Times` allows, with one field manager
//! for all replicas: what an earlier holder wrote is replaced, never added to. What an object says is read once, when the
//! Lease is taken. A write that fails is tried again with longer waits; it holds no other back.

mod happened;
mod pace;
mod writer;

use std::sync::Arc;

use kube::api::Api;
use tokio::sync::watch;

use crate::controller::ControllerConfig;
use crate::controller::drive::Findings;
use crate::controller::lease::Leadership;
use crate::metrics::ControllerMetrics;
use crate::recovery::Replica;
use crate::registry::Registry;
use writer::Writer;

/// What the writer works with.
#[derive(Clone)]
pub(super) struct StatusParts {
    /// The API server.
    pub(super) client: kube::Client,
    /// Names and times.
    pub(super) config: ControllerConfig,
    /// What is observed here.
    pub(super) registry: Arc<Registry>,
    /// Who the others are.
    pub(super) replica: Replica,
    /// Counters.
    pub(super) metrics: Arc<ControllerMetrics>,
    /// What is to be told. Nothing is done before the first findings.
    pub(super) findings: watch::Receiver<Findings>,
}

/// Ends only by being dropped.
pub(super) async fn run(mut parts: StatusParts) {
    // Who has seen nothing must not speak for all.
    if parts.findings.changed().await.is_err() {
        return std::future::pending().await;
    }
    let config = &parts.config;
    let leases = Api::namespaced(parts.client.clone(), &config.lease_namespace);
    let mut leadership = Leadership::new(leases, &config.lease_name, &config.identity, config.times.lease);
    loop {
        serving(&parts).await;
        leadership.acquire().await;
        tracing::info!(lease = config.lease_name, identity = config.identity, "this replica writes statuses");
        parts.metrics.leader.set(1);
        let writer = Writer::new(parts.clone());
        tokio::select! {
            biased;
            () = leadership.keep() => {}
            () = writer.run() => {}
        }
        parts.metrics.leader.set(0);
        tracing::warn!(lease = config.lease_name, identity = config.identity, "this replica no longer writes statuses");
    }
}

/// Ends when this replica serves: while it takes over a state, what it observes is no news.
async fn serving(parts: &StatusParts) {
    while !parts.replica.serves() {
        tokio::time::sleep(parts.config.times.observe / 10).await;
    }
}
