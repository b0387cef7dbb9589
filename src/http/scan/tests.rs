//! Tests of the scanner: tables for edges, and properties against the library.

use proptest::prelude::*;
use serde_json::Value;

use super::elements::{Next, next, take};
use super::text::eight;
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

/// Everything that `takes` and [`next`] read from `at` on: the numbers, where they end, and what stands there.
fn read_on(
    text: &str,
    at: usize,
    gap: Gap,
    takes: fn(&[u8], usize, Gap, &mut Vec<u8>) -> usize,
) -> (Vec<u8>, usize, Next) {
    let (text, mut at, mut numbers) = (text.as_bytes(), at, Vec::new());
    loop {
        at = takes(text, at, gap, &mut numbers);
        match next(&text[at..], Some(gap)) {
            Next::Element { token, end, .. } => {
                numbers.extend_from_slice(&token.to_le_bytes());
                at += end;
            }
            other => return (numbers, at, other),
        }
    }
}

/// Both ways of taking elements, from every place at which an array might begin.
#[track_caller]
fn check_takes(elements: &str, gap: Gap) {
    for before in ["[", "\"token_ids\":[", "{\"m\":\"0123456789\",\"token_ids\":[", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}["] {
        let text = format!("{before}{elements}");
        let [vector, plain] = [take, take_plain].map(|takes| read_on(&text, before.len(), gap, takes));
        assert_eq!(vector, plain, "{text}");
    }
}

#[test]
fn vectors_and_plain_code_take_the_same_elements_at_every_edge() {
    let digits = "12345678901234567890";
    for gap in [Gap::Comma, Gap::CommaBlank] {
        let separator = std::str::from_utf8(gap.as_bytes()).unwrap();
        for odd in
            ["", "0", "00", "01", "7", "-1", "1.5", "1e3", "null", "\"1\"", " 1", "1 ", "1\n", "]", ",", "\u{e9}", "[]"]
        {
            for before in [0, 1, 9, 10, 11, 12, 13, 22, 40] {
                let mut list = vec!["54321"; before];
                list.push(odd);
                list.extend(vec!["7"; 70]);
                check_takes(&format!("{}]", list.join(separator)), gap);
            }
        }
        for len in 1..=12 {
            for count in [1, 5, 63, 64, 65, 600] {
                check_takes(&format!("{}]", vec![&digits[..len]; count].join(separator)), gap);
                check_takes(&vec![&digits[..len]; count].join(separator), gap);
            }
        }
        for cut in 0..200 {
            let list = (0..60_u32).map(|n| (n * 7919 % 128_000).to_string()).collect::<Vec<_>>().join(separator);
            check_takes(&list[..cut], gap);
        }
    }
}

#[test]
fn the_wrong_separator_is_never_taken() {
    let list = |separator: &str| vec!["12345"; 40].join(separator);
    for (text, gap, taken) in [
        (list(","), Gap::CommaBlank, 0),
        (list(", "), Gap::Comma, 1),
        (format!("{},{}", list(", "), list(", ")), Gap::CommaBlank, 39),
        (format!("{}, {}", list(","), list(",")), Gap::Comma, 40),
        (format!("{},  {}", list(", "), list(", ")), Gap::CommaBlank, 40),
    ] {
        let text = format!("{{\"token_ids\":[{text}]}}");
        let (numbers, _, end) = read_on(&text, 14, gap, take);
        assert_eq!((numbers.len() / 4, end), (taken, Next::Odd), "{text}");
        check_takes(&text[14..], gap);
    }
}

/// Pushes a body cut at these places.
fn pushed(body: &[u8], cuts: &[usize]) -> TokenScanner {
    let mut scanner = TokenScanner::new(body.len());
    let mut from = 0;
    for cut in cuts.iter().copied().chain([body.len()]) {
        let to = cut.clamp(from, body.len());
        scanner.push(&body[from..to]);
        from = to;
    }
    scanner
}

/// What a scanner found, and that it can give back every byte of the text.
#[track_caller]
fn check_scanner(body: &str, cuts: &[usize]) -> Option<Split<Vec<u8>>> {
    assert_eq!(String::from_utf8_lossy(&pushed(body.as_bytes(), cuts).into_text()), body, "{cuts:?}");
    let mut scanner = pushed(body.as_bytes(), cuts);
    let found = scanner.split()?;
    scanner.unsplit(Split { numbers: found.numbers.clone(), rest: found.rest.clone() });
    assert_eq!(String::from_utf8_lossy(&scanner.into_text()), body, "{cuts:?}");
    Some(found)
}

