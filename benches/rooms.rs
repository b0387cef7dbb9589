//! Costs of the pure rooms, one at a time: decode, hash, apply, find, scan, reply, snapshot.
//!
//! `cargo bench --bench rooms`; `cargo bench --bench rooms -- find` runs what has that word in its name. Time is per call;
//! `items` are blocks, tokens or rows, as the name of the group says.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use kvindexer::event::Batch;
use kvindexer::hash;
use kvindexer::ids::{BlockSize, LocalHash, Namespace, Owner, Seq};
use kvindexer::index::{Answer, ApplyContext, Limits, OwnerId, OwnerSpec, PrefixIndex};
use kvindexer::wire::{self, DecodeContext};

use workload::content::{self, Naming};
use workload::wire::Payload;

#[path = "workload/mod.rs"]
mod workload;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Different inputs in turn, so that the branch predictor cannot learn them.
const INPUTS: u64 = 64;

const CONTEXT: ApplyContext = ApplyContext { seq: Seq(0), now_ms: 1 };

fn main() {
    divan::main();
}

fn block_size() -> BlockSize {
    BlockSize::new(workload::BLOCK_SIZE).expect("not 0")
}

fn decode_context() -> DecodeContext {
    DecodeContext { block_size: block_size(), default_lora: None }
}

fn decoded(payload: &Payload) -> Batch {
    let mut batch = Batch::default();
    wire::decode(&payload.bytes, decode_context(), &mut batch).expect("the workload's batches can be read");
    batch
}

fn index(owners: u64) -> (PrefixIndex, Vec<OwnerId>) {
    let mut index = PrefixIndex::new(block_size(), Limits::default());
    let ids = (0..owners).map(|owner| index.register(&Owner::new(owner, 0), OwnerSpec::default(), 1)).collect();
    (index, ids)
}

/// An index in which owners hold the first blocks of the queried sequence: all of them, or an even spread of depths.
fn queried(owners: u64, depth: u32, staggered: bool) -> (PrefixIndex, Vec<OwnerId>) {
    let (mut index, ids) = index(owners);
    let blocks = content::sequence(content::QUERY_ID, depth, None);
    for (number, id) in (1..).zip(&ids) {
        let end = if staggered { (u64::from(depth) * number / owners) as usize } else { depth as usize };
        for from in (0..end).step_by(workload::STORED_BLOCKS_MAX) {
            let part = &blocks[from..end.min(from + workload::STORED_BLOCKS_MAX)];
            let parent = from.checked_sub(1).map(|before| blocks[before].engine);
            index.apply(*id, &decoded(&workload::wire::stored(parent, part)), CONTEXT);
        }
    }
    (index, ids)
}

fn query(depth: u32) -> Vec<LocalHash> {
    content::locals(content::QUERY_ID, depth).into_iter().map(LocalHash).collect()
}

fn json_body(tokens: usize) -> Vec<u8> {
    let tokens: Vec<String> = content::tokens(content::QUERY_ID, tokens).iter().map(u32::to_string).collect();
    format!("{{\"model_name\":\"bench\",\"token_ids\":[{}]}}", tokens.join(", ")).into_bytes()
}

/// A Stored event of 512 blocks, local hashes included. Items: blocks.
#[divan::bench(name = "decode stored 512 (blocks)")]
fn decode_stored(bencher: Bencher<'_, '_>) {
    let payloads: Vec<_> = (0..INPUTS).flat_map(|id| workload::play::store_sequence(id, 512, None)).collect();
    let (mut at, mut batch) = (0, Batch::default());
    bencher.counter(ItemsCount::new(512_u32)).bench_local(move || {
        at = (at + 1) % payloads.len();
        wire::decode(black_box(&payloads[at].bytes), decode_context(), &mut batch)
    });
}

/// A batch of 64 Removed events of one block each, as vLLM sends them. Items: blocks.
#[divan::bench(name = "decode removed 64x1 (blocks)")]
fn decode_removed(bencher: Bencher<'_, '_>) {
    let events: Vec<_> = (0..64).map(|number| workload::engine::Event::Removed(workload::mix(number))).collect();
    let payload = workload::wire::batches(&events, &[]).remove(0);
    let mut batch = Batch::default();
    bencher
        .counter(ItemsCount::new(64_u32))
        .bench_local(move || wire::decode(black_box(&payload.bytes), decode_context(), &mut batch));
}

