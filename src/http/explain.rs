//! `/explain`: for a prompt, where the match of each worker ends and why.

use std::collections::HashMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{Error, ErrorBody};
use super::query::{QueryBody, tokens_json};
use super::workers::TrustView;
use super::{AppState, body, openapi};
use crate::hash;
use crate::ids::{BlockSize, InstanceId, LocalHash, Namespace, Owner, Tier};
use crate::index::{Explanation, MatchEnd, PrefixIndex, StopReason};

/// Namespaces that are tried for one explanation: each costs a hash of the whole prompt.
const NAMESPACES_MAX: usize = 64;

/// Answer of `/explain`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explained {
    /// Model of the index.
    model_name: String,
    /// Tenant of the index.
    tenant_id: String,
    /// Tokens per block.
    block_size: u32,
    /// Whole blocks of the prompt.
    blocks: usize,
    /// One entry per rank that the index knows.
    owners: Vec<OwnerExplained>,
}

/// One rank.
#[derive(Debug, Serialize, ToSchema)]
struct OwnerExplained {
    /// Number or text.
    #[schema(value_type = openapi::InstanceId)]
    instance_id: InstanceId,
    /// Data-parallel rank.
    dp_rank: u32,
    /// False for a rank that only batches named.
    registered: bool,
    /// How far the blocks can be believed.
    trust: TrustView,
    /// Where the device tier ends.
    device: End,
    /// Where all tiers together end.
    all_tiers: End,
}

/// Where a match ends.
#[derive(Debug, Serialize, ToSchema)]
struct End {
    /// Matched blocks.
    blocks: u32,
    /// Matched tokens.
    tokens: u64,
    /// Why, as a stable word.
    reason: &'static str,
    /// Why, for people.
    text: String,
    /// Engine hash of the removed block, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_hash: Option<String>,
    /// Number of the batch that removed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_by_seq: Option<u64>,
    /// When it was removed, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_at_ms: Option<u64>,
    /// Tiers that hold the block.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<&'static str>,
}

/// Takes the body of `/query` and tells for each rank why its match ends where it ends.
#[utoipa::path(
    post, path = "/explain", tag = "queries", request_body = QueryBody,
    responses(
        (status = 200, body = Explained),
        (status = "4XX", body = ErrorBody),
        (status = 503, description = "not ready, or overloaded", body = ErrorBody)
    )
)]
pub(super) async fn explain(State(state): State<AppState>, request: Request<Body>) -> Result<Json<Explained>, Error> {
    state.check_ready()?;
    body::form(request.headers(), false)?;
    let bytes = body::read(request.into_body(), state.config.query_body_bytes_max).await?;
    let query = tokens_json(&bytes)?;
    let target = query.target()?;
    let index = state.index(&target.key)?;
    let block_size = index.block_size();
    let prompt = query.local_hashes(block_size)?;
    let explanations = {
        let index = index.read();
        let mut explanations = index.explain(&prompt);
        if let Some(tokens) = query.plain_tokens() {
            look_elsewhere(&index, &mut explanations, (&prompt, tokens));
        }
        explanations
    };
    let mut owners: Vec<_> = explanations
        .into_iter()
        .filter(|explanation| !target.matched_only || explanation.total_end.blocks > 0)
        .map(|explanation| OwnerExplained::new(explanation, block_size))
        .collect();
    owners.sort_by(|a, b| (&a.instance_id, a.dp_rank).cmp(&(&b.instance_id, b.dp_rank)));
    Ok(Json(Explained {
        model_name: target.key.model.to_string(),
        tenant_id: target.key.tenant.to_string(),
        block_size: block_size.tokens(),
        blocks: prompt.len(),
        owners,
    }))
}

/// Where a worker lacks the next block: does it hold a longer part of the same tokens in another namespace?
fn look_elsewhere(index: &PrefixIndex, explanations: &mut [Explanation], asked: (&[LocalHash], &[u8])) {
    let (own, token_bytes) = asked;
    let is_open = |reason: &StopReason| matches!(reason, StopReason::NeverStored | StopReason::RemovedOrNeverStored);
    if !explanations.iter().any(|explanation| is_open(&explanation.total_end.reason)) {
        return;
    }
    let mut elsewhere: HashMap<Owner, Vec<(Namespace, u32)>> = HashMap::new();
    for namespace in index.namespaces(NAMESPACES_MAX) {
        let prompt = hash::local_hashes(token_bytes, index.block_size(), namespace);
        if prompt == own {
            continue;
        }
        for row in index.find(&prompt).owners().filter(|row| row.disk > 0) {
            elsewhere.entry(row.owner.clone()).or_default().push((namespace, row.disk));
        }
    }
    for explanation in explanations {
        let Some(found) = elsewhere.get(&explanation.owner) else { continue };
        for end in [&mut explanation.device_end, &mut explanation.total_end] {
            let longer = found.iter().filter(|(_, blocks)| *blocks > end.blocks).map(|(namespace, _)| *namespace);
            let namespaces: Vec<_> = longer.collect();
            if is_open(&end.reason) && !namespaces.is_empty() {
                end.reason = StopReason::OtherNamespace { namespaces };
            }
        }
    }
}

