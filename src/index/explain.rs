//! Why a match ends where it ends.

use std::collections::BTreeSet;

use super::answer::Prefixes;
use super::api::{Explanation, MatchEnd, StopReason};
use super::detail;
use super::dump;
use super::find::{DEVICE, DISK, EXTERNAL, HOST, Path};
use super::holders::Slot;
use super::index::PrefixIndex;
use super::owner::{HELD, OwnerState};
use super::tree::{At, ROOT};
use super::view::View;
use crate::ids::{EngineHash, LocalHash, Namespace, Role};
use crate::trust::Reason;

impl PrefixIndex {
    /// For each worker: where the match ends and why.
    #[must_use]
    pub fn explain(&self, query: &[LocalHash]) -> Vec<Explanation> {
        let (path, device) = self.full_path(query);
        let mut explanations = Vec::new();
        for slot in &self.order {
            let Some(owner) = self.slots[*slot as usize].as_deref().filter(|owner| owner.spec.role == Role::Worker)
            else {
                continue;
            };
            let prefix = self.prefix(*slot, &path, device[*slot as usize]);
            let case = Case { index: self, owner, slot: *slot, path: &path, query };
            explanations.push(Explanation {
                owner: owner.owner.clone(),
                registered: owner.registered,
                trust: owner.trust,
                device_end: MatchEnd { blocks: prefix.device, reason: case.reason(prefix.device, DEVICE) },
                total_end: MatchEnd { blocks: prefix.disk, reason: case.reason(prefix.disk, HELD) },
            });
        }
        explanations
    }

    /// Namespaces of the prompts that are known here, in order, at most `max`. Looks at each prompt's first block.
    #[must_use]
    pub fn namespaces(&self, max: usize) -> Vec<Namespace> {
        let mut found = BTreeSet::new();
        for node in self.tree.children(ROOT) {
            found.insert(self.tree.node(node).namespace());
            if found.len() >= max {
                break;
            }
        }
        found.into_iter().collect()
    }

    /// The content path as far as anybody has it, and device prefixes.
    fn full_path(&self, query: &[LocalHash]) -> (Path, Prefixes) {
        let device = self.walk(query).device;
        let mut path = Path::new();
        let (mut node, mut from) = (ROOT, 0usize);
        while from < query.len() {
            let Some(child) = self.tree.child(node, query[from].0) else {
                break;
            };
            let locals = self.tree.locals(child);
            let len = locals.iter().zip(&query[from..]).take_while(|(a, b)| **a == b.0).count();
            path.push(super::find::Step { node: child, from: from as u32, len: len as u32 });
            from += len;
            if len < locals.len() {
                break;
            }
            node = child;
        }
        (path, device)
    }
}

/// One owner and one query.
struct Case<'a> {
    index: &'a PrefixIndex,
    owner: &'a OwnerState,
    slot: Slot,
    path: &'a Path,
    query: &'a [LocalHash],
}

impl Case<'_> {
    /// Why block `end` does not match on `rows`.
    fn reason(&self, end: u32, rows: u8) -> StopReason {
        if end as usize == self.query.len() {
            return StopReason::WholeQuery;
        }
        let empty = self.owner.blocks == [0; 4];
        if empty && self.owner.trust.state() == crate::trust::State::Stale {
            return StopReason::NotConnected;
        }
        if let Some(announced) =
            self.owner.announced_block_size.filter(|_| self.owner.trust.has(Reason::BlockSizeMismatch) && empty)
        {
            return StopReason::WrongBlockSize { announced };
        }
        if let Some(group) = self.side_group(end, rows) {
            return StopReason::SideGroup { group };
        }
        match self.block(end) {
            Some(at) => self.reason_at(at),
            None => self.reason_without_content(),
        }
    }

    /// The group that stands against a longer match.
    fn side_group(&self, end: u32, rows: u8) -> Option<u32> {
        let groups = self.owner.groups.as_deref().filter(|groups| groups.restricts())?;
        let trace = detail::trace(self.index, self.owner, self.slot, self.path);
        let [device, _, all] = trace.raw();
        let limit = if rows == DEVICE { device } else { all };
        if limit <= end {
            return None;
        }
        let stages: &[u8] = if rows == DEVICE { &[DEVICE] } else { &[DEVICE, HOST, DISK, EXTERNAL] };
        groups.longest(&trace.links, limit, stages, self.index.block_size).1
    }

    /// The content block number `end` of the query.
    fn block(&self, end: u32) -> Option<At> {
        let step = self.path.iter().find(|step| (step.from..step.from + step.len).contains(&end))?;
        Some(At { node: step.node, off: end - step.from })
    }

    fn reason_at(&self, at: At) -> StopReason {
        let view = View { tree: &self.index.tree, owner: self.owner, slot: self.slot };
        let mut rows = 0;
        let mut removal = None;
        view.for_each_record(at, |hash, on, _, _| {
            rows |= on & HELD;
            if on & HELD == 0 {
                removal = removal.or(self.owner.removals.find(hash));
            }
        });
        if rows & DEVICE != 0 {
            return StopReason::BrokenChain;
        }
        if rows != 0 {
            return StopReason::OtherTier { tiers: dump::tiers(rows).collect() };
        }
        match removal.or_else(|| self.owner.removals.find(view.main(at))) {
            Some(removal) => {
                StopReason::Removed { hash: EngineHash(removal.hash), seq: removal.seq, at_ms: removal.at_ms }
            }
            None => self.without_removal(StopReason::RemovedOrNeverStored),
        }
    }

    fn reason_without_content(&self) -> StopReason {
        let known = self.owner.removals.overflowed || !self.owner.removals.is_empty();
        self.without_removal(if known { StopReason::RemovedOrNeverStored } else { StopReason::NeverStored })
    }

    fn without_removal(&self, otherwise: StopReason) -> StopReason {
        match self.owner.pending_blocks() {
            0 => otherwise,
            pending => StopReason::PendingParent { pending: u32::try_from(pending).unwrap_or(u32::MAX) },
        }
    }
}