#[test]
fn bodies_are_scanned_alike_wherever_they_are_cut() {
    for body in [
        r#"{"model_name":"m","token_ids":[1,22,333,4444,55555,666666,7777777,88888888,4294967295,0],"x":1}"#,
        r#"{"token_ids": [128000, 1, 0, 99999, 17], "model_name": "m", "cache_salt": "s"}"#,
        r#"{"token_ids":[],"model_name":"m"}"#,
        r#"{"token_ids":[7],"model_name":"m"}"#,
    ] {
        let whole = check_scanner(body, &[]).expect("a plain body");
        for first in 0..=body.len() {
            for second in (first..=body.len()).step_by(3) {
                assert_eq!(check_scanner(body, &[first, second]).as_ref(), Some(&whole), "{first} {second}");
            }
        }
        let inside = body.find('[').expect("an array");
        let every: Vec<_> = (inside..body.len()).collect();
        assert_eq!(check_scanner(body, &every).as_ref(), Some(&whole));
    }
}

#[test]
fn odd_bodies_come_back_byte_by_byte_wherever_they_are_cut() {
    for body in [
        r#"{"model_name":"m","token_ids":[1,2, 3],"x":1}"#,
        r#"{"model_name":"m","token_ids":[1, 2,3],"x":1}"#,
        r#"{"model_name":"m","token_ids":[ 1],"x":1}"#,
        r#"{"model_name":"m","token_ids":[1 ],"x":1}"#,
        r#"{"model_name":"m","token_ids":[1,2,-3],"x":1}"#,
        r#"{"model_name":"m","token_ids":[1,2,4294967296],"x":1}"#,
        r#"{"model_name":"m","token_ids":[1,2,03],"x":1}"#,
        r#"{"model_name":"m","token_ids":[1,2,]}"#,
        r#"{"model_name":"m","token_ids":[1,2"#,
        r#"{"model_name":"m","token_ids":[1,2,"#,
        r#"{"model_name":"m","token_ids":[12345678901,2"#,
        r#"{"model_name":"m","token_ids":7}"#,
        r#"{"model_name":"m"}"#,
        "",
    ] {
        for first in 0..=body.len() {
            for second in first..=body.len() {
                assert_eq!(check_scanner(body, &[first, second]), None, "{body} {first} {second}");
            }
        }
    }
}

proptest! {
    #[test]
    fn vectors_and_plain_code_take_the_same_elements(
        digits in prop::collection::vec(prop_oneof![20 => 1_usize..=6, 3 => 7_usize..=7, 1 => 8_usize..=11], 0..700),
        faults in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        seed in any::<u64>(),
        blank in any::<bool>(),
    ) {
        let gap = if blank { Gap::CommaBlank } else { Gap::Comma };
        let mut random = seed;
        let mut list = Vec::new();
        for (nth, len) in digits.iter().enumerate() {
            if nth > 0 {
                list.extend_from_slice(gap.as_bytes());
            }
            for _ in 0..*len {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                list.push(b'0' + (random >> 33) as u8 % 10);
            }
        }
        for (index, byte) in faults {
            let at = index.index(list.len().max(1));
            list.resize(list.len().max(1), b'7');
            list[at] = byte & 0x7f;
        }
        check_takes(&String::from_utf8(list).unwrap(), gap);
    }

    #[test]
    fn a_body_in_pieces_is_read_like_the_whole(
        numbers in prop::collection::vec(prop_oneof![60 => (0_u32..200_000).prop_map(|n| n.to_string()), 1 => piece()], 0..60),
        before in prop::collection::vec(other(), 0..3),
        after in prop::collection::vec(other(), 0..3),
        separator in prop_oneof![4 => Just(","), 4 => Just(", "), 1 => Just(" ,\n")],
        mut cuts in prop::collection::vec(0_usize..600, 0..6),
    ) {
        cuts.sort_unstable();
        let array = format!("\"token_ids\":[{}]", numbers.join(separator));
        let fields: Vec<_> = before.iter().chain([&array]).chain(&after).cloned().collect();
        let body = format!("{{{}}}", fields.join(","));
        if let Some(found) = check_scanner(&body, &cuts) {
            prop_assert_eq!(Some(found), tokens(body.as_bytes()), "{}", body);
        }
    }
}
