//! Property: walker and library read every payload alike, and no payload makes either panic.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::pack::{Pack, text};
use super::{by_library, context};
use crate::event::{Batch, Event};
use crate::wire::decode;

fn width() -> impl Strategy<Value = u8> {
    prop_oneof![8 => Just(0_u8), 1 => 1..5_u8]
}

fn int(range: std::ops::RangeInclusive<i128>) -> BoxedStrategy<Pack> {
    (range, width()).prop_map(|(number, width)| Pack::Int(number, width)).boxed()
}

fn word(words: &'static [&'static str]) -> BoxedStrategy<Pack> {
    (select(words), width()).prop_map(|(word, width)| Pack::Text(word.as_bytes().to_vec(), width)).boxed()
}

fn nil_or(strategy: BoxedStrategy<Pack>) -> BoxedStrategy<Pack> {
    prop_oneof![1 => Just(Pack::Nil), 2 => strategy].boxed()
}

fn list(items: BoxedStrategy<Pack>, max: usize) -> BoxedStrategy<Pack> {
    (prop::collection::vec(items, 0..=max), width()).prop_map(|(items, width)| Pack::Array(items, width)).boxed()
}

/// Any value at all.
fn anything() -> BoxedStrategy<Pack> {
    let leaf = prop_oneof![
        Just(Pack::Nil),
        any::<bool>().prop_map(Pack::Bool),
        int(i128::from(i64::MIN)..=i128::from(u64::MAX)),
        int(-200..=300),
        any::<f64>().prop_map(Pack::Float),
        any::<f32>().prop_map(Pack::Float32),
        word(&["", "a", "BlockStored", "GPU", "cache_salt"]),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(|bytes| Pack::Text(bytes, 0)),
        (prop::collection::vec(any::<u8>(), 0..40), width()).prop_map(|(bytes, width)| Pack::Bytes(bytes, width)),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(Pack::Ext),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..4), width()).prop_map(|(items, width)| Pack::Array(items, width)),
            (prop::collection::vec((inner.clone(), inner), 0..3), width())
                .prop_map(|(entries, width)| Pack::Map(entries, width)),
        ]
    })
    .boxed()
}

/// Mostly what belongs there, at times anything.
fn mostly(strategy: BoxedStrategy<Pack>) -> BoxedStrategy<Pack> {
    prop_oneof![100 => strategy, 1 => anything()].boxed()
}

fn hash() -> BoxedStrategy<Pack> {
    let bytes = prop_oneof![Just(32_usize), 0..40_usize].prop_flat_map(|len| prop::collection::vec(any::<u8>(), len));
    mostly(
        prop_oneof![
            4 => int(i128::from(i64::MIN)..=i128::from(u64::MAX)),
            4 => int(0..=20),
            1 => (bytes, width()).prop_map(|(bytes, width)| Pack::Bytes(bytes, width)),
        ]
        .boxed(),
    )
}

fn tokens(len: usize) -> BoxedStrategy<Pack> {
    let token = || prop_oneof![int(0..=300), int(0..=i128::from(u32::MAX))].boxed();
    let singles = prop::collection::vec(prop_oneof![300 => token(), 1 => anything()], len);
    let pair = prop_oneof![
        300 => (token(), token()).prop_map(|(a, b)| Pack::Array(vec![a, b], 0)),
        1 => anything(),
    ];
    let pairs = prop::collection::vec(pair, len);
    let tokens = prop_oneof![8 => singles.boxed(), 2 => pairs.boxed(), 1 => Just(vec![])];
    prop_oneof![
        24 => (tokens, width()).prop_map(|(items, width)| Pack::Array(items, width)),
        1 => Just(Pack::Nil),
        1 => anything(),
    ]
    .boxed()
}

const IMAGE: &str = "00000000deadbeef000000000000000000000000000000000000000000000000";

