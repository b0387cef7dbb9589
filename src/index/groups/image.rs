//! Announced groups as values, and back.

use super::{Group, Groups};
use crate::event::CacheKind;
use crate::image::{GroupImage, GroupsImage};

/// Kinds by their number in an image.
const KINDS: [CacheKind; 3] = [CacheKind::Full, CacheKind::SlidingWindow, CacheKind::Mamba];

impl Groups {
    /// All groups with what they hold.
    pub(in crate::index) fn image(&self) -> GroupsImage {
        GroupsImage { list: self.list.iter().map(Group::image).collect(), sets: self.sets }
    }

    /// The groups of a checked image.
    pub(in crate::index) fn from_image(image: &GroupsImage) -> Self {
        Self { list: image.list.iter().map(Group::from_image).collect(), sets: image.sets }
    }
}

impl Group {
    fn image(&self) -> GroupImage {
        let mut held: Vec<_> = self.held.iter().map(|((hash, row), count)| (*hash, *row, *count)).collect();
        held.sort_unstable();
        let mut bare: Vec<_> = self.bare.iter().copied().collect();
        bare.sort_unstable();
        let number = |kind: CacheKind| KINDS.iter().position(|other| *other == kind).map_or(0, |number| number as u8);
        GroupImage {
            key: self.key,
            kind: self.kind.map(number),
            in_tree: self.in_tree,
            complete: self.complete,
            window_tokens: self.window_tokens,
            block_tokens: self.block_tokens,
            held,
            bare,
        }
    }

    fn from_image(image: &GroupImage) -> Self {
        let mut group = Self {
            in_tree: image.in_tree,
            complete: image.complete,
            window_tokens: image.window_tokens,
            block_tokens: image.block_tokens,
            held: image.held.iter().map(|(hash, row, count)| ((*hash, *row), *count)).collect(),
            bare: image.bare.iter().copied().collect(),
            ..Self::new(image.key, image.kind.and_then(|kind| KINDS.get(usize::from(kind)).copied()))
        };
        group.sum = group.sum_of_held();
        group
    }
}
