//! Tests of the room: tables of shapes, recorded engine streams, agreement of both ways of reading, hostile bytes.

mod agree;
mod batches;
mod engines;
mod identity;
mod pack;
mod query_keys;
mod shapes;
mod show;

use super::{DecodeContext, decode, decode_by_library};
use crate::event::{Batch, Event, SkipReason};
use crate::ids::BlockSize;

fn context(block_size: u32) -> DecodeContext {
    DecodeContext { block_size: BlockSize::new(block_size).expect("at least 1"), default_lora: None }
}

/// Decodes both ways; they must agree.
#[track_caller]
fn decoded(payload: &[u8]) -> Result<Batch, SkipReason> {
    let mut batch = Batch::default();
    let fast = decode(payload, context(4), &mut batch).map(|()| batch);
    assert_eq!(fast, by_library(payload, context(4)), "walker and library must agree");
    fast
}

/// Decodes without the walker.
fn by_library(payload: &[u8], context: DecodeContext) -> Result<Batch, SkipReason> {
    let mut batch = Batch::default();
    decode_by_library(payload, context, &mut batch).map(|()| batch)
}

/// The only event of a batch of one, with its batch.
#[track_caller]
fn one(event: serde_json::Value) -> (Event, Batch) {
    let batch = decoded(&pack::json(&serde_json::json!([1.0, [event], null]))).expect("a batch");
    assert_eq!(batch.events.len(), 1);
    (batch.events[0].clone(), batch)
}
