//! What replicas ask each other for: `/digest` and `/snapshot`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::body::Params;
use super::error::{Error, ErrorBody};
use super::pieces::{self, Pieces};
use super::{AppState, names, openapi};
use crate::ids::InstanceId;
use crate::recovery::{Part, SnapshotWriter};
use crate::registry::ExportFilter;
use crate::wire::digest::Digest;

/// Snapshots at once: each holds a copy of one stream for as long as its client takes to read it.
pub(super) const SNAPSHOTS_MAX: usize = 2;

impl Pieces for SnapshotWriter {
    fn next_piece(&mut self) -> Option<Bytes> {
        Self::next_piece(self)
    }
}

/// Who this replica is, how far it has come, and a digest of every stream. Answered also before this replica is ready.
#[utoipa::path(get, path = "/digest", tag = "peers", responses((status = 200, body = openapi::DigestAnswer)))]
pub(super) async fn digest(State(state): State<AppState>) -> Json<Digest> {
    Json(state.replica.digest(&state.registry))
}

/// All that decides later answers, as bytes for another replica.
#[utoipa::path(
    get, path = "/snapshot", tag = "peers",
    params(
        ("model_name" = Option<String>, Query, description = "this model only"),
        ("tenant_id" = Option<String>, Query, description = "this tenant only; alias `routing_group`"),
        ("instance_id" = Option<String>, Query, description = "this instance only"),
        ("part" = Option<String>, Query, description = "`registrations` leaves out all blocks; `all` if absent")
    ),
    responses(
        (status = 200, description = "a snapshot, see `wire::snapshot`", content_type = "application/octet-stream"),
        (status = 400, description = "a parameter cannot be read", body = ErrorBody),
        (status = 503, description = "this replica recovers itself, or too many snapshots at once", body = ErrorBody)
    )
)]
pub(super) async fn snapshot(State(state): State<AppState>, RawQuery(query): RawQuery) -> Result<Response, Error> {
    let (filter, part) = wanted(&Params::parse(query.as_deref())?)?;
    let make = || SnapshotWriter::new(&state.replica, &state.registry, &filter, part);
    let body = match part {
        // Small, and what a replica needs first: it gets through when others read blocks.
        Part::Registrations => pieces::body(make(), ()),
        Part::All => {
            if state.registry.is_recovering() {
                return Err(Error::NotReady(state.readiness.reasons().join("; ")));
            }
            let turn = Arc::clone(&state.0.snapshots).try_acquire_owned().map_err(|_| Error::Overloaded)?;
            pieces::body(make(), turn)
        }
    };
    Ok(octets(body))
}

fn octets(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response()
}

/// What the parameters ask for.
fn wanted(params: &Params) -> Result<(ExportFilter, Part), Error> {
    let (model, tenant) = names::from_params(params)?;
    let instance = params.get("instance_id").map(InstanceId::parse).transpose();
    let instance = instance.map_err(|error| Error::InvalidQuery(error.to_string()))?;
    let part = match params.get("part") {
        None | Some("all") => Part::All,
        Some("registrations") => Part::Registrations,
        Some(other) => return Err(Error::InvalidQuery(format!("bad value `{other}` of `part`"))),
    };
    Ok((ExportFilter { model, tenant, instance }, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_pick_what_is_copied() {
        let read = |query: &str| wanted(&Params::parse(Some(query)).unwrap());
        let (filter, part) = read("model_name=org/m:8b&routing_group=a%3Ab&instance_id=serving/a").unwrap();
        assert_eq!((filter.model, filter.tenant), (Some("org/m:8b".into()), Some("a:b".into())));
        assert_eq!((filter.instance, part), (Some(InstanceId::Text("serving/a".into())), Part::All));
        let (filter, part) = read("part=registrations&instance_id=7").unwrap();
        assert_eq!((filter.model, filter.instance, part), (None, Some(7.into()), Part::Registrations));
        assert!(matches!(read("part=half"), Err(Error::InvalidQuery(_))));
        assert!(matches!(read("instance_id="), Err(Error::InvalidQuery(_))));
        assert!(matches!(read("tenant_id=a&routing_group=b"), Err(Error::TenantConflict)));
    }
}
