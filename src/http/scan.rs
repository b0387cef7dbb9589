//! Finds the long array of a query body and reads its numbers without the JSON library, which needs three times as long.
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
    let end = integers(body, start, |negative, value| {
        let token = u32::try_from(value).ok().filter(|_| !negative)?;
        numbers.extend_from_slice(&token.to_le_bytes());
        Some(())
    })?;
    Some(Split { numbers, rest: without(body, start, end) })
}

/// Reads `block_hashes`; negative numbers keep their bit pattern.
pub(crate) fn hashes(body: &[u8]) -> Option<Split<Vec<LocalHash>>> {
    let start = array_of(body, b"block_hashes")?;
    let mut numbers = Vec::with_capacity((body.len() - start) / 16);
    let end = integers(body, start, |negative, value| {
        let bits = match negative {
            false => value,
            true if value <= 1 << 63 && value > 0 => value.wrapping_neg(),
            true => return None,
        };
        numbers.push(LocalHash(bits));
        Some(())
    })?;
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

/// Calls `take(negative, magnitude)` for each integer of the array that begins at `start`; the end of the array.
fn integers(body: &[u8], start: usize, mut take: impl FnMut(bool, u64) -> Option<()>) -> Option<usize> {
    let mut at = space(body, start + 1);
    if *body.get(at)? == b']' {
        return Some(at + 1);
    }
    loop {
        let negative = *body.get(at)? == b'-';
        let (value, end) = magnitude(body, at + usize::from(negative))?;
        take(negative, value)?;
        at = end;
        let mut next = *body.get(at)?;
        if next != b',' && next != b']' {
            at = space(body, at);
            next = *body.get(at)?;
        }
        at += 1;
        match next {
            b',' => {
                if !body.get(at)?.is_ascii_digit() {
                    at = space(body, at);
                }
            }
            b']' => return Some(at),
            _ => return None,
        }
    }
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
    let digits = others.trailing_zeros() as usize / 8;
    if digits == 0 {
        return (0, 0);
    }
    // Shifted so that the digits stand at the end and zeros before them, then joined in pairs, fours and eights.
    let aligned = low << (64 - 8 * digits);
    let pairs = (aligned * 10 + (aligned >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    ((fours * 10_000 + (fours >> 32)) & 0xffff_ffff, digits)
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
