//! One MessagePack value, read lazily with the library `rmp`: the slow and thorough way to read an event.
//!
//! Invariant: a [`Value`] holds the bytes of exactly one complete value, so nothing is allocated for a declared length and
//! nesting costs no stack.

use rmp::{Marker, decode};

/// A complete value and nothing behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value<'a>(&'a [u8]);

/// What a value is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'a> {
    Nil,
    Bool(bool),
    /// Any integer of MessagePack: -2^63 to 2^64-1.
    Int(i128),
    Float(f64),
    /// Bytes of a text; they may be no UTF-8.
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(Items<'a>),
    /// Keys and values in turn.
    Map(Items<'a>),
    Ext,
}

impl<'a> Value<'a> {
    /// The first value of `bytes` and what follows it; none when it is cut short or uses the reserved marker.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut at = 0_usize;
        let mut open = 1_u64;
        while open > 0 {
            let (size, children) = extent(bytes.get(at..)?)?;
            at = at.checked_add(size)?;
            open = open - 1 + children;
            let left = bytes.len().checked_sub(at)?;
            if open > left as u64 {
                return None;
            }
        }
        let (value, rest) = bytes.split_at(at);
        Some((Self(value), rest))
    }

    /// Its encoded form.
    pub(super) fn as_encoded(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn is_nil(self) -> bool {
        matches!(self.kind(), Kind::Nil)
    }

    /// The value of a key of a map; none in anything else.
    pub(super) fn get(self, key: &[u8]) -> Option<Self> {
        let Kind::Map(items) = self.kind() else { return None };
        items.pairs().find(|(name, _)| matches!(name.kind(), Kind::Text(text) if text == key)).map(|(_, value)| value)
    }

    /// The bit pattern of an integer.
    pub(super) fn as_bits(self) -> Option<u64> {
        if let Kind::Int(number) = self.kind() { Some(number as u64) } else { None }
    }

    /// Reads marker and header. A value that the library refuses reads as [`Kind::Ext`], which no field accepts.
    pub(super) fn kind(self) -> Kind<'a> {
        self.read().unwrap_or(Kind::Ext)
    }

    fn read(self) -> Option<Kind<'a>> {
        let mut rest = self.0;
        let reader = &mut rest;
        Some(match Marker::from_u8(*self.0.first()?) {
            Marker::Null => Kind::Nil,
            Marker::True => Kind::Bool(true),
            Marker::False => Kind::Bool(false),
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => {
                Kind::Int(decode::read_int(reader).ok()?)
            }
            Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => Kind::Int(decode::read_int(reader).ok()?),
            Marker::F32 => Kind::Float(decode::read_f32(reader).ok()?.into()),
            Marker::F64 => Kind::Float(decode::read_f64(reader).ok()?),
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let len = decode::read_str_len(reader).ok()?;
                Kind::Text(reader.get(..len as usize)?)
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                let len = decode::read_bin_len(reader).ok()?;
                Kind::Bytes(reader.get(..len as usize)?)
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let left = u64::from(decode::read_array_len(reader).ok()?);
                Kind::Array(Items { rest, left })
            }
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                let left = 2 * u64::from(decode::read_map_len(reader).ok()?);
                Kind::Map(Items { rest, left })
            }
            _ => Kind::Ext,
        })
    }
}

/// The parts of an array or a map, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Items<'a> {
    rest: &'a [u8],
    left: u64,
}

impl<'a> Items<'a> {
    /// How many are left.
    pub(super) fn count_left(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    /// The parts of a map as keys with their values.
    pub(super) fn pairs(mut self) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        std::iter::from_fn(move || Some((self.next()?, self.next()?)))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (value, rest) = Value::split(self.rest)?;
        self.rest = rest;
        Some(value)
    }
}

/// Size in bytes of the marker, header and scalar content at the front, and the number of values that follow as its parts.
fn extent(bytes: &[u8]) -> Option<(usize, u64)> {
    let scalar = |size| Some((size, 0));
    let sized = |width: usize, extra: usize| {
        let len = usize::try_from(big_endian(bytes.get(1..=width)?)).ok()?;
        Some((len.checked_add(1 + width + extra)?, 0))
    };
    let parts = |width: usize, each: u64| Some((1 + width, each * big_endian(bytes.get(1..=width)?)));
    match Marker::from_u8(*bytes.first()?) {
        Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => scalar(1),
        Marker::U8 | Marker::I8 => scalar(2),
        Marker::U16 | Marker::I16 | Marker::FixExt1 => scalar(3),
        Marker::FixExt2 => scalar(4),
        Marker::U32 | Marker::I32 | Marker::F32 => scalar(5),
        Marker::FixExt4 => scalar(6),
        Marker::U64 | Marker::I64 | Marker::F64 => scalar(9),
        Marker::FixExt8 => scalar(10),
        Marker::FixExt16 => scalar(18),
        Marker::FixStr(len) => scalar(1 + usize::from(len)),
        Marker::Str8 | Marker::Bin8 => sized(1, 0),
        Marker::Str16 | Marker::Bin16 => sized(2, 0),
        Marker::Str32 | Marker::Bin32 => sized(4, 0),
        Marker::Ext8 => sized(1, 1),
        Marker::Ext16 => sized(2, 1),
        Marker::Ext32 => sized(4, 1),
        Marker::FixArray(len) => Some((1, len.into())),
        Marker::Array16 => parts(2, 1),
        Marker::Array32 => parts(4, 1),
        Marker::FixMap(len) => Some((1, 2 * u64::from(len))),
        Marker::Map16 => parts(2, 2),
        Marker::Map32 => parts(4, 2),
        Marker::Reserved => None,
    }
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
