//! `/`: gathers what the page shows. The page itself knows no other room.

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::Html;

use super::AppState;
use super::page::{self, IndexRow, View, WorkerRow};
use super::routes::PATHS;
use super::workers;
use crate::ids::Tier;
use crate::registry::{RankView, WorkerView};

/// Most rows of workers on the page; `/workers` has all.
const ROWS_MAX: usize = 500;

/// A page for people: state, indexes, workers.
#[utoipa::path(
    get, path = "/", tag = "operation",
    responses((status = 200, description = "HTML", body = String, content_type = "text/html"))
)]
pub(super) async fn page(State(state): State<AppState>) -> ([(HeaderName, &'static str); 2], Html<String>) {
    let mut views = state.registry.workers(None, None);
    views.sort_by(|a, b| (&a.key, &a.instance).cmp(&(&b.key, &b.instance)));
    let mut workers: Vec<_> =
        views.iter().flat_map(|view| view.ranks.values().map(|rank| worker_row(view, rank))).collect();
    // Whatever is in trouble stands first.
    workers.sort_by_key(|row| row.trust == "exact");
    let workers_total = workers.len();
    workers.truncate(ROWS_MAX);
    let mut indexes: Vec<_> = state.registry.indexes();
    indexes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let indexes = indexes.into_iter().map(|(key, index)| {
        let stats = index.read().stats();
        IndexRow {
            model: key.model.to_string(),
            tenant: key.tenant.to_string(),
            block_size: index.block_size().tokens(),
            ranks: stats.owners,
            held_blocks: stats.held_blocks,
            content_blocks: stats.content_blocks,
        }
    });
    let html = page::render(&View {
        version: env!("CARGO_PKG_VERSION"),
        not_ready: state.readiness.reasons(),
        indexes: indexes.collect(),
        workers,
        workers_total,
        peers: state.replica.other_urls().into_iter().collect(),
        paths: PATHS
            .iter()
            .copied()
            .filter(|path| state.config.test_endpoints || !path.starts_with("/test/"))
            .collect(),
    });
    // Nothing may be loaded or run, whatever a text contains.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    let headers = [(header::CONTENT_SECURITY_POLICY, policy), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, Html(html))
}

fn worker_row(view: &WorkerView, rank: &RankView) -> WorkerRow {
    let trust = &rank.report.trust;
    let mut reasons: Vec<_> = trust.reasons().map(|reason| reason.as_str().to_owned()).collect();
    if let Some(tokens) = rank.report.announced_block_size {
        reasons.push(format!("announces blocks of {tokens} tokens"));
    }
    WorkerRow {
        instance: view.instance.to_string(),
        rank: rank.spec.owner.rank.0,
        model: view.key.model.to_string(),
        tenant: view.key.tenant.to_string(),
        source: rank.source.as_str(),
        endpoint: workers::endpoint(rank).unwrap_or_default(),
        status: rank.stream.status.as_str(),
        trust: trust.state().as_str(),
        reasons,
        last_error: rank.stream.last_error.clone(),
        last_seq: rank.stream.last_seq.map(|seq| seq.0),
        blocks: Tier::ALL.map(|tier| rank.report.blocks[tier as usize]),
        gaps: rank.stream.gaps,
        restarts: rank.stream.restarts,
    }
}
