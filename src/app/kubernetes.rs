//! Following Kubernetes, if that is wanted: the client, what the controller is told, and what a start waits for.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use tokio::sync::watch;

use crate::config::{InstanceIds, Kubernetes};
use crate::controller::{self, ControllerConfig, Parts, PodInstanceId, Times, View};
use crate::metrics::{ControllerMetrics, Metrics};
use crate::readiness::{Hold, Readiness};
use crate::recovery::Replica;
use crate::registry::Registry;

/// Name of the Lease, and of the namespace, where nobody says in which Pod this runs.
const NAMELESS: (&str, &str) = ("kvindexer", "default");

/// Kubernetes is followed.
pub(super) struct Following {
    client: kube::Client,
    config: ControllerConfig,
}

/// The first complete view of what the API server holds.
pub(super) struct FirstView {
    view: watch::Receiver<View>,
    hold: Hold,
}

/// None if it is not wanted.
pub(super) async fn prepare(options: Kubernetes, replica: &Replica) -> anyhow::Result<Option<Following>> {
    let Kubernetes {
        enabled,
        namespaces,
        worker_selector,
        pod_instance_id,
        tenant_from_namespace,
        allow_endpoints,
        pod_name,
        pod_namespace,
    } = options;
    if !enabled {
        return Ok(None);
    }
    let worker_selector =
        worker_selector.parse().map_err(|error| anyhow!("--worker-selector `{worker_selector}`: {error}"))?;
    // With two providers in the program none is the default; a second call changes nothing.
    let _already_there = rustls::crypto::ring::default_provider().install_default();
    let mut access = kube::Config::infer().await.context("--kubernetes: neither in a cluster nor a kubeconfig")?;
    access.connect_timeout = Some(std::time::Duration::from_secs(5));
    // Who asks waits by itself between attempts; the client's own attempts would come on top of each.
    access.default_retry = false;
    let default_namespace = access.default_namespace.clone();
    let client = kube::Client::try_from(access).context("--kubernetes: failed to make a client")?;
    let config = ControllerConfig {
        namespaces,
        worker_selector,
        pod_instance_id: match pod_instance_id {
            InstanceIds::Name => PodInstanceId::Name,
            InstanceIds::Hash => PodInstanceId::Hash,
        },
        tenant_from_namespace,
        allow_endpoints,
        lease_namespace: pod_namespace.unwrap_or(default_namespace),
        lease_name: pod_name.as_deref().map_or(NAMELESS.0, stateful_set).to_owned(),
        identity: pod_name.clone().unwrap_or_else(|| replica.id().to_owned()),
        times: Times::default(),
    };
    Ok(Some(Following { client, config }))
}

/// Name of the StatefulSet of a Pod: without the number at the end, if it has one.
fn stateful_set(pod: &str) -> &str {
    match pod.rsplit_once('-') {
        Some((set, number)) if !set.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => set,
        _ => pod,
    }
}

impl Following {
    /// The controller's task, and what a start waits for.
    pub(super) fn begin(
        self,
        registry: &Arc<Registry>,
        replica: &Replica,
        readiness: &Readiness,
        metrics: &Metrics,
    ) -> (impl Future<Output = ()> + Send + use<>, FirstView) {
        let (view, heard) = watch::channel(View::default());
        let parts = Parts {
            client: self.client,
            config: self.config,
            registry: Arc::clone(registry),
            replica: replica.clone(),
            readiness: readiness.clone(),
            metrics: Arc::new(ControllerMetrics::new(metrics)),
            view,
        };
        let hold = readiness.hold("kubernetes: pods and indexerworkers are not listed yet");
        (controller::run(parts), FirstView { view: heard, hold })
    }
}

impl FirstView {
    /// The same, for others to wait for.
    pub(super) fn watcher(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// Holds readiness back until the view is complete, and says why it is not.
    pub(super) async fn hold_until_complete(mut self) {
        loop {
            let seen = self.view.borrow_and_update().clone();
            if seen.complete {
                return;
            }
            if let Some(trouble) = seen.trouble {
                self.hold.set_reason(&format!("kubernetes: {trouble}"));
            }
            if self.view.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stateful_set_is_called_like_its_pods_without_their_number() {
        for (pod, want) in
            [("kvindexer-0", "kvindexer"), ("a-b-12", "a-b"), ("kv", "kv"), ("a-b1c", "a-b1c"), ("-1", "-1")]
        {
            assert_eq!(stateful_set(pod), want, "{pod}");
        }
    }
}
