//! The content tree: runs of blocks in segments, nodes as views on them, and the table from engine hash to block.
//!
//! A block's address ([`Place`]) is stable: splitting a node makes two views on one segment and moves nothing. The views
//! of a segment lie on one path of the tree, so what can be trimmed is always at a segment's end.
//! Invariant: every node but the root has at least one block, and its first block is unique among its siblings.

mod arena;
mod bytes;
mod edit;
mod join;
mod segment;
mod table;

use arena::Arena;
use segment::Segment;

use super::holders::{Held, Holders, Slot};
use crate::ids::Namespace;

pub(super) use segment::SEGMENT_MAX;
pub(super) use table::Table;

pub(super) type NodeId = u32;

/// The node without blocks that every path begins at.
pub(super) const ROOT: NodeId = 0;
/// No node.
pub(super) const NONE: NodeId = NodeId::MAX;
/// Rows of holders in a node: the four tiers, and the removed but remembered blocks.
pub(super) const ROWS: usize = 5;
/// The row of removed but remembered blocks.
pub(super) const RECENT: usize = 4;

/// Address of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) seg: u32,
    pub(super) off: u32,
}

impl Place {
    /// As a number of 44 bits, for tables.
    pub(super) fn pack(self) -> u64 {
        debug_assert!(self.seg < 1 << 28 && self.off < SEGMENT_MAX);
        u64::from(self.seg) << 16 | u64::from(self.off)
    }

    /// The reverse.
    pub(super) fn unpack(packed: u64) -> Self {
        Self { seg: (packed >> 16) as u32, off: packed as u32 % SEGMENT_MAX }
    }
}

/// A position in the tree: before block `off` of `node` (`off == len`: behind its last block).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) node: NodeId,
    pub(super) off: u32,
}

/// Hashes by owner, one per block.
type Columns = Vec<(Slot, Vec<u64>)>;

/// A view on a segment with those who hold it.
#[derive(Debug)]
pub(super) struct Node {
    seg: u32,
    start: u32,
    pub(super) len: u32,
    pub(super) parent: NodeId,
    pub(super) first_child: NodeId,
    pub(super) next_sibling: NodeId,
    prev_sibling: NodeId,
    /// None for plain blocks.
    namespace: Option<Box<Namespace>>,
    pub(super) device: Holders,
    recent: Option<Box<Holders>>,
    lower: Option<Box<[Holders; 3]>>,
    /// Hashes of owners whose own hash differs from the first storer's, ascending by owner; may end before the node.
    aliases: Option<Box<Columns>>,
}

impl Default for Node {
    fn default() -> Self {
        Self::new(0, 0, 0, NONE, Namespace::default())
    }
}

impl Node {
    fn new(seg: u32, start: u32, len: u32, parent: NodeId, namespace: Namespace) -> Self {
        Self {
            seg,
            start,
            len,
            parent,
            first_child: NONE,
            next_sibling: NONE,
            prev_sibling: NONE,
            namespace: (!namespace.is_plain()).then(|| Box::new(namespace)),
            device: Holders::default(),
            recent: None,
            lower: None,
            aliases: None,
        }
    }

    /// True if the blocks before it lie in the same segment, so that it may join them.
    pub(super) fn goes_on(&self) -> bool {
        self.start > 0
    }

    /// Drops what says nothing.
    pub(super) fn drop_empty(&mut self) {
        if self.recent.as_deref().is_some_and(Holders::is_empty) {
            self.recent = None;
        }
        if self.lower.iter().flat_map(|lower| lower.iter()).all(Holders::is_empty) {
            self.lower = None;
        }
        if self.aliases.as_ref().is_some_and(|columns| columns.is_empty()) {
            self.aliases = None;
        }
    }

