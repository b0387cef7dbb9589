//! Histories played to the model and to the index, compared after each step; a failing one is shrunk before it is shown.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvindexer::hash;
use kvindexer::ids::{BlockSize, GroupId, LocalHash, Seq};
use kvindexer::index::{ApplyContext, Clear, PrefixIndex};

use super::batches::{Said, batch, token_bytes};
use super::check::{Difference, compare};
use super::histories::{Chain, Character, History, Step, history};
use super::{Model, OwnerModel, words};

/// Histories of a default run; `KVINDEXER_PROPERTY_HISTORIES` sets another number.
const HISTORIES: u64 = 300;
const STEPS: usize = 60;
const QUERIES_PER_STEP: usize = 4;

/// How often the interesting things happened, so that a change of the generator cannot make the comparison empty.
#[derive(Debug, Default)]
struct Seen {
    steps: u64,
    device_rows: u64,
    host_beyond: u64,
    disk_beyond: u64,
    pending_steps: u64,
    hybrid_steps: u64,
}

impl Seen {
    fn note(&mut self, model: &Model, queries: &[Vec<LocalHash>]) {
        self.steps += 1;
        self.pending_steps += u64::from(model.owners.values().any(|owner| owner.pending_blocks() > 0));
        self.hybrid_steps += u64::from(model.owners.values().any(|owner| !owner.sides().is_empty()));
        for row in queries.iter().flat_map(|query| model.find(query).rows) {
            self.device_rows += u64::from(row.reach[0] > 0);
            self.host_beyond += u64::from(row.reach[1] > row.reach[0]);
            self.disk_beyond += u64::from(row.reach[2] > row.reach[1]);
        }
    }
}

/// Model and index side by side.
struct Pair<'a> {
    history: &'a History,
    model: Model,
    index: PrefixIndex,
    seq: u64,
}

impl<'a> Pair<'a> {
    fn new(history: &'a History) -> Self {
        let block_size = BlockSize::new(history.block_size).expect("at least one");
        Self {
            history,
            model: Model::new(history.block_size, history.limits),
            index: PrefixIndex::new(block_size, history.limits),
            seq: 0,
        }
    }

    /// Makes the owner known if a step needs it.
    fn ensure(&mut self, at: usize) {
        let Character { owner, interned, spec, .. } = &self.history.owners[at];
        if self.model.owners.contains_key(owner) {
            return;
        }
        let first = &self.history.owners[0].owner;
        match self.index.owner_id(first) {
            Some(like) if *interned => {
                self.model.intern(owner, first);
                self.index.intern(owner, like, self.seq);
            }
            _ => {
                self.model.register(owner, *spec);
                self.index.register(owner, *spec, self.seq);
            }
        }
    }

    fn play(&mut self, step: &Step) {
        self.seq += 1;
        let now_ms = self.seq;
        let at = match step {
            Step::Apply { owner, .. }
            | Step::Clear { owner, .. }
            | Step::Rebuild { owner }
            | Step::Skip { owner, .. }
            | Step::Register { owner, .. }
            | Step::Unregister { owner } => *owner,
        };
        let owner = self.history.owners[at].owner.clone();
        if !matches!(step, Step::Unregister { .. }) {
            self.ensure(at);
        }
        let id = self.index.owner_id(&owner);
        let id = || id.expect("made known");
        match step {
            Step::Apply { said, .. } => {
                let batch = batch(said, self.history.block_size);
                self.model.apply(&owner, &batch);
                self.index.apply(id(), &batch, ApplyContext { seq: Seq(self.seq), now_ms });
            }
            Step::Clear { clear, .. } => {
                self.model.clear(&owner, *clear);
                self.index.clear(id(), *clear, now_ms);
            }
            Step::Rebuild { .. } => {
                self.model.clear(&owner, Clear::NewLife);
                self.index.begin_rebuild(id(), now_ms);
            }
            Step::Skip { reason, .. } => {
                self.model.skip(&owner, *reason);
                self.index.skip(id(), *reason, now_ms);
            }
            Step::Register { policy, .. } => {
                let mut spec = self.model.owners[&owner].spec;
                spec.policy = *policy;
                self.model.register(&owner, spec);
                self.index.register(&owner, spec, now_ms);
            }
            Step::Unregister { .. } => {
                assert_eq!(self.index.unregister(&owner), self.model.unregister(&owner), "unregister {owner}");
            }
        }
    }

    /// Steps whose outcome the rules leave open.
    fn is_open(&self, step: &Step) -> bool {
        let said: &[Said] = match step {
            Step::Apply { said, .. } => said,
            _ => &[],
        };
        let clears = matches!(step, Step::Clear { clear: Clear::AllBlocksCleared, .. })
            || said.iter().any(|event| matches!(event, Said::Cleared));
        // Clearing more hashes than the ring remembers: which ones are forgotten.
        let overflows = |owner: &OwnerModel| owner.places.len() + 8 > self.model.limits.recent_hashes_max;
        // The first thing heard of a cache group is a store without tokens: what kind of group it is.
        let owner = |at: usize| self.model.owners.get(&self.history.owners[at].owner);
        let unheard = |at: usize, group: GroupId| owner(at).is_none_or(|owner| !owner.groups.contains_key(&group.0));
        let bare_first = |at: usize| {
            let unheard =
                |event: &Said| matches!(event, Said::Bare { group, .. } if group.id.is_some_and(|id| unheard(at, id)));
            said.iter().any(unheard)
        };
        clears && self.model.owners.values().any(overflows)
            || matches!(step, Step::Apply { owner, .. } if bare_first(*owner))
    }

