//! Recorded streams: every frame of every engine decodes to what its readable form says.

use std::fs;
use std::path::PathBuf;

use serde_json::Value as Json;

use super::{decoded, pack};
use crate::event::{Batch, Event, IgnoreReason};
use crate::ids::{EngineHash, Tier};
use crate::wire::{ReplayAnswer, live_message, replay_answer};

fn data(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

fn read(path: &PathBuf) -> Json {
    serde_json::from_slice(&fs::read(path).expect("a readable file")).expect("JSON")
}

fn files() -> Vec<(String, Json)> {
    let mut files: Vec<_> = fs::read_dir(data("engines"))
        .expect("recorded streams")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), read(&path)))
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files
}

fn frames(message: &Json) -> Vec<Vec<u8>> {
    let frames = message.as_array().expect("frames").iter();
    frames.map(|frame| pack::hex(frame.as_str().expect("hex"))).collect()
}

#[track_caller]
fn batch_of(frames: &[Vec<u8>]) -> Batch {
    let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
    let (_, payload) = live_message(&frames).expect("three frames");
    decoded(payload).expect("a batch")
}

/// The hash as the readable form shows it.
fn hash(json: &Json) -> EngineHash {
    if let Some(number) = json.as_u64() {
        return EngineHash(number);
    }
    if let Some(number) = json.as_i64() {
        return EngineHash(number.cast_unsigned());
    }
    let bytes = pack::hex(json["bytes"].as_str().expect("bytes"));
    EngineHash(u64::from_be_bytes(bytes[24..].try_into().expect("32 bytes")))
}

/// A field of an event in readable form, by map key or place in the array.
fn field<'a>(event: &'a Json, keys: &[&str], place: usize) -> &'a Json {
    let by_key = keys.iter().map(|key| &event[key]).find(|value| !value.is_null());
    event.as_array().map_or(by_key.unwrap_or(&Json::Null), |items| items.get(place).unwrap_or(&Json::Null))
}

fn tag(event: &Json) -> &str {
    field(event, &["type", "event_type"], 0).as_str().expect("a tag")
}

fn hashes(event: &Json) -> Vec<EngineHash> {
    field(event, &["block_hashes", "seq_hashes"], 1).as_array().expect("hashes").iter().map(hash).collect()
}

fn tokens(event: &Json) -> Vec<u32> {
    let tokens = field(event, &["token_ids"], 3).as_array().cloned().unwrap_or_default();
    let first = |token: &Json| token.as_array().map_or_else(|| token.clone(), |pair| pair[0].clone());
    tokens.iter().map(|token| first(token).as_u64().expect("a token") as u32).collect()
}

#[track_caller]
fn assert_says(name: &str, batch: &Batch, event: &Event, readable: &Json) {
    match (tag(readable), event) {
        ("BlockStored" | "stored", Event::Stored(stored)) => {
            assert_eq!(batch.hashes_of(&stored.hashes), hashes(readable), "{name}");
            let parent = field(readable, &["parent_block_hash", "parent_hash"], 2);
            assert_eq!(stored.parent, (!parent.is_null()).then(|| hash(parent)), "{name}");
            let bytes: Vec<_> = tokens(readable).iter().flat_map(|token| token.to_le_bytes()).collect();
            assert_eq!(batch.token_bytes_of(&stored.token_bytes), bytes, "{name}");
            let medium = field(readable, &["medium"], 6).as_str().unwrap_or_default();
            assert_eq!(Some(stored.tier), Tier::from_medium(medium), "{name}");
        }
        ("BlockRemoved" | "removed", Event::Removed(removed)) => {
            assert_eq!(batch.hashes_of(&removed.hashes), hashes(readable), "{name}");
            let medium = field(readable, &["medium"], 2).as_str().unwrap_or_default();
            assert_eq!(Some(removed.tier), Tier::from_medium(medium), "{name}");
        }
        ("AllBlocksCleared" | "cleared", Event::Cleared) => {}
        ("BlockStored", Event::Ignored(IgnoreReason::CacheKind)) => {
            let kind = field(readable, &["kv_cache_spec_kind"], 10).as_str();
            assert_eq!(kind, Some("chunked_local_attention"), "{name}");
        }
        (tag, Event::Skipped(reason)) => {
            let is_known = !matches!(tag, "BlockStored" | "BlockRemoved" | "AllBlocksCleared");
            assert!(is_known, "{name}: {readable} is skipped: {reason:?}");
        }
        _ => panic!("{name}: {readable} became {event:?}"),
    }
}

#[test]
fn every_recorded_frame_decodes_to_its_readable_form() {
    let files = files();
    assert!(files.len() >= 50, "{} files", files.len());
    for (name, file) in &files {
        let (messages, readable) = (file["frames"].as_array().expect("frames"), file["decoded"].as_array());
        for (message, readable) in messages.iter().zip(readable.expect("readable forms")) {
            let batch = batch_of(&frames(message));
            let form = &readable["batch"];
            assert_eq!(batch.rank.map(|rank| u64::from(rank.0)), form[2].as_u64(), "{name}");
            let time = form[0].as_f64().expect("a time");
            let ms = if time > 1e11 { time } else { time * 1000.0 };
            assert!(batch.timestamp_ms.is_some_and(|time| (time as f64 - ms).abs() <= 1.0), "{name}");
            let events = form[1].as_array().expect("events");
            assert_eq!(batch.events.len(), events.len(), "{name}");
            for (event, readable) in batch.events.iter().zip(events) {
                assert_says(name, &batch, event, readable);
            }
        }
    }
}

#[test]
fn replay_answers_of_all_versions_repeat_the_live_batches() {
    let mut answers = 0;
    for (name, file) in files() {
        let Some(messages) = file["replay_answer_from_1"].as_array() else { continue };
        let live: Vec<_> = file["frames"].as_array().expect("frames").iter().map(frames).collect();
        let (last, kept) = messages.split_last().expect("an end marker");
        for (place, message) in (1..).zip(kept) {
            let message = frames(message);
            let answer: Vec<_> = message.iter().map(Vec::as_slice).collect();
            let Ok(ReplayAnswer::Batch { seq, payload }) = replay_answer(&answer) else { panic!("{name}: {place}") };
            assert_eq!((seq.0, payload), (place as u64, live[place][2].as_slice()), "{name}");
            answers += 1;
        }
        let last = frames(last);
        let last: Vec<_> = last.iter().map(Vec::as_slice).collect();
        assert_eq!(replay_answer(&last), Ok(ReplayAnswer::End), "{name}");
    }
    assert!(answers >= 30, "{answers} answers");
}

#[test]
fn golden_batches_of_exact_owners_have_nothing_that_is_skipped() {
    let cases = read(&data("golden").join("events.json"));
    let mut exact_cases = 0;
    for case in cases.as_array().expect("cases") {
        let steps = case["steps"].as_array().expect("steps");
        let states: Vec<_> = steps.iter().filter_map(|step| step["ours"]["state"].as_str()).collect();
        let is_exact = !states.is_empty() && states.iter().all(|state| *state == "exact");
        exact_cases += usize::from(is_exact);
        for step in steps.iter().filter(|step| step["op"] == "publish") {
            let payload = pack::hex(step["payload_hex"].as_str().expect("a payload"));
            let events = decoded(&payload).map(|batch| batch.events);
            let has_skipped = events.as_ref().is_ok_and(|events| events.iter().any(|e| matches!(e, Event::Skipped(_))));
            assert!(!is_exact || events.is_ok() && !has_skipped, "{}: {events:?}", case["name"]);
        }
    }
    assert!(exact_cases >= 10, "{exact_cases} cases");
}
