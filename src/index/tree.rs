//! The content tree: runs of blocks in segments, nodes as views on them, and the table from engine hash to block.
//!
//! A block's address ([`Place`]) is stable: splitting a node makes two views on one segment and moves nothing. The views
//! of a segment lie on one path of the tree, so what can be trimmed is always at a segment's end.
//! Invariant: every node but the root has at least one block, and its first block is unique among its siblings.

use hashbrown::HashTable;
use smallvec::{SmallVec, smallvec};

use super::holders::{Held, Holders, Slot};
use crate::ids::Namespace;

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

/// A position in the tree: before block `off` of `node` (`off == len`: behind its last block).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) node: NodeId,
    pub(super) off: u32,
}

/// Physical storage of a run of blocks.
#[derive(Debug, Default)]
struct Segment {
    locals: Vec<u64>,
    /// Hash that the first storer gave the block.
    engines: Vec<u64>,
    /// Views on this segment by start, ascending.
    views: SmallVec<[(u32, NodeId); 1]>,
    /// Some block's hash belongs to another block in the table.
    shadowed: bool,
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
    recent: Holders,
    lower: Option<Box<[Holders; 3]>>,
    /// Hashes of owners whose own hash differs from the first storer's, ascending by owner; may end before the node.
    aliases: Option<Box<Columns>>,
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
            recent: Holders::default(),
            lower: None,
            aliases: None,
        }
    }

    /// Holders of a row.
    pub(super) fn row(&self, row: usize) -> Option<&Holders> {
        match row {
            0 => Some(&self.device),
            RECENT => Some(&self.recent),
            _ => self.lower.as_ref().map(|lower| &lower[row - 1]),
        }
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut Holders {
        match row {
            0 => &mut self.device,
            RECENT => &mut self.recent,
            _ => &mut self.lower.get_or_insert_default()[row - 1],
        }
    }

    /// What an owner holds on a row.
    pub(super) fn held(&self, row: usize, slot: Slot) -> Held<'_> {
        self.row(row).map_or(Held::Nothing, |holders| holders.of(slot))
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = &mut Holders> {
        [&mut self.device, &mut self.recent].into_iter().chain(self.lower.iter_mut().flat_map(|lower| lower.iter_mut()))
    }

    fn rows(&self) -> impl Iterator<Item = &Holders> {
        [&self.device, &self.recent].into_iter().chain(self.lower.iter().flat_map(|lower| lower.iter()))
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
    segments: Vec<Segment>,
    free_segments: Vec<u32>,
    nodes: Vec<Node>,
    free_nodes: Vec<NodeId>,
    /// By (parent, first local hash).
    edges: HashTable<NodeId>,
    /// By the first storer's hash; one block at most per hash.
    by_hash: HashTable<Place>,
    blocks: u64,
}

/// Spreads a number over all bits, for the tables.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^ (value >> 32)
}

