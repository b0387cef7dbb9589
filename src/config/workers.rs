//! The entries of `--workers`.
//!
//! `id[:rank]=endpoint[|replay_endpoint]`, separated by commas; spaces around the parts are trimmed, blank entries are
//! skipped. The id ends at the first `=`, its rank stands behind its last `:`, and the endpoint ends at the first `|`,
//! which no tcp address can contain. An id with `,` or `=`, or with a `:` and no rank, cannot be written here: register
//! it over HTTP.

use std::collections::BTreeSet;

use super::Error;
use crate::ids::{DpRank, InstanceId, Owner};

/// One worker of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEntry {
    /// Instance and rank.
    pub owner: Owner,
    /// Address of its events, as given.
    pub endpoint: String,
    /// Address of its replay socket, as given.
    pub replay_endpoint: Option<String>,
}

/// All entries of a list.
pub(super) fn parse(list: &str) -> Result<Vec<WorkerEntry>, Error> {
    let entries: Vec<_> =
        list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(entry).collect::<Result<_, _>>()?;
    let mut owners = BTreeSet::new();
    for entry in &entries {
        if !owners.insert(&entry.owner) {
            return Err(Error::WorkerTwice(entry.owner.to_string()));
        }
    }
    Ok(entries)
}

fn entry(entry: &str) -> Result<WorkerEntry, Error> {
    let text = || entry.to_owned();
    let (name, address) = entry.split_once('=').ok_or_else(|| Error::WorkerForm(text()))?;
    let (id, rank) = match name.rsplit_once(':') {
        Some((id, rank)) => (id, rank.trim().parse().map_err(|_| Error::WorkerRank(text()))?),
        None => (name, 0),
    };
    let instance = InstanceId::parse(id.trim()).map_err(|source| Error::WorkerId { entry: text(), source })?;
    let (endpoint, replay) = match address.split_once('|') {
        Some((endpoint, replay)) => (endpoint, Some(replay.trim())),
        None => (address, None),
    };
    if replay == Some("") {
        return Err(Error::WorkerReplay(text()));
    }
    Ok(WorkerEntry {
        owner: Owner { instance, rank: DpRank(rank) },
        endpoint: endpoint.trim().to_owned(),
        replay_endpoint: replay.map(str::to_owned),
    })
}
