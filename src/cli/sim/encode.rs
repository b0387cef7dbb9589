//! Cache events to the bytes that vLLM and SGLang publish.
//!
//! Pure. Array form: fields by position, tag first; map form: the key `type`. A batch is always the array
//! `[timestamp in seconds, events, rank]`. SGLang's hashes are signed, vLLM's unsigned; host copies come hash-only from
//! vLLM's offloading connector (no tokens, block size 0) and with tokens from SGLang's HiCache.

use clap::ValueEnum;
use rmp::encode as mp;

use super::engine::{CacheEvent, Place};
use crate::ids::EngineHash;

/// Whose habits the events have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// Form of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventForm {
    /// Fields by position.
    Array,
    /// Fields by name.
    Map,
}

/// How one rank writes its batches.
#[derive(Debug, Clone, Copy)]
pub struct Encoder {
    /// Whose habits.
    pub kind: EngineKind,
    /// Form of the events.
    pub form: EventForm,
    /// Tokens per block.
    pub block_size: usize,
    /// Data-parallel rank written into each batch.
    pub rank: u32,
}

/// Writing into a `Vec` cannot fail.
const IN_MEMORY: &str = "writing to memory cannot fail";

impl Encoder {
    /// One batch.
    #[must_use]
    pub fn batch(&self, events: &[CacheEvent], timestamp_s: f64) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + events.len() * 64);
        mp::write_array_len(&mut out, 3).expect(IN_MEMORY);
        mp::write_f64(&mut out, timestamp_s).expect(IN_MEMORY);
        mp::write_array_len(&mut out, len(events)).expect(IN_MEMORY);
        for event in events {
            match event {
                CacheEvent::Stored { place, parent, blocks } => {
                    let hashes: Vec<_> = blocks.iter().map(|(hash, _)| *hash).collect();
                    let tokens: Vec<u32> = match (self.kind, place) {
                        (EngineKind::Vllm, Place::Host) => vec![],
                        _ => blocks.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect(),
                    };
                    let block_size = if tokens.is_empty() { 0 } else { self.block_size };
                    self.stored(
                        &mut out,
                        *place,
                        &StoredFields { hashes: &hashes, parent: *parent, tokens: &tokens, block_size },
                    );
                }
                CacheEvent::Removed { place, hash } => self.removed(&mut out, *place, *hash),
                CacheEvent::Cleared => match self.form {
                    EventForm::Array => {
                        mp::write_array_len(&mut out, 1).expect(IN_MEMORY);
                        text(&mut out, "AllBlocksCleared");
                    }
                    EventForm::Map => {
                        mp::write_map_len(&mut out, 1).expect(IN_MEMORY);
                        self.tag(&mut out, "AllBlocksCleared");
                    }
                },
            }
        }
        mp::write_uint(&mut out, self.rank.into()).expect(IN_MEMORY);
        out
    }

    fn stored(&self, out: &mut Vec<u8>, place: Place, fields: &StoredFields<'_>) {
        match self.form {
            EventForm::Array => mp::write_array_len(out, 7).map(|_| ()).expect(IN_MEMORY),
            EventForm::Map => mp::write_map_len(out, 7).map(|_| ()).expect(IN_MEMORY),
        }
        self.tag(out, "BlockStored");
        self.key(out, "block_hashes");
        self.hashes(out, fields.hashes);
        self.key(out, "parent_block_hash");
        match fields.parent {
            Some(hash) => self.hash(out, hash),
            None => mp::write_nil(out).expect(IN_MEMORY),
        }
        self.key(out, "token_ids");
        mp::write_array_len(out, len(fields.tokens)).expect(IN_MEMORY);
        for token in fields.tokens {
            mp::write_uint(out, u64::from(*token)).expect(IN_MEMORY);
        }
        self.key(out, "block_size");
        mp::write_uint(out, fields.block_size as u64).expect(IN_MEMORY);
        self.key(out, "lora_id");
        mp::write_nil(out).expect(IN_MEMORY);
        self.medium(out, place);
    }

    fn removed(&self, out: &mut Vec<u8>, place: Place, hash: EngineHash) {
        match self.form {
            EventForm::Array => mp::write_array_len(out, 3).map(|_| ()).expect(IN_MEMORY),
            EventForm::Map => mp::write_map_len(out, 3).map(|_| ()).expect(IN_MEMORY),
        }
        self.tag(out, "BlockRemoved");
        self.key(out, "block_hashes");
        self.hashes(out, &[hash]);
        self.medium(out, place);
    }

    fn tag(&self, out: &mut Vec<u8>, tag: &str) {
        self.key(out, "type");
        text(out, tag);
    }

    /// Writes a key in the map form, nothing in the array form.
    fn key(&self, out: &mut Vec<u8>, key: &str) {
        if self.form == EventForm::Map {
            text(out, key);
        }
    }

    fn medium(&self, out: &mut Vec<u8>, place: Place) {
        self.key(out, "medium");
        text(
            out,
            match (place, self.kind) {
                (Place::Device, _) => "GPU",
                (Place::Host, EngineKind::Vllm) => "CPU",
                (Place::Host, EngineKind::Sglang) => "CPU_PINNED",
            },
        );
    }

    fn hashes(&self, out: &mut Vec<u8>, hashes: &[EngineHash]) {
        mp::write_array_len(out, len(hashes)).expect(IN_MEMORY);
        for hash in hashes {
            self.hash(out, *hash);
        }
    }

    fn hash(&self, out: &mut Vec<u8>, hash: EngineHash) {
        match self.kind {
            EngineKind::Vllm => mp::write_uint(out, hash.0).map(|_| ()).expect(IN_MEMORY),
            EngineKind::Sglang => mp::write_sint(out, hash.0.cast_signed()).map(|_| ()).expect(IN_MEMORY),
        }
    }
}

