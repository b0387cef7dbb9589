//! Looks an image over before anything is changed: what the tree and an owner's tables rely on.
//!
//! Hashes are not compared with one another here; `import` builds the tables from the blocks, so that they agree
//! whatever the hashes are.

use rustc_hash::FxHashSet;

use super::super::owner::HELD;
use super::super::tree::{RECENT, ROWS};
use super::import::ImportError;
use crate::ids::BlockSize;
use crate::image::{BlockNumber, GroupsImage, Image, OverlayImage, OwnerImage, OwnerRest, PendingImage};

/// Index blocks that one engine hash may name. A million tokens in one engine block is far beyond what engines do, and
/// a removal walks over all of them.
const SPAN_MAX: usize = 1 << 20;
/// Twins in a row: a counter that grows by one per event.
const TWINS_MAX: u32 = 1 << 30;

/// Fails with what does not fit together.
pub(super) fn check(image: &Image, block_size: BlockSize) -> Result<(), ImportError> {
    let ends = runs(image)?;
    let mut known = Bits::new(image.block_count());
    let mut names = FxHashSet::default();
    for owner in &image.owners {
        demand(names.insert(&owner.owner), "an owner stands twice")?;
        owner_rows(image, owner, &mut known)?;
        hashes(image, owner)?;
        places(image, owner)?;
        rest(&owner.rest, block_size)?;
    }
    demand(ends.iter().all(|end| known.has(*end)), "nobody knows the end of a run")
}

fn demand(holds: bool, otherwise: &'static str) -> Result<(), ImportError> {
    if holds { Ok(()) } else { Err(ImportError::Inconsistent(otherwise)) }
}

/// A bit per block.
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn has(&self, number: BlockNumber) -> bool {
        self.0[number as usize / 64] >> (number % 64) & 1 != 0
    }

    fn set(&mut self, number: BlockNumber) {
        self.0[number as usize / 64] |= 1 << (number % 64);
    }
}

/// Every path of content stands once. Returns the last block of every run below which nothing hangs.
fn runs(image: &Image) -> Result<Vec<BlockNumber>, ImportError> {
    let count = image.block_count();
    demand(u32::try_from(count).is_ok_and(|count| count < u32::MAX), "too many blocks")?;
    demand(image.engines.len() == count, "hashes and blocks are not parallel")?;
    let (mut begins, mut lasts) = (FxHashSet::default(), Vec::with_capacity(image.runs.len()));
    let mut parents = Bits::new(count);
    let mut start = 0usize;
    let mut ends = FxHashSet::default();
    for run in &image.runs {
        let end = start + run.len as usize;
        demand(run.len > 0 && end <= count, "a run has no blocks")?;
        let first = image.locals[start];
        demand(begins.insert((run.parent, first)), "two runs begin alike")?;
        if let Some(parent) = run.parent {
            demand((parent as usize) < start, "a run stands before its parent")?;
            parents.set(parent);
            let goes_on = !ends.contains(&parent) && image.locals[parent as usize + 1] == first;
            demand(!goes_on, "a run begins like what follows its parent")?;
        }
        let last = end as BlockNumber - 1;
        ends.insert(last);
        lasts.push(last);
        start = end;
    }
    demand(start == count, "blocks are in no run")?;
    lasts.retain(|last| !parents.has(*last));
    Ok(lasts)
}

fn owner_rows(image: &Image, owner: &OwnerImage, known: &mut Bits) -> Result<(), ImportError> {
    let count = image.block_count() as BlockNumber;
    for ranges in &owner.rows {
        let mut end = 0;
        for (from, to) in ranges {
            demand(end <= *from && from < to && *to <= count, "ranges of a row are not in order")?;
            end = *to;
            (*from..*to).for_each(|number| known.set(number));
        }
    }
    let apart = |number: BlockNumber| overlay(&owner.rest, number).is_some();
    for row in 0..RECENT {
        for (from, to) in common(&owner.rows[row], &owner.rows[RECENT]) {
            demand((from..to).all(apart), "a block is held and removed")?;
        }
    }
    Ok(())
}

/// Intersection of two lists of ascending ranges.
fn common<'a>(
    a: &'a [(BlockNumber, BlockNumber)],
    b: &'a [(BlockNumber, BlockNumber)],
) -> impl Iterator<Item = (BlockNumber, BlockNumber)> + 'a {
    let mut b = b.iter().peekable();
    a.iter().flat_map(move |(from, to)| {
        let mut shared = Vec::new();
        while let Some((other_from, other_to)) = b.peek().copied() {
            if from.max(other_from) < to.min(other_to) {
                shared.push((*from.max(other_from), *to.min(other_to)));
            }
            if other_to > to {
                break;
            }
            b.next();
        }
        shared
    })
}

fn hashes(image: &Image, owner: &OwnerImage) -> Result<(), ImportError> {
    let mut end = 0usize;
    for (from, list) in &owner.hashes {
        let from = *from as usize;
        demand(end <= from && !list.is_empty(), "own hashes are not in order")?;
        end = from + list.len();
        demand(end <= image.block_count(), "own hashes of no blocks")?;
    }
    Ok(())
}

