//! Images: what leaves an index and enters another decides every later answer alike.
//!
//! Index `A` lives through a whole history. At a random step some of its owners are copied into `B`, which holds other
//! owners of the same history (or the same, in an earlier state); from there on both go through the rest, and must agree
//! after every step. Owners that are only in `B` as long as the copy lasts are given back, so that nothing stays behind.

use kvindexer::event::Batch;
use kvindexer::ids::{BlockSize, LocalHash, Owner, Role, Seq};
use kvindexer::image::{BlockNumber, Image};
use kvindexer::index::{ApplyContext, MatchEnd, OwnerId, OwnerSpec, PrefixIndex, Stats, StopReason};

use super::batches::{Said, batch};
use super::histories::{Character, History, Step};
use super::properties::{contents, failures_of, histories};

const STEPS: usize = 60;
const HISTORIES: u64 = 300;
const QUERIES_PER_STEP: usize = 3;

/// One index on its way through a history.
struct Life {
    index: PrefixIndex,
    seq: u64,
}

impl Life {
    fn new(history: &History) -> Self {
        let size = BlockSize::new(history.block_size).expect("at least one");
        Self { index: PrefixIndex::new(size, history.limits), seq: 0 }
    }

    /// Makes an owner known if need be.
    fn ensure(&mut self, history: &History, at: usize) -> OwnerId {
        let Character { owner, interned, .. } = &history.owners[at];
        if let Some(id) = self.index.owner_id(owner) {
            return id;
        }
        match self.index.owner_id(&history.owners[0].owner) {
            Some(like) if *interned => self.index.intern(owner, like, self.seq),
            _ => self.index.register(owner, spec_of(history, at), self.seq),
        }
    }

    fn play(&mut self, history: &History, step: &Step) {
        self.seq += 1;
        let now_ms = self.seq;
        let owner = owner_of(step);
        if let Step::Unregister { .. } = step {
            self.index.unregister(&history.owners[owner].owner);
            return;
        }
        let id = self.ensure(history, owner);
        match step {
            Step::Apply { said, .. } => {
                let context = ApplyContext { seq: Seq(self.seq), now_ms };
                let timestamp_ms = Some(self.seq);
                self.index.apply(id, &Batch { timestamp_ms, ..batch(said, history.block_size) }, context);
            }
            Step::Clear { clear, .. } => self.index.clear(id, *clear, now_ms),
            Step::Rebuild { .. } => self.index.begin_rebuild(id, now_ms),
            Step::Skip { reason, .. } => self.index.skip(id, *reason, now_ms),
            Step::Register { policy, .. } => {
                let spec = OwnerSpec { policy: *policy, ..spec_of(history, owner) };
                self.index.register(&history.owners[owner].owner, spec, now_ms);
            }
            Step::Unregister { .. } => unreachable!("handled above"),
        }
    }

    fn ids(&self, owners: &[Owner]) -> Vec<OwnerId> {
        owners.iter().filter_map(|owner| self.index.owner_id(owner)).collect()
    }
}

/// In every third history blocks of lower tiers age out.
fn spec_of(history: &History, at: usize) -> OwnerSpec {
    let lower_tier_ttl_ms = history.seed.is_multiple_of(3).then_some(12);
    OwnerSpec { lower_tier_ttl_ms, ..history.owners[at].spec }
}

fn owner_of(step: &Step) -> usize {
    match step {
        Step::Apply { owner, .. }
        | Step::Clear { owner, .. }
        | Step::Rebuild { owner }
        | Step::Skip { owner, .. }
        | Step::Register { owner, .. }
        | Step::Unregister { owner } => *owner,
    }
}

/// The same image without hashes of blocks that none of its owners knows or hangs a block below: those are the first
/// storer's, whoever that was.
fn settled(mut image: Image) -> Image {
    let mut decides = vec![false; image.block_count()];
    let mut parents: Vec<Option<BlockNumber>> = Vec::with_capacity(image.block_count());
    for run in &image.runs {
        let start = parents.len() as BlockNumber;
        parents.push(run.parent);
        parents.extend((start..start + run.len - 1).map(Some));
    }
    for (from, to) in image.owners.iter().flat_map(|owner| owner.rows.iter().flatten()) {
        for number in *from..*to {
            decides[number as usize] = true;
            if let Some(parent) = parents[number as usize] {
                decides[parent as usize] = true;
            }
        }
    }
    for (number, decides) in decides.iter().enumerate() {
        if !decides {
            image.engines[number] = 0;
        }
    }
    image
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a:?} there, {b:?} here")) }
}

