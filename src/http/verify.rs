//! `/verify`: one rank rebuilt from its publisher's whole replay, beside the live state, and compared with it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{self, present};
use super::error::{Error, ErrorBody};
use super::{AppState, names, openapi};
use crate::ids::{DpRank, IndexKey, InstanceId, Owner};
use crate::index::DumpBlock;
use crate::registry::Verification;

/// Comparisons at once: each holds a second copy of its rank, and asks an engine for all that it remembers.
pub(super) const VERIFICATIONS_MAX: usize = 1;

/// A publisher that sends nothing for so long is not waited for.
const IDLE: Duration = Duration::from_secs(5);

/// Body of `/verify`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct VerifyBody {
    /// Model of the index.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    model_name: Option<String>,
    /// Tenant of the index; `default` if absent.
    #[serde(default, deserialize_with = "present")]
    tenant_id: Option<String>,
    /// Another name for `tenant_id`.
    #[serde(default, deserialize_with = "present")]
    routing_group: Option<String>,
    /// The instance.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = openapi::InstanceId, required)]
    instance_id: Option<InstanceId>,
    /// Its rank; 0 if absent.
    dp_rank: Option<u32>,
}

/// Answer of `/verify`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Verified {
    /// Model of the index.
    model_name: String,
    /// Tenant of the index.
    tenant_id: String,
    /// The instance.
    #[schema(value_type = openapi::InstanceId)]
    instance_id: InstanceId,
    /// Its rank.
    dp_rank: u32,
    /// The publisher still had everything from its first batch on: only then the comparison counts.
    complete: bool,
    /// Whether both states are the same; null if the comparison does not count.
    equal: Option<bool>,
    /// Number of the batch after which both states were compared.
    at: Option<u64>,
    /// First number that the publisher still had.
    replayed_from: Option<u64>,
    /// Blocks in the rebuilt state.
    rebuilt_blocks: u64,
    /// Blocks in the live state.
    live_blocks: u64,
    /// Blocks that the live state lacks.
    missing: Difference,
    /// Blocks that the live state has too much.
    surplus: Difference,
}

/// Blocks that stand on one side only.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Difference {
    /// How many.
    count: u64,
    /// The first of them.
    first: Vec<Block>,
}

/// One block. Hashes are decimal texts: many JSON readers would round them as numbers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Block {
    /// Where it lies.
    tier: &'static str,
    /// Hash of the block before; null at the root.
    parent_hash: Option<String>,
    /// The engine's hash.
    block_hash: String,
    /// Local hash of its content.
    tokens_hash: String,
    /// It waits for its parent.
    pending: bool,
}

/// Rebuilds one rank from a replay from the first batch on and compares it with the live state, which is not changed.
#[utoipa::path(
    post, path = "/verify", tag = "operation", request_body = VerifyBody,
    responses(
        (status = 200, body = Verified),
        (status = 404, description = "no such index, instance or rank", body = ErrorBody),
        (status = 409, description = "the rank has no replay endpoint", body = ErrorBody),
        (status = 422, description = "wrong shape", body = ErrorBody),
        (status = 503, description = "not ready, or another comparison runs", body = ErrorBody),
        (status = 504, description = "the publisher does not answer", body = ErrorBody)
    )
)]
pub(super) async fn verify(State(state): State<AppState>, request: Request<Body>) -> Result<Json<Verified>, Error> {
    let (key, owner) = body::json::<VerifyBody>(&state.read_json(request).await?)?.into_owner()?;
    state.check_ready()?;
    state.index(&key)?;
    let _turn = Arc::clone(&state.0.verifications).try_acquire_owned().map_err(|_| Error::Overloaded)?;
    let verification = state.registry.verify(&key, &owner, IDLE).await?;
    Ok(Json(Verified::new(key, verification)))
}

impl VerifyBody {
    fn into_owner(self) -> Result<(IndexKey, Owner), Error> {
        let model = names::model(self.model_name, [&None, &None])?;
        let tenant = names::tenant(self.tenant_id, self.routing_group)?.unwrap_or_default();
        let instance = self.instance_id.ok_or_else(|| Error::field("instance_id", "missing field"))?;
        Ok((IndexKey { model, tenant }, Owner { instance, rank: DpRank(self.dp_rank.unwrap_or(0)) }))
    }
}

impl Verified {
    fn new(key: IndexKey, verification: Verification) -> Self {
        let Verification { owner, at, replayed_from, complete, rebuilt_blocks, live_blocks, missing, surplus } =
            verification;
        Self {
            model_name: key.model.to_string(),
            tenant_id: key.tenant.to_string(),
            dp_rank: owner.rank.0,
            instance_id: owner.instance,
            complete,
            equal: complete.then_some(missing.0 == 0 && surplus.0 == 0),
            at: at.map(|seq| seq.0),
            replayed_from: replayed_from.map(|seq| seq.0),
            rebuilt_blocks,
            live_blocks,
            missing: missing.into(),
            surplus: surplus.into(),
        }
    }
}

impl From<(u64, Vec<DumpBlock>)> for Difference {
    fn from((count, first): (u64, Vec<DumpBlock>)) -> Self {
        Self { count, first: first.into_iter().map(Block::from).collect() }
    }
}

impl From<DumpBlock> for Block {
    fn from(block: DumpBlock) -> Self {
        Self {
            tier: block.tier.as_str(),
            parent_hash: block.parent.map(|parent| parent.0.to_string()),
            block_hash: block.hash.0.to_string(),
            tokens_hash: block.local.0.to_string(),
            pending: block.pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::{EngineHash, LocalHash, Seq, Tier};

    #[test]
    fn an_incomplete_replay_says_nothing_about_equality_and_hashes_keep_all_digits() {
        let block = DumpBlock {
            tier: Tier::Disk,
            parent: None,
            hash: EngineHash(u64::MAX),
            local: LocalHash(9_007_199_254_740_993),
            pending: false,
        };
        let mut verification = Verification {
            owner: Owner::new(7, 1),
            at: Some(Seq(9)),
            replayed_from: Some(Seq(4)),
            complete: false,
            rebuilt_blocks: 3,
            live_blocks: 2,
            missing: (1, vec![block]),
            surplus: (0, Vec::new()),
        };
        let shown = |verification: &Verification| {
            serde_json::to_value(Verified::new(IndexKey::new("m", "t"), verification.clone())).unwrap()
        };
        let answer = shown(&verification);
        assert_eq!((&answer["equal"], &answer["complete"]), (&json!(null), &json!(false)));
        let want = json!({"tier": "disk", "parent_hash": null, "block_hash": "18446744073709551615",
            "tokens_hash": "9007199254740993", "pending": false});
        assert_eq!(answer["missing"], json!({"count": 1, "first": [want]}));
        verification.complete = true;
        assert_eq!(shown(&verification)["equal"], json!(false));
        verification.missing = (0, Vec::new());
        assert_eq!(shown(&verification)["equal"], json!(true));
    }
}
