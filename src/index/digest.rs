//! The order-free digest of what an owner holds, kept up to date with every block that comes and goes.
//!
//! A digest is the wrapping sum of one 64-bit term per held record, mixed from the owner's name, the tier, the engine's
//! hash and the content: the local hash of the block and that of the block before it (0 at the root). Block by block
//! that pins the whole path: if all terms of a chain are equal, so is every block up to the root. Copies do not count,
//! waiting blocks do not count. The sets of cache groups have sums of their own, mixed with the key of the group.
//!
//! Records that others' announcements placed (`free`) are counted apart: replicas may place them differently.
//! Invariant: the sum, `foreign` and the counts of held blocks change together, in the functions of this file, when the
//! general way changes a record; the short cuts for whole runs call `terms` for the same blocks.

use super::api::{OwnerDigest, OwnerId};
use super::index::PrefixIndex;
use super::owner::{HELD, OwnerState};
use super::record::Writer;
use super::tree::{At, NodeId, Place, Tree};
use super::view::View;
use crate::ids::Owner;

/// Odd numbers without a pattern: the fractional parts of the square roots of 2, 3, 5 and 7.
const KEYS: [u64; 4] = [0x6A09_E667_F3BC_C909, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B, 0xA54F_F53A_5F1D_36F1];

/// The sum of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    /// Made of the owner's name.
    seed: u64,
    /// Over all held records of the tree that are not `free`.
    pub(super) sum: u64,
    /// Held records that are `free`, once per row.
    pub(super) foreign: u64,
}

/// Multiplies to 128 bits and folds: each bit of the result depends on all bits of both.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// Term of a hash in a cache group's set, without the group and the owner.
pub(super) fn group_term(hash: u64, row: u8) -> u64 {
    fold(hash ^ KEYS[3], KEYS[0].wrapping_add(u64::from(row) << 1))
}

/// A group's sum with its key and its owner; 0 for an empty set, like no group at all.
pub(super) fn group_sum(sum: u64, key: Option<u32>, seed: u64) -> u64 {
    let key = key.map_or(0, |key| u64::from(key) + 1);
    if sum == 0 { 0 } else { fold(sum ^ seed, KEYS[2] ^ key << 1) }
}

impl Digest {
    pub(super) fn new(owner: &Owner) -> Self {
        let name = owner.to_string();
        let words = name.as_bytes().chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let seed = words.fold(name.len() as u64 ^ KEYS[0], |seed, word| fold(seed ^ word, KEYS[1] ^ seed));
        Self { seed, sum: 0, foreign: 0 }
    }

    pub(super) fn seed(self) -> u64 {
        self.seed
    }

    /// Nothing is held any more.
    pub(super) fn clear(&mut self) {
        (self.sum, self.foreign) = (0, 0);
    }

    /// Sum of the terms of blocks in a row: their hashes, their local hashes, and the local hash before the first.
    pub(super) fn terms(self, row: usize, hashes: &[u64], (locals, before): (&[u64], u64)) -> u64 {
        let seed = fold(self.seed ^ KEYS[3], KEYS[2].wrapping_add((row as u64) << 1));
        let mut before = before;
        let mut sum = 0u64;
        for (hash, local) in hashes.iter().zip(locals) {
            let content = fold(*local ^ KEYS[0], before.rotate_left(32) ^ KEYS[1]);
            sum = sum.wrapping_add(fold(*hash ^ seed, content ^ KEYS[2]));
            before = *local;
        }
        sum
    }

    /// The term of one record.
    fn term(self, tree: &Tree, at: At, (hash, row): (u64, usize)) -> u64 {
        let local = tree.locals(at.node)[at.off as usize];
        self.terms(row, &[hash], (&[local], tree.local_before(at)))
    }
}