/// Everything that both tell about these owners.
fn agree(a: &Life, b: &Life, owners: &[Owner], queries: &[Vec<LocalHash>]) -> Result<(), String> {
    a.index.audit().map_err(|what| format!("audit there: {what}"))?;
    b.index.audit().map_err(|what| format!("audit here: {what}"))?;
    for owner in owners {
        let (Some(there), Some(here)) = (a.index.owner_id(owner), b.index.owner_id(owner)) else {
            same(&format!("{owner} known"), &a.index.owner_id(owner).is_some(), &b.index.owner_id(owner).is_some())?;
            continue;
        };
        same(&format!("{owner} trust"), &a.index.trust(there), &b.index.trust(here))?;
        same(&format!("{owner} blocks"), &a.index.report(there).blocks, &b.index.report(here).blocks)?;
        same(&format!("{owner} pending"), &a.index.report(there).pending_blocks, &b.index.report(here).pending_blocks)?;
        let sorted = |index: &PrefixIndex, id| {
            let mut blocks = index.dump(id);
            if index.digest(id).foreign_blocks > 0 {
                // A block that others placed shows the first storer's hash as its parent, whoever that is here.
                blocks.iter_mut().for_each(|block| block.parent = None);
            }
            blocks.sort_by_key(|block| (block.tier, block.hash, block.local, block.pending, block.parent));
            blocks
        };
        same(&format!("{owner} dump"), &sorted(&a.index, there), &sorted(&b.index, here))?;
        same(&format!("{owner} digest"), &a.index.digest(there), &b.index.digest(here))?;
        same(&format!("{owner} digest anew"), &a.index.digest_from_records(there), &b.index.digest(here))?;
    }
    for query in queries {
        let rows = |index: &PrefixIndex| -> Vec<_> {
            let answer = index.find(query);
            let rows = answer.owners().filter(|row| owners.contains(row.owner) && row.disk > 0);
            rows.map(|row| {
                let reach = [row.device, row.host_pinned, row.disk];
                (row.owner.clone(), reach, row.own_prefix, row.trust)
            })
            .collect()
        };
        same("find", &rows(&a.index), &rows(&b.index))?;
        let ends = |index: &PrefixIndex| {
            let explanations = index.explain(query).into_iter().filter(|e| owners.contains(&e.owner));
            explanations.map(|e| (e.owner, [e.device_end, e.total_end].map(without_others))).collect::<Vec<_>>()
        };
        same("explain", &ends(&a.index), &ends(&b.index))?;
    }
    Ok(())
}

fn without_bytes(index: &PrefixIndex) -> Stats {
    Stats { bytes: 0, ..index.stats() }
}

/// Whether nobody ever announced a content depends on the other owners, and so does the hash of a block that its owner has
/// forgotten, by which its removal is found.
fn without_others(mut end: MatchEnd) -> MatchEnd {
    if matches!(end.reason, StopReason::NeverStored | StopReason::Removed { .. }) {
        end.reason = StopReason::RemovedOrNeverStored;
    }
    end
}

/// Copies the owners over, and back into an empty index; all three images are one.
fn carry(a: &Life, b: &mut Life, owners: &[Owner]) -> Result<(), String> {
    let image = a.index.export(&a.ids(owners));
    b.index.import(&image, b.seq).map_err(|error| error.to_string())?;
    let again = b.index.export(&b.ids(owners));
    let known: Vec<&Owner> = image.owners.iter().map(|owner| &owner.owner).collect();
    same("owners of the image", &known, &again.owners.iter().map(|owner| &owner.owner).collect())?;
    let there = settled(image.clone());
    let mut here = settled(again);
    for (there, here) in there.owners.iter().zip(&mut here.owners) {
        // A registered owner keeps its own spec, and its own view of the connection.
        here.spec = there.spec;
        here.trust = there.trust;
    }
    same("image", &there, &here)?;
    let mut empty = a.index.successor();
    empty.import(&image, 0).map_err(|error| error.to_string())?;
    let ids: Vec<OwnerId> = owners.iter().filter_map(|owner| empty.owner_id(owner)).collect();
    same("image of an empty index", &image, &empty.export(&ids))
}

fn queries(history: &History, rng: &mut fastrand::Rng) -> Vec<Vec<LocalHash>> {
    (0..QUERIES_PER_STEP)
        .map(|_| contents(&history.chains[rng.usize(..history.chains.len())], history.block_size))
        .collect()
}

/// True if what the step says may be placed by what other owners know.
fn asks_others(step: &Step) -> bool {
    matches!(step, Step::Apply { said, .. } if said.iter().any(|said| matches!(said, Said::Bare { .. })))
}

