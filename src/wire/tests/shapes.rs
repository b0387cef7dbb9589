//! What each shape of batch and event means: tables of MessagePack in JSON notation against a short text form.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::{context, decoded, one, pack};
use crate::event::{Batch, Event, GroupInfo, SkipReason};
use crate::hash;
use crate::ids::{DpRank, EngineHash, LocalHash, Namespace, Tier};
use crate::wire::decode;

/// Short text form; parts that are absent or usual are left out.
fn show(event: &Event, batch: &Batch) -> String {
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
fn check(event: Json, want: &str) {
    let (decoded, batch) = one(event.clone());
    assert_eq!(show(&decoded, &batch), want, "{event}");
}

/// The same store in array form with `tail` behind the block size.
fn store_with(tail: Json) -> Json {
    let mut event = vec![json!("BlockStored"), json!([11]), Json::Null, json!([1, 2, 3, 4]), json!(4)];
    event.extend(tail.as_array().unwrap().iter().cloned());
    Json::Array(event)
}

/// The same store in map form with more keys.
fn store_map(more: Json) -> Json {
    let mut event = json!({"type": "BlockStored", "block_hashes": [11], "token_ids": [1, 2, 3, 4], "block_size": 4});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

const PLAIN: &str = "stored 11 tokens [1, 2, 3, 4] size 4 locals 1";

fn plain_and(more: &str) -> String {
    format!("{PLAIN} {more}")
}

#[test]
fn f01_array_and_map_events_are_read_alike() {
    let array = json!(["BlockStored", [11], null, [1, 2, 3, 4], 4, null, "GPU", null]);
    let map = store_map(json!({"parent_block_hash": null, "lora_id": null, "medium": "GPU"}));
    assert_eq!(one(array).0, one(map).0);
    check(json!({"block_hashes": [11], "token_ids": [1, 2, 3, 4], "block_size": 4, "type": "BlockStored"}), PLAIN);
    check(json!(["BlockRemoved", [11], "CPU"]), "removed 11 host_pinned");
    check(json!({"block_hashes": [11], "medium": "CPU", "type": "BlockRemoved"}), "removed 11 host_pinned");
    check(json!(["AllBlocksCleared"]), "cleared");
    check(json!({"type": "AllBlocksCleared"}), "cleared");
}

#[test]
fn f02_unknown_keys_and_surplus_elements_are_passed_over() {
    check(store_map(json!({"x": [1, {"y": null}], "lookahead_token_ids": [9], "z": {"$hex": "00"}})), PLAIN);
    check(store_with(json!([null, "GPU", null, null, null, null, null, "LOCAL", null, {"x": 1}, [1, 2]])), PLAIN);
    check(
        json!(["BlockRemoved", [11], "GPU", 0, "full_attention", null, "LOCAL", null, "zz", 5]),
        "removed 11 group 0 Full",
    );
    check(json!(["AllBlocksCleared", null]), "cleared");
    check(json!(["AllBlocksCleared", "GPU", [1]]), "cleared");
    check(json!({"type": "AllBlocksCleared", "block_hashes": "odd"}), "cleared");
    check(
        json!({"type": "BlockStored", "block_hashes": [11], "token_ids": [1, 2, 3, 4], "block_size": 4, "7": 7}),
        PLAIN,
    );
}

#[test]
fn f02_hashes_keep_their_bit_pattern_whatever_their_sign() {
    let hashes = json!([-5, u64::MAX, i64::MIN, 0, 1_u64 << 63]);
    let half = 1_u64 << 63;
    check(json!(["BlockRemoved", hashes]), &format!("removed {} {} {half} 0 {half}", u64::MAX - 4, u64::MAX));
    let stored = json!(["BlockStored", [-5], -6, [1, 2, 3, 4], 4]);
    let want = format!("stored {} below {} tokens [1, 2, 3, 4] size 4 locals 1", u64::MAX - 4, u64::MAX - 5);
    check(stored, &want);
}

#[test]
fn f03_byte_hashes_are_read_and_meet_their_integer_form() {
    let bytes = "00112233445566778899aabbccddeeff00112233445566778899aabb00000102";
    check(json!(["BlockRemoved", [{"$hex": bytes}]]), &format!("removed {}", 0x8899_aabb_0000_0102_u64));
    let other = hash_of(b"ab");
    check(json!(["BlockRemoved", [{"$hex": "6162"}, 7]]), &format!("removed {other} 7"));
    let child = json!(["BlockStored", [1], {"$hex": "6162"}, [1, 2, 3, 4], 4]);
    check(child, &format!("stored 1 below {other} tokens [1, 2, 3, 4] size 4 locals 1"));
}

fn hash_of(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

#[test]
fn f04_pairs_become_single_tokens() {
    let pairs = json!([[1, 2], [2, 3], [3, 4], [4, 5]]);
    check(json!(["BlockStored", [11], null, pairs, 4]), PLAIN);
    check(store_map(json!({"token_ids": pairs})), PLAIN);
    let batch =
        decoded(&pack::json(&json!([1.0, [["BlockStored", [11], null, pairs, 4], store_with(json!([]))], null])));
    let batch = batch.unwrap();
    assert_eq!(batch.locals[0], batch.locals[1]);
}

#[test]
fn tokens_that_are_no_u32_cost_their_event_only() {
    for tokens in [
        json!([4_294_967_296_u64, 1, 2, 3]),
        json!([-1, 1, 2, 3]),
        json!([1.0, 1, 2, 3]),
        json!(["a", 1, 2, 3]),
        json!([null, 1, 2, 3]),
        json!([[1, 2], 2, 3, 4]),
        json!([1, [2, 3], 3, 4]),
        json!([[1], [2], [3], [4]]),
        json!([[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]),
        json!([[1, "a"], [2, 3], [3, 4], [4, 5]]),
    ] {
        check(json!(["BlockStored", [11], null, tokens, 4]), "skipped invalid_token");
    }
    let big = json!(["BlockStored", [11], null, [2_147_483_648_u32, u32::MAX, 0, 1], 4]);
    check(big, "stored 11 tokens [2147483648, 4294967295, 0, 1] size 4 locals 1");
    let wide =
        json!([{"$raw": "cf0000000000000001"}, {"$raw": "d202000000"}, {"$raw": "d003"}, {"$raw": "ce00000004"}]);
    check(json!(["BlockStored", [11], null, wide, 4]), "stored 11 tokens [1, 33554432, 3, 4] size 4 locals 1");
}

#[test]
fn hashes_that_are_neither_integers_nor_bytes_cost_their_event_only() {
    for hash in [json!("11"), json!(null), json!(1.0), json!(true), json!([1]), json!({"$raw": "d40100"})] {
        check(json!(["BlockRemoved", [7, hash]]), "skipped invalid_hash");
        check(json!(["BlockStored", [hash], null, [1, 2, 3, 4], 4]), "skipped invalid_hash");
        if !hash.is_null() {
            check(json!(["BlockStored", [7], hash, [1, 2, 3, 4], 4]), "skipped invalid_hash");
        }
    }
}

#[test]
fn events_that_miss_something_are_malformed() {
    for event in [
        json!(null),
        json!(7),
        json!("BlockStored"),
        json!([]),
        json!({}),
        json!([7]),
        json!([null, [11]]),
        json!({"type": 7, "block_hashes": [11]}),
        json!({"block_hashes": [11]}),
        json!(["BlockStored", "x"]),
        json!(["BlockStored", [11], null, [1, 2, 3, 4]]),
        json!(["BlockStored", null, null, [1, 2, 3, 4], 4]),
        json!(["BlockStored", [11], null, "tokens", 4]),
        json!(["BlockStored", [11], null, [1, 2, 3, 4], null]),
        json!(["BlockStored", [11], null, [1, 2, 3, 4], 0]),
        json!(["BlockStored", [11], null, [1, 2, 3, 4], -4]),
        json!(["BlockStored", [11], null, [1, 2, 3, 4], "4"]),
        json!(["BlockStored", [11], null, [1, 2, 3, 4], 4_294_967_296_u64]),
        json!(["BlockRemoved"]),
        json!(["BlockRemoved", null]),
        json!(["BlockRemoved", 11]),
        json!(["BlockRemoved", [11], 7]),
        json!({"type": "BlockRemoved"}),
        json!({"type": "BlockStored", "token_ids": [1, 2, 3, 4], "block_size": 4}),
        store_with(json!(["lora"])),
        store_with(json!([null, "GPU", 7])),
        store_with(json!([null, "GPU", null, "keys"])),
        store_with(json!([null, "GPU", null, null, "LOCAL"])),
        store_with(json!([null, "GPU", null, null, -1])),
        store_with(json!([null, {"$raw": "a1ff"}])),
        store_map(json!({"cache_salt": 7})),
        store_map(json!({"lora_name": {"cache_salt": 7}})),
        store_map(json!({"kv_cache_spec_kind": 7})),
    ] {
        check(event, "skipped malformed_event");
    }
}

#[test]
fn a_key_twice_is_malformed() {
    let once = pack::json(&json!("block_hashes"));
    let mut event = vec![0x83];
    for (key, value) in [("type", json!("BlockRemoved")), ("block_hashes", json!([1])), ("block_hashes", json!([2]))] {
        event.extend(pack::json(&json!(key)));
        event.extend(pack::json(&value));
    }
    assert!(event.windows(once.len()).filter(|window| *window == once).count() == 2);
    let digits: String = event.iter().map(|byte| format!("{byte:02x}")).collect();
    check(json!({"$raw": digits}), "skipped malformed_event");
}

#[test]
fn unknown_events_are_told_from_malformed_ones() {
    check(json!(["BlockUpdated", [11]]), "skipped unknown_event");
    check(json!({"type": "BlockUpdated"}), "skipped unknown_event");
    check(json!(["Ignored", 1, 2]), "ignored ignored_tag");
    check(json!({"type": "Ignored", "block_hashes": 7}), "ignored ignored_tag");
}

#[test]
fn one_odd_event_never_costs_its_neighbours() {
    let odd = [json!(["BlockStored", "x"]), json!(7), json!(["BlockStored", ["11"], null, [1, 2, 3, 4], 4]), json!({})];
    for odd in odd {
        let batch =
            decoded(&pack::json(&json!([1.0, [store_with(json!([])), odd, ["BlockRemoved", [11]]], 3]))).unwrap();
        assert_eq!(show(&batch.events[0], &batch), PLAIN);
        assert!(matches!(batch.events[1], Event::Skipped(_)), "{odd}");
        assert_eq!(show(&batch.events[2], &batch), "removed 11");
        assert_eq!(batch.rank, Some(DpRank(3)));
        assert_eq!(batch.hashes.len(), 2, "an event that is skipped leaves nothing in the arenas");
    }
}

#[test]
fn f10_f11_media_and_locality_name_the_tier() {
    for (medium, want) in [
        (json!(null), ""),
        (json!(""), ""),
        (json!("GPU"), ""),
        (json!("hbm"), ""),
        (json!("CPU"), " host_pinned"),
        (json!("CPU_PINNED"), " host_pinned"),
        (json!("CPU_TIER1"), " host_pinned"),
        (json!("CPU_TIER2"), " disk"),
        (json!("DISK"), " disk"),
        (json!("STORAGE"), " disk"),
        (json!("FS"), " disk"),
        (json!("OBJ"), " disk"),
        (json!("EXTERNAL"), " external"),
        (json!("REMOTE"), " external"),
    ] {
        check(store_with(json!([null, medium])), &format!("{PLAIN}{want}"));
        check(json!(["BlockRemoved", [11], medium]), &format!("removed 11{want}"));
        check(store_map(json!({"medium": medium, "locality": "REMOTE"})), &plain_and("external"));
    }
    check(store_with(json!([null, "NEWTIER"])), "skipped unknown_medium");
    check(store_with(json!([null, "LOCAL"])), "skipped unknown_medium");
    check(json!(["BlockRemoved", [11], "NEWTIER"]), "skipped unknown_medium");
    check(store_map(json!({"medium": "NEWTIER", "locality": "REMOTE"})), &plain_and("external"));
    check(store_map(json!({"medium": "CPU", "locality": "LOCAL"})), &plain_and("host_pinned"));
    check(store_map(json!({"medium": "CPU", "locality": null})), &plain_and("host_pinned"));
    check(store_map(json!({"medium": "GPU", "locality": "NEIGHBOUR"})), "skipped unknown_medium");
}

#[test]
fn f12_f13_removals_keep_every_hash_and_their_tier() {
    check(json!(["BlockRemoved", [99, 11, 12], "CPU"]), "removed 99 11 12 host_pinned");
    check(json!(["BlockRemoved", [11, 11]]), "removed 11 11");
    check(json!(["BlockRemoved", [], "GPU"]), "removed");
    check(json!({"event_type": "removed", "seq_hashes": []}), "skipped no_hashes");
}

#[test]
fn ownership_comes_before_locality_before_medium() {
    let odd = json!({"ownership": "kvcr", "locality": "X", "medium": "NEWTIER", "kv_cache_spec_kind": "weird"});
    check(store_map(odd), "ignored foreign_ownership");
    check(json!({"type": "BlockRemoved", "block_hashes": 7, "ownership": {"a": 1}}), "ignored foreign_ownership");
    check(store_map(json!({"ownership": null})), PLAIN);
    check(
        store_with(json!([null, "GPU", null, null, 0, "full_attention", null, "LOCAL", "kvcr"])),
        "ignored foreign_ownership",
    );
}

#[test]
fn f08_cache_groups_are_read_before_the_block_size() {
    for (kind, want) in [
        ("full_attention", "stored 11 tokens [1, 2, 3, 4] size 4 locals 1 group 1 Full"),
        ("mla_attention", "stored 11 tokens [1, 2, 3, 4] size 4 locals 1 group 1 Full"),
        ("sink_full_attention", "stored 11 tokens [1, 2, 3, 4] size 4 locals 1 group 1 Full"),
        ("sliding_window", "stored 11 tokens [1, 2, 3, 4] size 4 group 1 SlidingWindow"),
        ("sliding_window_mla", "stored 11 tokens [1, 2, 3, 4] size 4 group 1 SlidingWindow"),
        ("mamba", "stored 11 tokens [1, 2, 3, 4] size 4 group 1 Mamba"),
        ("chunked_local_attention", "ignored cache_kind"),
        ("cross_attention", "ignored cache_kind"),
        ("encoder_only_attention", "ignored cache_kind"),
        ("weird", "skipped unknown_cache_kind"),
    ] {
        check(store_with(json!([null, "GPU", null, null, 1, kind])), want);
        check(store_map(json!({"group_idx": 1, "kv_cache_spec_kind": kind})), want);
    }
    let window = store_map(json!({"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128}));
    check(window, "stored 11 tokens [1, 2, 3, 4] size 4 SlidingWindow window 128");
    check(json!(["BlockRemoved", [11], "GPU", 2]), "removed 11 group 2");
    // One Mamba hash for many tokens, a parent of its own, extra keys that fit nothing: bare hashes all the same.
    let mamba = json!([
        "BlockStored",
        [11],
        11,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        12,
        null,
        "GPU",
        null,
        [],
        0,
        "mamba"
    ]);
    check(mamba, "stored 11 below 11 tokens [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] size 12 group 0 Mamba");
    check(
        json!(["BlockStored", [], null, [1, 2, 3, 4], 4, null, "GPU", null, null, 1, "mamba"]),
        "stored tokens [1, 2, 3, 4] size 4 group 1 Mamba",
    );
    check(
        json!(["BlockStored", [], null, [1, 2, 3, 4], 4, null, "GPU", null, null, 1]),
        "stored tokens [1, 2, 3, 4] size 4 group 1",
    );
    check(
        json!(["BlockStored", [11], null, [1, 2], null, null, "GPU", null, null, 1, "mamba"]),
        "stored 11 group 1 Mamba",
    );
}

#[test]
fn f07_locals_are_cut_by_the_index_and_absent_when_nothing_fits() {
    let tokens: Vec<u32> = (1..=16).collect();
    for (hashes, tokens, size, locals) in [
        (vec![1, 2], &tokens[..8], 4, 2),
        (vec![1], &tokens[..8], 8, 2),
        (vec![1, 2], &tokens[..], 8, 4),
        (vec![1, 2], &tokens[..12], 6, 0),
        (vec![1, 2], &tokens[..4], 2, 0),
        (vec![1, 2], &tokens[..6], 4, 0),
        (vec![1], &tokens[..8], 4, 0),
        (vec![1], &tokens[..8], 16, 0),
        (vec![1], &tokens[..4], u32::MAX, 0),
    ] {
        let (event, batch) = one(json!(["BlockStored", hashes, null, tokens, size]));
        let Event::Stored(stored) = event else { panic!("{event:?}") };
        let bytes: Vec<_> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        assert_eq!(batch.token_bytes_of(&stored.token_bytes), bytes);
        assert_eq!((stored.block_size, stored.locals.len()), (Some(size), locals), "{hashes:?} {tokens:?} {size}");
        let plain = hash::local_hashes(&bytes, context(4).block_size, Namespace::default());
        assert_eq!(batch.locals_of(&stored.locals), &plain[..locals]);
    }
}

#[test]
fn stores_without_tokens_are_hash_only() {
    for event in [
        json!(["BlockStored", [11], null, [], 0, null, "CPU"]),
        json!(["BlockStored", [11], null, [], 16, null, "CPU"]),
        json!(["BlockStored", [11], null, null, null, null, "CPU"]),
        json!({"type": "BlockStored", "block_hashes": [11], "token_ids": null, "block_size": null, "medium": "cpu"}),
        json!({"type": "BlockStored", "block_hashes": [11], "medium": "cpu"}),
    ] {
        check(event, "stored 11 host_pinned");
    }
    check(json!(["BlockStored", [], null, [], 4]), "skipped no_hashes");
    check(json!({"type": "BlockStored", "block_hashes": [], "medium": "cpu"}), "skipped no_hashes");
    check(
        json!(["BlockStored", [], null, [1, 2, 3, 4], 4, null, "GPU", null, null, 0, "full_attention"]),
        "skipped no_hashes",
    );
}

#[test]
fn rfc_1527_names_are_understood() {
    check(
        json!({"event_type": "stored", "seq_hashes": [11], "parent_hash": 10, "token_ids": [1, 2, 3, 4], "block_size": 4, "dp_rank": 9}),
        "stored 11 below 10 tokens [1, 2, 3, 4] size 4 locals 1",
    );
    check(json!({"event_type": "removed", "seq_hashes": [11], "medium": "cpu"}), "removed 11 host_pinned");
    check(json!({"event_type": "cleared"}), "cleared");
    check(json!({"event_type": "stored", "type": "BlockStored", "block_hashes": [5], "seq_hashes": [6]}), "stored 5");
    check(json!({"event_type": "stored", "type": null, "block_hashes": null, "seq_hashes": [6]}), "stored 6");
    check(store_map(json!({"additional_salt": "s"})), &plain_and("salt"));
}

#[test]
fn a_repeated_hash_and_a_parent_among_the_hashes_are_skipped() {
    let tokens: Vec<u32> = (1..=12).collect();
    check(json!(["BlockStored", [11, 12, 11], null, tokens, 4]), "skipped repeated_hash");
    check(json!(["BlockStored", [11, 12, 13], 13, tokens, 4]), "skipped parent_in_hashes");
    check(json!(["BlockStored", [11], 11, [1, 2, 3, 4], 4]), "skipped parent_in_hashes");
}

#[test]
fn remaining_copies_are_parallel_to_the_hashes_or_invalid() {
    let removal =
        |counts: Json| json!({"type": "BlockRemoved", "block_hashes": [1, 2], "remaining_copy_counts": counts});
    check(removal(json!([0, 3])), "removed 1 2 copies [0, 3]");
    check(removal(json!(null)), "removed 1 2");
    for odd in [json!([0]), json!([0, 1, 2]), json!([]), json!(["a", 0]), json!([-1, 0]), json!(7)] {
        check(removal(odd), "removed 1 2 copies invalid");
    }
}

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

fn bytes_1_to_4() -> Vec<u8> {
    (1_u32..=4).flat_map(u32::to_le_bytes).collect()
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

#[track_caller]
fn check_batch(batch: Json, want: Result<(Option<u64>, Option<u32>, usize), SkipReason>) {
    let found = decoded(&pack::json(&batch));
    let found = found.map(|batch| (batch.timestamp_ms, batch.rank.map(|rank| rank.0), batch.events.len()));
    assert_eq!(found, want, "{batch}");
}

#[test]
fn batches_have_two_or_more_elements_or_are_maps() {
    let cleared = json!([["AllBlocksCleared"]]);
    let no_batch = Err(SkipReason::UndecodableBatch);
    check_batch(json!([1.5, cleared]), Ok((Some(1500), None, 1)));
    check_batch(json!([1.5, cleared, null]), Ok((Some(1500), None, 1)));
    check_batch(json!([1.5, cleared, 3, "more", {"x": 1}]), Ok((Some(1500), Some(3), 1)));
    check_batch(json!([1.5, [], 3]), Ok((Some(1500), Some(3), 0)));
    check_batch(json!({"ts": 1.5, "events": cleared, "data_parallel_rank": 3, "x": [1]}), Ok((Some(1500), Some(3), 1)));
    check_batch(json!({"events": cleared}), Ok((None, None, 1)));
    for other in [
        json!([]),
        json!([1.5]),
        json!([1.5, null]),
        json!([1.5, "events"]),
        json!([1.5, {"a": 1}]),
        json!({}),
        json!({"ts": 1.5}),
        json!({"ts": 1.5, "events": 7}),
        json!(null),
        json!(7),
        json!("text"),
        json!({"$raw": "c1"}),
        json!({"$raw": "c167617262616765"}),
        json!({"$raw": ""}),
        json!({"$raw": "83a274730aa274730ba66576656e747390"}),
    ] {
        check_batch(other, no_batch);
    }
}

#[test]
fn times_are_seconds_or_for_large_numbers_milliseconds() {
    for (time, want) in [
        (json!(1_796_026_206.118), Some(1_796_026_206_118)),
        (json!(1_796_026_206), Some(1_796_026_206_000)),
        (json!(1_739_145_600_000_u64), Some(1_739_145_600_000)),
        (json!(1_739_145_600_000.0), Some(1_739_145_600_000)),
        (json!(u64::MAX), Some(u64::MAX)),
        (json!(0), None),
        (json!(-1), None),
        (json!(-1.5), None),
        (json!({"$raw": "cb7ff0000000000000"}), None),
        (json!({"$raw": "cb7ff8000000000000"}), None),
        (json!(null), None),
        (json!("now"), None),
    ] {
        check_batch(json!([time, [], null]), Ok((want, None, 0)));
    }
}

#[test]
fn ranks_are_integers_of_32_bits_or_nothing() {
    for (rank, want) in [
        (json!(null), Ok(None)),
        (json!(0), Ok(Some(0))),
        (json!(u32::MAX), Ok(Some(u32::MAX))),
        (json!(-1), Ok(Some(u32::MAX))),
        (json!(4_294_967_296_u64), Err(SkipReason::UndecodableBatch)),
        (json!("0"), Err(SkipReason::UndecodableBatch)),
        (json!(1.0), Err(SkipReason::UndecodableBatch)),
        (json!(true), Err(SkipReason::UndecodableBatch)),
    ] {
        let events = json!([["AllBlocksCleared"]]);
        check_batch(json!([null, events, rank]), want.map(|rank| (None, rank, 1)));
        check_batch(json!({"events": events, "data_parallel_rank": rank}), want.map(|rank| (None, rank, 1)));
    }
}

#[test]
fn bytes_behind_the_batch_are_ignored_and_a_cut_batch_is_none() {
    let mut payload = pack::json(&json!([1.0, [store_with(json!([])), ["BlockRemoved", [11]]], 3, "more"]));
    let whole = decoded(&payload);
    assert!(whole.is_ok());
    for end in 0..payload.len() {
        assert_eq!(decoded(&payload[..end]), Err(SkipReason::UndecodableBatch), "{end}");
    }
    payload.extend([0x00, 0xc1]);
    assert_eq!(decoded(&payload), whole);
}

#[test]
fn an_undecodable_batch_leaves_nothing_of_the_last_one() {
    let mut batch = Batch::default();
    decode(&pack::json(&json!([1.0, [store_with(json!([]))], 3])), context(4), &mut batch).unwrap();
    assert_eq!(decode(&[0xc1], context(4), &mut batch), Err(SkipReason::UndecodableBatch));
    assert_eq!(batch, Batch::default());
}

#[test]
fn declared_lengths_and_nesting_cost_nothing() {
    // Four billion events, hashes, tokens, keys that are not there; a hundred thousand open arrays.
    let deep = "91".repeat(100_000) + "c0";
    for payload in [
        "92cb3ff0000000000000ddffffffff".to_owned(),
        "92c091 92ac426c6f636b52656d6f766564 ddffffffff".replace(' ', ""),
        "92c091 95ab426c6f636b53746f726564 9101 c0 ddffffffff 04".replace(' ', ""),
        "92c091 dfffffffff".replace(' ', ""),
        "92c091 c6ffffffff".replace(' ', ""),
        "dfffffffff".to_owned(),
        "91".repeat(100_000),
    ] {
        assert_eq!(decoded(&pack::hex(&payload)), Err(SkipReason::UndecodableBatch), "{payload:.40}");
    }
    check(json!({"$raw": deep}), "skipped malformed_event");
    check(store_map(json!({"x": {"$raw": deep}})), PLAIN);
    check(
        store_map(json!({"extra_keys": [[{"$raw": deep}]]})),
        "stored 11 tokens [1, 2, 3, 4] size 4 locals 1 extra@0",
    );
    let too_many = format!("92c0dd{:08x}", (1 << 18) + 1) + &"c0".repeat((1 << 18) + 1);
    assert_eq!(decoded(&pack::hex(&too_many)), Err(SkipReason::UndecodableBatch));
}