    /// Holders of a row.
    pub(super) fn row(&self, row: usize) -> Option<&Holders> {
        match row {
            0 => Some(&self.device),
            RECENT => self.recent.as_deref(),
            _ => self.lower.as_ref().map(|lower| &lower[row - 1]),
        }
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut Holders {
        match row {
            0 => &mut self.device,
            RECENT => self.recent.get_or_insert_default(),
            _ => &mut self.lower.get_or_insert_default()[row - 1],
        }
    }

    /// What an owner holds on a row.
    pub(super) fn held(&self, row: usize, slot: Slot) -> Held<'_> {
        self.row(row).map_or(Held::Nothing, |holders| holders.of(slot))
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = &mut Holders> {
        let lower = self.lower.iter_mut().flat_map(|lower| lower.iter_mut());
        std::iter::once(&mut self.device).chain(self.recent.as_deref_mut()).chain(lower)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Holders> {
        let lower = self.lower.iter().flat_map(|lower| lower.iter());
        std::iter::once(&self.device).chain(self.recent.as_deref()).chain(lower)
    }

    /// Rows on which the owner has the block, as bits.
    pub(super) fn rows_of(&self, slot: Slot, off: u32) -> u8 {
        (0..ROWS).filter(|row| self.held(*row, slot).contains(off)).fold(0, |bits, row| bits | 1 << row)
    }

    pub(super) fn namespace(&self) -> Namespace {
        self.namespace.as_deref().copied().unwrap_or_default()
    }

    /// True if the owner has a column of hashes of its own here.
    pub(super) fn has_column(&self, slot: Slot) -> bool {
        self.aliases.as_ref().is_some_and(|columns| columns.binary_search_by_key(&slot, |(slot, _)| *slot).is_ok())
    }

    /// True if nobody but `slot` holds or remembers anything.
    fn only(&self, slot: Slot) -> bool {
        self.rows().all(|holders| holders.only(slot))
    }
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    segments: Arena<Segment>,
    nodes: Arena<Node>,
    /// By (parent, first local hash).
    edges: Table,
    /// By the first storer's hash; one block at most per hash.
    by_hash: Table,
    blocks: u64,
    /// Bytes of all segments' blocks.
    data_bytes: usize,
}

/// Parts of the tables of a tree.
const PARTS: usize = 512;

/// Spreads a number over all bits, for the tables.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^ (value >> 32)
}

/// Key of a node's edge.
fn edge_of(nodes: &Arena<Node>, segments: &Arena<Segment>, id: NodeId) -> u64 {
    let node = &nodes[id];
    edge_key(node.parent, segments[node.seg].locals()[node.start as usize])
}

fn edge_key(parent: NodeId, local: u64) -> u64 {
    mix(local ^ u64::from(parent).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self {
            segments: Arena::default(),
            nodes: Arena::default(),
            edges: Table::new(PARTS),
            by_hash: Table::new(PARTS),
            blocks: 0,
            data_bytes: 0,
        };
        tree.segments.insert(Segment::default());
        tree.nodes.insert(Node::default());
        tree
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// True while a node has this id.
    pub(super) fn exists(&self, id: NodeId) -> bool {
        self.nodes.contains(id)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id]
    }

    /// Content blocks.
    pub(super) fn block_count(&self) -> u64 {
        self.blocks
    }

    /// Nodes, the root not counted.
    pub(super) fn node_count(&self) -> u64 {
        self.nodes.len() as u64 - 1
    }

    /// One past the largest node id.
    pub(super) fn id_end(&self) -> NodeId {
        self.nodes.end()
    }

    /// Ids of all nodes that exist, the root not among them.
    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.ids().skip(1)
    }

    /// The same, for those who change nodes meanwhile.
    pub(super) fn node_ids(&self) -> Vec<NodeId> {
        self.ids().collect()
    }

