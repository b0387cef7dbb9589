//! Counters of the controller. Labels are fixed words.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts};

use crate::metrics::Metrics;

/// Counters and gauges of the controller; made once per process that follows Kubernetes.
pub struct ControllerMetrics {
    /// Failures of lists and watches, by `kind` (`pods`, `indexerworkers`) and `reason` (`forbidden`, `not_found`,
    /// `gone`, `unreachable`, `unreadable`, `other`).
    pub watch_errors: IntCounterVec,
    /// Complete lists, by `kind`.
    pub lists: IntCounterVec,
    /// 1 while changes are heard, by `kind`.
    pub watch_current: IntGaugeVec,
    /// What the last complete view wants registered.
    pub workers: IntGauge,
    /// Objects and Pods that cannot be registered as they say, by `reason`.
    pub faults: IntGaugeVec,
    /// Changes made in the registry, by `change` (`added`, `removed`, `replaced`, `failed`).
    pub changes: IntCounterVec,
    /// Statuses written, by `outcome` (`ok`, `conflict`, `forbidden`, `not_found`, `failed`).
    pub status_writes: IntCounterVec,
    /// Events written, by `outcome` (`ok`, `failed`; `dropped`: there was no room for them).
    pub events: IntCounterVec,
    /// 1 while this replica holds the Lease.
    pub leader: IntGauge,
    /// Engines asked to describe themselves, by `outcome` (`ok`, `failed`).
    pub descriptions: IntCounterVec,
}

impl ControllerMetrics {
    /// Registers all of them.
    ///
    /// # Panics
    /// When called twice for one `metrics`.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        let registry = &metrics.registry;
        let counters = |name, help, labels: &[&str]| {
            let made = IntCounterVec::new(Opts::new(name, help), labels).expect("the name and labels are valid");
            registry.register(Box::new(made.clone())).expect("each family is registered once");
            made
        };
        let gauges = |name, help, labels: &[&str]| {
            let made = IntGaugeVec::new(Opts::new(name, help), labels).expect("the name and labels are valid");
            registry.register(Box::new(made.clone())).expect("each family is registered once");
            made
        };
        let gauge = |name, help| {
            let made = IntGauge::new(name, help).expect("the name is valid");
            registry.register(Box::new(made.clone())).expect("each family is registered once");
            made
        };
        Self {
            watch_errors: counters(
                "kvindexer_kubernetes_watch_errors_total",
                "Failed lists and watches of the API server.",
                &["kind", "reason"],
            ),
            lists: counters("kvindexer_kubernetes_lists_total", "Complete lists of the API server.", &["kind"]),
            watch_current: gauges(
                "kvindexer_kubernetes_watch_current",
                "1 while changes at the API server are heard.",
                &["kind"],
            ),
            workers: gauge("kvindexer_kubernetes_workers", "Ranks that Kubernetes wants registered."),
            faults: gauges(
                "kvindexer_kubernetes_faults",
                "Objects and Pods that cannot be registered as they say.",
                &["reason"],
            ),
            changes: counters(
                "kvindexer_kubernetes_changes_total",
                "Registrations changed because Kubernetes said so.",
                &["change"],
            ),
            status_writes: counters("kvindexer_kubernetes_status_writes_total", "Statuses written.", &["outcome"]),
            events: counters("kvindexer_kubernetes_events_total", "Kubernetes Events written.", &["outcome"]),
            leader: gauge("kvindexer_kubernetes_leader", "1 while this replica writes statuses."),
            descriptions: counters(
                "kvindexer_kubernetes_descriptions_total",
                "Engines asked to describe themselves.",
                &["outcome"],
            ),
        }
    }
}
