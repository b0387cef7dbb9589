//! What a query gives: shared names of the owners beside a few numbers of each, so that an answer costs by what matched.

use std::sync::Arc;

use smallvec::SmallVec;

use super::holders::Slot;
#[cfg(doc)]
use super::index::PrefixIndex;
use crate::ids::Owner;
use crate::trust::Trust;

/// Blocks on the device by slot.
pub(super) type Prefixes = SmallVec<[u32; 64]>;

/// What answers need of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) owner: Owner,
    pub(super) slot: Slot,
    pub(super) registered: bool,
    pub(super) worker: bool,
    /// The set walk alone answers: no lower tiers, no walk block by block.
    pub(super) plain: bool,
    pub(super) trust: Trust,
}

/// Prefixes of one owner, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) device: u32,
    pub(super) host_pinned: u32,
    pub(super) disk: u32,
    pub(super) own: [u32; 3],
}

impl Prefix {
    /// Of an owner that has blocks on the device only.
    pub(super) fn of_device(device: u32) -> Self {
        Self { device, host_pinned: device, disk: device, own: [device, 0, 0] }
    }
}

/// Answer of [`PrefixIndex::find`]. It keeps no lock: names and trust are those of the moment of the query.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// All owners of the index in order, shared with it.
    rows: Arc<Vec<Row>>,
    device: Prefixes,
    /// Rows that have more than a device prefix, by their position in `rows`, ascending.
    apart: Vec<(u32, Prefix)>,
    /// How many owners' device prefixes cover each block.
    pub frequencies: Frequencies,
}

/// One row of an answer, in blocks, cumulative: `device <= host_pinned <= disk`; `disk` includes the external tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerAnswer<'a> {
    /// Whose row this is.
    pub owner: &'a Owner,
    /// Registered, not only named by batches.
    pub registered: bool,
    /// Prefix on the device.
    pub device: u32,
    /// The device prefix and how host memory goes on from it.
    pub host_pinned: u32,
    /// The host prefix and how disk, then external storage go on from it.
    pub disk: u32,
    /// Not cumulative: the owner's own prefix from the root on one tier alone, as Mooncake counts (device, host, disk+external).
    pub own_prefix: [u32; 3],
    /// How far the row can be believed.
    pub trust: Trust,
}

impl Answer {
    pub(super) fn new(
        rows: &Arc<Vec<Row>>,
        device: Prefixes,
        apart: Vec<(u32, Prefix)>,
        frequencies: Frequencies,
    ) -> Self {
        Self { rows: Arc::clone(rows), device, apart, frequencies }
    }

    /// Every registered worker (zeros included) and every other worker that matched, in order of owner.
    pub fn owners(&self) -> impl Iterator<Item = OwnerAnswer<'_>> + Clone {
        let mut apart = &self.apart[..];
        (0u32..).zip(self.rows.iter()).filter_map(move |(position, row)| {
            let prefix = match apart {
                [(own, prefix), rest @ ..] if *own == position => {
                    apart = rest;
                    *prefix
                }
                _ => Prefix::of_device(self.device.get(row.slot as usize).copied().unwrap_or(0)),
            };
            (row.worker && (row.registered || prefix.disk > 0)).then_some(OwnerAnswer {
                owner: &row.owner,
                registered: row.registered,
                device: prefix.device,
                host_pinned: prefix.host_pinned,
                disk: prefix.disk,
                own_prefix: prefix.own,
                trust: row.trust,
            })
        })
    }

    /// An answer with these rows, for tests of those who read answers.
    #[cfg(test)]
    pub(crate) fn of(answers: &[OwnerAnswer<'_>], frequencies: &[u32]) -> Self {
        let prefix = |row: &OwnerAnswer<'_>| Prefix {
            device: row.device,
            host_pinned: row.host_pinned,
            disk: row.disk,
            own: row.own_prefix,
        };
        let row = |(slot, row): (Slot, &OwnerAnswer<'_>)| Row {
            owner: row.owner.clone(),
            slot,
            registered: row.registered,
            worker: true,
            plain: false,
            trust: row.trust,
        };
        Self {
            rows: Arc::new((0..).zip(answers).map(row).collect()),
            device: Prefixes::new(),
            apart: (0..).zip(answers).map(|(position, row)| (position, prefix(row))).collect(),
            frequencies: Frequencies::of(frequencies),
        }
    }
}

/// How many device prefixes cover each block, kept as runs of equal counts: `frequencies[i]` of the answer is the count
/// of the run that block i lies in. As long as the longest device prefix; counts descend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frequencies {
    /// One past the last block of the run, and the count.
    runs: Vec<(u32, u32)>,
}

impl Frequencies {
    /// From the ends of prefixes above 0 and how many prefixes end there, in any order.
    pub(super) fn from_ends(mut ends: Ends) -> Self {
        if !ends.is_sorted() {
            ends.sort_unstable();
        }
        let mut covering: u32 = ends.iter().map(|(_, count)| count).sum();
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(ends.len());
        for (end, count) in ends {
            if runs.last().is_none_or(|(last, _)| *last < end) {
                runs.push((end, covering));
            }
            covering -= count;
        }
        Self { runs }
    }

    #[cfg(test)]
    pub(crate) fn of(counts: &[u32]) -> Self {
        let mut end = 0;
        let runs = counts.chunk_by(|a, b| a == b).map(|run| {
            end += run.len() as u32;
            (end, run[0])
        });
        Self { runs: runs.collect() }
    }

    /// Runs of equal counts, in order: the count, and for how many blocks it holds.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut start = 0;
        self.runs.iter().map(move |(end, count)| (*count, end - std::mem::replace(&mut start, *end)))
    }

    /// One count per block.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs().flat_map(|(count, blocks)| std::iter::repeat_n(count, blocks as usize))
    }

    /// Blocks that some device prefix covers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.last().map_or(0, |(end, _)| *end as usize)
    }

    /// True if no device prefix covers a block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Ends of device prefixes, and how many end there.
pub(super) type Ends = SmallVec<[(u32, u32); 16]>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_count_the_prefixes_that_cover_a_block() {
        for (ends, want) in [
            (&[][..], &[][..]),
            (&[(3, 1)], &[1, 1, 1]),
            (&[(3, 2), (1, 1), (3, 1)], &[4, 3, 3]),
            (&[(1, 1), (2, 1), (4, 5)], &[7, 6, 5, 5]),
            (&[(2, 3), (2, 1)], &[4, 4]),
        ] {
            let got = Frequencies::from_ends(ends.iter().copied().collect());
            assert_eq!(got.iter().collect::<Vec<_>>(), want, "{ends:?}");
            assert_eq!((got.len(), got.is_empty()), (want.len(), want.is_empty()), "{ends:?}");
            assert_eq!(Frequencies::of(want).iter().collect::<Vec<_>>(), want);
            assert_eq!(got.runs().map(|(_, blocks)| blocks as usize).sum::<usize>(), want.len(), "{ends:?}");
        }
    }
}
