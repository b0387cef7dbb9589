//! Finds the long array of a query body and reads its numbers without the JSON library, whose cost per token dominates a query.
//!
//! The scanner understands the plain case only: a top-level key without escapes, an array of plain integers. It hands
//! back the numbers and the body with that array emptied, which the library then reads. On anything else it gives up,
//! and the library reads the whole body, so that errors stay exact. A property test holds both readings equal.
//!
//! Tokens are read in three ways, each the fall-back of the one before: as they arrive, in the two forms that clients
//! write (`stream`, `elements`, and `vector` where the processor has it); from a whole body, with any white space
//! ([`tokens`]); by the library.

mod elements;
mod stream;
mod text;
#[cfg(target_arch = "x86_64")]
mod vector;

pub(crate) use stream::TokenScanner;

use crate::ids::LocalHash;
use elements::{Gap, take_plain};
use text::{array_of, integer, space};

/// Numbers of an array, and the body with `[]` in its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split<T> {
    /// What stood in the array.
    pub(crate) numbers: T,
    /// The rest of the body, still to be checked by the library.
    pub(crate) rest: Vec<u8>,
}

/// Reads `token_ids` of a whole body as four bytes little endian each.
pub(crate) fn tokens(body: &[u8]) -> Option<Split<Vec<u8>>> {
    let mut scanner = TokenScanner::new(body.len());
    scanner.push(body);
    scanner.split().or_else(|| spaced_tokens(body))
}

/// The same with any white space.
pub(super) fn spaced_tokens(body: &[u8]) -> Option<Split<Vec<u8>>> {
    let start = array_of(body, b"token_ids")?;
    let mut numbers = Vec::with_capacity(body.len() - start);
    let mut cursor = open(body, start)?;
    while let Cursor::Element(at) = cursor {
        let at = take_plain(body, at, Gap::Comma, &mut numbers);
        let at = space(body, take_plain(body, at, Gap::CommaBlank, &mut numbers));
        let (negative, value, end) = integer(body, at)?;
        let token = u32::try_from(value).ok().filter(|_| !negative)?;
        numbers.extend_from_slice(&token.to_le_bytes());
        cursor = separator(body, end)?;
    }
    let Cursor::End(end) = cursor else { return None };
    Some(Split { numbers, rest: without(body, start, end) })
}

/// Reads `block_hashes`; negative numbers keep their bit pattern.
pub(crate) fn hashes(body: &[u8]) -> Option<Split<Vec<LocalHash>>> {
    let start = array_of(body, b"block_hashes")?;
    let mut numbers = Vec::with_capacity((body.len() - start) / 16);
    let mut cursor = open(body, start)?;
    while let Cursor::Element(at) = cursor {
        let (negative, value, end) = integer(body, at)?;
        numbers.push(LocalHash(match negative {
            false => value,
            true if value <= 1 << 63 && value > 0 => value.wrapping_neg(),
            true => return None,
        }));
        cursor = separator(body, end)?;
    }
    let Cursor::End(end) = cursor else { return None };
    Some(Split { numbers, rest: without(body, start, end) })
}

fn without(body: &[u8], start: usize, end: usize) -> Vec<u8> {
    let mut rest = Vec::with_capacity(body.len() - (end - start) + 2);
    rest.extend_from_slice(&body[..start]);
    rest.extend_from_slice(b"[]");
    rest.extend_from_slice(&body[end..]);
    rest
}

/// Where the scanner stands inside an array.
enum Cursor {
    /// An element begins here.
    Element(usize),
    /// The array ended just before.
    End(usize),
}

/// First position in the array that begins at `start`.
fn open(body: &[u8], start: usize) -> Option<Cursor> {
    let at = space(body, start + 1);
    Some(if *body.get(at)? == b']' { Cursor::End(at + 1) } else { Cursor::Element(at) })
}

/// What follows an element that ended at `at`.
fn separator(body: &[u8], at: usize) -> Option<Cursor> {
    let at = space(body, at);
    match *body.get(at)? {
        b',' => Some(Cursor::Element(space(body, at + 1))),
        b']' => Some(Cursor::End(at + 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
