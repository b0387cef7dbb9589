//! A look at the whole index from its records: whether what is kept up to date step by step is what it should be.

use rustc_hash::FxHashMap;

use super::super::digest::recount;
use super::super::index::PrefixIndex;
use super::super::owner::{HELD, OwnerState};
use super::super::tree::{At, RECENT};
use super::super::view::View;

impl PrefixIndex {
    /// Counts everything anew and compares. Costs a walk over all blocks per owner: for tests and diagnosis.
    ///
    /// # Errors
    /// What does not agree, and of which owner.
    pub fn audit(&self) -> Result<(), String> {
        let (mut lower, mut held) = (0, 0);
        for slot in &self.order {
            let owner = self.slots[*slot as usize].as_deref().ok_or("a slot in the order is empty")?;
            let view = View { tree: &self.tree, owner, slot: *slot };
            audit_owner(view).map_err(|what| format!("{}: {what}", owner.owner))?;
            lower += owner.blocks[1..].iter().sum::<u64>();
            held += owner.blocks.iter().sum::<u64>();
        }
        if held != self.held_count {
            return Err(format!("{held} held blocks, {} counted", self.held_count));
        }
        if lower != self.lower_count() {
            return Err(format!("{} blocks on lower tiers, {} counted", lower, self.lower_count()));
        }
        let blocks: u64 = self.tree.node_ids().iter().map(|node| u64::from(self.tree.node(*node).len)).sum();
        if blocks != self.tree.block_count() {
            return Err(format!("{blocks} blocks in the tree, {} counted", self.tree.block_count()));
        }
        Ok(())
    }
}

fn audit_owner(view: View<'_>) -> Result<(), String> {
    let (digest, blocks) = recount(view);
    if (digest, blocks) != (view.owner.digest, view.owner.blocks) {
        return Err(format!("{blocks:?} {digest:?}, kept {:?} {:?}", view.owner.blocks, view.owner.digest));
    }
    if let Some(groups) = &view.owner.groups
        && groups.digest(1) != groups.digest_from_sets(1)
    {
        return Err("a group's sum differs".to_owned());
    }
    // Rows by hash; whether every record is found by its hash.
    let mut rows_by_hash: FxHashMap<u64, u8> = FxHashMap::default();
    let mut lost = None;
    for node in view.tree.node_ids() {
        for off in 0..view.tree.node(node).len {
            let at = At { node, off };
            let place = view.tree.place(at);
            view.for_each_record(at, |hash, rows, _, _| {
                *rows_by_hash.entry(hash).or_default() |= rows;
                if !view.places(hash).contains(&place) {
                    lost = Some(hash);
                }
            });
        }
    }
    if let Some(hash) = lost {
        return Err(format!("the place of {hash:x} is lost"));
    }
    remembered(view.owner, &rows_by_hash)
}

/// Every hash that is nowhere held and somewhere known stands in the ring of remembered ones, once.
fn remembered(owner: &OwnerState, rows_by_hash: &FxHashMap<u64, u8>) -> Result<(), String> {
    let removed = rows_by_hash.iter().filter(|(_, rows)| **rows & HELD == 0 && **rows & 1 << RECENT != 0);
    let mut removed: Vec<u64> = removed.map(|(hash, _)| *hash).filter(|hash| !owner.pieces.contains(hash)).collect();
    let mut ring: Vec<u64> = owner.recents.iter().collect();
    removed.sort_unstable();
    ring.sort_unstable();
    if removed == ring { Ok(()) } else { Err(format!("removed {removed:x?}, remembered {ring:x?}")) }
}
