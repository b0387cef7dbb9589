//! A hash table for small numbers that is always about three quarters full, and of which one small part grows at a time.
//!
//! A table that doubles is half empty right after it, and moves all its entries in one pause, each with a look at the
//! block that it names to learn its hash. Here an entry is one word: 20 bits of the hash beside the number. Entries stand
//! in the order of these bits, as near as possible to where they would stand if all were spread evenly (ordered linear
//! probing). So a part grows by a sixth with one pass over its words, and a look-up reads one cache line, seldom two, and
//! compares 20 bits before it asks the caller.
//!
//! The words of a part lie in chunks of one size, which stay where they are when it grows: parts that are moved to
//! ever larger allocations leave the allocator with as much room as they take that fits nothing else (measured).

use super::segment::room;

/// Bits of the hash in an entry.
const TAG_BITS: u32 = 20;
/// Bits of the number.
const VALUE_BITS: u32 = 64 - TAG_BITS;
/// No number has all bits set.
const EMPTY: u64 = u64::MAX;
/// Words of a part below which it does not shrink.
const SHRINK_MIN: usize = 32;
/// Words of a chunk.
const CHUNK: usize = 256;
/// Slots at the end of a part for entries whose homes are taken; a small part has as many as homes.
const SPARE: usize = 32;
/// Bits of the number in a slot.
const VALUE: u64 = EMPTY >> TAG_BITS;

/// A set of numbers below 2^44 - 1; the caller knows their hashes, which must be mixed well.
#[derive(Debug)]
pub(in crate::index) struct Table {
    parts: Box<[Part]>,
    len: usize,
    /// Room for the entries of a part that changes its size.
    scratch: Vec<u64>,
}

#[derive(Debug, Default)]
struct Part {
    /// One chunk of any length up to [`CHUNK`], or several whole ones.
    chunks: Vec<Box<[u64]>>,
    slots: u32,
    /// All but some slots at the end.
    homes: u32,
    len: u32,
}

impl Table {
    /// An empty table of so many parts, a power of two below 2^16: with ten million entries in 512 parts a part has
    /// 20,000, and growing it takes some 50 us.
    pub(in crate::index) fn new(parts: usize) -> Self {
        debug_assert!(parts.is_power_of_two() && parts < 1 << 16);
        Self { parts: (0..parts).map(|_| Part::default()).collect(), len: 0, scratch: Vec::new() }
    }

    pub(in crate::index) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Low bits choose the part, the highest ones the place in it.
    fn part(&self, hash: u64) -> usize {
        hash as usize & (self.parts.len() - 1)
    }

    /// The number with this hash that is the right one.
    pub(in crate::index) fn find(&self, hash: u64, is: impl FnMut(u64) -> bool) -> Option<u64> {
        let part = &self.parts[self.part(hash)];
        part.position(hash, is).map(|at| part.at(at) & VALUE)
    }

    /// Asks for the memory that look-ups of these hashes need, all at once: one after the other they would wait for it.
    pub(in crate::index) fn touch(&self, hashes: impl Iterator<Item = u64>) {
        let words = hashes.map(|hash| {
            let part = &self.parts[self.part(hash)];
            let home = part.home(tag_of(hash));
            part.chunks.get(home / CHUNK).and_then(|chunk| chunk.get(home % CHUNK)).copied().unwrap_or(0)
        });
        std::hint::black_box(words.fold(0, |all, word| all ^ word));
    }

    /// Adds a number without looking for an equal one.
    pub(in crate::index) fn insert(&mut self, hash: u64, value: u64) {
        debug_assert!(value < VALUE);
        let index = self.part(hash);
        self.parts[index].insert(tag_of(hash) << VALUE_BITS | value, &mut self.scratch);
        self.len += 1;
    }

    /// Adds a number unless there is one with this hash that is the right one: that one is returned then.
    pub(in crate::index) fn find_or_insert(
        &mut self,
        hash: u64,
        value: u64,
        is: impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        debug_assert!(value < VALUE);
        let index = self.part(hash);
        let found = self.parts[index].find_or_insert(tag_of(hash) << VALUE_BITS | value, is, &mut self.scratch);
        self.len += usize::from(found.is_none());
        found
    }

    /// Puts another number in the place of one with the same hash; false if the old one is not there.
    pub(in crate::index) fn replace(&mut self, hash: u64, old: u64, new: u64) -> bool {
        let index = self.part(hash);
        let part = &mut self.parts[index];
        let Some(at) = part.position(hash, |value| value == old) else {
            return false;
        };
        part.set(at, tag_of(hash) << VALUE_BITS | new);
        true
    }

    /// Takes the number out that is the right one.
    pub(in crate::index) fn remove(&mut self, hash: u64, is: impl FnMut(u64) -> bool) -> Option<u64> {
        let index = self.part(hash);
        let part = &mut self.parts[index];
        let at = part.position(hash, is)?;
        let value = part.at(at) & VALUE;
        part.take(at, &mut self.scratch);
        self.len -= 1;
        Some(value)
    }