struct StoredFields<'a> {
    hashes: &'a [EngineHash],
    parent: Option<EngineHash>,
    tokens: &'a [u32],
    block_size: usize,
}

fn text(out: &mut Vec<u8>, text: &str) {
    mp::write_str(out, text).expect(IN_MEMORY);
}

/// Lengths of one batch: the engine's event limits keep them far below 2^32.
fn len<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("a batch has fewer than 2^32 items")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(kind: EngineKind, form: EventForm, event: CacheEvent) -> serde_json::Value {
        let bytes = Encoder { kind, form, block_size: 2, rank: 3 }.batch(&[event], 1.5);
        rmp_serde::from_slice(&bytes).unwrap()
    }

    fn stored(place: Place) -> CacheEvent {
        let hash = EngineHash(u64::MAX);
        CacheEvent::Stored { place, parent: Some(EngineHash(5)), blocks: vec![(hash, [7, 8].as_slice().into())] }
    }

    #[test]
    fn events_have_the_published_forms() {
        for (kind, form, event, want) in [
            (
                EngineKind::Vllm,
                EventForm::Array,
                stored(Place::Device),
                serde_json::json!([1.5, [["BlockStored", [u64::MAX], 5, [7, 8], 2, null, "GPU"]], 3]),
            ),
            (
                EngineKind::Vllm,
                EventForm::Array,
                stored(Place::Host),
                serde_json::json!([1.5, [["BlockStored", [u64::MAX], 5, [], 0, null, "CPU"]], 3]),
            ),
            (
                EngineKind::Sglang,
                EventForm::Map,
                stored(Place::Host),
                serde_json::json!([1.5, [{"type": "BlockStored", "block_hashes": [-1], "parent_block_hash": 5,
                    "token_ids": [7, 8], "block_size": 2, "lora_id": null, "medium": "CPU_PINNED"}], 3]),
            ),
            (
                EngineKind::Vllm,
                EventForm::Map,
                CacheEvent::Removed { place: Place::Device, hash: EngineHash(9) },
                serde_json::json!([1.5, [{"type": "BlockRemoved", "block_hashes": [9], "medium": "GPU"}], 3]),
            ),
            (
                EngineKind::Vllm,
                EventForm::Map,
                CacheEvent::Cleared,
                serde_json::json!([1.5, [{"type": "AllBlocksCleared"}], 3]),
            ),
            (
                EngineKind::Sglang,
                EventForm::Array,
                CacheEvent::Cleared,
                serde_json::json!([1.5, [["AllBlocksCleared"]], 3]),
            ),
        ] {
            assert_eq!(decode(kind, form, event), want);
        }
    }
}
