//! `/query` and `/query_by_hash`: how many leading tokens of a prompt each worker holds, on which tier.

mod read;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::de::{self, SeqAccess};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

use super::body::{self, Form, Pieces, present};
use super::error::Error;
use super::{AppState, mooncake, names, openapi, reply};
use crate::event::ExtraKey;
use crate::ids::{BlockSize, IndexKey, LocalHash, Namespace};
use crate::index::SharedIndex;
use crate::{hash, wire};
use read::Asked;
pub(crate) use read::tokens_json;

/// Body of `/query` and `/explain`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct QueryBody {
    /// Tokens of the prompt.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Vec<u32>, required)]
    pub(crate) token_ids: Option<TokenBytes>,
    /// Model of the index.
    #[serde(default, deserialize_with = "present")]
    #[schema(required)]
    pub(crate) model_name: Option<String>,
    #[serde(default)]
    #[schema(ignore)]
    model: Option<Value>,
    #[serde(default)]
    #[schema(ignore)]
    modelname: Option<Value>,
    /// Tenant of the index; `default` if absent.
    #[serde(default, deserialize_with = "present")]
    tenant_id: Option<String>,
    /// Another name for `tenant_id`.
    #[serde(default, deserialize_with = "present")]
    routing_group: Option<String>,
    /// LoRA adapter by name.
    lora_name: Option<String>,
    /// LoRA adapter by id; the name decides if both are given.
    lora_id: Option<i64>,
    /// Cache salt.
    cache_salt: Option<String>,
    /// One list per block: images, salts, prompt embeddings, in the engine's form; bytes as `{"hex": ".."}`.
    #[schema(value_type = Option<Vec<Object>>)]
    extra_keys: Option<Vec<Value>>,
    /// Leaves out ranks of which nothing matched.
    matched_only: Option<bool>,
}

/// Parts of a query that separate its prompt from equal tokens.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Separation<'a> {
    pub(crate) lora_name: Option<&'a str>,
    pub(crate) lora_id: Option<i64>,
    pub(crate) cache_salt: Option<&'a str>,
    /// One entry per block.
    pub(crate) extra_keys: Option<&'a [Value]>,
}

/// Body of `/query_by_hash`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct HashQueryBody {
    /// Local block hashes in order: u64, i64 or decimal text.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Vec<u64>, required)]
    block_hashes: Option<Hashes>,
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
    /// Tenant of the index; `default` if absent.
    #[serde(default, deserialize_with = "present")]
    tenant_id: Option<String>,
    /// Another name for `tenant_id`.
    #[serde(default, deserialize_with = "present")]
    routing_group: Option<String>,
    /// Must be absent or empty: the hashes already include it.
    cache_salt: Option<String>,
    /// Leaves out ranks of which nothing matched.
    matched_only: Option<bool>,
}

/// Which index is asked, and which rows are wanted.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) key: IndexKey,
    pub(crate) matched_only: bool,
}

/// Tokens, four bytes little endian each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenBytes(pub(crate) Bytes);

/// Block hashes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hashes(pub(crate) Vec<LocalHash>);

/// How many leading tokens of a prompt each worker holds.
#[utoipa::path(
    post, path = "/query", tag = "queries",
    description = "A body of `application/octet-stream` holds tokens as u32 little endian; the other fields are then query parameters.",
    params(
        ("model_name" = Option<String>, Query, description = "required with a binary body"),
        ("tenant_id" = Option<String>, Query, description = "`default` if absent; alias `routing_group`"),
        ("lora_name" = Option<String>, Query, description = "LoRA adapter by name"),
        ("lora_id" = Option<i64>, Query, description = "LoRA adapter by id"),
        ("cache_salt" = Option<String>, Query, description = "cache salt"),
        ("matched_only" = Option<bool>, Query, description = "leaves out ranks of which nothing matched")
    ),
    request_body(content((QueryBody = "application/json"), (String = "application/octet-stream"))),
    responses(
        (status = 200, body = openapi::QueryAnswer),
        (status = "4XX", body = super::error::ErrorBody),
        (status = 503, description = "not ready, or overloaded", body = super::error::ErrorBody)
    )
)]
pub(crate) async fn query(State(state): State<AppState>, request: Request<Body>) -> Result<Response, Error> {
    state.check_ready()?;
    let form = body::form(request.headers(), true)?;
    let (parts, body) = request.into_parts();
    let pieces = Pieces::new(body, state.config.query_body_bytes_max);
    let (target, index, prompt) = match form {
        Form::Binary => read::binary_tokens(&state, parts.uri.query(), pieces).await?,
        Form::Json => match read::tokens(pieces).await? {
            Asked::Mooncake(text) => return mooncake::query(&state, &text).map(json),
            Asked::Plain(query) => {
                let target = query.target()?;
                let index = state.index(&target.key)?;
                let prompt = query.local_hashes(index.block_size())?;
                (target, index, prompt)
            }
        },
    };
    Ok(answer(&index, &prompt, target.matched_only))
}

