//! What `deploy/` and `overlays/` say, checked without a cluster: against Kubernetes' own types, and against the program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kvindexer::cli::{Cli, Command};
use kvindexer::config::Config;
use kvindexer::controller::IndexerWorker;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// One document of a manifest.
struct Document {
    /// File and number, for people.
    place: String,
    text: String,
    value: Value,
}

impl Document {
    fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Reads it as `T`, and fails where `T` does not know a field or a value.
    fn read<T: DeserializeOwned + Serialize>(&self) -> T {
        let typed: T = serde_saphyr::from_str(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.place));
        let back = serde_json::to_value(&typed).unwrap();
        let mut lost = vec![];
        lost_fields("", &self.value, &back, &mut lost);
        assert!(lost.is_empty(), "{}: not understood: {lost:?}", self.place);
        typed
    }

    fn check_kind(&self) {
        match self.kind() {
            "Namespace" => drop(self.read::<Namespace>()),
            "CustomResourceDefinition" => drop(self.read::<CustomResourceDefinition>()),
            "ServiceAccount" => drop(self.read::<ServiceAccount>()),
            "ClusterRole" => drop(self.read::<ClusterRole>()),
            "ClusterRoleBinding" => drop(self.read::<ClusterRoleBinding>()),
            "Role" => drop(self.read::<Role>()),
            "RoleBinding" => drop(self.read::<RoleBinding>()),
            "ConfigMap" => drop(self.read::<ConfigMap>()),
            "Service" => drop(self.read::<Service>()),
            "StatefulSet" => drop(self.read::<StatefulSet>()),
            "PodDisruptionBudget" => drop(self.read::<PodDisruptionBudget>()),
            "NetworkPolicy" => drop(self.read::<NetworkPolicy>()),
            "Pod" => drop(self.read::<Pod>()),
            "IndexerWorker" => drop(self.read::<IndexerWorker>()),
            other => panic!("{}: the kind `{other}` is not expected here", self.place),
        }
    }
}

/// Paths of values in `given` that `kept` lacks or holds differently.
fn lost_fields(path: &str, given: &Value, kept: &Value, lost: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (name, value) in given {
                lost_fields(&format!("{path}/{name}"), value, kept.get(name).unwrap_or(&Value::Null), lost);
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (number, (given, kept)) in given.iter().zip(kept).enumerate() {
                lost_fields(&format!("{path}/{number}"), given, kept, lost);
            }
        }
        // The types leave out what is empty.
        (Value::Array(given), Value::Null) if given.is_empty() => {}
        // Bounds of a schema are floating point numbers in the types.
        (Value::Number(given), Value::Number(kept)) if given.as_f64() == kept.as_f64() => {}
        (given, kept) if given == kept => {}
        _ => lost.push(path.to_owned()),
    }
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Files that `kubectl apply -f` takes from a folder, in its order.
fn manifests(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(project(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| {
            path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
        })
        .collect();
    files.sort();
    assert!(files.len() > 3, "{folder} is nearly empty");
    files
}

fn documents(folder: &str) -> Vec<Document> {
    let mut documents = vec![];
    for file in manifests(folder) {
        let text = fs::read_to_string(&file).unwrap();
        for (number, text) in text.split("\n---\n").enumerate() {
            let place = format!("{} #{}", file.file_name().unwrap().display(), number + 1);
            let value = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{place}: {error}"));
            documents.push(Document { place, text: text.to_owned(), value });
        }
    }
    documents
}

/// The only document of a kind and name in `deploy/`.
fn the<T: DeserializeOwned + Serialize>(kind: &str, name: &str) -> T {
    let all = documents("deploy");
    let mut found = all.iter().filter(|document| document.kind() == kind && document.name() == name);
    let document = found.next().unwrap_or_else(|| panic!("deploy/ has no {kind} {name}"));
    assert!(found.next().is_none(), "deploy/ has {kind} {name} twice");
    document.read()
}

fn labels() -> BTreeMap<String, String> {
    [("name", "kvindexer"), ("component", "indexer"), ("part-of", "kvindexer")]
        .map(|(name, value)| (format!("app.kubernetes.io/{name}"), value.to_owned()))
        .into()
}

/// The labels that select the Pods.
fn selecting() -> BTreeMap<String, String> {
    labels().into_iter().filter(|(name, _)| !name.ends_with("part-of")).collect()
}

#[test]
fn every_document_of_deploy_is_one_that_kubernetes_understands_wholly() {
    let documents = documents("deploy");
    documents.iter().for_each(Document::check_kind);
    let mut kinds: Vec<_> = documents.iter().map(Document::kind).collect();
    assert_eq!(kinds.first(), Some(&"Namespace"), "everything else lies in it");
    kinds.sort_unstable();
    let want = "ClusterRole ClusterRoleBinding ConfigMap CustomResourceDefinition Namespace NetworkPolicy \
        PodDisruptionBudget Role RoleBinding Service Service ServiceAccount StatefulSet";
    assert_eq!(kinds.join(" "), want);
}

#[test]
fn a_field_that_kubernetes_does_not_know_is_found() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {clusterIp: None, ports: []}";
    let document = Document { place: "x".into(), text: text.into(), value: serde_saphyr::from_str(text).unwrap() };
    let back = serde_json::to_value(serde_saphyr::from_str::<Service>(text).unwrap()).unwrap();
    let mut lost = vec![];
    lost_fields("", &document.value, &back, &mut lost);
    assert_eq!(lost, ["/spec/clusterIp"]);
}

