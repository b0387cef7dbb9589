//! A day of an index: blocks are stored and removed again, prompts are shared, owners come and go, and memory must stay
//! where it was. Prints a line per tenth; asserts no time.
//!
//! `cargo bench --bench churn -- [million blocks] [thousand live blocks]`; without numbers 100 and 100.
//!
//! Eight owners, four of them with hashes of their own for the same content. A request is a shared prompt of 32 blocks
//! and 16 to 112 blocks of its own. The oldest request of an owner goes when the owner has more than its part of the live
//! blocks: half of the owners give up tails first, the others in random order, each block in an event of its own. A prompt
//! goes with the last request below it. Every two million blocks one owner is unregistered and another comes.

use std::collections::VecDeque;
use std::time::Instant;

use kvindexer::event::{Batch, Event, GroupInfo, Removed, Stored};
use kvindexer::ids::{BlockSize, EngineHash, LocalHash, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Limits, OwnerId, OwnerSpec, PrefixIndex};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OWNERS: u64 = 8;
/// Prompts that requests share.
const PROMPTS: u64 = 64;
/// Blocks of a prompt.
const PROMPT: u64 = 32;
/// Blocks between two changes of the fleet.
const CHANGE: u64 = 2_000_000;

/// splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Content of a block: sequence and position.
fn local(sequence: u64, block: u64) -> u64 {
    mix(sequence << 12 ^ block)
}

/// One engine.
struct Engine {
    id: OwnerId,
    owner: Owner,
    /// 0 for the owners whose hashes are the common ones.
    chain: u64,
    tails_first: bool,
    /// Requests by age: number, prompt, blocks of its own.
    requests: VecDeque<(u64, u64, u64)>,
    /// Requests below each prompt.
    prompts: Vec<u32>,
    live: u64,
}

impl Engine {
    fn new(index: &mut PrefixIndex, number: u64, life: u64) -> Self {
        let owner = Owner::new(number + OWNERS * life, 0);
        let id = index.register(&owner, OwnerSpec::default(), 1);
        let chain = if number % 2 == 1 { mix(number + OWNERS * life) } else { 0 };
        let prompts = vec![0; PROMPTS as usize];
        Self { id, owner, chain, tails_first: number < OWNERS / 2, requests: VecDeque::new(), prompts, live: 0 }
    }

    fn hash(&self, sequence: u64, block: u64) -> EngineHash {
        EngineHash(mix(local(sequence, block) ^ self.chain))
    }

    fn store(&self, sequence: u64, blocks: u64, parent: Option<EngineHash>) -> Batch {
        let count = blocks as u32;
        Batch {
            events: vec![Event::Stored(Stored {
                hashes: 0..count,
                parent,
                token_bytes: 0..count * 4,
                block_size: Some(1),
                locals: 0..count,
                extras: 0..0,
                named: Namespace::default(),
                tier: Tier::Device,
                group: GroupInfo::default(),
            })],
            hashes: (0..blocks).map(|block| self.hash(sequence, block)).collect(),
            token_bytes: vec![0; blocks as usize * 4],
            locals: (0..blocks).map(|block| LocalHash(local(sequence, block))).collect(),
            ..Batch::default()
        }
    }

    /// One event per block.
    fn remove(&self, sequence: u64, blocks: u64) -> Batch {
        let mut order: Vec<u64> = (0..blocks).rev().collect();
        if !self.tails_first {
            order.sort_by_key(|block| mix(block ^ sequence << 20));
        }
        let event = |at: u32| {
            Event::Removed(Removed {
                hashes: at..at + 1,
                tier: Tier::Device,
                group: GroupInfo::default(),
                remaining_copies: None,
                remaining_copies_invalid: false,
            })
        };
        Batch {
            events: (0..blocks as u32).map(event).collect(),
            hashes: order.into_iter().map(|block| self.hash(sequence, block)).collect(),
            ..Batch::default()
        }
    }
}

