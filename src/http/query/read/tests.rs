//! Tests of reading bodies of queries, whole and in pieces.

use axum::body::Body;
use proptest::prelude::*;

use super::*;
use crate::ids::BlockSize;

fn hashes_of(body: &str) -> Result<Vec<LocalHash>, Error> {
    tokens_json(body.as_bytes())?.local_hashes(BlockSize::new(4).unwrap())
}

#[test]
fn the_scanner_and_the_library_give_the_same_query() {
    let scanned = r#"{"model_name":"m","token_ids":[1,2,3,4],"cache_salt":"s","matched_only":true}"#;
    let library = r#"{"model_name":"m","tok\u0065n_ids":[1,2,3,4],"cache_salt":"s","matched_only":true}"#;
    assert!(scan::tokens(scanned.as_bytes()).is_some() && scan::tokens(library.as_bytes()).is_none());
    assert_eq!(hashes_of(scanned).unwrap(), hashes_of(library).unwrap());
}

#[test]
fn hashes_come_as_u64_i64_and_decimal_text_and_never_as_floats() {
    let read = |list: &str| hashes_json(format!(r#"{{"model_name":"m","block_hashes":{list}}}"#).as_bytes());
    let all = read(r#"[1,-1,18446744073709551615,"18446744073709551615","-5","9007199254740993",9007199254740993]"#);
    let exact = 9_007_199_254_740_993;
    let want = [1, u64::MAX, u64::MAX, u64::MAX, 5_u64.wrapping_neg(), exact, exact].map(LocalHash);
    assert_eq!(all.unwrap().block_hashes.unwrap().0, want);
    for list in [
        r#"["0x1"]"#,
        r#"["18446744073709551616"]"#,
        "[1.8e19]",
        "[1.0]",
        "[18446744073709551616]",
        r#"[""]"#,
        r#"["+1"]"#,
        "[null]",
        "7",
    ] {
        assert!(matches!(read(list), Err(Error::InvalidBody(_))), "{list}");
    }
}

/// Pieces of at most so many bytes.
fn pieces(body: &[u8], piece_bytes: usize) -> Pieces {
    let pieces: Vec<_> = body.chunks(piece_bytes).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
    Pieces::new(Body::from_stream(futures::stream::iter(pieces)), 1 << 20)
}

fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// What is asked, or the error, as text.
fn shown(asked: Result<Asked<QueryBody>, Error>) -> String {
    match asked {
        Ok(asked) => format!("{asked:?}"),
        Err(error) => format!("{:?} {error}", error.status_and_code()),
    }
}

/// Read in pieces, a body asks or fails exactly as the library alone finds.
#[track_caller]
fn check_pieces(body: &str) {
    let query = body::json::<QueryBody>(body.as_bytes());
    let dialect = query.as_ref().is_ok_and(|query| query.model_name.is_none()) && mooncake::is_dialect(body.as_bytes());
    let text = Bytes::copy_from_slice(body.as_bytes());
    let want = shown(query.map(|query| if dialect { Asked::Mooncake(text) } else { Asked::Plain(query) }));
    for piece_bytes in [1, 7, 8, 13, 31, 64, 100, 1 << 20] {
        assert_eq!(shown(now(tokens(pieces(body.as_bytes(), piece_bytes)))), want, "{piece_bytes}: {body}");
    }
}

#[test]
fn a_body_in_pieces_asks_what_the_whole_asks() {
    let list = |separator: &str| (0..200_u32).map(|n| (n * 7919).to_string()).collect::<Vec<_>>().join(separator);
    for separator in [",", ", ", " , ", ",\n  "] {
        let tokens = list(separator);
        for body in [
            format!(r#"{{"model_name":"m","token_ids":[{tokens}],"lora_id":3}}"#),
            format!(r#"{{"token_ids":[{tokens}],"model_name":"m","tenant_id":"t","matched_only":true}}"#),
            format!(r#"{{"model":"m","token_ids":[{tokens}]}}"#),
            format!(r#"{{"token_ids":[{tokens}]}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens}],"token_ids":[1]}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens}],"cache_salt":5}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens},1.5,2]}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens},-1,2]}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens},4294967296,2]}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens},]}}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens}]}} x"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens}"#),
            format!(r#"{{"model_name":"m","token_ids":[{tokens}],"x":"#),
        ] {
            check_pieces(&body);
        }
    }
}

proptest! {
    #[test]
    fn any_small_damage_to_a_body_gives_the_error_of_the_library(
        count in 0_u32..60,
        blank in any::<bool>(),
        model_first in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0x20_u8..0x7f), 0..3),
    ) {
        let separator = if blank { ", " } else { "," };
        let tokens = (0..count).map(|n| (n * 3571).to_string()).collect::<Vec<_>>().join(separator);
        let mut body = if model_first {
            format!(r#"{{"model_name":"m","token_ids":[{tokens}]}}"#)
        } else {
            format!(r#"{{"token_ids":[{tokens}],"model_name":"m"}}"#)
        }
        .into_bytes();
        for (index, byte) in damage {
            let at = index.index(body.len());
            body[at] = byte;
        }
        check_pieces(&String::from_utf8(body).unwrap());
    }
}

#[test]
fn lists_of_hashes_are_read_alike_however_they_are_cut() {
    let bytes: Vec<u8> = (0..83).collect();
    for (len, fits) in [(0, true), (8, true), (80, true), (83, false), (7, false)] {
        for piece_bytes in [1, 3, 8, 11, 100] {
            let mut list = HashList::default();
            bytes[..len].chunks(piece_bytes).for_each(|piece| list.push(piece));
            match list.finish() {
                Ok(hashes) => {
                    let want = bytes[..len].as_chunks::<8>().0.iter().map(|hash| LocalHash(u64::from_le_bytes(*hash)));
                    assert!(fits && hashes == want.collect::<Vec<_>>(), "{len} {piece_bytes}");
                }
                Err(error) => {
                    let want = format!("{len} bytes are no whole number of 8-byte hashes");
                    assert!(!fits && error.to_string() == want, "{error}");
                }
            }
        }
    }
}
