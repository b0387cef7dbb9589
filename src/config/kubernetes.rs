//! Options about Kubernetes.

use clap::{ArgAction, Args, ValueEnum};

use super::Error;

/// Options under the heading `Kubernetes`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct KubernetesArgs {
    /// Watch Pods and IndexerWorkers and register workers by itself: `on` or `off`
    #[arg(
        long,
        env = "KVINDEXER_KUBERNETES",
        value_name = "on|off",
        num_args = 0..=1,
        default_value = "off",
        default_missing_value = "on"
    )]
    kubernetes: String,
    /// Namespaces to watch, separated by commas; empty: all of them
    #[arg(
        long,
        env = "KVINDEXER_WATCH_NAMESPACES",
        value_name = "LIST",
        default_value = "",
        hide_default_value = true
    )]
    watch_namespaces: String,
    /// Only workers whose IndexerWorker, or annotated Pod, has these labels, like `fleet=a,tier in (gold,silver)`
    #[arg(
        long,
        env = "KVINDEXER_WORKER_SELECTOR",
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    worker_selector: String,
    /// Instance ids of Pods: `<namespace>/<name>`, or a number below 2^53 made from that
    #[arg(long, env = "KVINDEXER_POD_INSTANCE_ID", value_enum, default_value_t = InstanceIds::Name)]
    pod_instance_id: InstanceIds,
    /// The tenant is the namespace, whatever objects and annotations say
    #[arg(
        long,
        env = "KVINDEXER_TENANT_FROM_NAMESPACE",
        value_name = "on|off",
        num_args = 0..=1,
        default_value = "off",
        default_missing_value = "on"
    )]
    tenant_from_namespace: String,
    /// IndexerWorkers may name fixed endpoints: `on` or `off`
    #[arg(
        long,
        env = "KVINDEXER_ALLOW_ENDPOINTS",
        value_name = "on|off",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_value = "on",
        default_missing_value = "on"
    )]
    allow_endpoints: String,
    /// Name of the Pod that this runs in: who wrote a status, and the StatefulSet is called like it without its number
    #[arg(long, env = "KVINDEXER_POD_NAME", value_name = "NAME", default_value = "", hide_default_value = true)]
    pod_name: String,
    /// Namespace of that Pod
    #[arg(long, env = "KVINDEXER_POD_NAMESPACE", value_name = "NAME", default_value = "", hide_default_value = true)]
    pod_namespace: String,
}

/// How instances of Pods are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InstanceIds {
    /// `<namespace>/<pod name>`.
    Name,
    /// A stable number below 2^53.
    Hash,
}

/// What is said about Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// Follow the API server.
    pub enabled: bool,
    /// Namespaces; empty: all.
    pub namespaces: Vec<String>,
    /// Selector of workers, as given.
    pub worker_selector: String,
    /// How instances of Pods are named.
    pub pod_instance_id: InstanceIds,
    /// Tenants are namespaces.
    pub tenant_from_namespace: bool,
    /// Objects may name fixed endpoints.
    pub allow_endpoints: bool,
    /// Our own Pod.
    pub pod_name: Option<String>,
    /// Its namespace.
    pub pod_namespace: Option<String>,
}

impl TryFrom<KubernetesArgs> for Kubernetes {
    type Error = Error;

    fn try_from(args: KubernetesArgs) -> Result<Self, Error> {
        let switch = |text: &str, name, default| {
            super::value::switch(text, default).ok_or_else(|| Error::Switch { name, value: text.to_owned() })
        };
        let named = |text: String| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let namespaces = args.watch_namespaces.split(',').filter_map(|name| named(name.to_owned()));
        Ok(Self {
            enabled: switch(&args.kubernetes, "--kubernetes", false)?,
            namespaces: namespaces.collect(),
            worker_selector: args.worker_selector,
            pod_instance_id: args.pod_instance_id,
            tenant_from_namespace: switch(&args.tenant_from_namespace, "--tenant-from-namespace", false)?,
            allow_endpoints: switch(&args.allow_endpoints, "--allow-endpoints", true)?,
            pod_name: named(args.pod_name),
            pod_namespace: named(args.pod_namespace),
        })
    }
}
