//! The exact set of blocks that every owner holds on every tier, and the longest cached prefix of a query.
//!
//! [`PrefixIndex`] is the pure structure with one writer; [`SharedIndex`] puts a read-write lock around it, which is
//! held for one batch at a time, so that a query sees each batch of an owner whole or not at all.
//!
//! Content lies in one radix tree of runs (`tree`), shared by all owners; who holds what of a run is a set per node and
//! tier (`holders`). An owner's own hashes, second hashes, copies, waiting blocks and cache groups are kept apart
//! (`owner`, `record`, `pending`, `groups`) and cost nothing in the common form.
//!
//! Invariants: the index never reads the clock, never waits, never fails; what an engine says is data and is counted.

mod answer;
mod api;
mod bytes;
mod cover;
mod detail;
mod digest;
mod dump;
mod evict;
mod explain;
mod find;
mod groups;
mod holders;
mod image;
#[allow(clippy::module_inception, reason = "the room is named after what this file holds")]
mod index;
mod own;
mod owner;
mod pending;
mod recent;
mod record;
mod remove;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod view;
mod wait;

pub use answer::{Answer, Frequencies, OwnerAnswer};
pub use api::{
    ApplyContext, Clear, DumpBlock, Explanation, Limits, MatchEnd, OwnerDigest, OwnerId, OwnerReport, OwnerSpec, Stats,
    StopReason,
};
pub use dump::{Chain, Chains};
pub use image::ImportError;
pub use index::PrefixIndex;
pub use shared::SharedIndex;
