//! Elements of an array of tokens in one of the two forms that clients write: numbers with a comma between them, or with
//! a comma and a blank. What is taken here can be written again, byte by byte, from the numbers alone.

use super::text::eight;
#[cfg(target_arch = "x86_64")]
use super::vector;

/// What stands between two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// A comma.
    Comma,
    /// A comma and a blank.
    CommaBlank,
}

/// Digits of the largest token, `u32::MAX`.
const DIGITS_MAX: usize = 10;

/// Text behind an element's first byte that says what the element is, in bytes: its digits, the comma, and a byte more.
pub(super) const ELEMENT_BYTES_MAX: usize = DIGITS_MAX + 2;

/// Tokens on their way into a list, four bytes little endian each: small enough for the nearest cache.
pub(super) struct Block {
    pub(super) bytes: [u8; Self::TOKENS * 4],
}

/// What a vector path took.
pub(super) struct Taken {
    /// Where the first element begins that was not taken.
    pub(super) at: usize,
    /// Tokens taken.
    pub(super) tokens: usize,
}

/// What stands at a place where an element should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// An element, and the separator behind it.
    Element { token: u32, gap: Gap, end: usize },
    /// The last element, and the bracket behind it.
    Last { token: u32, end: usize },
    /// The text ends too early to say.
    Unfinished,
    /// Anything else.
    Odd,
}

impl Gap {
    pub(super) fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::Comma => b",",
            Self::CommaBlank => b", ",
        }
    }
}

impl Block {
    pub(super) const TOKENS: usize = 512;
}

/// Takes elements with their separators from `at` on, as long as they are plain and short, but none near the beginning
/// of the text; where the first element begins that is not taken. This is where a long query spends its time.
pub(super) fn take(text: &[u8], mut at: usize, gap: Gap, numbers: &mut Vec<u8>) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if at < vector::BEFORE {
            return at;
        }
        let mut block = Block { bytes: [0; Block::TOKENS * 4] };
        let step = |block: &mut Block, at| match gap {
            Gap::Comma => vector::take::<false>(text, at, block),
            Gap::CommaBlank => vector::take::<true>(text, at, block),
        };
        while let Some(taken) = step(&mut block, at).filter(|taken| taken.tokens > 0) {
            numbers.extend_from_slice(&block.bytes[..taken.tokens * 4]);
            at = taken.at;
        }
    }
    take_plain(text, at, gap, numbers)
}

/// The same without vectors.
pub(super) fn take_plain(text: &[u8], at: usize, gap: Gap, numbers: &mut Vec<u8>) -> usize {
    match gap {
        Gap::Comma => short::<false>(text, at, numbers),
        Gap::CommaBlank => short::<true>(text, at, numbers),
    }
}

/// Takes tokens of one to seven digits, each with its comma behind it (and a blank, if `BLANK`), as long as they follow
/// each other; where the first other thing begins. The next position must depend on nothing but the count of digits.
fn short<const BLANK: bool>(text: &[u8], mut at: usize, numbers: &mut Vec<u8>) -> usize {
    while let Some(word) = text.get(at..at + 9) {
        let (value, digits) = eight(u64::from_le_bytes(word[..8].try_into().expect("eight of nine bytes")));
        let leading_zero = digits > 1 && word[0] == b'0';
        if digits == 0 || digits == 8 || leading_zero || word[digits] != b',' || (BLANK && word[digits + 1] != b' ') {
            break;
        }
        numbers.extend_from_slice(&(value as u32).to_le_bytes());
        at += digits + 1 + usize::from(BLANK);
    }
    at
}

/// What stands at the front of `text`. Without a `gap` the first separator decides.
pub(super) fn next(text: &[u8], gap: Option<Gap>) -> Next {
    let digits = text.iter().take(DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_digit()).count();
    let leading_zero = digits > 1 && text[0] == b'0';
    if digits > DIGITS_MAX || leading_zero {
        return Next::Odd;
    }
    let Some(behind) = text.get(digits) else {
        return Next::Unfinished;
    };
    let value = text[..digits].iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
    let Some(token) = u32::try_from(value).ok().filter(|_| digits > 0) else {
        return Next::Odd;
    };
    match (behind, gap, text.get(digits + 1)) {
        (b']', ..) => Next::Last { token, end: digits + 1 },
        (b',', Some(Gap::Comma), _) => Next::Element { token, gap: Gap::Comma, end: digits + 1 },
        (b',', _, None) => Next::Unfinished,
        (b',', _, Some(b' ')) => Next::Element { token, gap: Gap::CommaBlank, end: digits + 2 },
        (b',', None, Some(_)) => Next::Element { token, gap: Gap::Comma, end: digits + 1 },
        _ => Next::Odd,
    }
}