impl Writer<'_> {
    /// A record came onto a row.
    pub(super) fn count_in(&mut self, at: At, hash: u64, row: usize) {
        self.me.blocks[row] += 1;
        if self.is_free(at, hash) {
            self.me.digest.foreign += 1;
        } else {
            let term = self.me.digest.term(self.tree, at, (hash, row));
            self.me.digest.sum = self.me.digest.sum.wrapping_add(term);
        }
    }

    /// A record left a row.
    pub(super) fn count_out(&mut self, at: At, hash: u64, row: usize) {
        self.me.blocks[row] -= 1;
        if self.is_free(at, hash) {
            self.me.digest.foreign -= 1;
        } else {
            let term = self.me.digest.term(self.tree, at, (hash, row));
            self.me.digest.sum = self.me.digest.sum.wrapping_sub(term);
        }
    }

    fn is_free(&self, at: At, hash: u64) -> bool {
        !self.me.free.is_empty() && self.me.free.contains(&(self.tree.place(at), hash))
    }

    /// From here on content alone carries this record. What it has on rows is counted apart.
    pub(super) fn set_free(&mut self, place: Place, hash: u64) {
        let rows = self.rows(place, hash);
        let at = self.tree.at(place);
        let held = || (0..4).filter(|row| rows & 1 << row != 0);
        held().for_each(|row| self.count_out(at, hash, row));
        self.me.free.insert((place, hash));
        held().for_each(|row| self.count_in(at, hash, row));
    }
}

impl PrefixIndex {
    /// Order-free digest of what an owner holds: equal in every index that applied the same batches. Costs nothing; 0
    /// for an owner that holds nothing or is gone.
    #[must_use]
    pub fn digest(&self, owner: OwnerId) -> OwnerDigest {
        let Some(state) = self.state(owner) else {
            return OwnerDigest::default();
        };
        let groups = state.groups.as_ref().map_or(0, |groups| groups.digest(state.digest.seed()));
        OwnerDigest {
            value: state.digest.sum.wrapping_add(groups),
            foreign_blocks: state.digest.foreign,
            ages: state.spec.lower_tier_ttl_ms.is_some(),
        }
    }

    /// The same, summed up from every record; for checks.
    #[must_use]
    pub fn digest_from_records(&self, owner: OwnerId) -> OwnerDigest {
        let Some((slot, state)) = self.slot_of_id(owner).zip(self.state(owner)) else {
            return OwnerDigest::default();
        };
        let (digest, _) = recount(View { tree: &self.tree, owner: state, slot });
        let groups = state.groups.as_ref().map_or(0, |groups| groups.digest_from_sets(digest.seed()));
        OwnerDigest {
            value: digest.sum.wrapping_add(groups),
            foreign_blocks: digest.foreign,
            ages: state.spec.lower_tier_ttl_ms.is_some(),
        }
    }
}

/// Digest and held blocks by row, from every record.
pub(super) fn recount(view: View<'_>) -> (Digest, [u64; 4]) {
    let mut digest = view.owner.digest;
    digest.clear();
    let mut blocks = [0; 4];
    let nodes: Vec<NodeId> = view.tree.node_ids();
    for node in nodes {
        for off in 0..view.tree.node(node).len {
            let at = At { node, off };
            view.for_each_record(at, |hash, rows, _, free| {
                for row in (0..4).filter(|row| rows & HELD & 1 << row != 0) {
                    blocks[row] += 1;
                    if free {
                        digest.foreign += 1;
                    } else {
                        digest.sum = digest.sum.wrapping_add(digest.term(view.tree, at, (hash, row)));
                    }
                }
            });
        }
    }
    (digest, blocks)
}

impl OwnerState {
    /// Adds the terms of blocks in the common form that came onto a row: hashes, local hashes, the local hash before.
    pub(super) fn add_terms(&mut self, row: usize, hashes: &[u64], content: (&[u64], u64)) {
        self.digest.sum = self.digest.sum.wrapping_add(self.digest.terms(row, hashes, content));
    }
}
