//! What an object wants, once its spec is read: the checks of the CRD again, for an API server that did not make them.

use std::collections::BTreeSet;

use crate::controller::ControllerConfig;
use crate::controller::crd::{
    DataParallel, Discovery, DuplicatePolicy, FixedEndpoint, IndexerWorkerSpec, PortRef, Ports, StartRankFrom,
};
use crate::controller::desired::{Fault, InForce, Reason};
use crate::controller::facts::Selector;
use crate::ids::{BlockSize, DpRank, IndexKey, InstanceId, Owner, OwnerSpec, TenantId};
use crate::registry::Endpoint;

/// Longest name of a model, in characters.
const MODEL_CHARS_MAX: usize = 512;

/// Longest name of a tenant, and longest id of an instance, in characters.
const NAME_CHARS_MAX: usize = 253;

/// Most tokens per block.
const BLOCK_SIZE_MAX: u32 = 65_536;

/// Most ranks in one Pod.
const RANKS_MAX: u32 = 1024;

/// Largest rank.
pub(super) const RANK_MAX: u32 = 65_535;

/// Most fixed endpoints of one object.
const ENDPOINTS_MAX: usize = 256;

/// What a group of workers has in common.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template {
    pub(super) index: IndexKey,
    pub(super) block_size: BlockSize,
    pub(super) owner_spec: OwnerSpec,
    pub(super) workers: Workers,
}

/// Where they are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Workers {
    Pods(PodRule),
    Fixed(Vec<Fixed>),
}

/// How a Pod becomes workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodRule {
    pub(super) events: Port,
    pub(super) replay: Option<Port>,
    /// The engine is asked there to describe itself.
    pub(super) http: Option<Port>,
    /// None: nobody says so.
    pub(super) ranks: Option<Ranks>,
    pub(super) container: Option<String>,
    /// Given by hand, instead of one made from the Pod's name.
    pub(super) instance: Option<InstanceId>,
}

/// A port of rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Port {
    Number(u16),
    Name(String),
}

/// Ranks of one Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranks {
    /// 1 to 1024.
    pub(super) size: u32,
    pub(super) start: u32,
    pub(super) start_from: StartRankFrom,
}

/// A worker at a fixed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) owner: Owner,
    pub(super) endpoint: Endpoint,
    pub(super) replay_endpoint: Option<Endpoint>,
}

fn invalid(message: impl Into<String>) -> Fault {
    Reason::InvalidSpec.because(message)
}

/// Reads a spec whole, or says what is wrong with it first.
pub(super) fn read(spec: &IndexerWorkerSpec, namespace: &str, config: &ControllerConfig) -> Result<InForce, Fault> {
    let model = model(&spec.model_name).map_err(|error| invalid(format!("spec.modelName {error}")))?;
    let tenant = tenant(&spec.tenant_id).map_err(|error| invalid(format!("spec.tenantId {error}")))?;
    let block_size = u32::try_from(spec.block_size).ok().and_then(block_size);
    let block_size = block_size.ok_or_else(|| invalid("spec.blockSize must be from 1 to 65536"))?;
    let (workers, selector) = match (&spec.selector, &spec.endpoints) {
        (Some(selector), None) => {
            let selector = Selector::try_from(selector).map_err(|error| Reason::InvalidSelector.because(error))?;
            (Workers::Pods(pod_rule(spec)?), Some(selector))
        }
        (None, Some(endpoints)) => (Workers::Fixed(fixed(spec, endpoints, config)?), None),
        _ => return Err(invalid("exactly one of spec.selector and spec.endpoints must be set")),
    };
    let policy = policy(spec.duplicate_policy);
    let template = Template {
        index: IndexKey::new(model, if config.tenant_from_namespace { TenantId::from(namespace) } else { tenant }),
        block_size,
        owner_spec: OwnerSpec { policy, ..OwnerSpec::default() },
        workers,
    };
    Ok(InForce { template, selector })
}

/// Name of a model.
pub(super) fn model(text: &str) -> Result<&str, String> {
    named(text, MODEL_CHARS_MAX)
}

