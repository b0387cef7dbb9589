//! The routes that read and change the list of other replicas.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use serde::Deserialize;
use utoipa::ToSchema;

use super::AppState;
use super::body::{self, present};
use super::error::{Error, ErrorBody};
use super::register::{DONE, Done};
use crate::recovery::PEERS_MAX;

/// Body of `/register_peer` and `/deregister_peer`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct PeerBody {
    /// Address of the replica, for example `http://kvindexer-1:8090`.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    url: Option<String>,
}

/// The known peers.
#[utoipa::path(get, path = "/peers", tag = "peers", responses((status = 200, body = Vec<String>)))]
pub(super) async fn peers(State(state): State<AppState>) -> Json<Vec<String>> {
    Json(state.replica.peers().urls())
}

/// Adds a peer to the list.
#[utoipa::path(
    post, path = "/register_peer", tag = "peers", request_body = PeerBody,
    responses((status = 201, body = Done), (status = 422, body = ErrorBody))
)]
pub(super) async fn register_peer(
    State(state): State<AppState>,
    request: Request<Body>,
) -> Result<(StatusCode, Json<Done>), Error> {
    let url = url(&state.read_json(request).await?)?;
    if !state.replica.peers().add(&url) {
        return Err(Error::InvalidBody(format!("the list already holds {PEERS_MAX} peers")));
    }
    Ok((StatusCode::CREATED, DONE))
}

/// Removes a peer from the list.
#[utoipa::path(
    post, path = "/deregister_peer", tag = "peers", request_body = PeerBody,
    responses((status = 200, body = Done), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody))
)]
pub(super) async fn deregister_peer(
    State(state): State<AppState>,
    request: Request<Body>,
) -> Result<Json<Done>, Error> {
    let url = url(&state.read_json(request).await?)?;
    if state.replica.peers().remove(&url) { Ok(DONE) } else { Err(Error::UnknownPeer) }
}

fn url(bytes: &[u8]) -> Result<String, Error> {
    body::json::<PeerBody>(bytes)?.url.ok_or_else(|| Error::field("url", "missing field"))
}