/// The same for a prompt that the caller has hashed.
#[utoipa::path(
    post, path = "/query_by_hash", tag = "queries",
    description = "A body of `application/octet-stream` holds hashes as u64 little endian; the other fields are then query parameters.",
    params(
        ("model_name" = Option<String>, Query, description = "required with a binary body"),
        ("tenant_id" = Option<String>, Query, description = "`default` if absent; alias `routing_group`"),
        ("matched_only" = Option<bool>, Query, description = "leaves out ranks of which nothing matched")
    ),
    request_body(content((HashQueryBody = "application/json"), (String = "application/octet-stream"))),
    responses(
        (status = 200, body = openapi::QueryAnswer),
        (status = "4XX", body = super::error::ErrorBody),
        (status = 503, description = "not ready, or overloaded", body = super::error::ErrorBody)
    )
)]
pub(crate) async fn query_by_hash(State(state): State<AppState>, request: Request<Body>) -> Result<Response, Error> {
    state.check_ready()?;
    let form = body::form(request.headers(), true)?;
    let (parts, body) = request.into_parts();
    let pieces = Pieces::new(body, state.config.query_body_bytes_max);
    let (target, prompt) = match form {
        Form::Binary => read::binary_hashes(parts.uri.query(), pieces).await?,
        Form::Json => match read::hashes(pieces).await? {
            Asked::Mooncake(text) => return mooncake::query(&state, &text).map(json),
            Asked::Plain(query) => query.into_parts()?,
        },
    };
    Ok(answer(&*state.index(&target.key)?, &prompt, target.matched_only))
}

fn answer(index: &SharedIndex, prompt: &[LocalHash], matched_only: bool) -> Response {
    // The lock is let go before the answer is written.
    let answer = index.read().find(prompt);
    json(reply::query(&answer, index.block_size(), matched_only))
}

/// A JSON answer that is already written.
pub(crate) fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(super) fn refuse_salt(salt: Option<&str>) -> Result<(), Error> {
    if salt.is_some_and(|salt| !salt.is_empty()) { Err(Error::SaltNotAccepted) } else { Ok(()) }
}

impl QueryBody {
    /// The index asked, in the documented words.
    pub(crate) fn target(&self) -> Result<Target, Error> {
        let tenant = names::tenant(self.tenant_id.clone(), self.routing_group.clone())?;
        let model = names::model(self.model_name.clone(), [&self.model, &self.modelname])?;
        let key = IndexKey { model, tenant: tenant.unwrap_or_default() };
        Ok(Target { key, matched_only: self.matched_only.unwrap_or(false) })
    }

    /// The prompt as bytes, if nothing but LoRA and salt separates it.
    pub(super) fn plain_tokens(&self) -> Option<&[u8]> {
        self.token_ids.as_ref().filter(|_| self.extra_keys.is_none()).map(|tokens| &tokens.0[..])
    }

    /// Local hashes of the prompt's whole blocks.
    pub(crate) fn local_hashes(&self, block_size: BlockSize) -> Result<Vec<LocalHash>, Error> {
        let Some(tokens) = &self.token_ids else {
            return Err(Error::field("token_ids", "missing field"));
        };
        let separation = Separation {
            lora_name: self.lora_name.as_deref(),
            lora_id: self.lora_id,
            cache_salt: self.cache_salt.as_deref(),
            extra_keys: self.extra_keys.as_deref(),
        };
        separation.local_hashes(&tokens.0, block_size)
    }
}

