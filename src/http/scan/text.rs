//! The plain parts of JSON text that the scanner walks over, one byte or eight at a time.

/// Powers of ten.
const TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Where the array of the top-level key `wanted` begins (at its bracket).
pub(super) fn array_of(body: &[u8], wanted: &[u8]) -> Option<usize> {
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

pub(super) fn space(body: &[u8], mut at: usize) -> usize {
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

/// Sign, magnitude and end of the integer at `at`.
pub(super) fn integer(body: &[u8], at: usize) -> Option<(bool, u64, usize)> {
    let negative = *body.get(at)? == b'-';
    let (value, end) = magnitude(body, at + usize::from(negative))?;
    Some((negative, value, end))
}

/// Digits at `at` as a number, and where they end. None for no digit, a leading zero, or more than 64 bits.
fn magnitude(body: &[u8], at: usize) -> Option<(u64, usize)> {
    let (mut value, mut end) = (0_u64, at);
    loop {
        let (more, digits) = match body.get(end..end + 8) {
            Some(word) => eight(u64::from_le_bytes(word.try_into().expect("eight bytes were taken"))),
            None => few(body.get(end..).unwrap_or_default()),
        };
        value = value.checked_mul(TENS[digits])?.checked_add(more)?;
        end += digits;
        if digits < 8 {
            break;
        }
    }
    if end == at || (end > at + 1 && body[at] == b'0') {
        return None;
    }
    Some((value, end))
}

/// Number and count of the digits at the front of eight bytes of text.
pub(super) fn eight(word: u64) -> (u64, usize) {
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

/// The same for the last bytes of a text, fewer than eight.
fn few(text: &[u8]) -> (u64, usize) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold((0, 0), |(value, count), digit| (value * 10 + u64::from(digit - b'0'), count + 1))
}
