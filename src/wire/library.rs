//! Batches and events in every shape, read by way of the library `rmp`. Slower than `walk`, and the judge of what is odd.

use std::ops::Range;

use super::fields::{self, Fields, Mark, Place, Tag, judge};
use super::keys::{Field, REMOVED_LAYOUT, REMOVED_REQUIRED, STORED_LAYOUT, STORED_REQUIRED};
use super::value::{Items, Kind, Value};
use super::{DecodeContext, PAYLOAD_BYTES_MAX};
use crate::event::{Batch, Event, IgnoreReason, SkipReason};
use crate::ids::EngineHash;

/// An event may be one byte long but takes over a hundred in memory; engines send a few thousand at most.
pub(super) const EVENTS_MAX: usize = 1 << 18;

/// Reads a batch: an array of `time, events, rank, ...`, or a map.
pub(super) fn batch(
    payload: &[u8],
    context: DecodeContext,
    batch: &mut Batch,
    event: fn(Value<'_>, DecodeContext, &mut Batch) -> Event,
) -> Result<(), SkipReason> {
    let undecodable = SkipReason::UndecodableBatch;
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(undecodable);
    }
    let (value, _) = Value::split(payload).ok_or(undecodable)?;
    let [time, events, rank] = head(value).ok_or(undecodable)?;
    batch.timestamp_ms = time.and_then(fields::timestamp_ms);
    batch.rank = rank.map_or(Ok(None), fields::rank)?;
    let Some(Kind::Array(events)) = events.map(Value::kind) else { return Err(undecodable) };
    if events.count_left() > EVENTS_MAX {
        return Err(undecodable);
    }
    for value in events {
        let decoded = event(value, context, batch);
        batch.events.push(decoded);
    }
    Ok(())
}

/// Time, events and rank, where they are given.
fn head(value: Value<'_>) -> Option<[Option<Value<'_>>; 3]> {
    match value.kind() {
        Kind::Array(items) if items.count_left() >= 2 => {
            let mut items = items;
            Some([items.next(), items.next(), items.next()])
        }
        Kind::Map(items) => {
            let mut head = [None; 3];
            for (key, value) in items.pairs() {
                let slot = match key.kind() {
                    Kind::Text(b"ts") => 0,
                    Kind::Text(b"events") => 1,
                    Kind::Text(b"data_parallel_rank") => 2,
                    _ => continue,
                };
                if head[slot].replace(value).is_some() {
                    return None;
                }
            }
            Some(head)
        }
        _ => None,
    }
}

/// Reads one event. What it appended to the arenas is taken back unless it is a store or a removal.
pub(super) fn event(value: Value<'_>, context: DecodeContext, batch: &mut Batch) -> Event {
    let mark = Mark::of(batch);
    let event = read(value, context, batch).unwrap_or_else(|instead| instead);
    if !matches!(event, Event::Stored(_) | Event::Removed(_)) {
        mark.restore(batch);
    }
    event
}

/// The fields of one event, unread. A nil is as good as absent.
struct Slots<'a> {
    values: [Option<Value<'a>>; Field::COUNT],
}

const MALFORMED: Event = Event::Skipped(SkipReason::MalformedEvent);

impl<'a> Slots<'a> {
    fn of(event: Value<'a>) -> Result<(Tag, Self), Event> {
        match event.kind() {
            Kind::Array(items) => Self::of_array(items),
            Kind::Map(items) => Self::of_map(items),
            _ => Err(MALFORMED),
        }
    }

    fn of_array(mut items: Items<'a>) -> Result<(Tag, Self), Event> {
        let tag = tag(items.next().ok_or(MALFORMED)?)?;
        let (layout, required): (&[Field], usize) = match tag {
            Tag::Stored => (&STORED_LAYOUT, STORED_REQUIRED),
            Tag::Removed => (&REMOVED_LAYOUT, REMOVED_REQUIRED),
            Tag::Cleared | Tag::Ignored => (&[], 0),
        };
        if items.count_left() < required {
            return Err(MALFORMED);
        }
        let mut slots = Self { values: [None; Field::COUNT] };
        for (field, value) in layout.iter().zip(items) {
            slots.values[*field as usize] = Some(value).filter(|value| !value.is_nil());
        }
        Ok((tag, slots))
    }

    fn of_map(items: Items<'a>) -> Result<(Tag, Self), Event> {
        let mut slots = Self { values: [None; Field::COUNT] };
        let mut seen = [false; Field::COUNT];
        let mut is_repeated = false;
        for (key, value) in items.pairs() {
            let Kind::Text(key) = key.kind() else { continue };
            let Some(at) = Field::from_key(key).map(|field| field as usize) else { continue };
            is_repeated |= seen[at];
            seen[at] = true;
            slots.values[at] = Some(value).filter(|value| !value.is_nil());
        }
        if is_repeated {
            return Err(MALFORMED);
        }
        let word = slots.get(Field::Type).or(slots.get(Field::EventType)).ok_or(MALFORMED)?;
        Ok((tag(word)?, slots))
    }

