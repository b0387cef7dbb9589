//! Answers of the model: the walk of each owner, block by block.

use std::collections::BTreeSet;

use kvindexer::event::CacheKind;
use kvindexer::ids::{EngineHash, LocalHash, Owner, Role, Tier};

use super::{Group, Model, OwnerModel, Parent, Place};

/// One row, in blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) owner: Owner,
    pub(crate) registered: bool,
    /// Cumulative: device, host, disk with external.
    pub(crate) reach: [u32; 3],
    /// On one tier alone: device, host, disk with external.
    pub(crate) own: [u32; 3],
}

/// Rows and frequencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) frequencies: Vec<u32>,
}

/// What a side group must hold at a prefix.
#[derive(Debug, Clone, Copy)]
enum Side {
    /// The hash at its end.
    End,
    /// The hashes of so many last blocks.
    Last(usize),
}

impl OwnerModel {
    /// Main groups, whose blocks are the prefix.
    pub(crate) fn mains(&self) -> Vec<Group> {
        let full: Vec<Group> =
            self.groups.iter().filter(|(_, g)| g.kind == Some(CacheKind::Full)).map(|(id, _)| *id).collect();
        if !full.is_empty() {
            return full;
        }
        let complete_or_absent = |id: Group| self.groups.get(&id).is_none_or(|g| !g.incomplete && g.kind.is_none());
        if complete_or_absent(0) {
            return vec![0];
        }
        self.groups.iter().filter(|(_, g)| g.kind.is_none() && !g.incomplete).map(|(id, _)| *id).take(1).collect()
    }

    /// All other groups.
    pub(crate) fn sides(&self) -> Vec<Group> {
        let mains = self.mains();
        self.groups.keys().copied().filter(|id| !mains.contains(id)).collect()
    }

    fn side_rule(&self, group: Group, block_size: u32) -> Side {
        let facts = &self.groups[&group];
        match (facts.kind, facts.window_tokens) {
            (Some(CacheKind::SlidingWindow), Some(window)) => {
                Side::Last(window.saturating_sub(1).div_ceil(block_size) as usize)
            }
            (Some(CacheKind::SlidingWindow), None) => Side::Last(usize::MAX),
            _ => Side::End,
        }
    }

    /// True if every block before the place is held in `group` under the hash that its child named, or lies in a pool.
    fn intact(&self, place: &Place, group: Group, pools: &[&Self]) -> bool {
        let before = place.before();
        let held = |above: &&Place| above.path == before && above.on.iter().any(|(_, held_in)| *held_in == group);
        pools.iter().any(|pool| pool.pools(before))
            || place.parents.iter().any(|parent| match parent {
                Parent::Root => before.is_empty(),
                Parent::Content => true,
                Parent::Hash(hash) => {
                    let mut above = self.places.get(hash).into_iter().flatten().filter(held);
                    above.any(|above| self.intact(above, group, pools))
                }
            })
    }

    /// A pool serves single blocks by content: it need not hold what lies before them.
    fn pools(&self, path: &[LocalHash]) -> bool {
        self.places.values().flatten().any(|place| place.covers(path) && !place.on.is_empty())
    }

    /// Hashes that carry the last block of `path` on one of the tiers.
    fn carriers(&self, path: &[LocalHash], on: (&[Tier], Group), pools: &[&Self]) -> Vec<EngineHash> {
        let (tiers, group) = on;
        let carries = |place: &&Place| {
            place.covers(path)
                && place.on.iter().any(|(tier, held_in)| tiers.contains(tier) && *held_in == group)
                && self.intact(place, group, pools)
        };
        self.places.iter().filter(|(_, places)| places.iter().any(|p| carries(&p))).map(|(hash, _)| *hash).collect()
    }
}

impl Model {
    pub(crate) fn find(&self, query: &[LocalHash]) -> Answer {
        let mut rows = Vec::new();
        let mut frequencies: Vec<u32> = Vec::new();
        for (owner, entry) in &self.owners {
            if entry.spec.role == Role::Store {
                continue;
            }
            let [device, host, _, all] =
                self.cumulative(entry, query, [&[Tier::Device], &[Tier::HostPinned], &[Tier::Disk], &[Tier::External]]);
            let own = [
                self.alone(entry, query, &[Tier::Device]),
                self.alone(entry, query, &[Tier::HostPinned]),
                self.alone(entry, query, &[Tier::Disk, Tier::External]),
            ];
            for i in 0..device as usize {
                if frequencies.len() == i {
                    frequencies.push(0);
                }
                frequencies[i] += 1;
            }
            if entry.registered || all > 0 {
                rows.push(Row { owner: owner.clone(), registered: entry.registered, reach: [device, host, all], own });
            }
        }
        Answer { rows, frequencies }
    }

    fn alone(&self, entry: &OwnerModel, query: &[LocalHash], tiers: &[Tier]) -> u32 {
        let mains = entry.mains();
        let walk = |group: &Group| {
            (1..=query.len()).take_while(|len| !entry.carriers(&query[..*len], (tiers, *group), &[]).is_empty()).count()
        };
        let reach = mains.iter().map(walk).min().unwrap_or(0);
        self.longest_agreed(entry, query, (reach, tiers))
    }

