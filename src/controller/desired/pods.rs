//! From a Pod and a template to ranks, ports and addresses: which container, which offset, which port.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use xxhash_rust::xxh3::xxh3_64;

use crate::controller::crd::StartRankFrom;
use crate::controller::desired::template::{PodRule, Port, RANK_MAX, Template};
use crate::controller::desired::{Described, Description, Fault, Probe, Reason};
use crate::controller::facts::{ContainerFacts, DEFAULT_CONTAINER, PodFacts};
use crate::controller::{ControllerConfig, PodInstanceId};
use crate::ids::{Incarnation, InstanceId, Owner};
use crate::registry::{DesiredWorker, Endpoint, WorkerSpec};

/// The place of a Pod in its LeaderWorkerSet's group.
const LEADER_WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// The place of a Pod in its StatefulSet.
const STATEFUL_SET_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Numbers below this are exact in every client's arithmetic.
const HASHED_ID_BITS: u32 = 53;

/// Most ranks of one Pod that an engine is believed to have; as many as an object may give it.
const DESCRIBED_RANKS_MAX: usize = 1024;

/// What a Pod gives.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// In order of rank; none while it has no address.
    pub(super) workers: Vec<DesiredWorker>,
    pub(super) probe: Option<Probe>,
    /// What leaves it registered.
    pub(super) warnings: Vec<Fault>,
}

/// Ports of rank 0, as far as they are known.
struct Bases {
    /// None: by a name that nobody declares.
    events: Option<u16>,
    /// None: not said, or by such a name.
    replay: Option<u16>,
}

/// One rank.
struct Rank {
    number: u32,
    events: u16,
    replay: Option<u16>,
    topic: Option<String>,
}

/// Resolves a Pod, or says why it cannot be registered.
pub(super) fn resolve(
    pod: &PodFacts,
    (template, rule): (&Template, &PodRule),
    described: &Described,
    config: &ControllerConfig,
) -> Result<Resolved, Fault> {
    let container = container(pod, rule)?;
    let bases = Bases {
        events: number(pod, container, &rule.events),
        replay: rule.replay.as_ref().and_then(|port| number(pod, container, port)),
    };
    let mut resolved = Resolved::default();
    let question = question(pod, container, rule, &mut resolved.warnings);
    let description = question.as_ref().and_then(|probe| description(described, probe));
    // What an engine says of itself must not cost a registration that stands without it.
    let told = description.and_then(|description| ranks(pod, rule, &bases, Some(description)).ok());
    let ranks = match told {
        Some(ranks) => ranks,
        None => ranks(pod, rule, &bases, None)?,
    };
    if let Some(port @ Port::Name(_)) = &rule.replay
        && ranks.iter().any(|rank| rank.replay.is_none())
    {
        resolved.warnings.push(not_found("replay", port));
    }
    let said = description.and_then(|description| description.block_size);
    if let Some(said) = said.filter(|said| *said != template.block_size.tokens()) {
        let message = format!("the engine says {said} tokens per block, registered are {}", template.block_size);
        resolved.warnings.push(Reason::BlockSizeMismatch.because(message));
    }
    let instance = instance(pod, rule, config)?;
    if let Some(ip) = pod.ip {
        let worker = |rank| worker(rank, template, (ip, &instance), incarnation(pod, container));
        let desired = |spec| DesiredWorker { spec, container_down: !container.running };
        resolved.workers = ranks.into_iter().map(worker).map(desired).collect();
    }
    resolved.probe = question;
    Ok(resolved)
}

