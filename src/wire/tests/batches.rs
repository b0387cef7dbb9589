//! Forms of batches, and what broken or evil ones cost.

use serde_json::{Value as Json, json};

use super::show::{PLAIN, check, show, store_map, store_with};
use super::{context, decode, decoded, pack};
use crate::event::{Batch, Event, SkipReason};
use crate::ids::DpRank;

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
