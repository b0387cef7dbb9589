//! Owners out of the tree: one look at every node for what they know, one walk over what is copied.

use super::super::api::OwnerId;
use super::super::holders::{Held, Slot, SlotSet};
use super::super::index::PrefixIndex;
use super::super::owner::OwnerState;
use super::super::tree::{At, NodeId, Place, ROOT, Tree};
use super::rest;
use crate::ids::Namespace;
use crate::image::{BlockNumber, Image, ImageRun, OwnerImage, ROWS};

impl PrefixIndex {
    /// Everything that decides later answers of these owners, in the order of their names. Owners that are gone are
    /// left out.
    ///
    /// Costs a look at every node of the index and a copy of what these owners know, with the blocks above it.
    #[must_use]
    pub fn export(&self, owners: &[OwnerId]) -> Image {
        let mut members: Vec<Member<'_>> = owners
            .iter()
            .filter_map(|id| self.slot_of_id(*id).zip(self.state(*id)))
            .map(|(slot, state)| Member { slot, state, image: blank(state) })
            .collect();
        members.sort_unstable_by(|a, b| a.state.owner.cmp(&b.state.owner));
        members.dedup_by_key(|member| member.slot);
        let mut slots = SlotSet::default();
        members.iter().for_each(|member| slots.insert(member.slot));
        let wants_places = members.iter().any(|member| rest::has_places(member.state));
        let mut copy =
            Copy { tree: &self.tree, members, image: Image::default(), numbers: wants_places.then(Numbers::default) };
        copy.walk(&extents(&self.tree, &slots));
        copy.finish()
    }
}

/// Where copied blocks stand in the image, by their place: segment, first offset, number of blocks, first number.
#[derive(Debug, Default)]
pub(super) struct Numbers(Vec<(u32, u32, u32, BlockNumber)>);

impl Numbers {
    /// Number of a copied block.
    pub(super) fn of(&self, place: Place) -> Option<BlockNumber> {
        let after = self.0.partition_point(|(seg, start, ..)| (*seg, *start) <= (place.seg, place.off));
        let (seg, start, len, number) = *self.0.get(after.checked_sub(1)?)?;
        (seg == place.seg && place.off - start < len).then(|| number + (place.off - start))
    }
}

fn blank(state: &OwnerState) -> OwnerImage {
    OwnerImage {
        owner: state.owner.clone(),
        spec: state.spec,
        trust: state.trust,
        rows: Default::default(),
        hashes: Vec::new(),
        recents: state.recents.iter().collect(),
        rest: Default::default(),
    }
}

/// How many blocks of each node are copied: up to the last one that one of `slots` knows, and all where one of them
/// knows a block below.
fn extents(tree: &Tree, slots: &SlotSet) -> Vec<u32> {
    let mut extents = vec![0; tree.id_end() as usize];
    for id in tree.ids() {
        let node = tree.node(id);
        let end = node.rows().map(|holders| holders.end_of(slots, node.len)).max().unwrap_or(0);
        if end <= extents[id as usize] {
            continue;
        }
        extents[id as usize] = end;
        let mut above = node.parent;
        while above != ROOT && extents[above as usize] < tree.node(above).len {
            extents[above as usize] = tree.node(above).len;
            above = tree.node(above).parent;
        }
    }
    extents
}

/// One owner on its way into the image.
struct Member<'a> {
    slot: Slot,
    state: &'a OwnerState,
    image: OwnerImage,
}

struct Copy<'a> {
    tree: &'a Tree,
    members: Vec<Member<'a>>,
    image: Image,
    numbers: Option<Numbers>,
}