fn play(history: &History) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(history.seed ^ 77);
    let moment = rng.usize(..=history.steps.len());
    let mut moved: Vec<usize> = (0..history.owners.len()).filter(|_| rng.bool()).collect();
    if moved.is_empty() {
        moved.push(rng.usize(..history.owners.len()));
    }
    // An interned owner takes its spec from the first one.
    if moved.iter().any(|at| history.owners[*at].interned) && !moved.contains(&0) {
        moved.push(0);
    }
    let stale = rng.bool();
    let owners: Vec<Owner> = moved.iter().map(|at| history.owners[*at].owner.clone()).collect();
    let (mut a, mut b) = (Life::new(history), Life::new(history));
    // Others that asked those who are not in `B` before the copy are not the same in both; nobody asks them afterwards.
    let others_differ =
        history.steps[..moment].iter().any(|step| asks_others(step) && !moved.contains(&owner_of(step)));
    let pools = history.owners.iter().any(|owner| owner.spec.role == Role::Store);
    for (i, step) in history.steps.iter().enumerate() {
        let what = |what: String| format!("step {i}, moved {owners:?} at {moment}: {what}");
        if i == moment {
            for at in &moved {
                // What is registered there is registered here too.
                if a.index.owner_id(&history.owners[*at].owner).is_some() {
                    b.ensure(history, *at);
                }
            }
            for owner in owners.iter().filter(|owner| a.index.owner_id(owner).is_none()) {
                b.index.unregister(owner);
            }
            carry(&a, &mut b, &owners).map_err(what)?;
            for at in &moved {
                let owner = &history.owners[*at].owner;
                if let (Some(there), Some(here)) = (a.index.owner_id(owner), b.index.owner_id(owner))
                    && b.index.report(here).registered
                {
                    // What is registered here keeps its spec; replicas get registrations by another way.
                    let spec = a.index.export(&[there]).owners[0].spec;
                    b.index.register(owner, spec, 0);
                }
            }
        }
        let own = moved.contains(&owner_of(step));
        if i >= moment && others_differ && asks_others(step) {
            a.play(history, &Step::Skip { owner: owner_of(step), reason: kvindexer::event::SkipReason::UnknownHash });
            b.play(history, &Step::Skip { owner: owner_of(step), reason: kvindexer::event::SkipReason::UnknownHash });
        } else {
            a.play(history, step);
            // Before the copy, `B` lives through what others do, and perhaps through a part of what these owners do.
            if i >= moment || !own || (stale && i % 3 != 0) {
                b.play(history, step);
            } else {
                b.seq += 1;
            }
        }
        if i >= moment {
            let queries = if pools { Vec::new() } else { queries(history, &mut rng) };
            agree(&a, &b, &owners, &queries).map_err(what)?;
        }
    }
    for character in &history.owners {
        b.index.unregister(&character.owner);
    }
    same("left behind", &without_bytes(&b.index), &Stats::default())
}