/// Name of a tenant.
pub(super) fn tenant(text: &str) -> Result<TenantId, String> {
    named(text, NAME_CHARS_MAX).map(TenantId::from)
}

/// Tokens per block.
pub(super) fn block_size(tokens: u32) -> Option<BlockSize> {
    BlockSize::new(tokens).filter(|size| size.tokens() <= BLOCK_SIZE_MAX)
}

/// Id of an instance that people chose: without a slash, so that no namespace can name a Pod of another.
pub(super) fn instance(text: &str) -> Result<InstanceId, String> {
    if named(text, NAME_CHARS_MAX)?.contains('/') {
        return Err("must not contain a slash: ids with a slash are <namespace>/<pod>".to_owned());
    }
    InstanceId::parse(text).map_err(|error| error.to_string())
}

/// A container's name; whether there is one is asked later.
pub(super) fn container(text: &str) -> Result<String, String> {
    named(text, 63).map(str::to_owned)
}

/// A port number or the name of a container port.
pub(super) fn port(port: &PortRef) -> Result<Port, String> {
    match port {
        PortRef::Number(number) => match u16::try_from(*number) {
            Ok(number) if number > 0 => Some(Port::Number(number)),
            _ => None,
        },
        PortRef::Name(name) => is_port_name(name).then(|| Port::Name(name.clone())),
    }
    .ok_or_else(|| "must be a port number from 1 to 65535 or a container port name".to_owned())
}

/// Ranks within their bounds.
pub(super) fn ranks(size: u32, start: u32, start_from: StartRankFrom) -> Result<Ranks, String> {
    if !(1..=RANKS_MAX).contains(&size) {
        return Err(format!("size must be from 1 to {RANKS_MAX}"));
    }
    if start > RANK_MAX {
        return Err(format!("start rank must be from 0 to {RANK_MAX}"));
    }
    Ok(Ranks { size, start, start_from })
}

/// The same word, for the index.
pub(super) fn policy(word: DuplicatePolicy) -> crate::ids::DuplicatePolicy {
    match word {
        DuplicatePolicy::Auto => crate::ids::DuplicatePolicy::Auto,
        DuplicatePolicy::Set => crate::ids::DuplicatePolicy::Set,
        DuplicatePolicy::Copies => crate::ids::DuplicatePolicy::Copies,
    }
}

fn named(text: &str, chars_max: usize) -> Result<&str, String> {
    match text.chars().count() {
        0 => Err("must not be empty".to_owned()),
        count if count > chars_max => Err(format!("must have at most {chars_max} characters")),
        _ => Ok(text),
    }
}

/// As Kubernetes takes names of ports: at most 15 lower-case letters, digits and hyphens, with a letter, and no hyphen at an
/// end or beside another.
fn is_port_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 15
        && name.starts_with(plain)
        && name.ends_with(plain)
        && name.chars().all(|c| plain(c) || c == '-')
        && name.contains(|c: char| c.is_ascii_lowercase())
}

fn pod_rule(spec: &IndexerWorkerSpec) -> Result<PodRule, Fault> {
    let Some(Ports { events, replay, http }) = &spec.ports else {
        return Err(invalid("spec.ports must be set together with spec.selector"));
    };
    let read = |name: &str, value: &PortRef| port(value).map_err(|error| invalid(format!("spec.ports.{name} {error}")));
    let optional = |name: &str, value: &Option<PortRef>| value.as_ref().map(|value| read(name, value)).transpose();
    let ranks = spec.data_parallel.as_ref().map(data_parallel).transpose()?;
    let rule = PodRule {
        events: read("events", events)?,
        replay: optional("replay", replay)?,
        http: optional("http", http)?.filter(|_| spec.discovery == Discovery::Auto),
        ranks,
        container: spec
            .container_name
            .as_deref()
            .map(container)
            .transpose()
            .map_err(|error| invalid(format!("spec.containerName {error}")))?,
        instance: None,
    };
    check_ports(&rule)?;
    Ok(rule)
}