    /// Children of a node, in no order.
    pub(super) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let some = |id: NodeId| (id != NONE).then_some(id);
        std::iter::successors(some(self.node(id).first_child), move |child| some(self.node(*child).next_sibling))
    }

    /// Local hashes of a node.
    pub(super) fn locals(&self, id: NodeId) -> &[u64] {
        let node = self.node(id);
        &self.segments[node.seg].locals()[node.start as usize..(node.start + node.len) as usize]
    }

    /// Local hash of the block before a block; 0 at the root.
    pub(super) fn local_before(&self, at: At) -> u64 {
        let node = self.node(at.node);
        match (node.start + at.off).checked_sub(1) {
            // The views of a segment lie on one path.
            Some(before) => self.segments[node.seg].locals()[before as usize],
            None if node.parent == ROOT => 0,
            None => *self.locals(node.parent).last().expect("every node but the root has a block"),
        }
    }

    /// First storers' hashes of a node.
    pub(super) fn engines(&self, id: NodeId) -> &[u64] {
        let node = self.node(id);
        &self.segments[node.seg].engines()[node.start as usize..(node.start + node.len) as usize]
    }

    /// True if some hash of the node's segment belongs to another block in the table.
    pub(super) fn is_shadowed(&self, id: NodeId) -> bool {
        self.segments[self.node(id).seg].shadowed
    }

    /// Node and offset of a block.
    pub(super) fn at(&self, place: Place) -> At {
        let (start, node) = self.segments[place.seg].views.of(place.off);
        At { node, off: place.off - start }
    }

    /// Address of block `off` of a node.
    pub(super) fn place(&self, at: At) -> Place {
        let node = self.node(at.node);
        Place { seg: node.seg, off: node.start + at.off }
    }

    /// The block before a block; none at the root.
    pub(super) fn before(&self, at: At) -> Option<At> {
        if at.off > 0 {
            return Some(At { node: at.node, off: at.off - 1 });
        }
        let parent = self.node(at.node).parent;
        (parent != ROOT).then(|| At { node: parent, off: self.node(parent).len - 1 })
    }

    /// The first storer's hash of a block.
    pub(super) fn engine(&self, place: Place) -> u64 {
        self.segments[place.seg].engine(place.off)
    }

    /// The block that the table names for a hash.
    pub(super) fn find_hash(&self, hash: u64) -> Option<Place> {
        self.by_hash.find(mix(hash), |place| self.engine(Place::unpack(place)) == hash).map(Place::unpack)
    }

    /// True if the table names this block for a hash, as far as that can be told without looking there.
    pub(super) fn surely_names(&self, place: Place, hash: u64) -> bool {
        self.segments.contains(place.seg) && {
            let segment = &self.segments[place.seg];
            !segment.shadowed && segment.engines().get(place.off as usize) == Some(&hash)
        }
    }

    /// Enters a block under its first storer's hash; false if the hash stands for another block.
    fn insert_hash(&mut self, place: Place) -> bool {
        let (hash, segments) = (self.engine(place), &self.segments);
        let is = |other: u64| {
            let other = Place::unpack(other);
            segments[other.seg].engine(other.off) == hash
        };
        self.by_hash.find_or_insert(mix(hash), place.pack(), is).is_none_or(|other| other == place.pack())
    }

    /// Enters blocks from `at` on, all in one node, under their first storers' hashes; notes hashes that stand for others.
    pub(super) fn enter_hashes(&mut self, at: At, count: u32) {
        let first = self.place(at);
        let segment = &self.segments[first.seg];
        self.by_hash.touch((first.off..first.off + count).map(|off| mix(segment.engine(off))));
        let mut shadowed = false;
        for off in first.off..first.off + count {
            shadowed |= !self.insert_hash(Place { off, ..first });
        }
        self.segments[first.seg].shadowed |= shadowed;
    }

    /// The hash that an owner gave a block that it has or had there: its own, or the first storer's.
    pub(super) fn hash_of(&self, slot: Slot, at: At) -> u64 {
        let node = self.node(at.node);
        if let Some(columns) = &node.aliases
            && let Ok(index) = columns.binary_search_by_key(&slot, |(slot, _)| *slot)
            && let Some(hash) = columns[index].1.get(at.off as usize)
        {
            return *hash;
        }
        self.engine(self.place(at))
    }

    /// Sets the hash that an owner gives a block; an existing column is kept, a column is made when it differs.
    pub(super) fn set_hash_of(&mut self, slot: Slot, at: At, hash: u64) {
        self.set_hashes_of(slot, at, &[hash]);
    }

    /// The same for blocks in a row of one node.
    pub(super) fn set_hashes_of(&mut self, slot: Slot, at: At, hashes: &[u64]) {
        let node = &mut self.nodes[at.node];
        let (off, start) = (at.off as usize, node.start as usize);
        let engines = &self.segments[node.seg].engines()[start..];
        let first = || engines[off..off + hashes.len()] == *hashes;
        let columns = match &mut node.aliases {
            None if first() => return,
            aliases => aliases.get_or_insert_default(),
        };
        let index = match columns.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(index) => index,
            Err(_) if first() => return,
            Err(index) => {
                columns.insert(index, (slot, Vec::new()));
                index
            }
        };
        let column = &mut columns[index].1;
        if column.len() < off + hashes.len() {
            if column.capacity() < off + hashes.len() {
                column.reserve_exact(segment::room(off + hashes.len()) - column.len());
            }
            column.extend_from_slice(&engines[column.len()..off + hashes.len()]);
        }
        column[off..off + hashes.len()].copy_from_slice(hashes);
    }

    /// Hashes of an owner whose own hash differs from the first storer's; may end before the node.
    pub(super) fn column(&self, id: NodeId, slot: Slot) -> Option<&[u64]> {
        let columns = self.node(id).aliases.as_ref()?;
        let index = columns.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(&columns[index].1)
    }

    /// True if the owner holds a block right below a block.
    pub(super) fn holds_below(&self, slot: Slot, at: At) -> bool {
        let holds = |node: &Node, off: u32| (0..RECENT).any(|row| node.held(row, slot).contains(off));
        let node = self.node(at.node);
        if at.off + 1 < node.len {
            return holds(node, at.off + 1);
        }
        self.children(at.node).any(|child| holds(self.node(child), 0))
    }

    /// True if the owner has a block right below a block: it may name the hash that the owner gave that one.
    pub(super) fn has_below(&self, slot: Slot, at: At) -> bool {
        let node = self.node(at.node);
        if at.off + 1 < node.len {
            return node.rows_of(slot, at.off + 1) != 0;
        }
        self.children(at.node).any(|child| self.node(child).rows_of(slot, 0) != 0)
    }

    /// The child of a node that begins with a local hash.
    pub(super) fn child(&self, parent: NodeId, local: u64) -> Option<NodeId> {
        self.edges
            .find(edge_key(parent, local), |id| {
                let node = self.node(id as NodeId);
                node.parent == parent && self.segments[node.seg].locals()[node.start as usize] == local
            })
            .map(|id| id as NodeId)
    }

    /// Blocks from `at` on that equal the beginning of `locals`.
    pub(super) fn common(&self, at: At, locals: &[u64]) -> u32 {
        common_prefix(&self.locals(at.node)[at.off as usize..], locals) as u32
    }
}

/// Length of the common beginning of two slices.
pub(super) fn common_prefix(a: &[u64], b: &[u64]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut from = 0;
    while from + 32 <= len && a[from..from + 32] == b[from..from + 32] {
        from += 32;
    }
    from + a[from..].iter().zip(&b[from..]).take_while(|(a, b)| a == b).count()
}
