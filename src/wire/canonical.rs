//! One encoding for values that only serve as identity, so that an event and a query that mean the same element hash the
//! same bytes: numbers in their shortest MessagePack form (floats stay 64-bit floats), maps sorted by key.

use rmp::encode;

use super::value::{Kind, Value};

/// Elements nested deeper than this are taken as raw bytes; real ones have one or two levels.
pub(super) const DEPTH_MAX: usize = 16;

/// Longer elements are taken as raw bytes, which bounds the work for one of them; real ones have some dozen bytes.
pub(super) const BYTES_MAX: usize = 64 << 10;

/// Canonical form of a value.
pub(super) fn encode(value: Value<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    if value.as_encoded().len() > BYTES_MAX {
        out.extend_from_slice(value.as_encoded());
    } else {
        append(value, DEPTH_MAX, &mut out);
    }
    out
}

fn append(value: Value<'_>, depth: usize, out: &mut Vec<u8>) {
    let (Some(below), kind) = (depth.checked_sub(1), value.kind()) else {
        out.extend_from_slice(value.as_encoded());
        return;
    };
    match kind {
        Kind::Nil => nil(out),
        Kind::Bool(yes) => boolean(yes, out),
        Kind::Int(number) => integer(number, out),
        Kind::Float(number) => float(number, out),
        Kind::Text(bytes) => text(bytes, out),
        Kind::Bytes(content) => bytes(content, out),
        Kind::Array(items) => {
            array_header(items.count_left(), out);
            items.for_each(|item| append(item, below, out));
        }
        Kind::Map(mut items) => {
            let mut entries = Vec::new();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                let (mut entry, mut content) = (Vec::new(), Vec::new());
                append(key, below, &mut entry);
                append(value, below, &mut content);
                entries.push((entry, content));
            }
            map(entries, out);
        }
        Kind::Ext => out.extend_from_slice(value.as_encoded()),
    }
}

pub(super) fn nil(out: &mut Vec<u8>) {
    written(encode::write_nil(out));
}

pub(super) fn boolean(yes: bool, out: &mut Vec<u8>) {
    written(encode::write_bool(out, yes));
}

pub(super) fn integer(number: i128, out: &mut Vec<u8>) {
    if let Ok(number) = u64::try_from(number) {
        written(encode::write_uint(out, number));
    } else {
        written(encode::write_sint(out, number as i64));
    }
}

pub(super) fn float(number: f64, out: &mut Vec<u8>) {
    written(encode::write_f64(out, number));
}

pub(super) fn text(bytes: &[u8], out: &mut Vec<u8>) {
    written(encode::write_str_len(out, len(bytes.len())));
    out.extend_from_slice(bytes);
}

pub(super) fn bytes(content: &[u8], out: &mut Vec<u8>) {
    written(encode::write_bin_len(out, len(content.len())));
    out.extend_from_slice(content);
}

pub(super) fn array_header(count: usize, out: &mut Vec<u8>) {
    written(encode::write_array_len(out, len(count)));
}

/// A map of encoded keys and values.
pub(super) fn map(mut entries: Vec<(Vec<u8>, Vec<u8>)>, out: &mut Vec<u8>) {
    entries.sort_unstable();
    written(encode::write_map_len(out, len(entries.len())));
    for (key, value) in entries {
        out.extend_from_slice(&key);
        out.extend_from_slice(&value);
    }
}

fn len(count: usize) -> u32 {
    u32::try_from(count).expect("an element is at most 64 KiB here, or part of a request body of some MiB")
}

fn written<T, E: std::fmt::Debug>(result: Result<T, E>) {
    result.expect("writing to memory cannot fail");
}
