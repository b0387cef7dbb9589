//! Changes of the tree's shape: nodes are cut, grown, freed.

use smallvec::smallvec;

use super::{At, NONE, Node, NodeId, Place, ROOT, ROWS, Segment, Tree, edge_key, mix};
use crate::ids::Namespace;
use crate::index::holders::{Cover, Holders, Slot};

impl Tree {
    /// Cuts a node before block `off` (neither 0 nor its length): the tail keeps its id, the head's is returned.
    pub(in crate::index) fn split(&mut self, id: NodeId, off: u32) -> NodeId {
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
    pub(in crate::index) fn append(
        &mut self,
        parent: NodeId,
        blocks: (&[u64], &[u64]),
        for_slot: Slot,
        namespace: Namespace,
    ) -> At {
        let (locals, engines) = blocks;
        debug_assert!(!locals.is_empty() && locals.len() == engines.len());
        let node = &mut self.nodes[parent as usize];
        if parent != ROOT && node.first_child == NONE && node.only(for_slot) {
            let old = node.len;
            self.blocks += locals.len() as u64;
            for holders in node.rows_mut() {
                holders.grow(old);
            }
            node.len += locals.len() as u32;
            let segment = &mut self.segments[node.seg as usize];
            segment.locals.extend_from_slice(locals);
            segment.engines.extend_from_slice(engines);
            return At { node: parent, off: old };
        }
        self.append_child(parent, blocks, namespace)
    }

    /// Appends blocks behind `parent` as a node of their own.
    pub(in crate::index) fn append_child(
        &mut self,
        parent: NodeId,
        blocks: (&[u64], &[u64]),
        namespace: Namespace,
    ) -> At {
        let (locals, engines) = blocks;
        self.blocks += locals.len() as u64;
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
    pub(in crate::index) fn drop_column(&mut self, id: NodeId, slot: Slot) {
        let node = &mut self.nodes[id as usize];
        if let Some(columns) = &mut node.aliases {
            columns.retain(|(other, _)| *other != slot);
            if columns.is_empty() {
                node.aliases = None;
            }
        }
    }

    /// Gives memory back after much was deleted.
    pub(in crate::index) fn shrink(&mut self) {
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
