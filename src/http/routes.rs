//! The table of routes, and what surrounds every request: a bound, counters, the access log, and a net for panics.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::FutureExt;
use hyper::body::Incoming;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;
use utoipa::ToSchema;

use super::AppState;
use super::error::{Error, ErrorBody};
use super::register::{DONE, Done};
use super::{dump, explain, openapi, overview, peers, query, register, replicas, scrape, test_routes, verify, workers};

/// Paths of all routes, for the counters of requests; the last two exist only with test endpoints.
pub const PATHS: &[&str] = &[
    "/query",
    "/query_by_hash",
    "/health",
    "/ready",
    "/register",
    "/unregister",
    "/workers",
    "/explain",
    "/dump",
    "/snapshot",
    "/digest",
    "/verify",
    "/peers",
    "/register_peer",
    "/deregister_peer",
    "/reopen_logs",
    "/metrics",
    "/openapi.json",
    "/",
    "/test/pause_listener",
    "/test/resume_listener",
];

/// The whole API, ready to be served.
pub struct Routes {
    state: AppState,
    router: Router,
}

impl Routes {
    pub(super) fn new(state: AppState) -> Self {
        Self { router: router(state.clone()), state }
    }

    /// Answers one request. Queries are answered here and now; whatever else there is may wait, spawn and lock, and goes
    /// to the `main` runtime.
    pub(super) async fn answer(&self, request: hyper::Request<Incoming>, main: &Handle) -> Response {
        let request = request.map(Body::new);
        let state = &self.state;
        let started = Instant::now();
        let path = PATHS.iter().position(|path| *path == request.uri().path());
        let method = request.method().clone();
        let entry = state.access_log.as_ref().map(|log| log.begin(&request));
        let mut response = self.bounded(request, main).await;
        if state.readiness.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let seconds = started.elapsed().as_secs_f64();
        // A path that is known by name only (test routes that are switched off) is an unknown path.
        let counted =
            path.filter(|path| PATHS[*path] != "/metrics" && (*path < PATHS.len() - 2 || state.config.test_endpoints));
        if let Some(path) = counted {
            state.metrics.observe_request(path, method.as_str(), response.status().as_u16(), seconds);
        }
        if let (Some(log), Some(entry)) = (&state.access_log, entry) {
            log.end(entry, response.status().as_u16(), seconds);
        }
        response
    }

    /// Within the bound of requests at work, and with a net for panics.
    async fn bounded(&self, request: Request, main: &Handle) -> Response {
        // Probes, and what other replicas need of one that is busy; snapshots have a bound of their own.
        let always = matches!(request.uri().path(), "/health" | "/ready" | "/metrics" | "/digest" | "/snapshot");
        let _permit = match self.state.0.in_flight.try_acquire() {
            Ok(permit) => Some(permit),
            Err(_) if always => None,
            Err(_) => return Error::Overloaded.into_response(),
        };
        let panicked = || Error::Internal("a handler panicked".to_owned()).into_response();
        AssertUnwindSafe(self.routed(request, main)).catch_unwind().await.unwrap_or_else(|_| panicked())
    }

    async fn routed(&self, request: Request, main: &Handle) -> Response {
        let state = || State(self.state.clone());
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/query") => query::query(state(), request).await.into_response(),
            (&Method::POST, "/query_by_hash") => query::query_by_hash(state(), request).await.into_response(),
            (&Method::GET, "/health") => health().await.into_response(),
            _ => {
                let answer = self.router.clone().oneshot(request);
                // Dropped with the request, when its client goes away.
                match AbortOnDropHandle::new(main.spawn(answer)).await {
                    Ok(answer) => answer.into_response(),
                    Err(error) => Error::Internal(format!("a handler failed: {error}")).into_response(),
                }
            }
        }
    }
}

fn router(state: AppState) -> Router {
    let mut router = Router::new()
        .route("/query", post(query::query))
        .route("/query_by_hash", post(query::query_by_hash))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/register", post(register::register))
        .route("/unregister", post(register::unregister))
        .route("/workers", get(workers::workers))
        .route("/explain", post(explain::explain))
        .route("/dump", get(dump::dump))
        .route("/snapshot", get(replicas::snapshot))
        .route("/digest", get(replicas::digest))
        .route("/verify", post(verify::verify))
        .route("/peers", get(peers::peers))
        .route("/register_peer", post(peers::register_peer))
        .route("/deregister_peer", post(peers::deregister_peer))
        .route("/reopen_logs", post(reopen_logs))
        .route("/metrics", get(scrape::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .route("/", get(overview::page));
    if state.config.test_endpoints {
        router = router
            .route("/test/pause_listener", post(test_routes::pause_listener))
            .route("/test/resume_listener", post(test_routes::resume_listener));
    }
    router
        .fallback(|| async { Error::NotFound })
        .method_not_allowed_fallback(|| async { Error::MethodNotAllowed })
        .with_state(state)
}

/// Always 200 while the process answers at all.
#[utoipa::path(get, path = "/health", tag = "operation", responses((status = 200, description = "alive")))]
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// Answer of `/ready`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ready {
    /// True when queries are answered and no stop is under way.
    ready: bool,
    /// What is still waited for; empty when ready.
    reasons: Vec<String>,
    /// Why changes at the Kubernetes API server are not heard, if so; it keeps nobody from being ready once it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes: Option<String>,
}

/// Whether this replica should be asked.
#[utoipa::path(
    get, path = "/ready", tag = "operation",
    responses((status = 200, body = Ready), (status = 503, description = "not yet, or stopping", body = Ready))
)]
pub(super) async fn ready(State(state): State<AppState>) -> (StatusCode, Json<Ready>) {
    let reasons = state.readiness.reasons();
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let kubernetes = state.readiness.notes().remove("kubernetes");
    (status, Json(Ready { ready, reasons, kubernetes }))
}

/// Opens the access log anew, after it was moved away.
#[utoipa::path(
    post, path = "/reopen_logs", tag = "operation",
    responses((status = 200, body = Done), (status = 500, body = ErrorBody))
)]
pub(super) async fn reopen_logs(State(state): State<AppState>) -> Result<Json<Done>, Error> {
    if let Some(log) = &state.access_log {
        log.reopen().map_err(|error| Error::Internal(format!("access log: {error}")))?;
    }
    Ok(DONE)
}