impl OwnerExplained {
    fn new(explanation: Explanation, block_size: BlockSize) -> Self {
        Self {
            instance_id: explanation.owner.instance,
            dp_rank: explanation.owner.rank.0,
            registered: explanation.registered,
            trust: TrustView::from(&explanation.trust),
            device: End::new(&explanation.device_end, block_size),
            all_tiers: End::new(&explanation.total_end, block_size),
        }
    }
}

impl End {
    fn new(end: &MatchEnd, block_size: BlockSize) -> Self {
        let (reason, text) = words(&end.reason);
        let removed = match end.reason {
            StopReason::Removed { hash, seq, at_ms } => Some((hash.0.to_string(), seq.0, at_ms)),
            _ => None,
        };
        let tiers = match &end.reason {
            StopReason::OtherTier { tiers } => tiers.iter().map(|tier| tier.as_str()).collect(),
            _ => Vec::new(),
        };
        Self {
            blocks: end.blocks,
            tokens: u64::from(end.blocks) * u64::from(block_size.tokens()),
            reason,
            text,
            removed_hash: removed.as_ref().map(|(hash, ..)| hash.clone()),
            removed_by_seq: removed.as_ref().map(|(_, seq, _)| *seq),
            removed_at_ms: removed.map(|(.., at_ms)| at_ms),
            tiers,
        }
    }
}

/// The stable word and the sentence of a reason.
fn words(reason: &StopReason) -> (&'static str, String) {
    match reason {
        StopReason::WholeQuery => ("whole_query", "the whole prompt matches".to_owned()),
        StopReason::NeverStored => ("never_stored", "this worker never announced the next block".to_owned()),
        StopReason::Removed { hash, seq, .. } => {
            ("removed", format!("the worker removed the next block (hash {}) with batch {seq}", hash.0))
        }
        StopReason::RemovedOrNeverStored => (
            "removed_or_never_stored",
            "the next block was removed longer ago than is remembered, or never stored".to_owned(),
        ),
        StopReason::OtherTier { tiers } => {
            let tiers = tiers.iter().map(|tier: &Tier| tier.as_str()).collect::<Vec<_>>().join(", ");
            ("other_tier", format!("the worker holds the next block only on {tiers}, which is not reached from here"))
        }
        StopReason::OtherNamespace { namespaces } => {
            let names = namespaces.iter().map(namespace).collect::<Vec<_>>().join(", ");
            ("other_namespace", format!("the worker holds equal tokens in another namespace ({names})"))
        }
        StopReason::PendingParent { pending } => (
            "pending_parent",
            format!(
                "{pending} blocks of this worker wait for a parent nobody announced; the next one may be among them"
            ),
        ),
        StopReason::SideGroup { group } => {
            ("side_group", format!("cache group {group} does not hold what the engine needs to reuse a longer prefix"))
        }
        StopReason::BrokenChain => ("broken_chain", "the parent of the next block is gone".to_owned()),
        StopReason::WrongBlockSize { announced } => (
            "wrong_block_size",
            format!("the engine announces blocks of {announced} tokens, which do not fit this index"),
        ),
        StopReason::NotConnected => {
            ("not_connected", "the worker is not connected, or nothing was heard of it".to_owned())
        }
    }
}

fn namespace(namespace: &Namespace) -> String {
    match (namespace.lora, namespace.salt) {
        (None, None) => "plain".to_owned(),
        (Some(_), None) => "a LoRA adapter".to_owned(),
        (None, Some(_)) => "a cache salt".to_owned(),
        (Some(_), Some(_)) => "a LoRA adapter with a cache salt".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EngineHash, Seq};

    #[test]
    fn an_end_tells_what_is_known_about_it() {
        let block_size = BlockSize::new(16).unwrap();
        let reason = StopReason::Removed { hash: EngineHash(u64::MAX), seq: Seq(4), at_ms: 9 };
        let removed = serde_json::to_value(End::new(&MatchEnd { blocks: 3, reason }, block_size)).unwrap();
        let want = serde_json::json!({
            "blocks": 3, "tokens": 48, "reason": "removed",
            "text": "the worker removed the next block (hash 18446744073709551615) with batch 4",
            "removed_hash": "18446744073709551615", "removed_by_seq": 4, "removed_at_ms": 9
        });
        assert_eq!(removed, want);
        let reason = StopReason::OtherTier { tiers: vec![Tier::Disk, Tier::External] };
        let elsewhere = serde_json::to_value(End::new(&MatchEnd { blocks: 0, reason }, block_size)).unwrap();
        assert_eq!(elsewhere["tiers"], serde_json::json!(["disk", "external"]));
    }
}
