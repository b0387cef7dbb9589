//! Cache groups of hybrid models: what each group holds as bare hashes, and how long a prefix all of them agree on.
//!
//! Pure. A side group (window, Mamba) is a set of hashes, placed by the equal hash in a main group. As soon as there
//! are several main groups, or groups without a kind, each of them keeps such a set too, and the tree holds their union.

mod image;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::bytes;
use super::detail::Links;
use super::digest::{group_sum, group_term};
use crate::event::{CacheKind, GroupInfo};
use crate::ids::BlockSize;

/// Key of a side group whose events give a kind but no number.
const UNNUMBERED: u32 = u32::MAX;

/// One announced group.
#[derive(Debug)]
pub(super) struct Group {
    /// `group_idx`; none for a main group whose events name none.
    pub(super) key: Option<u32>,
    pub(super) kind: Option<CacheKind>,
    /// Its stores are in the tree.
    in_tree: bool,
    /// No store had fewer hashes than blocks.
    complete: bool,
    window_tokens: Option<u32>,
    /// Tokens per block of its latest store that gave a size.
    block_tokens: Option<u32>,
    /// Copies by hash and row.
    held: FxHashMap<(u64, u8), u32>,
    /// Those of them that it never put into the tree.
    bare: FxHashSet<(u64, u8)>,
    /// Sum of the terms of `held`.
    sum: u64,
}

/// All announced groups of one owner.
#[derive(Debug, Default)]
pub(super) struct Groups {
    list: Vec<Group>,
    /// Main groups keep sets of their own.
    pub(super) sets: bool,
}

/// What a store says about its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announcement {
    pub(super) info: GroupInfo,
    pub(super) block_tokens: Option<u32>,
    /// As many hashes as the tokens fill blocks, or no tokens at all.
    pub(super) complete: bool,
}

/// Where the hashes of a store go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Into the tree (and into the group's set, if main groups keep sets).
    Main(Option<u32>),
    /// Into the group's set only.
    Side(Option<u32>),
}

/// Key of the group that an event names.
pub(super) fn key_of(info: &GroupInfo) -> Option<u32> {
    match (info.id, info.kind) {
        (Some(id), _) => Some(id.0),
        (None, Some(CacheKind::SlidingWindow | CacheKind::Mamba)) => Some(UNNUMBERED),
        (None, _) => None,
    }
}

impl Groups {
    /// Bytes that it points to.
    pub(super) fn bytes(&self) -> usize {
        let sets = self.list.iter().map(|group| {
            bytes::map::<((u64, u8), u32)>(group.held.capacity()) + bytes::map::<(u64, u8)>(group.bare.capacity())
        });
        self.list.capacity() * size_of::<Group>() + sets.sum::<usize>()
    }

    /// Gives room back after many removals.
    pub(super) fn trim(&mut self) {
        for group in &mut self.list {
            bytes::trim_map(&mut group.held);
            bytes::trim_set(&mut group.bare);
        }
    }

    pub(super) fn group(&self, key: Option<u32>) -> Option<&Group> {
        self.list.iter().find(|group| group.key == key)
    }

    fn group_mut(&mut self, key: Option<u32>) -> Option<&mut Group> {
        self.list.iter_mut().find(|group| group.key == key)
    }

    /// True for a model with a side group.
    pub(super) fn has_side(&self) -> bool {
        let kindless = self.list.iter().any(|group| group.kind.is_none());
        self.list.iter().any(|group| is_side(group.kind)) || (kindless && (self.list.len() > 1 || self.lacks_main()))
    }

    /// True while no group counts as the main one: kinds name none, and group 0, which is meant to be it, was not heard
    /// yet, or it had fewer hashes than blocks and no other group is complete.
    fn lacks_main(&self) -> bool {
        if self.list.is_empty() || self.list.iter().any(|group| group.kind == Some(CacheKind::Full)) {
            return false;
        }
        self.group(Some(0)).is_none() || self.kindless_main().is_none()
    }