fn extra_keys(blocks: usize) -> BoxedStrategy<Pack> {
    let element = prop_oneof![
        word(&["ad1", "s1", IMAGE, "dynamo-cache-salt:s2", ""]),
        (word(&[IMAGE, "uuid"]), int(-20..=20)).prop_map(|(text, offset)| Pack::Array(vec![text, offset], 0)),
        anything(),
    ];
    let entry = prop_oneof![3 => Just(Pack::Nil), 2 => list(element.boxed(), 3), 1 => anything()];
    let exact = prop::collection::vec(entry, blocks).prop_map(|entries| Pack::Array(entries, 0));
    prop_oneof![8 => Just(Pack::Nil), 8 => exact, 1 => list(Just(Pack::Nil).boxed(), 3), 1 => anything()].boxed()
}

const MEDIA: &[&str] = &["GPU", "GPU", "cpu", "CPU", "DISK", "FS", "", "NEWTIER", "REMOTE"];
const KINDS: &[&str] = &[
    "full_attention",
    "full_attention",
    "full_attention",
    "mla_attention",
    "sliding_window",
    "mamba",
    "chunked_local_attention",
    "weird",
];

/// `group_idx, kind, window, locality, ownership`.
fn trailing() -> Vec<(&'static str, BoxedStrategy<Pack>)> {
    vec![
        ("group_idx", mostly(nil_or(int(0..=3)))),
        ("kv_cache_spec_kind", mostly(nil_or(word(KINDS)))),
        ("kv_cache_spec_sliding_window", mostly(nil_or(int(0..=300)))),
        ("locality", mostly(nil_or(word(&["LOCAL", "LOCAL", "LOCAL", "LOCAL", "REMOTE", "X"])))),
        ("ownership", prop_oneof![19 => Just(Pack::Nil), 1 => anything()].boxed()),
    ]
}

fn stored_fields(blocks: usize, size: usize) -> Vec<(&'static str, BoxedStrategy<Pack>)> {
    let salt_map = Just(Pack::Map(vec![(text("cache_salt"), text("s1"))], 0)).boxed();
    let lora = prop_oneof![2 => Just(Pack::Nil), 2 => word(&["ad1", ""]), 1 => salt_map];
    let hashes = prop::collection::vec(hash(), blocks).prop_map(|items| Pack::Array(items, 0)).boxed();
    let mut fields = vec![
        ("block_hashes", mostly(hashes)),
        ("parent_block_hash", nil_or(hash())),
        ("token_ids", tokens(blocks * size)),
        (
            "block_size",
            mostly(prop_oneof![20 => int(size as i128..=size as i128), 1 => int(0..=9), 1 => Just(Pack::Nil)].boxed()),
        ),
        ("lora_id", mostly(nil_or(int(-2..=7)))),
        ("medium", mostly(nil_or(word(MEDIA)))),
        ("lora_name", mostly(lora.boxed())),
        ("extra_keys", extra_keys(blocks)),
    ];
    fields.extend(trailing());
    fields
}

fn removed_fields() -> Vec<(&'static str, BoxedStrategy<Pack>)> {
    let mut fields = vec![("block_hashes", mostly(list(hash(), 4))), ("medium", mostly(nil_or(word(MEDIA))))];
    fields.extend(trailing());
    fields
}

