//! What an event means once its fields are read: the judgement that both ways of reading share.

use std::ops::Range;

use super::DecodeContext;
use super::distinct::all_distinct;
use super::extra;
use super::value::{Kind, Value};
use crate::event::{Batch, CacheKind, Event, GroupInfo, IgnoreReason, Removed, SkipReason, Stored};
use crate::hash;
use crate::ids::{DpRank, EngineHash, GroupId, Namespace, Tier};

/// Above this a timestamp counts milliseconds, below it seconds: as seconds it would lie in the year 5138, as
/// milliseconds in 1973.
const SECONDS_MAX: f64 = 1e11;

/// What the tag says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
    Ignored,
}

impl Tag {
    /// The words of the engines and those of RFC 1527.
    pub(super) fn from_word(word: &[u8]) -> Option<Self> {
        match word {
            b"BlockStored" | b"stored" => Some(Self::Stored),
            b"BlockRemoved" | b"removed" => Some(Self::Removed),
            b"AllBlocksCleared" | b"cleared" => Some(Self::Cleared),
            b"Ignored" => Some(Self::Ignored),
            _ => None,
        }
    }
}

/// Fields that say where the blocks of an event lie and whose they are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place<'a> {
    pub(super) medium: Option<&'a str>,
    pub(super) group: Option<u32>,
    pub(super) kind: Option<&'a str>,
    pub(super) window_tokens: Option<u32>,
    pub(super) locality: Option<&'a str>,
    /// `ownership` is there and not nil.
    pub(super) owned_elsewhere: bool,
}

impl Place<'_> {
    /// Tier and group, or the event to put in place of this one.
    pub(super) fn resolve(&self) -> Result<(Tier, GroupInfo), Event> {
        if self.owned_elsewhere {
            return Err(Event::Ignored(IgnoreReason::ForeignOwnership));
        }
        let kind = match self.kind {
            None => None,
            Some("full_attention" | "mla_attention" | "sink_full_attention") => Some(CacheKind::Full),
            Some("sliding_window" | "sliding_window_mla") => Some(CacheKind::SlidingWindow),
            Some("mamba") => Some(CacheKind::Mamba),
            Some(word) if is_without_effect(word) => return Err(Event::Ignored(IgnoreReason::CacheKind)),
            Some(_) => return Err(Event::Skipped(SkipReason::UnknownCacheKind)),
        };
        let tier = match (self.locality, Tier::from_medium(self.medium.unwrap_or_default())) {
            (Some(locality), _) if locality.eq_ignore_ascii_case("REMOTE") => Tier::External,
            (Some(locality), _) if !locality.eq_ignore_ascii_case("LOCAL") => {
                return Err(Event::Skipped(SkipReason::UnknownMedium));
            }
            (_, Some(tier)) => tier,
            (_, None) => return Err(Event::Skipped(SkipReason::UnknownMedium)),
        };
        let group = GroupInfo { id: self.group.map(GroupId), kind, window_tokens: self.window_tokens };
        Ok((tier, group))
    }
}

/// Kinds whose blocks no prefix depends on.
fn is_without_effect(kind: &str) -> bool {
    matches!(kind, "chunked_local_attention" | "cross_attention" | "cross" | "encoder_only_attention" | "encoder_only")
}

/// Fields of a store or a removal. Lists lie in the arenas of the batch, whose ends they are.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) hashes: Range<u32>,
    pub(super) parent: Option<EngineHash>,
    pub(super) token_bytes: Range<u32>,
    /// Not 0.
    pub(super) block_size: Option<u32>,
    pub(super) lora_id: Option<i64>,
    pub(super) lora_name: Option<&'a str>,
    pub(super) salt: Option<&'a str>,
    pub(super) extra_keys: Option<Value<'a>>,
    /// Image information in the forms of other producers.
    pub(super) images: Option<Value<'a>>,
    pub(super) place: Place<'a>,
    pub(super) remaining_copies: Option<Value<'a>>,
    /// In the words of RFC 1527, whose publishers send an empty list for a hash they cannot name.
    pub(super) is_rfc: bool,
}

/// Ends of the arenas before an event, to take back what it left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    hashes: usize,
    token_bytes: usize,
    locals: usize,
    extras: usize,
}