    /// True if the main group's blocks alone do not decide an answer.
    pub(super) fn restricts(&self) -> bool {
        self.sets || self.has_side() || self.lacks_main()
    }

    /// True if some group's kind is unknown.
    pub(super) fn has_unknown(&self) -> bool {
        self.list.iter().any(|group| group.kind.is_none())
    }

    /// Notes a store's group and says where its hashes go. The flag is true when main groups begin to keep sets with
    /// this store: what the tree holds must then be entered with [`Self::adopt`] first.
    pub(super) fn announce(&mut self, announcement: Announcement, tree_is_used: bool) -> (Class, bool) {
        let key = key_of(&announcement.info);
        if tree_is_used && key.is_some() && !self.any_in_tree() {
            self.list.push(Group { in_tree: true, ..Group::new(None, Some(CacheKind::Full)) });
        }
        if self.group(key).is_none() {
            let kind = if key.is_none() { Some(CacheKind::Full) } else { announcement.info.kind };
            self.list.push(Group::new(key, kind));
        }
        let group = self.group_mut(key).expect("entered above");
        group.kind = announcement.info.kind.or(group.kind);
        group.window_tokens = announcement.info.window_tokens.or(group.window_tokens);
        group.block_tokens = announcement.block_tokens.or(group.block_tokens);
        group.complete &= announcement.complete;
        let main = !is_side(group.kind) && (group.kind.is_some() || announcement.complete);
        group.in_tree |= main;
        let several = self.list.iter().filter(|group| group.in_tree).count() > 1;
        let kindless = self.has_unknown() && self.list.len() > 1;
        let begins = !self.sets && (several || kindless);
        self.sets |= begins;
        (if main { Class::Main(key) } else { Class::Side(key) }, begins)
    }

    /// True if a group whose stores are in the tree turns out to be a side group with this store.
    pub(super) fn demotes(&self, info: &GroupInfo) -> bool {
        is_side(info.kind) && self.group(key_of(info)).is_some_and(|group| group.in_tree)
    }

    /// Makes a group a side group. `tree` is what the tree holds, in case the group keeps no set yet. Returns what no
    /// other main group holds.
    pub(super) fn demote(&mut self, key: Option<u32>, tree: Vec<((u64, u8), u32)>) -> Vec<(u64, u8)> {
        let adopts = !self.sets;
        let Some(group) = self.group_mut(key) else {
            return Vec::new();
        };
        group.in_tree = false;
        if adopts {
            group.held.extend(tree);
            group.sum = group.sum_of_held();
        }
        let mut held: Vec<(u64, u8)> = group.held.keys().filter(|held| !group.bare.contains(held)).copied().collect();
        // In an order that does not depend on how the set came about: it becomes that of the remembered hashes.
        held.sort_unstable();
        held.into_iter().filter(|held| !self.main_holds(*held)).collect()
    }

    /// Enters what the tree held before main groups kept sets: it belongs to the main group that was there first.
    pub(super) fn adopt(&mut self, newcomer: Option<u32>, held: impl Iterator<Item = ((u64, u8), u32)>) {
        let Some(group) = self.list.iter_mut().find(|group| group.in_tree && group.key != newcomer) else {
            return;
        };
        group.held.extend(held);
        group.sum = group.sum_of_held();
    }

    /// Adds hashes to a group's set.
    pub(super) fn store(&mut self, class: Class, hashes: &[u64], row: u8) {
        let (Class::Main(key) | Class::Side(key)) = class;
        let Some(group) = self.group_mut(key) else {
            return;
        };
        for hash in hashes {
            let copies = group.held.entry((*hash, row)).or_default();
            *copies = copies.saturating_add(1);
            if *copies == 1 {
                group.sum = group.sum.wrapping_add(group_term(*hash, row));
            }
            if class == Class::Main(key) {
                group.bare.remove(&(*hash, row));
            } else if *copies == 1 {
                group.bare.insert((*hash, row));
            }
        }
    }

