//! The trace played on engines, request by request, and synthetic fills.

use std::collections::HashMap;

use super::STORED_BLOCKS_MAX;
use super::content::{Block, Content, ID_BLOCKS, Naming, name, sequence};
use super::engine::{Engine, Event, Eviction};
use super::trace::{Router, Trace};
use super::wire::{self, Payload};

/// Who plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cast {
    pub(crate) workers: u64,
    pub(crate) naming: Naming,
    pub(crate) eviction: Eviction,
}

impl Cast {
    /// Engines that agree on names and evict tails first.
    pub(crate) fn plain(workers: u64) -> Self {
        Self { workers, naming: Naming::Shared, eviction: Eviction::Tail }
    }

    /// Blocks that one engine holds at most.
    pub(crate) fn capacity(self) -> usize {
        if self.workers == 1 { 65_536 } else { 16_384 }
    }
}

/// One request: the query comes before the events that it causes.
pub(crate) struct Turn {
    pub(crate) worker: u64,
    pub(crate) blocks: Vec<Block>,
    pub(crate) events: Vec<Event>,
}

/// Engines with their state.
pub(crate) struct Play<'a> {
    trace: &'a Trace,
    cast: Cast,
    router: Router,
    engines: Vec<Engine>,
    locals: HashMap<u64, Vec<u64>>,
    at: usize,
}

impl<'a> Play<'a> {
    /// At the first request, with empty engines.
    pub(crate) fn new(trace: &'a Trace, cast: Cast) -> Self {
        let engines = (0..cast.workers).map(|worker| Engine::new(cast.capacity(), cast.eviction, worker));
        Self {
            trace,
            cast,
            router: Router::new(cast.workers),
            engines: engines.collect(),
            locals: HashMap::new(),
            at: 0,
        }
    }

    /// Who plays.
    pub(crate) fn cast(&self) -> Cast {
        self.cast
    }

    /// Number of the next request.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Plays the next request; none after the last.
    pub(crate) fn turn(&mut self) -> Option<Turn> {
        let ids = self.trace.requests.get(self.at)?;
        self.at += 1;
        let worker = self.router.next(ids);
        let blocks = self.named(ids, worker);
        let events = self.engines[worker as usize].serve(&blocks);
        Some(Turn { worker, blocks, events })
    }

    /// Local hashes of a request.
    pub(crate) fn query(&mut self, request: usize) -> Vec<u64> {
        let trace = self.trace;
        trace.requests[request].iter().flat_map(|id| self.locals_of(*id).to_vec()).collect()
    }

    /// What the engines' own caches would hit for a request, in blocks, by worker: the right answer to its query.
    pub(crate) fn prefixes(&mut self, request: usize) -> Vec<usize> {
        let trace = self.trace;
        let ids = &trace.requests[request];
        (0..self.cast.workers)
            .map(|worker| {
                let blocks = self.named(ids, worker);
                self.engines[worker as usize].prefix(blocks.iter().map(|block| block.engine))
            })
            .collect()
    }

    /// Blocks that an engine holds.
    pub(crate) fn held(&self, worker: u64) -> usize {
        self.engines[worker as usize].len()
    }

    fn named(&mut self, ids: &[u64], worker: u64) -> Vec<Block> {
        let mut contents = Vec::with_capacity(ids.len() * ID_BLOCKS as usize);
        for id in ids {
            let locals = self.locals_of(*id).iter().enumerate();
            contents.extend(locals.map(|(index, local)| (Content { id: *id, index: index as u32 }, *local)));
        }
        name(contents.into_iter(), self.cast.naming.seed(worker))
    }

    fn locals_of(&mut self, id: u64) -> &[u64] {
        let locals = || (0..ID_BLOCKS).map(|index| Content { id, index }.local()).collect();
        self.locals.entry(id).or_insert_with(locals)
    }
}

/// Batches of every worker in their order, and their order among workers.
#[derive(Default)]
pub(crate) struct Script {
    /// Worker and payload.
    pub(crate) messages: Vec<(u64, Payload)>,
}

impl Script {
    /// Plays `requests` requests to the end of the script.
    pub(crate) fn of_play(play: &mut Play<'_>, requests: usize) -> Self {
        let mut script = Self::default();
        for turn in std::iter::from_fn(|| play.turn()).take(requests) {
            let payloads = wire::batches(&turn.events, &turn.blocks);
            script.messages.extend(payloads.into_iter().map(|payload| (turn.worker, payload)));
        }
        script
    }

    /// Stored blocks, removed blocks, events.
    pub(crate) fn sums(&self) -> (u64, u64, u64) {
        self.messages.iter().fold((0, 0, 0), |(stored, removed, events), (_, payload)| {
            (
                stored + u64::from(payload.stored_blocks),
                removed + u64::from(payload.removed_blocks),
                events + u64::from(payload.events),
            )
        })
    }
}

/// Batches that store a whole sequence, one Stored event each.
pub(crate) fn store_sequence(id: u64, depth: u32, seed: Option<u64>) -> Vec<Payload> {
    let blocks = sequence(id, depth, seed);
    let parents = std::iter::once(None)
        .chain(blocks.iter().skip(STORED_BLOCKS_MAX - 1).step_by(STORED_BLOCKS_MAX).map(|block| Some(block.engine)));
    blocks.chunks(STORED_BLOCKS_MAX).zip(parents).map(|(part, parent)| wire::stored(parent, part)).collect()
}