    /// Bytes allocated.
    pub(in crate::index) fn bytes(&self) -> usize {
        let part = |part: &Part| {
            size_of::<Part>() + part.slots as usize * 8 + part.chunks.capacity() * size_of::<Box<[u64]>>()
        };
        self.parts.iter().map(part).sum::<usize>() + self.scratch.capacity() * 8
    }
}

/// The largest one is left out, so that an empty slot is larger than any entry.
fn tag_of(hash: u64) -> u64 {
    (hash >> VALUE_BITS).min((EMPTY >> VALUE_BITS) - 1)
}

impl Part {
    fn at(&self, at: usize) -> u64 {
        self.chunks[at / CHUNK][at % CHUNK]
    }

    fn set(&mut self, at: usize, slot: u64) {
        self.chunks[at / CHUNK][at % CHUNK] = slot;
    }

    /// Where an entry with this tag begins to be looked for. The last slots are nobody's home: there is no way round the
    /// end, so that entries stand in order.
    fn home(&self, tag: u64) -> usize {
        ((tag * u64::from(self.homes)) >> TAG_BITS) as usize
    }

    /// The first slot from `at` on that is as asked.
    fn first(&self, at: usize, mut is: impl FnMut(u64) -> bool) -> Option<usize> {
        let mut from = at % CHUNK;
        for (index, chunk) in self.chunks.iter().enumerate().skip(at / CHUNK) {
            if let Some(off) = chunk[from..].iter().position(|slot| is(*slot)) {
                return Some(index * CHUNK + from + off);
            }
            from = 0;
        }
        None
    }

