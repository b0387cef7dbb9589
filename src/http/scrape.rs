//! `/metrics`: turns what registry and indexes know at this moment into samples.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::AppState;
use crate::event::{IgnoreReason, SkipReason};
use crate::ids::{IndexKey, Tier};
use crate::index::Stats;
use crate::metrics::{Family, Kind, Sample};
use crate::recovery::{Counters, Replica};
use crate::registry::{RankView, Status, WorkerView};
use crate::trust::{Reason, State as TrustState};
use crate::wire::digest::Phase;

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Counter }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Gauge }
}

static MODELS: Family = gauge("dynamo_kvindexer_models", "Indexes: pairs of model and tenant.");
static WORKERS: Family = gauge("dynamo_kvindexer_workers", "Registered workers, counted per index.");
static LISTENERS: Family = gauge("dynamo_kvindexer_listeners", "Listeners by status.");

static READY: Family = gauge("kvindexer_ready", "1 when ready, else 0.");
static BUILD: Family = gauge("kvindexer_build_info", "Always 1; the version is a label.");
static MEMORY: Family = gauge("process_resident_memory_bytes", "Resident memory of the process.");
static SHARED: Family =
    counter("kvindexer_shared_endpoints_total", "Registrations that share an endpoint with another instance.");
static HELD: Family = gauge("kvindexer_index_held_blocks", "Held blocks, counted per owner and tier.");
static CONTENT: Family = gauge("kvindexer_index_content_blocks", "Distinct blocks by content.");
static NODES: Family = gauge("kvindexer_index_nodes", "Nodes of the tree.");
static INDEX_BYTES: Family =
    gauge("kvindexer_index_bytes", "Memory that the index asked of the allocator, by its own account.");
static EVICTED: Family =
    counter("kvindexer_index_evicted_blocks_total", "Blocks given up because the index held too many.");
static OWNERS: Family = gauge("kvindexer_index_owners", "Known ranks, registered or named by batches.");

static PHASE: Family = gauge("kvindexer_replica_phase", "1 for the present phase, 0 for the others.");
static PEERS: Family = gauge("kvindexer_replica_peers", "Addresses of other replicas that are known.");
static COMPARED: Family = gauge("kvindexer_replica_compared_streams", "Streams in the last comparison with peers.");
static DIFFERING: Family =
    gauge("kvindexer_replica_differing_streams", "Streams that differed from a peer's in the last comparison.");
static DIFFERING_REGISTRATIONS: Family = gauge(
    "kvindexer_replica_differing_registrations",
    "Registrations by hand that differed from a peer's in the last comparison.",
);
static FILES: Family = counter("kvindexer_replica_snapshot_files_total", "Snapshots written to disk.");
static ATTEMPTS: Family = counter("kvindexer_recovery_attempts_total", "Attempts to take a state, by source.");
static RECOVERY_BYTES: Family = counter("kvindexer_recovery_bytes_total", "Bytes of state read.");
static RECOVERY_BLOCKS: Family = counter("kvindexer_recovery_blocks_total", "Blocks taken from a state.");
static COLD_STARTS: Family =
    counter("kvindexer_recovery_cold_starts_total", "Starts without the state that a peer was known to have.");
static REFUSED: Family = counter("kvindexer_recovery_refused_total", "Indexes or files that were not taken.");
static REFILLS: Family = counter("kvindexer_recovery_refills_total", "Owners taken from a peer at run time.");

static RESTARTS: Family = counter("kvindexer_publisher_restarts_total", "New lives of the publisher.");
static GAPS: Family = counter("kvindexer_gaps_total", "Jumps in the batch numbers, repaired ones too.");
static MISSING: Family = counter("kvindexer_missing_batches_total", "Batch numbers given up for good.");
static REPLAYS: Family = counter("kvindexer_replays_total", "Replays by outcome.");
static SKIPPED: Family = counter("kvindexer_skipped_events_total", "Things an engine said that could not be used.");
static IGNORED: Family =
    counter("kvindexer_ignored_events_total", "Things an engine said that have no effect by design.");
static APPLIED: Family = counter("kvindexer_applied_events_total", "Applied events.");
static DUPLICATE_BATCHES: Family =
    counter("kvindexer_duplicate_batches_total", "Batches dropped because their number was covered.");