    /// Takes a hash out of a group's set. `copies`: one copy only. None if it is not there, else whether the last went.
    pub(super) fn remove(
        &mut self,
        key: Option<u32>,
        held: (u64, u8),
        copies: bool,
        remaining: Option<u64>,
    ) -> Option<bool> {
        let group = self.group_mut(key)?;
        let count = group.held.get_mut(&held)?;
        *count = match remaining {
            Some(remaining) => u32::try_from(remaining).unwrap_or(u32::MAX),
            None if copies => *count - 1,
            None => 0,
        };
        let last = *count == 0;
        if last {
            group.drop(held);
        }
        Some(last)
    }

    /// Takes stores back that came to nothing.
    pub(super) fn withdraw(&mut self, key: Option<u32>, held: (u64, u8), count: u32) {
        let Some(group) = self.group_mut(key) else {
            return;
        };
        if let Some(copies) = group.held.get_mut(&held) {
            *copies = copies.saturating_sub(count);
            if *copies == 0 {
                group.drop(held);
            }
        }
    }

    /// True if a group whose stores are in the tree holds this.
    pub(super) fn main_holds(&self, held: (u64, u8)) -> bool {
        self.list.iter().any(|group| group.in_tree && group.held.contains_key(&held) && !group.bare.contains(&held))
    }

    /// Keys of all groups.
    pub(super) fn keys(&self) -> SmallVec<[Option<u32>; 4]> {
        self.list.iter().map(|group| group.key).collect()
    }

    /// True if some group's stores are in the tree.
    pub(super) fn any_in_tree(&self) -> bool {
        self.list.iter().any(|group| group.in_tree)
    }

    /// True if the group keeps a set.
    pub(super) fn keeps_set(&self, key: Option<u32>) -> bool {
        self.sets || self.group(key).is_some_and(|group| !group.in_tree)
    }

    /// The engine emptied its cache; the groups stay announced.
    pub(super) fn clear_held(&mut self) {
        for group in &mut self.list {
            group.held = FxHashMap::default();
            group.bare = FxHashSet::default();
            group.sum = 0;
        }
    }

    /// Digest of all sets, for an owner.
    pub(super) fn digest(&self, seed: u64) -> u64 {
        self.list.iter().fold(0, |sum, group| sum.wrapping_add(group_sum(group.sum, group.key, seed)))
    }

    /// The same, summed up anew.
    pub(super) fn digest_from_sets(&self, seed: u64) -> u64 {
        self.list.iter().fold(0, |sum, group| sum.wrapping_add(group_sum(group.sum_of_held(), group.key, seed)))
    }

    /// Longest prefix of at most `limit` blocks on which all groups agree, and the group that stands against one more. A
    /// walk goes through rows in the order of `stages` (each a set of rows, as bits). `links[i]` are the owner's records of block `i`.
    pub(super) fn longest(
        &self,
        links: &[Links],
        limit: u32,
        stages: &[u8],
        block_size: BlockSize,
    ) -> (u32, Option<u32>) {
        if self.lacks_main() {
            return (0, Some(0));
        }
        let main = self.kindless_main();
        let rules: SmallVec<[(Option<u32>, Rule); 4]> = self
            .list
            .iter()
            .filter(|group| self.sets || !group.in_tree)
            .map(|group| (group.key, group.rule(main == Some(group.key), &links[..limit as usize], stages, block_size)))
            .collect();
        let mut against = None;
        for len in (1..=limit).rev() {
            match rules.iter().find(|(_, rule)| !rule.allows(len)) {
                None => return (len, against),
                Some((key, _)) => against = against.or(Some(key.unwrap_or(0))),
            }
        }
        (0, against)
    }

    /// Which group without a kind counts as the main group; none where kinds name one.
    fn kindless_main(&self) -> Option<Option<u32>> {
        if self.list.iter().any(|group| group.kind == Some(CacheKind::Full)) {
            return None;
        }
        self.list.iter().filter(|group| group.kind.is_none() && group.complete).map(|group| group.key).min()
    }
}

fn is_side(kind: Option<CacheKind>) -> bool {
    matches!(kind, Some(CacheKind::SlidingWindow | CacheKind::Mamba))
}

