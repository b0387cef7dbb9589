//! `/dump`: every block of every owner in the documented JSON, streamed.
//!
//! Memory is bounded by the blocks of one stream: its owners are copied out at one batch boundary under the lock of their
//! index, which is let go before a byte is written, and become text piece by piece. Owners that no stream feeds, or
//! several, are consistent each in itself.
//!
//! ```text
//! {"<model>:<tenant>": {"block_size": n, "model_name": .., "tenant_id": ..,
//!   "events": [{"worker_id": .., "storage_tier": .., "event": {"event_id": n, "data": {"stored": ..}, "dp_rank": n}}, ..],
//!   "streams": [{"instance_id": .., "endpoint": .., "last_seq": n|null, "dp_ranks": [..]}, ..]}, ..}
//! ```
//! `streams` says at which number each stream was copied. The reference ignores what it does not know inside an entry.

use std::collections::{HashSet, VecDeque};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::time::timeout;

use super::body::Params;
use super::error::{Error, ErrorBody};
use super::pieces::{self, Pieces};
use super::{AppState, names, openapi};
use crate::ids::{IndexKey, Owner, Seq};
use crate::image::StreamName;
use crate::index::{Chain, Chains, SharedIndex};
use crate::registry::{Export, ExportFilter, Registry};

/// Text of one piece, about: each is handed from one thread to another.
const PIECE_BYTES: usize = 256 << 10;

/// Text of one block, at most.
const BLOCK_BYTES: usize = 100;

/// Dumps at once: each holds the blocks of one stream for as long as its client takes to read them.
pub(super) const DUMPS_MAX: usize = 4;

/// Longest wait for one of them to end.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Blocks of one event, at most: a reader handles an event as a whole.
const EVENT_BLOCKS_MAX: usize = 512;

