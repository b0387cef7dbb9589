//! The normal form of an owner's state: what it holds, in an order and numbering of its own, so that two images that
//! mean the same are equal however each came about. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::hash;
use crate::ids::{LocalHash, Tier};
use crate::image::{BlockNumber, Image, OverlayImage, OwnerImage, OwnerRest};

/// One block that an owner holds. Ordered by depth, so that the first differences are those nearest to the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    /// Blocks before it.
    pub(super) depth: u32,
    /// Identity of the path of local hashes from the root, this block included.
    pub(super) path: u64,
    /// Content of the block itself.
    pub(super) local: u64,
    pub(super) tier: Tier,
    /// The engine's hash.
    pub(super) hash: u64,
}

/// What one owner holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Normal {
    /// Ascending.
    pub(super) held: Vec<Held>,
    /// Everything rare, as lines: copies, blocks that wait, cache groups.
    pub(super) rare: BTreeSet<String>,
    /// Blocks left out: what other owners said placed them, and that may differ between replicas.
    pub(super) foreign: u64,
}

/// Path and depth of every block of an image.
pub(super) struct Paths(Vec<(u64, u32)>);

impl Paths {
    /// Of an image whose numbers fit together; blocks below one that does not exist count as roots.
    pub(super) fn of(image: &Image) -> Self {
        let mut paths: Vec<(u64, u32)> = Vec::with_capacity(image.block_count());
        for run in &image.runs {
            let parent = run.parent.and_then(|parent| paths.get(parent as usize).copied());
            // Local hashes carry their namespace; this keeps two namespaces apart even where such hashes collide.
            let seed = (!run.namespace.is_plain()).then(|| run.namespace.seed());
            let mut before = parent.map_or(seed, |(path, _)| Some(path));
            let mut depth = parent.map_or(0, |(_, depth)| depth.saturating_add(1));
            for local in image.locals.iter().skip(paths.len()).take(run.len as usize) {
                let path = hash::rolling(before, LocalHash(*local));
                paths.push((path, depth));
                (before, depth) = (Some(path), depth.saturating_add(1));
            }
        }
        Self(paths)
    }
}

/// The normal form of one owner of an image.
pub(super) fn normal(image: &Image, paths: &Paths, owner: &OwnerImage) -> Normal {
    let rest = &owner.rest;
    let free: HashSet<(BlockNumber, u64)> = rest.free.iter().copied().collect();
    let overlays: HashMap<BlockNumber, &OverlayImage> =
        rest.overlays.iter().map(|overlay| (overlay.block, overlay)).collect();
    let mut normal = Normal { rare: rare(rest), ..Normal::default() };
    // What a peer sends is not trusted to fit together: a range ends where the blocks end.
    let end = u32::try_from(paths.0.len()).unwrap_or(u32::MAX);
    for (tier, ranges) in Tier::ALL.into_iter().zip(&owner.rows) {
        for block in ranges.iter().flat_map(|(from, to)| *from..end.min(*to)) {
            let ((path, depth), local) = (&paths.0[block as usize], &image.locals[block as usize]);
            let mut add = |hash: u64| {
                if free.contains(&(block, hash)) {
                    normal.foreign += 1;
                } else {
                    normal.held.push(Held { depth: *depth, path: *path, local: *local, tier, hash });
                }
            };
            match overlays.get(&block) {
                Some(overlay) => {
                    let here = overlay.records.iter().filter(|(_, rows, _)| rows & 1 << tier as u8 != 0);
                    here.for_each(|(hash, ..)| add(*hash));
                }
                None => add(own_hash(image, owner, block)),
            }
        }
    }
    normal.held.sort_unstable();
    normal
}

/// The owner's hash of a block without an overlay.
fn own_hash(image: &Image, owner: &OwnerImage, block: BlockNumber) -> u64 {
    let next = owner.hashes.partition_point(|(from, _)| *from <= block);
    let own = next.checked_sub(1).map(|at| &owner.hashes[at]);
    let own = own.and_then(|(from, hashes)| hashes.get((block - from) as usize));
    own.or(image.engines.get(block as usize)).copied().unwrap_or_default()
}

fn rare(rest: &OwnerRest) -> BTreeSet<String> {
    let tier = |row: u8| Tier::ALL.get(usize::from(row)).map_or("recent", |tier| tier.as_str());
    let mut lines = BTreeSet::new();
    for (hash, row, count) in &rest.copies {
        lines.insert(format!("{count} copies of block {hash} on {}", tier(*row)));
    }
    for waiting in &rest.pending {
        let tiers: Vec<_> =
            Tier::ALL.iter().filter(|tier| waiting.rows & 1 << **tier as u8 != 0).map(|tier| tier.as_str()).collect();
        lines.insert(format!("block {} waits for parent {} on {}", waiting.hash, waiting.parent, tiers.join(", ")));
    }
    for group in rest.groups.iter().flat_map(|groups| &groups.list) {
        let name = group.key.map_or_else(|| "unnumbered".to_owned(), |key| key.to_string());
        let kind = match group.kind {
            Some(0) => "full",
            Some(1) => "sliding window",
            Some(2) => "mamba",
            _ => "of unknown kind",
        };
        let window = group.window_tokens.map(|tokens| format!(", {tokens} tokens")).unwrap_or_default();
        lines.insert(format!("cache group {name} is {kind}{window}"));
        for (hash, row, count) in &group.held {
            lines.insert(format!("cache group {name} holds block {hash} on {}, {count} times", tier(*row)));
        }
    }
    lines
}