    fn get(&self, field: Field) -> Option<Value<'a>> {
        self.values[field as usize]
    }

    fn text(&self, field: Field) -> Result<Option<&'a str>, Event> {
        self.get(field).map(text).transpose()
    }

    fn u32(&self, field: Field) -> Result<Option<u32>, Event> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let Kind::Int(number) = value.kind() else { return Err(MALFORMED) };
        u32::try_from(number).map(Some).map_err(|_| MALFORMED)
    }

    fn place(&self) -> Result<Place<'a>, Event> {
        let owned_elsewhere = self.get(Field::Ownership).is_some();
        if owned_elsewhere {
            return Err(Event::Ignored(IgnoreReason::ForeignOwnership));
        }
        Ok(Place {
            medium: self.text(Field::Medium)?,
            group: self.u32(Field::Group)?,
            kind: self.text(Field::Kind)?,
            window_tokens: self.u32(Field::Window)?,
            locality: self.text(Field::Locality)?,
            owned_elsewhere,
        })
    }

    /// LoRA name and salt; SGLang puts a map with the salt in the place of the name.
    fn namespace(&self) -> Result<(Option<&'a str>, Option<&'a str>), Event> {
        let salt = self.text(Field::CacheSalt)?;
        let salt = if salt.is_some() { salt } else { self.text(Field::AdditionalSalt)? };
        let Some(slot) = self.get(Field::LoraName) else { return Ok((None, salt)) };
        let Kind::Map(items) = slot.kind() else { return Ok((Some(text(slot)?), salt)) };
        let mut inner = None;
        for (key, value) in items.pairs() {
            if matches!(key.kind(), Kind::Text(b"cache_salt")) && !value.is_nil() {
                if inner.is_some() {
                    return Err(MALFORMED);
                }
                inner = Some(text(value)?);
            }
        }
        if salt.is_some() && inner.is_some() && salt != inner {
            return Err(Event::Skipped(SkipReason::NamespaceConflict));
        }
        Ok((None, salt.or(inner)))
    }
}

fn read(event: Value<'_>, context: DecodeContext, batch: &mut Batch) -> Result<Event, Event> {
    let (tag, slots) = Slots::of(event)?;
    if matches!(tag, Tag::Cleared | Tag::Ignored) {
        return Ok(judge(tag, Fields::default(), context, batch));
    }
    let mut fields = Fields { place: slots.place()?, ..Fields::default() };
    fields.place.resolve()?;
    fields.is_rfc = slots.get(Field::EventType).is_some();
    let list = slots.get(Field::Hashes).or(slots.get(Field::SeqHashes)).ok_or(MALFORMED)?;
    fields.hashes = hashes(list, batch)?;
    if tag == Tag::Removed {
        fields.remaining_copies = slots.get(Field::RemainingCopies);
        return Ok(judge(tag, fields, context, batch));
    }
    let parent = slots.get(Field::Parent).or(slots.get(Field::ParentHash));
    fields.parent = parent.map(hash).transpose()?;
    if let Some(list) = slots.get(Field::Tokens) {
        fields.token_bytes = tokens(list, batch)?;
    }
    fields.block_size = slots.u32(Field::BlockSize)?.filter(|size| *size > 0);
    fields.lora_id = match slots.get(Field::LoraId).map(Value::kind) {
        None => None,
        Some(Kind::Int(id)) => Some(id as i64),
        Some(_) => return Err(MALFORMED),
    };
    (fields.lora_name, fields.salt) = slots.namespace()?;
    fields.extra_keys = slots.get(Field::ExtraKeys);
    fields.images = slots.get(Field::BlockMmInfos).or(slots.get(Field::MmKeys));
    Ok(judge(tag, fields, context, batch))
}

fn tag(word: Value<'_>) -> Result<Tag, Event> {
    let Kind::Text(word) = word.kind() else { return Err(MALFORMED) };
    Tag::from_word(word).ok_or(Event::Skipped(SkipReason::UnknownEvent))
}

fn text(value: Value<'_>) -> Result<&str, Event> {
    let Kind::Text(text) = value.kind() else { return Err(MALFORMED) };
    std::str::from_utf8(text).map_err(|_| MALFORMED)
}

fn hash(value: Value<'_>) -> Result<EngineHash, Event> {
    match value.kind() {
        Kind::Int(number) => Ok(EngineHash(number as u64)),
        Kind::Bytes(bytes) => Ok(fields::hash_of_bytes(bytes)),
        _ => Err(Event::Skipped(SkipReason::InvalidHash)),
    }
}

fn hashes(list: Value<'_>, batch: &mut Batch) -> Result<Range<u32>, Event> {
    let Kind::Array(items) = list.kind() else { return Err(MALFORMED) };
    let start = batch.hashes.len();
    for item in items {
        batch.hashes.push(hash(item)?);
    }
    fields::range(start, batch.hashes.len()).ok_or(MALFORMED)
}

/// Tokens, or pairs of tokens of which the first counts; never both in one list.
fn tokens(list: Value<'_>, batch: &mut Batch) -> Result<Range<u32>, Event> {
    let invalid = Event::Skipped(SkipReason::InvalidToken);
    let Kind::Array(mut items) = list.kind() else { return Err(MALFORMED) };
    let start = batch.token_bytes.len();
    let are_pairs = items.clone().next().is_some_and(|first| matches!(first.kind(), Kind::Array(_)));
    for item in items.by_ref() {
        let token = if are_pairs { first_of_pair(item) } else { token(item) };
        batch.token_bytes.extend_from_slice(&token.ok_or_else(|| invalid.clone())?.to_le_bytes());
    }
    fields::range(start, batch.token_bytes.len()).ok_or(MALFORMED)
}

fn first_of_pair(value: Value<'_>) -> Option<u32> {
    let Kind::Array(mut items) = value.kind() else { return None };
    if items.count_left() != 2 {
        return None;
    }
    let first = token(items.next()?)?;
    token(items.next()?).map(|_| first)
}

fn token(value: Value<'_>) -> Option<u32> {
    if let Kind::Int(number) = value.kind() { u32::try_from(number).ok() } else { None }
}
