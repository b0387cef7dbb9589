//! `/dump`: every block of every owner in the documented JSON, streamed.
//!
//! Memory is bounded by the blocks of one owner: these are copied out under the lock of their index, which is let go
//! before a byte is written, and become text piece by piece. Each owner is consistent in itself.

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
use crate::ids::{IndexKey, Owner};
use crate::index::{DumpBlock, SharedIndex};

/// Text of one piece, about.
const PIECE_BYTES: usize = 64 << 10;

/// Dumps at once: each holds the blocks of one owner for as long as its client takes to read them.
pub(super) const DUMPS_MAX: usize = 8;

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
    let wanted = |key: &IndexKey| {
        model.as_ref().is_none_or(|model| *model == key.model)
            && tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
    };
    let turn = timeout(TURN_TIMEOUT, Arc::clone(&state.0.dumps).acquire_owned()).await;
    let turn = turn.map_err(|_| Error::Overloaded)?.expect("the semaphore is never closed");
    let mut indexes = state.registry.indexes();
    indexes.retain(|(key, _)| wanted(key));
    let body = pieces::body(Writer::new(indexes), turn);
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// What is still to be written.
struct Writer {
    indexes: VecDeque<(IndexKey, Arc<SharedIndex>)>,
    /// Index at work and its owners that follow.
    index: Option<(Arc<SharedIndex>, VecDeque<Owner>)>,
    /// Owner at work, its blocks, and how many of them are written.
    owner: Option<(Owner, Vec<DumpBlock>, usize)>,
    keys_used: HashSet<String>,
    /// Next `event_id` of each tier.
    event_ids: [u64; 4],
    first_event: bool,
    phase: Phase,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Start,
    Indexes,
    End,
}

impl Writer {
    fn new(mut indexes: Vec<(IndexKey, Arc<SharedIndex>)>) -> Self {
        indexes.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self {
            indexes: indexes.into(),
            index: None,
            owner: None,
            keys_used: HashSet::new(),
            event_ids: [0; 4],
            first_event: true,
            phase: Phase::Start,
        }
    }
}

impl Pieces for Writer {
    fn next_piece(&mut self) -> Option<Bytes> {
        let mut out = Vec::with_capacity(PIECE_BYTES + 4096);
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
        if let Some((owner, blocks, written)) = &mut self.owner {
            let run = &blocks[*written..*written + event_blocks(&blocks[*written..])];
            if let Some(first) = run.first() {
                if !std::mem::take(&mut self.first_event) {
                    out.push(b',');
                }
                let id = &mut self.event_ids[first.tier as usize];
                write_event(out, owner, *id, run);
                *id += 1;
                *written += run.len();
            } else {
                self.owner = None;
            }
        } else if let Some((index, owners)) = &mut self.index {
            match owners.pop_front() {
                Some(owner) => {
                    let index = index.read();
                    // An owner that left meanwhile has nothing to say.
                    let blocks = index.owner_id(&owner).map(|id| index.dump(id)).unwrap_or_default();
                    self.owner = Some((owner, blocks, 0));
                }
                None => {
                    out.extend_from_slice(b"]}");
                    self.index = None;
                }
            }
        } else if let Some((key, index)) = self.indexes.pop_front() {
            self.begin_index(out, &key, index);
        } else {
            out.push(b'}');
            self.phase = Phase::End;
        }
    }

    fn begin_index(&mut self, out: &mut Vec<u8>, key: &IndexKey, index: Arc<SharedIndex>) {
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
        let mut owners = index.read().owners();
        owners.sort_unstable();
        self.index = Some((index, owners.into()));
        self.event_ids = [0; 4];
        self.first_event = true;
    }
}

const INTO_MEMORY: &str = "writing into memory cannot fail";

/// How many blocks at the front form one chain on one tier.
fn event_blocks(blocks: &[DumpBlock]) -> usize {
    let chained = |pair: &&[DumpBlock]| {
        pair[1].parent == Some(pair[0].hash) && pair[1].tier == pair[0].tier && pair[1].pending == pair[0].pending
    };
    match blocks {
        [] => 0,
        blocks => 1 + blocks.windows(2).take(EVENT_BLOCKS_MAX - 1).take_while(chained).count(),
    }
}

fn write_event(out: &mut Vec<u8>, owner: &Owner, event_id: u64, run: &[DumpBlock]) {
    out.extend_from_slice(b"{\"worker_id\":");
    serde_json::to_writer(&mut *out, &owner.instance).expect(INTO_MEMORY);
    write!(out, ",\"storage_tier\":\"{}\",\"event\":{{\"event_id\":{event_id},", run[0].tier.as_str())
        .expect(INTO_MEMORY);
    out.extend_from_slice(b"\"data\":{\"stored\":{\"parent_hash\":");
    match run[0].parent {
        Some(parent) => write!(out, "{}", parent.0).expect(INTO_MEMORY),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"start_position\":null,\"blocks\":[");
    for (nth, block) in run.iter().enumerate() {
        let comma = if nth == 0 { "" } else { "," };
        let (hash, local) = (block.hash.0, block.local.0);
        write!(out, "{comma}{{\"block_hash\":{hash},\"tokens_hash\":{local},\"mm_extra_info\":null}}")
            .expect(INTO_MEMORY);
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

    fn block(tier: Tier, parent: Option<u64>, hash: u64) -> DumpBlock {
        let parent = parent.map(EngineHash);
        DumpBlock { tier, parent, hash: EngineHash(hash), local: LocalHash(hash + 100), pending: false }
    }

    #[test]
    fn one_event_holds_one_chain_of_one_tier() {
        let blocks = [
            block(Tier::Device, None, 1),
            block(Tier::Device, Some(1), 2),
            block(Tier::Device, Some(1), 3),
            block(Tier::HostPinned, Some(3), 4),
        ];
        assert_eq!([0, 2, 3, 4].map(|from| event_blocks(&blocks[from..])), [2, 1, 1, 0]);
        let long: Vec<_> = (1..=2000).map(|n| block(Tier::Device, (n > 1).then(|| n - 1), n)).collect();
        assert_eq!(event_blocks(&long), EVENT_BLOCKS_MAX);
    }

    #[test]
    fn an_event_has_the_documented_shape_and_all_digits() {
        let mut out = Vec::new();
        let run = [block(Tier::Disk, Some(u64::MAX), 9_007_199_254_740_993)];
        write_event(&mut out, &Owner::new(InstanceId::parse("a/b").unwrap(), 2), 7, &run);
        let want = r#"{"worker_id":"a/b","storage_tier":"disk","event":{"event_id":7,"data":{"stored":{"parent_hash":18446744073709551615,"start_position":null,"blocks":[{"block_hash":9007199254740993,"tokens_hash":9007199254741093,"mm_extra_info":null}]}},"dp_rank":2}}"#;
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn an_empty_service_dumps_an_empty_object() {
        let mut writer = Writer::new(Vec::new());
        assert_eq!(writer.next_piece().unwrap(), "{}");
        assert_eq!(writer.next_piece(), None);
    }
}
