//! Which blocks of a node one owner holds that does not hold all. A pure set over offsets.

/// Part of a node, not empty: one run of blocks in the common form, a bitmap when there are holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cover {
    /// Offsets `[0]..[1]`.
    Span(u32, u32),
    /// A bit per offset; its length is that of the last block at most.
    Bits(Box<[u64]>),
}

impl Cover {
    pub(super) fn contains(&self, off: u32) -> bool {
        match self {
            Self::Span(start, end) => (*start..*end).contains(&off),
            Self::Bits(words) => words.get(off as usize / 64).is_some_and(|word| word >> (off % 64) & 1 != 0),
        }
    }

    /// End of the run of held blocks that begins at `off`; `off` itself when that block is not held.
    pub(super) fn run_end(&self, off: u32) -> u32 {
        match self {
            Self::Span(start, end) if (*start..*end).contains(&off) => *end,
            Self::Span(..) => off,
            Self::Bits(words) => {
                let mut index = off as usize / 64;
                let mut from = off % 64;
                while let Some(word) = words.get(index) {
                    let gaps = !word >> from;
                    if gaps != 0 {
                        return index as u32 * 64 + from + gaps.trailing_zeros();
                    }
                    index += 1;
                    from = 0;
                }
                off.max(words.len() as u32 * 64)
            }
        }
    }

    pub(super) fn count(&self) -> u32 {
        match self {
            Self::Span(start, end) => end - start,
            Self::Bits(words) => words.iter().map(|word| word.count_ones()).sum(),
        }
    }

    /// One past the last held block.
    pub(super) fn end(&self) -> u32 {
        match self {
            Self::Span(_, end) => *end,
            Self::Bits(words) => words
                .iter()
                .rposition(|word| *word != 0)
                .map_or(0, |index| index as u32 * 64 + 64 - words[index].leading_zeros()),
        }
    }

    fn first(&self) -> u32 {
        match self {
            Self::Span(start, _) => *start,
            Self::Bits(words) => words
                .iter()
                .position(|word| *word != 0)
                .map_or(0, |index| index as u32 * 64 + words[index].trailing_zeros()),
        }
    }

