//! Bytes of engines to events: frames, sequence numbers, batches in every published form. And what replicas tell each
//! other: `digest`, `snapshot` and `dump` with their answers.
//!
//! Batches are MessagePack. `walk` reads the shapes that engines send all the time, in one pass and without allocating per
//! event; whatever else comes is read by `library`, which rests on the crate `rmp`. `fields` judges what both have read, so
//! that they differ in speed only; property tests hold them to that. `extra` tells what sets blocks with equal tokens apart,
//! for events and (`query`) for the HTTP room.
//!
//! Invariants: no socket, no clock, no state between batches; no payload, however broken, makes this room panic, recurse
//! without bound or allocate more than a fixed multiple of the payload's length.

mod canonical;
pub mod digest;
mod distinct;
pub mod dump;
mod extra;
mod fields;
mod frame;
mod keys;
mod library;
mod query;
mod reader;
pub mod snapshot;
mod value;
mod walk;

#[cfg(test)]
mod tests;

pub use frame::{ReplayAnswer, live_message, replay_answer, replay_request};
pub use query::{ExtraKeysError, query_extra_keys};

use crate::event::{Batch, SkipReason};
use crate::ids::BlockSize;

/// Keeps all arenas of a batch within 32-bit ranges: one payload byte makes at most 16 arena bytes. Transport limits lie
/// below it.
pub const PAYLOAD_BYTES_MAX: usize = 128 << 20;

/// What decoding needs to know about the index.
#[derive(Debug, Clone, Copy)]
pub struct DecodeContext {
    /// Tokens per block of the index.
    pub block_size: BlockSize,
    /// Namespace of prompts whose events name no LoRA (Mooncake's `lora_name` in `/register`).
    pub default_lora: Option<u64>,
}

/// Decodes a payload into `batch` (which is cleared first), event by event: a bad event becomes `Event::Skipped` and its
/// neighbours are kept.
///
/// * Bytes behind the batch are ignored.
/// * An event's local hashes are computed with the seed of the namespace that it names itself; a child in a salted or
///   adapted chain needs other ones when it does not repeat the name. Side groups get none.
/// * Never panics on any bytes.
///
/// # Errors
/// `UndecodableBatch` when the payload is no batch; `batch` is then empty.
pub fn decode(payload: &[u8], context: DecodeContext, batch: &mut Batch) -> Result<(), SkipReason> {
    batch.clear();
    if walk::batch(payload, context, batch).is_some() {
        return Ok(());
    }
    batch.clear();
    let decoded = library::batch(payload, context, batch, walk::event_or_library);
    if decoded.is_err() {
        batch.clear();
    }
    decoded
}

/// The same as [`decode`] without its fast path, for tests and benchmarks that compare the two.
///
/// # Errors
/// As [`decode`].
pub fn decode_by_library(payload: &[u8], context: DecodeContext, batch: &mut Batch) -> Result<(), SkipReason> {
    batch.clear();
    let decoded = library::batch(payload, context, batch, library::event);
    if decoded.is_err() {
        batch.clear();
    }
    decoded
}

/// 64-bit identity of payload bytes, for the stream cursor: XXH3-64, seed 0.
#[must_use]
pub fn payload_hash(payload: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(payload)
}
