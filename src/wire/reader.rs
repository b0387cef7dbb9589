//! The hand-written reader of the shapes that engines send all the time. It answers `None` for everything else, valid or
//! not, and the caller turns to the library.
//!
//! Invariant: never reads behind the payload, never allocates more than the payload's length allows.

use std::ops::Range;

use super::fields;
use super::value::Value;
use crate::ids::EngineHash;

/// Bytes of a payload that are not yet read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Any value at all; none when it is incomplete.
    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        let (value, rest) = Value::split(self.rest)?;
        self.rest = rest;
        Some(value)
    }

    /// The marker of the next value, which stays unread.
    pub(super) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Passes over these very bytes, if they come next.
    pub(super) fn literal(&mut self, bytes: &[u8]) -> bool {
        match self.rest.strip_prefix(bytes) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    pub(super) fn array_len(&mut self) -> Option<usize> {
        match self.byte()? {
            marker @ 0x90..=0x9f => Some(usize::from(marker & 0x0f)),
            0xdc => self.number::<2>(),
            0xdd => self.number::<4>(),
            _ => None,
        }
    }

    pub(super) fn map_len(&mut self) -> Option<usize> {
        match self.byte()? {
            marker @ 0x80..=0x8f => Some(usize::from(marker & 0x0f)),
            0xde => self.number::<2>(),
            _ => None,
        }
    }

    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = match self.byte()? {
            marker @ 0xa0..=0xbf => usize::from(marker & 0x1f),
            0xd9 => self.number::<1>()?,
            0xda => self.number::<2>()?,
            _ => return None,
        };
        self.take(len)
    }

    /// Reads a nil, or else what `read` reads.
    pub(super) fn nil_or<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.peek()? == 0xc0 {
            self.rest = &self.rest[1..];
            return Some(None);
        }
        read(self).map(Some)
    }

    pub(super) fn utf8(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.text()?).ok()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (number, rest) = unsigned(self.rest)?;
        self.rest = rest;
        Some(number)
    }

    pub(super) fn hash(&mut self) -> Option<EngineHash> {
        if let [0xcf, a, b, c, d, e, f, g, h, rest @ ..] = self.rest {
            self.rest = rest;
            return Some(EngineHash(u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])));
        }
        if let [0xd3, a, b, c, d, e, f, g, h, rest @ ..] = self.rest {
            self.rest = rest;
            return Some(EngineHash(u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])));
        }
        if self.peek()? == 0xc4 {
            self.byte()?;
            let len = self.number::<1>()?;
            return Some(fields::hash_of_bytes(self.take(len)?));
        }
        self.u32().map(|number| EngineHash(number.into()))
    }

    /// Appends a list of hashes to the arena.
    pub(super) fn hashes(&mut self, arena: &mut Vec<EngineHash>) -> Option<Range<u32>> {
        let len = self.array_len()?;
        if len > self.rest.len() {
            return None;
        }
        let start = arena.len();
        arena.reserve(len);
        for _ in 0..len {
            arena.push(self.hash()?);
        }
        fields::range(start, arena.len())
    }

    /// Appends a list of tokens, or of pairs of tokens, to the arena.
    pub(super) fn tokens(&mut self, arena: &mut Vec<u8>) -> Option<Range<u32>> {
        let len = self.array_len()?;
        if len > self.rest.len() {
            return None;
        }
        let start = arena.len();
        arena.resize(start + 4 * len, 0);
        let places = &mut arena[start..];
        let is_pairs = self.peek() == Some(PAIR);
        self.rest = if is_pairs { first_of_pairs(places, self.rest)? } else { single_tokens(places, self.rest)? };
        fields::range(start, arena.len())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn number<const WIDTH: usize>(&mut self) -> Option<usize> {
        Some(self.take(WIDTH)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

/// Reads tokens until `places`, four bytes each, are full; returns what follows.
///
/// Most tokens take three bytes: four such in a row are read at once. Vocabularies above 65,536 mix them with tokens of five,
/// in an order that no branch predictor foresees: there two tokens at a time are taken out of a window by arithmetic. Only
/// the last few are read one by one.
fn single_tokens<'a>(places: &mut [u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (mut at, mut done) = (0, 0);
    while let Some(window) = bytes[at..].first_chunk::<WINDOW_BYTES>() {
        let [m, a, b, n, c, d, o, e, f, p, g, h, _] = *window;
        // One comparison of all four markers: one branch, which is foreseen where it matters.
        if u32::from_le_bytes([m, n, o, p]) == u32::from_le_bytes([0xcd; 4])
            && let Some(place) = places.get_mut(done..done + 16)
        {
            place.copy_from_slice(&[b, a, 0, 0, d, c, 0, 0, f, e, 0, 0, h, g, 0, 0]);
            at += 12;
            done += 16;
            continue;
        }
        let Some(place) = places.get_mut(done..done + 8) else { break };
        let first = TokenForm::of(window[0])?;
        let second = TokenForm::of(window[first.len])?;
        let low = first.value(&window[..8]);
        let high = second.value(&window[first.len..first.len + 8]);
        place.copy_from_slice(&(low | high << 32).to_le_bytes());
        at += first.len + second.len;
        done += 8;
    }
    let mut rest = &bytes[at..];
    for place in places[done..].chunks_exact_mut(4) {
        let token;
        (token, rest) = unsigned(rest)?;
        place.copy_from_slice(&token.to_le_bytes());
    }
    Some(rest)
}

/// A token of at most five bytes, and the eight bytes from the next one on.
const WINDOW_BYTES: usize = 13;

/// How a token is encoded: its length with the marker, and whether it has one.
#[derive(Clone, Copy)]
struct TokenForm {
    len: usize,
    marker_len: usize,
}

impl TokenForm {
    /// One byte below 128, or a marker for 1, 2 or 4 bytes.
    #[inline(always)]
    fn of(first: u8) -> Option<Self> {
        let marker_len = usize::from(first >> 7);
        if marker_len == 1 && first.wrapping_sub(0xcc) > 2 {
            return None;
        }
        let content = 1_usize << (first & 3);
        Some(Self { len: 1 + (content & marker_len.wrapping_neg()), marker_len })
    }

    /// The token at the front of eight bytes.
    #[inline(always)]
    fn value(self, window: &[u8]) -> u64 {
        let bits = window.try_into().map_or(0, u64::from_be_bytes);
        bits << (8 * self.marker_len) >> (64 - 8 * (self.len - self.marker_len))
    }
}

/// Reads pairs of tokens, of which the first counts, until `places` are full; returns what follows.
fn first_of_pairs<'a>(places: &mut [u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = bytes;
    for place in places.chunks_exact_mut(4) {
        let [PAIR, after @ ..] = rest else { return None };
        let (token, second) = unsigned(after)?;
        (_, rest) = unsigned(second)?;
        place.copy_from_slice(&token.to_le_bytes());
    }
    Some(rest)
}

/// Marker of an array of two.
const PAIR: u8 = 0x92;

/// An unsigned integer of at most 32 bits in one of its usual forms.
#[inline(always)]
fn unsigned(bytes: &[u8]) -> Option<(u32, &[u8])> {
    match bytes {
        [number @ 0..=0x7f, rest @ ..] => Some((u32::from(*number), rest)),
        [0xcd, a, b, rest @ ..] => Some((u32::from(u16::from_be_bytes([*a, *b])), rest)),
        [0xce, a, b, c, d, rest @ ..] => Some((u32::from_be_bytes([*a, *b, *c, *d]), rest)),
        [0xcc, a, rest @ ..] => Some((u32::from(*a), rest)),
        _ => None,
    }
}
