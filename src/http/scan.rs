//! Finds the long array of a query body and reads its numbers without the JSON library, whose cost per token dominates a query.
//!
//! The scanner understands the plain case only: a top-level key without escapes, an array of plain integers. It hands
//! back the numbers and the body with that array emptied, which the library then reads. On anything else it gives up,
//! and the library reads the whole body, so that errors stay exact. A property test holds both readings equal.

use crate::ids::LocalHash;

/// Numbers of an array, and the body with `[]` in its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split<T> {
    /// What stood in the array.
    pub(crate) numbers: T,
    /// The rest of the body, still to be checked by the library.
    pub(crate) rest: Vec<u8>,
}

/// Reads `token_ids` as four bytes little endian each.
pub(crate) fn tokens(body: &[u8]) -> Option<Split<Vec<u8>>> {
    let start = array_of(body, b"token_ids")?;
    // A token of three digits and its comma take as much room as its four bytes; only shorter ones make the buffer grow.
    let mut numbers = Vec::with_capacity(body.len() - start);
    let mut cursor = open(body, start)?;
    while let Cursor::Element(at) = cursor {
        let at = short_tokens::<false>(body, at, &mut numbers);
        let at = space(body, short_tokens::<true>(body, at, &mut numbers));
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

/// Where the array of the top-level key `wanted` begins (at its bracket).
fn array_of(body: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut at = space(body, 0);
    if *body.get(at)? != b'{' {
        return None;
    }
    loop {
        at = space(body, at + 1);
        let end = string(body, at)?;
        let key = &body[at + 1..end - 1];
        if key.contains(&b'\\') {
            return None;
        }
        at = space(body, end);
        if *body.get(at)? != b':' {
            return None;
        }
        at = space(body, at + 1);
        if key == wanted {
            return (*body.get(at)? == b'[').then_some(at);
        }
        at = space(body, value(body, at)?);
        if *body.get(at)? != b',' {
            return None;
        }
    }
}

fn space(body: &[u8], mut at: usize) -> usize {
    while matches!(body.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// End of the string that begins at `at`.
fn string(body: &[u8], at: usize) -> Option<usize> {
    if *body.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        match *body.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// End of the value that begins at `at`, by its brackets only: the library checks it later.
fn value(body: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match *body.get(at)? {
            b'"' => at = string(body, at)?,
            b'[' | b'{' => {
                depth += 1;
                at += 1;
            }
            b']' | b'}' if depth > 0 => {
                depth -= 1;
                at += 1;
            }
            b',' | b']' | b'}' if depth == 0 => return Some(at),
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
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

/// Sign, magnitude and end of the integer at `at`.
fn integer(body: &[u8], at: usize) -> Option<(bool, u64, usize)> {
    let negative = *body.get(at)? == b'-';
    let (value, end) = magnitude(body, at + usize::from(negative))?;
    Some((negative, value, end))
}

/// Takes tokens of one to seven digits, each with its comma behind it (and a blank, if `BLANK`), as long as they follow
/// each other; where the first other thing begins. This loop is where a long query spends its time: the next position
/// must depend on nothing but the count of digits.
fn short_tokens<const BLANK: bool>(body: &[u8], mut at: usize, numbers: &mut Vec<u8>) -> usize {
    while let Some(word) = body.get(at..at + 9) {
        let text = u64::from_le_bytes(word[..8].try_into().expect("eight of nine bytes"));
        let (value, digits) = eight(text);
        let leading_zero = digits > 1 && word[0] == b'0';
        if digits == 0 || digits == 8 || leading_zero || word[digits] != b',' || (BLANK && word[digits + 1] != b' ') {
            break;
        }
        numbers.extend_from_slice(&(value as u32).to_le_bytes());
        at += digits + 1 + usize::from(BLANK);
    }
    at
}

/// Digits at `at` as a number, and where they end. None for no digit, a leading zero, or more than 64 bits.
fn magnitude(body: &[u8], at: usize) -> Option<(u64, usize)> {
    let (value, digits) = match body.get(at..at + 8) {
        Some(word) => match eight(u64::from_le_bytes(word.try_into().expect("eight bytes were taken"))) {
            (_, 8) => long(body, at)?,
            short => short,
        },
        None => long(body, at)?,
    };
    if digits == 0 || (digits > 1 && body[at] == b'0') {
        return None;
    }
    Some((value, at + digits))
}

/// Number and count of the digits at the front of eight bytes of text.
fn eight(word: u64) -> (u64, usize) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low = word ^ (ONES * 0x30);
    // A byte is no digit if its high bit is set, or if adding 0x76 carries into it (values above 9).
    let others = (((low & (ONES * 0x7f)) + ONES * 0x76) | low) & (ONES * 0x80);
    let bits = others.trailing_zeros() & !7;
    // Shifted so that the digits stand at the end and zeros before them, then joined in pairs, fours and eights.
    let aligned = low.checked_shl(64 - bits).unwrap_or(0);
    let pairs = (aligned * 10 + (aligned >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    ((fours * 10_000 + (fours >> 32)) & 0xffff_ffff, bits as usize / 8)
}

fn long(body: &[u8], at: usize) -> Option<(u64, usize)> {
    let digits = body[at.min(body.len())..].iter().take_while(|byte| byte.is_ascii_digit());
    let mut value = 0_u64;
    let mut count = 0;
    for digit in digits {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        count += 1;
    }
    Some((value, count))
}

#[cfg(test)]
mod tests;
