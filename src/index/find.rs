//! The query walk: along the content path run by run, with one set operation per node for all owners at once; lower
//! tiers go on from each owner's device prefix.
//!
//! Owners with overlays or with several cache groups are answered by `detail` along the same path.

use smallvec::SmallVec;

use super::answer::{Answer, Ends, Frequencies, Prefix, Prefixes};
use super::detail;
use super::holders::{Held, Slot, SlotSet, ones};
use super::index::PrefixIndex;
use super::tree::{NodeId, ROOT, Tree};
use crate::ids::{LocalHash, Tier};

/// A node on the content path of a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) node: NodeId,
    /// Blocks of the query before it.
    pub(super) from: u32,
    /// Blocks of it that the query has.
    pub(super) len: u32,
}

/// Content path of a query, as far as anybody's blocks go.
pub(super) type Path = SmallVec<[Step; 16]>;

/// Rows of tiers, as bits.
pub(super) const DEVICE: u8 = 1 << Tier::Device as u8;
pub(super) const HOST: u8 = 1 << Tier::HostPinned as u8;
pub(super) const DISK: u8 = 1 << Tier::Disk as u8;
pub(super) const EXTERNAL: u8 = 1 << Tier::External as u8;

/// What one walk along a query's content finds.
pub(super) struct Walk {
    /// As far as anybody's blocks go.
    pub(super) path: Path,
    /// Device prefixes by slot, of all owners in the common form.
    pub(super) device: Prefixes,
    /// The same, by where they end.
    pub(super) ends: Ends,
}

impl PrefixIndex {
    /// Longest cached prefix per owner. `query[..=i]` covers tokens `[0, (i + 1) * block_size)`.
    ///
    /// Cost goes by runs of blocks, not by blocks times owners.
    #[must_use]
    pub fn find(&self, query: &[LocalHash]) -> Answer {
        let Walk { path, device, mut ends } = self.walk(query);
        let mut apart = Vec::new();
        if self.beyond_device() {
            let plain = self.pools.is_empty();
            let rows = (0u32..).zip(self.rows.iter());
            for (position, row) in rows.filter(|(_, row)| row.worker && !(row.plain && plain)) {
                let prefix = self.prefix(row.slot, &path, device[row.slot as usize]);
                if self.detailed.contains(row.slot) && prefix.device > 0 {
                    ends.push((prefix.device, 1));
                }
                apart.push((position, prefix));
            }
        }
        Answer::new(&self.rows, device, apart, Frequencies::from_ends(ends))
    }

    /// Content path and device prefixes of all owners in the common form.
    pub(super) fn walk(&self, query: &[LocalHash]) -> Walk {
        let mut walk = Walk { path: Path::new(), device: SmallVec::from_elem(0, self.slots.len()), ends: Ends::new() };
        let mut alive = self.fast.clone();
        let mut any_alive = !alive.is_empty();
        let (mut node, mut from) = (ROOT, 0u32);
        while (from as usize) < query.len() && (any_alive || self.beyond_device()) {
            let rest = &query[from as usize..];
            let Some(child) = self.tree.child(node, rest[0].0) else {
                break;
            };
            let len = common(self.tree.locals(child), rest);
            let step = Step { node: child, from, len };
            walk.path.push(step);
            if any_alive {
                any_alive = self.device_step(&mut alive, &mut walk, step);
            }
            from += len;
            if len < self.tree.node(child).len {
                break;
            }
            node = child;
        }
        if any_alive && from > 0 {
            walk.end_all(&alive, from);
        }
        walk
    }

    /// Drops owners whose device prefix ends in this node; true while some go on.
    fn device_step(&self, alive: &mut SlotSet, walk: &mut Walk, step: Step) -> bool {
        let holders = &self.tree.node(step.node).device;
        for (slot, cover) in &holders.partial {
            if alive.contains(*slot) {
                let end = cover.run_end(0).min(step.len);
                if end < step.len {
                    walk.end(*slot, step.from + end);
                    alive.remove(*slot);
                }
            }
        }
        let mut any = false;
        for index in 0..alive.word_count() {
            let word = alive.word(index);
            let gone = word & !holders.full.word(index);
            if gone != 0 {
                // Those that hold a part as long as what the query has of this node go on.
                let mut kept = 0u64;
                for bit in ones(gone) {
                    let slot = index as u32 * 64 + bit;
                    let whole = match holders.of(slot) {
                        Held::Part(cover) => cover.run_end(0) >= step.len,
                        _ => false,
                    };
                    if whole {
                        kept |= 1 << bit;
                    } else {
                        walk.end(slot, step.from);
                    }
                }
                alive.set_word(index, word & !gone | kept);
            }
            any |= alive.word(index) != 0;
        }
        any
    }

    /// True if the walk must go on where no device prefix does.
    fn beyond_device(&self) -> bool {
        self.lower_blocks || !self.detailed.is_empty() || !self.pools.is_empty()
    }

