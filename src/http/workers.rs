//! `/workers`: every registered worker with what its listeners observe and how far its blocks can be believed.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{RawQuery, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::Params;
use super::error::{Error, ErrorBody};
use super::{AppState, names, openapi};
use crate::event::{IgnoreReason, SkipReason};
use crate::ids::{DpRank, DuplicatePolicy, InstanceId, Role, Source, Tier};
use crate::index::OwnerReport;
use crate::registry::{RankView, Status, StreamReport, UNKNOWN_ENDPOINT, WorkerView};
use crate::trust::Trust;

/// One instance of one index.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Worker {
    /// Number or text.
    #[schema(value_type = openapi::InstanceId)]
    pub(crate) instance_id: InstanceId,
    /// Who registered it: `zmq` (by hand or option), `kubernetes`; `recovered`: nobody here, its blocks came from a peer.
    pub(crate) source: &'static str,
    /// Failed if any listener failed, else pending if any is, else active if any is, else paused.
    pub(crate) status: &'static str,
    /// Model of the index.
    pub(crate) model_name: String,
    /// Tenant of the index.
    pub(crate) tenant_id: String,
    /// Tokens per block of the index.
    pub(crate) block_size: u32,
    /// Address by rank; a recovered rank whose publisher is unknown has none.
    pub(crate) endpoints: BTreeMap<String, String>,
    /// Listener by rank.
    pub(crate) listeners: BTreeMap<String, Listener>,
    /// As registered; without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) additional_salt: Option<String>,
}

/// One rank of a worker. Ranks with one endpoint share a connection and its counters.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listener {
    /// Address of the publisher; empty where it is unknown.
    pub(crate) endpoint: String,
    /// Who registered this rank, where it is not the worker's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<&'static str>,
    /// `pending`, `active` (the handshake is complete), `paused` or `failed` (can never connect).
    pub(crate) status: &'static str,
    /// Why it is not active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// Last applied number; null before the first.
    pub(crate) last_seq: Option<u64>,
    /// When the last batch arrived; null before the first.
    pub(crate) last_event_ms: Option<u64>,
    /// Arrival minus the batch's own time, of the last batch.
    pub(crate) lag_ms: Option<u64>,
    /// How far the blocks can be believed.
    pub(crate) trust: TrustView,
    /// Address of the replay socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replay_endpoint: Option<String>,
    /// Topic that is subscribed to, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<String>,
    /// `worker` or `store`.
    pub(crate) role: &'static str,
    /// `auto`, `set` or `copies`.
    pub(crate) duplicate_policy: &'static str,
    /// Seconds after which blocks of the lower tiers age out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lower_tier_ttl_s: Option<u64>,
    /// Default LoRA name of Mooncake's dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lora_name: Option<String>,
    /// Block size that the engine announces, where it does not fit the index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) announced_block_size: Option<u32>,
    /// Held blocks by tier.
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    pub(crate) blocks: BTreeMap<&'static str, u64>,
    /// Blocks that wait for their parent.
    pub(crate) pending_blocks: u64,
    /// What happened so far.
    pub(crate) counters: Counters,
}

/// Trust of one owner.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TrustView {
    /// `exact`, `degraded` or `stale`.
    pub(crate) state: &'static str,
    /// Why it is not exact.
    pub(crate) reasons: Vec<&'static str>,
    /// Milliseconds since 1970 of the last change.
    pub(crate) since_ms: u64,
}

/// Counters of a listener and of its owner.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Counters {
    /// Completed handshakes.
    connects: u64,
    /// New lives of the publisher.
    restarts: u64,
    /// Jumps in the numbers.
    pub(crate) gaps: u64,
    /// Numbers given up for good.
    missing_batches: u64,
    /// Batches dropped because their number was covered.
    duplicate_batches: u64,
    /// Messages whose frames could not be read.
    malformed_messages: u64,
    /// Replays that brought everything.
    replays_complete: u64,
    /// Replays that brought a part.
    replays_incomplete: u64,
    /// Replays without an answer.
    replays_failed: u64,
    /// A replay runs or waits for its turn.
    replaying: bool,
    /// Applied `BlockStored` events.
    events_stored: u64,
    /// Applied `BlockRemoved` events.
    events_removed: u64,
    /// Applied `AllBlocksCleared` events.
    events_cleared: u64,
    /// Stores of blocks already held.
    duplicate_stores: u64,
    /// Things that could not be used, by reason.
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    pub(crate) skipped: BTreeMap<&'static str, u64>,
    /// Things without effect by design, by reason.
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    ignored: BTreeMap<&'static str, u64>,
}

