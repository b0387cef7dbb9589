//! Two routes that pause and resume a listener, for tests of clients. They exist only when the configuration says so.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{self, present};
use super::error::{Error, ErrorBody};
use super::register::{DONE, Done};
use super::{AppState, openapi};
use crate::ids::{DpRank, InstanceId};

/// Body of both routes.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ListenerBody {
    /// The instance.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = openapi::InstanceId, required)]
    instance_id: Option<InstanceId>,
    /// One rank of it; all if absent.
    dp_rank: Option<u32>,
}

/// Closes the connection of a listener; its last number is kept.
#[utoipa::path(
    post, path = "/test/pause_listener", tag = "test", request_body = ListenerBody,
    responses((status = 200, body = Done), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn pause_listener(State(state): State<AppState>, request: Request<Body>) -> Result<Json<Done>, Error> {
    let (instance, rank) = listener(&state.read_json(request).await?)?;
    state.registry.pause(&instance, rank).await?;
    Ok(DONE)
}

/// Connects a paused or failed listener anew.
#[utoipa::path(
    post, path = "/test/resume_listener", tag = "test", request_body = ListenerBody,
    responses((status = 200, body = Done), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn resume_listener(
    State(state): State<AppState>,
    request: Request<Body>,
) -> Result<Json<Done>, Error> {
    let (instance, rank) = listener(&state.read_json(request).await?)?;
    state.registry.resume(&instance, rank).await?;
    Ok(DONE)
}

fn listener(bytes: &[u8]) -> Result<(InstanceId, Option<DpRank>), Error> {
    let body: ListenerBody = body::json(bytes)?;
    let instance = body.instance_id.ok_or_else(|| Error::field("instance_id", "missing field"))?;
    Ok((instance, body.dp_rank.map(DpRank)))
}
