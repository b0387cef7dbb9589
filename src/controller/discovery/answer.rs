//! Reads what engines say of themselves. Pure, and lenient: fields that are unknown are left alone, numbers may be texts.
//!
//! vLLM (route `/kv_event_sources`, since 0.31): one entry per data-parallel rank with `data_parallel_rank`, `endpoint`,
//! `replay_endpoint` (or null) and `topic`; seen in public as a bare list and as `{"sources": [..]}`. Without a publisher
//! the list is empty. Endpoints are what the publisher bound, so their hosts are often wildcards.
//!
//! SGLang (route `/server_info`, since 0.5.15): key `kv_events`, null without a publisher, else an object with
//! `publisher`, `endpoint_host`, `endpoint_port_base`, `topic`, `block_size`, `dp_size`, and since 0.5.23
//! `replay_endpoint_port_base`, which is absent without a replay endpoint. Rank r publishes on base + r.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use crate::controller::desired::{DescribedRank, Description};

/// More ranks than any engine has; a number beyond is a mistake.
const RANKS_MAX: u32 = 1024;

/// Reads an answer of an engine at an authority (`host:port`); none if it is no description.
type Read = fn(&Value, &str) -> Option<Description>;

/// What is asked, in this order, and how the answer is read.
pub(super) const WAYS: [(&str, Read); 2] = [("/kv_event_sources", vllm), ("/server_info", sglang)];

/// A list of sources, or an object of them by rank; bare, or below `sources`.
fn vllm(answer: &Value, authority: &str) -> Option<Description> {
    let sources = answer.get("sources").unwrap_or(answer);
    let named: Vec<(Option<u32>, &Value)> = match sources {
        Value::Array(list) => list.iter().map(|source| (None, source)).collect(),
        Value::Object(by_rank) => {
            let named = by_rank.iter().map(|(rank, source)| Some((Some(rank.trim().parse().ok()?), source)));
            named.collect::<Option<_>>()?
        }
        _ => return None,
    };
    let mut found = Vec::new();
    let mut block_size = None;
    for (at, (name, source)) in named.iter().enumerate() {
        let own = ["data_parallel_rank", "dp_rank", "rank"].into_iter().find_map(|field| number(source.get(field)?));
        let rank = own.or(*name).or_else(|| u32::try_from(at).ok())?;
        if rank >= RANKS_MAX || !is_zmq(source) {
            continue;
        }
        let (host, events_port) = source.get("endpoint").map_or((None, None), endpoint);
        let replay_port = source.get("replay_endpoint").and_then(|replay| endpoint(replay).1);
        block_size = block_size.or_else(|| positive(source.get("block_size")?));
        found.push((rank, host, DescribedRank { events_port, replay_port, topic: topic(source) }));
    }
    Some(Description { block_size, ranks: own_ranks(found, authority) })
}

/// Ranks of an engine that spans several Pods may all be named, each with its own host. If one of them has the host that
/// was asked, those of other hosts are not here; otherwise the hosts tell nothing.
fn own_ranks(found: Vec<(u32, Option<IpAddr>, DescribedRank)>, authority: &str) -> BTreeMap<u32, DescribedRank> {
    let asked = host(authority);
    let told = asked.is_some() && found.iter().any(|(_, host, _)| *host == asked);
    let here = found.into_iter().filter(|(_, host, _)| !told || host.is_none() || *host == asked);
    here.map(|(rank, _, described)| (rank, described)).collect()
}

fn sglang(answer: &Value, _authority: &str) -> Option<Description> {
    let events = answer.get("kv_events")?;
    if events.is_null() || !is_zmq(events) {
        // It publishes nothing, and says so.
        return Some(Description::default());
    }
    let block_size = events.get("block_size").and_then(positive);
    let base = events.get("endpoint_port_base").and_then(positive);
    let replay_base = events.get("replay_endpoint_port_base").and_then(positive);
    let count = events.get("dp_size").map_or(Some(1), positive)?.min(RANKS_MAX);
    let port = |base: Option<u32>, rank: u32| base.and_then(|base| u16::try_from(base.checked_add(rank)?).ok());
    let ranks = own_share(answer, count).map(|rank| {
        let described =
            DescribedRank { events_port: port(base, rank), replay_port: port(replay_base, rank), topic: topic(events) };
        (rank, described)
    });
    Some(Description { block_size, ranks: ranks.collect() })
}

/// Of an engine that spans several nodes, each holds an equal run of its ranks.
fn own_share(answer: &Value, count: u32) -> std::ops::Range<u32> {
    let field = |name: &str| answer.get(name).and_then(number);
    match (field("nnodes"), field("node_rank")) {
        (Some(nodes), Some(node)) if nodes > 1 && node < nodes && count.is_multiple_of(nodes) => {
            let share = count / nodes;
            node * share..(node + 1) * share
        }
        _ => 0..count,
    }
}

/// No word about the transport counts as ZeroMQ, the only one there is in the forms that are known.
fn is_zmq(source: &Value) -> bool {
    let word = ["publisher", "transport"].into_iter().find_map(|field| source.get(field)?.as_str());
    word.is_none_or(|word| word.eq_ignore_ascii_case("zmq"))
}

/// The prefix of the topics; an empty one is none.
fn topic(source: &Value) -> Option<String> {
    source.get("topic").and_then(Value::as_str).filter(|topic| !topic.is_empty()).map(str::to_owned)
}

/// Host, where it is one that can be told from others, and port of `tcp://host:port`, `host:port` or a bare port.
fn endpoint(value: &Value) -> (Option<IpAddr>, Option<u16>) {
    if let Some(port) = positive(value) {
        return (None, u16::try_from(port).ok());
    }
    let Some(text) = value.as_str().map(str::trim) else {
        return (None, None);
    };
    let address = match text.split_once("://") {
        Some(("tcp", address)) => address,
        Some(_) => return (None, None),
        None => text,
    };
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).filter(|port| *port != 0);
    (host(address), port)
}

/// The address in `host:port`; none for names, wildcards and loopback.
fn host(authority: &str) -> Option<IpAddr> {
    let (host, _) = authority.rsplit_once(':')?;
    let address: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

fn positive(value: &Value) -> Option<u32> {
    number(value).filter(|number| *number > 0)
}

fn number(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => {
            let whole = || number.as_f64().filter(|it| it.fract() == 0.0 && *it >= 0.0 && *it <= f64::from(u32::MAX));
            number.as_u64().and_then(|number| u32::try_from(number).ok()).or_else(|| whole().map(|it| it as u32))
        }
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
