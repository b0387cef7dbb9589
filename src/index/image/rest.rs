//! What an owner has apart from the common form, as values in a fixed order, and back.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::super::groups::Groups;
use super::super::owner::{Aged, Ages, OwnerState};
use super::super::pending::{Pending, PendingBlock, Stores};
use super::super::recent::Removal;
use super::super::store::piece_of;
use super::super::tree::Place;
use super::export::Numbers;
use crate::ids::Seq;
use crate::image::{AgesImage, BlockNumber, OverlayImage, OwnerRest, PendingImage, RemovalImage};

/// True if the owner has something that names single blocks.
pub(super) fn has_places(state: &OwnerState) -> bool {
    !(state.overlays.is_empty() && state.multi.is_empty() && state.free.is_empty())
}

/// The rare parts of an owner whose blocks have these numbers.
pub(super) fn spell(state: &OwnerState, numbers: &Numbers) -> OwnerRest {
    let number = |place: &Place| numbers.of(*place).expect("the owner knows the block, so it was copied");
    let overlays = state.overlays.iter().map(|(place, overlay)| {
        let records = overlay.records.iter().map(|record| (record.hash, record.rows, record.parents.to_vec()));
        OverlayImage { block: number(place), main: overlay.main, records: records.collect() }
    });
    let multi = state.multi.iter().map(|(hash, places)| (*hash, places.iter().map(number).collect()));
    OwnerRest {
        overlays: sorted(overlays, |overlay| overlay.block),
        multi: sorted(multi, |(hash, _): &(u64, Vec<BlockNumber>)| *hash),
        free: sorted(state.free.iter().map(|(place, hash)| (number(place), *hash)), |free| *free),
        copies: sorted(state.copies.iter().map(|((hash, row), count)| (*hash, *row, *count)), |copies| *copies),
        spans: sorted(state.spans.iter().map(|(hash, span)| (*hash, *span)), |span| *span),
        pieces: sorted(state.pieces.iter().copied(), |piece| *piece),
        removals: state.removals.iter().map(removal).collect(),
        removals_overflowed: state.removals.overflowed,
        pending: state.pending.iter().flat_map(|pending| pending.iter()).map(waiting).collect(),
        pending_dropped: state.pending_dropped,
        groups: state.groups.as_deref().map(Groups::image),
        ages: state.ages.as_deref().map(ages),
        whole_groups: sorted(state.whole_groups.iter().copied(), |group| *group),
        twins: state.twins,
        announced_block_size: state.announced_block_size,
    }
}

fn sorted<T, K: Ord>(items: impl Iterator<Item = T>, key: impl FnMut(&T) -> K) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable_by_key(key);
    items
}

fn removal(removal: &Removal) -> RemovalImage {
    RemovalImage { hash: removal.hash, seq: removal.seq, at_ms: removal.at_ms }
}

fn waiting(block: &PendingBlock) -> PendingImage {
    PendingImage {
        hash: block.hash,
        parent: block.parent,
        token_bytes: block.token_bytes.to_vec(),
        extras: block.extras.to_vec(),
        named: block.named,
        locals: block.locals.to_vec(),
        rows: block.rows,
        stores: block.stores.iter().map(|stores| (stores.group, stores.row, stores.count)).collect(),
    }
}

/// Entries that still count, in the order in which they age.
fn ages(ages: &Ages) -> AgesImage {
    let mut seen = FxHashSet::default();
    let counts = |(stored_ms, aged): &&(u64, Aged)| ages.stored.get(aged) == Some(stored_ms) && seen.insert(*aged);
    let queue = ages.queue.iter().filter(counts);
    let queue = queue.map(|(stored_ms, aged)| (aged.hash, aged.row, aged.group, *stored_ms)).collect();
    AgesImage { clock_ms: ages.clock_ms, queue }
}

/// Gives an empty owner what does not speak about places: all but overlays, second places and free records.
pub(super) fn give(state: &mut OwnerState, rest: &OwnerRest, removals_max: usize) {
    state.copies = rest.copies.iter().map(|(hash, row, count)| ((*hash, *row), *count)).collect();
    state.spans = rest.spans.iter().copied().collect();
    // A hash of the engine's own among the pieces would never be forgotten.
    let made = rest.spans.iter().flat_map(|(hash, span)| (1..*span).map(|piece| piece_of(*hash, piece)));
    let made: FxHashSet<u64> = made.collect();
    state.pieces = rest.pieces.iter().copied().filter(|piece| made.contains(piece)).collect();
    state.removals.overflowed = rest.removals_overflowed;
    for RemovalImage { hash, seq: Seq(seq), at_ms } in rest.removals.iter().copied() {
        state.removals.push(Removal { hash, seq: Seq(seq), at_ms }, removals_max);
    }
    if !rest.pending.is_empty() {
        let mut pending = Pending::default();
        rest.pending.iter().for_each(|block| pending.insert(unspelled(block)));
        state.pending = Some(Box::new(pending));
    }
    state.pending_dropped = rest.pending_dropped;
    state.groups = rest.groups.as_ref().map(|groups| Box::new(Groups::from_image(groups)));
    state.ages = rest.ages.as_ref().map(|ages| Box::new(unspelled_ages(ages)));
    state.whole_groups = rest.whole_groups.iter().copied().collect();
    state.twins = rest.twins;
    state.announced_block_size = rest.announced_block_size;
}

fn unspelled(block: &PendingImage) -> PendingBlock {
    let stores = block.stores.iter().map(|(group, row, count)| Stores { group: *group, row: *row, count: *count });
    PendingBlock {
        hash: block.hash,
        parent: block.parent,
        token_bytes: block.token_bytes.as_slice().into(),
        extras: block.extras.as_slice().into(),
        named: block.named,
        locals: block.locals.as_slice().into(),
        rows: block.rows,
        stores: stores.collect::<SmallVec<_>>(),
    }
}

fn unspelled_ages(ages: &AgesImage) -> Ages {
    let queue = ages.queue.iter().map(|(hash, row, group, stored_ms)| {
        let aged = Aged { hash: *hash, row: *row, group: *group };
        (*stored_ms, aged)
    });
    let queue: std::collections::VecDeque<(u64, Aged)> = queue.collect();
    let stored: FxHashMap<Aged, u64> = queue.iter().map(|(stored_ms, aged)| (*aged, *stored_ms)).collect();
    Ages { stored, queue, clock_ms: ages.clock_ms }
}