/// What one group asks of a prefix.
enum Rule {
    /// Whole blocks of `step` index blocks, none missing up to `end`.
    All { step: u32, end: u32 },
    /// The last blocks: how many in a row end at each length, and how many must.
    Window { step: u32, runs: Vec<u32>, need: u32 },
    /// The block that ends there.
    Last(Vec<bool>),
}

impl Rule {
    fn allows(&self, len: u32) -> bool {
        match self {
            Self::All { step, end } => len.is_multiple_of(*step) && len <= *end,
            Self::Window { step, runs, need } => {
                let need = (*need).min(len / step);
                need == 0 || runs[len as usize - 1] >= need
            }
            Self::Last(present) => present[len as usize - 1],
        }
    }
}

impl Group {
    fn new(key: Option<u32>, kind: Option<CacheKind>) -> Self {
        Self {
            key,
            kind,
            in_tree: false,
            complete: true,
            window_tokens: None,
            block_tokens: None,
            held: FxHashMap::default(),
            bare: FxHashSet::default(),
            sum: 0,
        }
    }

    /// The last copy is gone.
    fn drop(&mut self, held: (u64, u8)) {
        self.held.remove(&held);
        self.bare.remove(&held);
        self.sum = self.sum.wrapping_sub(group_term(held.0, held.1));
    }

    fn sum_of_held(&self) -> u64 {
        self.held.keys().fold(0, |sum, (hash, row)| sum.wrapping_add(group_term(*hash, *row)))
    }

    /// Rows that the group has a hash on, as bits.
    fn rows(&self, hash: u64) -> u8 {
        (0..4).filter(|row| self.held.contains_key(&(hash, *row))).fold(0, |rows, row| rows | 1 << row)
    }

    fn has(&self, links: &Links, rows: u8) -> bool {
        links.iter().any(|link| self.rows(link.hash) & rows != 0)
    }

    fn rule(&self, main: bool, links: &[Links], stages: &[u8], block_size: BlockSize) -> Rule {
        let tokens = self.block_tokens.unwrap_or(block_size.tokens()).max(1);
        let step = (tokens / block_size.tokens()).max(1);
        let rows = stages.iter().fold(0, |rows, stage| rows | stage);
        match (self.kind, self.window_tokens) {
            (Some(CacheKind::Full), _) => self.all(step, links, stages),
            (None, _) if main => self.all(step, links, stages),
            (Some(CacheKind::SlidingWindow), Some(window)) => {
                let mut runs: Vec<u32> = Vec::with_capacity(links.len());
                for (index, links) in links.iter().enumerate() {
                    let before = (index as u32).checked_sub(step).map_or(0, |before| runs[before as usize]);
                    runs.push(if self.has(links, rows) { before + 1 } else { 0 });
                }
                Rule::Window { step, runs, need: window.saturating_sub(1).div_ceil(tokens) }
            }
            _ => Rule::Last(links.iter().map(|links| self.has(links, rows)).collect()),
        }
    }

    /// A walk of its own through the stages, by whole blocks of the group: only its own records carry it.
    fn all(&self, step: u32, links: &[Links], stages: &[u8]) -> Rule {
        let mut reached: SmallVec<[u64; 2]> = SmallVec::new();
        let mut ends: Vec<u8> = Vec::new();
        for (index, links) in links.iter().enumerate() {
            let is_end = (index as u32 + 1).is_multiple_of(step);
            let mut rows = 0;
            let mut here: SmallVec<[u64; 2]> = SmallVec::new();
            for link in links.iter().filter(|link| link.follows(&reached)) {
                let held = if is_end { self.rows(link.hash) } else { u8::MAX };
                rows |= held;
                if held != 0 {
                    here.push(link.hash);
                }
            }
            if here.is_empty() {
                break;
            }
            if is_end {
                ends.push(rows);
            }
            reached = here;
        }
        let mut whole = 0;
        for stage in stages {
            whole += ends[whole..].iter().take_while(|rows| *rows & stage != 0).count();
        }
        Rule::All { step, end: whole as u32 * step }
    }
}
