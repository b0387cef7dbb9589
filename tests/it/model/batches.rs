//! Events of a history as the batches that the decoder would make of them.

use kvindexer::event::{Batch, Event, ExtraKey, GroupInfo, IgnoreReason, Removed, SkipReason, Stored};
use kvindexer::hash;
use kvindexer::ids::{EngineHash, Namespace, Tier};

/// One block of a prompt: its first token tells it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Letter {
    pub(crate) token: u32,
    /// An image in this block.
    pub(crate) image: Option<u64>,
}

/// One event, in words.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        letters: Vec<Letter>,
        block_tokens: u32,
        named: Namespace,
        tier: Tier,
        group: GroupInfo,
    },
    Bare {
        hashes: Vec<u64>,
        tier: Tier,
        group: GroupInfo,
    },
    Removed {
        hashes: Vec<u64>,
        tier: Tier,
        group: GroupInfo,
        remaining: Option<Vec<u64>>,
    },
    Cleared,
    Skipped(SkipReason),
    Ignored(IgnoreReason),
}

/// Token bytes of one index block.
pub(crate) fn token_bytes(letter: Letter, block_size: u32) -> Vec<u8> {
    (0..block_size).flat_map(|i| (letter.token * 100 + i).to_le_bytes()).collect()
}

/// The batch of some events.
pub(crate) fn batch(said: &[Said], block_size: u32) -> Batch {
    let mut batch = Batch { timestamp_ms: Some(1), ..Batch::default() };
    for event in said {
        let event = event_of(event, block_size, &mut batch);
        batch.events.push(event);
    }
    batch
}

fn event_of(said: &Said, block_size: u32, batch: &mut Batch) -> Event {
    let start = batch.hashes.len() as u32;
    let mut hashes = |hashes: &[u64]| {
        batch.hashes.extend(hashes.iter().map(|hash| EngineHash(*hash)));
        start..batch.hashes.len() as u32
    };
    match said {
        Said::Stored { hashes: named_hashes, parent, letters, block_tokens, named, tier, group } => {
            let range = hashes(named_hashes);
            let mut stored = empty_store(range, *tier, *group);
            stored.parent = parent.map(EngineHash);
            stored.block_size = (*block_tokens > 0).then_some(*block_tokens);
            stored.named = *named;
            let fits = block_tokens.is_multiple_of(block_size)
                && letters.len() as u32 * block_size == named_hashes.len() as u32 * block_tokens;
            fill(&mut stored, batch, (letters, block_size, fits));
            Event::Stored(stored)
        }
        Said::Bare { hashes: bare, tier, group } => Event::Stored(empty_store(hashes(bare), *tier, *group)),
        Said::Removed { hashes: gone, tier, group, remaining } => Event::Removed(Removed {
            hashes: hashes(gone),
            tier: *tier,
            group: *group,
            remaining_copies: remaining.clone(),
            remaining_copies_invalid: false,
        }),
        Said::Cleared => Event::Cleared,
        Said::Skipped(reason) => Event::Skipped(*reason),
        Said::Ignored(reason) => Event::Ignored(*reason),
    }
}

fn empty_store(hashes: std::ops::Range<u32>, tier: Tier, group: GroupInfo) -> Stored {
    Stored {
        hashes,
        parent: None,
        token_bytes: 0..0,
        block_size: None,
        locals: 0..0,
        extras: 0..0,
        named: Namespace::default(),
        tier,
        group,
    }
}

/// Tokens, extra keys and local hashes of a store.
fn fill(stored: &mut Stored, batch: &mut Batch, (letters, block_size, fits): (&[Letter], u32, bool)) {
    let (tokens, locals, extras) = (batch.token_bytes.len(), batch.locals.len(), batch.extras.len());
    let pieces_per_block = (stored.block_size.unwrap_or(block_size) / block_size).max(1) as usize;
    for (i, block) in letters.chunks(pieces_per_block).enumerate() {
        let mut images: Vec<u64> = block.iter().filter_map(|letter| letter.image).collect();
        images.sort_unstable();
        for letter in block {
            let bytes = token_bytes(*letter, block_size);
            if fits {
                batch.locals.push(hash::local_hash(&bytes, images.iter().copied(), stored.named.seed()));
            }
            batch.token_bytes.extend(bytes);
        }
        batch.extras.extend(images.iter().map(|value| ExtraKey { block: i as u32, value: *value }));
    }
    stored.token_bytes = tokens as u32..batch.token_bytes.len() as u32;
    stored.locals = locals as u32..batch.locals.len() as u32;
    stored.extras = extras as u32..batch.extras.len() as u32;
}
