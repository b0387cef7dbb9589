//! The HTTP API: queries, registrations, what is known about workers, metrics, and a page for people.
//!
//! Connections live on threads of their own (`server`), where queries are answered; everything else goes from there to
//! the runtime of the service. Handlers are thin: they read a body, ask the registry or an index, and write an answer.
//! Every failure goes through `error`. Invariants: an index is read under one lock that is never held across an await;
//! what a client sends is bounded before it is stored; every error has a JSON body.

mod access;
#[doc(hidden)]
pub mod bench_support;
mod body;
mod dump;
mod error;
mod explain;
mod mooncake;
mod names;
mod openapi;
mod overview;
mod page;
mod peers;
mod pieces;
mod query;
mod register;
mod replicas;
mod reply;
mod routes;
mod scan;
mod scrape;
mod server;
mod stall;
mod test_routes;
mod verify;
mod workers;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use tokio::sync::Semaphore;

pub use access::AccessLog;
pub use routes::{PATHS, Routes};
pub use server::{ServerLimits, serve};

use crate::ids::IndexKey;
use crate::index::SharedIndex;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::recovery::{Forwarder, Replica};
use crate::registry::Registry;
use error::Error;

/// Bounds of requests, and which routes exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpConfig {
    /// Largest body of `/query`, `/query_by_hash` and `/explain`, in bytes.
    pub query_body_bytes_max: usize,
    /// Largest body of other requests, in bytes.
    pub body_bytes_max: usize,
    /// Requests at work at once; beyond it 503 `overloaded`. Probes, `/metrics`, `/digest` and `/snapshot` are answered
    /// beyond it.
    pub requests_in_flight_max: usize,
    /// Serves `/test/pause_listener` and `/test/resume_listener`.
    pub test_endpoints: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            query_body_bytes_max: 64 << 20,
            body_bytes_max: 2 << 20,
            requests_in_flight_max: 1024,
            test_endpoints: false,
        }
    }
}

/// What the handlers work with.
pub struct Services {
    /// Owns workers and indexes.
    pub registry: Arc<Registry>,
    /// Says whether queries are answered.
    pub readiness: Readiness,
    /// Who this replica is, and the others.
    pub replica: Replica,
    /// Tells the others of registrations by hand, if that is wanted.
    pub forwarder: Option<Forwarder>,
    /// Counts requests; rendered by `/metrics`.
    pub metrics: Arc<Metrics>,
    /// A line per request, if wanted.
    pub access_log: Option<AccessLog>,
    /// Bounds.
    pub config: HttpConfig,
}

/// State of the router: one reference, cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

/// The services and what the room adds to them.
pub(crate) struct Inner {
    services: Services,
    in_flight: Semaphore,
    dumps: Arc<Semaphore>,
    snapshots: Arc<Semaphore>,
    verifications: Arc<Semaphore>,
}

impl AppState {
    /// State around `services`.
    #[must_use]
    pub fn new(services: Services) -> Self {
        let places = |number| Arc::new(Semaphore::new(number));
        Self(Arc::new(Inner {
            in_flight: Semaphore::new(services.config.requests_in_flight_max.min(Semaphore::MAX_PERMITS)),
            dumps: places(dump::DUMPS_MAX),
            snapshots: places(replicas::SNAPSHOTS_MAX),
            verifications: places(verify::VERIFICATIONS_MAX),
            services,
        }))
    }

    fn check_ready(&self) -> Result<(), Error> {
        if self.readiness.is_serving() { Ok(()) } else { Err(Error::NotReady(self.readiness.reasons().join("; "))) }
    }

    fn index(&self, key: &IndexKey) -> Result<Arc<SharedIndex>, Error> {
        self.registry.index(key).ok_or_else(|| Error::UnknownIndex(key.clone()))
    }

    /// Body of a request that changes something.
    async fn read_json(&self, request: Request<Body>) -> Result<Bytes, Error> {
        body::form(request.headers(), false)?;
        body::read(request.into_body(), self.config.body_bytes_max).await
    }
}

impl std::ops::Deref for AppState {
    type Target = Services;
    fn deref(&self) -> &Services {
        &self.0.services
    }
}

/// The whole API.
pub fn router(state: AppState) -> Routes {
    Routes::new(state)
}
