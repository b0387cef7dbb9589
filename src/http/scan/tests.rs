//! Tests of the scanner: tables for edges, and properties against the library.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn token_list(body: &str) -> Option<Vec<u32>> {
    let bytes = tokens(body.as_bytes())?.numbers;
    Some(bytes.chunks_exact(4).map(|token| u32::from_le_bytes(token.try_into().unwrap())).collect())
}

#[test]
fn eight_bytes_are_read_like_the_library_reads_them() {
    for (text, want) in [
        ("0,123456", (0, 1)),
        ("7]      ", (7, 1)),
        ("12,     ", (12, 2)),
        ("128000,1", (128_000, 6)),
        ("1234567,", (1_234_567, 7)),
        ("12345678", (12_345_678, 8)),
        ("/0000000", (0, 0)),
        (":0000000", (0, 0)),
        ("9:000000", (9, 1)),
        ("9/000000", (9, 1)),
        ("1\u{e9}00000", (1, 1)),
    ] {
        assert_eq!(eight(u64::from_le_bytes(text.as_bytes()[..8].try_into().unwrap())), want, "{text}");
    }
}

#[test]
fn plain_bodies_are_split_at_the_array() {
    for (body, want, rest) in [
        (r#"{"token_ids":[],"m":1}"#, vec![], r#"{"token_ids":[],"m":1}"#),
        (r#"{"m":"x","token_ids":[1,22,4294967295]}"#, vec![1, 22, u32::MAX], r#"{"m":"x","token_ids":[]}"#),
        (
            " { \"m\" : [1,{\"token_ids\":[9]}] , \"token_ids\" : [ 1 ,\n2 ] } ",
            vec![1, 2],
            " { \"m\" : [1,{\"token_ids\":[9]}] , \"token_ids\" : [] } ",
        ),
        (
            r#"{"m":"\"token_ids\":[5],","token_ids":[12345678,1]}"#,
            vec![12_345_678, 1],
            r#"{"m":"\"token_ids\":[5],","token_ids":[]}"#,
        ),
    ] {
        assert_eq!(token_list(body).as_ref(), Some(&want), "{body}");
        assert_eq!(String::from_utf8(tokens(body.as_bytes()).unwrap().rest).unwrap(), rest);
    }
}

#[test]
fn anything_unusual_is_left_to_the_library() {
    for body in [
        "",
        "[1]",
        "{",
        r#"{"m":1}"#,
        r#"{"token_ids":7}"#,
        r#"{"token_ids":[01]}"#,
        r#"{"token_ids":[1.0]}"#,
        r#"{"token_ids":[1e2]}"#,
        r#"{"token_ids":[-1]}"#,
        r#"{"token_ids":[4294967296]}"#,
        r#"{"token_ids":[1,]}"#,
        r#"{"token_ids":[,1]}"#,
        r#"{"token_ids":[1 2]}"#,
        r#"{"token_ids":["1"]}"#,
        r#"{"token_ids":[1"#,
        r#"{"token_ids":[99999999999999999999999]}"#,
        r#"{"tok\u0065n_ids":[1]}"#,
    ] {
        assert_eq!(tokens(body.as_bytes()), None, "{body}");
    }
}

#[test]
fn hashes_are_read_over_the_whole_range() {
    let body = r#"{"block_hashes":[0,-1, 18446744073709551615,-9223372036854775808,9007199254740993]}"#;
    let want = [0, u64::MAX, u64::MAX, 1 << 63, 9_007_199_254_740_993].map(LocalHash);
    assert_eq!(hashes(body.as_bytes()).unwrap().numbers, want);
    for body in [
        r#"{"block_hashes":[-0]}"#,
        r#"{"block_hashes":[-9223372036854775809]}"#,
        r#"{"block_hashes":[18446744073709551616]}"#,
    ] {
        assert_eq!(hashes(body.as_bytes()), None, "{body}");
    }
}

/// What the library sees: the array, and everything else.
fn library(body: &str) -> Option<(Vec<u32>, Value)> {
    let mut value: Value = serde_json::from_str(body).ok()?;
    let array = value.as_object_mut()?.get_mut("token_ids")?.take();
    let numbers: Option<Vec<u32>> =
        array.as_array()?.iter().map(|number| number.as_u64().and_then(|n| u32::try_from(n).ok())).collect();
    value["token_ids"] = Value::Array(Vec::new());
    Some((numbers?, value))
}

/// Pieces that make bodies which are often, but not always, well-formed.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<u32>().prop_map(|n| n.to_string()),
        4 => (0_u32..200_000).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => Just("1.5".to_owned()),
        1 => Just("\"7\"".to_owned()),
        1 => Just("007".to_owned()),
        1 => Just("null".to_owned()),
        1 => Just(" 3 ".to_owned()),
        1 => Just("[]".to_owned()),
    ]
}

fn other() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(r#""model_name":"m""#.to_owned()),
        Just(r#""a\"b":{"x":[1,2,{"token_ids":[3]}],"y":"]}"}"#.to_owned()),
        Just(r#" "n" : -1.5e3 "#.to_owned()),
        Just(r#""broken":"#.to_owned()),
        Just(r#""é":[true,false,null]"#.to_owned()),
    ]
}

proptest! {
    #[test]
    fn whatever_the_scanner_accepts_the_library_reads_alike(
        numbers in prop::collection::vec(prop_oneof![9 => (0_u32..200_000).prop_map(|n| n.to_string()), 1 => piece()], 0..40),
        before in prop::collection::vec(other(), 0..3),
        after in prop::collection::vec(other(), 0..3),
        separator in prop_oneof![Just(","), Just(", "), Just(" ,\n")],
    ) {
        let array = format!("\"token_ids\":[{}]", numbers.join(separator));
        let fields: Vec<_> = before.iter().chain([&array]).chain(&after).cloned().collect();
        let body = format!("{{{}}}", fields.join(","));
        if let Some(split) = tokens(body.as_bytes()) {
            let rest = serde_json::from_slice::<Value>(&split.rest).ok();
            let scanned = rest.map(|rest| (token_list(&body).unwrap(), rest));
            prop_assert_eq!(scanned, library(&body));
        }
    }

    #[test]
    fn plain_arrays_are_always_scanned(numbers in prop::collection::vec(any::<u32>(), 0..60)) {
        let body = serde_json::json!({"model_name": "m", "token_ids": numbers}).to_string();
        prop_assert_eq!(token_list(&body), Some(numbers));
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(prop_oneof![Just(b'{'), Just(b'"'), Just(b'['), Just(b'\\'), Just(b':'), Just(b','), any::<u8>()], 0..64)) {
        let _ = tokens(&body);
        let _ = hashes(&body);
        let mut prefixed = br#"{"token_ids":["#.to_vec();
        prefixed.extend(&body);
        let _ = tokens(&prefixed);
    }
}
