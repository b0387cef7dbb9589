//! Who holds which blocks of one node: a bit per owner that holds the whole node, and a sorted list of the others.
//!
//! Pure sets over offsets `0..len` of a node. Invariant: an owner stands in `full` or in `partial`, never in both, and a
//! partial cover is neither empty nor whole.

use super::cover::Cover;

/// Dense number of an owner inside one index; reused after the owner is gone.
pub(super) type Slot = u32;

/// A growing set of slots; the first 64 need no memory of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlotSet {
    Word(u64),
    Words(Box<[u64]>),
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::Word(0)
    }
}

impl SlotSet {
    fn words(&self) -> &[u64] {
        match self {
            Self::Word(word) => std::slice::from_ref(word),
            Self::Words(words) => words,
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Self::Word(word) => std::slice::from_mut(word),
            Self::Words(words) => words,
        }
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.words().get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    pub(super) fn insert(&mut self, slot: Slot) {
        let word = slot as usize / 64;
        if word >= self.words().len() {
            let mut words = self.words().to_vec();
            words.resize(word + 1, 0);
            *self = Self::Words(words.into_boxed_slice());
        }
        self.words_mut()[word] |= 1 << (slot % 64);
    }

    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        let Some(word) = self.words_mut().get_mut(slot as usize / 64) else {
            return false;
        };
        let had = *word >> (slot % 64) & 1 != 0;
        *word &= !(1 << (slot % 64));
        had
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words().iter().all(|word| *word == 0)
    }

    /// Words of 64 slots, lowest first; missing ones are zero.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.words().get(index).copied().unwrap_or(0)
    }

    pub(super) fn word_count(&self) -> usize {
        self.words().len()
    }

    pub(super) fn set_word(&mut self, index: usize, value: u64) {
        self.words_mut()[index] = value;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.words().iter().enumerate().flat_map(|(index, word)| ones(*word).map(move |bit| index as u32 * 64 + bit))
    }

    /// True if some slot is in both.
    fn meets(&self, other: &Self) -> bool {
        self.words().iter().zip(other.words()).any(|(word, other)| word & other != 0)
    }

    /// True if both have the same slots.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let (short, long) = (self.words(), other.words());
        let (short, long) = if short.len() <= long.len() { (short, long) } else { (long, short) };
        short == &long[..short.len()] && long[short.len()..].iter().all(|word| *word == 0)
    }

    /// True if no other slot than `slot` is in the set.
    fn only(&self, slot: Slot) -> bool {
        self.words().iter().enumerate().all(|(index, word)| {
            let own = if index == slot as usize / 64 { 1 << (slot % 64) } else { 0 };
            word & !own == 0
        })
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        if let Self::Words(words) = self { words.len() * 8 } else { 0 }
    }
}

/// Positions of the set bits of a word, lowest first.
pub(super) fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros();
        word &= word - 1;
        Some(bit)
    })
}

/// What one owner holds of a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Held<'a> {
    /// Every block.
    Full,
    /// Some blocks.
    Part(&'a Cover),
    /// None.
    Nothing,
}

impl Held<'_> {
    /// End of the run of held blocks that begins at `off`, at most `limit`.
    pub(super) fn run_end(self, off: u32, limit: u32) -> u32 {
        match self {
            Held::Full => limit,
            Held::Part(cover) => cover.run_end(off).min(limit),
            Held::Nothing => off,
        }
    }

    pub(super) fn contains(self, off: u32) -> bool {
        match self {
            Held::Full => true,
            Held::Part(cover) => cover.contains(off),
            Held::Nothing => false,
        }
    }
}

/// The holders of one node on one tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Holders {
    /// Owners that hold every block.
    pub(super) full: SlotSet,
    /// Owners that hold some blocks, ascending.
    pub(super) partial: Vec<(Slot, Cover)>,
}

