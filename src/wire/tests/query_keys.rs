//! `extra_keys` of a query: the same values as the event path gives for the same elements, and clear errors.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};

use super::pack::{Pack, text};
use super::{context, decode};
use crate::event::{Batch, Event, ExtraKey};
use crate::hash;
use crate::wire::query_extra_keys;

/// An element as an engine writes it and as a client writes it.
fn element() -> BoxedStrategy<(Pack, Json)> {
    let words = [
        "ad1",
        "s1",
        "",
        "dynamo-cache-salt:s2",
        "dynamo-cache-salt:",
        "00000000deadbeef000000000000000000000000000000000000000000000000",
        "00000000DEADBEEFabababababababababababababababababababababababab",
    ];
    let leaf = prop_oneof![
        4 => select(words.to_vec()).prop_map(|word| (text(word), json!(word))),
        1 => any::<String>().prop_map(|word| (text(&word), json!(word))),
        1 => (any::<u64>(), 0..5_u8).prop_map(|(number, width)| (Pack::Int(number.into(), width), json!(number))),
        1 => (any::<i64>(), 0..5_u8).prop_map(|(number, width)| (Pack::Int(number.into(), width), json!(number))),
        1 => (-40..300_i64, 0..5_u8).prop_map(|(number, width)| (Pack::Int(number.into(), width), json!(number))),
        1 => any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| (Pack::Float(n), json!(n))),
        1 => any::<f32>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| (Pack::Float32(n), json!(f64::from(n)))),
        1 => any::<bool>().prop_map(|yes| (Pack::Bool(yes), json!(yes))),
        1 => Just((Pack::Nil, Json::Null)),
        2 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            (Pack::Bytes(bytes, 0), json!({"hex": digits}))
        }),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let pair =
            (select(vec!["uuid", "00000000deadbeefabababababababababababababababababababababababab"]), -5..5_i64)
                .prop_map(|(word, offset)| {
                    (Pack::Array(vec![text(word), Pack::Int(offset.into(), 0)], 0), json!([word, offset]))
                });
        let list = prop::collection::vec(inner.clone(), 0..4).prop_map(|items| {
            let (packs, jsons): (Vec<_>, Vec<_>) = items.into_iter().unzip();
            (Pack::Array(packs, 2), Json::Array(jsons))
        });
        let map = prop::collection::btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|entries| {
            let packs = entries.iter().rev().map(|(key, (pack, _))| (text(key), pack.clone())).collect();
            (Pack::Map(packs, 0), Json::Object(entries.into_iter().map(|(key, (_, json))| (key, json)).collect()))
        });
        prop_oneof![2 => pair, 1 => list, 1 => map]
    })
    .boxed()
}

/// One entry of `extra_keys`: nil or a list.
fn entry() -> impl Strategy<Value = (Pack, Json)> {
    prop_oneof![
        1 => Just((Pack::Nil, Json::Null)),
        4 => prop::collection::vec(element(), 0..4).prop_map(|items| {
            let (packs, jsons): (Vec<_>, Vec<_>) = items.into_iter().unzip();
            (Pack::Array(packs, 0), Json::Array(jsons))
        }),
    ]
}

/// Salt and extra keys as the event path finds them in a prompt of as many blocks.
fn by_event(entries: Vec<Pack>, lora_name: Option<&str>) -> (Option<u64>, Vec<ExtraKey>) {
    let blocks = entries.len();
    let int = |number: usize| Pack::Int(number as i128, 0);
    let event = Pack::Array(
        vec![
            text("BlockStored"),
            Pack::Array((0..blocks).map(int).collect(), 0),
            Pack::Nil,
            Pack::Array((0..blocks).map(int).collect(), 0),
            int(1),
            Pack::Nil,
            Pack::Nil,
            lora_name.map_or(Pack::Nil, text),
            Pack::Array(entries, 0),
        ],
        0,
    );
    let mut payload = vec![];
    Pack::Array(vec![Pack::Nil, Pack::Array(vec![event], 0)], 0).write(&mut payload);
    let mut batch = Batch::default();
    decode(&payload, context(1), &mut batch).expect("a batch");
    let Event::Stored(stored) = &batch.events[0] else { panic!("{:?}", batch.events) };
    (stored.named.salt, batch.extras_of(&stored.extras).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_query_and_an_event_with_equal_elements_get_equal_values(
        entries in prop::collection::vec(entry(), 1..4),
        has_lora in any::<bool>(),
    ) {
        let (packs, jsons): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        let lora_name = has_lora.then_some("ad1");
        prop_assert_eq!(query_extra_keys(&jsons, lora_name), Ok(by_event(packs, lora_name)));
    }
}

#[test]
fn salt_and_lora_are_told_from_identities() {
    let image = "00000000deadbeefabababababababababababababababababababababababab";
    let keys = [json!(["ad1", [image, -3], "s1"]), json!(null), json!(["ad1", {"hex": "0aFF"}])];
    let (salt, extras) = query_extra_keys(&keys, Some("ad1")).expect("good keys");
    assert_eq!(salt, hash::salt("s1"));
    assert_eq!(extras[0], ExtraKey { block: 0, value: 0xdead_beef });
    assert_eq!((extras.len(), extras[1].block), (2, 2));
    assert_eq!(query_extra_keys(&[json!(["ad1"])], Some("")), Ok((hash::salt("ad1"), vec![])));
    assert_eq!(query_extra_keys(&[], None), Ok((None, vec![])));
}

#[test]
fn errors_name_the_entry_and_the_rule() {
    let mut deep = json!(0);
    for _ in 0..20 {
        deep = json!([deep]);
    }
    for (keys, want) in [
        (json!([null, "s1"]), "extra_keys[1] must be null or a list of elements, one entry per block"),
        (json!([{"hex": "00"}]), "extra_keys[0] must be null or a list of elements, one entry per block"),
        (json!([[{"hex": "0"}]]), "extra_keys[0]: {\"hex\": ..} must hold an even number of hex digits"),
        (json!([[{"hex": "0g"}]]), "extra_keys[0]: {\"hex\": ..} must hold an even number of hex digits"),
        (json!([[["x", {"hex": "+1"}]]]), "extra_keys[0]: {\"hex\": ..} must hold an even number of hex digits"),
        (json!([[deep]]), "extra_keys[0]: an element must be at most 16 levels deep and 64 KiB long"),
        (json!([[["x".repeat(70_000)]]]), "extra_keys[0]: an element must be at most 16 levels deep and 64 KiB long"),
    ] {
        let error = query_extra_keys(keys.as_array().expect("entries"), None).expect_err("bad keys");
        assert_eq!(error.to_string(), want);
    }
}
