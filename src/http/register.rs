//! `/register` and `/unregister`, in the documented words and in Mooncake's.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::body::{self, present};
use super::error::{Error, ErrorBody};
use super::{AppState, mooncake, names, openapi};
use crate::ids::{BlockSize, DpRank, DuplicatePolicy, IndexKey, InstanceId, Owner, Role, Source, TenantId};
use crate::index::OwnerSpec;
use crate::recovery::{FORWARDED_HEADER, Outcomes};
use crate::registry::{self, Endpoint, EndpointError, Unregister, WorkerSpec};

/// Body of `/register`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RegisterBody {
    /// A number, or a text of 1 to 317 bytes; `7` and `"7"` are one instance.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = openapi::InstanceId, required)]
    instance_id: Option<InstanceId>,
    /// Address of the publisher: `tcp://host:port` or `ipc://path`.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    endpoint: Option<String>,
    /// Model of the index.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    model_name: Option<String>,
    #[serde(default)]
    #[schema(ignore)]
    model: Option<Value>,
    #[serde(default)]
    #[schema(ignore)]
    modelname: Option<Value>,
    /// Tokens per block, at least 1; the first registration of an index fixes it.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    block_size: Option<u32>,
    /// Tenant of the index; `default` if absent.
    #[serde(default, deserialize_with = "present")]
    tenant_id: Option<String>,
    /// Another name for `tenant_id`.
    #[serde(default, deserialize_with = "present")]
    routing_group: Option<String>,
    /// Data-parallel rank; 0 if absent.
    dp_rank: Option<u32>,
    /// Address of the publisher's replay socket.
    replay_endpoint: Option<String>,
    /// Kept and echoed; without effect.
    #[serde(alias = "additionalsalt")]
    additional_salt: Option<String>,
    /// Takes the place of a registration with another address.
    replace: Option<bool>,
    /// How repeated stores of one block count.
    duplicate_policy: Option<DuplicatePolicyWord>,
    /// `store` for a shared pool, which extends the external tier of every worker.
    role: Option<RoleWord>,
    /// Ages out blocks of the lower tiers, for engines that never announce their removal.
    lower_tier_ttl_s: Option<u64>,
    /// Subscribes to this topic only.
    topic: Option<String>,
    #[serde(default, rename = "type")]
    #[schema(ignore)]
    kind: Option<Value>,
    #[serde(default)]
    #[schema(ignore)]
    lora_name: Option<Value>,
    #[serde(default)]
    #[schema(ignore)]
    medium_endpoints: Option<Value>,
}

/// Words of `duplicate_policy`.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DuplicatePolicyWord {
    /// `copies` for hybrid models, else `set`.
    Auto,
    /// Storing twice is one block.
    Set,
    /// Each store adds a copy, each removal takes one.
    Copies,
}

/// Words of `role`.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RoleWord {
    /// An engine.
    Worker,
    /// A shared pool.
    Store,
}

/// Body of `/unregister`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct UnregisterBody {
    /// The instance to remove.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = openapi::InstanceId, required)]
    instance_id: Option<InstanceId>,
    /// Model of the index.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    model_name: Option<String>,
    #[serde(default)]
    #[schema(ignore)]
    model: Option<Value>,
    #[serde(default)]
    #[schema(ignore)]
    modelname: Option<Value>,
    /// Tenant of the index; all tenants of the model if absent.
    #[serde(default, deserialize_with = "present")]
    tenant_id: Option<String>,
    /// Another name for `tenant_id`.
    #[serde(default, deserialize_with = "present")]
    routing_group: Option<String>,
    /// Removes this rank only.
    dp_rank: Option<u32>,
    #[serde(default, rename = "type")]
    #[schema(ignore)]
    kind: Option<Value>,
}

/// Answer of a change that succeeded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    /// Always `ok`.
    status: &'static str,
    /// What each peer said, by its address: `ok`, or why not. Only where the request was sent on to peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<BTreeMap<String, String>>,
}

/// The answer `{"status":"ok"}`.
pub(crate) const DONE: Json<Done> = Json(Done { status: "ok", peers: None });

