//! The exact walk for one owner, block by block: for owners with several hashes per content, with parents that are not
//! the main hash, or with several cache groups. Slower than `find`'s, and rare.

use smallvec::SmallVec;

use super::dump::{for_each_record, main};
use super::find::{DEVICE, DISK, EXTERNAL, HOST, Path, Prefix};
use super::holders::Slot;
use super::index::PrefixIndex;
use super::owner::{HELD, OwnerState};
use super::tree::At;

/// What an owner has along a path, block by block.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Rows of the records that a chain of held records reaches, by block.
    pub(super) rows: Vec<u8>,
    /// A pool has the block.
    pub(super) pooled: Vec<bool>,
    /// Hashes of all held records, by block.
    pub(super) hashes: Vec<SmallVec<[u64; 1]>>,
}

/// Hashes reached at one block; `any` when content alone carries on.
struct Reached {
    hashes: SmallVec<[u64; 2]>,
    any: bool,
}

/// Follows an owner's records along a path to the last block that it or a pool reaches.
pub(super) fn trace(index: &PrefixIndex, owner: &OwnerState, slot: Slot, path: &Path) -> Trace {
    let tree = &index.tree;
    let mut trace = Trace::default();
    let mut reached = Reached { hashes: SmallVec::new(), any: true };
    for step in path {
        for off in 0..step.len {
            let at = At { node: step.node, off };
            let implied = tree.before(at).map(|before| main(tree, owner, slot, before));
            let mut here = Reached { hashes: SmallVec::new(), any: index.pooled(step.node, off) };
            let mut rows_here = 0;
            let mut hashes = SmallVec::new();
            for_each_record(tree, owner, slot, at, |hash, rows, parents, free| {
                let parents = if parents.is_empty() { implied.as_slice() } else { parents };
                let rows = rows & HELD;
                if rows == 0 {
                    return;
                }
                hashes.push(hash);
                if free || reached.any || parents.iter().any(|parent| reached.hashes.contains(parent)) {
                    here.hashes.push(hash);
                    rows_here |= rows;
                }
            });
            if here.hashes.is_empty() && !here.any {
                return trace;
            }
            trace.rows.push(rows_here);
            trace.pooled.push(here.any);
            trace.hashes.push(hashes);
            reached = here;
        }
    }
    trace
}

impl Trace {
    /// Goes on from block `from` through blocks on `rows`, and through pooled ones if asked.
    pub(super) fn extend(&self, from: u32, rows: u8, pooled: bool) -> u32 {
        let from = from as usize;
        let run = self.rows[from..].iter().zip(&self.pooled[from..]);
        let run = run.take_while(|(held, in_pool)| *held & rows != 0 || (pooled && **in_pool));
        (from + run.count()) as u32
    }

    /// Prefixes by the records alone: device, host, disk with external.
    pub(super) fn raw(&self) -> [u32; 3] {
        let device = self.extend(0, DEVICE, false);
        let host = self.extend(device, HOST, false);
        let disk = self.extend(host, DISK, false);
        [device, host, self.extend(disk, EXTERNAL, true)]
    }
}

/// All prefixes of one owner.
pub(super) fn prefix(index: &PrefixIndex, owner: &OwnerState, slot: Slot, path: &Path) -> Prefix {
    let trace = trace(index, owner, slot, path);
    let [device, host, disk] = trace.raw();
    let own_host = trace.extend(0, HOST, false);
    let own_disk = trace.extend(0, DISK | EXTERNAL, false);
    let agreed = |limit: u32, stages: &[u8]| match &owner.groups {
        Some(groups) if groups.restricts() => groups.longest(&trace.hashes, limit, stages, index.block_size).0,
        _ => limit,
    };
    let device = agreed(device, &[DEVICE]);
    let host_pinned = agreed(host, &[DEVICE, HOST]).max(device);
    Prefix {
        device,
        host_pinned,
        disk: agreed(disk, &[DEVICE, HOST, DISK, EXTERNAL]).max(host_pinned),
        own: [device, agreed(own_host, &[HOST]), agreed(own_disk, &[DISK | EXTERNAL])],
    }
}