impl HashQueryBody {
    fn into_parts(self) -> Result<(Target, Vec<LocalHash>), Error> {
        let Some(hashes) = self.block_hashes else {
            return Err(Error::field("block_hashes", "missing field"));
        };
        let tenant = names::tenant(self.tenant_id, self.routing_group)?;
        let model = names::model(self.model_name, [&self.model, &self.modelname])?;
        refuse_salt(self.cache_salt.as_deref())?;
        let key = IndexKey { model, tenant: tenant.unwrap_or_default() };
        Ok((Target { key, matched_only: self.matched_only.unwrap_or(false) }, hashes.0))
    }
}

impl Separation<'_> {
    /// What names and salt alone select.
    fn namespace(self) -> Namespace {
        Namespace {
            lora: self.lora_name.and_then(hash::lora_name).or_else(|| self.lora_id.map(hash::lora_id)),
            salt: self.cache_salt.and_then(hash::salt),
        }
    }

    /// Local hashes of the whole blocks in `token_bytes`.
    pub(crate) fn local_hashes(self, token_bytes: &[u8], block_size: BlockSize) -> Result<Vec<LocalHash>, Error> {
        let lora_name = self.lora_name.filter(|name| !name.is_empty());
        let mut namespace = self.namespace();
        let Some(entries) = self.extra_keys else {
            return Ok(hash::local_hashes(token_bytes, block_size, namespace));
        };
        let block_bytes = block_size.tokens() as usize * 4;
        let (whole, begun) = (token_bytes.len() / block_bytes, token_bytes.len().div_ceil(block_bytes));
        if entries.len() != whole && entries.len() != begun {
            return Err(Error::field("extra_keys", format_args!("{} entries for {whole} blocks", entries.len())));
        }
        let (salt, extras) =
            wire::query_extra_keys(entries, lora_name).map_err(|error| Error::field("extra_keys", error))?;
        match (namespace.salt, salt) {
            (Some(field), Some(key)) if field != key => {
                return Err(Error::field("extra_keys", "names another salt than cache_salt"));
            }
            (field, key) => namespace.salt = field.or(key),
        }
        Ok(with_extras(token_bytes.chunks_exact(block_bytes), &extras, namespace))
    }
}

fn with_extras<'a>(
    blocks: impl Iterator<Item = &'a [u8]>,
    extras: &[ExtraKey],
    namespace: Namespace,
) -> Vec<LocalHash> {
    let mut extras = extras.to_vec();
    extras.sort_unstable();
    let mut rest = extras.as_slice();
    let mut hashes = Vec::new();
    for (block, bytes) in (0_u32..).zip(blocks) {
        let own = rest.partition_point(|extra| extra.block <= block);
        let (mine, later) = rest.split_at(own);
        rest = later;
        hashes.push(hash::local_hash(bytes, mine.iter().map(|extra| extra.value), namespace.seed()));
    }
    hashes
}

impl<'de> Deserialize<'de> for TokenBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = TokenBytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("token_ids as an array of unsigned 32-bit numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TokenBytes, A::Error> {
                let mut bytes = Vec::new();
                while let Some(token) = seq.next_element::<u32>()? {
                    bytes.extend_from_slice(&token.to_le_bytes());
                }
                Ok(TokenBytes(bytes.into()))
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}

impl<'de> Deserialize<'de> for Hashes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Hashes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("hashes as an array of 64-bit numbers or decimal texts")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Hashes, A::Error> {
                let mut hashes = Vec::new();
                while let Some(AnyHash(hash)) = seq.next_element()? {
                    hashes.push(LocalHash(hash));
                }
                Ok(Hashes(hashes))
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}

/// One hash in any accepted form. Floats are refused: they would have lost digits.
struct AnyHash(u64);

impl<'de> Deserialize<'de> for AnyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = AnyHash;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a hash: u64, i64 or decimal text")
            }
            fn visit_u64<E: de::Error>(self, hash: u64) -> Result<AnyHash, E> {
                Ok(AnyHash(hash))
            }
            fn visit_i64<E: de::Error>(self, hash: i64) -> Result<AnyHash, E> {
                Ok(AnyHash(hash.cast_unsigned()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<AnyHash, E> {
                let digits = text.strip_prefix('-').unwrap_or(text);
                let decimal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let unsigned = text.parse::<u64>().ok();
                let hash = unsigned.or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned));
                match hash {
                    Some(hash) if decimal => Ok(AnyHash(hash)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests;