/// All registered workers; the filters are exact, an empty value is the empty name.
#[utoipa::path(
    get, path = "/workers", tag = "workers",
    params(
        ("model_name" = Option<String>, Query, description = "this model only"),
        ("tenant_id" = Option<String>, Query, description = "this tenant only; alias `routing_group`")
    ),
    responses((status = 200, body = Vec<Worker>), (status = 400, description = "parameter twice", body = ErrorBody))
)]
pub(super) async fn workers(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Worker>>, Error> {
    let (model, tenant) = names::from_params(&Params::parse(query.as_deref())?)?;
    Ok(Json(state.registry.workers(model.as_ref(), tenant.as_ref()).into_iter().map(Worker::from).collect()))
}

/// Address of a rank's publisher, if it is known.
pub(super) fn endpoint(rank: &RankView) -> Option<String> {
    let address = rank.spec.endpoint.as_str();
    let made_up = rank.source == Source::Recovered && address == UNKNOWN_ENDPOINT;
    (!made_up).then(|| address.to_owned())
}

/// Status of a worker from those of its listeners.
pub(super) fn worst_status(statuses: impl Iterator<Item = Status>) -> Status {
    let rank = |status: &Status| match status {
        Status::Failed => 3,
        Status::Pending => 2,
        Status::Active => 1,
        Status::Paused => 0,
    };
    statuses.max_by_key(rank).unwrap_or(Status::Pending)
}

impl From<WorkerView> for Worker {
    fn from(view: WorkerView) -> Self {
        let source = view.source;
        let endpoints = view.ranks.iter().filter_map(|(number, rank)| Some((number.to_string(), endpoint(rank)?)));
        let listener = |(number, rank): (DpRank, RankView)| {
            let other = (rank.source != source).then(|| rank.source.as_str());
            (number.to_string(), Listener { source: other, ..rank.into() })
        };
        Self {
            instance_id: view.instance,
            source: source.as_str(),
            status: worst_status(view.ranks.values().map(|rank| rank.stream.status)).as_str(),
            model_name: view.key.model.to_string(),
            tenant_id: view.key.tenant.to_string(),
            block_size: view.block_size.tokens(),
            endpoints: endpoints.collect(),
            additional_salt: view.ranks.values().find_map(|rank| rank.spec.additional_salt.clone()),
            listeners: view.ranks.into_iter().map(listener).collect(),
        }
    }
}

impl From<RankView> for Listener {
    fn from(view: RankView) -> Self {
        let address = endpoint(&view).unwrap_or_default();
        let RankView { spec, stream, report, .. } = view;
        let counters = Counters::new(&stream, &report);
        Self {
            endpoint: address,
            source: None,
            status: stream.status.as_str(),
            last_error: stream.last_error,
            last_seq: stream.last_seq.map(|seq| seq.0),
            last_event_ms: stream.last_event_ms,
            lag_ms: stream.lag_ms,
            trust: TrustView::from(&report.trust),
            replay_endpoint: spec.replay_endpoint.map(|endpoint| endpoint.as_str().to_owned()),
            topic: spec.topic,
            role: match spec.owner_spec.role {
                Role::Worker => "worker",
                Role::Store => "store",
            },
            duplicate_policy: match spec.owner_spec.policy {
                DuplicatePolicy::Auto => "auto",
                DuplicatePolicy::Set => "set",
                DuplicatePolicy::Copies => "copies",
            },
            lower_tier_ttl_s: spec.owner_spec.lower_tier_ttl_ms.map(|ms| ms / 1000),
            lora_name: spec.default_lora,
            announced_block_size: report.announced_block_size,
            blocks: Tier::ALL.map(|tier| (tier.as_str(), report.blocks[tier as usize])).into(),
            pending_blocks: report.pending_blocks,
            counters,
        }
    }
}

impl From<&Trust> for TrustView {
    fn from(trust: &Trust) -> Self {
        let reasons = trust.reasons().map(crate::trust::Reason::as_str).collect();
        Self { state: trust.state().as_str(), reasons, since_ms: trust.since_ms() }
    }
}

impl Counters {
    fn new(stream: &StreamReport, report: &OwnerReport) -> Self {
        let [events_stored, events_removed, events_cleared] = report.applied;
        Self {
            connects: stream.connects,
            restarts: stream.restarts,
            gaps: stream.gaps,
            missing_batches: stream.missing_batches,
            duplicate_batches: stream.duplicates,
            malformed_messages: stream.malformed,
            replays_complete: stream.replays_complete,
            replays_incomplete: stream.replays_incomplete,
            replays_failed: stream.replays_failed,
            replaying: stream.replaying,
            events_stored,
            events_removed,
            events_cleared,
            duplicate_stores: report.duplicate_stores,
            skipped: counted(&report.skipped, SkipReason::ALL.iter().map(|reason| reason.as_str())),
            ignored: counted(&report.ignored, IgnoreReason::ALL.iter().map(|reason| reason.as_str())),
        }
    }
}

/// The counts above zero, by their words.
pub(super) fn counted(counts: &[u64], words: impl Iterator<Item = &'static str>) -> BTreeMap<&'static str, u64> {
    words.zip(counts.iter().copied()).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BlockSize, IndexKey, Owner, OwnerSpec};
    use crate::registry::{Endpoint, WorkerSpec};

    #[test]
    fn a_worker_is_as_good_as_the_contract_says() {
        use Status::{Active, Failed, Paused, Pending};
        for (statuses, want) in [
            (&[Active, Active][..], Active),
            (&[Active, Paused], Active),
            (&[Active, Pending], Pending),
            (&[Pending, Failed, Active], Failed),
            (&[Paused], Paused),
            (&[], Pending),
        ] {
            assert_eq!(worst_status(statuses.iter().copied()), want, "{statuses:?}");
        }
    }

    #[test]
    fn a_recovered_rank_beside_a_registered_one_shows_its_source_and_no_made_up_address() {
        let rank = |number: u32, source, endpoint: &str| {
            let spec = WorkerSpec {
                key: IndexKey::new("m", "t"),
                owner: Owner::new(7, number),
                block_size: BlockSize::new(4).unwrap(),
                endpoint: Endpoint::parse(endpoint).unwrap(),
                replay_endpoint: None,
                topic: None,
                additional_salt: None,
                default_lora: None,
                owner_spec: OwnerSpec::default(),
                incarnation: None,
            };
            let (stream, report) = (StreamReport::default(), OwnerReport::default());
            (DpRank(number), RankView { spec, source, superseded: None, stream, report })
        };
        let worker = Worker::from(WorkerView {
            key: IndexKey::new("m", "t"),
            instance: 7.into(),
            block_size: BlockSize::new(4).unwrap(),
            source: Source::Manual,
            ranks: BTreeMap::from([
                rank(0, Source::Manual, "tcp://h:1"),
                rank(1, Source::Recovered, UNKNOWN_ENDPOINT),
                rank(2, Source::Recovered, "tcp://h:2"),
            ]),
        });
        assert_eq!((worker.source, worker.endpoints.len()), ("zmq", 2));
        let shown = |rank: &str| (worker.listeners[rank].endpoint.as_str(), worker.listeners[rank].source);
        assert_eq!(shown("0"), ("tcp://h:1", None));
        assert_eq!(shown("1"), ("", Some("recovered")));
        assert_eq!(shown("2"), ("tcp://h:2", Some("recovered")));
    }

    #[test]
    fn only_what_happened_is_counted() {
        let counts = counted(&[0, 2, 0, 1], ["a", "b", "c", "d"].into_iter());
        assert_eq!(counts, BTreeMap::from([("b", 2), ("d", 1)]));
    }
}