/// Whose restarts matter: the one that was named, the owner of the events port, the one that tools take, the first.
fn container<'a>(pod: &'a PodFacts, rule: &PodRule) -> Result<&'a ContainerFacts, Fault> {
    let named = |name: &str| pod.containers.iter().find(|container| container.name == name);
    if let Some(name) = &rule.container {
        let missing = || Reason::ContainerNotFound.because(format!("the Pod has no container `{name}`"));
        return named(name).ok_or_else(missing);
    }
    let declares = |container: &&ContainerFacts| container.ports.iter().any(|port| is_port(port, &rule.events));
    let regular = || pod.containers.iter().find(|container| !container.sidecar);
    let by_annotation = || pod.annotations.get(DEFAULT_CONTAINER).and_then(|name| named(name));
    let found = pod.containers.iter().find(declares).or_else(by_annotation).or_else(regular);
    found.ok_or_else(|| Reason::ContainerNotFound.because("the Pod has no regular container"))
}

fn is_port((name, number): &(Option<String>, u16), wanted: &Port) -> bool {
    match wanted {
        Port::Number(wanted) => number == wanted,
        Port::Name(wanted) => name.as_ref() == Some(wanted),
    }
}

/// Number of a port: names are looked up in the container first, then in the others, for they share an address.
fn number(pod: &PodFacts, container: &ContainerFacts, port: &Port) -> Option<u16> {
    if let Port::Number(number) = port {
        return Some(*number);
    }
    let all = std::iter::once(container).chain(&pod.containers);
    all.flat_map(|container| &container.ports).find(|declared| is_port(declared, port)).map(|(_, number)| *number)
}

fn not_found(what: &str, port: &Port) -> Fault {
    let name = match port {
        Port::Name(name) => name.clone(),
        Port::Number(number) => number.to_string(),
    };
    Reason::PortNotFound.because(format!("no container of the Pod declares the {what} port `{name}`"))
}

/// What the present or last life of the container is asked.
fn question(pod: &PodFacts, container: &ContainerFacts, rule: &PodRule, warnings: &mut Vec<Fault>) -> Option<Probe> {
    let http = rule.http.as_ref()?;
    let Some(port) = number(pod, container, http) else {
        warnings.push(not_found("http", http));
        return None;
    };
    Some(Probe {
        pod_uid: pod.uid.clone(),
        container_id: container.id.clone()?,
        authority: SocketAddr::new(pod.ip?, port).to_string(),
    })
}

/// What the engine says, else what it said in an earlier life of its container.
fn description<'a>(described: &'a Described, probe: &Probe) -> Option<&'a Description> {
    let earlier =
        || described.iter().find(|(said, _)| said.place() == probe.place()).map(|(_, description)| description);
    described.get(probe).or_else(earlier)
}

fn ranks(pod: &PodFacts, rule: &PodRule, bases: &Bases, description: Option<&Description>) -> Result<Vec<Rank>, Fault> {
    let numbers: Vec<u32> = match (rule.ranks, description) {
        (None, Some(said)) if said.ranks.len() > DESCRIBED_RANKS_MAX => {
            let message = format!("the engine says that it has {} ranks", said.ranks.len());
            return Err(Reason::RankUnknown.because(message));
        }
        (None, Some(said)) if !said.ranks.is_empty() => said.ranks.keys().copied().collect(),
        (None, _) => vec![0],
        (Some(ranks), _) => {
            let start = u64::from(ranks.start) + index(pod, ranks.start_from)? * u64::from(ranks.size);
            let beyond = |_| Reason::RankUnknown.because(format!("rank {start} is above {RANK_MAX}"));
            let start = u32::try_from(start).map_err(beyond)?;
            (start..start.saturating_add(ranks.size)).collect()
        }
    };
    if let Some(beyond) = numbers.iter().find(|number| **number > RANK_MAX) {
        return Err(Reason::RankUnknown.because(format!("rank {beyond} is above {RANK_MAX}")));
    }
    let one = |rank: u32| {
        let said = description.and_then(|description| description.ranks.get(&rank));
        let events = match bases.events {
            Some(base) => port_of_rank("event", base, rank)?,
            None => said.and_then(|said| said.events_port).ok_or_else(|| not_found("event", &rule.events))?,
        };
        let replay = match bases.replay {
            Some(base) => Some(port_of_rank("replay", base, rank)?),
            None => said.and_then(|said| said.replay_port),
        };
        let topic = said.and_then(|said| said.topic.clone()).filter(|topic| !topic.is_empty());
        Ok(Rank { number: rank, events, replay, topic })
    };
    let ranks = numbers.into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
    check_overlap(&ranks)?;
    Ok(ranks)
}

