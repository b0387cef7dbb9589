//! The exact walk for one owner, block by block: for owners with several hashes per content, with parents that are not
//! the main hash, or with several cache groups. Slower than `find`'s, and rare.

use smallvec::SmallVec;

use super::answer::Prefix;
use super::find::{DEVICE, DISK, EXTERNAL, HOST, Path};
use super::holders::Slot;
use super::index::PrefixIndex;
use super::owner::{HELD, OwnerState};
use super::tree::At;
use super::view::View;

/// In [`Trace::rows`]: on the external tier, below a block that only a pool has.
const BELOW_POOL: u8 = 1 << 7;

/// One held record on a path, and what carries it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) hash: u64,
    /// Hashes of the block before, one of which must be reached; none needed at the root.
    pub(super) parents: SmallVec<[u64; 1]>,
    /// Content alone carries it.
    pub(super) free: bool,
}

impl Link {
    /// True if a walk that has reached `above` at the block before goes on here.
    pub(super) fn follows(&self, above: &[u64]) -> bool {
        self.free || self.parents.iter().any(|parent| above.contains(parent))
    }
}

/// Records of one block.
pub(super) type Links = SmallVec<[Link; 1]>;

/// What an owner has along a path, block by block.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Rows of the records that a chain of held records reaches, by block.
    pub(super) rows: Vec<u8>,
    /// A pool has the block.
    pub(super) pooled: Vec<bool>,
    /// All held records, by block.
    pub(super) links: Vec<Links>,
}

/// Follows an owner's records along a path to the last block that it or a pool reaches.
pub(super) fn trace(index: &PrefixIndex, owner: &OwnerState, slot: Slot, path: &Path) -> Trace {
    let view = View { tree: &index.tree, owner, slot };
    let mut trace = Trace::default();
    // Hashes reached by held records alone, and with the help of pools (`any`: all of them).
    let mut strict: SmallVec<[u64; 2]> = SmallVec::new();
    let (mut loose, mut any) = (strict.clone(), false);
    for step in path {
        for off in 0..step.len {
            let at = At { node: step.node, off };
            let implied = view.tree.before(at).map(|before| view.main(before));
            let (mut strict_here, mut loose_here) = (SmallVec::new(), SmallVec::new());
            let mut rows_here = 0;
            let mut links = Links::new();
            view.for_each_record(at, |hash, rows, parents, free| {
                let rows = rows & HELD;
                if rows == 0 {
                    return;
                }
                let parents = if parents.is_empty() { implied.as_slice() } else { parents };
                let link = Link { hash, parents: parents.into(), free: free || implied.is_none() };
                if link.follows(&strict) {
                    strict_here.push(hash);
                    rows_here |= rows;
                }
                if any || link.follows(&loose) {
                    loose_here.push(hash);
                    rows_here |= if rows & EXTERNAL != 0 { BELOW_POOL } else { 0 };
                }
                links.push(link);
            });
            any = index.pooled(step.node, off);
            if loose_here.is_empty() && !any {
                return trace;
            }
            trace.rows.push(rows_here);
            trace.pooled.push(any);
            trace.links.push(links);
            (strict, loose) = (strict_here, loose_here);
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
        [device, host, self.extend(disk, EXTERNAL | BELOW_POOL, true)]
    }
}

/// All prefixes of one owner.
pub(super) fn prefix(index: &PrefixIndex, owner: &OwnerState, slot: Slot, path: &Path) -> Prefix {
    let trace = trace(index, owner, slot, path);
    let [device, host, disk] = trace.raw();
    let own_host = trace.extend(0, HOST, false);
    let own_disk = trace.extend(0, DISK | EXTERNAL, false);
    let agreed = |limit: u32, stages: &[u8]| match &owner.groups {
        Some(groups) if groups.restricts() => groups.longest(&trace.links, limit, stages, index.block_size).0,
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
