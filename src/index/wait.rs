//! Blocks that wait for their parent: coming in, dropped, joining once it is there.

use smallvec::SmallVec;

use super::pending::{PendingBlock, Stores};
use super::record::Writer;
use super::store::{Run, Whole, below, piece_of, pieces_of};
use super::tree::Place;
use crate::event::{ExtraKey, SkipReason};
use crate::ids::{LocalHash, Namespace};

impl Writer<'_> {
    /// Lets blocks of a store wait whose parent hash the owner has not announced.
    pub(super) fn store_pending(&mut self, whole: &Whole<'_>, parent: u64) {
        let locals = self.locals(whole, whole.named);
        let bytes = self.block_size.tokens() as usize * 4 * whole.span as usize;
        let mut parent = parent;
        for (index, hash) in whole.hashes.iter().enumerate() {
            let extras = whole.extras.iter().filter(|extra| extra.block as usize == index).map(|extra| extra.value);
            let block = PendingBlock {
                hash: *hash,
                parent,
                token_bytes: whole.token_bytes[index * bytes..(index + 1) * bytes].into(),
                extras: extras.collect(),
                named: whole.named,
                locals: locals[index * whole.span as usize..(index + 1) * whole.span as usize].into(),
                rows: 1 << whole.row,
                stores: SmallVec::from_elem(Stores { group: whole.group, row: whole.row as u8, count: 1 }, 1),
            };
            if self.rows_anywhere(*hash) & 1 << whole.row != 0 {
                self.repeat(*hash, whole.row);
            }
            self.me.pending.get_or_insert_default().insert(block);
            parent = *hash;
            self.trim_pending();
        }
        self.me.judge_pending(self.now_ms);
    }

    /// Drops the oldest waiting blocks beyond the limit.
    pub(super) fn trim_pending(&mut self) {
        while self.me.pending_blocks() > self.limits.pending_blocks_max as u64 {
            let Some(dropped) = self.me.pending.as_mut().and_then(|pending| pending.pop_oldest()) else {
                return;
            };
            for _ in &dropped.locals {
                self.me.skip(SkipReason::PendingOverflow, self.now_ms);
            }
            self.me.pending_dropped = true;
            self.drop_copies(&dropped);
        }
    }

    /// Drops children that wait for these hashes, which get a place in `namespace`, and name another namespace.
    pub(super) fn drop_conflicts(&mut self, hashes: &[u64], namespace: Namespace) {
        for hash in hashes {
            let Some(pending) = &mut self.me.pending else {
                return;
            };
            for dropped in pending.take_children(*hash, |child| below(child.named, namespace).is_none()) {
                self.me.skip(SkipReason::NamespaceConflict, self.now_ms);
                self.drop_copies(&dropped);
            }
        }
    }

    /// Copies of a waiting block that is dropped do not count where the hash is not held otherwise.
    fn drop_copies(&mut self, dropped: &PendingBlock) {
        let rows = self.rows_anywhere(dropped.hash);
        for row in (0..4u8).filter(|row| dropped.rows & !rows & 1 << row != 0) {
            self.me.copies.remove(&(dropped.hash, row));
        }
        if let Some(groups) = self.me.groups.as_deref_mut().filter(|groups| groups.sets) {
            for stores in &dropped.stores {
                groups.withdraw(stores.group, (dropped.hash, stores.row), stores.count);
            }
        }
    }

    /// Lets blocks join that waited for these hashes, and for those that join.
    pub(super) fn join(&mut self, hashes: &[u64]) {
        if self.me.pending.is_none() {
            return;
        }
        let mut arrived: Vec<u64> = hashes.to_vec();
        while let Some(parent) = arrived.pop() {
            let Some(place) = self.newest(parent) else {
                continue;
            };
            let Some(children) = self.me.pending.as_mut().map(|pending| pending.take_children(parent, |_| true)) else {
                break;
            };
            for child in children {
                if self.join_one(&child, (place, parent)) {
                    arrived.push(child.hash);
                }
            }
        }
        if self.me.pending_blocks() == 0 {
            self.me.pending = None;
        }
        self.me.judge_pending(self.now_ms);
    }

    fn join_one(&mut self, child: &PendingBlock, parent: (Place, u64)) -> bool {
        let Some(namespace) = self.namespace_below(Some(parent), child.named) else {
            self.me.skip(SkipReason::NamespaceConflict, self.now_ms);
            self.drop_copies(child);
            return false;
        };
        let span = child.locals.len() as u32;
        let extras: SmallVec<[ExtraKey; 2]> =
            child.extras.iter().map(|value| ExtraKey { block: 0, value: *value }).collect();
        let known: SmallVec<[LocalHash; 4]> = child.locals.iter().map(|local| LocalHash(*local)).collect();
        let whole = Whole {
            hashes: &[child.hash],
            token_bytes: &child.token_bytes,
            extras: &extras,
            locals: &known,
            named: child.named,
            row: 0,
            span,
            group: None,
        };
        // What came without tokens came with local hashes that hold wherever it hangs.
        let locals = match child.token_bytes.is_empty() {
            true => child.locals.iter().copied().collect(),
            false => self.locals(&whole, namespace),
        };
        let hashes = pieces_of(&[child.hash], span);
        if span > 1 {
            self.me.spans.insert(child.hash, span);
            self.me.pieces.extend((1..span).map(|piece| piece_of(child.hash, piece)));
        }
        self.joining = true;
        for row in (0..4).filter(|row| child.rows & 1 << row != 0) {
            self.store_run(Run { hashes: &hashes, locals: &locals, row, namespace, parent: Some(parent) });
        }
        self.joining = false;
        true
    }
}