/// Registers a publisher and starts to read its events. In a replica set the request is sent on to all peers.
#[utoipa::path(
    post, path = "/register", tag = "workers", request_body = RegisterBody,
    responses(
        (status = 201, body = Done),
        (status = 400, description = "bad JSON, address or block size", body = ErrorBody),
        (status = 409, description = "conflicts with what is registered", body = ErrorBody),
        (status = 422, description = "wrong shape", body = ErrorBody)
    )
)]
pub(crate) async fn register(State(state): State<AppState>, request: Request<Body>) -> Result<Response, Error> {
    let by_client = !request.headers().contains_key(FORWARDED_HEADER);
    let bytes = state.read_json(request).await?;
    let body: RegisterBody = body::json(&bytes)?;
    let mooncake = body.is_mooncake();
    let replace = body.replace.unwrap_or(false);
    let spec = body.into_spec()?;
    let instance = spec.owner.instance.clone();
    state.registry.register(spec, Source::Manual, replace).await?;
    let peers = state.forward("/register", by_client, bytes).await;
    if mooncake {
        let answer = serde_json::json!({"status": "registered successfully", "instance_id": instance});
        return Ok(Json(answer).into_response());
    }
    Ok((StatusCode::CREATED, Json(Done { status: "ok", peers })).into_response())
}

/// Removes a worker, or one of its ranks, with its blocks. In a replica set the request is sent on to all peers, also if
/// the worker is unknown here; one that had it is enough for success.
#[utoipa::path(
    post, path = "/unregister", tag = "workers", request_body = UnregisterBody,
    responses(
        (status = 200, body = Done),
        (status = 404, description = "no such instance or rank", body = ErrorBody),
        (status = 422, description = "wrong shape", body = ErrorBody)
    )
)]
pub(crate) async fn unregister(State(state): State<AppState>, request: Request<Body>) -> Result<Response, Error> {
    let by_client = !request.headers().contains_key(FORWARDED_HEADER);
    let bytes = state.read_json(request).await?;
    let body: UnregisterBody = body::json(&bytes)?;
    let mooncake = is_mooncake(body.model_name.as_ref(), [&body.model, &body.modelname, &body.kind]);
    let removed = state.registry.unregister(body.into_request(mooncake)?).await;
    let peers = match &removed {
        Ok(_) | Err(registry::Error::UnknownInstance(_) | registry::Error::UnknownRank { .. }) => {
            state.forward("/unregister", by_client, bytes).await
        }
        Err(_) => None,
    };
    let had_it = peers.iter().flatten().any(|(_, outcome)| outcome == "ok");
    let removed = if had_it { removed.unwrap_or_default() } else { removed? };
    if mooncake {
        let word = |(key, owner): &(IndexKey, Owner)| format!("{}|{}|{}", owner.instance, key.tenant, owner.rank);
        let removed: Vec<_> = removed.iter().map(word).collect();
        let answer = serde_json::json!({"status": "unregistered successfully", "removed_instances": removed});
        return Ok(Json(answer).into_response());
    }
    Ok(Json(Done { status: "ok", peers }).into_response())
}

impl AppState {
    /// Sends a change that a client asked for on to all peers, if that is wanted. None if there was nobody to tell.
    async fn forward(&self, path: &'static str, by_client: bool, body: Bytes) -> Option<Outcomes> {
        let forwarder = self.forwarder.as_ref().filter(|_| by_client)?;
        let outcomes = forwarder.forward(path, body).await;
        (!outcomes.is_empty()).then_some(outcomes)
    }
}

fn is_mooncake(model_name: Option<&String>, words: [&Option<Value>; 3]) -> bool {
    model_name.is_none() && words.into_iter().any(Option::is_some)
}

/// A text field of Mooncake's words; null counts as absent.
fn text(name: &'static str, value: Option<Value>) -> Result<Option<String>, Error> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::field(name, "must be a text")),
    }
}

fn endpoint(text: &str) -> Result<Endpoint, Error> {
    Endpoint::parse(text).map_err(|source: EndpointError| Error::InvalidEndpoint { text: text.to_owned(), source })
}

