//! Everything an owner holds, spelled out: for `/dump`, and for what needs all records once.

use smallvec::SmallVec;

use super::api::DumpBlock;
use super::owner::HELD;
use super::tree::{At, NodeId, RECENT, ROOT};
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

/// What an owner holds at one moment, as chains: 16 bytes for a block, and 32 for a chain.
///
/// In order: reachable blocks with parents first, then unreachable, then waiting ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chains {
    heads: Vec<Head>,
    blocks: Vec<(EngineHash, LocalHash)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Head {
    parent: Option<EngineHash>,
    start: usize,
    tier: Tier,
    pending: bool,
}

/// Blocks each of which is the parent of the next, on one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain<'a> {
    /// Where they lie.
    pub tier: Tier,
    /// Hash of the block before the first; none at the root.
    pub parent: Option<EngineHash>,
    /// They wait for a parent; never matched.
    pub pending: bool,
    /// Hash and content of each, at least one.
    pub blocks: &'a [(EngineHash, LocalHash)],
}

impl Chains {
    fn with_capacity(blocks: usize) -> Self {
        Self { heads: Vec::new(), blocks: Vec::with_capacity(blocks) }
    }

    fn push(&mut self, block: &DumpBlock) {
        let DumpBlock { tier, parent, hash, local, pending } = *block;
        let continues = self.heads.last().is_some_and(|head| head.tier == tier && head.pending == pending)
            && parent.is_some()
            && self.blocks.last().map(|(hash, _)| *hash) == parent;
        if !continues {
            self.heads.push(Head { parent, start: self.blocks.len(), tier, pending });
        }
        self.blocks.push((hash, local));
    }

    /// Number of chains.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// True without a block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// A chain by number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Chain<'_>> {
        let Head { parent, start, tier, pending } = *self.heads.get(number)?;
        let end = self.heads.get(number + 1).map_or(self.blocks.len(), |next| next.start);
        Some(Chain { tier, parent, pending, blocks: &self.blocks[start..end] })
    }

    /// All blocks, one by one.
    pub fn blocks(&self) -> impl Iterator<Item = DumpBlock> + '_ {
        (0..self.len()).filter_map(|number| self.get(number)).flat_map(|chain| {
            let Chain { tier, parent, pending, blocks } = chain;
            let parents = std::iter::once(parent).chain(blocks.iter().map(|(hash, _)| Some(*hash)));
            blocks.iter().zip(parents).map(move |((hash, local), parent)| DumpBlock {
                tier,
                parent,
                hash: *hash,
                local: *local,
                pending,
            })
        })
    }
}

impl FromIterator<DumpBlock> for Chains {
    fn from_iter<T: IntoIterator<Item = DumpBlock>>(blocks: T) -> Self {
        let mut chains = Self::default();
        blocks.into_iter().for_each(|block| chains.push(&block));
        chains
    }
}

/// Hashes that the walk has reached at one block.
type Reached = SmallVec<[u64; 2]>;

/// All held records of an owner, parents before children.
pub(super) fn records(view: View<'_>) -> Vec<Spelled> {
    let mut records = Vec::new();
    for_each(view, |record| records.push(record));
    records
}

/// Calls `each` with all held records of an owner, parents before children.
fn for_each(view: View<'_>, mut each: impl FnMut(Spelled)) {
    let tree = view.tree;
    let mut stack: Vec<(NodeId, Reached)> = tree.children(ROOT).map(|child| (child, Reached::new())).collect();
    while let Some((id, reached)) = stack.pop() {
        let plain =
            view.owner.overlays.is_empty() && view.owner.free.is_empty() && !tree.node(id).has_column(view.slot);
        let reached = if plain { plain_node(view, id, reached, &mut each) } else { node(view, id, reached, &mut each) };
        stack.extend(tree.children(id).map(|child| (child, reached.clone())));
    }
}