/// Local hashes of a prompt given as bytes. Items: blocks.
#[divan::bench(name = "hash 32k tokens (blocks)")]
fn hash(bencher: Bencher<'_, '_>) {
    let bytes: Vec<u8> = content::tokens(content::QUERY_ID, 32_768).into_iter().flat_map(u32::to_le_bytes).collect();
    bencher
        .counter(ItemsCount::new(2_048_u32))
        .bench_local(move || hash::local_hashes(black_box(&bytes), block_size(), Namespace::default()));
}

/// A store of 512 blocks: of content that nobody holds, or that all the other owners hold. Items: blocks.
#[divan::bench(name = "apply stored 512 (blocks)", args = ["unique", "shared", "shared, own names"], sample_size = 1)]
fn apply_stored(bencher: Bencher<'_, '_>, content: &str) {
    let (mut index, ids) = index(64);
    let naming = if content == "shared, own names" { Naming::PerWorker } else { Naming::Shared };
    let mut next = 0;
    bencher
        .counter(ItemsCount::new(512_u32))
        .with_inputs(move || {
            next += 1;
            let (owner, sequence) = (next % 64, next / 64);
            let id = if content == "unique" { next } else { sequence };
            let payload = workload::play::store_sequence(id, 512, naming.seed(owner)).remove(0);
            (ids[owner as usize], decoded(&payload))
        })
        .bench_local_values(move |(owner, batch)| {
            index.apply(owner, &batch, CONTEXT);
            batch
        });
}

/// A query of 8,192 blocks that every owner holds, whole or to a depth of its own. Items: rows of the answer.
#[divan::bench(name = "find 8192 blocks (rows)", args = [(1, false), (64, false), (512, false), (64, true), (512, true)])]
fn find(bencher: Bencher<'_, '_>, (owners, staggered): (u64, bool)) {
    let (index, _) = queried(owners, 8_192, staggered);
    let query = query(8_192);
    bencher.counter(ItemsCount::new(owners)).bench_local(move || index.find(black_box(&query)));
}

/// The body of a JSON query. Items: tokens.
#[divan::bench(name = "scan JSON (tokens)", args = [1_024, 32_768, 131_072])]
fn scan(bencher: Bencher<'_, '_>, tokens: usize) {
    let body = json_body(tokens);
    bencher
        .counter(ItemsCount::new(tokens))
        .bench_local(move || kvindexer::http::bench_support::scan_tokens(black_box(&body)));
}

/// The answer to a query of 2,048 blocks. Items: rows of the answer.
#[divan::bench(name = "reply (rows)", args = [8, 64, 512])]
fn reply(bencher: Bencher<'_, '_>, owners: u64) {
    let answer: Answer = queried(owners, 2_048, false).0.find(&query(2_048));
    bencher
        .counter(ItemsCount::new(owners))
        .bench_local(move || kvindexer::http::bench_support::reply_bytes(black_box(&answer), block_size(), false));
}

/// One owner of 512 x 512 blocks leaves an index and enters another, as in a recovery. Items: blocks.
#[divan::bench(name = "snapshot 256k (blocks)", args = ["export", "import"], sample_count = 10, sample_size = 1)]
fn snapshot(bencher: Bencher<'_, '_>, way: &str) {
    const SEQUENCES: u64 = 512;
    let (mut from, ids) = index(1);
    for sequence in 0..SEQUENCES {
        let payloads = workload::play::store_sequence(sequence, 512, None);
        payloads.iter().for_each(|payload| from.apply(ids[0], &decoded(payload), CONTEXT));
    }
    let image = from.export(&ids);
    let bencher = bencher.counter(ItemsCount::new(SEQUENCES * 512));
    match way {
        "export" => bencher.bench_local(move || from.export(&ids)),
        _ => bencher.with_inputs(|| index(0).0).bench_local_values(move |mut to| {
            to.import(&image, 1).expect("an image of our own fits");
            to
        }),
    }
}
