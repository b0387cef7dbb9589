//! What sets blocks with equal tokens apart: LoRA, salt, extra keys, images.

use serde_json::{Value as Json, json};

use super::show::{PLAIN, bytes_1_to_4, check, store_map, store_with};
use super::{context, decode, one, pack};
use crate::event::{Batch, Event};
use crate::hash;
use crate::ids::{LocalHash, Namespace};

#[track_caller]
fn namespace(event: Json) -> Namespace {
    match one(event.clone()).0 {
        Event::Stored(stored) => stored.named,
        other => panic!("{event}: {other:?}"),
    }
}

#[test]
fn lora_and_salt_make_the_namespace() {
    let (ad1, s1) = (hash::lora_name("ad1"), hash::salt("s1"));
    for (event, lora, salt) in [
        (store_with(json!([null, "GPU", null])), None, None),
        (store_with(json!([null, "GPU", "ad1"])), ad1, None),
        (store_with(json!([7, "GPU", "ad1"])), ad1, None),
        (store_with(json!([7, "GPU", ""])), Some(hash::lora_id(7)), None),
        (store_with(json!([7])), Some(hash::lora_id(7)), None),
        (store_with(json!([-7])), Some(hash::lora_id(-7)), None),
        (store_with(json!([0])), Some(hash::lora_id(0)), None),
        (store_with(json!([null, "GPU", {"cache_salt": "s1", "x": 1}])), None, s1),
        (store_with(json!([null, "GPU", {"cache_salt": null}])), None, None),
        (store_map(json!({"lora_name": "ad1", "cache_salt": "s1"})), ad1, s1),
        (store_map(json!({"cache_salt": ""})), None, None),
        (store_map(json!({"cache_salt": "s1", "extra_keys": [["s1"]]})), None, s1),
        (store_with(json!([null, "GPU", null, [["dynamo-cache-salt:s1"]]])), None, s1),
        (store_with(json!([null, "GPU", null, [["s1"]]])), None, s1),
        (store_with(json!([null, "GPU", "ad1", [["ad1"]]])), ad1, None),
        (store_with(json!([null, "GPU", "ad1", [["ad1", "s1"]]])), ad1, s1),
        (store_with(json!([null, "GPU", "ad1", [["ad1", "ad1"]]])), ad1, hash::salt("ad1")),
    ] {
        let named = namespace(event.clone());
        assert_eq!(named, Namespace { lora, salt }, "{event}");
        let (_, batch) = one(event);
        assert_eq!(batch.locals, [hash::local_hash(&bytes_1_to_4(), [], named.seed())]);
    }
    check(store_map(json!({"cache_salt": "s1", "extra_keys": [["s2"]]})), "skipped namespace_conflict");
}

#[test]
fn the_default_lora_holds_for_prompts_that_name_none() {
    let context = super::DecodeContext { default_lora: Some(5), ..context(4) };
    for (event, lora) in [
        (json!(["BlockStored", [11], null, [1, 2, 3, 4], 4]), Some(5)),
        (json!(["BlockStored", [11], 10, [1, 2, 3, 4], 4]), None),
        (json!(["BlockStored", [11], null, [1, 2, 3, 4], 4, 7]), Some(hash::lora_id(7))),
        (json!(["BlockStored", [11], null, [1, 2, 3, 4], 4, null, null, "a"]), hash::lora_name("a")),
    ] {
        let mut batch = Batch::default();
        decode(&pack::json(&json!([1.0, [event], null])), context, &mut batch).unwrap();
        assert!(matches!(&batch.events[0], Event::Stored(stored) if stored.named.lora == lora), "{event}");
    }
}

/// Extra keys and salt of a two-block store with the given `extra_keys`.
#[track_caller]
fn extras(parent: Json, keys: Json) -> (Vec<(u32, u64)>, Option<u64>) {
    let event = json!(["BlockStored", [11, 12], parent, [1, 2, 3, 4, 5, 6, 7, 8], 4, null, "GPU", "ad1", keys]);
    let (decoded, batch) = one(event.clone());
    let Event::Stored(stored) = decoded else { panic!("{event}: {decoded:?}") };
    let found = batch.extras_of(&stored.extras).iter().map(|extra| (extra.block, extra.value)).collect();
    (found, stored.named.salt)
}

const IMAGE: &str = "00000000deadbeef000000000000000000000000000000000000000000000000";
const LONG_IMAGE: &str = "00000000deadbeefabababababababababababababababababababababababab";

