//! Owners of an image onto the blocks in the tree, and what follows from them: own hashes, tables, counts, digest.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::super::api::ApplyContext;
use super::super::index::PrefixIndex;
use super::super::own::MULTI;
use super::super::owner::{HELD, Overlay, Record};
use super::super::record::Writer;
use super::super::tree::{At, Place, RECENT};
use super::check;
use super::content::{Content, Span};
use super::rest;
use crate::ids::Seq;
use crate::image::{BlockNumber, Image, OwnerImage};
use crate::trust::{Reason, Trust};

/// Why an image cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Numbers in it do not fit together.
    #[error("image is inconsistent: {0}")]
    Inconsistent(&'static str),
}

/// Reasons that speak about this replica's own connection and registrations, not about content.
const OWN_REASONS: [Reason; 4] = [Reason::NotConnected, Reason::ContainerDown, Reason::Unconfirmed, Reason::TwoSources];

impl PrefixIndex {
    /// An empty index of the same block size and bounds whose owner ids never equal those of `self`.
    #[must_use]
    pub fn successor(&self) -> Self {
        self.emptied()
    }

    /// Gives every owner an id behind those of `other`, and takes over its memory pressure: for an index that was built
    /// apart and takes the place of `other`, whose ids tasks may still name.
    pub fn follow(&mut self, other: &Self) {
        self.renumber_behind(other);
    }

    /// Takes the owners of an image, which replace owners of the same name; an owner that was registered here stays so,
    /// with its id, its spec, and what its trust says about the connection. Others are not touched. All or nothing.
    ///
    /// Afterwards both indexes answer alike about these owners to every later batch, as far as it does not ask other
    /// owners of the index (hashes without tokens).
    ///
    /// # Errors
    /// The image is inconsistent; nothing was changed.
    pub fn import(&mut self, image: &Image, now_ms: u64) -> Result<(), ImportError> {
        check::check(image, self.block_size)?;
        let ids: Vec<_> = image.owners.iter().map(|owner| self.emptied_owner(owner, now_ms)).collect();
        let content = Content::enter(&mut self.tree, image);
        let context = ApplyContext { seq: Seq(0), now_ms };
        for (id, owner) in ids.iter().zip(&image.owners) {
            self.write(*id, context, |writer| Import { writer, content: &content, image, owner }.all());
        }
        // Bounds last: what one owner forgets must not be given back before the others hold it.
        for id in ids {
            self.write(id, context, |writer| writer.keep_bounds());
        }
        self.keep_bound(now_ms);
        Ok(())
    }
}

/// Trust of an owner that is taken over: the image's, and what is known here about the connection if it is `known`.
pub(in crate::index) fn trust_of(image: Trust, known: Option<Trust>, now_ms: u64) -> Trust {
    let mut trust = image;
    if let Some(known) = known {
        for reason in OWN_REASONS {
            trust.set(reason, known.has(reason), now_ms);
        }
    }
    trust
}

/// One owner on its way in.
struct Import<'a, 'b> {
    writer: &'a mut Writer<'b>,
    content: &'a Content,
    image: &'a Image,
    owner: &'a OwnerImage,
}

impl Import<'_, '_> {
    fn all(mut self) {
        rest::give(self.writer.me, &self.owner.rest, self.writer.limits.removals_remembered_max);
        self.hashes();
        for row in 0..self.owner.rows.len() {
            self.row(row);
        }
        self.overlays();
        self.tables();
        self.free();
        self.recents();
    }

    fn spans(&self, range: (BlockNumber, BlockNumber)) -> Vec<Span> {
        self.content.spans(self.writer.tree, range)
    }

    /// Own hashes of what the owner knows, and of the blocks right above: what hangs there names them. An image of one
    /// owner has that owner's hashes everywhere.
    fn hashes(&mut self) {
        let mut list = Vec::new();
        let whole = [(0, self.image.block_count() as BlockNumber)];
        let known: Vec<_> = match self.image.owners.len() {
            1 => whole.to_vec(),
            _ => self.owner.rows.iter().flatten().copied().collect(),
        };
        for range in known {
            for span in self.spans(range) {
                if let Some(before) = span.before {
                    let at = self.writer.tree.at(self.content.place(before));
                    let hash = self.owner.hash_at(self.image, before);
                    if self.writer.tree.hash_of(self.writer.slot, at) != hash {
                        self.writer.tree.set_hash_of(self.writer.slot, at, hash);
                    }
                }
                let (from, to) = (span.from, span.from + span.len);
                let own = own_hashes(self.owner, (from, to));
                if span.same && own.is_empty() && !self.writer.tree.node(span.at.node).has_column(self.writer.slot) {
                    continue;
                }
                list.clear();
                list.extend_from_slice(&self.image.engines[from as usize..to as usize]);
                for (first, hashes) in own {
                    for (number, hash) in (*first..).zip(hashes).filter(|(number, _)| (from..to).contains(number)) {
                        list[(number - from) as usize] = *hash;
                    }
                }
                self.writer.tree.set_hashes_of(self.writer.slot, span.at, &list);
            }
        }
    }

