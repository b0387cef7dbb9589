//! Every way a request can fail, and the one place that maps it to a status, a stable word and a text.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{BlockSize, IndexKey};
use crate::registry;

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Body is not JSON, not UTF-8, or has text after the value.
    #[error("malformed JSON: {0}")]
    InvalidJson(String),
    /// Query string cannot be read.
    #[error("{0}")]
    InvalidQuery(String),
    /// `endpoint` is no address.
    #[error("invalid ZMQ endpoint `{text}`: {source}")]
    InvalidEndpoint { text: String, source: registry::EndpointError },
    /// `replay_endpoint` is no address.
    #[error("invalid replay endpoint `{text}`: invalid ZMQ endpoint `{text}`: {source}")]
    InvalidReplayEndpoint { text: String, source: registry::EndpointError },
    /// Block size 0.
    #[error("block_size must be at least 1")]
    InvalidBlockSize,
    /// A query names another block size than the index.
    #[error("block_size mismatch for model={} tenant={}: existing={existing}, requested={requested}", key.model, key.tenant)]
    QueryBlockSize { key: IndexKey, existing: BlockSize, requested: u64 },
    /// `cache_salt` in a query by hash.
    #[error("cache_salt must not be given here: block_hashes must already include it")]
    SaltNotAccepted,
    /// Unknown path.
    #[error("no such path")]
    NotFound,
    /// No index for this model and tenant.
    #[error("no indexer for model={} tenant={}", .0.model, .0.tenant)]
    UnknownIndex(IndexKey),
    /// No such peer in the list.
    #[error("peer not found")]
    UnknownPeer,
    /// Known path, other method; the router adds `Allow`.
    #[error("method not allowed")]
    MethodNotAllowed,
    /// The body did not arrive in time.
    #[error("body did not arrive in time")]
    RequestTimeout,
    /// The connection broke while the body was read.
    #[error("body could not be read: {0}")]
    BrokenBody(String),
    /// Over the limit.
    #[error("body over the limit of {limit} bytes")]
    BodyTooLarge { limit: usize },
    /// Neither JSON nor, where it is accepted, a binary body.
    #[error("expected Content-Type: {expected}")]
    UnsupportedMediaType { expected: &'static str },
    /// Well-formed, but of the wrong shape.
    #[error("{0}")]
    InvalidBody(String),
    /// The two tenant names differ.
    #[error("tenant_id and routing_group differ")]
    TenantConflict,
    /// The model names differ.
    #[error("model_name, modelname and model differ")]
    ModelConflict,
    /// What the registry refused.
    #[error(transparent)]
    Registry(#[from] registry::Error),
    /// A query before recovery and gate are done.
    #[error("not ready: {0}")]
    NotReady(String),
    /// Too many requests at once.
    #[error("too many requests in flight")]
    Overloaded,
    /// A fault of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Body of every error.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong, for people; may change.
    pub(crate) error: String,
    /// What is wrong, for programs; stable.
    pub(crate) code: String,
}

impl Error {
    /// A field that is missing or of a wrong type.
    pub(crate) fn field(name: &str, detail: impl std::fmt::Display) -> Self {
        Self::InvalidBody(format!("bad or missing field `{name}`: {detail}"))
    }

    /// Status and stable word.
    pub(crate) fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidJson(_) => (StatusCode::BAD_REQUEST, "invalid_json"),
            Self::InvalidQuery(_) => (StatusCode::BAD_REQUEST, "invalid_query"),
            Self::InvalidEndpoint { .. } => (StatusCode::BAD_REQUEST, "invalid_endpoint"),
            Self::InvalidReplayEndpoint { .. } => (StatusCode::BAD_REQUEST, "invalid_replay_endpoint"),
            Self::InvalidBlockSize => (StatusCode::BAD_REQUEST, "invalid_block_size"),
            Self::QueryBlockSize { .. } => (StatusCode::BAD_REQUEST, "block_size_mismatch"),
            Self::SaltNotAccepted => (StatusCode::BAD_REQUEST, "salt_not_accepted"),
            Self::BrokenBody(_) => (StatusCode::BAD_REQUEST, "broken_body"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::UnknownIndex(_) => (StatusCode::NOT_FOUND, "unknown_index"),
            Self::UnknownPeer => (StatusCode::NOT_FOUND, "unknown_peer"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::UnsupportedMediaType { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Self::InvalidBody(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_body"),
            Self::TenantConflict => (StatusCode::UNPROCESSABLE_ENTITY, "tenant_conflict"),
            Self::ModelConflict => (StatusCode::UNPROCESSABLE_ENTITY, "model_conflict"),
            Self::Registry(error) => registry_status_and_code(error),
            Self::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }
}

fn registry_status_and_code(error: &registry::Error) -> (StatusCode, &'static str) {
    match error {
        registry::Error::AlreadyRegistered { .. } => (StatusCode::CONFLICT, "already_registered"),
        registry::Error::BlockSizeMismatch { .. } => (StatusCode::CONFLICT, "block_size_mismatch"),
        registry::Error::Withdrawn { .. } => (StatusCode::CONFLICT, "withdrawn"),
        registry::Error::NoReplayEndpoint { .. } => (StatusCode::CONFLICT, "no_replay_endpoint"),
        registry::Error::InvalidRegistration { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_registration"),
        registry::Error::NoAnswer { .. } => (StatusCode::GATEWAY_TIMEOUT, "no_answer"),
        registry::Error::ListenerState { .. } => (StatusCode::CONFLICT, "listener_state"),
        registry::Error::OwnedByKubernetes { .. } => (StatusCode::CONFLICT, "owned_by_kubernetes"),
        registry::Error::UnknownInstance(_) => (StatusCode::NOT_FOUND, "unknown_instance"),
        registry::Error::UnknownRank { .. } => (StatusCode::NOT_FOUND, "unknown_rank"),
        registry::Error::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, code) = self.status_and_code();
        let body = ErrorBody { error: self.to_string(), code: code.to_owned() };
        let mut response = (status, axum::Json(body)).into_response();
        if matches!(self, Self::Overloaded) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_contract_status_and_word() {
        let key = IndexKey::new("m", "t");
        let block_size = BlockSize::new(16).unwrap();
        for (error, status, code) in [
            (Error::InvalidJson(String::new()), 400, "invalid_json"),
            (Error::SaltNotAccepted, 400, "salt_not_accepted"),
            (
                Error::QueryBlockSize { key: key.clone(), existing: block_size, requested: 4 },
                400,
                "block_size_mismatch",
            ),
            (Error::UnknownIndex(key.clone()), 404, "unknown_index"),
            (Error::BodyTooLarge { limit: 1 }, 413, "body_too_large"),
            (Error::TenantConflict, 422, "tenant_conflict"),
            (Error::ModelConflict, 422, "model_conflict"),
            (
                registry::Error::BlockSizeMismatch { key, existing: block_size, requested: block_size }.into(),
                409,
                "block_size_mismatch",
            ),
            (registry::Error::UnknownInstance(1.into()).into(), 404, "unknown_instance"),
            (Error::Overloaded, 503, "overloaded"),
        ] {
            assert_eq!(error.status_and_code(), (StatusCode::from_u16(status).unwrap(), code), "{error}");
        }
    }

    #[test]
    fn an_unknown_index_is_named_as_the_reference_names_it() {
        assert_eq!(Error::UnknownIndex(IndexKey::new("m", "t")).to_string(), "no indexer for model=m tenant=t");
    }
}
