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

/// A value in one of the encodings that MessagePack allows for it.
#[derive(Debug, Clone)]
pub(super) enum Pack {
    Nil,
    Bool(bool),
    /// Any integer. Width 0 is the shortest form; 1 to 4 force 8 to 64 bits where the number fits.
    Int(i128, u8),
    Float(f64),
    Float32(f32),
    Text(Vec<u8>, u8),
    Bytes(Vec<u8>, u8),
    Array(Vec<Self>, u8),
    Map(Vec<(Self, Self)>, u8),
    Ext(Vec<u8>),
}

pub(super) fn text(text: &str) -> Pack {
    Pack::Text(text.as_bytes().to_vec(), 0)
}

impl Pack {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Bool(yes) => out.push(0xc2 + u8::from(*yes)),
            Self::Int(number, width) => write_int(*number, *width, out),
            Self::Float(number) => {
                out.push(0xcb);
                out.extend(number.to_be_bytes());
            }
            Self::Float32(number) => {
                out.push(0xca);
                out.extend(number.to_be_bytes());
            }
            Self::Text(text, width) => {
                write_len(
                    text.len(),
                    *width,
                    [Some((0xa0, 31)), Some((0xd9, 0)), Some((0xda, 0)), Some((0xdb, 0))],
                    out,
                );
                out.extend(text);
            }
            Self::Bytes(bytes, width) => {
                write_len(bytes.len(), *width, [None, Some((0xc4, 0)), Some((0xc5, 0)), Some((0xc6, 0))], out);
                out.extend(bytes);
            }
            Self::Array(items, width) => {
                write_len(items.len(), *width, [Some((0x90, 15)), None, Some((0xdc, 0)), Some((0xdd, 0))], out);
                items.iter().for_each(|item| item.write(out));
            }
            Self::Map(entries, width) => {
                write_len(entries.len(), *width, [Some((0x80, 15)), None, Some((0xde, 0)), Some((0xdf, 0))], out);
                for (key, value) in entries {
                    key.write(out);
                    value.write(out);
                }
            }
            Self::Ext(bytes) => {
                out.extend([0xc7, bytes.len() as u8, 1]);
                out.extend(bytes);
            }
        }
    }
}

/// Writes a length in the first form from `width` on that exists and fits. Forms: in the marker, 8, 16, 32 bits.
fn write_len(len: usize, width: u8, forms: [Option<(u8, usize)>; 4], out: &mut Vec<u8>) {
    for (at, form) in forms.iter().enumerate().skip(width as usize % 4) {
        match (at, *form) {
            (0, Some((marker, max))) if len <= max => return out.push(marker | len as u8),
            (1, Some((marker, _))) if len <= 0xff => return out.extend([marker, len as u8]),
            (2, Some((marker, _))) if len <= 0xffff => {
                out.push(marker);
                return out.extend((len as u16).to_be_bytes());
            }
            (3, Some((marker, _))) => {
                out.push(marker);
                return out.extend((len as u32).to_be_bytes());
            }
            _ => {}
        }
    }
}

fn write_int(number: i128, width: u8, out: &mut Vec<u8>) {
    let wide = |marker: u8, bytes: usize, out: &mut Vec<u8>| {
        out.push(marker);
        out.extend(&number.to_be_bytes()[16 - bytes..]);
    };
    let width = width % 5;
    if (-32..128).contains(&number) && width == 0 {
        out.push(number as u8);
    } else if number >= 0 && matches!(width, 0 | 2 | 4) || number > i128::from(i64::MAX) {
        let least = [(0xff, 1), (0xffff, 2), (0xffff_ffff, 3), (i128::MAX, 4)];
        let fits = least.iter().find(|(max, _)| number <= *max).map_or(4, |(_, width)| *width).max(width);
        wide(0xcb + fits, 1 << (fits - 1), out);
    } else {
        let least = [(i128::from(i8::MAX), 1), (i16::MAX.into(), 2), (i32::MAX.into(), 3), (i128::MAX, 4)];
        let magnitude = if number < 0 { -number - 1 } else { number };
        let fits = least.iter().find(|(max, _)| magnitude <= *max).map_or(4, |(_, width)| *width).max(width);
        wide(0xcf + fits, 1 << (fits - 1), out);
    }
}