fn overlay(rest: &OwnerRest, number: BlockNumber) -> Option<&OverlayImage> {
    rest.overlays.binary_search_by_key(&number, |overlay| overlay.block).ok().map(|index| &rest.overlays[index])
}

/// What names single blocks names blocks that the owner knows, with what it has there.
fn places(image: &Image, owner: &OwnerImage) -> Result<(), ImportError> {
    let rest = &owner.rest;
    demand(rest.overlays.is_sorted_by(|a, b| a.block < b.block), "blocks with several hashes are not in order")?;
    for overlay in &rest.overlays {
        let rows = overlay.records.iter().fold(0, |rows, (_, on, _)| rows | on);
        demand(owner.rows_of(overlay.block) == rows, "several hashes of a block do not make up its rows")?;
        for (index, (hash, on, _)) in overlay.records.iter().enumerate() {
            let recent = *on == 1 << RECENT;
            demand(recent || (*on & HELD == *on && *on != 0), "a hash of several is held and removed, or neither")?;
            let twice = overlay.records[..index].iter().any(|(other, ..)| other == hash);
            demand(!twice, "a hash stands twice at a block")?;
        }
        demand(owner.hash_at(image, overlay.block) == overlay.main, "the main hash of a block differs")?;
    }
    let named = rest.multi.iter().flat_map(|(_, blocks)| blocks).chain(rest.free.iter().map(|(block, _)| block));
    let mut named = named.copied();
    demand(named.all(|block| owner.rows_of(block) != 0), "a block is named that its owner does not know")
}

fn rest(rest: &OwnerRest, block_size: BlockSize) -> Result<(), ImportError> {
    let row = |row: u8| usize::from(row) < ROWS - 1;
    demand(rest.copies.iter().all(|(_, on, count)| row(*on) && *count > 1), "copies on no tier, or one copy")?;
    let span = |span: u32| span > 0 && span as usize <= SPAN_MAX;
    demand(rest.spans.iter().all(|(_, blocks)| span(*blocks)), "a hash names too many blocks")?;
    // About one piece is kept for each block that a span names beside its last one.
    let pieces = rest.spans.iter().fold(0, |sum, (_, blocks)| sum + *blocks as usize - 1);
    demand(pieces <= 2 * rest.pieces.len() + SPAN_MAX, "hashes name more blocks than there are")?;
    demand(rest.twins < TWINS_MAX, "too many twins")?;
    for block in &rest.pending {
        waiting(block, block_size)?;
    }
    if let Some(ages) = &rest.ages {
        demand(ages.queue.iter().all(|(_, on, ..)| row(*on)), "a block ages on no tier")?;
    }
    rest.groups.as_ref().map_or(Ok(()), groups)
}

fn waiting(block: &PendingImage, block_size: BlockSize) -> Result<(), ImportError> {
    let blocks = block.locals.len();
    demand(blocks > 0 && blocks <= SPAN_MAX, "a waiting hash names no blocks, or too many")?;
    let bytes = block.token_bytes.len() as u64;
    let whole = blocks as u64 * u64::from(block_size.tokens()) * 4;
    demand(bytes == whole || bytes == 0, "tokens of a waiting block do not fill it")?;
    let rows = block.stores.iter().map(|(_, row, _)| *row);
    demand(rows.clone().all(|row| usize::from(row) < ROWS - 1), "a block waits on no tier")?;
    let rows = rows.fold(0, |rows, row| rows | 1 << row);
    demand(rows == block.rows && rows != 0, "stores of a waiting block do not make up its rows")?;
    demand(block.stores.iter().all(|(.., count)| *count > 0), "a waiting block was stored no time")
}

fn groups(groups: &GroupsImage) -> Result<(), ImportError> {
    for group in &groups.list {
        demand(group.kind.is_none_or(|kind| kind < 3), "a cache group of no kind")?;
        let held = group.held.iter();
        demand(
            held.clone().all(|(_, row, count)| usize::from(*row) < ROWS - 1 && *count > 0),
            "a group holds nothing",
        )?;
        demand(held.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)), "a group's hashes are not in order")?;
        let has = |bare: &(u64, u8)| group.held.binary_search_by_key(bare, |held| (held.0, held.1)).is_ok();
        demand(group.bare.iter().all(has), "a group has not what it never placed")?;
    }
    Ok(())
}

impl OwnerImage {
    /// Rows of a block, as bits.
    pub(super) fn rows_of(&self, number: BlockNumber) -> u8 {
        let has = |ranges: &[(BlockNumber, BlockNumber)]| {
            let after = ranges.partition_point(|(from, _)| *from <= number);
            after > 0 && number < ranges[after - 1].1
        };
        (0..ROWS).filter(|row| has(&self.rows[*row])).fold(0, |rows, row| rows | 1 << row)
    }

    /// The owner's main hash of a block.
    pub(super) fn hash_at(&self, image: &Image, number: BlockNumber) -> u64 {
        let after = self.hashes.partition_point(|(from, _)| *from <= number);
        let own = after.checked_sub(1).and_then(|index| {
            let (from, list) = &self.hashes[index];
            list.get((number - from) as usize)
        });
        own.copied().unwrap_or(image.engines[number as usize])
    }
}