#[test]
fn owners_that_were_copied_answer_like_the_original_ever_after() {
    let failures = failures_of(histories(HISTORIES), STEPS, play);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Changes one random thing of an image.
fn spoil(image: &mut Image, rng: &mut fastrand::Rng) {
    let number = |rng: &mut fastrand::Rng| if rng.bool() { rng.u32(..12) } else { rng.u32(..) };
    let count = image.block_count().max(1);
    if let Some(hash) = image.engines.get_mut(rng.usize(..count))
        && rng.u8(..6) == 0
    {
        *hash = rng.u64(..4);
    }
    match rng.u8(..8) {
        0 => {
            let at = rng.usize(..count);
            let from = image.locals.get(rng.usize(..count)).copied().unwrap_or(1);
            image.locals.get_mut(at).into_iter().for_each(|local| *local = from);
        }
        1 => drop(image.engines.pop()),
        2 if !image.runs.is_empty() => {
            let at = rng.usize(..image.runs.len());
            let run = &mut image.runs[at];
            match rng.u8(..4) {
                0 => run.parent = rng.bool().then(|| number(rng)),
                1 => run.len = number(rng),
                2 => run.namespace = kvindexer::ids::Namespace { lora: Some(rng.u64(..3)), salt: None },
                _ => drop(image.runs.remove(at)),
            }
        }
        3 if !image.runs.is_empty() => {
            let at = rng.usize(..image.runs.len());
            image.runs.swap(0, at);
        }
        4 if !image.owners.is_empty() => {
            let again = image.owners[rng.usize(..image.owners.len())].clone();
            let at = rng.usize(..image.owners.len());
            let name = image.owners[at].owner.clone();
            image.owners[at] = again;
            if rng.bool() {
                image.owners[at].owner = name;
            }
        }
        _ if !image.owners.is_empty() => {
            let at = rng.usize(..image.owners.len());
            spoil_owner(&mut image.owners[at], rng);
        }
        _ => {}
    }
}

fn spoil_owner(owner: &mut kvindexer::image::OwnerImage, rng: &mut fastrand::Rng) {
    let number = if rng.bool() { rng.u32(..12) } else { rng.u32(..) };
    let hash = if rng.bool() { rng.u64(..12) } else { rng.u64(..) };
    let row = rng.u8(..7);
    let rest = &mut owner.rest;
    match rng.u8(..18) {
        0 => owner.rows[usize::from(row) % 5].push((number, number.wrapping_add(rng.u32(..3)))),
        1 => drop(owner.rows[usize::from(row) % 5].pop()),
        2 => owner.rows.swap(0, usize::from(row) % 5),
        3 => owner.hashes.push((number, vec![hash, hash])),
        4 => owner.recents.push(hash),
        5 => drop(owner.recents.pop()),
        6 => owner.recents.extend_from_within(..),
        7 => rest.multi.push((hash, vec![number, 0])),
        8 => rest.free.push((number, hash)),
        9 => rest.copies.push((hash, row, number)),
        10 => rest.spans.push((hash, number)),
        11 => rest.pieces.push(hash),
        12 => rest.pending_dropped ^= true,
        13 => rest.twins = number,
        14 => {
            for overlay in &mut rest.overlays {
                match rng.u8(..4) {
                    0 => overlay.main = hash,
                    1 => overlay.block = number,
                    2 => drop(overlay.records.pop()),
                    _ => overlay.records.iter_mut().for_each(|record| record.1 = row * 5),
                }
            }
        }
        15 => {
            for block in &mut rest.pending {
                match rng.u8(..4) {
                    0 => block.locals.push(hash),
                    1 => block.rows = row,
                    2 => block.stores.push((None, row, number)),
                    _ => (block.parent, block.hash) = (hash, block.parent),
                }
            }
        }
        16 => rest.multi.clear(),
        _ => {
            let Some(groups) = &mut rest.groups else { return };
            groups.sets ^= rng.bool();
            for group in &mut groups.list {
                match rng.u8(..5) {
                    0 => group.kind = Some(row),
                    1 => group.held.push((hash, row, number)),
                    2 => group.bare.push((hash, row)),
                    3 => group.in_tree ^= true,
                    _ => group.held.clear(),
                }
            }
        }
    }
}

/// A spoilt image is refused, or makes an index that is consistent in itself and stays so.
fn play_spoilt(history: &History, taken: &std::cell::Cell<[u64; 2]>) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(history.seed ^ 99);
    let (mut a, mut b) = (Life::new(history), Life::new(history));
    let moment = rng.usize(..=history.steps.len());
    for step in &history.steps[..moment] {
        a.play(history, step);
        if rng.bool() {
            b.play(history, step);
        }
    }
    let owners: Vec<Owner> = history.owners.iter().map(|character| character.owner.clone()).collect();
    let mut images = Vec::new();
    let whole = a.index.export(&a.ids(&owners));
    for _ in 0..6 {
        let mut image = whole.clone();
        for _ in 0..1 + rng.usize(..3) {
            spoil(&mut image, &mut rng);
        }
        let before = owners.iter().map(|owner| b.index.owner_id(owner).map(|id| b.index.digest(id)));
        let before: Vec<_> = before.collect();
        images.push(image.clone());
        let [mut refused, mut entered] = taken.get();
        match b.index.import(&image, 1) {
            Ok(()) => entered += 1,
            Err(error) => {
                refused += 1;
                let after = owners.iter().map(|owner| b.index.owner_id(owner).map(|id| b.index.digest(id)));
                same(&error.to_string(), &before, &after.collect())?;
            }
        }
        taken.set([refused, entered]);
        b.index.audit().map_err(|what| format!("after {image:?}: {what}"))?;
        let steps = rng.usize(moment..=history.steps.len());
        for step in &history.steps[moment..steps] {
            b.play(history, step);
            b.index.audit().map_err(|what| format!("later than {image:?}: {what}"))?;
        }
        let ids = b.ids(&owners);
        let again = b.index.export(&ids);
        b.index.successor().import(&again, 1).map_err(|error| format!("what it exports: {error}"))?;
    }
    for character in &history.owners {
        b.index.unregister(&character.owner);
    }
    same(&format!("left behind by {images:?}"), &without_bytes(&b.index), &Stats::default())
}

#[test]
fn a_spoilt_image_is_refused_or_leaves_a_consistent_index() {
    let taken = std::cell::Cell::new([0; 2]);
    let failures = failures_of(histories(HISTORIES), STEPS, |history| play_spoilt(history, &taken));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let [refused, entered] = taken.get();
    eprintln!("{refused} images refused, {entered} taken");
    assert!(histories(HISTORIES) < HISTORIES || (refused > 100 && entered > 100), "{refused} refused, {entered} taken");
}
