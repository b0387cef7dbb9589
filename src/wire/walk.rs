//! Batches and events in their common shapes, read in one pass without allocating per event.
//!
//! `None` means "not a common shape, or broken": the caller takes back what was appended and asks the library.

use super::fields::{self, Fields, Mark, Tag, judge};
use super::keys::{Field, REMOVED_LAYOUT, REMOVED_REQUIRED, STORED_LAYOUT, STORED_REQUIRED};
use super::library;
use super::reader::Reader;
use super::value::Value;
use super::{DecodeContext, PAYLOAD_BYTES_MAX};
use crate::event::{Batch, Event, GroupInfo, Removed, SkipReason};
use crate::ids::{GroupId, Tier};

/// Reads a batch that is an array of `time, events, rank, ...`.
pub(super) fn batch(payload: &[u8], context: DecodeContext, batch: &mut Batch) -> Option<()> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let mut reader = Reader::new(payload);
    let elements = reader.array_len()?;
    if elements < 2 {
        return None;
    }
    batch.timestamp_ms = fields::timestamp_ms(reader.value()?);
    let events = reader.array_len()?;
    if events > library::EVENTS_MAX {
        return None;
    }
    for _ in 0..events {
        let event = next_event(&mut reader, context, batch)?;
        batch.events.push(event);
    }
    for element in 2..elements {
        let value = reader.value()?;
        if element == 2 {
            batch.rank = fields::rank(value).ok()?;
        }
    }
    Some(())
}

/// Reads one event, by the library if need be; none when not even its end can be found.
fn next_event(reader: &mut Reader<'_>, context: DecodeContext, batch: &mut Batch) -> Option<Event> {
    if let Some(event) = one_removed(reader, batch) {
        return Some(event);
    }
    let mark = Mark::of(batch);
    let start = *reader;
    if let Some(event) = event(reader, context, batch) {
        if !matches!(event, Event::Stored(_) | Event::Removed(_)) {
            mark.restore(batch);
        }
        return Some(event);
    }
    mark.restore(batch);
    *reader = start;
    Some(library::event(reader.value()?, context, batch))
}

/// Reads `["BlockRemoved", [hash], "GPU"]`, perhaps with a group, and moves the reader only then. Engines that evict block
/// by block send little else: it need not go through all fields that an event may have.
fn one_removed(reader: &mut Reader<'_>, batch: &mut Batch) -> Option<Event> {
    let mut ahead = *reader;
    let elements = ahead.array_len()?;
    if !ahead.literal(b"\xacBlockRemoved\x91") {
        return None;
    }
    let hash = ahead.hash()?;
    if !ahead.literal(b"\xa3GPU") {
        return None;
    }
    let id = match elements {
        3 => None,
        4 => ahead.nil_or(Reader::u32)?.map(GroupId),
        _ => return None,
    };
    let start = batch.hashes.len();
    let hashes = fields::range(start, start + 1)?;
    batch.hashes.push(hash);
    *reader = ahead;
    let group = GroupInfo { id, ..GroupInfo::default() };
    let (remaining_copies, remaining_copies_invalid) = (None, false);
    Some(Event::Removed(Removed { hashes, tier: Tier::Device, group, remaining_copies, remaining_copies_invalid }))
}

/// Reads an event whose extent is known.
pub(super) fn event_or_library(value: Value<'_>, context: DecodeContext, batch: &mut Batch) -> Event {
    next_event(&mut Reader::new(value.as_encoded()), context, batch)
        .unwrap_or(Event::Skipped(SkipReason::MalformedEvent))
}

/// Reads one event of a common shape.
fn event(reader: &mut Reader<'_>, context: DecodeContext, batch: &mut Batch) -> Option<Event> {
    let (tag, fields) = match reader.peek()? {
        0x80..=0x8f | 0xde => map(reader, batch)?,
        _ => array(reader, batch)?,
    };
    Some(judge(tag, fields, context, batch))
}

/// Reads an array event. Elements behind those that have a meaning are passed over.
fn array<'a>(reader: &mut Reader<'a>, batch: &mut Batch) -> Option<(Tag, Fields<'a>)> {
    let len = reader.array_len()?.checked_sub(1)?;
    let tag = Tag::from_word(reader.text()?)?;
    let (layout, required): (&[Field], usize) = match tag {
        Tag::Stored => (&STORED_LAYOUT, STORED_REQUIRED),
        Tag::Removed => (&REMOVED_LAYOUT, REMOVED_REQUIRED),
        Tag::Cleared | Tag::Ignored => (&[], 0),
    };
    if len < required {
        return None;
    }
    let mut fields = Fields::default();
    for position in 0..len {
        match layout.get(position) {
            Some(field) => read_field(*field, reader, &mut fields, batch)?,
            None => drop(reader.value()?),
        }
    }
    Some((tag, fields))
}

/// Reads a map event, its tag at any place.
fn map<'a>(reader: &mut Reader<'a>, batch: &mut Batch) -> Option<(Tag, Fields<'a>)> {
    let len = reader.map_len()?;
    let mut tag = None;
    let mut fields = Fields::default();
    let mut seen = 0_u32;
    for _ in 0..len {
        let Some(field) = Field::from_key(reader.text()?) else {
            reader.value()?;
            continue;
        };
        let bit = 1 << field as u32;
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        if field == Field::Type {
            tag = Some(Tag::from_word(reader.text()?)?);
        } else {
            read_field(field, reader, &mut fields, batch)?;
        }
    }
    let has_hashes = seen & 1 << Field::Hashes as u32 != 0;
    tag.filter(|tag| has_hashes || matches!(tag, Tag::Cleared | Tag::Ignored)).map(|tag| (tag, fields))
}

fn read_field<'a>(field: Field, reader: &mut Reader<'a>, fields: &mut Fields<'a>, batch: &mut Batch) -> Option<()> {
    let place = &mut fields.place;
    match field {
        Field::Hashes => fields.hashes = reader.hashes(&mut batch.hashes)?,
        Field::Parent => fields.parent = reader.nil_or(Reader::hash)?,
        Field::Tokens => {
            fields.token_bytes = reader.nil_or(|reader| reader.tokens(&mut batch.token_bytes))?.unwrap_or_default();
        }
        Field::BlockSize => fields.block_size = reader.nil_or(Reader::u32)?.filter(|size| *size > 0),
        Field::LoraId => fields.lora_id = reader.nil_or(Reader::u32)?.map(i64::from),
        Field::Medium => place.medium = reader.nil_or(Reader::utf8)?,
        Field::LoraName => fields.lora_name = reader.nil_or(Reader::utf8)?,
        Field::CacheSalt => fields.salt = reader.nil_or(Reader::utf8)?,
        Field::ExtraKeys => fields.extra_keys = reader.nil_or(Reader::value)?,
        Field::Group => place.group = reader.nil_or(Reader::u32)?,
        Field::Kind => place.kind = reader.nil_or(Reader::utf8)?,
        Field::Window => place.window_tokens = reader.nil_or(Reader::u32)?,
        Field::Locality => place.locality = reader.nil_or(Reader::utf8)?,
        Field::Ownership => place.owned_elsewhere = !reader.value()?.is_nil(),
        // Rare words of few producers.
        Field::Type
        | Field::EventType
        | Field::SeqHashes
        | Field::ParentHash
        | Field::AdditionalSalt
        | Field::BlockMmInfos
        | Field::MmKeys
        | Field::RemainingCopies => return None,
    }
    Some(())
}
