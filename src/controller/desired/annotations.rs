//! What an annotated Pod wants.

use crate::controller::ControllerConfig;
use crate::controller::crd::{DuplicatePolicy, PortRef, StartRankFrom};
use crate::controller::desired::template::{self, PodRule, Port, Ranks, Template, Workers};
use crate::controller::desired::{Fault, Reason};
use crate::controller::facts::{DEFAULT_CONTAINER, PREFIX, PodFacts};
use crate::ids::{IndexKey, OwnerSpec, TenantId};

const MODEL: &str = "model";
const TENANT: &str = "tenant";
const BLOCK_SIZE: &str = "block-size";
const EVENT_PORT: &str = "event-port";
const REPLAY_PORT: &str = "replay-port";
const DP_SIZE: &str = "dp-size";
const DP_START_RANK: &str = "dp-start-rank";
const INSTANCE_ID: &str = "instance-id";
const DUPLICATE_POLICY: &str = "duplicate-policy";
const CONTAINER_NAME: &str = "container-name";

/// All that have a meaning.
const KNOWN: [&str; 11] = [
    MODEL,
    TENANT,
    BLOCK_SIZE,
    EVENT_PORT,
    REPLAY_PORT,
    DP_SIZE,
    DP_START_RANK,
    INSTANCE_ID,
    DUPLICATE_POLICY,
    CONTAINER_NAME,
    DEFAULT_CONTAINER,
];

/// Reads all annotations, or says which is wrong first. An unknown one of ours is a warning: it is likely misspelled.
pub(super) fn read(pod: &PodFacts, config: &ControllerConfig) -> Result<(Template, Option<Fault>), Fault> {
    let tenant = match config.tenant_from_namespace {
        true => TenantId::from(pod.key.namespace.as_str()),
        false => get(pod, TENANT, template::tenant)?.unwrap_or_default(),
    };
    let rule = PodRule {
        events: required(EVENT_PORT, get(pod, EVENT_PORT, port)?)?,
        replay: get(pod, REPLAY_PORT, port)?,
        http: None,
        ranks: ranks(pod)?,
        container: get(pod, CONTAINER_NAME, template::container)?,
        instance: get(pod, INSTANCE_ID, template::instance)?,
    };
    let model = required(MODEL, get(pod, MODEL, template::model)?)?;
    let policy = get(pod, DUPLICATE_POLICY, policy)?.unwrap_or_default();
    let read = Template {
        index: IndexKey::new(model, tenant),
        block_size: required(BLOCK_SIZE, get(pod, BLOCK_SIZE, block_size)?)?,
        owner_spec: OwnerSpec { policy: template::policy(policy), ..OwnerSpec::default() },
        workers: Workers::Pods(rule),
    };
    if let Workers::Pods(rule) = &read.workers {
        template::check_ports(rule)?;
    }
    let unknown = pod.annotations.keys().find(|name| !KNOWN.contains(&name.as_str()));
    let warning = unknown.map(|name| wrong(name, "is unknown and has no effect"));
    Ok((read, warning))
}

fn wrong(name: &str, error: impl std::fmt::Display) -> Fault {
    Reason::InvalidAnnotation.because(format!("annotation {PREFIX}{name} {error}"))
}

fn get<'a, T>(
    pod: &'a PodFacts,
    name: &str,
    read: impl FnOnce(&'a str) -> Result<T, String>,
) -> Result<Option<T>, Fault> {
    let value = pod.annotations.get(name).map(|value| value.trim());
    value.map(read).transpose().map_err(|error| wrong(name, error))
}

fn required<T>(name: &str, value: Option<T>) -> Result<T, Fault> {
    value.ok_or_else(|| wrong(name, "must be set"))
}

/// A number, if it looks like one.
fn port(text: &str) -> Result<Port, String> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit());
    template::port(&match number {
        true => PortRef::Number(text.parse().unwrap_or(i32::MAX)),
        false => PortRef::Name(text.to_owned()),
    })
}

fn number(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| "must be a whole number".to_owned())
}

fn block_size(text: &str) -> Result<crate::ids::BlockSize, String> {
    template::block_size(number(text)?).ok_or_else(|| "must be from 1 to 65536".to_owned())
}

fn ranks(pod: &PodFacts) -> Result<Option<Ranks>, Fault> {
    let size = get(pod, DP_SIZE, number)?;
    let start = get(pod, DP_START_RANK, number)?;
    let name = if size.is_some() { DP_SIZE } else { DP_START_RANK };
    let read = |size, start| template::ranks(size, start, StartRankFrom::Fixed).map_err(|error| wrong(name, error));
    match (size, start) {
        (None, None) => Ok(None),
        (size, start) => read(size.unwrap_or(1), start.unwrap_or(0)).map(Some),
    }
}

fn policy(text: &str) -> Result<DuplicatePolicy, String> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(DuplicatePolicy::Auto),
        "set" => Ok(DuplicatePolicy::Set),
        "copies" => Ok(DuplicatePolicy::Copies),
        _ => Err("must be auto, set or copies".to_owned()),
    }
}