    /// All prefixes of one owner along a path.
    pub(super) fn prefix(&self, slot: Slot, path: &Path, device: u32) -> Prefix {
        let Some(owner) = self.slots[slot as usize].as_deref() else {
            return Prefix::default();
        };
        if self.detailed.contains(slot) {
            return detail::prefix(self, owner, slot, path);
        }
        let mut prefix = Prefix::of_device(device);
        let [_, host, disk, external] = owner.blocks;
        if host + disk + external == 0 && self.pools.is_empty() {
            return prefix;
        }
        let own = |rows: u8, from: u32| extend(path, from, |step, off| run_end(&self.tree, step, off, slot, rows));
        if host > 0 {
            prefix.host_pinned = own(HOST, device);
            prefix.own[1] = own(HOST, 0);
        }
        prefix.disk = if disk > 0 { own(DISK, prefix.host_pinned) } else { prefix.host_pinned };
        prefix.disk = self.external(slot, path, prefix.disk);
        if disk + external > 0 {
            prefix.own[2] = own(DISK | EXTERNAL, 0);
        }
        prefix
    }

    /// How far an owner's external blocks together with the pools' go on from block `from`.
    fn external(&self, slot: Slot, path: &Path, from: u32) -> u32 {
        extend(path, from, |step, off| {
            let mut end = run_end(&self.tree, step, off, slot, EXTERNAL);
            for pool in self.pools.iter() {
                end = end.max(run_end(&self.tree, step, off, pool, DEVICE | HOST | DISK | EXTERNAL));
            }
            end
        })
    }

    /// True if a pool has the block at `off` of a node.
    pub(super) fn pooled(&self, node: NodeId, off: u32) -> bool {
        self.pools.iter().any(|pool| self.tree.node(node).rows_of(pool, off) & super::owner::HELD != 0)
    }

    /// The same for rolling hashes (`hash::rolling`): they are turned into local hashes along the tree.
    #[must_use]
    pub fn find_rolling(&self, rolling: &[u64]) -> Answer {
        let mut locals: Vec<LocalHash> = Vec::new();
        let mut node = ROOT;
        while let Some(wanted) = rolling.get(locals.len()) {
            let before = locals.len().checked_sub(1).map(|index| rolling[index]);
            let fits = |local: u64| crate::hash::rolling(before, LocalHash(local)) == *wanted;
            let child = match before {
                None => self.tree.child(ROOT, *wanted),
                Some(_) => self.tree.children(node).find(|child| fits(self.tree.locals(*child)[0])),
            };
            let Some(child) = child else {
                break;
            };
            for local in self.tree.locals(child) {
                let before = locals.len().checked_sub(1).map(|index| rolling[index]);
                if rolling.get(locals.len()) != Some(&crate::hash::rolling(before, LocalHash(*local))) {
                    return self.find(&locals);
                }
                locals.push(LocalHash(*local));
            }
            node = child;
        }
        self.find(&locals)
    }
}

impl Walk {
    /// A device prefix ends.
    fn end(&mut self, slot: Slot, end: u32) {
        if end > 0 {
            self.device[slot as usize] = end;
            self.ends.push((end, 1));
        }
    }

    /// All that are left end together.
    fn end_all(&mut self, alive: &SlotSet, end: u32) {
        let mut count = 0;
        for (index, device) in self.device.chunks_mut(64).enumerate() {
            let word = alive.word(index);
            count += word.count_ones();
            if word == u64::MAX {
                device.fill(end);
            } else {
                ones(word).for_each(|bit| device[bit as usize] = end);
            }
        }
        self.ends.push((end, count));
    }
}

/// Goes on from block `from` of the query as long as `run_end` does, which tells for a step and an offset in its node
/// where held blocks end.
fn extend(path: &Path, from: u32, run_end: impl Fn(Step, u32) -> u32) -> u32 {
    let first = path.partition_point(|step| step.from + step.len <= from);
    let mut at = from;
    for step in &path[first..] {
        let mut off = at - step.from;
        loop {
            let end = run_end(*step, off);
            if end <= off {
                return at;
            }
            (off, at) = (end, step.from + end);
            if off >= step.len {
                break;
            }
        }
    }
    at
}

/// End of the blocks that a slot holds from `off` on, on any of `rows`, within a step.
fn run_end(tree: &Tree, step: Step, off: u32, slot: Slot, rows: u8) -> u32 {
    let node = tree.node(step.node);
    let rows = (0..4).filter(|row| rows & 1 << row != 0);
    rows.map(|row| node.held(row, slot).run_end(off, step.len)).max().unwrap_or(off)
}

/// Length of the common beginning of a node and a query.
fn common(locals: &[u64], query: &[LocalHash]) -> u32 {
    let len = locals.len().min(query.len());
    let (locals, query) = (&locals[..len], &query[..len]);
    let same = |a: &[u64], b: &[LocalHash]| a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b.0)) == 0;
    let mut from = 0;
    while from + 32 <= len && same(&locals[from..from + 32], &query[from..from + 32]) {
        from += 32;
    }
    (from + locals[from..].iter().zip(&query[from..]).take_while(|(a, b)| **a == b.0).count()) as u32
}
