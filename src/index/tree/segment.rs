//! Physical storage of a run of blocks: local hashes and engine hashes in one allocation, and the nodes that are views
//! on it.

use super::NodeId;

/// Blocks of a segment at most: what a packed place can name.
pub(in crate::index) const SEGMENT_MAX: u32 = 1 << 16;

/// A run of blocks.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Local hashes in the first half, first storers' hashes in the second; as far as `len` in both.
    data: Box<[u64]>,
    len: u32,
    /// Some block's hash belongs to another block in the table.
    pub(super) shadowed: bool,
    pub(super) views: Views,
}

/// Views on a segment by start, ascending: start and node. One is the rule.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "a segment with one view, which is the rule, stays 8 bytes smaller")]
pub(super) enum Views {
    One((u32, NodeId)),
    Many(Box<Vec<(u32, NodeId)>>),
}

impl Default for Views {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

impl Segment {
    /// A segment of these blocks with one view, without room for more.
    pub(super) fn new((locals, engines): (&[u64], &[u64]), node: NodeId) -> Self {
        let data = [locals, engines].concat().into_boxed_slice();
        Self { data, len: locals.len() as u32, shadowed: false, views: Views::One((0, node)) }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn locals(&self) -> &[u64] {
        &self.data[..self.len as usize]
    }

    pub(super) fn engines(&self) -> &[u64] {
        let half = self.data.len() / 2;
        &self.data[half..half + self.len as usize]
    }

    pub(super) fn engine(&self, off: u32) -> u64 {
        self.data[self.data.len() / 2 + off as usize]
    }

    /// Adds blocks behind the last one.
    pub(super) fn push(&mut self, (locals, engines): (&[u64], &[u64])) {
        let (old, len) = (self.len as usize, self.len as usize + locals.len());
        if len > self.data.len() / 2 {
            self.resize(room(len));
        }
        let half = self.data.len() / 2;
        self.data[old..len].copy_from_slice(locals);
        self.data[half + old..half + len].copy_from_slice(engines);
        self.len = len as u32;
    }

    /// Drops blocks from `len` on.
    pub(super) fn truncate(&mut self, len: u32) {
        self.len = len;
        let (len, room) = (len as usize, room(len as usize));
        // Half of what is there is kept free, so that a tail that comes and goes costs no copies.
        if self.data.len() / 2 > room + room / 2 + 4 {
            self.resize(room.max(len));
        }
    }

    fn resize(&mut self, room: usize) {
        let len = self.len as usize;
        let mut data = vec![0; 2 * room].into_boxed_slice();
        data[..len].copy_from_slice(self.locals());
        data[room..room + len].copy_from_slice(self.engines());
        self.data = data;
    }

    /// Bytes of the blocks, with room for more.
    pub(super) fn bytes(&self) -> usize {
        self.data.len() * 8
    }
}

/// Blocks for which room is made when `len` are there: up to the next size that allocators hand out anyway, four to each
/// doubling.
pub(super) fn room(len: usize) -> usize {
    match len {
        0..=4 => len,
        _ => len.next_multiple_of(1 << ((len - 1).ilog2() - 2)),
    }
}

impl Views {
    /// Bytes that they point to.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Many(views) => size_of::<Vec<(u32, NodeId)>>() + views.capacity() * size_of::<(u32, NodeId)>(),
        }
    }

    pub(super) fn all(&self) -> &[(u32, NodeId)] {
        match self {
            Self::One(view) => std::slice::from_ref(view),
            Self::Many(views) => views,
        }
    }

    /// The view that has a block, in a segment with views.
    pub(super) fn of(&self, off: u32) -> (u32, NodeId) {
        match self {
            Self::One(view) => *view,
            Self::Many(views) => views[views.partition_point(|(start, _)| *start <= off) - 1],
        }
    }

    /// The last one.
    pub(super) fn last(&self) -> Option<(u32, NodeId)> {
        self.all().last().copied()
    }

    /// The view that begins at `start` becomes `node`.
    pub(super) fn set(&mut self, start: u32, node: NodeId) {
        match self {
            Self::One(view) => view.1 = node,
            Self::Many(views) => {
                let index = views.partition_point(|(other, _)| *other < start);
                views[index].1 = node;
            }
        }
    }

    /// Adds a view.
    pub(super) fn add(&mut self, start: u32, node: NodeId) {
        if let Self::One(view) = *self {
            *self = Self::Many(Box::new(vec![view]));
        }
        if let Self::Many(views) = self {
            let index = views.partition_point(|(other, _)| *other < start);
            views.insert(index, (start, node));
        }
    }

    /// Takes the view that begins at `start` away; true if no view is left.
    pub(super) fn remove(&mut self, start: u32) -> bool {
        let Self::Many(views) = self else {
            *self = Self::default();
            return true;
        };
        views.retain(|(other, _)| *other != start);
        match views[..] {
            [] => true,
            [only] => {
                *self = Self::One(only);
                false
            }
            _ => {
                if views.capacity() > 4 * views.len() {
                    views.shrink_to(2 * views.len());
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_views_come_and_go() {
        let mut segment = Segment::new((&[1, 2, 3], &[11, 12, 13]), 5);
        for block in 4..=100u64 {
            segment.push((&[block], &[block + 10]));
            assert_eq!(segment.locals().last().copied(), Some(block));
        }
        assert_eq!((segment.len(), segment.engine(2), segment.engines()[99]), (100, 13, 110));
        assert!(segment.bytes() <= 100 * 16 * 5 / 4, "{}", segment.bytes());
        segment.views.add(10, 6);
        segment.views.add(50, 7);
        assert_eq!([0, 9, 10, 49, 99].map(|off| segment.views.of(off).1), [5, 5, 6, 6, 7]);
        segment.views.set(10, 8);
        assert!(!segment.views.remove(50) && !segment.views.remove(0));
        assert_eq!((segment.views.all(), segment.views.last()), (&[(10, 8)][..], Some((10, 8))));
        segment.truncate(11);
        assert_eq!((segment.locals()[10], segment.engines()[10], segment.bytes() <= 20 * 16), (11, 21, true));
        assert!(segment.views.remove(10));
    }

    #[test]
    fn room_follows_the_sizes_of_allocators() {
        for (len, want) in [(0, 0), (3, 3), (5, 5), (9, 10), (16, 16), (17, 20), (512, 512), (513, 640), (4000, 4096)] {
            assert_eq!(room(len), want, "{len}");
        }
    }
}