/// What stands in one of two sorted lists only: how many, and the first of them.
pub(super) fn only_in<T: Ord + Copy>(left: &[T], right: &[T], first_max: usize) -> (u64, Vec<T>) {
    let (mut count, mut first) = (0, Vec::new());
    let mut others = right.iter().peekable();
    for item in left {
        while others.peek().is_some_and(|other| *other < item) {
            others.next();
        }
        if others.peek() == Some(&item) {
            others.next();
            continue;
        }
        count += 1;
        if first.len() < first_max {
            first.push(*item);
        }
    }
    (count, first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Namespace, Owner, OwnerSpec};
    use crate::image::ImageRun;
    use crate::trust::Trust;

    fn run(parent: Option<u32>, len: u32) -> ImageRun {
        ImageRun { parent, len, namespace: Namespace::default() }
    }

    fn owner(rows: [Vec<(u32, u32)>; 5], hashes: Vec<(u32, Vec<u64>)>, rest: OwnerRest) -> OwnerImage {
        let (spec, trust) = (OwnerSpec::default(), Trust::default());
        OwnerImage { owner: Owner::new(1, 0), spec, trust, rows, hashes, recents: vec![], rest }
    }

    fn of(image: &Image) -> Normal {
        normal(image, &Paths::of(image), &image.owners[0])
    }

    /// Blocks 10, 11, then 12 and 13 as two branches; all on the device, the first branch on the host too.
    fn as_one_tree() -> Image {
        Image {
            runs: vec![run(None, 2), run(Some(1), 1), run(Some(1), 1)],
            locals: vec![10, 11, 12, 13],
            engines: vec![100, 101, 102, 103],
            owners: vec![owner([vec![(0, 4)], vec![(2, 3)], vec![], vec![], vec![]], vec![], OwnerRest::default())],
        }
    }

    #[test]
    fn numbering_and_the_place_of_hashes_do_not_matter() {
        let other = Image {
            // The other branch first, other content in between, and the owner's own hashes apart.
            runs: vec![run(None, 1), run(None, 3), run(Some(2), 1)],
            locals: vec![99, 10, 11, 13, 12],
            engines: vec![1, 2, 3, 4, 102],
            owners: vec![owner(
                [vec![(1, 5)], vec![(4, 5)], vec![], vec![], vec![(0, 1)]],
                vec![(1, vec![100, 101, 103])],
                OwnerRest::default(),
            )],
        };
        assert_eq!(of(&as_one_tree()), of(&other));
        assert_eq!(of(&other).held.iter().map(|held| held.depth).collect::<Vec<_>>(), [0, 1, 2, 2, 2]);
    }

    #[test]
    fn another_hash_path_tier_or_copy_is_a_difference() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut Image)) {
            let mut image = as_one_tree();
            change(&mut image);
            assert_ne!(of(&as_one_tree()), of(&image));
        }
        check(|image| image.engines[3] = 7);
        check(|image| image.runs[2].parent = Some(0));
        check(|image| image.locals[0] = 7);
        check(|image| image.owners[0].rows[1] = vec![]);
        check(|image| image.runs[0].namespace.salt = Some(3));
        check(|image| image.owners[0].rest.copies = vec![(100, 0, 2)]);
    }

    #[test]
    fn overlays_give_each_tier_its_hashes_and_foreign_blocks_are_left_out() {
        let mut image = as_one_tree();
        let overlay = OverlayImage { block: 2, main: 102, records: vec![(102, 0b01, vec![]), (55, 0b11, vec![101])] };
        image.owners[0].rest.overlays = vec![overlay];
        let found = of(&image);
        let third: Vec<_> =
            found.held.iter().filter(|held| held.local == 12).map(|held| (held.tier, held.hash)).collect();
        assert_eq!(third, [(Tier::Device, 55), (Tier::Device, 102), (Tier::HostPinned, 55)]);
        image.owners[0].rest.free = vec![(2, 55)];
        let found = of(&image);
        assert_eq!((found.held.len(), found.foreign), (4, 2));
    }

    #[test]
    fn differences_are_counted_and_the_first_are_kept() {
        assert_eq!(only_in(&[1, 2, 3, 5, 8], &[2, 4, 5], 2), (3, vec![1, 3]));
        assert_eq!(only_in::<u8>(&[], &[1], 2), (0, vec![]));
        assert_eq!(only_in(&[1, 1], &[1], 2), (1, vec![1]));
    }

    #[test]
    fn an_image_that_does_not_fit_together_is_no_panic() {
        let mut image = as_one_tree();
        image.runs[1].parent = Some(900);
        image.runs.push(run(Some(3), 1000));
        image.owners[0].rows[2] = vec![(2, 4000)];
        image.owners[0].hashes = vec![(3, vec![])];
        let found = of(&image);
        assert_eq!(found.held.iter().filter(|held| held.tier == Tier::Disk).count(), 2);
    }
}