    /// Holds a row's blocks by range, each under its main hash.
    fn row(&mut self, row: usize) {
        for range in &self.owner.rows[row] {
            for span in self.spans(*range) {
                let (at, end) = (span.at, span.at.off + span.len);
                let node = self.writer.tree.node_mut(at.node);
                let len = node.len;
                node.row_mut(row).insert(self.writer.slot, (at.off, end), len);
                if row == RECENT {
                    continue;
                }
                self.writer.me.blocks[row] += u64::from(span.len);
                let before = self.writer.tree.local_before(at);
                let locals = &self.writer.tree.locals(at.node)[at.off as usize..end as usize];
                let engines = &self.writer.tree.engines(at.node)[at.off as usize..end as usize];
                match self.writer.tree.column(at.node, self.writer.slot) {
                    None => self.writer.me.add_terms(row, engines, (locals, before)),
                    Some(column) => {
                        let own = &column[column.len().min(at.off as usize)..column.len().min(end as usize)];
                        let rest = own.len();
                        let turn = rest.checked_sub(1).map_or(before, |last| locals[last]);
                        self.writer.me.add_terms(row, own, (&locals[..rest], before));
                        self.writer.me.add_terms(row, &engines[rest..], (&locals[rest..], turn));
                    }
                }
            }
        }
    }

    /// Blocks with several hashes: what they hold is counted record by record.
    fn overlays(&mut self) {
        for overlay in &self.owner.rest.overlays {
            let place = self.content.place(overlay.block);
            let at = self.writer.tree.at(place);
            let rows = self.owner.rows_of(overlay.block);
            for row in tiers(rows) {
                self.writer.count_out(at, overlay.main, row);
            }
            let mut records: SmallVec<[Record; 2]> = SmallVec::new();
            for (hash, rows, parents) in &overlay.records {
                for row in tiers(*rows) {
                    self.writer.count_in(at, *hash, row);
                }
                records.push(Record { hash: *hash, rows: *rows, parents: parents.as_slice().into() });
            }
            self.writer.me.overlays.insert(place, Overlay { main: overlay.main, records });
        }
    }

    /// Places of hashes that the table of the tree does not give.
    fn tables(&mut self) {
        let (tree, slot) = (&*self.writer.tree, self.writer.slot);
        let ranges = self.owner.rows.iter().flatten();
        let mut spans: Vec<Span> = ranges.flat_map(|range| self.content.spans(tree, *range)).collect();
        spans.retain(|span| tree.is_shadowed(span.at.node) || tree.node(span.at.node).has_column(slot));
        for span in spans {
            for off in span.at.off..span.at.off + span.len {
                let at = At { off, ..span.at };
                let place = self.writer.tree.place(at);
                if !self.writer.me.overlays.contains_key(&place) {
                    self.know(place, self.writer.tree.hash_of(self.writer.slot, at));
                }
            }
        }
        for overlay in &self.owner.rest.overlays {
            let place = self.content.place(overlay.block);
            overlay.records.iter().for_each(|(hash, ..)| self.know(place, *hash));
        }
        for (hash, blocks) in &self.owner.rest.multi {
            let order: SmallVec<[Place; 2]> = blocks.iter().map(|block| self.content.place(*block)).collect();
            if let Some(places) = self.writer.me.multi.get_mut(hash) {
                let mut sorted = [order.clone(), places.clone()];
                sorted.iter_mut().for_each(|places| places.sort_unstable());
                if sorted[0] == sorted[1] {
                    *places = order;
                }
            }
        }
    }

    /// Enters a record where the table of the tree does not name it.
    fn know(&mut self, place: Place, hash: u64) {
        let places = self.writer.places(hash);
        if places.contains(&place) {
            return;
        }
        if places.is_empty() {
            self.writer.know(hash, place);
            return;
        }
        let multi = self.writer.me.multi.entry(hash).or_insert_with(|| places.iter().copied().collect());
        multi.push(place);
        self.writer.know(hash, MULTI);
    }

    fn free(&mut self) {
        for (block, hash) in &self.owner.rest.free {
            let place = self.content.place(*block);
            if self.writer.view().has_record(place, *hash) {
                self.writer.set_free(place, *hash);
            }
        }
    }

    /// Removed but remembered hashes in the image's order. Which ones they are follows from the rows.
    fn recents(&mut self) {
        let mut removed = FxHashSet::default();
        for range in &self.owner.rows[RECENT] {
            for span in self.spans(*range) {
                for off in span.at.off..span.at.off + span.len {
                    self.writer.view().for_each_record(At { off, ..span.at }, |hash, rows, _, _| {
                        if rows & HELD == 0 {
                            removed.insert(hash);
                        }
                    });
                }
            }
        }
        let (writer, multi) = (&*self.writer, &self.writer.me.multi);
        let held = |hash: &u64| {
            let places = multi.get(hash);
            places.is_some_and(|places| places.iter().any(|place| writer.rows(*place, *hash) & HELD != 0))
        };
        removed.retain(|hash| !writer.me.pieces.contains(hash) && !held(hash));
        for hash in &self.owner.recents {
            if removed.remove(hash) {
                self.writer.me.recents.push(*hash);
            }
        }
        let mut left: Vec<u64> = removed.into_iter().collect();
        left.sort_unstable();
        left.into_iter().for_each(|hash| self.writer.me.recents.push(hash));
    }
}

impl Writer<'_> {
    /// Forgets what another index remembered beyond the bounds of this one.
    fn keep_bounds(&mut self) {
        self.trim_recents();
        self.trim_pending();
        if self.me.pending_dropped || self.me.pending_blocks() > 0 {
            self.me.judge_pending(self.now_ms);
        }
        self.order_held();
        self.reclaim();
    }
}

/// Rows of tiers among row bits.
fn tiers(rows: u8) -> impl Iterator<Item = usize> {
    (0..RECENT).filter(move |row| rows & 1 << row != 0)
}

/// Own hashes that overlap a range.
fn own_hashes(owner: &OwnerImage, (from, to): (BlockNumber, BlockNumber)) -> &[(BlockNumber, Vec<u64>)] {
    let first = owner.hashes.partition_point(|(start, list)| start + list.len() as BlockNumber <= from);
    let count = owner.hashes[first..].partition_point(|(start, _)| *start < to);
    &owner.hashes[first..first + count]
}
