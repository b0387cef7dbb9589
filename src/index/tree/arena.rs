//! Numbered values in chunks: a number stays valid while its value lives, growing moves no value of another chunk, and a
//! chunk without values goes back to the allocator, wherever it lies.
//!
//! The lowest free number is given out first, so that the upper chunks run empty when there is less to keep.

use std::ops::{Index, IndexMut};

/// Values per chunk: small enough to become empty, large enough that its pointer is nothing beside it.
const CHUNK: usize = 256;
const WORDS: usize = CHUNK / 64;

/// Values by number.
#[derive(Debug, Default)]
pub(super) struct Arena<T> {
    /// Values of a chunk as far as they were ever used; empty when none is in use.
    chunks: Vec<Vec<T>>,
    /// A bit per number in use.
    used: Vec<[u64; WORDS]>,
    /// A bit per chunk that has a free number.
    open: Vec<u64>,
    len: usize,
}

impl<T: Default> Arena<T> {
    /// Values in use.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// One past the largest number ever in use among the chunks that exist.
    pub(super) fn end(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// Numbers in use, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.used.iter().enumerate().flat_map(|(chunk, words)| {
            words.iter().enumerate().flat_map(move |(word, bits)| {
                crate::index::holders::ones(*bits).map(move |bit| (chunk * CHUNK + word * 64) as u32 + bit)
            })
        })
    }

    /// True if a value has this number.
    pub(super) fn contains(&self, id: u32) -> bool {
        let at = id as usize % CHUNK;
        self.used.get(id as usize / CHUNK).is_some_and(|used| used[at / 64] >> (at % 64) & 1 != 0)
    }

    /// At most `max` numbers in use, evenly spread; all of them if the arena has no more than that.
    pub(super) fn spread(&self, max: usize) -> impl Iterator<Item = u32> + '_ {
        (0..self.end()).step_by((self.end() as usize).div_ceil(max).max(1)).filter(|id| self.contains(*id))
    }

    /// Puts a value under the lowest free number.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let chunk = match self.open.iter().position(|bits| *bits != 0) {
            Some(word) => word * 64 + self.open[word].trailing_zeros() as usize,
            None => self.add_chunk(),
        };
        let used = &mut self.used[chunk];
        let word = used.iter().position(|bits| *bits != u64::MAX).expect("an open chunk has a free number");
        let bit = (!used[word]).trailing_zeros() as usize;
        used[word] |= 1 << bit;
        if used.iter().all(|bits| *bits == u64::MAX) {
            self.open[chunk / 64] &= !(1 << (chunk % 64));
        }
        let at = word * 64 + bit;
        let values = &mut self.chunks[chunk];
        if values.len() <= at {
            values.resize_with(at, T::default);
            values.push(value);
        } else {
            values[at] = value;
        }
        self.len += 1;
        (chunk * CHUNK + at) as u32
    }

    /// Takes a value out; its number is free.
    pub(super) fn remove(&mut self, id: u32) -> T {
        let (chunk, at) = (id as usize / CHUNK, id as usize % CHUNK);
        let value = std::mem::take(&mut self.chunks[chunk][at]);
        self.used[chunk][at / 64] &= !(1 << (at % 64));
        self.open[chunk / 64] |= 1 << (chunk % 64);
        self.len -= 1;
        if self.used[chunk] == [0; WORDS] {
            self.chunks[chunk] = Vec::new();
            self.drop_end();
        }
        value
    }

    /// Bytes allocated, without what values point to.
    pub(super) fn bytes(&self) -> usize {
        let values: usize = self.chunks.iter().map(Vec::capacity).sum();
        values * size_of::<T>()
            + self.chunks.capacity() * size_of::<Vec<T>>()
            + self.used.capacity() * size_of::<[u64; WORDS]>()
            + self.open.capacity() * 8
    }

    fn add_chunk(&mut self) -> usize {
        let chunk = self.chunks.len();
        self.chunks.push(Vec::new());
        self.used.push([0; WORDS]);
        if self.open.len() <= chunk / 64 {
            self.open.push(0);
        }
        self.open[chunk / 64] |= 1 << (chunk % 64);
        chunk
    }

    /// Forgets empty chunks at the end.
    fn drop_end(&mut self) {
        while self.used.last() == Some(&[0; WORDS]) {
            self.chunks.pop();
            self.used.pop();
            let chunk = self.chunks.len();
            self.open[chunk / 64] &= !(1 << (chunk % 64));
            self.open.truncate(chunk.div_ceil(64));
        }
    }
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given_out_and_empty_chunks_go() {
        let mut arena = Arena::<u64>::default();
        let ids: Vec<u32> = (0..1000).map(|value| arena.insert(value)).collect();
        assert_eq!(ids, (0..1000).collect::<Vec<_>>());
        assert_eq!((arena.remove(300), arena.remove(7)), (300, 7));
        assert_eq!((arena.insert(1), arena.insert(2), arena.insert(3)), (7, 300, 1000));
        assert_eq!((arena[7], arena[300], arena[999]), (1, 2, 999));
        let full = arena.bytes();
        for id in 256..512 {
            arena.remove(id);
        }
        assert!(arena.bytes() + 256 * 8 <= full, "a chunk in the middle goes back");
        assert_eq!(arena.ids().count(), arena.len());
        let left: Vec<u32> = arena.ids().filter(|id| *id != 0).collect();
        for id in left {
            arena.remove(id);
        }
        assert_eq!((arena.end(), arena.len(), arena[0]), (256, 1, 0));
        assert_eq!(arena.insert(5), 1);
    }
}