impl Copy<'_> {
    /// Parents before children, siblings in the order of their first local hash; where a node has one copied child, the
    /// run goes on, so that the runs do not tell how nodes were cut.
    fn walk(&mut self, extents: &[u32]) {
        let mut stack = self.children(ROOT, extents, None);
        stack.reverse();
        while let Some((id, parent)) = stack.pop() {
            let namespace = self.tree.node(id).namespace();
            let extent = extents[id as usize];
            self.run(parent, extent, namespace);
            self.node(id, extent);
            let last = self.image.locals.len() as BlockNumber - 1;
            let mut children = self.children(id, extents, Some(last));
            children.reverse();
            stack.extend(children);
        }
    }

    fn children(
        &self,
        id: NodeId,
        extents: &[u32],
        parent: Option<BlockNumber>,
    ) -> Vec<(NodeId, Option<(BlockNumber, bool)>)> {
        let mut children: Vec<NodeId> = self.tree.children(id).filter(|child| extents[*child as usize] > 0).collect();
        children.sort_unstable_by_key(|child| self.tree.locals(*child)[0]);
        let only = children.len() == 1;
        children.into_iter().map(|child| (child, parent.map(|parent| (parent, only)))).collect()
    }

    fn run(&mut self, parent: Option<(BlockNumber, bool)>, len: u32, namespace: Namespace) {
        match self.image.runs.last_mut() {
            Some(run) if parent.is_some_and(|(_, only)| only) && run.namespace == namespace => run.len += len,
            _ => self.image.runs.push(ImageRun { parent: parent.map(|(parent, _)| parent), len, namespace }),
        }
    }

    /// Copies the first blocks of a node and what the owners have of them.
    fn node(&mut self, id: NodeId, extent: u32) {
        let node = self.tree.node(id);
        let base = self.image.locals.len() as BlockNumber;
        if let Some(numbers) = &mut self.numbers {
            let place = self.tree.place(At { node: id, off: 0 });
            numbers.0.push((place.seg, place.off, extent, base));
        }
        self.image.locals.extend_from_slice(&self.tree.locals(id)[..extent as usize]);
        for member in &mut self.members {
            for row in 0..ROWS {
                let ranges = &mut member.image.rows[row];
                match node.held(row, member.slot) {
                    Held::Full => add_range(ranges, (base, base + extent)),
                    Held::Part(cover) => cover.runs().for_each(|(a, b)| add_range(ranges, (base + a, base + b))),
                    Held::Nothing => {}
                }
            }
        }
        if !self.members.iter().any(|member| node.has_column(member.slot)) {
            self.image.engines.extend_from_slice(&self.tree.engines(id)[..extent as usize]);
        } else if let [only] = &self.members[..] {
            let column = self.tree.column(id, only.slot).unwrap_or_default();
            let own = column.len().min(extent as usize);
            self.image.engines.extend_from_slice(&column[..own]);
            self.image.engines.extend_from_slice(&self.tree.engines(id)[own..extent as usize]);
        } else {
            self.hashes(id, extent, base);
        }
    }

    /// Hashes of a node where owners differ: the first owner's that has one there, and each other one's.
    fn hashes(&mut self, id: NodeId, extent: u32, base: BlockNumber) {
        let tree = self.tree;
        for off in 0..extent {
            let at = At { node: id, off };
            let mut first = None;
            for member in &mut self.members {
                let knows = tree.node(id).rows_of(member.slot, off) != 0;
                if !knows && !tree.has_below(member.slot, at) {
                    continue;
                }
                let hash = tree.hash_of(member.slot, at);
                if *first.get_or_insert(hash) != hash {
                    add_hash(&mut member.image.hashes, base + off, hash);
                }
            }
            self.image.engines.push(first.unwrap_or_else(|| tree.engines(id)[off as usize]));
        }
    }

    fn finish(mut self) -> Image {
        if let Some(numbers) = &mut self.numbers {
            numbers.0.sort_unstable();
        }
        let numbers = self.numbers.unwrap_or_default();
        let owners = self.members.into_iter().map(|Member { state, mut image, .. }| {
            image.rest = rest::spell(state, &numbers);
            image
        });
        Image { owners: owners.collect(), ..self.image }
    }
}

/// Adds a range behind the others, to the last one where it goes on from it.
fn add_range(ranges: &mut Vec<(BlockNumber, BlockNumber)>, (from, to): (BlockNumber, BlockNumber)) {
    match ranges.last_mut() {
        Some((_, end)) if *end == from => *end = to,
        _ => ranges.push((from, to)),
    }
}

fn add_hash(hashes: &mut Vec<(BlockNumber, Vec<u64>)>, number: BlockNumber, hash: u64) {
    match hashes.last_mut() {
        Some((from, list)) if *from + list.len() as BlockNumber == number => list.push(hash),
        _ => hashes.push((number, vec![hash])),
    }
}