    fn position(&self, hash: u64, is: impl FnMut(u64) -> bool) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        match self.search(tag_of(hash), is) {
            (Some(at), true) => Some(at),
            _ => None,
        }
    }

    /// The slot of the right entry with this tag, and true; else the first one behind all entries with it, if any, which
    /// is where another one belongs.
    fn search(&self, tag: u64, mut is: impl FnMut(u64) -> bool) -> (Option<usize>, bool) {
        let limit = tag << VALUE_BITS | VALUE;
        let at = self.first(self.home(tag), |slot| slot > limit || (slot >> VALUE_BITS == tag && is(slot & VALUE)));
        (at, at.is_some_and(|at| self.at(at) <= limit))
    }

    fn find_or_insert(&mut self, slot: u64, is: impl FnMut(u64) -> bool, scratch: &mut Vec<u64>) -> Option<u64> {
        let place = match self.search(slot >> VALUE_BITS, is) {
            (Some(at), true) => return Some(self.at(at) & VALUE),
            (place, _) => place,
        };
        if self.is_crowded() || !place.is_some_and(|at| self.put(at, slot)) {
            self.insert(slot, scratch);
        }
        None
    }

    /// True if it grows before it takes another entry.
    fn is_crowded(&self) -> bool {
        self.homes * 4 < (self.len + 1) * 5
    }

    /// Puts an entry where it belongs; false if no slot behind it is free.
    fn put(&mut self, at: usize, slot: u64) -> bool {
        let Some(free) = self.first(at, |other| other == EMPTY) else {
            return false;
        };
        self.shift_right(at, free);
        self.set(at, slot);
        self.len += 1;
        true
    }

    fn insert(&mut self, slot: u64, scratch: &mut Vec<u64>) {
        if self.is_crowded() {
            self.resize((self.len as usize + 1) * 5 / 4 + 1, SPARE, scratch);
        }
        loop {
            let at = self.first(self.home(slot >> VALUE_BITS), |other| other > slot | VALUE);
            if at.is_some_and(|at| self.put(at, slot)) {
                return;
            }
            // Hashes that are not spread at all: more room at the end, which helps in any case.
            let spare = (self.slots - self.homes) as usize;
            self.resize(self.homes as usize, 2 * spare, scratch);
        }
    }

    /// Moves the slots `at..free` one on.
    fn shift_right(&mut self, at: usize, free: usize) {
        let mut end = free;
        while end > at {
            let from = at.max(end / CHUNK * CHUNK);
            if from == end {
                // Over the edge of a chunk.
                self.set(end, self.at(end - 1));
                end -= 1;
            } else {
                let chunk = &mut self.chunks[end / CHUNK];
                chunk.copy_within(from % CHUNK..end % CHUNK, from % CHUNK + 1);
                end = from;
            }
        }
    }

    /// Homes for at least so many entries and some more, and slots behind them.
    fn resize(&mut self, homes: usize, spare: usize, scratch: &mut Vec<u64>) {
        scratch.clear();
        scratch.extend(self.chunks.iter().flat_map(|chunk| chunk.iter()).filter(|slot| **slot != EMPTY));
        let homes = homes + homes / 6;
        let mut spare = if spare > SPARE { spare } else { SPARE.min(homes) };
        while !self.lay_out(homes, spare, scratch) {
            spare *= 2;
        }
    }

    /// Puts entries, which are in order, into so many slots at least; false if the last ones do not suffice.
    fn lay_out(&mut self, homes: usize, spare: usize, entries: &[u64]) -> bool {
        let slots = homes + spare;
        let (count, len) = if slots <= CHUNK { (1, room(slots)) } else { (slots.div_ceil(CHUNK), CHUNK) };
        if count == 1 || self.chunks.len() == 1 {
            self.chunks.clear();
        }
        self.chunks.truncate(count);
        self.chunks.iter_mut().for_each(|chunk| chunk.fill(EMPTY));
        self.chunks.reserve_exact(count - self.chunks.len());
        self.chunks.resize_with(count, || vec![EMPTY; len].into_boxed_slice());
        (self.slots, self.homes) = ((count * len) as u32, (count * len - spare) as u32);
        let mut next = 0;
        for slot in entries {
            let at = self.home(slot >> VALUE_BITS).max(next);
            if at >= self.slots as usize {
                return false;
            }
            self.set(at, *slot);
            next = at + 1;
        }
        true
    }

    /// Takes an entry out and closes the gap, so that no search ends too early.
    fn take(&mut self, at: usize, scratch: &mut Vec<u64>) {
        let mut gap = at;
        while gap + 1 < self.slots as usize {
            let slot = self.at(gap + 1);
            if slot == EMPTY || self.home(slot >> VALUE_BITS) == gap + 1 {
                break;
            }
            self.set(gap, slot);
            gap += 1;
        }
        self.set(gap, EMPTY);
        self.len -= 1;
        if self.slots as usize > SHRINK_MIN && self.slots > 3 * self.len {
            self.resize(self.len as usize * 3 / 2 + 2, SPARE, scratch);
            *scratch = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustc_hash::FxHashMap;

    use super::*;

    fn mix(value: u64) -> u64 {
        crate::index::tree::mix(value)
    }

    #[test]
    fn it_is_a_map_whatever_comes_and_goes() {
        // Several keys of one hash, and many hashes that crowd at the end of a part.
        let hash_of = |key: u64| mix(key % 1_500) | if key.is_multiple_of(5) { 0xFFF << 52 } else { 0 };
        let mut table = Table::new(4);
        let mut model = FxHashMap::default();
        for step in 0..60_000u64 {
            let key = mix(step ^ 77) % 3_000;
            let hash = hash_of(key);
            if mix(step) % 100 < if step % 20_000 < 10_000 { 70 } else { 20 } {
                let known = model.insert(key, hash).is_some();
                if step.is_multiple_of(2) {
                    let found = table.find_or_insert(hash, key, |other| other == key);
                    assert_eq!(found.is_some(), known);
                } else if !known {
                    table.insert(hash, key);
                }
            } else {
                assert_eq!(table.remove(hash, |other| other == key), model.remove(&key).map(|_| key));
            }
            assert_eq!(table.is_empty(), model.is_empty());
            let asked = mix(step ^ 99) % 3_000;
            let found = table.find(hash_of(asked), |other| other == asked);
            assert_eq!(found.is_some(), model.contains_key(&asked), "{step}");
        }
        let filled = |part: &Part| part.chunks.iter().flatten().filter(|slot| **slot != EMPTY).count();
        assert!(table.parts.iter().all(|part| filled(part) == part.len as usize));
        for (key, hash) in model {
            assert!(table.replace(hash, key, key + 10_000) && !table.replace(hash, key, 1));
            assert_eq!(table.remove(hash, |other| other == key + 10_000), Some(key + 10_000));
        }
        assert!(table.is_empty() && table.bytes() <= 4 * (size_of::<Part>() + 16 + 16 * SHRINK_MIN));
    }

    #[test]
    fn it_takes_some_ten_bytes_per_number_at_any_size_and_gives_them_back() {
        let mut table = Table::new(16);
        for value in 0..200_000u64 {
            table.insert(mix(value), value);
            if value > 5_000 && value % 1_000 == 0 {
                let bytes = table.bytes() as f64 / value as f64;
                assert!((9.6..if value < 100_000 { 19.0 } else { 13.0 }).contains(&bytes), "{value}: {bytes}");
            }
        }
        assert!((0..200_000).all(|value| table.find(mix(value), |other| other == value) == Some(value)));
        for value in 1_000..200_000 {
            assert_eq!(table.remove(mix(value), |other| other == value), Some(value));
        }
        assert!(table.bytes() < 50_000, "{}", table.bytes());
        assert!((0..1_000).all(|value| table.find(mix(value), |other| other == value) == Some(value)));
    }
}
