//! Events in the form in which vLLM publishes them: MessagePack arrays in batches of a bounded number of events.

use rmp::encode as mp;

use super::content::Block;
use super::engine::Event;
use super::{BATCH_EVENTS_MAX, BLOCK_SIZE};

/// First frame of every message.
pub(crate) const TOPIC: &[u8] = b"kv-events";

const WRITES: &str = "writing to memory cannot fail";

/// A batch of one worker as it goes over the wire (the third frame; the number of the second is its place in the
/// worker's list).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    pub(crate) events: u32,
    pub(crate) stored_blocks: u32,
    pub(crate) removed_blocks: u32,
}

/// Batches of the events of one request: a batch ends after a Stored event or when it is full.
pub(crate) fn batches(events: &[Event], blocks: &[Block]) -> Vec<Payload> {
    let mut payloads = vec![];
    let mut rest = events;
    while !rest.is_empty() {
        let stored = rest.iter().position(|event| matches!(event, Event::Stored { .. }));
        let count = stored.map_or(rest.len(), |at| at + 1).min(BATCH_EVENTS_MAX);
        let (batch, behind) = rest.split_at(count);
        payloads.push(encode(batch, blocks));
        rest = behind;
    }
    payloads
}

fn encode(events: &[Event], blocks: &[Block]) -> Payload {
    let mut payload = begin(events.len());
    for event in events {
        match event {
            Event::Removed(engine) => push_removed(&mut payload, &[*engine]),
            Event::Stored { parent, blocks: range } => push_stored(&mut payload, *parent, &blocks[range.clone()]),
        }
    }
    payload.bytes.shrink_to_fit();
    end(payload)
}

/// One batch with one Stored event.
pub(crate) fn stored(parent: Option<u64>, blocks: &[Block]) -> Payload {
    let mut payload = begin(1);
    push_stored(&mut payload, parent, blocks);
    end(payload)
}

/// One batch that stores a chain and then, if there is something to remove, removes that in one event.
pub(crate) fn stored_and_removed(blocks: &[Block], removed: &[u64]) -> Payload {
    let mut payload = begin(1 + usize::from(!removed.is_empty()));
    push_stored(&mut payload, None, blocks);
    if !removed.is_empty() {
        push_removed(&mut payload, removed);
    }
    end(payload)
}

/// `[1.0, [events], rank 0]` up to the events.
fn begin(events: usize) -> Payload {
    let mut bytes = Vec::with_capacity(1024);
    mp::write_array_len(&mut bytes, 3).expect(WRITES);
    mp::write_f64(&mut bytes, 1.0).expect(WRITES);
    mp::write_array_len(&mut bytes, events as u32).expect(WRITES);
    Payload { bytes, events: events as u32, stored_blocks: 0, removed_blocks: 0 }
}

fn end(mut payload: Payload) -> Payload {
    mp::write_uint(&mut payload.bytes, 0).expect(WRITES);
    payload
}

fn push_stored(payload: &mut Payload, parent: Option<u64>, blocks: &[Block]) {
    let out = &mut payload.bytes;
    mp::write_array_len(out, 7).expect(WRITES);
    mp::write_str(out, "BlockStored").expect(WRITES);
    mp::write_array_len(out, blocks.len() as u32).expect(WRITES);
    for block in blocks {
        mp::write_uint(out, block.engine).expect(WRITES);
    }
    match parent {
        Some(parent) => {
            mp::write_uint(out, parent).expect(WRITES);
        }
        None => mp::write_nil(out).expect(WRITES),
    }
    mp::write_array_len(out, blocks.len() as u32 * BLOCK_SIZE).expect(WRITES);
    for token in blocks.iter().flat_map(|block| block.content.tokens()) {
        mp::write_uint(out, token.into()).expect(WRITES);
    }
    mp::write_uint(out, BLOCK_SIZE.into()).expect(WRITES);
    mp::write_nil(out).expect(WRITES);
    mp::write_str(out, "GPU").expect(WRITES);
    payload.stored_blocks += blocks.len() as u32;
}

fn push_removed(payload: &mut Payload, engines: &[u64]) {
    let out = &mut payload.bytes;
    mp::write_array_len(out, 3).expect(WRITES);
    mp::write_str(out, "BlockRemoved").expect(WRITES);
    mp::write_array_len(out, engines.len() as u32).expect(WRITES);
    for engine in engines {
        mp::write_uint(out, *engine).expect(WRITES);
    }
    mp::write_str(out, "GPU").expect(WRITES);
    payload.removed_blocks += engines.len() as u32;
}
