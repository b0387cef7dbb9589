//! The exact set of blocks that every owner holds on every tier, and the longest cached prefix of a query.
//!
//! [`PrefixIndex`] is the pure structure with one writer; [`SharedIndex`] puts a read-write lock around it, which is
//! held for one batch at a time, so that a query sees each batch of an owner whole or not at all.
//!
//! Invariants: the index never reads the clock, never waits, never fails; what an engine says is data and is counted.

mod api;

pub use api::{
    Answer, ApplyContext, Clear, DumpBlock, Explanation, Limits, MatchEnd, OwnerAnswer, OwnerId, OwnerReport,
    OwnerSpec, PrefixIndex, SharedIndex, Stats, StopReason,
};