fn array_event(tag: BoxedStrategy<Pack>, fields: Vec<(&'static str, BoxedStrategy<Pack>)>) -> BoxedStrategy<Pack> {
    let all = fields.len();
    let len = prop_oneof![4 => Just(all), 4 => 4.min(all)..=all, 1 => 0..=all];
    let values = fields.into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    let surplus = prop::collection::vec(anything(), 0..2);
    (tag, values, len, surplus, width())
        .prop_map(move |(tag, mut values, len, surplus, width)| {
            values.truncate(len);
            if len == all {
                values.extend(surplus);
            }
            values.insert(0, tag);
            Pack::Array(values, width)
        })
        .boxed()
}

fn map_event(tag: BoxedStrategy<Pack>, fields: Vec<(&'static str, BoxedStrategy<Pack>)>) -> BoxedStrategy<Pack> {
    let rare = select(
        &["seq_hashes", "parent_hash", "event_type", "additional_salt", "mm_keys", "remaining_copy_counts", "x"][..],
    );
    let more = prop_oneof![
        8 => Just(None),
        1 => (rare, anything()).prop_map(|(key, value)| Some((text(key), value))),
        1 => (anything(), anything()).prop_map(Some),
        1 => Just(Some((text("cache_salt"), text("s1")))),
        1 => hash().prop_map(|hash| Some((text("block_hashes"), Pack::Array(vec![hash], 0)))),
    ];
    let mut keys: Vec<_> = fields.iter().map(|(key, _)| text(key)).collect();
    keys.insert(0, text("type"));
    let mut values = vec![tag];
    values.extend(fields.into_iter().map(|(_, value)| value));
    let presence = prop::collection::vec(prop::bool::weighted(0.95), keys.len());
    (values, presence, more, any::<Index>(), width())
        .prop_map(move |(values, presence, more, turn, width)| {
            let all = keys.iter().cloned().zip(values).zip(presence);
            let mut entries: Vec<_> = all.filter(|(_, is_there)| *is_there).map(|(entry, _)| entry).collect();
            entries.extend(more);
            if !entries.is_empty() && turn.index(3) == 0 {
                let turn = turn.index(entries.len());
                entries.rotate_left(turn);
            }
            Pack::Map(entries, width)
        })
        .boxed()
}

fn event() -> BoxedStrategy<Pack> {
    let stored = (0..4_usize, select(vec![1_usize, 2, 4, 8])).prop_flat_map(|(blocks, size)| {
        prop_oneof![
            array_event(mostly(word(&["BlockStored"])), stored_fields(blocks, size)),
            map_event(mostly(word(&["BlockStored", "BlockStored", "stored"])), stored_fields(blocks, size)),
        ]
    });
    prop_oneof![
        6 => stored,
        2 => array_event(mostly(word(&["BlockRemoved"])), removed_fields()),
        2 => map_event(mostly(word(&["BlockRemoved", "removed"])), removed_fields()),
        1 => array_event(mostly(word(&["AllBlocksCleared", "Ignored", "Other"])), trailing()),
        1 => map_event(mostly(word(&["AllBlocksCleared", "cleared", "Ignored"])), removed_fields()),
        1 => anything(),
    ]
    .boxed()
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    let time = mostly(prop_oneof![any::<f64>().prop_map(Pack::Float), int(0..=1 << 45), Just(Pack::Nil)].boxed());
    let events = mostly(list(event(), 4));
    let rank = mostly(nil_or(int(-3..=3)));
    let surplus = prop::collection::vec(anything(), 0..2);
    (time, events, rank, surplus, 0..12_u8, width()).prop_map(|(time, events, rank, surplus, form, width)| {
        let batch = match form {
            0 => Pack::Array(vec![time, events], width),
            1 => {
                Pack::Map(vec![(text("ts"), time), (text("events"), events), (text("data_parallel_rank"), rank)], width)
            }
            2 => {
                Pack::Map(vec![(text("data_parallel_rank"), rank), (text("x"), time), (text("events"), events)], width)
            }
            _ => Pack::Array([vec![time, events, rank], surplus].concat(), width),
        };
        let mut out = vec![];
        batch.write(&mut out);
        out
    })
}

#[track_caller]
fn agree(payload: &[u8]) -> Option<Batch> {
    for block_size in [16, 4, 2, 1] {
        let context = crate::wire::DecodeContext { default_lora: Some(9), ..context(block_size) };
        let mut batch = Batch::default();
        let fast = decode(payload, context, &mut batch).map(|()| batch);
        assert_eq!(fast, by_library(payload, context));
        if let Ok(batch) = fast {
            assert_whole(&batch);
            if block_size == 1 {
                return Some(batch);
            }
        }
    }
    None
}

/// Every range lies inside its arena, and the arenas hold nothing else.
#[track_caller]
fn assert_whole(batch: &Batch) {
    let (mut hashes, mut token_bytes, mut locals, mut extras) = (0, 0, 0, 0);
    for event in &batch.events {
        match event {
            Event::Stored(stored) => {
                hashes += batch.hashes_of(&stored.hashes).len();
                token_bytes += batch.token_bytes_of(&stored.token_bytes).len();
                locals += batch.locals_of(&stored.locals).len();
                extras += batch.extras_of(&stored.extras).len();
                assert!(batch.extras_of(&stored.extras).is_sorted());
                assert!(
                    batch.extras_of(&stored.extras).iter().all(|extra| (extra.block as usize) < stored.hashes.len())
                );
                assert_ne!(stored.block_size, Some(0));
            }
            Event::Removed(removed) => hashes += batch.hashes_of(&removed.hashes).len(),
            Event::Cleared | Event::Ignored(_) | Event::Skipped(_) => {}
        }
    }
    let held = (batch.hashes.len(), batch.token_bytes.len(), batch.locals.len(), batch.extras.len());
    assert_eq!((hashes, token_bytes, locals, extras), held);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_read_every_shape_alike(payload in payload()) {
        agree(&payload);
    }

    #[test]
    fn both_ways_read_corrupted_payloads_alike(
        payload in payload(),
        changes in prop::collection::vec((any::<Index>(), any::<u8>(), 0..4_u8), 1..4),
    ) {
        let mut payload = payload;
        for (at, byte, kind) in changes {
            if payload.is_empty() {
                break;
            }
            let at = at.index(payload.len());
            match kind {
                0 => payload.truncate(at),
                1 => payload.insert(at, byte),
                2 => drop(payload.remove(at)),
                _ => payload[at] = byte,
            }
        }
        agree(&payload);
    }

    #[test]
    fn token_lists_of_every_mix_of_lengths_are_read_right(
        runs in prop::collection::vec((select(vec![1_u32, 200, 300, 70_000]), 1..7_usize, 0..5_u8), 0..20),
        cut in prop::option::of(any::<Index>()),
    ) {
        let tokens: Vec<_> = runs.iter().flat_map(|(token, len, width)| vec![(*token, *width); *len]).collect();
        let list = tokens.iter().map(|(token, width)| Pack::Int((*token).into(), *width)).collect();
        let hash = Pack::Array(vec![Pack::Int(1, 0)], 0);
        let event = vec![text("BlockStored"), hash, Pack::Nil, Pack::Array(list, 0), Pack::Int(1, 0)];
        let mut payload = vec![];
        Pack::Array(vec![Pack::Nil, Pack::Array(vec![Pack::Array(event, 0)], 0)], 0).write(&mut payload);
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
            prop_assert!(agree(&payload).is_none());
        } else {
            let bytes: Vec<_> = tokens.iter().flat_map(|(token, _)| token.to_le_bytes()).collect();
            prop_assert_eq!(agree(&payload).map(|batch| batch.token_bytes), Some(bytes));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), start in 0..4_usize) {
        let starts: [&[u8]; 4] = [b"", b"\x93\xc0\x91", b"\x92\xc0\x92\x9e\xabBlockStored", b"\x92\xc0\x91\x8f\xa4type\xabBlockStored"];
        agree(&[starts[start], &bytes].concat());
    }
}

#[test]
fn the_generator_makes_events_of_every_kind() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..2000 {
        let payload = payload().new_tree(&mut runner).expect("a payload").current();
        for event in agree(&payload).map(|batch| batch.events).unwrap_or_default() {
            let word = match event {
                Event::Stored(stored) if stored.locals.is_empty() => "stored".to_owned(),
                Event::Stored(stored) if stored.extras.is_empty() => "stored with locals".to_owned(),
                Event::Stored(_) => "stored with extras".to_owned(),
                Event::Removed(_) => "removed".to_owned(),
                Event::Cleared => "cleared".to_owned(),
                Event::Ignored(reason) => reason.as_str().to_owned(),
                Event::Skipped(reason) => reason.as_str().to_owned(),
            };
            *seen.entry(word).or_default() += 1;
        }
    }
    for word in [
        "stored",
        "stored with locals",
        "stored with extras",
        "removed",
        "cleared",
        "ignored_tag",
        "cache_kind",
        "foreign_ownership",
        "malformed_event",
        "unknown_event",
        "unknown_medium",
        "unknown_cache_kind",
        "invalid_hash",
        "invalid_token",
        "no_hashes",
        "extra_keys_length",
        "repeated_hash",
        "parent_in_hashes",
        "namespace_conflict",
    ] {
        assert!(seen.contains_key(word), "{word} in {seen:?}");
    }
}
