//! Changes of the tree's shape: nodes are cut, grown, freed.

use super::{At, NONE, Node, NodeId, Place, ROOT, ROWS, SEGMENT_MAX, Segment, Tree, edge_key, edge_of, mix};
use crate::ids::Namespace;
use crate::index::cover::Cover;
use crate::index::holders::{Holders, Slot};

impl Tree {
    /// Cuts a node before block `off` (neither 0 nor its length): the tail keeps its id, the head's is returned.
    pub(in crate::index) fn split(&mut self, id: NodeId, off: u32) -> NodeId {
        let head_id = self.nodes.insert(Node::default());
        let node = &mut self.nodes[id];
        let (len, start, seg, parent) = (node.len, node.start, node.seg, node.parent);
        let mut head = Node::new(seg, start, off, parent, node.namespace());
        head.device = node.device.split_off_head(off, len);
        head.recent = node.recent.as_mut().map(|recent| Box::new(recent.split_off_head(off, len)));
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
                let mut head = std::mem::replace(column, tail);
                head.shrink_to_fit();
                heads.push((*slot, head));
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
        [&mut head, node].into_iter().for_each(Node::drop_empty);
        self.replace_links(&head, head_id);
        let first = self.segments[seg].locals()[start as usize];
        let had = self.edges.replace(edge_key(parent, first), u64::from(id), u64::from(head_id));
        debug_assert!(had, "every node but the root has an edge");
        self.nodes[head_id] = head;
        self.insert_edge(id);
        let views = &mut self.segments[seg].views;
        views.set(start, head_id);
        views.add(start + off, id);
        head_id
    }

    /// Appends blocks behind `parent` (a whole node's end): in place where nobody else is concerned, else as a child.
    /// Returns the position of the first one and how many were appended, for a segment takes no more than
    /// [`SEGMENT_MAX`]. The caller enters hashes and holders.
    pub(in crate::index) fn append(
        &mut self,
        parent: NodeId,
        blocks: (&[u64], &[u64]),
        for_slot: Slot,
        namespace: Namespace,
    ) -> (At, u32) {
        let node = &mut self.nodes[parent];
        if parent != ROOT && node.first_child == NONE && node.only(for_slot) {
            let segment = &mut self.segments[node.seg];
            let count = blocks.0.len().min((SEGMENT_MAX - segment.len()) as usize);
            if count > 0 {
                let old = node.len;
                self.blocks += count as u64;
                for holders in node.rows_mut() {
                    holders.grow(old);
                }
                node.len += count as u32;
                let before = segment.bytes();
                segment.push((&blocks.0[..count], &blocks.1[..count]));
                self.data_bytes += segment.bytes() - before;
                return (At { node: parent, off: old }, count as u32);
            }
        }
        self.append_child(parent, blocks, namespace)
    }