/// The whole state as events, parents before children.
#[utoipa::path(
    get, path = "/dump", tag = "operation",
    params(
        ("model_name" = Option<String>, Query, description = "this model only"),
        ("tenant_id" = Option<String>, Query, description = "this tenant only; alias `routing_group`")
    ),
    responses(
        (status = 200, body = std::collections::HashMap<String, openapi::DumpEntry>),
        (status = 400, description = "parameter twice", body = ErrorBody),
        (status = 503, description = "too many dumps at once", body = ErrorBody)
    )
)]
pub(super) async fn dump(State(state): State<AppState>, RawQuery(query): RawQuery) -> Result<Response, Error> {
    let (model, tenant) = names::from_params(&Params::parse(query.as_deref())?)?;
    let turn = timeout(TURN_TIMEOUT, Arc::clone(&state.0.dumps).acquire_owned()).await;
    let turn = turn.map_err(|_| Error::Overloaded)?.expect("the semaphore is never closed");
    let writer = Writer::new(indexes(&state.registry, &ExportFilter { model, tenant, instance: None }));
    let body = pieces::body(writer, turn);
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// An index to be written, with its streams.
struct Source {
    key: IndexKey,
    index: Arc<SharedIndex>,
    streams: VecDeque<Export>,
}

/// All indexes that pass the filter, in order of key.
fn indexes(registry: &Registry, filter: &ExportFilter) -> Vec<Source> {
    let mut exports: VecDeque<Export> = registry.exports(filter).into();
    let wanted = |key: &IndexKey| {
        filter.model.as_ref().is_none_or(|model| *model == key.model)
            && filter.tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
    };
    let indexes = registry.indexes().into_iter().filter(|(key, _)| wanted(key));
    let source = |(key, index): (IndexKey, Arc<SharedIndex>)| {
        let (streams, others) = std::mem::take(&mut exports).into_iter().partition(|export| export.head.key == key);
        exports = others;
        Source { key, index, streams }
    };
    indexes.map(source).collect()
}

/// What is still to be written.
struct Writer {
    indexes: VecDeque<Source>,
    /// Index at work.
    index: Option<Open>,
    /// Owners of the stream at work that follow.
    owners: VecDeque<(Owner, Chains)>,
    /// Owner at work.
    owner: Option<Walk>,
    keys_used: HashSet<String>,
    phase: Phase,
}

/// An owner whose chains are written one after the other, and long ones in parts.
struct Walk {
    owner: Owner,
    chains: Chains,
    /// Chain at work, and how many of its blocks are written.
    at: (usize, usize),
}

/// An index at work.
struct Open {
    index: Arc<SharedIndex>,
    streams: VecDeque<Export>,
    /// Owners that no stream feeds alone; known once the streams are through.
    rest: Option<VecDeque<Owner>>,
    /// Owners of the streams so far.
    done: HashSet<Owner>,
    /// Streams so far: where each stood, and the ranks it feeds.
    copied: Vec<(StreamName, Option<Seq>, Vec<u32>)>,
    /// Next `event_id` of each tier.
    event_ids: [u64; 4],
    first_event: bool,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Start,
    Indexes,
    End,
}

impl Writer {
    fn new(indexes: Vec<Source>) -> Self {
        Self {
            indexes: indexes.into(),
            index: None,
            owners: VecDeque::new(),
            owner: None,
            keys_used: HashSet::new(),
            phase: Phase::Start,
        }
    }
}

impl Pieces for Writer {
    fn next_piece(&mut self) -> Option<Bytes> {
        let mut out = Vec::with_capacity(PIECE_BYTES + EVENT_BLOCKS_MAX * BLOCK_BYTES + 1024);
        if self.phase == Phase::Start {
            out.push(b'{');
            self.phase = Phase::Indexes;
        }
        while out.len() < PIECE_BYTES && self.phase != Phase::End {
            self.step(&mut out);
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }
}

impl Writer {
    fn step(&mut self, out: &mut Vec<u8>) {
        if let (Some(walk), Some(open)) = (&mut self.owner, &mut self.index) {
            if let Some(part) = next_part(&walk.chains, &mut walk.at) {
                if !std::mem::take(&mut open.first_event) {
                    out.push(b',');
                }
                let id = &mut open.event_ids[part.tier as usize];
                write_event(out, &walk.owner, *id, part);
                *id += 1;
            } else {
                self.owner = None;
            }
        } else if let Some((owner, chains)) = self.owners.pop_front() {
            self.owner = Some(Walk { owner, chains, at: (0, 0) });
        } else if let Some(open) = &mut self.index {
            if let Some(owners) = open.next_owners() {
                self.owners = owners.into();
            } else {
                open.write_end(out);
                self.index = None;
            }
        } else if let Some(source) = self.indexes.pop_front() {
            self.begin_index(out, source);
        } else {
            out.push(b'}');
            self.phase = Phase::End;
        }
    }

    fn begin_index(&mut self, out: &mut Vec<u8>, source: Source) {
        let Source { key, index, streams } = source;
        if !self.keys_used.is_empty() {
            out.push(b',');
        }
        // Two pairs of names with colons can join to one text; the fields inside tell them apart.
        let mut joined = key.joined();
        while !self.keys_used.insert(joined.clone()) {
            joined.push('\'');
        }
        text(out, &joined);
        write!(out, ":{{\"block_size\":{},\"model_name\":", index.block_size()).expect(INTO_MEMORY);
        text(out, key.model.as_str());
        out.extend_from_slice(b",\"tenant_id\":");
        text(out, key.tenant.as_str());
        out.extend_from_slice(b",\"events\":[");
        self.index = Some(Open {
            index,
            streams,
            rest: None,
            done: HashSet::new(),
            copied: Vec::new(),
            event_ids: [0; 4],
            first_event: true,
        });
    }
}

impl Open {
    /// Owners with their blocks: all of the next stream, then those that are left one by one. None at the end.
    fn next_owners(&mut self) -> Option<Vec<(Owner, Chains)>> {
        while let Some(stream) = self.streams.pop_front() {
            // A stream that ended meanwhile has nothing to say.
            let Some(dump) = stream.dump() else {
                continue;
            };
            self.done.extend(dump.owners.iter().map(|(owner, _)| owner.clone()));
            let ranks = dump.owners.iter().map(|(owner, _)| owner.rank.0).collect();
            self.copied.push((stream.name, dump.position.mark.map(|mark| mark.seq), ranks));
            return Some(dump.owners);
        }
        let index = self.index.read();
        let rest = self.rest.get_or_insert_with(|| {
            let mut owners = index.owners();
            owners.retain(|owner| !self.done.contains(owner));
            owners.sort_unstable();
            owners.into()
        });
        let owner = rest.pop_front()?;
        let chains = index.owner_id(&owner).map(|id| index.chains(id)).unwrap_or_default();
        Some(vec![(owner, chains)])
    }

    fn write_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"],\"streams\":[");
        for (nth, (name, last_seq, ranks)) in self.copied.iter().enumerate() {
            out.extend_from_slice(if nth == 0 { b"{\"instance_id\":" } else { b",{\"instance_id\":" });
            serde_json::to_writer(&mut *out, &name.instance).expect(INTO_MEMORY);
            out.extend_from_slice(b",\"endpoint\":");
            text(out, &name.endpoint);
            out.extend_from_slice(b",\"last_seq\":");
            serde_json::to_writer(&mut *out, last_seq).expect(INTO_MEMORY);
            out.extend_from_slice(b",\"dp_ranks\":");
            serde_json::to_writer(&mut *out, ranks).expect(INTO_MEMORY);
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
    }
}

const INTO_MEMORY: &str = "writing into memory cannot fail";

/// What makes the next event: a chain, or as much of it as an event takes.
fn next_part<'a>(chains: &'a Chains, (number, written): &mut (usize, usize)) -> Option<Chain<'a>> {
    let chain = chains.get(*number)?;
    let (done, left) = chain.blocks.split_at(*written);
    let blocks = &left[..left.len().min(EVENT_BLOCKS_MAX)];
    (*number, *written) =
        if blocks.len() == left.len() { (*number + 1, 0) } else { (*number, *written + blocks.len()) };
    Some(Chain { parent: done.last().map(|(hash, _)| *hash).or(chain.parent), blocks, ..chain })
}

