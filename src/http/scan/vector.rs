//! The vector path of the token loop, for processors with AVX2. The plain path in `elements` gives the same results; a
//! property test holds them equal.
//!
//! Two stages for each 64 bytes of text. First the bytes are sorted into digits and separators, as bit masks, and the
//! shape of the whole block is checked by a few operations on the masks. Then the ends of the tokens are read off the
//! mask of the separators, and four tokens at a time are turned into numbers: no step waits for the value or the length
//! of the token before it. On the bodies of long queries this takes a third of the time of the plain path, and parsing
//! is most of such a query (benchmark `scan` in `benches/rooms`).

#![expect(
    unsafe_code,
    reason = "loads and stores of vectors, and the call behind the run-time check of the processor; parsing is most of a long query"
)]

use std::arch::x86_64::*;

use super::elements::{Block, Taken};

/// Text looked at in one step, in bytes.
const STEP: usize = 64;

/// Bytes before a step that a token which ends in it may reach back to: seven digits, the byte before them, and the
/// blank that may stand between the comma and the next token.
pub(super) const BEFORE: usize = 9;

/// Tokens that end in one step, at most, in whole groups of four.
const STEP_TOKENS_MAX: usize = 36;

/// Takes tokens of one to seven digits with their separators (a comma, and a blank if `BLANK`) from `at` on, step by
/// step, and stops before the step in which anything else stands. None if this processor cannot.
///
/// An element begins at `at`, which is at least [`BEFORE`], and the byte before it is no digit.
pub(super) fn take<const BLANK: bool>(text: &[u8], at: usize, block: &mut Block) -> Option<Taken> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    // SAFETY: the function needs nothing but AVX2, which this processor has, as the line above found.
    Some(unsafe { take_avx2::<BLANK>(text, at, block) })
}

/// What a step must know of the one before it.
#[derive(Clone, Copy)]
struct Carry {
    /// Bit 0: an element begins with the step.
    begins: u64,
    /// Bit 0: the byte before the step is a comma that a blank must follow.
    comma: u64,
    /// Bit 0: the byte before the step is a zero that begins an element.
    zero: u64,
}

#[target_feature(enable = "avx2")]
fn take_avx2<const BLANK: bool>(text: &[u8], mut at: usize, block: &mut Block) -> Taken {
    let mut taken = Taken { at, tokens: 0 };
    let mut carry = Carry { begins: 1, comma: 0, zero: 0 };
    while taken.tokens + STEP_TOKENS_MAX <= Block::TOKENS
        && let Some(window) = at.checked_sub(BEFORE).and_then(|from| text[from..].first_chunk::<{ BEFORE + STEP }>())
    {
        let Some(ends) = shape::<BLANK>(window, &mut carry) else {
            break;
        };
        if !numbers::<BLANK>(window, ends, &mut block.bytes[taken.tokens * 4..]) {
            break;
        }
        taken.tokens += ends.count_ones() as usize;
        if ends != 0 {
            taken.at = at + STEP - ends.leading_zeros() as usize;
        }
        at += STEP;
    }
    taken
}

/// Mask of the last bytes of separators, if nothing but plain elements and their separators stands in the step.
#[target_feature(enable = "avx2")]
fn shape<const BLANK: bool>(window: &[u8; BEFORE + STEP], carry: &mut Carry) -> Option<u64> {
    let half = |from: usize| {
        let half: &[u8; 32] = window[from..from + 32].try_into().expect("32 bytes were cut");
        _mm256_xor_si256(load(half), _mm256_set1_epi8(0x30))
    };
    let (low, high) = (half(BEFORE), half(BEFORE + 32));
    let equal = |to: u8| {
        let to = _mm256_set1_epi8(to.cast_signed());
        mask(_mm256_cmpeq_epi8(low, to), _mm256_cmpeq_epi8(high, to))
    };
    let nine = _mm256_set1_epi8(9);
    let is_digit = |half| _mm256_cmpeq_epi8(_mm256_min_epu8(half, nine), half);
    let digits = mask(is_digit(low), is_digit(high));
    let commas = equal(b',' ^ 0x30);
    let ends = if BLANK { equal(b' ' ^ 0x30) } else { commas };
    let begins = ends << 1 | carry.begins;
    let zeros = begins & equal(0);
    let mut faults = !(digits | commas | ends);
    // An element without a digit; a zero with a digit behind it; a comma without its blank, or a blank without a comma.
    faults |= begins & !digits;
    faults |= (zeros << 1 | carry.zero) & digits;
    if BLANK {
        faults |= (commas << 1 | carry.comma) ^ ends;
    }
    *carry = Carry { begins: ends >> 63, comma: commas >> 63, zero: zeros >> 63 };
    (faults == 0).then_some(ends)
}

/// Writes the numbers of the elements whose separators end where `ends` says, and up to three more places; false if one
/// has more than seven digits.
#[target_feature(enable = "avx2")]
fn numbers<const BLANK: bool>(window: &[u8; BEFORE + STEP], mut ends: u64, out: &mut [u8]) -> bool {
    // The eight bytes before the comma of a separator that ends at byte `end` of the step.
    let first = BEFORE - 8 - usize::from(BLANK);
    let groups = (ends.count_ones() as usize).div_ceil(4);
    let mut word = || {
        let end = ends.trailing_zeros() as usize & (STEP - 1);
        ends &= ends.wrapping_sub(1);
        let bytes: [u8; 8] = window[first + end..first + end + 8].try_into().expect("eight bytes were cut");
        i64::from_le_bytes(bytes)
    };
    let mut too_long = _mm256_setzero_si256();
    for group in out.as_chunks_mut::<16>().0.iter_mut().take(groups) {
        let (a, b, c, d) = (word(), word(), word(), word());
        let text = _mm256_xor_si256(_mm256_set_epi64x(d, c, b, a), _mm256_set1_epi8(0x30));
        // All ones in bytes that are no digits (bytes before the step may be anything; the nearest to the element is
        // ASCII and no digit, which is all that counts), then in all bytes before them.
        let others = _mm256_cmpgt_epi8(text, _mm256_set1_epi8(9));
        too_long = _mm256_or_si256(too_long, _mm256_cmpeq_epi64(others, _mm256_setzero_si256()));
        let others = _mm256_or_si256(others, _mm256_srli_epi64::<8>(others));
        let others = _mm256_or_si256(others, _mm256_srli_epi64::<16>(others));
        let others = _mm256_or_si256(others, _mm256_srli_epi64::<32>(others));
        let digits = _mm256_andnot_si256(others, text);
        // Digits joined in pairs, fours and eights.
        let pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010a));
        let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0001_0064));
        let fours = _mm256_packus_epi32(fours, fours);
        let eights = _mm256_madd_epi16(fours, _mm256_set1_epi32(0x0001_2710));
        let four = _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b00_00_10_00>(eights));
        store(four, group);
    }
    // Places behind the last element read other bytes, whose length means nothing: a false alarm costs time only.
    _mm256_testz_si256(too_long, too_long) == 1
}

#[target_feature(enable = "avx2")]
fn mask(low: __m256i, high: __m256i) -> u64 {
    let (low, high) = (_mm256_movemask_epi8(low), _mm256_movemask_epi8(high));
    u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the pointer is to 32 bytes that may be read; the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store(four: __m128i, place: &mut [u8; 16]) {
    // SAFETY: the pointer is to 16 bytes that may be written; the store asks for no alignment.
    unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), four) }
}
