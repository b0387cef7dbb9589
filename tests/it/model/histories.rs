//! Random histories: small alphabets, so that re-stores, forks, holes and collisions are common. A history is a plain
//! list of steps; any sub-list is a history too, which makes shrinking simple.

use std::hash::{DefaultHasher, Hash, Hasher};

use kvindexer::event::{CacheKind, GroupInfo, IgnoreReason, SkipReason};
use kvindexer::ids::{DuplicatePolicy, GroupId, Namespace, Owner, Role, Tier};
use kvindexer::index::{Clear, Limits, OwnerSpec};

use super::batches::{Letter, Said};

/// One step of a history; owners by their position in [`History::owners`].
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Apply { owner: usize, said: Vec<Said> },
    Clear { owner: usize, clear: Clear },
    Rebuild { owner: usize },
    Skip { owner: usize, reason: SkipReason },
    Register { owner: usize, policy: DuplicatePolicy },
    Unregister { owner: usize },
}

/// An owner that may come and go.
#[derive(Debug, Clone)]
pub(crate) struct Character {
    pub(crate) owner: Owner,
    /// Known by batches only, like the first owner.
    pub(crate) interned: bool,
    pub(crate) spec: OwnerSpec,
    style: Style,
    groups: Vec<(GroupInfo, Shape)>,
}

/// How an engine makes its hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A chain hash; owners with the same seed agree.
    Chain { seed: u64 },
    /// Two chain hashes for each content.
    Two { seed: u64 },
    /// So few hashes that contents collide.
    Few { count: u64 },
}

/// Which of its hashes a cache group announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Whole,
    Some,
    Last,
}

/// A whole history.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub(crate) seed: u64,
    pub(crate) block_size: u32,
    pub(crate) limits: Limits,
    pub(crate) owners: Vec<Character>,
    pub(crate) steps: Vec<Step>,
    /// Chains that the engines work on, for questions.
    pub(crate) chains: Vec<Chain>,
}

/// A prompt.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) namespace: Namespace,
    pub(crate) letters: Vec<Letter>,
}

const NAMESPACES: [Namespace; 4] = [
    Namespace { lora: None, salt: None },
    Namespace { lora: Some(1000), salt: None },
    Namespace { lora: None, salt: Some(20_000) },
    Namespace { lora: Some(1000), salt: Some(20_000) },
];

const POLICIES: [DuplicatePolicy; 4] =
    [DuplicatePolicy::Auto, DuplicatePolicy::Auto, DuplicatePolicy::Set, DuplicatePolicy::Copies];

/// Which features a history has; each is left out often enough that the others are seen alone.
#[derive(Debug, Clone, Copy)]
struct Profile {
    namespaces: bool,
    images: bool,
    spans: bool,
    lower_tiers: bool,
    bare: bool,
    faults: bool,
    lives: bool,
    orphans: bool,
    remaining: bool,
    hybrids: bool,
}

struct Maker {
    rng: fastrand::Rng,
    profile: Profile,
    block_size: u32,
    owners: Vec<Character>,
    chains: Vec<Chain>,
}

/// Makes the history of a seed.
pub(crate) fn history(seed: u64, steps: usize) -> History {
    let mut rng = fastrand::Rng::with_seed(seed);
    let small = rng.u8(..4) == 0;
    let mut flag = |odds: u8| rng.u8(..odds) == 0;
    let profile = Profile {
        namespaces: flag(3),
        images: flag(4),
        spans: !small && flag(4),
        lower_tiers: flag(2),
        bare: flag(2),
        faults: flag(3),
        lives: flag(3),
        orphans: flag(2),
        remaining: flag(4),
        hybrids: flag(3),
    };
    let profile = Profile { spans: profile.spans && !profile.hybrids, ..profile };
    let block_size = 1 + u32::from(rng.bool());
    let limits = if small {
        Limits { recent_hashes_max: 8, pending_blocks_max: 8, removals_remembered_max: 8, held_blocks_max: 0 }
    } else {
        Limits {
            recent_hashes_max: 65_536,
            pending_blocks_max: 65_536,
            removals_remembered_max: 1_024,
            held_blocks_max: 0,
        }
    };
    let mut maker = Maker { rng, profile, block_size, owners: Vec::new(), chains: Vec::new() };
    maker.owners = maker.make_owners();
    let chains = 3 + maker.rng.usize(..6);
    for _ in 0..chains {
        let chain = maker.make_chain();
        maker.chains.push(chain);
    }
    let steps = (0..steps).map(|_| maker.step()).collect();
    History { seed, block_size, limits, owners: maker.owners, steps, chains: maker.chains }
}