#[test]
fn every_object_has_the_same_labels_and_lives_in_the_namespace() {
    let cluster_wide = ["Namespace", "ClusterRole", "ClusterRoleBinding"];
    for document in documents("deploy") {
        // The CRD is generated, and belongs to the whole cluster.
        if document.kind() == "CustomResourceDefinition" {
            continue;
        }
        let metadata = &document.value["metadata"];
        for (name, value) in labels() {
            assert_eq!(metadata["labels"][&name], json!(value), "{} {name}", document.place);
        }
        let namespace = (!cluster_wide.contains(&document.kind())).then_some("kvindexer");
        assert_eq!(metadata["namespace"].as_str(), namespace, "{}", document.place);
    }
    let namespace: Namespace = the("Namespace", "kvindexer");
    let labels = namespace.metadata.labels.unwrap();
    for mode in ["enforce", "audit", "warn"] {
        assert_eq!(labels[&format!("pod-security.kubernetes.io/{mode}")], "restricted");
    }
}

#[test]
fn the_replicas_run_this_version_at_the_ports_and_paths_of_the_program() {
    let set: StatefulSet = the("StatefulSet", "kvindexer");
    let spec = set.spec.unwrap();
    let pod = spec.template.spec.unwrap();
    let container = &pod.containers[0];
    assert_eq!(container.image.as_deref(), Some(concat!("kvindexer:", env!("CARGO_PKG_VERSION"))));
    assert_eq!(container.image_pull_policy.as_deref(), Some("IfNotPresent"));
    let Command::Serve(defaults) = Cli::from_args(["kvindexer".into()]).into_command() else { panic!("not serve") };
    let ports = container.ports.as_ref().unwrap();
    assert_eq!((ports[0].name.as_deref(), ports[0].container_port), (Some("http"), i32::from(defaults.port)));
    let probes = [
        (&container.startup_probe, "/health"),
        (&container.liveness_probe, "/health"),
        (&container.readiness_probe, "/ready"),
    ];
    for (probe, path) in probes {
        let get = probe.as_ref().unwrap().http_get.as_ref().unwrap();
        assert_eq!((get.path.as_deref(), json!(get.port)), (Some(path), json!("http")));
    }
    let overlay = fs::read_to_string(project("overlays/image/kustomization.yaml")).unwrap();
    assert!(overlay.contains(concat!("newTag: ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn the_replicas_need_no_privilege_and_no_limit_that_throttles() {
    let set: StatefulSet = the("StatefulSet", "kvindexer");
    let spec = set.spec.unwrap();
    assert_eq!((spec.replicas, spec.pod_management_policy.as_deref()), (Some(3), Some("Parallel")));
    assert_eq!(spec.service_name.as_deref(), Some("kvindexer-peers"));
    assert_eq!(spec.selector.match_labels, Some(selecting()));
    assert_eq!(spec.template.metadata.unwrap().labels, Some(labels()));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.termination_grace_period_seconds, Some(30));
    let context = pod.security_context.unwrap();
    assert_eq!((context.run_as_non_root, context.run_as_user), (Some(true), Some(65532)));
    assert_eq!(context.seccomp_profile.unwrap().type_, "RuntimeDefault");
    let spread = pod.topology_spread_constraints.unwrap();
    assert!(spread.iter().all(|rule| rule.when_unsatisfiable == "ScheduleAnyway"));
    assert_eq!((pod.containers.len(), pod.init_containers), (1, None));
    let container = &pod.containers[0];
    let context = container.security_context.clone().unwrap();
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    assert_eq!(context.capabilities.unwrap().drop, Some(vec!["ALL".to_owned()]));
    let resources = container.resources.clone().unwrap();
    let (requests, limits) = (resources.requests.unwrap(), resources.limits.unwrap());
    assert_eq!(requests["memory"], limits["memory"]);
    assert!(requests.contains_key("cpu") && !limits.contains_key("cpu"));
}

/// F38: replicas become ready by asking each other, so that they must find each other before.
#[test]
fn f38_replicas_that_are_not_ready_are_found_by_their_peers_and_not_by_routers() {
    let peers: Service = the("Service", "kvindexer-peers");
    let query: Service = the("Service", "kvindexer");
    let (peers, query) = (peers.spec.unwrap(), query.spec.unwrap());
    assert_eq!((peers.cluster_ip.as_deref(), peers.publish_not_ready_addresses), (Some("None"), Some(true)));
    assert_eq!((query.cluster_ip.as_deref(), query.publish_not_ready_addresses), (None, None));
    for service in [&peers, &query] {
        assert_eq!(service.ip_family_policy.as_deref(), Some("PreferDualStack"));
        assert_eq!(service.selector, Some(selecting()));
        let ports = service.ports.as_ref().unwrap();
        assert_eq!((ports.len(), ports[0].port, json!(ports[0].target_port)), (1, 8090, json!("http")));
    }
    let budget: PodDisruptionBudget = the("PodDisruptionBudget", "kvindexer");
    let budget = budget.spec.unwrap();
    assert_eq!(json!(budget.max_unavailable), json!(1));
    assert_eq!(budget.unhealthy_pod_eviction_policy.as_deref(), Some("AlwaysAllow"));
    assert_eq!(budget.selector.unwrap().match_labels, Some(selecting()));
    let policy: NetworkPolicy = the("NetworkPolicy", "kvindexer");
    let policy = policy.spec.unwrap();
    assert_eq!(json!(policy.pod_selector), json!({"matchLabels": selecting()}));
    assert_eq!(policy.policy_types, Some(vec!["Ingress".to_owned()]));
    assert_eq!(json!(policy.ingress), json!([{"ports": [{"protocol": "TCP", "port": 8090}]}]));
}

#[test]
fn every_option_of_the_configuration_exists_and_takes_its_value() {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let option = |variable: &str| {
        let found = serve.get_arguments().find(|option| option.get_env().is_some_and(|name| name == variable));
        let found = found.unwrap_or_else(|| panic!("`kvindexer serve` has no option with the variable {variable}"));
        found.get_long().expect("an option has a long name").to_owned()
    };
    let map: ConfigMap = the("ConfigMap", "kvindexer");
    let data = map.data.unwrap();
    let args = data.iter().map(|(name, value)| OsString::from(format!("--{}={value}", option(name))));
    let line = [OsString::from("kvindexer"), OsString::from("serve")].into_iter().chain(args);
    let Command::Serve(args) = Cli::from_args(line).into_command() else { panic!("not serve") };
    let config = Config::try_from(*args).unwrap();
    assert!(config.kubernetes.enabled && config.host.is_unspecified() && config.host.is_ipv6());
    assert_eq!((config.port, config.limits.drain.as_secs()), (8090, 3));
    assert!(config.replicas.forward_registrations && config.replicas.disk.is_none());
    assert_eq!(config.replicas.peer_service.as_deref(), Some("kvindexer-peers:8090"));

    let set: StatefulSet = the("StatefulSet", "kvindexer");
    let container = set.spec.unwrap().template.spec.unwrap().containers.remove(0);
    for variable in container.env.unwrap() {
        option(&variable.name);
        assert!(variable.value_from.is_some_and(|source| source.field_ref.is_some()), "{}", variable.name);
    }
}

/// One line per group, resource, names and verb.
fn rights(rules: Vec<k8s_openapi::api::rbac::v1::PolicyRule>) -> Vec<String> {
    let mut rights = vec![];
    for rule in rules {
        assert_eq!(rule.non_resource_urls, None);
        let names = rule.resource_names.unwrap_or_default().join(",");
        for group in rule.api_groups.unwrap() {
            for resource in rule.resources.as_ref().unwrap() {
                for verb in &rule.verbs {
                    rights.push(format!("{group} {resource} {names} {verb}"));
                }
            }
        }
    }
    rights.sort();
    rights
}

#[test]
fn rights_are_these_and_no_more_and_each_rule_names_its_function() {
    let everywhere: ClusterRole = the("ClusterRole", "kvindexer");
    let want = [
        " pods  list",
        " pods  watch",
        "events.k8s.io events  create",
        "events.k8s.io events  patch",
        "kvindexer.io indexerworkers  list",
        "kvindexer.io indexerworkers  watch",
        "kvindexer.io indexerworkers/status  patch",
    ];
    assert_eq!(rights(everywhere.rules.unwrap()), want);
    let own: Role = the("Role", "kvindexer");
    let want = [
        "coordination.k8s.io leases  create",
        "coordination.k8s.io leases kvindexer get",
        "coordination.k8s.io leases kvindexer update",
    ];
    assert_eq!(rights(own.rules.unwrap()), want);

    let text = fs::read_to_string(project("deploy/10-rbac.yaml")).unwrap();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("- apiGroups")) {
        let room = lines[number - 1].strip_prefix("# controller::").and_then(|rest| rest.split(':').next());
        let room = room.unwrap_or_else(|| panic!("{line}: no comment names its function"));
        let source = project("src/controller");
        assert!(source.join(format!("{room}.rs")).exists() || source.join(room).is_dir(), "controller::{room}");
    }
}

#[test]
fn overlays_name_files_that_exist_and_the_base_names_all_of_deploy() {
    let read = |path: &Path| -> Value { serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap() };
    let base = read(&project("deploy/Kustomization"));
    let listed: Vec<_> = base["resources"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let names: Vec<_> =
        manifests("deploy").iter().map(|file| file.file_name().unwrap().display().to_string()).collect();
    assert_eq!(listed, names);
    for folder in ["image", "single", "fleets", "fleets/shared", "fleets/a", "fleets/b"] {
        let folder = project("overlays").join(folder);
        let overlay = read(&folder.join("kustomization.yaml"));
        for resource in overlay["resources"].as_array().unwrap() {
            let path = folder.join(resource.as_str().unwrap());
            let is_base = path.join("Kustomization").exists() || path.join("kustomization.yaml").exists();
            assert!(is_base, "{}: {resource}", folder.display());
        }
    }
    assert!(!project("deploy/kustomization.yaml").exists(), "`kubectl apply -f deploy/` would fail on it");
}

#[test]
fn examples_are_understood_wholly() {
    let documents = documents("deploy/examples");
    documents.iter().for_each(Document::check_kind);
    let workers = documents.iter().filter(|document| document.kind() == "IndexerWorker").count();
    assert!(workers >= 5, "{workers} IndexerWorkers");
    let pod = documents.iter().find(|document| document.kind() == "Pod").unwrap();
    assert_eq!(pod.value["metadata"]["labels"]["kvindexer.io/enabled"], json!("true"));
    let known = [
        "model",
        "tenant",
        "block-size",
        "event-port",
        "replay-port",
        "dp-size",
        "dp-start-rank",
        "instance-id",
        "duplicate-policy",
        "container-name",
    ];
    for name in pod.value["metadata"]["annotations"].as_object().unwrap().keys() {
        let short = name.strip_prefix("kvindexer.io/").unwrap();
        assert!(known.contains(&short), "{name}");
    }
}