    /// Held offsets in ascending order.
    pub(super) fn offsets(&self) -> impl Iterator<Item = u32> + '_ {
        (self.first()..self.end()).filter(|off| self.contains(*off))
    }

    /// Runs of held blocks in ascending order, as `[from, to)`.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut off = self.first();
        std::iter::from_fn(move || {
            let end = self.run_end(off);
            if end == off {
                return None;
            }
            let run = (off, end);
            off = self.next_held(end).unwrap_or(end);
            Some(run)
        })
    }

    /// The first held block from `off` on.
    fn next_held(&self, off: u32) -> Option<u32> {
        let Self::Bits(words) = self else {
            return None;
        };
        let mut index = off as usize / 64;
        let mut word = words.get(index)? >> (off % 64) << (off % 64);
        while word == 0 {
            index += 1;
            word = *words.get(index)?;
        }
        Some(index as u32 * 64 + word.trailing_zeros())
    }

    fn to_words(&self, end: u32) -> Vec<u64> {
        let count = end.max(self.end()).div_ceil(64) as usize;
        let mut words = match self {
            Self::Span(..) => Vec::with_capacity(count),
            Self::Bits(words) => words.to_vec(),
        };
        words.resize(count, 0);
        if let Self::Span(start, end) = self {
            let _all = fill(&mut words, *start, *end);
        }
        words
    }

    /// From a bitmap: none when empty, a span when it has no holes.
    fn from_words(words: Vec<u64>) -> Option<Self> {
        let mut bits = Self::Bits(words.into_boxed_slice());
        (bits.end() > 0).then(|| {
            bits.settle();
            bits
        })
    }

    /// Adds `[a, b)`; returns how many blocks that added.
    pub(super) fn add(&mut self, a: u32, b: u32) -> u32 {
        match self {
            Self::Span(start, end) if a <= *end && *start <= b => {
                let before = *end - *start;
                (*start, *end) = (a.min(*start), b.max(*end));
                *end - *start - before
            }
            Self::Bits(words) if b as usize <= words.len() * 64 => {
                let added = fill(words, a, b);
                self.settle();
                added
            }
            other => {
                let mut words = other.to_words(b);
                let added = fill(&mut words, a, b);
                *other = Self::Bits(words.into_boxed_slice());
                other.settle();
                added
            }
        }
    }

    /// Takes the block at `off`, which is held; false if it was the only one.
    pub(super) fn take(&mut self, off: u32) -> bool {
        match self {
            Self::Span(start, end) if off == *start => {
                *start += 1;
                start < end
            }
            Self::Span(_, end) if off + 1 == *end => {
                *end = off;
                true
            }
            Self::Span(..) => {
                let mut words = self.to_words(0);
                words[off as usize / 64] &= !(1 << (off % 64));
                *self = Self::Bits(words.into_boxed_slice());
                true
            }
            Self::Bits(words) => {
                words[off as usize / 64] &= !(1 << (off % 64));
                self.settle();
                true
            }
        }
    }

    /// A bitmap, which has a bit set, becomes a span if it has no holes.
    fn settle(&mut self) {
        let (first, end) = (self.first(), self.end());
        if self.run_end(first) == end {
            *self = Self::Span(first, end);
        }
    }

    /// The parts before and from `at` on, the latter counted from `at`.
    pub(super) fn split(&self, at: u32) -> (Option<Self>, Option<Self>) {
        match self {
            Self::Span(start, end) => (
                (*start < at).then(|| Self::Span(*start, (*end).min(at))),
                (*end > at).then(|| Self::Span((*start).max(at) - at, end - at)),
            ),
            Self::Bits(_) => {
                let (mut head, mut tail) = (Vec::new(), Vec::new());
                for off in self.offsets() {
                    let (words, off) = if off < at { (&mut head, off) } else { (&mut tail, off - at) };
                    if words.len() <= off as usize / 64 {
                        words.resize(off as usize / 64 + 1, 0);
                    }
                    words[off as usize / 64] |= 1 << (off % 64);
                }
                (Self::from_words(head), Self::from_words(tail))
            }
        }
    }
}

/// Sets the bits `a..b`; returns how many were not set.
fn fill(words: &mut [u64], a: u32, b: u32) -> u32 {
    let (mut off, mut added) = (a, 0);
    while off < b {
        let upto = b.min((off / 64 + 1) * 64);
        let mask = (u64::MAX >> (64 - (upto - off))) << (off % 64);
        let word = &mut words[off as usize / 64];
        added += (mask & !*word).count_ones();
        *word |= mask;
        off = upto;
    }
    added
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn mix(value: u64) -> u64 {
        crate::index::tree::mix(value) >> 7
    }

    #[test]
    fn it_is_a_set_in_its_shortest_form() {
        for round in 0..400u64 {
            let len = 1 + (mix(round) % 200) as u32;
            let start = (mix(round ^ 5) % u64::from(len)) as u32;
            let (mut cover, mut model) = (Cover::Span(start, start + 1), BTreeSet::from([start]));
            for step in 0..300u64 {
                let random = mix(round << 32 | step);
                let off = (random % u64::from(len)) as u32;
                if random >> 40 & 1 == 0 {
                    let upto = off + 1 + (random >> 41) as u32 % (len - off);
                    let before = model.len();
                    model.extend(off..upto);
                    assert_eq!(cover.add(off, upto), (model.len() - before) as u32);
                } else if cover.contains(off) && model.len() > 1 {
                    model.remove(&off);
                    assert!(cover.take(off));
                }
                assert!(cover.offsets().eq(model.iter().copied()), "{round} {step} {cover:?}");
                assert_eq!(cover.count() as usize, model.len());
                let whole = model.last().unwrap() - model.first().unwrap() + 1 == model.len() as u32;
                assert_eq!(matches!(cover, Cover::Span(..)), whole, "{cover:?}");
            }
            while let Some(off) = model.pop_first() {
                assert_eq!(cover.take(off), !model.is_empty());
            }
        }
    }
}