static DUPLICATE_STORES: Family = counter("kvindexer_duplicate_stores_total", "Stores of blocks already held.");
static MALFORMED: Family = counter("kvindexer_malformed_messages_total", "Messages whose frames could not be read.");
static CONNECTS: Family = counter("kvindexer_connects_total", "Completed handshakes.");
static LAG: Family = gauge("kvindexer_event_lag_seconds", "Arrival minus the batch's own time, of the last batch.");
static AGE: Family = gauge("kvindexer_last_event_age_seconds", "Time since the last batch arrived.");
static LAST_SEQ: Family = gauge("kvindexer_last_seq", "Last applied batch number.");
static BLOCKS: Family = gauge("kvindexer_blocks", "Held blocks by tier.");
static PENDING: Family = gauge("kvindexer_pending_blocks", "Blocks that wait for their parent.");
static TRUST: Family = gauge("kvindexer_trust", "1 for the present state, 0 for the others.");
static TRUST_REASON: Family = gauge("kvindexer_trust_reason", "1 for each reason that holds at present.");

/// Counters and gauges in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "text format 0.0.4", body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(State(state): State<AppState>) -> Response {
    let views = state.registry.workers(None, None);
    let indexes: Vec<_> =
        state.registry.indexes().into_iter().map(|(key, index)| (key, index.read().stats())).collect();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let mut samples = of_process(&state);
    samples.extend(of_fleet(&views, &indexes));
    of_replica(&mut samples, &state.replica);
    for view in &views {
        for rank in view.ranks.values() {
            of_owner(&mut samples, rank, now_ms);
        }
    }
    let text = state.metrics.render(samples);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn of_process(state: &AppState) -> Vec<Sample> {
    let ready = if state.readiness.reasons().is_empty() { 1.0 } else { 0.0 };
    let mut samples = vec![
        Sample { family: &READY, labels: Vec::new(), value: ready },
        Sample { family: &BUILD, labels: vec![("version", env!("CARGO_PKG_VERSION").to_owned())], value: 1.0 },
        Sample { family: &SHARED, labels: Vec::new(), value: state.registry.shared_endpoints() as f64 },
    ];
    if let Some(bytes) = resident_bytes() {
        samples.push(Sample { family: &MEMORY, labels: Vec::new(), value: bytes });
    }
    samples
}

/// Resident memory, where the system tells it.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok().map(|kib| (kib * 1024) as f64)
}

/// What happened between this replica and others.
fn of_replica(samples: &mut Vec<Sample>, replica: &Replica) {
    let mut add = |family: &'static Family, labels: &[(&'static str, &'static str)], value: u64| {
        let labels = labels.iter().map(|(name, word)| (*name, (*word).to_owned())).collect();
        samples.push(Sample { family, labels, value: value as f64 });
    };
    // Taken apart whole, so that a counter that is not shown is a warning of the compiler.
    let Counters {
        attempts,
        bytes,
        blocks,
        cold_starts,
        refused,
        differing_streams,
        compared_streams,
        refills,
        differing_registrations,
        files_written,
    } = replica.counters();
    for (family, value) in [
        (&RECOVERY_BYTES, bytes),
        (&RECOVERY_BLOCKS, blocks),
        (&COLD_STARTS, cold_starts),
        (&PEERS, replica.other_urls().len() as u64),
        (&COMPARED, compared_streams),
        (&DIFFERING, differing_streams),
        (&DIFFERING_REGISTRATIONS, differing_registrations),
    ] {
        add(family, &[], value);
    }
    let present = replica.phase();
    for phase in [Phase::Waiting, Phase::Loading, Phase::Ready, Phase::Stopping] {
        add(&PHASE, &[("phase", phase_word(phase))], u64::from(phase == present));
    }
    for (source, outcome, count) in attempts {
        add(&ATTEMPTS, &[("source", source), ("outcome", outcome)], count);
    }
    for (reason, count) in refused {
        add(&REFUSED, &[("reason", reason)], count);
    }
    for (outcome, count) in refills {
        add(&REFILLS, &[("outcome", outcome)], count);
    }
    for (outcome, count) in files_written {
        add(&FILES, &[("outcome", outcome)], count);
    }
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Loading => "loading",
        Phase::Ready => "ready",
        Phase::Stopping => "stopping",
    }
}

