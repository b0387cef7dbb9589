//! What each shape of event means: tables of MessagePack in JSON notation against a short text form.

use serde_json::{Value as Json, json};

use super::show::{PLAIN, check, plain_and, store_map, store_with};
use super::{context, decoded, one, pack};
use crate::event::Event;
use crate::hash;
use crate::ids::Namespace;

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
fn removals_of_one_block_mean_the_same_in_every_length() {
    for (event, want) in [
        (json!(["BlockRemoved", [11], "GPU"]), "removed 11"),
        (json!(["BlockRemoved", [-1], "GPU"]), "removed 18446744073709551615"),
        (json!(["BlockRemoved", [18_446_744_073_709_551_615_u64], "GPU"]), "removed 18446744073709551615"),
        (json!(["BlockRemoved", [11], "GPU", null]), "removed 11"),
        (json!(["BlockRemoved", [11], "GPU", 3]), "removed 11 group 3"),
        (json!(["BlockRemoved", [11], "GPU", 3, null]), "removed 11 group 3"),
        (json!(["BlockRemoved", [11], "GPU", 70_000]), "removed 11 group 70000"),
        (json!(["BlockRemoved", [11, 12], "GPU"]), "removed 11 12"),
        (json!(["BlockRemoved", [11], "GPU_"]), "skipped unknown_medium"),
        (json!(["BlockRemoved", [11], null]), "removed 11"),
        (json!(["BlockRemoved", [11]]), "removed 11"),
    ] {
        check(event, want);
    }
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