fn data_parallel(given: &DataParallel) -> Result<Ranks, Fault> {
    let number = |value: i32| u32::try_from(value).unwrap_or(u32::MAX);
    ranks(number(given.size), number(given.start_rank), given.start_rank_from)
        .map_err(|error| invalid(format!("spec.dataParallel: {error}")))
}

/// What can be known before a Pod is seen; the rest is asked for each Pod.
pub(super) fn check_ports(rule: &PodRule) -> Result<(), Fault> {
    let (size, start) = rule.ranks.map_or((1, 0), |ranks| (ranks.size, ranks.start));
    for (name, port) in [("event", Some(&rule.events)), ("replay", rule.replay.as_ref())] {
        if let Some(Port::Number(base)) = port
            && u32::from(*base) + start + size - 1 > u32::from(u16::MAX)
        {
            return Err(invalid(format!("{name} port + last rank must not exceed 65535")));
        }
    }
    let overlap = match (&rule.events, &rule.replay) {
        (Port::Number(events), Some(Port::Number(replay))) => u32::from(events.abs_diff(*replay)) < size,
        (Port::Name(events), Some(Port::Name(replay))) => events == replay,
        _ => false,
    };
    if overlap {
        let rule = "the event and replay port ranges (base + rank) must not overlap";
        return Err(Reason::PortConflict.because(rule));
    }
    Ok(())
}

fn fixed(
    spec: &IndexerWorkerSpec,
    endpoints: &[FixedEndpoint],
    config: &ControllerConfig,
) -> Result<Vec<Fixed>, Fault> {
    if spec.ports.is_some() || spec.data_parallel.is_some() || spec.container_name.is_some() {
        let rule = "spec.ports, spec.dataParallel and spec.containerName must not be set together with spec.endpoints";
        return Err(invalid(rule));
    }
    if !config.allow_endpoints {
        let why = "fixed endpoints are switched off here (--allow-endpoints=false)";
        return Err(Reason::EndpointsNotAllowed.because(why));
    }
    if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
        return Err(invalid(format!("spec.endpoints must have 1 to {ENDPOINTS_MAX} items")));
    }
    let fixed: Vec<Fixed> = endpoints
        .iter()
        .enumerate()
        .map(|(at, endpoint)| one_fixed(endpoint).map_err(|error| invalid(format!("spec.endpoints[{at}].{error}"))))
        .collect::<Result<_, _>>()?;
    let mut seen = BTreeSet::new();
    match fixed.iter().find(|worker| !seen.insert(&worker.owner)) {
        Some(Fixed { owner, .. }) => Err(invalid(format!(
            "spec.endpoints: instanceId `{}` with dpRank {} must not be listed twice",
            owner.instance, owner.rank
        ))),
        None => Ok(fixed),
    }
}

fn one_fixed(given: &FixedEndpoint) -> Result<Fixed, String> {
    let instance = instance(&given.instance_id).map_err(|error| format!("instanceId {error}"))?;
    let rank = u32::try_from(given.dp_rank).ok().filter(|rank| *rank <= RANK_MAX);
    let rank = rank.ok_or_else(|| format!("dpRank must be from 0 to {RANK_MAX}"))?;
    let endpoint = address(&given.address).map_err(|error| format!("address {error}"))?;
    let replay_endpoint = given.replay_address.as_deref().map(address).transpose();
    let replay_endpoint = replay_endpoint.map_err(|error| format!("replayAddress {error}"))?;
    if given.replay_address.as_ref() == Some(&given.address) {
        return Err("replayAddress must differ from address".to_owned());
    }
    Ok(Fixed { owner: Owner { instance, rank: DpRank(rank) }, endpoint, replay_endpoint })
}

/// TCP only: an object must not make the indexer open sockets of its own machine by path.
fn address(text: &str) -> Result<Endpoint, String> {
    let wrong = || "must be tcp://host:port or tcp://[ipv6]:port, with a port from 1 to 65535".to_owned();
    if !text.starts_with("tcp://") || text.len() > 512 || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong());
    }
    let endpoint = Endpoint::parse(text).map_err(|_| wrong())?;
    if endpoint.hopeless().is_some() { Err(wrong()) } else { Ok(endpoint) }
}