impl Mark {
    pub(super) fn of(batch: &Batch) -> Self {
        Self {
            hashes: batch.hashes.len(),
            token_bytes: batch.token_bytes.len(),
            locals: batch.locals.len(),
            extras: batch.extras.len(),
        }
    }

    pub(super) fn restore(self, batch: &mut Batch) {
        batch.hashes.truncate(self.hashes);
        batch.token_bytes.truncate(self.token_bytes);
        batch.locals.truncate(self.locals);
        batch.extras.truncate(self.extras);
    }
}

/// A range of an arena; none when the arena has outgrown it.
pub(super) fn range(start: usize, end: usize) -> Option<Range<u32>> {
    Some(u32::try_from(start).ok()?..u32::try_from(end).ok()?)
}

/// Identity of a hash given as bytes: the last eight of 32, which are the integer form of the same block; else a hash.
pub(super) fn hash_of_bytes(bytes: &[u8]) -> EngineHash {
    match bytes {
        [_, .., a, b, c, d, e, f, g, h] if bytes.len() == 32 => {
            EngineHash(u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]))
        }
        _ => EngineHash(xxhash_rust::xxh3::xxh3_64(bytes)),
    }
}

/// The event that `tag` and `fields` make.
pub(super) fn judge(tag: Tag, fields: Fields<'_>, context: DecodeContext, batch: &mut Batch) -> Event {
    match tag {
        Tag::Cleared => Event::Cleared,
        Tag::Ignored => Event::Ignored(IgnoreReason::IgnoredTag),
        Tag::Stored => stored(fields, context, batch).unwrap_or_else(|instead| instead),
        Tag::Removed => removed(fields, batch).unwrap_or_else(|instead| instead),
    }
}

fn removed(fields: Fields<'_>, batch: &mut Batch) -> Result<Event, Event> {
    let (tier, group) = fields.place.resolve()?;
    batch.token_bytes.truncate(batch.token_bytes.len() - len(&fields.token_bytes));
    if fields.is_rfc && fields.hashes.is_empty() {
        return Err(Event::Skipped(SkipReason::NoHashes));
    }
    let remaining_copies = fields.remaining_copies.and_then(|value| copies(value, len(&fields.hashes)));
    let remaining_copies_invalid = fields.remaining_copies.is_some() && remaining_copies.is_none();
    Ok(Event::Removed(Removed { hashes: fields.hashes, tier, group, remaining_copies, remaining_copies_invalid }))
}

fn copies(value: Value<'_>, len: usize) -> Option<Vec<u64>> {
    let Kind::Array(items) = value.kind() else { return None };
    if items.count_left() != len {
        return None;
    }
    items.map(|item| if let Kind::Int(count) = item.kind() { u64::try_from(count).ok() } else { None }).collect()
}

fn stored(fields: Fields<'_>, context: DecodeContext, batch: &mut Batch) -> Result<Event, Event> {
    let (tier, group) = fields.place.resolve()?;
    let is_side = matches!(group.kind, Some(CacheKind::SlidingWindow | CacheKind::Mamba));
    let skip = |reason| Err(Event::Skipped(reason));
    let may_be_without_hashes = is_side || (group.kind.is_none() && group.id.is_some());
    if fields.hashes.is_empty() && !may_be_without_hashes {
        return skip(SkipReason::NoHashes);
    }
    let (token_bytes, block_size) = match (fields.token_bytes.is_empty(), fields.block_size) {
        (false, None) if !is_side => return skip(SkipReason::MalformedEvent),
        (false, None) => {
            batch.token_bytes.truncate(batch.token_bytes.len() - len(&fields.token_bytes));
            (fields.token_bytes.start..fields.token_bytes.start, None)
        }
        (true, _) if !is_side => (fields.token_bytes.clone(), None),
        (_, block_size) => (fields.token_bytes.clone(), block_size),
    };
    let hashes = batch.hashes_of(&fields.hashes);
    if !is_side && fields.parent.is_some_and(|parent| hashes.contains(&parent)) {
        return skip(SkipReason::ParentInHashes);
    }
    if !all_distinct(hashes) {
        return skip(SkipReason::RepeatedHash);
    }
    let (extras, named) = identity(&fields, is_side, context, batch).map_err(Event::Skipped)?;
    let mut event = Stored {
        hashes: fields.hashes,
        parent: fields.parent,
        token_bytes,
        block_size,
        locals: 0..0,
        extras,
        named,
        tier,
        group,
    };
    event.locals = if is_side { 0..0 } else { locals(&event, context, batch) };
    Ok(Event::Stored(event))
}

