//! Entry points for the benchmarks of this room: its parts are private, and no benchmark needs more than these.

use crate::ids::BlockSize;
use crate::index::Answer;

/// Tokens that the scanner reads from the body of a query; none if it leaves the body to the library.
#[must_use]
pub fn scan_tokens(body: &[u8]) -> Option<usize> {
    super::scan::tokens(body).map(|split| split.numbers.len() / 4)
}

/// The same without vectors, whatever the processor has.
#[must_use]
pub fn scan_tokens_plainly(body: &[u8]) -> Option<usize> {
    super::scan::spaced_tokens(body).map(|split| split.numbers.len() / 4)
}

/// Hashes that the scanner reads from the body of a query by hash; none if it leaves the body to the library.
#[must_use]
pub fn scan_hashes(body: &[u8]) -> Option<usize> {
    super::scan::hashes(body).map(|split| split.numbers.len())
}

/// Bytes of the reply that `/query` makes of an answer.
#[must_use]
pub fn reply_bytes(answer: &Answer, block_size: BlockSize, matched_only: bool) -> bytes::Bytes {
    super::reply::query(answer, block_size, matched_only)
}