impl Maker {
    fn odds(&mut self, one_in: u32) -> bool {
        self.rng.u32(..one_in) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())].clone()
    }

    fn make_owners(&mut self) -> Vec<Character> {
        let pool = !self.profile.hybrids && self.odds(4);
        let names = [Owner::new(1, 0), Owner::new(1, 1), Owner::new(2, 0), Owner::new(9, 0)];
        let count = 1 + self.rng.usize(..names.len());
        let few = self.odds(4);
        let shared = self.odds(2);
        let mut owners = Vec::new();
        for (i, owner) in names.into_iter().take(count).enumerate() {
            let seed = if shared { 0 } else { i as u64 };
            // The rules leave open what a second hash of one content means to cache groups, and colliding hashes that are
            // a span at one place and a single block at another, or have a place and wait for a parent as well.
            let style = match self.rng.u8(..6) {
                _ if self.profile.hybrids => Style::Chain { seed },
                0 if few && !self.profile.spans && !self.profile.orphans => Style::Few { count: 12 },
                0 | 1 => Style::Two { seed },
                _ => Style::Chain { seed },
            };
            let policy = self.pick(&POLICIES);
            let role = if pool && i == 3 { Role::Store } else { Role::Worker };
            let groups =
                if self.profile.hybrids { self.make_groups() } else { vec![(GroupInfo::default(), Shape::Whole)] };
            let interned = i == 1 && self.odds(2);
            owners.push(Character {
                owner,
                interned,
                spec: OwnerSpec { policy, role, lower_tier_ttl_ms: None },
                style,
                groups,
            });
        }
        owners
    }

    fn make_groups(&mut self) -> Vec<(GroupInfo, Shape)> {
        let group = |id: u32, kind: Option<CacheKind>, window_tokens: Option<u32>| GroupInfo {
            id: Some(GroupId(id)),
            kind,
            window_tokens,
        };
        let full = Some(CacheKind::Full);
        let window = (Some(CacheKind::SlidingWindow), Some(1 + self.rng.u32(..4 * self.block_size)));
        match self.rng.u8(..9) {
            0 => vec![(GroupInfo::default(), Shape::Whole)],
            1 => vec![(group(0, full, None), Shape::Whole)],
            2 => vec![(group(0, full, None), Shape::Whole), (group(1, window.0, window.1), Shape::Whole)],
            3 => vec![(group(0, full, None), Shape::Whole), (group(1, window.0, window.1), Shape::Some)],
            4 => vec![(group(0, Some(CacheKind::Mamba), None), Shape::Last), (group(1, full, None), Shape::Whole)],
            5 => vec![(group(0, full, None), Shape::Whole), (group(1, full, None), Shape::Whole)],
            6 => vec![
                (group(0, full, None), Shape::Whole),
                (group(1, window.0, window.1), Shape::Some),
                (group(2, Some(CacheKind::Mamba), None), Shape::Last),
                (group(3, full, None), Shape::Whole),
            ],
            7 => vec![(group(0, None, None), Shape::Last), (group(1, None, None), Shape::Whole)],
            _ => vec![(group(0, None, None), Shape::Whole), (group(1, None, None), Shape::Last)],
        }
    }

    fn letter(&mut self) -> Letter {
        let image = (self.profile.images && self.odds(5)).then(|| self.rng.u64(7..9));
        Letter { token: self.rng.u32(1..4), image }
    }

    /// A fork of a known chain, or a fresh one.
    fn make_chain(&mut self) -> Chain {
        let mut chain = if self.chains.is_empty() || self.odds(3) {
            let namespace = if self.profile.namespaces { self.pick(&NAMESPACES) } else { NAMESPACES[0] };
            Chain { namespace, letters: Vec::new() }
        } else {
            let chains = self.chains.clone();
            let mut fork = self.pick(&chains);
            fork.letters.truncate(self.rng.usize(..=fork.letters.len()));
            fork
        };
        for _ in 0..1 + self.rng.usize(..7) {
            let letter = self.letter();
            chain.letters.push(letter);
        }
        chain
    }

    fn step(&mut self) -> Step {
        let owner = self.rng.usize(..self.owners.len());
        if self.odds(25) {
            let chain = self.make_chain();
            self.chains.push(chain);
        }
        if self.profile.lives && self.odds(12) {
            return match self.rng.u8(..6) {
                0 => Step::Clear { owner, clear: Clear::NewLife },
                1 => Step::Rebuild { owner },
                2 => Step::Unregister { owner },
                3 => Step::Register { owner, policy: self.pick(&POLICIES) },
                _ => Step::Clear { owner, clear: Clear::AllBlocksCleared },
            };
        }
        if self.profile.faults && self.odds(30) {
            return Step::Skip { owner, reason: SkipReason::UndecodableBatch };
        }
        let events = if self.odds(3) { 1 + self.rng.usize(..4) } else { 1 };
        let said = (0..events).flat_map(|_| self.event(owner)).collect();
        Step::Apply { owner, said }
    }

    fn event(&mut self, owner: usize) -> Vec<Said> {
        if self.profile.faults && self.odds(12) {
            return vec![self.fault(owner)];
        }
        match self.rng.u8(..20) {
            0..10 => self.store(owner),
            10..12 if self.profile.bare => vec![self.bare(owner)],
            10..19 => vec![self.removal(owner)],
            _ if self.profile.lives && self.odds(3) => vec![Said::Cleared],
            _ => self.store(owner),
        }
    }

    fn tier(&mut self) -> Tier {
        if !self.profile.lower_tiers {
            return Tier::Device;
        }
        self.pick(&[
            Tier::Device,
            Tier::Device,
            Tier::Device,
            Tier::HostPinned,
            Tier::HostPinned,
            Tier::Disk,
            Tier::External,
        ])
    }

    /// The engine's hash of the first `len` blocks of a chain.
    fn hash(&self, owner: usize, (chain, len): (&Chain, usize), variant: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (chain.namespace, &chain.letters[..len]).hash(&mut hasher);
        match self.owners[owner].style {
            Style::Chain { seed } => (seed, variant / 2).hash(&mut hasher),
            Style::Two { seed } => ("two", seed, variant).hash(&mut hasher),
            Style::Few { count } => return hasher.finish() % count,
        }
        hasher.finish()
    }

    /// A chain, a range of its blocks, and the variant of the hashes.
    fn span(&mut self) -> (Chain, usize, usize, u64) {
        let chains = self.chains.clone();
        let chain = self.pick(&chains);
        let start = if self.odds(2) { 0 } else { self.rng.usize(..chain.letters.len()) };
        let end = start + 1 + self.rng.usize(..(chain.letters.len() - start).min(5));
        let variant = self.rng.u64(..2);
        (chain, start, end, variant)
    }

    fn store(&mut self, owner: usize) -> Vec<Said> {
        let (chain, start, end, variant) = self.span();
        let twice = self.profile.spans && (end - start).is_multiple_of(2) && self.odds(2);
        let variant = if twice { variant + 2 } else { variant };
        // One hash that names two parents while it waits is left out: a hash names its whole prefix.
        let above = match self.rng.u8(..20) {
            _ if self.profile.orphans => variant,
            0..5 if self.profile.spans => variant ^ 2,
            5..9 => variant ^ 1,
            _ => variant,
        };
        if self.profile.orphans || start == 0 {
            return self.stretch(owner, &chain, (start, end), (variant, above));
        }
        let above = if start.is_multiple_of(2) { above } else { above % 2 };
        let mut said = self.stretch(owner, &chain, (0, start), (above, above));
        if !said.is_empty() {
            said.extend(self.stretch(owner, &chain, (start, end), (variant, above)));
        }
        said
    }

    /// Stores blocks `start..end` of a chain, as hashes of one variant below a parent of another, in all groups.
    fn stretch(
        &mut self,
        owner: usize,
        chain: &Chain,
        (start, end): (usize, usize),
        (variant, above): (u64, u64),
    ) -> Vec<Said> {
        let pieces = if variant > 1 { 2 } else { 1 };
        let parent = (start > 0).then(|| self.hash(owner, (chain, start), above));
        let hashes: Vec<u64> =
            (start + pieces..=end).step_by(pieces).map(|len| self.hash(owner, (chain, len), variant)).collect();
        let mut seen: Vec<u64> = hashes.iter().copied().chain(parent).collect();
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair[0] == pair[1]) {
            return Vec::new();
        }
        let named = match (start, self.rng.u8(..20)) {
            (0, _) | (_, 0) => chain.namespace,
            (_, 1) if self.profile.faults => self.pick(&NAMESPACES),
            _ => Namespace::default(),
        };
        let tier = self.tier();
        let letters = chain.letters[start..end].to_vec();
        let groups = self.owners[owner].groups.clone();
        let mut said = Vec::new();
        for (group, shape) in groups {
            if self.odds(12) {
                continue;
            }
            let hashes = match shape {
                Shape::Whole => hashes.clone(),
                Shape::Some => hashes.iter().copied().filter(|_| !self.odds(3)).collect(),
                Shape::Last => hashes.last().copied().into_iter().collect(),
            };
            let block_tokens = self.block_size * pieces as u32;
            said.push(Said::Stored { hashes, parent, letters: letters.clone(), block_tokens, named, tier, group });
        }
        said
    }

    fn some_hashes(&mut self, owner: usize) -> Vec<u64> {
        let (chain, start, end, variant) = self.span();
        let variant = if self.profile.spans && self.odds(3) { variant + 2 } else { variant };
        let mut hashes: Vec<u64> = Vec::new();
        for len in start + 1..=end {
            let hash = self.hash(owner, (&chain, len), variant);
            if !self.odds(3) && !hashes.contains(&hash) {
                hashes.push(hash);
            }
        }
        if self.odds(2) {
            hashes.reverse();
        }
        hashes
    }

    fn some_group(&mut self, owner: usize) -> GroupInfo {
        let groups = self.owners[owner].groups.clone();
        let (group, _) = self.pick(&groups);
        GroupInfo { id: group.id, ..GroupInfo::default() }
    }

    fn removal(&mut self, owner: usize) -> Said {
        let hashes = self.some_hashes(owner);
        let remaining =
            (self.profile.remaining && self.odds(2)).then(|| hashes.iter().map(|_| self.rng.u64(..3)).collect());
        Said::Removed { hashes, tier: self.tier(), group: self.some_group(owner), remaining }
    }

    fn bare(&mut self, owner: usize) -> Said {
        let hashes = self.some_hashes(owner);
        let tier = self.pick(&[Tier::HostPinned, Tier::HostPinned, Tier::Disk, Tier::External]);
        Said::Bare { hashes, tier, group: self.some_group(owner) }
    }

    fn fault(&mut self, owner: usize) -> Said {
        let (chain, start, end, variant) = self.span();
        let letters = chain.letters[start..end].to_vec();
        let group = self.owners[owner].groups.iter().find(|(_, shape)| *shape == Shape::Whole).expect("a main group").0;
        let fault = self.rng.u8(..4);
        let hash = |len: usize| self.hash(owner, (&chain, len), variant);
        let (hashes, block_tokens, count) = match (fault, self.block_size) {
            (0, size) => ((start + 1..=end).map(hash).chain([1]).collect(), size, letters.len()),
            (1, 2) => (vec![hash(start + 1), 2], 1, 1),
            (2, 2) if letters.len() >= 3 => (vec![hash(start + 1), 3], 3, 3),
            (3, _) => return Said::Ignored(IgnoreReason::ForeignOwnership),
            _ => return Said::Skipped(SkipReason::UnknownMedium),
        };
        let letters = letters[..count].to_vec();
        Said::Stored { hashes, parent: None, letters, block_tokens, named: chain.namespace, tier: self.tier(), group }
    }
}
