//! Blocks of an image into the tree: along what is there, and on with new nodes.

use super::super::tree::{At, Place, ROOT, Tree};
use crate::image::{BlockNumber, Image, ImageRun};

/// Where the blocks of an image stand in the tree.
#[derive(Debug)]
pub(super) struct Content {
    pieces: Vec<Piece>,
}

/// Blocks in a row of one run that lie in a row in one segment.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Number of the first one.
    from: BlockNumber,
    /// One past the number of the last one.
    to: BlockNumber,
    place: Place,
    /// The block before the first one; none at the root.
    before: Option<BlockNumber>,
    /// The tree has the image's hashes as those of the first storer.
    same: bool,
}

/// A part of one piece, in one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Number of the first block.
    pub(super) from: BlockNumber,
    /// Number of blocks.
    pub(super) len: u32,
    /// Where the first one is.
    pub(super) at: At,
    /// The block before it.
    pub(super) before: Option<BlockNumber>,
    /// See [`Piece::same`].
    pub(super) same: bool,
}

impl Content {
    /// Enters all blocks of a checked image. Nobody holds those that are new: the caller sees to it.
    pub(super) fn enter(tree: &mut Tree, image: &Image) -> Self {
        let mut content = Self { pieces: Vec::with_capacity(image.runs.len()) };
        let mut start = 0;
        for run in &image.runs {
            content.run(tree, image, start, run);
            start += run.len;
        }
        content
    }

    fn run(&mut self, tree: &mut Tree, image: &Image, start: BlockNumber, run: &ImageRun) {
        let end = start + run.len;
        let mut at = match run.parent {
            None => At { node: ROOT, off: 0 },
            Some(parent) => {
                let at = tree.at(self.place(parent));
                At { off: at.off + 1, ..at }
            }
        };
        let mut from = start;
        while from < end {
            let (locals, engines) =
                (&image.locals[from as usize..end as usize], &image.engines[from as usize..end as usize]);
            let before = if from > start { Some(from - 1) } else { run.parent };
            let len = tree.node(at.node).len;
            let same = if at.off < len { tree.common(at, locals) } else { 0 };
            if same > 0 {
                let first = &tree.engines(at.node)[at.off as usize..(at.off + same) as usize];
                let equal = *first == engines[..same as usize];
                self.pieces.push(Piece { from, to: from + same, place: tree.place(at), before, same: equal });
                from += same;
                at.off += same;
                continue;
            }
            if at.off == len
                && let Some(child) = tree.child(at.node, locals[0])
            {
                at = At { node: child, off: 0 };
                continue;
            }
            if at.off < len && at.node != ROOT {
                at.node = tree.split(at.node, at.off);
            }
            let count;
            (at, count) = tree.append_child(at.node, (locals, engines), run.namespace);
            tree.enter_hashes(at, count);
            self.pieces.push(Piece { from, to: from + count, place: tree.place(at), before, same: true });
            from += count;
            at.off = count;
        }
    }

    /// Place of a block.
    pub(super) fn place(&self, number: BlockNumber) -> Place {
        let piece = &self.pieces[self.pieces.partition_point(|piece| piece.to <= number)];
        Place { off: piece.place.off + (number - piece.from), ..piece.place }
    }

    /// The blocks of a range, node by node.
    pub(super) fn spans(&self, tree: &Tree, (from, to): (BlockNumber, BlockNumber)) -> Vec<Span> {
        let first = self.pieces.partition_point(|piece| piece.to <= from);
        let mut spans = Vec::new();
        for piece in self.pieces[first..].iter().take_while(|piece| piece.from < to) {
            let mut number = piece.from.max(from);
            let end = piece.to.min(to);
            while number < end {
                let at = tree.at(Place { off: piece.place.off + (number - piece.from), ..piece.place });
                let len = (tree.node(at.node).len - at.off).min(end - number);
                let before = if number > piece.from { Some(number - 1) } else { piece.before };
                spans.push(Span { from: number, len, at, before, same: piece.same });
                number += len;
            }
        }
        spans
    }
}
