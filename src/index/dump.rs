//! Everything an owner holds, spelled out: for `/dump`, and for what needs all records once.

use smallvec::SmallVec;

use super::api::DumpBlock;
use super::owner::HELD;
use super::tree::{At, NodeId, ROOT};
use super::view::View;
use crate::ids::{EngineHash, LocalHash, Tier};

/// One record that an owner holds.
#[derive(Debug, Clone)]
pub(super) struct Spelled {
    pub(super) hash: u64,
    pub(super) local: u64,
    /// Rows it is held on, as bits.
    pub(super) rows: u8,
    /// Parent hash: the one that carries it, if one does.
    pub(super) parent: Option<u64>,
    /// A chain of held blocks leads to it from the root.
    pub(super) reachable: bool,
}

/// Hashes that the walk has reached at one block.
type Reached = SmallVec<[u64; 2]>;

/// All held records of an owner, parents before children.
pub(super) fn records(view: View<'_>) -> Vec<Spelled> {
    let tree = view.tree;
    let mut records = Vec::new();
    let mut stack: Vec<(NodeId, Reached)> = tree.children(ROOT).map(|child| (child, Reached::new())).collect();
    while let Some((id, mut reached)) = stack.pop() {
        let locals = tree.locals(id);
        for off in 0..tree.node(id).len {
            let at = At { node: id, off };
            let before = tree.before(at);
            let mut here = Reached::new();
            view.for_each_record(at, |hash, rows, parents, free| {
                if rows & HELD == 0 {
                    return;
                }
                let implied = before.map(|before| view.main(before));
                let parents = if parents.is_empty() { implied.as_slice() } else { parents };
                let carrier = parents.iter().find(|parent| reached.contains(parent)).copied();
                let reachable = before.is_none() || free || carrier.is_some();
                if reachable {
                    here.push(hash);
                }
                let parent = carrier.or(parents.last().copied());
                records.push(Spelled { hash, local: locals[off as usize], rows: rows & HELD, parent, reachable });
            });
            reached = here;
        }
        stack.extend(tree.children(id).map(|child| (child, reached.clone())));
    }
    records
}

/// The blocks of an owner: reachable ones with parents first, then unreachable, then waiting ones.
pub(super) fn dump(view: View<'_>) -> Vec<DumpBlock> {
    let records = records(view);
    let mut blocks = Vec::with_capacity(records.len());
    for reachable in [true, false] {
        for record in records.iter().filter(|record| record.reachable == reachable) {
            blocks.extend(tiers(record.rows).map(|tier| DumpBlock {
                tier,
                parent: record.parent.map(EngineHash),
                hash: EngineHash(record.hash),
                local: LocalHash(record.local),
                pending: false,
            }));
        }
    }
    for waiting in view.owner.pending.iter().flat_map(|pending| pending.iter()) {
        let span = waiting.locals.len() as u32;
        for tier in tiers(waiting.rows) {
            let mut parent = waiting.parent;
            for (index, local) in waiting.locals.iter().enumerate() {
                let piece = span - 1 - index as u32;
                let hash = if piece == 0 { waiting.hash } else { super::store::piece_of(waiting.hash, piece) };
                blocks.push(DumpBlock {
                    tier,
                    parent: Some(EngineHash(parent)),
                    hash: EngineHash(hash),
                    local: LocalHash(*local),
                    pending: true,
                });
                parent = hash;
            }
        }
    }
    blocks
}

/// Tiers of row bits.
pub(super) fn tiers(rows: u8) -> impl Iterator<Item = Tier> {
    Tier::ALL.into_iter().filter(move |tier| rows & 1 << *tier as u8 != 0)
}
