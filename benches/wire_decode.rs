//! Time per block of decoding a store of 512 blocks of 16 tokens, local hashes included: the walker against the library.
//!
//! `cargo bench --bench wire_decode`

use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use kvindexer::event::{Batch, SkipReason};
use kvindexer::ids::BlockSize;
use kvindexer::wire::{DecodeContext, decode, decode_by_library};
use rmp::encode;

const BLOCKS: usize = 512;
/// Different payloads in turn, so that the branch predictor cannot learn them.
const PAYLOADS: u64 = 64;
const BLOCK_SIZE: u32 = 16;
const IN_MEMORY: &str = "writing to memory cannot fail";

/// Form of the event, as engines send it.
#[derive(Clone, Copy)]
enum Form {
    /// vLLM 0.20: by position.
    Array,
    /// vLLM 0.33: by name.
    Map,
}

type Decode = fn(&[u8], DecodeContext, &mut Batch) -> Result<(), SkipReason>;

fn main() -> std::io::Result<()> {
    // `cargo bench` says so; as a test it runs small.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { 60 } else { 1 };
    let mut out = std::io::stdout().lock();
    for (form, name) in [(Form::Array, "array"), (Form::Map, "map")] {
        // Vocabularies of 32 thousand and of 128 thousand tokens; the larger mixes tokens of three and five bytes.
        for vocabulary in [32_000, 128_000] {
            let payloads: Vec<_> = (0..PAYLOADS).map(|seed| payload(form, vocabulary, seed)).collect();
            for (decode, way) in [(decode as Decode, "walker"), (decode_by_library as Decode, "library")] {
                let per_block = time(&payloads, decode, rounds).as_nanos() as f64 / BLOCKS as f64;
                writeln!(out, "{name:5} {vocabulary:6} tokens  {way:7} {per_block:7.1} ns per block")?;
            }
        }
    }
    Ok(())
}

/// Time per payload, best of many rounds: what the code takes when nothing disturbs it.
fn time(payloads: &[Vec<u8>], decode: Decode, rounds: usize) -> Duration {
    let block_size = BlockSize::new(BLOCK_SIZE).expect("at least 1");
    let context = DecodeContext { block_size, default_lora: None };
    let mut batch = Batch::default();
    let round = || {
        let start = Instant::now();
        for payload in payloads {
            decode(black_box(payload), context, &mut batch).expect("a batch");
            black_box(&batch);
        }
        start.elapsed() / payloads.len() as u32
    };
    std::iter::repeat_with(round).take(rounds).min().unwrap_or_default()
}

fn payload(form: Form, vocabulary: u32, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let hashes: Vec<u64> = (0..BLOCKS).map(|_| random.u64(..)).collect();
    let tokens: Vec<u64> = (0..BLOCKS * BLOCK_SIZE as usize).map(|_| random.u32(..vocabulary).into()).collect();
    let mut out = vec![];
    encode::write_array_len(&mut out, 3).expect(IN_MEMORY);
    encode::write_f64(&mut out, 1_796_026_206.118).expect(IN_MEMORY);
    encode::write_array_len(&mut out, 1).expect(IN_MEMORY);
    match form {
        Form::Array => {
            encode::write_array_len(&mut out, 10).expect(IN_MEMORY);
            encode::write_str(&mut out, "BlockStored").expect(IN_MEMORY);
        }
        Form::Map => {
            encode::write_map_len(&mut out, 10).expect(IN_MEMORY);
            key(form, "type", &mut out);
            encode::write_str(&mut out, "BlockStored").expect(IN_MEMORY);
        }
    }
    key(form, "block_hashes", &mut out);
    numbers(&hashes, &mut out);
    key(form, "parent_block_hash", &mut out);
    encode::write_uint(&mut out, random.u64(..)).expect(IN_MEMORY);
    key(form, "token_ids", &mut out);
    numbers(&tokens, &mut out);
    key(form, "block_size", &mut out);
    encode::write_uint(&mut out, BLOCK_SIZE.into()).expect(IN_MEMORY);
    key(form, "lora_id", &mut out);
    encode::write_nil(&mut out).expect(IN_MEMORY);
    key(form, "medium", &mut out);
    encode::write_str(&mut out, "GPU").expect(IN_MEMORY);
    key(form, "lora_name", &mut out);
    encode::write_nil(&mut out).expect(IN_MEMORY);
    key(form, "extra_keys", &mut out);
    encode::write_array_len(&mut out, BLOCKS as u32).expect(IN_MEMORY);
    (0..BLOCKS).for_each(|_| encode::write_nil(&mut out).expect(IN_MEMORY));
    key(form, "group_idx", &mut out);
    encode::write_uint(&mut out, 0).expect(IN_MEMORY);
    encode::write_uint(&mut out, 0).expect(IN_MEMORY);
    out
}

fn key(form: Form, key: &str, out: &mut Vec<u8>) {
    if let Form::Map = form {
        encode::write_str(out, key).expect(IN_MEMORY);
    }
}

fn numbers(numbers: &[u64], out: &mut Vec<u8>) {
    encode::write_array_len(out, numbers.len() as u32).expect(IN_MEMORY);
    for number in numbers {
        encode::write_uint(out, *number).expect(IN_MEMORY);
    }
}