    fn queries(&self, rng: &mut fastrand::Rng) -> Vec<Vec<LocalHash>> {
        let paths: Vec<&Vec<LocalHash>> = self
            .model
            .owners
            .values()
            .flat_map(|owner| owner.places.values().flatten().map(|place| &place.path))
            .collect();
        let mut queries = Vec::new();
        for _ in 0..QUERIES_PER_STEP {
            let mut query = match rng.u8(..3) {
                0 | 1 if !paths.is_empty() => paths[rng.usize(..paths.len())].clone(),
                _ => contents(&self.history.chains[rng.usize(..self.history.chains.len())], self.history.block_size),
            };
            match rng.u8(..6) {
                0 => query.truncate(rng.usize(..=query.len())),
                1 if !query.is_empty() => {
                    let at = rng.usize(..query.len());
                    query[at] = query[rng.usize(..query.len())];
                }
                2 => query.push(LocalHash(rng.u64(..))),
                3 if !paths.is_empty() => {
                    let other = paths[rng.usize(..paths.len())];
                    query.extend(other.iter().skip(query.len()));
                }
                _ => {}
            }
            queries.push(query);
        }
        queries
    }
}

/// Local hashes of a chain as `/query` computes them.
pub(super) fn contents(chain: &Chain, block_size: u32) -> Vec<LocalHash> {
    let seed = chain.namespace.seed();
    chain.letters.iter().map(|letter| hash::local_hash(&token_bytes(*letter, block_size), letter.image, seed)).collect()
}

/// Plays a history to its end; steps whose outcome the rules leave open are left out.
fn play(history: &History, seen: &mut Seen) -> Result<(), Difference> {
    let mut pair = Pair::new(history);
    let mut rng = fastrand::Rng::with_seed(history.seed);
    for (i, step) in history.steps.iter().enumerate() {
        if pair.is_open(step) {
            continue;
        }
        pair.play(step);
        let queries = pair.queries(&mut rng);
        compare(&pair.model, &pair.index, &queries).map_err(|difference| format!("step {i}: {difference}"))?;
        if i % 8 == 0 {
            pair.index.audit().map_err(|difference| format!("step {i}: {difference}"))?;
            seen.note(&pair.model, &queries);
        }
    }
    for character in &history.owners {
        let known = pair.model.unregister(&character.owner);
        if pair.index.unregister(&character.owner) != known {
            return Err(format!("unregister {}: index says {}", character.owner, !known));
        }
    }
    let stats = pair.index.stats();
    if (stats.held_blocks, stats.content_blocks, stats.nodes, stats.owners) != (0, 0, 0, 0) {
        return Err(format!("something is left behind: {stats:?}"));
    }
    Ok(())
}

/// Leaves out steps, then events, as long as the history still fails.
fn shrink(mut history: History, fails: impl Fn(&History) -> bool) -> History {
    let mut size = history.steps.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < history.steps.len() {
            let mut shorter = history.clone();
            shorter.steps.drain(start..(start + size).min(history.steps.len()));
            if fails(&shorter) { history = shorter } else { start += size }
        }
        size /= 2;
    }
    for at in 0..history.steps.len() {
        let mut event = 0;
        loop {
            let mut shorter = history.clone();
            let Step::Apply { said, .. } = &mut shorter.steps[at] else { break };
            if event >= said.len() {
                break;
            }
            said.remove(event);
            if fails(&shorter) { history = shorter } else { event += 1 }
        }
    }
    history
}

/// Histories of a run, `default` unless the environment says another number.
pub(super) fn histories(default: u64) -> u64 {
    std::env::var("KVINDEXER_PROPERTY_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// First seed; `KVINDEXER_PROPERTY_SEED` repeats one history.
fn first_seed() -> u64 {
    std::env::var("KVINDEXER_PROPERTY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Failing histories that are shrunk and shown before a run gives up.
const FAILURES_SHOWN: usize = 6;

/// Plays histories; those that fail, shrunk and in words. A panic counts as a failure.
pub(super) fn failures_of(
    histories: u64,
    steps: usize,
    play: impl Fn(&History) -> Result<(), Difference>,
) -> Vec<String> {
    let play = |history: &History| {
        let outcome = catch_unwind(AssertUnwindSafe(|| play(history)));
        outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        })
    };
    let mut failures = Vec::new();
    for seed in first_seed()..first_seed() + histories {
        let history = history(seed, steps);
        if play(&history).is_err() {
            let shrunk = shrink(history, |history| play(history).is_err());
            let difference = play(&shrunk).expect_err("shrinking keeps the failure");
            failures.push(format!("seed {seed}: {difference}\n{}", words::tell(&shrunk)));
            if failures.len() == FAILURES_SHOWN {
                break;
            }
        }
    }
    failures
}

#[test]
fn the_index_agrees_with_the_naive_model_after_every_step() {
    let seen = std::cell::RefCell::new(Seen::default());
    let histories = histories(HISTORIES);
    let failures = failures_of(histories, STEPS, |history| play(history, &mut seen.borrow_mut()));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let seen = seen.into_inner();
    eprintln!("{histories} histories, {seen:?}");
    let rare = [seen.device_rows, seen.host_beyond, seen.disk_beyond, seen.pending_steps, seen.hybrid_steps];
    assert!(histories < HISTORIES || rare.iter().all(|count| *count * 50 > seen.steps), "{seen:?}");
}