fn replay_endpoint(text: &str) -> Result<Endpoint, Error> {
    Endpoint::parse(text).map_err(|source| Error::InvalidReplayEndpoint { text: text.to_owned(), source })
}

/// The one address in `medium_endpoints`.
fn only_medium_endpoint(value: Option<Value>) -> Result<String, Error> {
    let Some(Value::Object(media)) = value else {
        return Err(Error::field("endpoint", "missing field"));
    };
    let mut addresses: Vec<_> = media.values().filter_map(Value::as_str).filter(|text| !text.is_empty()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    match addresses[..] {
        [one] => Ok(one.to_owned()),
        [] => Err(Error::field("endpoint", "missing field")),
        _ => Err(Error::field("medium_endpoints", "must name one address; register each further publisher by itself")),
    }
}

impl RegisterBody {
    fn is_mooncake(&self) -> bool {
        is_mooncake(self.model_name.as_ref(), [&self.model, &self.modelname, &self.kind])
    }

    fn into_spec(self) -> Result<WorkerSpec, Error> {
        let mooncake = self.is_mooncake();
        let missing = |name| Error::field(name, "missing field");
        let instance = self.instance_id.ok_or_else(|| missing("instance_id"))?;
        let model = match mooncake {
            true => mooncake::model(text("model", self.model)?, text("modelname", self.modelname)?)?,
            false => names::model(self.model_name, [&self.model, &self.modelname])?,
        };
        let kind = if mooncake { text("type", self.kind)? } else { None };
        let address = match self.endpoint {
            Some(address) => address,
            None if mooncake => only_medium_endpoint(self.medium_endpoints)?,
            None => return Err(missing("endpoint")),
        };
        let tokens = self.block_size.ok_or_else(|| missing("block_size"))?;
        let tenant = names::tenant(self.tenant_id, self.routing_group)?.unwrap_or_default();
        let block_size = BlockSize::new(tokens).ok_or(Error::InvalidBlockSize)?;
        let pool = kind.is_some_and(|kind| kind.eq_ignore_ascii_case("mooncake"));
        let role = match self.role {
            Some(RoleWord::Worker) => Role::Worker,
            Some(RoleWord::Store) => Role::Store,
            None if pool => Role::Store,
            None => Role::Worker,
        };
        let policy = match self.duplicate_policy {
            None | Some(DuplicatePolicyWord::Auto) => DuplicatePolicy::Auto,
            Some(DuplicatePolicyWord::Set) => DuplicatePolicy::Set,
            Some(DuplicatePolicyWord::Copies) => DuplicatePolicy::Copies,
        };
        Ok(WorkerSpec {
            key: IndexKey { model, tenant },
            owner: Owner { instance, rank: DpRank(self.dp_rank.unwrap_or(0)) },
            block_size,
            endpoint: endpoint(&address)?,
            replay_endpoint: self.replay_endpoint.as_deref().map(replay_endpoint).transpose()?,
            topic: self.topic,
            additional_salt: self.additional_salt,
            default_lora: if mooncake {
                text("lora_name", self.lora_name)?.filter(|name| !name.is_empty())
            } else {
                None
            },
            owner_spec: OwnerSpec {
                policy,
                role,
                lower_tier_ttl_ms: self.lower_tier_ttl_s.map(|seconds| seconds.saturating_mul(1000)),
            },
            incarnation: None,
        })
    }
}

impl UnregisterBody {
    fn into_request(self, mooncake: bool) -> Result<Unregister, Error> {
        let instance = self.instance_id.ok_or_else(|| Error::field("instance_id", "missing field"))?;
        let tenant = names::tenant(self.tenant_id, self.routing_group)?;
        let (model, tenant) = match mooncake {
            // Mooncake's tenant has a default; in the documented words its absence means every tenant.
            true => {
                let model = mooncake::model(text("model", self.model)?, text("modelname", self.modelname)?)?;
                (model, Some(tenant.unwrap_or_else(TenantId::default)))
            }
            false => (names::model(self.model_name, [&self.model, &self.modelname])?, tenant),
        };
        Ok(Unregister { model, tenant, instance, rank: self.dp_rank.map(DpRank) })
    }
}

#[cfg(test)]
mod tests;
