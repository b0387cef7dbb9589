//! The reverse of a cut: a node and its only child become one where the same owners hold both whole.
//!
//! Short stores of several owners behind one another cut a run where each of them stood for a moment; once all have
//! passed, nothing tells the pieces apart.

use super::{NONE, NodeId, ROOT, ROWS, Tree};

impl Tree {
    /// Joins a node with its parent if nothing tells them apart; the node keeps its id.
    pub(in crate::index) fn join(&mut self, id: NodeId) {
        while id != ROOT && self.is_joinable(id) {
            self.join_one(id);
        }
    }

    fn is_joinable(&self, id: NodeId) -> bool {
        let node = self.node(id);
        if node.start == 0 || node.parent == ROOT || node.prev_sibling != NONE || node.next_sibling != NONE {
            return false;
        }
        let above = self.node(node.parent);
        above.seg == node.seg
            && above.namespace == node.namespace
            && (0..ROWS).all(|row| match (above.row(row), node.row(row)) {
                (Some(above), Some(own)) => above.equals_whole(own),
                (Some(some), None) | (None, Some(some)) => some.is_empty(),
                (None, None) => true,
            })
    }

    fn join_one(&mut self, id: NodeId) {
        self.remove_edge(id);
        let above_id = self.node(id).parent;
        self.remove_edge(above_id);
        let mut above = self.nodes.remove(above_id);
        let engines = self.segments[above.seg].engines();
        let node = &mut self.nodes[id];
        // Own hashes: what is not spelled out is the first storer's.
        let mut columns = above.aliases.take().map(|columns| *columns).unwrap_or_default();
        for (slot, tail) in node.aliases.take().into_iter().flat_map(|columns| *columns) {
            let index = columns.binary_search_by_key(&slot, |(slot, _)| *slot).unwrap_or_else(|index| {
                columns.insert(index, (slot, Vec::new()));
                index
            });
            let column = &mut columns[index].1;
            column.reserve_exact(above.len as usize + tail.len() - column.len());
            column.extend_from_slice(&engines[above.start as usize + column.len()..node.start as usize]);
            column.extend_from_slice(&tail);
        }
        node.aliases = (!columns.is_empty()).then(|| Box::new(columns));
        let cut = node.start;
        node.start = above.start;
        node.len += above.len;
        node.parent = above.parent;
        (node.prev_sibling, node.next_sibling) = (above.prev_sibling, above.next_sibling);
        self.replace_links(&above, id);
        let views = &mut self.segments[above.seg].views;
        views.remove(cut);
        views.set(above.start, id);
        self.insert_edge(id);
    }
}
