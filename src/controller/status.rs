//! Writes statuses and Events, while this replica holds the Lease.

use std::sync::Arc;

use tokio::sync::watch as channel;

use crate::controller::ControllerConfig;
use crate::controller::drive::Findings;
use crate::metrics::ControllerMetrics;
use crate::recovery::Replica;
use crate::registry::Registry;

/// What the writer of statuses works with.
pub(super) struct StatusParts {
    pub(super) client: kube::Client,
    pub(super) config: ControllerConfig,
    pub(super) registry: Arc<Registry>,
    pub(super) replica: Replica,
    pub(super) metrics: Arc<ControllerMetrics>,
    pub(super) findings: channel::Receiver<Findings>,
}

/// Ends only by being dropped.
pub(super) async fn run(parts: StatusParts) {
    let StatusParts { client: _client, config: _, registry: _, replica: _, metrics: _, findings: _findings } = parts;
    std::future::pending().await
}