    /// Appends blocks behind `parent` as a node of their own: in its segment where that ends with it, so that both can
    /// become one again.
    pub(in crate::index) fn append_child(
        &mut self,
        parent: NodeId,
        blocks: (&[u64], &[u64]),
        namespace: Namespace,
    ) -> (At, u32) {
        debug_assert!(!blocks.0.is_empty() && blocks.0.len() == blocks.1.len());
        let count = blocks.0.len().min(SEGMENT_MAX as usize);
        let blocks = (&blocks.0[..count], &blocks.1[..count]);
        self.blocks += count as u64;
        let id = self.nodes.insert(Node::default());
        let above = &self.nodes[parent];
        let shared = parent != ROOT
            && self.segments[above.seg].views.last() == Some((above.start, parent))
            && self.segments[above.seg].len() as usize + count <= SEGMENT_MAX as usize;
        let (seg, start) = if shared {
            let segment = &mut self.segments[above.seg];
            let (start, before) = (segment.len(), segment.bytes());
            segment.push(blocks);
            self.data_bytes += segment.bytes() - before;
            segment.views.add(start, id);
            (above.seg, start)
        } else {
            let segment = Segment::new(blocks, id);
            self.data_bytes += segment.bytes();
            (self.segments.insert(segment), 0)
        };
        let mut node = Node::new(seg, start, count as u32, parent, namespace);
        node.next_sibling = self.node(parent).first_child;
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling].prev_sibling = id;
        }
        self.nodes[parent].first_child = id;
        self.nodes[id] = node;
        self.insert_edge(id);
        (At { node: id, off: 0 }, count as u32)
    }

    /// Frees the end of a leaf that nobody holds or remembers, and on towards the root.
    pub(in crate::index) fn reclaim(&mut self, mut id: NodeId) {
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
    pub(in crate::index) fn take_owner(&mut self, id: NodeId, slot: Slot) -> [Option<Cover>; ROWS] {
        let node = &mut self.nodes[id];
        let len = node.len;
        let mut taken = [const { None }; ROWS];
        for (row, taken) in taken.iter_mut().enumerate() {
            if node.row(row).is_some_and(|holders| !holders.is_empty()) {
                *taken = node.row_mut(row).take(slot, len);
            }
        }
        node.drop_empty();
        taken
    }

    /// Drops the column of an owner.
    pub(in crate::index) fn drop_column(&mut self, id: NodeId, slot: Slot) {
        let node = &mut self.nodes[id];
        if let Some(columns) = &mut node.aliases {
            columns.retain(|(other, _)| *other != slot);
            if columns.is_empty() {
                node.aliases = None;
            }
        }
    }

    pub(super) fn insert_edge(&mut self, id: NodeId) {
        self.edges.insert(edge_of(&self.nodes, &self.segments, id), u64::from(id));
    }

    /// Takes the edge of a node away, which must have the parent and the first block that it had when it was entered.
    pub(super) fn remove_edge(&mut self, id: NodeId) {
        let edge = edge_of(&self.nodes, &self.segments, id);
        let had = self.edges.remove(edge, |other| other == u64::from(id));
        debug_assert!(had.is_some(), "every node but the root has an edge");
    }

    /// Points the neighbours of `node` at `id`.
    pub(super) fn replace_links(&mut self, node: &Node, id: NodeId) {
        match node.prev_sibling {
            NONE => self.nodes[node.parent].first_child = id,
            prev => self.nodes[prev].next_sibling = id,
        }
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling].prev_sibling = id;
        }
    }

    /// Takes blocks from `end` on out of the table.
    fn cut_hashes(&mut self, id: NodeId, end: u32) {
        let node = &self.nodes[id];
        let segment = &self.segments[node.seg];
        self.by_hash.touch((node.start + end..node.start + node.len).map(|off| mix(segment.engine(off))));
        for off in node.start + end..node.start + node.len {
            let place = Place { seg: node.seg, off }.pack();
            self.by_hash.remove(mix(segment.engine(off)), |other| other == place);
        }
    }

    fn shorten(&mut self, id: NodeId, len: u32) {
        let node = &mut self.nodes[id];
        node.len = len;
        for holders in node.rows_mut() {
            holders.shrink(len);
        }
        if let Some(columns) = &mut node.aliases {
            for (_, column) in columns.iter_mut() {
                column.truncate(len as usize);
                if column.capacity() > 2 * column.len() + 4 {
                    column.shrink_to_fit();
                }
            }
        }
        let (seg, len) = (node.seg, node.start + len);
        self.cut_segment(seg, len);
    }

    /// Deletes a leaf; returns its parent.
    fn delete(&mut self, id: NodeId) -> NodeId {
        self.remove_edge(id);
        let node = self.nodes.remove(id);
        match node.prev_sibling {
            NONE => self.nodes[node.parent].first_child = node.next_sibling,
            prev => self.nodes[prev].next_sibling = node.next_sibling,
        }
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling].prev_sibling = node.prev_sibling;
        }
        if self.segments[node.seg].views.remove(node.start) {
            self.data_bytes -= self.segments.remove(node.seg).bytes();
        } else {
            self.cut_segment(node.seg, node.start);
        }
        node.parent
    }

    fn cut_segment(&mut self, seg: u32, len: u32) {
        let segment = &mut self.segments[seg];
        self.data_bytes -= segment.bytes();
        segment.truncate(len);
        self.data_bytes += segment.bytes();
    }
}