    /// Answers after each step of the walk.
    fn cumulative(&self, entry: &OwnerModel, query: &[LocalHash], steps: [&[Tier]; 4]) -> [u32; 4] {
        let mains = entry.mains();
        let mut positions = vec![0; mains.len()];
        let mut reached_tiers = Vec::new();
        steps.map(|tiers| {
            for (position, group) in positions.iter_mut().zip(&mains) {
                while *position < query.len() && self.goes_on(entry, &query[..=*position], (tiers, *group)) {
                    *position += 1;
                }
            }
            reached_tiers.extend_from_slice(tiers);
            let reach = positions.iter().copied().min().unwrap_or(0);
            self.longest_agreed(entry, query, (reach, &reached_tiers))
        })
    }

    fn goes_on(&self, entry: &OwnerModel, path: &[LocalHash], (tiers, group): (&[Tier], Group)) -> bool {
        let extended = tiers.contains(&Tier::External);
        let pools: Vec<&OwnerModel> = self.stores().filter(|_| extended).collect();
        !entry.carriers(path, (tiers, group), &pools).is_empty() || pools.iter().any(|pool| pool.pools(path))
    }

    /// The largest length up to `reach` at which every cache group agrees.
    fn longest_agreed(&self, entry: &OwnerModel, query: &[LocalHash], (reach, tiers): (usize, &[Tier])) -> u32 {
        let mains = entry.mains();
        let whole = |len: usize| {
            mains.len() < 2
                || mains
                    .iter()
                    .filter_map(|id| entry.groups.get(id))
                    .flat_map(|g| &g.block_sizes)
                    .all(|size| (len * self.block_size as usize).is_multiple_of(*size as usize))
        };
        let holds = |len: usize, side: Group| {
            let hashes: BTreeSet<EngineHash> =
                mains.iter().flat_map(|main| entry.carriers(&query[..len], (tiers, *main), &[])).collect();
            hashes.iter().any(|hash| tiers.iter().any(|tier| entry.copies.contains_key(&(*hash, *tier, side))))
        };
        let agrees = |len: usize| {
            entry.sides().iter().all(|side| match entry.side_rule(*side, self.block_size) {
                Side::End => holds(len, *side),
                Side::Last(blocks) => (len.saturating_sub(blocks) + 1..=len).all(|at| holds(at, *side)),
            })
        };
        let longest = (1..=reach).rev().find(|len| whole(*len) && agrees(*len)).unwrap_or(0);
        u32::try_from(longest).expect("short queries")
    }
}

/// One row of a dump.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DumpRow {
    pub(crate) tier: Tier,
    pub(crate) hash: EngineHash,
    pub(crate) local: LocalHash,
    pub(crate) pending: bool,
    /// Any of these may stand as the parent; empty: not compared.
    pub(crate) parents: BTreeSet<Option<EngineHash>>,
}

impl OwnerModel {
    /// All blocks with a place, whichever group holds them, and those that wait for one.
    pub(crate) fn dump(&self) -> Vec<DumpRow> {
        let mut rows = Vec::new();
        for (hash, place) in self.places.iter().flat_map(|(hash, places)| places.iter().map(move |p| (*hash, p))) {
            let tiers: BTreeSet<Tier> = place.on.iter().map(|(tier, _)| *tier).collect();
            for tier in tiers {
                for local in &place.path[place.path.len() - place.len..] {
                    let parents = if place.len > 1 { BTreeSet::new() } else { named_parents(place) };
                    rows.push(DumpRow { tier, hash, local: *local, pending: false, parents });
                }
            }
        }
        for block in &self.pending {
            for local in super::store::locals(&block.pieces, block.named) {
                let parents = if block.pieces.len() > 1 { BTreeSet::new() } else { [Some(block.parent)].into() };
                let tiers: BTreeSet<Tier> = block.on.iter().map(|(tier, _)| *tier).collect();
                for tier in tiers {
                    rows.push(DumpRow { tier, hash: block.hash, local, pending: true, parents: parents.clone() });
                }
            }
        }
        rows.sort();
        rows
    }

    /// True if some hash names several index blocks.
    pub(crate) fn has_spans(&self) -> bool {
        self.places.values().flatten().any(|place| place.len > 1)
            || self.pending.iter().any(|block| block.pieces.len() > 1)
    }

    /// True for several groups of unknown kind: which of their blocks are shown and counted is not laid down.
    pub(crate) fn is_kindless_hybrid(&self) -> bool {
        self.groups.len() > 1 && self.groups.values().any(|group| group.kind.is_none())
    }

    /// Held index blocks of each tier, without waiting ones.
    pub(crate) fn blocks(&self) -> [u64; 4] {
        Tier::ALL.map(|tier| self.dump().iter().filter(|row| row.tier == tier && !row.pending).count() as u64)
    }
}

fn named_parents(place: &Place) -> BTreeSet<Option<EngineHash>> {
    if place.parents.contains(&Parent::Content) {
        return BTreeSet::new();
    }
    let name = |parent: &Parent| match parent {
        Parent::Hash(hash) => Some(*hash),
        Parent::Root | Parent::Content => None,
    };
    place.parents.iter().map(name).collect()
}
