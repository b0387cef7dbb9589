//! The workload that every benchmark shares: a request trace played on simulated engines, synthetic sequences, and their
//! events in wire form. The same seeds give the same bytes everywhere, so that figures of two programs can be compared.
//!
//! Included by path. No I/O beyond reading the trace; no sockets, no clock.

#![allow(dead_code, reason = "each benchmark that includes this module uses its own part of it")]

pub(crate) mod content;
pub(crate) mod engine;
pub(crate) mod play;
pub(crate) mod steady;
pub(crate) mod trace;
pub(crate) mod wire;

/// Tokens per block.
pub(crate) const BLOCK_SIZE: u32 = 16;

/// Most blocks in one Stored event.
pub(crate) const STORED_BLOCKS_MAX: usize = 512;

/// Most events in one batch.
pub(crate) const BATCH_EVENTS_MAX: usize = 64;

/// splitmix64: the only source of chance here.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}