fn edge_key(parent: NodeId, local: u64) -> u64 {
    mix(local ^ u64::from(parent).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            segments: vec![Segment::default()],
            free_segments: Vec::new(),
            nodes: vec![Node::new(0, 0, 0, NONE, Namespace::default())],
            free_nodes: Vec::new(),
            edges: HashTable::new(),
            by_hash: HashTable::new(),
            blocks: 0,
        }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Content blocks.
    pub(super) fn block_count(&self) -> u64 {
        self.blocks
    }

    /// Nodes, the root not counted.
    pub(super) fn node_count(&self) -> u64 {
        (self.nodes.len() - 1 - self.free_nodes.len()) as u64
    }

    /// Ids of all nodes that exist, the root not among them.
    pub(super) fn node_ids(&self) -> Vec<NodeId> {
        (1..self.nodes.len() as NodeId).filter(|id| self.nodes[*id as usize].len > 0).collect()
    }

    /// Children of a node, in no order.
    pub(super) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let some = |id: NodeId| (id != NONE).then_some(id);
        std::iter::successors(some(self.node(id).first_child), move |child| some(self.node(*child).next_sibling))
    }

    /// Local hashes of a node.
    pub(super) fn locals(&self, id: NodeId) -> &[u64] {
        let node = self.node(id);
        &self.segments[node.seg as usize].locals[node.start as usize..(node.start + node.len) as usize]
    }

    /// First storers' hashes of a node.
    pub(super) fn engines(&self, id: NodeId) -> &[u64] {
        let node = self.node(id);
        &self.segments[node.seg as usize].engines[node.start as usize..(node.start + node.len) as usize]
    }

    /// True if some hash of the node's segment belongs to another block in the table.
    pub(super) fn is_shadowed(&self, id: NodeId) -> bool {
        self.segments[self.node(id).seg as usize].shadowed
    }

    /// Marks the node's segment: see [`Self::is_shadowed`].
    pub(super) fn set_shadowed(&mut self, id: NodeId) {
        let seg = self.node(id).seg as usize;
        self.segments[seg].shadowed = true;
    }

    /// Node and offset of a block.
    pub(super) fn at(&self, place: Place) -> At {
        let views = &self.segments[place.seg as usize].views;
        let index = match views.len() {
            1 => 0,
            _ => views.partition_point(|(start, _)| *start <= place.off) - 1,
        };
        let (start, node) = views[index];
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
        self.segments[place.seg as usize].engines[place.off as usize]
    }

    /// The block that the table names for a hash.
    pub(super) fn find_hash(&self, hash: u64) -> Option<Place> {
        self.by_hash.find(mix(hash), |place| self.engine(*place) == hash).copied()
    }

    /// Enters a block under its first storer's hash; false if the hash stands for another block.
    pub(super) fn insert_hash(&mut self, place: Place) -> bool {
        let segments = &self.segments;
        let engine = |place: &Place| segments[place.seg as usize].engines[place.off as usize];
        let hash = engine(&place);
        match self.by_hash.entry(mix(hash), |other| engine(other) == hash, |other| mix(engine(other))) {
            hashbrown::hash_table::Entry::Occupied(entry) => *entry.get() == place,
            hashbrown::hash_table::Entry::Vacant(entry) => {
                entry.insert(place);
                true
            }
        }
    }

    /// Makes room for `count` more blocks in the table.
    pub(super) fn reserve(&mut self, count: usize) {
        let segments = &self.segments;
        self.by_hash.reserve(count, |place| mix(segments[place.seg as usize].engines[place.off as usize]));
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
        let node = &mut self.nodes[at.node as usize];
        let engines = &self.segments[node.seg as usize].engines;
        let first = engines[(node.start + at.off) as usize];
        let columns = match &mut node.aliases {
            None if first == hash => return,
            aliases => aliases.get_or_insert_default(),
        };
        let index = match columns.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(index) => index,
            Err(_) if first == hash => return,
            Err(index) => {
                columns.insert(index, (slot, Vec::new()));
                index
            }
        };
        let column = &mut columns[index].1;
        if column.len() <= at.off as usize {
            let from = node.start as usize + column.len();
            column.extend_from_slice(&engines[from..=(node.start + at.off) as usize]);
        }
        column[at.off as usize] = hash;
    }

    /// The child of a node that begins with a local hash.
    pub(super) fn child(&self, parent: NodeId, local: u64) -> Option<NodeId> {
        self.edges
            .find(edge_key(parent, local), |id| {
                let node = self.node(*id);
                node.parent == parent && self.segments[node.seg as usize].locals[node.start as usize] == local
            })
            .copied()
    }

    /// Blocks from `at` on that equal the beginning of `locals`.
    pub(super) fn common(&self, at: At, locals: &[u64]) -> u32 {
        common_prefix(&self.locals(at.node)[at.off as usize..], locals) as u32
    }

    /// Cuts a node before block `off` (neither 0 nor its length): the tail keeps its id, the head's is returned.
    pub(super) fn split(&mut self, id: NodeId, off: u32) -> NodeId {
        let head_id = self.free_node();
        let node = &mut self.nodes[id as usize];
        let (len, start, seg, parent) = (node.len, node.start, node.seg, node.parent);
        let mut head = Node::new(seg, start, off, parent, node.namespace());
        head.device = node.device.split_off_head(off, len);
        head.recent = node.recent.split_off_head(off, len);
        if let Some(lower) = &mut node.lower {
            let mut heads = <Box<[Holders; 3]>>::default();
            for (head, tail) in heads.iter_mut().zip(lower.iter_mut()) {
                *head = tail.split_off_head(off, len);
            }
            head.lower = Some(heads);
        }
        if let Some(columns) = &mut node.aliases {
            let mut heads = Vec::with_capacity(columns.len());
            for (slot, column) in columns.iter_mut() {
                let tail = if column.len() > off as usize { column.split_off(off as usize) } else { Vec::new() };
                heads.push((*slot, std::mem::replace(column, tail)));
            }
            columns.retain(|(_, column)| !column.is_empty());
            head.aliases = Some(Box::new(heads));
        }
        node.start += off;
        node.len -= off;
        node.parent = head_id;
        head.first_child = id;
        (head.next_sibling, head.prev_sibling) = (node.next_sibling, node.prev_sibling);
        (node.next_sibling, node.prev_sibling) = (NONE, NONE);
        self.replace_links(&head, head_id);
        let first = self.segments[seg as usize].locals[start as usize];
        let edge = self.edges.find_mut(edge_key(parent, first), |other| *other == id);
        *edge.expect("every node but the root has an edge") = head_id;
        self.nodes[head_id as usize] = head;
        self.insert_edge(id);
        let views = &mut self.segments[seg as usize].views;
        let index = views.partition_point(|(view, _)| *view < start);
        views[index].1 = head_id;
        views.insert(index + 1, (start + off, id));
        head_id
    }

    /// Appends blocks behind `parent` (a whole node's end): in place where nobody else is concerned, else as a child.
    /// Returns the position of the first one. The caller enters hashes and holders.
    pub(super) fn append(
        &mut self,
        parent: NodeId,
        blocks: (&[u64], &[u64]),
        for_slot: Slot,
        namespace: Namespace,
    ) -> At {
        let (locals, engines) = blocks;
        debug_assert!(!locals.is_empty() && locals.len() == engines.len());
        self.blocks += locals.len() as u64;
        let node = &mut self.nodes[parent as usize];
        if parent != ROOT && node.first_child == NONE && node.only(for_slot) {
            let old = node.len;
            for holders in node.rows_mut() {
                holders.grow(old);
            }
            node.len += locals.len() as u32;
            let segment = &mut self.segments[node.seg as usize];
            segment.locals.extend_from_slice(locals);
            segment.engines.extend_from_slice(engines);
            return At { node: parent, off: old };
        }
        let id = self.free_node();
        let seg = self.free_segments.pop().unwrap_or_else(|| {
            self.segments.push(Segment::default());
            self.segments.len() as u32 - 1
        });
        self.segments[seg as usize] =
            Segment { locals: locals.to_vec(), engines: engines.to_vec(), views: smallvec![(0, id)], shadowed: false };
        let mut node = Node::new(seg, 0, locals.len() as u32, parent, namespace);
        node.next_sibling = self.node(parent).first_child;
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling as usize].prev_sibling = id;
        }
        self.nodes[parent as usize].first_child = id;
        self.nodes[id as usize] = node;
        self.insert_edge(id);
        At { node: id, off: 0 }
    }

    /// Frees the end of a leaf that nobody holds or remembers, and on towards the root.
    pub(super) fn reclaim(&mut self, mut id: NodeId) {
        while id != ROOT {
            let node = self.node(id);
            if node.first_child != NONE {
                return;
            }
            let len = node.len;
            let end = node.rows().map(|holders| holders.end(len)).max().unwrap_or(0);
            if end == len {
                return;
            }
            self.cut_hashes(id, end);
            self.blocks -= u64::from(len - end);
            if end > 0 {
                self.shorten(id, end);
                return;
            }
            id = self.delete(id);
        }
    }

    /// Takes everything that an owner holds or remembers of a node and its column; returns what it had, by row.
    pub(super) fn take_owner(&mut self, id: NodeId, slot: Slot) -> [Option<super::holders::Cover>; ROWS] {
        let node = &mut self.nodes[id as usize];
        let len = node.len;
        let mut taken = [const { None }; ROWS];
        for (row, taken) in taken.iter_mut().enumerate() {
            if node.row(row).is_some_and(|holders| !holders.is_empty()) {
                *taken = node.row_mut(row).take(slot, len);
            }
        }
        taken
    }

    /// Drops the column of an owner.
    pub(super) fn drop_column(&mut self, id: NodeId, slot: Slot) {
        let node = &mut self.nodes[id as usize];
        if let Some(columns) = &mut node.aliases {
            columns.retain(|(other, _)| *other != slot);
            if columns.is_empty() {
                node.aliases = None;
            }
        }
    }

    /// Gives memory back after much was deleted.
    pub(super) fn shrink(&mut self) {
        let segments = &self.segments;
        if self.by_hash.capacity() > 4 * self.by_hash.len() + 1024 {
            let len = self.by_hash.len();
            self.by_hash.shrink_to(2 * len, |place| mix(segments[place.seg as usize].engines[place.off as usize]));
        }
    }

    fn insert_edge(&mut self, id: NodeId) {
        let (nodes, segments) = (&self.nodes, &self.segments);
        let key = |id: &NodeId| {
            let node = &nodes[*id as usize];
            edge_key(node.parent, segments[node.seg as usize].locals[node.start as usize])
        };
        self.edges.insert_unique(key(&id), id, key);
    }

    /// Points the neighbours of `node` at `id`.
    fn replace_links(&mut self, node: &Node, id: NodeId) {
        match node.prev_sibling {
            NONE => self.nodes[node.parent as usize].first_child = id,
            prev => self.nodes[prev as usize].next_sibling = id,
        }
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling as usize].prev_sibling = id;
        }
    }

    /// Takes blocks from `end` on out of the table.
    fn cut_hashes(&mut self, id: NodeId, end: u32) {
        let node = &self.nodes[id as usize];
        let engines = &self.segments[node.seg as usize].engines;
        for off in node.start + end..node.start + node.len {
            let place = Place { seg: node.seg, off };
            if let Ok(entry) = self.by_hash.find_entry(mix(engines[off as usize]), |other| *other == place) {
                entry.remove();
            }
        }
    }

    fn shorten(&mut self, id: NodeId, len: u32) {
        let node = &mut self.nodes[id as usize];
        node.len = len;
        for holders in node.rows_mut() {
            holders.shrink(len);
        }
        if let Some(columns) = &mut node.aliases {
            for (_, column) in columns.iter_mut() {
                column.truncate(len as usize);
            }
        }
        let end = (node.start + len) as usize;
        let seg = node.seg as usize;
        self.cut_segment(seg, end);
    }

    fn cut_segment(&mut self, seg: usize, end: usize) {
        let segment = &mut self.segments[seg];
        for column in [&mut segment.locals, &mut segment.engines] {
            column.truncate(end);
            if column.capacity() > 2 * end + 16 {
                column.shrink_to(end + end / 4);
            }
        }
    }

    /// Deletes a leaf; returns its parent.
    fn delete(&mut self, id: NodeId) -> NodeId {
        let dummy = Node::new(0, 0, 0, NONE, Namespace::default());
        let node = std::mem::replace(&mut self.nodes[id as usize], dummy);
        let first = self.segments[node.seg as usize].locals[node.start as usize];
        let entry = self.edges.find_entry(edge_key(node.parent, first), |other| *other == id);
        entry.expect("every node but the root has an edge").remove();
        match node.prev_sibling {
            NONE => self.nodes[node.parent as usize].first_child = node.next_sibling,
            prev => self.nodes[prev as usize].next_sibling = node.next_sibling,
        }
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling as usize].prev_sibling = node.prev_sibling;
        }
        let segment = &mut self.segments[node.seg as usize];
        segment.views.pop();
        if segment.views.is_empty() {
            *segment = Segment::default();
            self.free_segments.push(node.seg);
        } else {
            self.cut_segment(node.seg as usize, node.start as usize);
        }
        self.free_nodes.push(id);
        node.parent
    }

    fn free_node(&mut self) -> NodeId {
        self.free_nodes.pop().unwrap_or_else(|| {
            self.nodes.push(Node::new(0, 0, 0, NONE, Namespace::default()));
            self.nodes.len() as NodeId - 1
        })
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