#[test]
fn extra_keys_mean_what_their_form_and_place_say() {
    let image = 0xdead_beef;
    assert_eq!(extras(json!(null), json!([null, null])), (vec![], None));
    assert_eq!(extras(json!(null), json!([[], []])), (vec![], None));
    assert_eq!(extras(json!(null), json!([["ad1"], ["ad1"]])), (vec![], None));
    assert_eq!(extras(json!(null), json!([[[IMAGE, 2]], [[IMAGE, -2]]])), (vec![(0, image), (1, image)], None));
    assert_eq!(extras(json!(null), json!([[[LONG_IMAGE, 2]], null])), (vec![(0, image)], None));
    assert_eq!(extras(json!(null), json!([[IMAGE], [LONG_IMAGE]])), (vec![(0, image), (1, image)], None));
    // In the first block an unpadded text is the salt; the last one, if there are several.
    assert_eq!(extras(json!(null), json!([[LONG_IMAGE], null])), (vec![], hash::salt(LONG_IMAGE)));
    assert_eq!(extras(json!(null), json!([[LONG_IMAGE, "s1"], null])), (vec![(0, image)], hash::salt("s1")));
    let tagged = json!([["dynamo-cache-salt:s1", LONG_IMAGE], null]);
    assert_eq!(extras(json!(null), tagged), (vec![(0, image)], hash::salt("s1")));
    // Elsewhere it is an image key.
    let (found, salt) = extras(json!(null), json!([null, ["s1"]]));
    assert_eq!((found.len(), found[0].0, salt), (1, 1, None));
    assert_eq!(extras(json!(10), json!([["s1"], null])).1, None);
    assert_eq!(extras(json!(10), json!([["dynamo-cache-salt:s1"], null])).1, None);
}

#[test]
fn nothing_in_extra_keys_is_plain() {
    let mut seen = vec![];
    for element in [
        json!("x"),
        json!(""),
        json!("ad2"),
        json!(1),
        json!(-2),
        json!(2.5),
        json!(1.0),
        json!(true),
        json!(null),
        json!({"$hex": "6162"}),
        json!({"$hex": ""}),
        json!("ab"),
        json!({"a": 1}),
        json!([]),
        json!(["uuid", 3]),
        json!(["uuid", 4]),
        json!(["uuid"]),
        json!({"$raw": "d40100"}),
        json!({"$raw": "a1ff"}),
    ] {
        let (found, salt) = extras(json!(10), json!([[element], null]));
        assert_eq!((found.len(), salt), (1, None), "{element}");
        assert!(!seen.contains(&found), "{element} has an identity of its own");
        seen.push(found);
    }
    let (bare, _) = extras(json!(10), json!([1, null]));
    assert!(seen.contains(&bare), "an entry that is no list is taken as its only element");
}

#[test]
fn extra_keys_enter_the_hash_of_their_block_in_ascending_order() {
    let keys =
        json!([[[LONG_IMAGE, 0], ["0000000000000001000000000000000000000000000000000000000000000000", 2]], null]);
    let event = json!(["BlockStored", [11, 12], null, [1, 2, 3, 4, 5, 6, 7, 8], 4, null, "GPU", null, keys]);
    let (_, batch) = one(event);
    let first = hash::local_hash(&bytes_1_to_4(), [1, 0xdead_beef], 1337);
    assert_eq!(batch.locals, [first, LocalHash(16_777_012_769_546_811_212)]);
    // On a span that is cut anew an entry applies to every piece.
    let span = json!([
        "BlockStored",
        [11, 12],
        null,
        (1..=16).collect::<Vec<u32>>(),
        8,
        null,
        "GPU",
        null,
        [[[IMAGE, 0]], null]
    ]);
    let (_, batch) = one(span);
    let plain = hash::local_hashes(
        &(1_u32..=16).flat_map(u32::to_le_bytes).collect::<Vec<_>>(),
        context(4).block_size,
        Namespace::default(),
    );
    assert!(batch.locals[0] != plain[0] && batch.locals[1] != plain[1]);
    assert_eq!(batch.locals[2..], plain[2..]);
}

#[test]
fn extra_keys_of_another_length_are_skipped_in_main_groups() {
    let keyed = |kind: Json, keys: Json| store_with(json!([null, "GPU", null, keys, 1, kind]));
    for kind in [json!(null), json!("full_attention")] {
        check(keyed(kind.clone(), json!([])), "skipped extra_keys_length");
        check(keyed(kind, json!([null, null])), "skipped extra_keys_length");
    }
    check(keyed(json!("mamba"), json!([])), "stored 11 tokens [1, 2, 3, 4] size 4 group 1 Mamba");
    check(json!(["BlockStored", [], null, [], 4, null, "GPU", null, [null], 1]), "stored group 1");
}

#[test]
fn image_information_of_other_producers_is_never_plain() {
    let infos = json!([{"mm_objects": [{"mm_hash": 7, "offsets": [[0, 2]]}, {"mm_hash": 3}]}]);
    let (event, batch) = one(store_map(json!({"block_mm_infos": infos})));
    assert_eq!(batch.locals, [hash::local_hash(&bytes_1_to_4(), [3, 7], 1337)], "{event:?}");
    check(store_map(json!({"block_mm_infos": [null]})), PLAIN);
    check(store_map(json!({"block_mm_infos": []})), PLAIN);
    check(store_map(json!({"block_mm_infos": null})), PLAIN);
    check(store_map(json!({"mm_keys": [[]]})), PLAIN);
    for odd in
        [json!([{"hash": "ab"}]), json!([[{"hash": "ab"}]]), json!("x"), json!([null, 1]), json!([{"mm_objects": 7}])]
    {
        check(store_map(json!({"mm_keys": odd})), "stored 11 tokens [1, 2, 3, 4] size 4 locals 1 extra@0");
    }
}
