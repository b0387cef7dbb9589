//! The workload of the benchmarks is what its description says, so that figures of different days can be compared.

#[path = "../../benches/workload/mod.rs"]
pub(crate) mod shared;

use std::collections::HashSet;

use kvindexer::event::Batch;
use kvindexer::hash;
use kvindexer::ids::{BlockSize, LocalHash, Namespace};
use kvindexer::wire::{DecodeContext, decode};
use proptest::prelude::*;

use shared::content::{Block, Content, Naming, name};
use shared::engine::{Engine, Event, Eviction};
use shared::play::{self, Cast, Play, Script};
use shared::steady::Steady;
use shared::trace::{REQUESTS, Router, Trace};
use shared::{content, mix, wire};

#[test]
fn chance_is_splitmix64() {
    // First outputs of the published generator for the seed 1234567.
    let mut state = 1_234_567_u64;
    for want in [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64] {
        assert_eq!(mix(state), want);
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
}

#[test]
fn local_hashes_are_those_of_the_product() {
    let tokens = content::tokens(7, 16 * 40 + 5);
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let size = BlockSize::new(16).unwrap();
    let product: Vec<u64> =
        hash::local_hashes(&bytes, size, Namespace::default()).into_iter().map(|hash| hash.0).collect();
    assert_eq!(content::locals(7, 40), product);
    let mut rolled = None;
    for block in content::sequence(7, 40, None) {
        rolled = Some(hash::rolling(rolled, LocalHash(block.local)));
        assert_eq!(Some(block.engine), rolled);
    }
}

#[test]
fn workers_with_seeds_of_their_own_share_content_and_no_name() {
    let of = |worker| content::sequence(7, 20, Naming::PerWorker.seed(worker));
    let (one, two) = (of(1), of(2));
    assert!(one.iter().zip(&two).all(|(a, b)| a.content == b.content && a.local == b.local));
    let names: HashSet<u64> = one.iter().chain(&two).map(|block| block.engine).collect();
    assert_eq!(names.len(), 40);
}

#[test]
fn the_trace_is_the_one_described_and_reaches_every_worker() {
    let trace = Trace::read().unwrap();
    assert_eq!(trace.requests.len(), REQUESTS);
    let mut router = Router::new(64);
    let workers: HashSet<u64> = trace.requests.iter().map(|ids| router.next(ids)).collect();
    assert_eq!(workers.len(), 64);
}

/// Sums of the first requests, computed once by an independent program.
#[test]
fn a_played_trace_stores_and_evicts_as_many_blocks_as_an_independent_program_says() {
    let trace = Trace::read().unwrap();
    for (workers, sums) in [(8, (812_064, 680_992, 683_148)), (64, (734_464, 28_096, 30_130))] {
        let mut play = Play::new(&trace, Cast::plain(workers));
        let (mut stored, mut removed, mut events) = (0, 0, 0);
        for turn in std::iter::from_fn(|| play.turn()).take(1_000) {
            events += turn.events.len();
            for event in &turn.events {
                match event {
                    Event::Removed(_) => removed += 1,
                    Event::Stored { blocks, .. } => stored += blocks.len(),
                }
            }
        }
        assert_eq!((stored, removed, events), sums, "{workers} workers");
        assert_eq!((0..workers).map(|worker| play.held(worker)).sum::<usize>(), stored - removed);
    }
}

#[test]
fn all_requests_share_their_first_block_so_that_every_worker_answers() {
    let trace = Trace::read().unwrap();
    let mut play = Play::new(&trace, Cast::plain(8));
    let mut script = Script::of_play(&mut play, 60);
    assert_eq!(script.messages.drain(..).map(|(worker, _)| worker).collect::<HashSet<_>>().len(), 8);
    assert!(play.prefixes(1_000).iter().all(|prefix| *prefix >= 1));
    assert_eq!(play.query(0).len(), trace.requests[0].len() * 32);
}

#[test]
fn batches_end_after_a_store_or_when_full_and_say_what_the_engine_said() {
    let blocks = content::sequence(9, 1_024, None);
    let mut events: Vec<Event> = (0..130).map(Event::Removed).collect();
    events.push(Event::Stored { parent: None, blocks: 0..512 });
    events.push(Event::Stored { parent: Some(blocks[511].engine), blocks: 512..1_024 });
    let payloads = wire::batches(&events, &blocks);
    let counts: Vec<_> =
        payloads.iter().map(|payload| (payload.events, payload.removed_blocks, payload.stored_blocks)).collect();
    assert_eq!(counts, [(64, 64, 0), (64, 64, 0), (3, 2, 512), (1, 0, 512)]);

    let context = DecodeContext { block_size: BlockSize::new(16).unwrap(), default_lora: None };
    let mut batch = Batch::default();
    let mut decoded = vec![];
    for payload in &payloads {
        decode(&payload.bytes, context, &mut batch).unwrap();
        assert_eq!(batch.events.len(), payload.events as usize);
        decoded.extend(batch.hashes.iter().map(|hash| hash.0));
        let locals = &blocks[decoded.len().saturating_sub(130 + batch.locals.len())..];
        assert!(batch.locals.iter().zip(locals).all(|(decoded, block)| decoded.0 == block.local));
    }
    assert_eq!(decoded, (0..130).chain(blocks.iter().map(|block| block.engine)).collect::<Vec<_>>());
}

#[test]
fn a_long_sequence_is_stored_in_events_that_hang_together() {
    let chain = content::sequence(9, 1_300, None);
    let events = [
        Event::Stored { parent: None, blocks: 0..512 },
        Event::Stored { parent: Some(chain[511].engine), blocks: 512..1_024 },
        Event::Stored { parent: Some(chain[1_023].engine), blocks: 1_024..1_300 },
    ];
    assert_eq!(play::store_sequence(9, 1_300, None), wire::batches(&events, &chain));
}

#[test]
fn the_steady_stream_keeps_as_many_blocks_as_it_says() {
    let mut steady = Steady::new(3);
    let steps: Vec<_> = (0..900).map(|_| steady.step()).collect();
    assert!(steps[..256].iter().all(|step| (step.stored_blocks, step.removed_blocks) == (128, 0)));
    assert!(steps[256..].iter().all(|step| (step.stored_blocks, step.removed_blocks) == (128, 128)));
    // The pool has 512 sequences.
    assert_eq!(steps[300], steps[300 + 512]);
    assert!((1..512).all(|step| steps[300] != steps[300 + step]));
}

/// A cache as a plain list, newest last.
struct Naive {
    capacity: usize,
    held: Vec<u64>,
}

impl Naive {
    /// Evicted names and stored places.
    fn serve(&mut self, blocks: &[Block]) -> (Vec<u64>, Vec<usize>) {
        let mine: HashSet<u64> = blocks.iter().map(|block| block.engine).collect();
        let stored: Vec<usize> = (0..blocks.len()).filter(|at| !self.held.contains(&blocks[*at].engine)).collect();
        let before = self.held.clone();
        self.held.retain(|held| !mine.contains(held));
        self.held.extend(blocks.iter().rev().map(|block| block.engine));
        let surplus = self.held.len().saturating_sub(self.capacity);
        let evicted = self.held.drain(..surplus).collect::<Vec<_>>();
        assert!(evicted.iter().all(|evicted| before.contains(evicted)));
        (evicted, stored)
    }
}

proptest! {
    #[test]
    fn the_engine_is_a_plain_list_with_tails_evicted_first(requests in proptest::collection::vec((0_u64..6, 1_u32..9), 1..60)) {
        let mut engine = Engine::new(12, Eviction::Tail, 0);
        let mut naive = Naive { capacity: 12, held: vec![] };
        for (id, depth) in requests {
            let blocks = short(id, depth);
            let (evicted, stored) = naive.serve(&blocks);
            let mut told = (vec![], vec![]);
            for event in engine.serve(&blocks) {
                match event {
                    Event::Removed(name) => told.0.push(name),
                    Event::Stored { parent, blocks: places } => {
                        prop_assert_eq!(parent, places.start.checked_sub(1).map(|before| blocks[before].engine));
                        told.1.extend(places);
                    }
                }
            }
            prop_assert_eq!(told, (evicted, stored));
        }
    }

    #[test]
    fn random_eviction_spares_the_request_at_hand_and_tells_all_it_does(requests in proptest::collection::vec((0_u64..6, 1_u32..9), 1..60)) {
        let mut engine = Engine::new(12, Eviction::Random, 7);
        let mut told = HashSet::new();
        for (id, depth) in requests {
            let blocks = short(id, depth);
            for event in engine.serve(&blocks) {
                match event {
                    Event::Removed(name) => prop_assert!(told.remove(&name)),
                    Event::Stored { parent, blocks: places } => {
                        prop_assert!(parent.is_none_or(|parent| told.contains(&parent)));
                        prop_assert!(places.clone().all(|at| told.insert(blocks[at].engine)));
                    }
                }
            }
            prop_assert!(blocks.iter().all(|block| engine.holds(block.engine) && told.contains(&block.engine)));
            prop_assert!(engine.len() == told.len() && told.len() <= 12);
        }
    }
}

/// The first blocks of a sequence; all begin with the same two.
fn short(id: u64, depth: u32) -> Vec<Block> {
    let contents = (0..depth).map(|index| Content { id: if index < 2 { 0 } else { id }, index });
    name(contents.map(|content| (content, content.local())), None)
}