fn of_fleet(views: &[WorkerView], indexes: &[(IndexKey, Stats)]) -> Vec<Sample> {
    let mut samples = vec![
        Sample { family: &MODELS, labels: Vec::new(), value: indexes.len() as f64 },
        Sample { family: &WORKERS, labels: Vec::new(), value: views.len() as f64 },
    ];
    for status in [Status::Pending, Status::Active, Status::Paused, Status::Failed] {
        let count =
            views.iter().flat_map(|view| view.ranks.values()).filter(|rank| rank.stream.status == status).count();
        samples.push(Sample {
            family: &LISTENERS,
            labels: vec![("status", status.as_str().to_owned())],
            value: count as f64,
        });
    }
    for (key, stats) in indexes {
        for (family, value) in [
            (&HELD, stats.held_blocks),
            (&CONTENT, stats.content_blocks),
            (&NODES, stats.nodes),
            (&OWNERS, stats.owners),
            (&INDEX_BYTES, stats.bytes),
            (&EVICTED, stats.evicted_blocks),
        ] {
            samples.push(Sample { family, labels: index_labels(key), value: value as f64 });
        }
    }
    samples
}

fn index_labels(key: &IndexKey) -> Vec<(&'static str, String)> {
    vec![("model", key.model.to_string()), ("tenant", key.tenant.to_string())]
}

fn of_owner(samples: &mut Vec<Sample>, rank: &RankView, now_ms: u64) {
    let mut owner = index_labels(&rank.spec.key);
    owner.push(("instance_id", rank.spec.owner.instance.to_string()));
    owner.push(("dp_rank", rank.spec.owner.rank.to_string()));
    let mut add = |family: &'static Family, extra: Option<(&'static str, &'static str)>, value: f64| {
        let mut labels = owner.clone();
        labels.extend(extra.map(|(name, word)| (name, word.to_owned())));
        samples.push(Sample { family, labels, value });
    };
    let (stream, report) = (&rank.stream, &rank.report);
    for (family, value) in [
        (&RESTARTS, stream.restarts),
        (&GAPS, stream.gaps),
        (&MISSING, stream.missing_batches),
        (&DUPLICATE_BATCHES, stream.duplicates),
        (&MALFORMED, stream.malformed),
        (&CONNECTS, stream.connects),
        (&DUPLICATE_STORES, report.duplicate_stores),
        (&PENDING, report.pending_blocks),
    ] {
        add(family, None, value as f64);
    }
    for (outcome, value) in [
        ("complete", stream.replays_complete),
        ("incomplete", stream.replays_incomplete),
        ("failed", stream.replays_failed),
    ] {
        add(&REPLAYS, Some(("outcome", outcome)), value as f64);
    }
    for (event, value) in ["stored", "removed", "cleared"].into_iter().zip(report.applied) {
        add(&APPLIED, Some(("event_type", event)), value as f64);
    }
    // Reasons that never occurred are left out: they are many, and most never do.
    for (reason, count) in SkipReason::ALL.iter().zip(&report.skipped).filter(|(_, count)| **count > 0) {
        add(&SKIPPED, Some(("reason", reason.as_str())), *count as f64);
    }
    for (reason, count) in IgnoreReason::ALL.iter().zip(&report.ignored).filter(|(_, count)| **count > 0) {
        add(&IGNORED, Some(("reason", reason.as_str())), *count as f64);
    }
    for tier in Tier::ALL {
        add(&BLOCKS, Some(("tier", tier.as_str())), report.blocks[tier as usize] as f64);
    }
    let present = report.trust.state();
    for state in TrustState::ALL {
        add(&TRUST, Some(("state", state.as_str())), if *state == present { 1.0 } else { 0.0 });
    }
    for reason in report.trust.reasons() {
        add(&TRUST_REASON, Some(("reason", Reason::as_str(reason))), 1.0);
    }
    if let Some(lag_ms) = stream.lag_ms {
        add(&LAG, None, lag_ms as f64 / 1000.0);
    }
    if let Some(at_ms) = stream.last_event_ms {
        add(&AGE, None, now_ms.saturating_sub(at_ms) as f64 / 1000.0);
    }
    if let Some(seq) = stream.last_seq {
        add(&LAST_SEQ, None, seq.0 as f64);
    }
}
