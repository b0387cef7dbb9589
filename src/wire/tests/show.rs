//! Events in a short text form, and the store that most tables vary.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::one;
use crate::event::{Batch, Event, GroupInfo};
use crate::ids::{EngineHash, Tier};

/// Short text form; parts that are absent or usual are left out.
pub(super) fn show(event: &Event, batch: &Batch) -> String {
    let mut out = String::new();
    match event {
        Event::Cleared => out.push_str("cleared"),
        Event::Ignored(reason) => out.push_str(&format!("ignored {}", reason.as_str())),
        Event::Skipped(reason) => out.push_str(&format!("skipped {}", reason.as_str())),
        Event::Removed(removed) => {
            out.push_str("removed");
            show_hashes(batch.hashes_of(&removed.hashes), &mut out);
            show_place(removed.tier, removed.group, &mut out);
            if let Some(copies) = &removed.remaining_copies {
                write!(out, " copies {copies:?}").unwrap();
            }
            if removed.remaining_copies_invalid {
                out.push_str(" copies invalid");
            }
        }
        Event::Stored(stored) => {
            out.push_str("stored");
            show_hashes(batch.hashes_of(&stored.hashes), &mut out);
            if let Some(parent) = stored.parent {
                write!(out, " below {}", parent.0).unwrap();
            }
            let tokens = batch.token_bytes_of(&stored.token_bytes).chunks(4);
            let tokens: Vec<_> = tokens.map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
            if !tokens.is_empty() {
                write!(out, " tokens {tokens:?}").unwrap();
            }
            if let Some(size) = stored.block_size {
                write!(out, " size {size}").unwrap();
            }
            match stored.locals.len() {
                0 => {}
                count => write!(out, " locals {count}").unwrap(),
            }
            for extra in batch.extras_of(&stored.extras) {
                write!(out, " extra@{}", extra.block).unwrap();
            }
            let named = [("lora", stored.named.lora), ("salt", stored.named.salt)];
            named.iter().filter(|(_, part)| part.is_some()).for_each(|(name, _)| write!(out, " {name}").unwrap());
            show_place(stored.tier, stored.group, &mut out);
        }
    }
    out
}

fn show_hashes(hashes: &[EngineHash], out: &mut String) {
    hashes.iter().for_each(|hash| write!(out, " {}", hash.0).unwrap());
}

fn show_place(tier: Tier, group: GroupInfo, out: &mut String) {
    if tier != Tier::Device {
        write!(out, " {}", tier.as_str()).unwrap();
    }
    if let Some(id) = group.id {
        write!(out, " group {}", id.0).unwrap();
    }
    if let Some(kind) = group.kind {
        write!(out, " {kind:?}").unwrap();
    }
    if let Some(window) = group.window_tokens {
        write!(out, " window {window}").unwrap();
    }
}

#[track_caller]
pub(super) fn check(event: Json, want: &str) {
    let (decoded, batch) = one(event.clone());
    assert_eq!(show(&decoded, &batch), want, "{event}");
}

/// The same store in array form with `tail` behind the block size.
pub(super) fn store_with(tail: Json) -> Json {
    let mut event = vec![json!("BlockStored"), json!([11]), Json::Null, json!([1, 2, 3, 4]), json!(4)];
    event.extend(tail.as_array().unwrap().iter().cloned());
    Json::Array(event)
}

/// The same store in map form with more keys.
pub(super) fn store_map(more: Json) -> Json {
    let mut event = json!({"type": "BlockStored", "block_hashes": [11], "token_ids": [1, 2, 3, 4], "block_size": 4});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

pub(super) const PLAIN: &str = "stored 11 tokens [1, 2, 3, 4] size 4 locals 1";

pub(super) fn plain_and(more: &str) -> String {
    format!("{PLAIN} {more}")
}

/// Tokens of the store.
pub(super) fn bytes_1_to_4() -> Vec<u8> {
    (1_u32..=4).flat_map(u32::to_le_bytes).collect()
}
