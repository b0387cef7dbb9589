//! Bytes of engines to events: frames, sequence numbers, batches in every published form.
#![allow(missing_docs, unused_variables, reason = "skeleton")]

use crate::event::{Batch, SkipReason};
use crate::ids::{BlockSize, Namespace, Seq};

/// Sequence and payload of a PUB message of three frames `[topic, sequence, payload]`; the sequence is 8 bytes big endian.
///
/// # Errors
/// `MalformedFrames` for any other shape.
pub fn live_message<'a>(frames: &[&'a [u8]]) -> Result<(Seq, &'a [u8]), SkipReason> {
    todo!()
}

/// One answer of a replay ROUTER as a DEALER sees it: `["", seq, payload]` or `["", topic, seq, payload]`.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplayAnswer<'a> {
    Batch { seq: Seq, payload: &'a [u8] },
    End,
}

/// # Errors
/// `MalformedFrames`.
pub fn replay_answer<'a>(frames: &[&'a [u8]]) -> Result<ReplayAnswer<'a>, SkipReason> {
    todo!()
}

/// The two request frames: an empty one and the first number wanted, 8 bytes big endian.
pub fn replay_request(from: Seq) -> [Vec<u8>; 2] {
    todo!()
}

/// What decoding needs to know about the index.
#[derive(Debug, Clone, Copy)]
pub struct DecodeContext {
    pub block_size: BlockSize,
    /// Namespace for events that name no LoRA (Mooncake's `lora_name` in `/register`).
    pub default_lora: Option<u64>,
}

/// Decodes a payload into `batch` (which is cleared first), event by event: a bad event becomes `Event::Skipped` and its neighbours are
/// kept. Never panics on any bytes.
///
/// # Errors
/// `UndecodableBatch` when the payload is no batch; `batch` is then empty.
pub fn decode(payload: &[u8], context: DecodeContext, batch: &mut Batch) -> Result<(), SkipReason> {
    todo!()
}

/// Turns one entry of `extra_keys` of an HTTP query (JSON forms of the same elements, bytes as `{"hex": ".."}`) into the values that `event::ExtraKey` would carry.
/// The first entry may hold the salt as a bare string, which is returned apart.
pub fn query_extra_keys(
    entries: &[serde_json::Value],
    lora_name: Option<&str>,
) -> Result<(Option<u64>, Vec<crate::event::ExtraKey>), String> {
    todo!()
}

/// 64-bit identity of payload bytes, for the stream cursor: XXH3-64, seed 0.
pub fn payload_hash(payload: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(payload)
}