/// What sets the blocks apart from plain ones: extra keys of single blocks, and the namespace that the event names.
fn identity(
    fields: &Fields<'_>,
    is_side: bool,
    context: DecodeContext,
    batch: &mut Batch,
) -> Result<(Range<u32>, Namespace), SkipReason> {
    let start = batch.extras.len();
    let lora_name = fields.lora_name.filter(|name| !name.is_empty());
    let mut salt = fields.salt.and_then(hash::salt);
    let blocks = len(&fields.hashes);
    if !is_side && blocks > 0 {
        let chain = extra::Chain { lora_name, is_root: fields.parent.is_none(), blocks };
        if let Some(keys) = fields.extra_keys {
            let found = extra::event_keys(keys, chain, &mut batch.extras)?;
            if salt.is_some() && found.is_some() && salt != found {
                return Err(SkipReason::NamespaceConflict);
            }
            salt = salt.or(found);
        }
        if let Some(images) = fields.images {
            extra::images(images, blocks, &mut batch.extras);
        }
        batch.extras[start..].sort_unstable();
    }
    let default_lora = if fields.parent.is_none() { context.default_lora } else { None };
    let lora = lora_name.and_then(hash::lora_name).or_else(|| fields.lora_id.map(hash::lora_id)).or(default_lora);
    let extras = if batch.extras.len() == start { Some(0..0) } else { range(start, batch.extras.len()) };
    Ok((extras.ok_or(SkipReason::MalformedEvent)?, Namespace { lora, salt }))
}

/// Appends the local hashes of an event whose tokens fit its hashes and the blocks of the index.
fn locals(event: &Stored, context: DecodeContext, batch: &mut Batch) -> Range<u32> {
    let index_size = context.block_size.tokens();
    let tokens = len(&event.token_bytes) / 4;
    let Some(block_size) = event.block_size.filter(|size| size % index_size == 0) else { return 0..0 };
    if len(&event.hashes).checked_mul(block_size as usize) != Some(tokens) {
        return 0..0;
    }
    let start = batch.locals.len();
    let seed = event.named.seed();
    let pieces = (block_size / index_size) as usize;
    let bytes = &batch.token_bytes[event.token_bytes.start as usize..event.token_bytes.end as usize];
    let chunks = bytes.chunks_exact(4 * index_size as usize);
    batch.locals.reserve(chunks.len());
    if event.extras.is_empty() {
        batch.locals.extend(chunks.map(|chunk| hash::local_hash(chunk, [], seed)));
    } else {
        let mut extras = &batch.extras[event.extras.start as usize..event.extras.end as usize];
        for (at, chunk) in chunks.enumerate() {
            let block = at / pieces;
            extras = &extras[extras.partition_point(|extra| (extra.block as usize) < block)..];
            let own = extras.iter().take_while(|extra| extra.block as usize == block).map(|extra| extra.value);
            batch.locals.push(hash::local_hash(chunk, own, seed));
        }
    }
    range(start, batch.locals.len()).unwrap_or(0..0)
}

/// The publisher's time in milliseconds.
pub(super) fn timestamp_ms(value: Value<'_>) -> Option<u64> {
    let time = match value.kind() {
        Kind::Int(time) => time as f64,
        Kind::Float(time) => time,
        _ => return None,
    };
    if !time.is_finite() || time <= 0.0 {
        return None;
    }
    let ms = if time > SECONDS_MAX { time } else { time * 1000.0 };
    Some(ms as u64).filter(|ms| *ms > 0)
}

/// The rank of a batch. A negative one is read by its bit pattern, as engines before us do.
pub(super) fn rank(value: Value<'_>) -> Result<Option<DpRank>, SkipReason> {
    match value.kind() {
        Kind::Nil => Ok(None),
        Kind::Int(rank) => {
            let positive = u32::try_from(rank).ok();
            let bits = positive.or_else(|| i32::try_from(rank).ok().map(i32::cast_unsigned));
            bits.map(|bits| Some(DpRank(bits))).ok_or(SkipReason::UndecodableBatch)
        }
        _ => Err(SkipReason::UndecodableBatch),
    }
}

fn len(range: &Range<u32>) -> usize {
    (range.end - range.start) as usize
}
