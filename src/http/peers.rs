//! The list of other replicas, and the routes that change it. The list only: it asks nobody.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use utoipa::ToSchema;

use super::AppState;
use super::body::{self, present};
use super::error::{Error, ErrorBody};
use super::register::{DONE, Done};

/// Most peers that may be registered: a replica set has few, and the list is open to every client.
const PEERS_MAX: usize = 1024;

/// URLs of other replicas as they were given, unchecked; cheap to clone, all clones are one.
#[derive(Debug, Clone, Default)]
pub struct PeerList(Arc<Mutex<BTreeSet<String>>>);

impl PeerList {
    /// A list with these URLs.
    pub fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self(Arc::new(Mutex::new(urls.into_iter().collect())))
    }

    /// Adds a URL; false if the list is full. Repeating it changes nothing.
    pub fn add(&self, url: &str) -> bool {
        let mut urls = self.0.lock();
        if urls.len() >= PEERS_MAX && !urls.contains(url) {
            return false;
        }
        urls.insert(url.to_owned());
        true
    }

    /// Removes exactly this URL; false if it is not there.
    pub fn remove(&self, url: &str) -> bool {
        self.0.lock().remove(url)
    }

    /// All URLs.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}

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
    Json(state.peers.urls())
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
    if !state.peers.add(&url) {
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
    if state.peers.remove(&url) { Ok(DONE) } else { Err(Error::UnknownPeer) }
}

fn url(bytes: &[u8]) -> Result<String, Error> {
    body::json::<PeerBody>(bytes)?.url.ok_or_else(|| Error::field("url", "missing field"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_kept_once_and_removed_exactly() {
        let peers = PeerList::new(["http://a".to_owned()]);
        assert!(peers.add("http://a") && peers.add("") && peers.add("http://a/"));
        assert_eq!(peers.clone().urls(), ["", "http://a", "http://a/"]);
        assert!(peers.remove("http://a") && !peers.remove("http://a"));
    }

    #[test]
    fn the_list_is_bounded() {
        let peers = PeerList::new((0..PEERS_MAX).map(|n| n.to_string()));
        assert!(!peers.add("one more") && peers.add("0"));
    }
}
