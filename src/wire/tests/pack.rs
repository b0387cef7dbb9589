//! Writes MessagePack for tests.

use rmp::encode;
use serde_json::Value as Json;

/// JSON as MessagePack; `{"$hex": ".."}` stands for bytes, `{"$raw": ".."}` for encoded bytes as they are.
pub(super) fn json(value: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    append(value, &mut out);
    out
}

pub(super) fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits")).collect()
}

fn append(value: &Json, out: &mut Vec<u8>) {
    match value {
        Json::Null => encode::write_nil(out).expect("memory"),
        Json::Bool(yes) => encode::write_bool(out, *yes).expect("memory"),
        Json::Number(number) => {
            if let Some(number) = number.as_u64() {
                encode::write_uint(out, number).expect("memory");
            } else if let Some(number) = number.as_i64() {
                encode::write_sint(out, number).expect("memory");
            } else {
                encode::write_f64(out, number.as_f64().expect("a number")).expect("memory");
            }
        }
        Json::String(text) => encode::write_str(out, text).expect("memory"),
        Json::Array(items) => {
            encode::write_array_len(out, items.len() as u32).expect("memory");
            items.iter().for_each(|item| append(item, out));
        }
        Json::Object(entries) => {
            let only = if entries.len() == 1 { entries.iter().next() } else { None };
            match only {
                Some((key, Json::String(digits))) if key == "$hex" => {
                    encode::write_bin(out, &hex(digits)).expect("memory");
                }
                Some((key, Json::String(digits))) if key == "$raw" => out.extend(hex(digits)),
                _ => {
                    encode::write_map_len(out, entries.len() as u32).expect("memory");
                    for (key, value) in entries {
                        encode::write_str(out, key).expect("memory");
                        append(value, out);
                    }
                }
            }
        }
    }
}