/// What happened so far.
#[derive(Default)]
struct Day {
    stored: u64,
    removed: u64,
    request: u64,
    batches: u64,
    slowest_us: u128,
}

impl Day {
    fn apply(&mut self, index: &mut PrefixIndex, id: OwnerId, batch: &Batch) {
        self.batches += 1;
        let context = ApplyContext { seq: Seq(self.batches), now_ms: self.batches };
        let start = Instant::now();
        index.apply(id, batch, context);
        self.slowest_us = self.slowest_us.max(start.elapsed().as_micros());
    }

    /// One request at an engine, and what must go for it.
    fn serve(&mut self, index: &mut PrefixIndex, engine: &mut Engine, live_max: u64) {
        self.request += 1;
        let (prompt, own) = (mix(self.request) % PROMPTS, 16 + mix(self.request ^ 77) % 97);
        let number = PROMPTS + self.request;
        if engine.prompts[prompt as usize] == 0 {
            self.apply(index, engine.id, &engine.store(prompt, PROMPT, None));
            self.stored += PROMPT;
            engine.live += PROMPT;
        }
        engine.prompts[prompt as usize] += 1;
        let parent = engine.hash(prompt, PROMPT - 1);
        self.apply(index, engine.id, &engine.store(number, own, Some(parent)));
        self.stored += own;
        engine.live += own;
        engine.requests.push_back((number, prompt, own));
        while engine.live > live_max {
            let Some((number, prompt, own)) = engine.requests.pop_front() else {
                return;
            };
            self.apply(index, engine.id, &engine.remove(number, own));
            self.removed += own;
            engine.live -= own;
            engine.prompts[prompt as usize] -= 1;
            if engine.prompts[prompt as usize] == 0 {
                self.apply(index, engine.id, &engine.remove(prompt, PROMPT));
                self.removed += PROMPT;
                engine.live -= PROMPT;
            }
        }
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn main() -> std::io::Result<()> {
    use std::io::Write as _;
    // As the service does.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_thp_disable(true)?;
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (total, live) = (numbers.first().unwrap_or(&100) * 1_000_000, numbers.get(1).unwrap_or(&100) * 1_000 / OWNERS);
    let mut index = PrefixIndex::new(BlockSize::new(1).expect("not 0"), Limits::default());
    let mut engines: Vec<Engine> = (0..OWNERS).map(|number| Engine::new(&mut index, number, 0)).collect();
    let mut out = std::io::stdout();
    let (mut day, mut lives, mut mark, mut slowest_leave) = (Day::default(), 0, 0, 0);
    for tenth in 1..=10 {
        while day.stored < total / 10 * tenth {
            let at = mix(day.request ^ 5) % OWNERS;
            day.serve(&mut index, &mut engines[at as usize], live);
            if day.stored / CHANGE > lives {
                lives += 1;
                let number = lives % OWNERS;
                let start = Instant::now();
                index.unregister(&engines[number as usize].owner);
                slowest_leave = start.elapsed().as_micros().max(slowest_leave);
                day.removed += engines[number as usize].live;
                engines[number as usize] = Engine::new(&mut index, number, lives);
            }
        }
        let (stats, now) = (index.stats(), resident());
        mark = if tenth == 1 { now } else { mark };
        writeln!(
            out,
            "{:>4} M stored, {:>4} M removed: resident {:.1} MiB ({:.2} of the mark at a tenth), own account {:.1} MiB; {} held, \
             {} blocks, {} nodes; slowest batch {} us, slowest leave {} us",
            day.stored / 1_000_000,
            day.removed / 1_000_000,
            now as f64 / 1_048_576.0,
            now as f64 / mark as f64,
            stats.bytes as f64 / 1_048_576.0,
            stats.held_blocks,
            stats.content_blocks,
            stats.nodes,
            std::mem::take(&mut day.slowest_us),
            slowest_leave,
        )?;
    }
    index.audit().map_err(std::io::Error::other)
}