/// The place of the Pod among its like, as far as it counts.
fn index(pod: &PodFacts, from: StartRankFrom) -> Result<u64, Fault> {
    let of_label = |label: &str| pod.labels.get(label).and_then(|value| value.parse::<u32>().ok());
    let of_name = || pod.key.name.rsplit_once('-').and_then(|(_, number)| number.parse::<u32>().ok());
    let (index, message) = match from {
        StartRankFrom::Fixed => (Some(0), String::new()),
        StartRankFrom::LeaderWorkerSetIndex => {
            (of_label(LEADER_WORKER_INDEX), format!("the Pod has no label {LEADER_WORKER_INDEX} with a number"))
        }
        StartRankFrom::StatefulSetIndex => (
            of_label(STATEFUL_SET_INDEX).or_else(of_name),
            format!("the Pod has no label {STATEFUL_SET_INDEX} with a number, and its name ends with none"),
        ),
    };
    index.map(u64::from).ok_or_else(|| Reason::RankUnknown.because(message))
}

fn port_of_rank(what: &str, base: u16, rank: u32) -> Result<u16, Fault> {
    let port = u64::from(base) + u64::from(rank);
    let beyond = |_| Reason::PortConflict.because(format!("the {what} port {port} of rank {rank} is above 65535"));
    u16::try_from(port).map_err(beyond)
}

fn check_overlap(ranks: &[Rank]) -> Result<(), Fault> {
    let events: BTreeSet<u16> = ranks.iter().map(|rank| rank.events).collect();
    match ranks.iter().filter_map(|rank| rank.replay).find(|port| events.contains(port)) {
        Some(port) => {
            let message =
                format!("port {port} would be an event port and a replay port: the ranges (base + rank) overlap");
            Err(Reason::PortConflict.because(message))
        }
        None => Ok(()),
    }
}

fn instance(pod: &PodFacts, rule: &PodRule, config: &ControllerConfig) -> Result<InstanceId, Fault> {
    if let Some(given) = &rule.instance {
        return Ok(given.clone());
    }
    let name = pod.key.to_string();
    match config.pod_instance_id {
        PodInstanceId::Name => InstanceId::parse(&name).map_err(|error| Reason::InvalidSpec.because(error.to_string())),
        PodInstanceId::Hash => Ok(InstanceId::Number(hashed(&name))),
    }
}

/// A stable number for a name.
pub(super) fn hashed(name: &str) -> u64 {
    xxh3_64(name.as_bytes()) & ((1 << HASHED_ID_BITS) - 1)
}

fn incarnation(pod: &PodFacts, container: &ContainerFacts) -> Option<Incarnation> {
    Some(Incarnation {
        pod_uid: pod.uid.clone(),
        container_id: container.id.clone()?,
        restart_count: container.restart_count,
    })
}

fn worker(
    rank: Rank,
    template: &Template,
    (ip, instance): (IpAddr, &InstanceId),
    incarnation: Option<Incarnation>,
) -> WorkerSpec {
    WorkerSpec {
        key: template.index.clone(),
        owner: Owner::new(instance.clone(), rank.number),
        block_size: template.block_size,
        endpoint: endpoint(ip, rank.events),
        replay_endpoint: rank.replay.map(|port| endpoint(ip, port)),
        topic: rank.topic,
        additional_salt: None,
        default_lora: None,
        owner_spec: template.owner_spec,
        incarnation,
    }
}

/// IPv6 addresses stand in brackets.
fn endpoint(ip: IpAddr, port: u16) -> Endpoint {
    Endpoint::parse(&format!("tcp://{}", SocketAddr::new(ip, port))).expect("an address and a port are an endpoint")
}
