//! Reads the bodies of queries as they arrive: tokens are scanned or hashed piece by piece, and a long body is never in
//! memory as a whole. Whatever is unusual is collected and left to the library, so that errors are the same.

use std::sync::Arc;

use bytes::Bytes;

use super::{HashQueryBody, Hashes, QueryBody, Separation, Target, TokenBytes, refuse_salt};
use crate::hash::BlockHasher;
use crate::http::body::{self, Params, Pieces};
use crate::http::error::Error;
use crate::http::scan::{self, TokenScanner};
use crate::http::{AppState, mooncake, names};
use crate::ids::LocalHash;
use crate::index::SharedIndex;

/// What a JSON body asks.
#[derive(Debug)]
pub(super) enum Asked<T> {
    /// In the documented words.
    Plain(T),
    /// In Mooncake's words, which are read from the text.
    Mooncake(Bytes),
}

/// Reads a JSON body of `/query`.
pub(super) async fn tokens(mut pieces: Pieces) -> Result<Asked<QueryBody>, Error> {
    let first = pieces.next().await?.unwrap_or_default();
    if pieces.is_at_end() {
        return tokens_of(first);
    }
    let mut scanner = TokenScanner::new(pieces.claimed());
    scanner.push(&first);
    // The server reads the next piece into the same memory, if nobody has this one.
    drop(first);
    while let Some(piece) = pieces.next().await? {
        scanner.push(&piece);
    }
    tokens_scanned(scanner)
}

fn tokens_scanned(mut scanner: TokenScanner) -> Result<Asked<QueryBody>, Error> {
    if let Some(split) = scanner.split() {
        match body::json::<QueryBody>(&split.rest) {
            Ok(query) if query.model_name.is_some() => {
                return Ok(Asked::Plain(QueryBody { token_ids: Some(TokenBytes(split.numbers.into())), ..query }));
            }
            _ => scanner.unsplit(split),
        }
    }
    tokens_of(scanner.into_text().into())
}

fn tokens_of(text: Bytes) -> Result<Asked<QueryBody>, Error> {
    let query = tokens_json(&text)?;
    let dialect = query.model_name.is_none() && mooncake::is_dialect(&text);
    Ok(if dialect { Asked::Mooncake(text) } else { Asked::Plain(query) })
}

/// Reads a whole body of `/query`: the scanner first, the library where it gives up.
pub(crate) fn tokens_json(text: &[u8]) -> Result<QueryBody, Error> {
    if let Some(split) = scan::tokens(text)
        && let Ok(query) = body::json::<QueryBody>(&split.rest)
    {
        return Ok(QueryBody { token_ids: Some(TokenBytes(split.numbers.into())), ..query });
    }
    body::json(text)
}

/// Reads a JSON body of `/query_by_hash`.
pub(super) async fn hashes(pieces: Pieces) -> Result<Asked<HashQueryBody>, Error> {
    let text = pieces.whole().await?;
    let query = hashes_json(&text)?;
    let dialect = query.model_name.is_none() && mooncake::is_dialect(&text);
    Ok(if dialect { Asked::Mooncake(text) } else { Asked::Plain(query) })
}

fn hashes_json(text: &[u8]) -> Result<HashQueryBody, Error> {
    if let Some(split) = scan::hashes(text)
        && let Ok(query) = body::json::<HashQueryBody>(&split.rest)
    {
        return Ok(HashQueryBody { block_hashes: Some(Hashes(split.numbers)), ..query });
    }
    body::json(text)
}

/// What a binary body of tokens is for, as the parameters say.
struct Wanted {
    target: Target,
    index: Arc<SharedIndex>,
    hasher: BlockHasher,
}

/// Reads a binary body of `/query` and hashes it block by block.
pub(super) async fn binary_tokens(
    state: &AppState,
    params: Option<&str>,
    mut pieces: Pieces,
) -> Result<(Target, Arc<SharedIndex>, Vec<LocalHash>), Error> {
    // The body is read to its end before a fault of the parameters is told, and a fault of its own comes first.
    let params = Params::parse(params);
    let mut wanted = params.as_ref().ok().map(|params| wanted(state, params));
    let mut bytes_len = 0;
    while let Some(piece) = pieces.next().await? {
        bytes_len += piece.len();
        if let Some(Ok(wanted)) = &mut wanted {
            wanted.hasher.push(&piece);
        }
    }
    let params = params?;
    if !bytes_len.is_multiple_of(4) {
        return Err(Error::InvalidBody(format!("{bytes_len} bytes are no whole number of 4-byte tokens")));
    }
    let Wanted { target, index, hasher } = wanted.unwrap_or_else(|| self::wanted(state, &params))?;
    // The index may have gone, or another may have come, while the body arrived.
    let current = state.index(&target.key)?;
    if current.block_size() != index.block_size() {
        return Err(Error::UnknownIndex(target.key));
    }
    Ok((target, current, hasher.finish()))
}

fn wanted(state: &AppState, params: &Params) -> Result<Wanted, Error> {
    let target = Target { key: names::key_from_params(params)?, matched_only: flag(params, "matched_only")? };
    let separation = Separation {
        lora_name: params.get("lora_name"),
        lora_id: params.parsed("lora_id")?,
        cache_salt: params.get("cache_salt"),
        extra_keys: None,
    };
    let index = state.index(&target.key)?;
    let hasher = BlockHasher::new(index.block_size(), separation.namespace());
    Ok(Wanted { target, index, hasher })
}

/// Reads a binary body of `/query_by_hash`.
pub(super) async fn binary_hashes(params: Option<&str>, mut pieces: Pieces) -> Result<(Target, Vec<LocalHash>), Error> {
    let mut list = HashList::default();
    while let Some(piece) = pieces.next().await? {
        list.push(&piece);
    }
    let params = Params::parse(params)?;
    let hashes = list.finish()?;
    let target = Target { key: names::key_from_params(&params)?, matched_only: flag(&params, "matched_only")? };
    refuse_salt(params.get("cache_salt"))?;
    Ok((target, hashes))
}

/// Hashes of eight bytes little endian each, from pieces cut anywhere.
#[derive(Default)]
struct HashList {
    hashes: Vec<LocalHash>,
    begun: Vec<u8>,
}

impl HashList {
    fn push(&mut self, mut bytes: &[u8]) {
        if !self.begun.is_empty() {
            let (end, rest) = bytes.split_at((8 - self.begun.len()).min(bytes.len()));
            self.begun.extend_from_slice(end);
            bytes = rest;
            let Ok(hash) = self.begun[..].try_into() else {
                return;
            };
            self.hashes.push(LocalHash(u64::from_le_bytes(hash)));
            self.begun.clear();
        }
        let (whole, rest) = bytes.as_chunks::<8>();
        self.hashes.extend(whole.iter().map(|hash| LocalHash(u64::from_le_bytes(*hash))));
        self.begun.extend_from_slice(rest);
    }

    fn finish(self) -> Result<Vec<LocalHash>, Error> {
        if self.begun.is_empty() {
            return Ok(self.hashes);
        }
        let bytes_len = self.hashes.len() * 8 + self.begun.len();
        Err(Error::InvalidBody(format!("{bytes_len} bytes are no whole number of 8-byte hashes")))
    }
}

fn flag(params: &Params, name: &str) -> Result<bool, Error> {
    match params.get(name) {
        None | Some("false" | "0") => Ok(false),
        Some("true" | "1" | "") => Ok(true),
        Some(other) => Err(Error::InvalidQuery(format!("bad value `{other}` of `{name}`"))),
    }
}

#[cfg(test)]
mod tests;
