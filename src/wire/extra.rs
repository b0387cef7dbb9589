//! What sets blocks apart from plain ones although their tokens are equal: the elements of `extra_keys`, and image
//! information in other forms. Nothing in them is ignored; what is not understood still makes a block differ.
//!
//! Engines do not tag the elements of `extra_keys`, so form and position decide: LoRA name, images, salt (in the first
//! block of a prompt), digest of prompt embeddings.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::canonical;
use super::value::{Kind, Value};
use crate::event::{ExtraKey, SkipReason};
use crate::hash;

/// Salt in the form of Dynamo's own workers.
const SALT_PREFIX: &str = "dynamo-cache-salt:";

/// Seeds keep equal bytes of different forms apart; 0 to 2 belong to names and salts.
const TEXT_SEED: u64 = 3;
const BYTES_SEED: u64 = 4;
const OTHER_SEED: u64 = 5;

/// One element of an entry of `extra_keys`.
#[derive(Debug)]
pub(super) enum Element<'a> {
    /// A bare text.
    Text(&'a str),
    /// Digest of prompt embeddings.
    Bytes(Cow<'a, [u8]>),
    /// An image key and its offset in the block; `encoded` is the canonical form of the pair.
    Pair {
        /// The image key.
        text: &'a str,
        /// The pair as bytes.
        encoded: Vec<u8>,
    },
    /// Anything else, in canonical form.
    Other(Vec<u8>),
}

/// What the elements of one block mean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position<'a> {
    /// The LoRA name, which engines repeat as the first element.
    pub(super) lora_name: Option<&'a str>,
    /// First block of a prompt: the only one that carries the salt.
    pub(super) is_first: bool,
}

/// The chain that the `extra_keys` of an event belong to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain<'a> {
    pub(super) lora_name: Option<&'a str>,
    /// The event has no parent.
    pub(super) is_root: bool,
    /// Number of hashes.
    pub(super) blocks: usize,
}

/// Appends the identities that `extra_keys` gives to single blocks; returns the salt, if it names one.
pub(super) fn event_keys(
    keys: Value<'_>,
    chain: Chain<'_>,
    extras: &mut Vec<ExtraKey>,
) -> Result<Option<u64>, SkipReason> {
    let Kind::Array(entries) = keys.kind() else { return Err(SkipReason::MalformedEvent) };
    if entries.count_left() != chain.blocks {
        return Err(SkipReason::ExtraKeysLength);
    }
    let mut salt = None;
    for (block, entry) in (0_u32..).zip(entries) {
        let push = |value| extras.push(ExtraKey { block, value });
        let position = Position { lora_name: chain.lora_name, is_first: chain.is_root && block == 0 };
        let found = match entry.kind() {
            Kind::Nil => None,
            Kind::Array(elements) => sort_out(elements.map(element), position, push),
            _ => sort_out(std::iter::once(element(entry)), position, push),
        };
        salt = salt.or(found);
    }
    Ok(salt)
}

/// Gives each element its meaning: identities go to `push`, the salt is returned.
pub(super) fn sort_out<'a>(
    elements: impl Iterator<Item = Element<'a>>,
    position: Position<'_>,
    mut push: impl FnMut(u64),
) -> Option<u64> {
    let mut lora_name = position.lora_name;
    let mut tagged = None;
    let mut bare = None;
    for element in elements {
        match element {
            // Once only: a salt may read like the name.
            Element::Text(text) if lora_name == Some(text) => lora_name = None,
            Element::Text(text) if position.is_first && !text.is_empty() && padded_image(text).is_none() => {
                match text.strip_prefix(SALT_PREFIX).map(hash::salt) {
                    Some(salt) if tagged.is_none() => tagged = Some(salt),
                    Some(_) => push(text_identity(text)),
                    None => {
                        if let Some(earlier) = bare.replace(text) {
                            push(text_identity(earlier));
                        }
                    }
                }
            }
            Element::Text(text) => push(text_identity(text)),
            Element::Bytes(bytes) => push(xxh3_64_with_seed(&bytes, BYTES_SEED)),
            Element::Pair { text, encoded } => {
                push(image_hash(text).unwrap_or_else(|| xxh3_64_with_seed(&encoded, OTHER_SEED)));
            }
            Element::Other(encoded) => push(xxh3_64_with_seed(&encoded, OTHER_SEED)),
        }
    }
    match (tagged, bare) {
        (Some(salt), bare) => {
            if let Some(text) = bare {
                push(text_identity(text));
            }
            salt
        }
        (None, bare) => bare.and_then(hash::salt),
    }
}

/// Appends the identities of images given as `block_mm_infos` or `mm_keys`: a list with one entry per block, or, when it is
/// anything else, an identity of all blocks.
pub(super) fn images(images: Value<'_>, blocks: usize, extras: &mut Vec<ExtraKey>) {
    let all_blocks = 0..u32::try_from(blocks).unwrap_or(u32::MAX);
    match images.kind() {
        Kind::Array(entries) if entries.count_left() == 0 => {}
        Kind::Array(entries) if entries.count_left() == blocks => {
            for (block, entry) in all_blocks.zip(entries) {
                block_images(entry, |value| extras.push(ExtraKey { block, value }));
            }
        }
        _ => {
            let value = xxh3_64_with_seed(&canonical::encode(images), OTHER_SEED);
            extras.extend(all_blocks.map(|block| ExtraKey { block, value }));
        }
    }
}

/// Images of one block: `{mm_objects: [{mm_hash: integer, ...}]}`, nothing, or something unknown.
fn block_images(entry: Value<'_>, mut push: impl FnMut(u64)) {
    let known = entry.get(b"mm_objects").and_then(|objects| {
        let Kind::Array(objects) = objects.kind() else { return None };
        objects.map(|object| object.get(b"mm_hash").and_then(Value::as_bits)).collect::<Option<Vec<_>>>()
    });
    match (known, entry.kind()) {
        (Some(hashes), _) => hashes.into_iter().for_each(push),
        (None, Kind::Nil) => {}
        (None, Kind::Array(items)) if items.count_left() == 0 => {}
        (None, _) => push(xxh3_64_with_seed(&canonical::encode(entry), OTHER_SEED)),
    }
}

fn element(value: Value<'_>) -> Element<'_> {
    let utf8 = |kind| if let Kind::Text(text) = kind { std::str::from_utf8(text).ok() } else { None };
    let other = || Element::Other(canonical::encode(value));
    match value.kind() {
        kind @ Kind::Text(_) => utf8(kind).map_or_else(other, Element::Text),
        Kind::Bytes(bytes) => Element::Bytes(Cow::Borrowed(bytes)),
        Kind::Array(mut items) if items.count_left() == 2 => {
            let (first, second) = (items.next().map(Value::kind), items.next().map(Value::kind));
            match (first.and_then(utf8), second) {
                (Some(text), Some(Kind::Int(_))) => Element::Pair { text, encoded: canonical::encode(value) },
                _ => other(),
            }
        }
        _ => other(),
    }
}

fn text_identity(text: &str) -> u64 {
    image_hash(text).unwrap_or_else(|| xxh3_64_with_seed(text.as_bytes(), TEXT_SEED))
}

/// Hash of an image in a text of 64 hex digits: the first 16.
fn image_hash(text: &str) -> Option<u64> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { u64::from_str_radix(&text[..16], 16).ok() } else { None }
}

/// An image hash whose other 48 digits are zeros, which tells it from a salt.
fn padded_image(text: &str) -> Option<u64> {
    image_hash(text).filter(|_| text[16..].bytes().all(|digit| digit == b'0'))
}