impl Holders {
    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty() && self.full.is_empty()
    }

    pub(super) fn of(&self, slot: Slot) -> Held<'_> {
        if self.full.contains(slot) {
            return Held::Full;
        }
        match self.position(slot) {
            Ok(index) => Held::Part(&self.partial[index].1),
            Err(_) => Held::Nothing,
        }
    }

    /// Adds `[a, b)` of a node of `len` blocks; returns how many blocks that added.
    pub(super) fn insert(&mut self, slot: Slot, (a, b): (u32, u32), len: u32) -> u32 {
        if self.full.contains(slot) {
            return 0;
        }
        if (a, b) == (0, len) {
            let had = self.position(slot).map_or(0, |index| self.drop_partial(index).count());
            self.full.insert(slot);
            return len - had;
        }
        match self.position(slot) {
            Err(index) => {
                self.add_partial(index, (slot, Cover::Span(a, b)));
                b - a
            }
            Ok(index) => {
                let cover = &mut self.partial[index].1;
                let added = cover.add(a, b);
                if *cover == Cover::Span(0, len) {
                    self.drop_partial(index);
                    self.full.insert(slot);
                }
                added
            }
        }
    }

    /// Takes one block of a node of `len` blocks; false if it was not held.
    pub(super) fn remove(&mut self, slot: Slot, off: u32, len: u32) -> bool {
        if self.full.remove(slot) {
            let mut cover = Cover::Span(0, len);
            if cover.take(off) {
                let index = self.position(slot).unwrap_or_else(|index| index);
                self.add_partial(index, (slot, cover));
            }
            return true;
        }
        let Ok(index) = self.position(slot) else {
            return false;
        };
        let cover = &mut self.partial[index].1;
        if !cover.contains(off) {
            return false;
        }
        if !cover.take(off) {
            self.drop_partial(index);
        }
        true
    }

    /// Takes everything of one owner; returns what it held of a node of `len` blocks.
    pub(super) fn take(&mut self, slot: Slot, len: u32) -> Option<Cover> {
        if self.full.remove(slot) {
            return Some(Cover::Span(0, len));
        }
        self.position(slot).ok().map(|index| self.drop_partial(index))
    }

    /// Cuts a node of `len` blocks at `at`: `self` keeps the tail, the head is returned.
    pub(super) fn split_off_head(&mut self, at: u32, len: u32) -> Self {
        let mut head = Self { full: self.full.clone(), partial: Vec::new() };
        for (slot, cover) in std::mem::take(&mut self.partial) {
            let (first, second) = cover.split(at);
            if let Some(first) = first {
                head.put(slot, first, at);
            }
            if let Some(second) = second {
                self.put(slot, second, len - at);
            }
        }
        head
    }

    /// The node grew from `old` blocks: nobody holds it whole any more.
    pub(super) fn grow(&mut self, old: u32) {
        let full = std::mem::take(&mut self.full);
        for slot in full.iter() {
            let index = self.position(slot).unwrap_or_else(|index| index);
            self.add_partial(index, (slot, Cover::Span(0, old)));
        }
    }

    /// The node shrank to `len` blocks, and nobody held what was cut.
    pub(super) fn shrink(&mut self, len: u32) {
        let whole = |cover: &Cover| *cover == Cover::Span(0, len);
        if self.partial.iter().any(|(_, cover)| whole(cover)) {
            for (slot, cover) in std::mem::take(&mut self.partial) {
                self.put(slot, cover, len);
            }
        }
    }

    /// One past the last block that anybody holds, of a node of `len` blocks.
    pub(super) fn end(&self, len: u32) -> u32 {
        if !self.full.is_empty() {
            return len;
        }
        self.partial.iter().map(|(_, cover)| cover.end()).max().unwrap_or(0)
    }

    /// One past the last block that one of `slots` holds, of a node of `len` blocks.
    pub(super) fn end_of(&self, slots: &SlotSet, len: u32) -> u32 {
        if self.full.meets(slots) {
            return len;
        }
        let partial = self.partial.iter().filter(|(slot, _)| slots.contains(*slot));
        partial.map(|(_, cover)| cover.end()).max().unwrap_or(0)
    }

    /// True if nobody but `slot` holds anything.
    pub(super) fn only(&self, slot: Slot) -> bool {
        self.full.only(slot) && self.partial.iter().all(|(other, _)| *other == slot)
    }

    /// Owners that hold the block at `off`.
    pub(super) fn at(&self, off: u32) -> impl Iterator<Item = Slot> + '_ {
        let partial = self.partial.iter().filter(move |(_, cover)| cover.contains(off)).map(|(slot, _)| *slot);
        self.full.iter().chain(partial)
    }

    fn put(&mut self, slot: Slot, cover: Cover, len: u32) {
        if cover == Cover::Span(0, len) {
            self.full.insert(slot);
        } else {
            let index = self.position(slot).unwrap_or_else(|index| index);
            self.add_partial(index, (slot, cover));
        }
    }

    /// Most nodes have no partial holder or one: there is room for no more than needed.
    fn add_partial(&mut self, index: usize, partial: (Slot, Cover)) {
        if self.partial.len() == self.partial.capacity() {
            self.partial.reserve_exact(1 + self.partial.len() / 4);
        }
        self.partial.insert(index, partial);
    }

    fn drop_partial(&mut self, index: usize) -> Cover {
        let (_, cover) = self.partial.remove(index);
        if self.partial.capacity() > 2 * self.partial.len() + 1 {
            self.partial.shrink_to(self.partial.len() + self.partial.len() / 4);
        }
        cover
    }

    /// True if every owner that holds anything holds all, and the same ones do so in `other`.
    pub(super) fn equals_whole(&self, other: &Self) -> bool {
        self.partial.is_empty() && other.partial.is_empty() && self.full.equals(&other.full)
    }

    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        let covers =
            self.partial.iter().map(|(_, cover)| if let Cover::Bits(words) = cover { words.len() * 8 } else { 0 });
        self.full.bytes() + self.partial.capacity() * size_of::<(Slot, Cover)>() + covers.sum::<usize>()
    }

    fn position(&self, slot: Slot) -> Result<usize, usize> {
        self.partial.binary_search_by_key(&slot, |(slot, _)| *slot)
    }
}