fn write_event(out: &mut Vec<u8>, owner: &Owner, event_id: u64, part: Chain<'_>) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"{\"worker_id\":");
    serde_json::to_writer(&mut *out, &owner.instance).expect(INTO_MEMORY);
    write!(out, ",\"storage_tier\":\"{}\",\"event\":{{\"event_id\":{event_id},", part.tier.as_str())
        .expect(INTO_MEMORY);
    out.extend_from_slice(b"\"data\":{\"stored\":{\"parent_hash\":");
    let parent = part.parent.map(|parent| digits.format(parent.0));
    out.extend_from_slice(parent.unwrap_or("null").as_bytes());
    out.extend_from_slice(b",\"start_position\":null,\"blocks\":[");
    for (nth, (hash, local)) in part.blocks.iter().enumerate() {
        out.extend_from_slice(if nth == 0 { b"{\"block_hash\":" } else { b",{\"block_hash\":" });
        out.extend_from_slice(digits.format(hash.0).as_bytes());
        out.extend_from_slice(b",\"tokens_hash\":");
        out.extend_from_slice(digits.format(local.0).as_bytes());
        out.extend_from_slice(b",\"mm_extra_info\":null}");
    }
    write!(out, "]}}}},\"dp_rank\":{}}}}}", owner.rank).expect(INTO_MEMORY);
}

fn text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect(INTO_MEMORY);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EngineHash, InstanceId, LocalHash, Tier};
    use crate::index::DumpBlock;

    #[test]
    fn an_event_holds_a_part_of_one_chain() {
        let block = |hash: u64, parent: Option<u64>| DumpBlock {
            tier: Tier::Device,
            parent: parent.map(EngineHash),
            hash: EngineHash(hash),
            local: LocalHash(hash + 100),
            pending: false,
        };
        let long = (1..=1100).map(|hash| block(hash, (hash > 1).then(|| hash - 1)));
        let chains: Chains = long.chain([block(2000, Some(3)), block(2001, Some(2000))]).collect();
        let (mut at, mut parts) = ((0, 0), Vec::new());
        while let Some(part) = next_part(&chains, &mut at) {
            parts.push((part.parent.map(|parent| parent.0), part.blocks[0].0.0, part.blocks.len()));
        }
        assert_eq!(parts, [(None, 1, 512), (Some(512), 513, 512), (Some(1024), 1025, 76), (Some(3), 2000, 2)]);
    }

    #[test]
    fn an_event_has_the_documented_shape_and_all_digits() {
        let mut out = Vec::new();
        let blocks =
            [(EngineHash(9_007_199_254_740_993), LocalHash(9_007_199_254_741_093)), (EngineHash(5), LocalHash(6))];
        let part = Chain { tier: Tier::Disk, parent: Some(EngineHash(u64::MAX)), pending: false, blocks: &blocks };
        write_event(&mut out, &Owner::new(InstanceId::parse("a/b").unwrap(), 2), 7, part);
        let want = r#"{"worker_id":"a/b","storage_tier":"disk","event":{"event_id":7,"data":{"stored":{"parent_hash":18446744073709551615,"start_position":null,"blocks":[{"block_hash":9007199254740993,"tokens_hash":9007199254741093,"mm_extra_info":null},{"block_hash":5,"tokens_hash":6,"mm_extra_info":null}]}},"dp_rank":2}}"#;
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn an_empty_service_dumps_an_empty_object() {
        let mut writer = Writer::new(Vec::new());
        assert_eq!(writer.next_piece().unwrap(), "{}");
        assert_eq!(writer.next_piece(), None);
    }
}