/// A node where each block has one hash, the first storer's.
fn plain_node(view: View<'_>, id: NodeId, reached: Reached, each: &mut impl FnMut(Spelled)) -> Reached {
    let tree = view.tree;
    let rows: [_; RECENT] = std::array::from_fn(|row| tree.node(id).held(row, view.slot));
    let before = tree.before(At { node: id, off: 0 });
    let mut parent = before.map(|before| view.main(before));
    let mut reachable = parent.is_none_or(|parent| reached.contains(&parent));
    for (off, (hash, local)) in (0..).zip(tree.engines(id).iter().zip(tree.locals(id))) {
        let bits = (0..).zip(&rows).fold(0, |bits, (row, held)| bits | u8::from(held.contains(off)) << row);
        if bits != 0 {
            each(Spelled { hash: *hash, local: *local, rows: bits, parent, reachable });
        }
        parent = Some(*hash);
        reachable &= bits != 0;
    }
    parent.filter(|_| reachable).into_iter().collect()
}

/// Any node.
fn node(view: View<'_>, id: NodeId, mut reached: Reached, each: &mut impl FnMut(Spelled)) -> Reached {
    let tree = view.tree;
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
            each(Spelled { hash, local: locals[off as usize], rows: rows & HELD, parent, reachable });
        });
        reached = here;
    }
    reached
}

/// The blocks of an owner.
pub(super) fn chains(view: View<'_>) -> Chains {
    let held = view.owner.blocks.iter().sum::<u64>() as usize;
    let (mut chains, mut unreachable) = (Chains::with_capacity(held), Vec::new());
    for_each(view, |record| {
        if record.reachable {
            blocks_of(&record, |block| chains.push(&block));
        } else {
            unreachable.push(record);
        }
    });
    for record in unreachable {
        blocks_of(&record, |block| chains.push(&block));
    }
    for waiting in view.owner.pending.iter().flat_map(|pending| pending.iter()) {
        let span = waiting.locals.len() as u32;
        for tier in tiers(waiting.rows) {
            let mut parent = waiting.parent;
            for (index, local) in waiting.locals.iter().enumerate() {
                let piece = span - 1 - index as u32;
                let hash = if piece == 0 { waiting.hash } else { super::store::piece_of(waiting.hash, piece) };
                chains.push(&DumpBlock {
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
    chains
}

fn blocks_of(record: &Spelled, mut each: impl FnMut(DumpBlock)) {
    for tier in tiers(record.rows) {
        each(DumpBlock {
            tier,
            parent: record.parent.map(EngineHash),
            hash: EngineHash(record.hash),
            local: LocalHash(record.local),
            pending: false,
        });
    }
}

/// Tiers of row bits.
pub(super) fn tiers(rows: u8) -> impl Iterator<Item = Tier> {
    Tier::ALL.into_iter().filter(move |tier| rows & 1 << *tier as u8 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_chain_and_tier_stand_together_and_none_is_changed() {
        let block = |tier, parent: Option<u64>, hash: u64, pending| DumpBlock {
            tier,
            parent: parent.map(EngineHash),
            hash: EngineHash(hash),
            local: LocalHash(hash + 100),
            pending,
        };
        let blocks = [
            block(Tier::Device, None, 1, false),
            block(Tier::Device, Some(1), 2, false),
            block(Tier::Device, Some(1), 3, false),
            block(Tier::HostPinned, Some(3), 4, false),
            block(Tier::HostPinned, Some(4), 5, true),
            block(Tier::HostPinned, None, 6, true),
        ];
        let chains: Chains = blocks.iter().cloned().collect();
        let lens: Vec<usize> = (0..chains.len()).filter_map(|nth| chains.get(nth)).map(|c| c.blocks.len()).collect();
        assert_eq!((lens, chains.get(9)), (vec![2, 1, 1, 1, 1], None));
        assert_eq!(chains.blocks().collect::<Vec<_>>(), blocks);
    }
}
