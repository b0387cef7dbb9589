//! `extra_keys` of an HTTP query: the JSON form of the elements that engines put into their events.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::canonical;
use super::extra::{Element, Position, sort_out};
use crate::event::ExtraKey;

/// What is wrong with the `extra_keys` of a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtraKeysError {
    /// An entry of another type.
    #[error("extra_keys[{0}] must be null or a list of elements, one entry per block")]
    Entry(usize),
    /// More entries than blocks can be counted.
    #[error("extra_keys must have at most one entry per block")]
    TooMany,
    /// `hex` with something that is no bytes.
    #[error("extra_keys[{0}]: {{\"hex\": ..}} must hold an even number of hex digits")]
    Hex(usize),
    /// Nested too deeply or too long.
    #[error("extra_keys[{0}]: an element must be at most 16 levels deep and 64 KiB long")]
    Size(usize),
}

/// Turns the entries of a query's `extra_keys` (one list per block; bytes as `{"hex": ".."}`) into the values that the
/// events of an engine carry for the same elements, sorted.
///
/// The first entry may hold the salt as a bare text, like the first block of a prompt in an event; its seed addend is
/// returned apart. An element equal to `lora_name` is the LoRA and dropped once per entry.
///
/// # Errors
/// An entry that is neither null nor a list, bytes that are no hex digits, an element beyond the limits.
pub fn query_extra_keys(
    entries: &[Json],
    lora_name: Option<&str>,
) -> Result<(Option<u64>, Vec<ExtraKey>), ExtraKeysError> {
    let lora_name = lora_name.filter(|name| !name.is_empty());
    let mut extras = Vec::new();
    let mut salt = None;
    for (at, entry) in entries.iter().enumerate() {
        let block = u32::try_from(at).map_err(|_| ExtraKeysError::TooMany)?;
        let elements = match entry {
            Json::Null => continue,
            Json::Array(elements) => elements,
            _ => return Err(ExtraKeysError::Entry(at)),
        };
        let elements = elements.iter().map(|json| element(json, at)).collect::<Result<Vec<_>, _>>()?;
        let position = Position { lora_name, is_first: at == 0 };
        let found = sort_out(elements.into_iter(), position, |value| extras.push(ExtraKey { block, value }));
        salt = salt.or(found);
    }
    extras.sort_unstable();
    Ok((salt, extras))
}

fn element(json: &Json, at: usize) -> Result<Element<'_>, ExtraKeysError> {
    if let Json::String(text) = json {
        return Ok(Element::Text(text));
    }
    if let Some(digits) = hex_form(json) {
        return bytes(digits).map(|bytes| Element::Bytes(Cow::Owned(bytes))).ok_or(ExtraKeysError::Hex(at));
    }
    let mut encoded = Vec::new();
    append(json, canonical::DEPTH_MAX, &mut encoded, at)?;
    if encoded.len() > canonical::BYTES_MAX {
        return Err(ExtraKeysError::Size(at));
    }
    Ok(match json.as_array().map(Vec::as_slice) {
        Some([Json::String(text), Json::Number(offset)]) if offset.is_i64() || offset.is_u64() => {
            Element::Pair { text, encoded }
        }
        _ => Element::Other(encoded),
    })
}

/// Appends the canonical form, the same as that of the event's element.
fn append(json: &Json, depth: usize, out: &mut Vec<u8>, at: usize) -> Result<(), ExtraKeysError> {
    let below = depth.checked_sub(1).ok_or(ExtraKeysError::Size(at))?;
    if let Some(digits) = hex_form(json) {
        canonical::bytes(&bytes(digits).ok_or(ExtraKeysError::Hex(at))?, out);
        return Ok(());
    }
    match json {
        Json::Null => canonical::nil(out),
        Json::Bool(yes) => canonical::boolean(*yes, out),
        Json::Number(number) => {
            let whole = number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from));
            match whole {
                Some(whole) => canonical::integer(whole, out),
                None => canonical::float(number.as_f64().unwrap_or(f64::NAN), out),
            }
        }
        Json::String(text) => canonical::text(text.as_bytes(), out),
        Json::Array(items) => {
            canonical::array_header(items.len(), out);
            for item in items {
                append(item, below, out, at)?;
            }
        }
        Json::Object(entries) => {
            let mut encoded = Vec::new();
            for (key, value) in entries {
                let (mut name, mut content) = (Vec::new(), Vec::new());
                canonical::text(key.as_bytes(), &mut name);
                append(value, below, &mut content, at)?;
                encoded.push((name, content));
            }
            canonical::map(encoded, out);
        }
    }
    Ok(())
}

/// The digits of `{"hex": ".."}`.
fn hex_form(json: &Json) -> Option<&str> {
    let object = json.as_object().filter(|object| object.len() == 1)?;
    object.get("hex")?.as_str()
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes().chunks_exact(2);
    if !digits.remainder().is_empty() {
        return None;
    }
    digits.map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
