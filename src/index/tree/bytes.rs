//! What the tree takes of memory.

use super::{Columns, Node, Tree};
use crate::ids::Namespace;
use crate::index::holders::Holders;

/// Nodes that are looked at for one account; evenly spread when there are more.
const SAMPLE: usize = 65_536;

impl Tree {
    /// Bytes allocated by the tree: blocks and tables exactly, what nodes point to from a sample when there are many.
    pub(in crate::index) fn bytes(&self) -> usize {
        let fixed = self.nodes.bytes() + self.segments.bytes() + self.edges.bytes() + self.by_hash.bytes();
        let nodes = sampled(self.nodes.len(), self.nodes.spread(SAMPLE), |id| node_bytes(&self.nodes[id]));
        let segments = sampled(self.segments.len(), self.segments.spread(SAMPLE), |id| self.segments[id].views.bytes());
        fixed + self.data_bytes + nodes + segments
    }
}

/// The sum over all, from some of them.
fn sampled(count: usize, ids: impl Iterator<Item = u32>, bytes: impl Fn(u32) -> usize) -> usize {
    let (mut looked_at, mut sum) = (0, 0);
    for id in ids {
        looked_at += 1;
        sum += bytes(id);
    }
    if looked_at == 0 { 0 } else { (sum as f64 / looked_at as f64 * count as f64) as usize }
}

/// Bytes that a node points to.
fn node_bytes(node: &Node) -> usize {
    let boxed = |holders: &Holders| size_of::<Holders>() + holders.bytes();
    let columns = node.aliases.as_ref().map_or(0, |columns| {
        let entries: usize = columns.iter().map(|(_, column)| column.capacity() * 8).sum();
        size_of::<Columns>() + columns.capacity() * size_of::<(u32, Vec<u64>)>() + entries
    });
    node.device.bytes()
        + node.recent.as_deref().map_or(0, boxed)
        + node.lower.iter().flat_map(|lower| lower.iter()).map(boxed).sum::<usize>()
        + node.namespace.as_ref().map_or(0, |_| size_of::<Namespace>())
        + columns
}
