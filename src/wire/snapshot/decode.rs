//! Bytes to values: frame by frame, one stream in memory at a time, everything checked on the way.

use std::collections::VecDeque;

use bytes::{Buf, BytesMut};
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::record::Record;
use super::values::{Item, OwnerHead, StreamHead, Totals};
use super::{
    Error, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, Kind, MAGIC, PREAMBLE_BYTES, VERSION, VERSION_OLDEST,
};
use crate::image::{GroupImage, Image, OwnerImage, StreamImage};

/// Longest item: a waiting block with the tokens of the largest payload that a stream takes, several times over.
const ITEM_BYTES_MAX: usize = 1 << 30;

/// Nesting of an item: a registration with the one that it superseded has less than ten levels.
const DEPTH_MAX: usize = 32;

/// Registrations and tombstones in one snapshot: far more than anybody has, and a bound for a peer that never ends.
const REGISTRATIONS_MAX: usize = 1 << 20;

/// Reads a snapshot: bytes are pushed in, items are pulled out.
pub struct Decoder {
    buffer: BytesMut,
    begun: bool,
    place: Place,
    running: Xxh3,
    totals: Totals,
    /// Kind of the last frame, and the part of an item with which it ended.
    last: Option<Kind>,
    partial: Vec<u8>,
    building: Option<Box<Building>>,
    registrations: usize,
    ready: VecDeque<Item>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Top,
    Index,
    Stream,
    End,
}

/// A stream whose end has not come.
struct Building {
    stream: StreamImage,
    /// Of the last owner: lengths of its runs of own hashes, and how many of them are full.
    lengths: Vec<u32>,
    full: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Nothing was read.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            begun: false,
            place: Place::Start,
            running: Xxh3::new(),
            totals: Totals::default(),
            last: None,
            partial: Vec::new(),
            building: None,
            registrations: 0,
            ready: VecDeque::new(),
        }
    }

    /// Adds bytes. All items are to be pulled before the next ones, so that no more than a frame waits here.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next item; none if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are no snapshot. What was pulled before counts for nothing then.
    pub fn next_item(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if !self.step()? {
                return Ok(None);
            }
        }
    }

    /// No bytes follow.
    ///
    /// # Errors
    /// The trailer has not come.
    pub fn finish(&self) -> Result<(), Error> {
        if self.place == Place::End { Ok(()) } else { Err(Error::Truncated) }
    }

    /// Reads one frame; false if it is not there yet.
    fn step(&mut self) -> Result<bool, Error> {
        if !self.begun && !self.preamble()? {
            return Ok(false);
        }
        if self.place == Place::End {
            return if self.buffer.is_empty() { Ok(false) } else { Err(Error::Trailing) };
        }
        let Some((head, _)) = self.buffer.split_at_checked(FRAME_HEAD_BYTES) else {
            return Ok(false);
        };
        let length = u32::get(&head[1..]).unwrap_or(0);
        let kind = Kind::of(head[0]).ok_or(Error::Kind(head[0]))?;
        if length as usize > FRAME_BYTES_MAX {
            return Err(Error::FrameLength(length));
        }
        let checked = FRAME_HEAD_BYTES + length as usize;
        if self.buffer.len() < checked + FRAME_TAIL_BYTES {
            return Ok(false);
        }
        let frame = self.buffer.split_to(checked);
        let checksum = self.buffer.split_to(FRAME_TAIL_BYTES);
        if xxh3_64(&frame).to_le_bytes() != checksum[..] {
            return Err(Error::Checksum(self.totals.frames));
        }
        if self.last != Some(kind) && !self.partial.is_empty() {
            return Err(Error::Value { what: "item", why: "it has no end".to_owned() });
        }
        self.frame(kind, &frame[FRAME_HEAD_BYTES..])?;
        self.last = Some(kind);
        self.running.update(&checksum);
        self.totals.frames += 1;
        Ok(true)
    }

    fn preamble(&mut self) -> Result<bool, Error> {
        let there = self.buffer.len().min(MAGIC.len());
        if self.buffer[..there] != MAGIC[..there] {
            return Err(Error::Magic);
        }
        if self.buffer.len() < PREAMBLE_BYTES {
            return Ok(false);
        }
        let found = u16::from_le_bytes([self.buffer[MAGIC.len()], self.buffer[MAGIC.len() + 1]]);
        if !(VERSION_OLDEST..=VERSION).contains(&found) {
            return Err(Error::Version { found, oldest: VERSION_OLDEST, newest: VERSION });
        }
        self.running.update(&self.buffer[..PREAMBLE_BYTES]);
        self.buffer.advance(PREAMBLE_BYTES);
        self.begun = true;
        Ok(true)
    }

    fn frame(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        match (self.place, kind) {
            (Place::Start, Kind::Header) => {
                if let Some(header) = self.single(payload, "header")? {
                    self.ready.push_back(Item::Header(header));
                    self.place = Place::Top;
                }
            }
            (Place::Top, Kind::Registrations) => {
                let list = self.items(payload, "registration")?;
                self.registered(list.into_iter().map(Box::new).map(Item::Registration))?;
            }
            (Place::Top, Kind::Tombstones) => {
                let list = self.items(payload, "tombstone")?;
                self.registered(list.into_iter().map(Item::Tombstone))?;
            }
            (Place::Top, Kind::IndexBegin) => {
                if let Some(head) = self.single(payload, "index")? {
                    self.ready.push_back(Item::Index(head));
                    self.place = Place::Index;
                }
            }
            (Place::Index, Kind::StreamBegin) => {
                if let Some(StreamHead { name, position }) = self.single(payload, "stream")? {
                    let stream = StreamImage { name, position, image: Image::default() };
                    self.building = Some(Box::new(Building { stream, lengths: Vec::new(), full: 0 }));
                    self.place = Place::Stream;
                }
            }
            (Place::Stream, Kind::StreamEnd) if payload.is_empty() => self.end_stream()?,
            (Place::Index, Kind::IndexEnd) if payload.is_empty() => self.place = Place::Top,
            (Place::Top, Kind::Trailer) => self.trailer(payload)?,
            (Place::Stream, kind) => self.part(kind, payload)?,
            (place, kind) => {
                let place = match place {
                    Place::Start => "before the header",
                    Place::Top => "outside an index",
                    Place::Index => "outside a stream",
                    Place::Stream | Place::End => "here",
                };
                return Err(Error::Order { kind: kind as u8, place });
            }
        }
        Ok(())
    }

    fn registered(&mut self, items: impl ExactSizeIterator<Item = Item>) -> Result<(), Error> {
        self.registrations += items.len();
        if self.registrations > REGISTRATIONS_MAX {
            return Err(Error::Value { what: "registrations", why: format!("more than {REGISTRATIONS_MAX}") });
        }
        self.ready.extend(items);
        Ok(())
    }

    fn trailer(&mut self, payload: &[u8]) -> Result<(), Error> {
        let numbers: Vec<u64> = records(payload, "trailer")?;
        let &[frames, streams, owners, blocks, running] = &numbers[..] else {
            return Err(Error::Value { what: "trailer", why: format!("{} bytes", payload.len()) });
        };
        let totals = self.totals;
        for (what, same) in [
            ("frames", frames == totals.frames),
            ("streams", streams == totals.streams),
            ("owners", owners == totals.owners),
            ("blocks", blocks == totals.blocks),
            ("checksums", running == self.running.digest()),
        ] {
            if !same {
                return Err(Error::Totals(what));
            }
        }
        self.ready.push_back(Item::End(totals));
        self.place = Place::End;
        Ok(())
    }

    fn end_stream(&mut self) -> Result<(), Error> {
        let building = self.building.take().expect("a stream is being built in this place");
        building.check_hashes()?;
        let stream = building.stream;
        self.totals.streams += 1;
        self.totals.owners += stream.image.owners.len() as u64;
        self.totals.blocks += stream.image.block_count() as u64;
        self.ready.push_back(Item::Stream(Box::new(stream)));
        self.place = Place::Index;
        Ok(())
    }

    /// A part of a stream.
    fn part(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let mut building = self.building.take().expect("a stream is being built in this place");
        let taken = match kind {
            Kind::OwnerBegin => self.single::<OwnerHead>(payload, "owner").and_then(|head| match head {
                Some(head) => building.begin_owner(head),
                None => Ok(()),
            }),
            Kind::Group => self.single(payload, "cache group").and_then(|group| match group {
                Some(group) => building.begin_group(group),
                None => Ok(()),
            }),
            Kind::Overlays => self.items(payload, "overlay").and_then(|list| {
                building.owner(kind)?.rest.overlays.extend(list);
                Ok(())
            }),
            Kind::Multi => self.items(payload, "places of a hash").and_then(|list| {
                building.owner(kind)?.rest.multi.extend(list);
                Ok(())
            }),
            Kind::Pending => self.items(payload, "waiting block").and_then(|list| {
                building.owner(kind)?.rest.pending.extend(list);
                Ok(())
            }),
            _ => building.records(kind, payload),
        };
        self.building = Some(building);
        taken
    }

    /// The one item of its kind here; none while it is cut.
    fn single<T: DeserializeOwned>(&mut self, payload: &[u8], what: &'static str) -> Result<Option<T>, Error> {
        let mut items = self.items(payload, what)?;
        let item = items.pop();
        if !items.is_empty() {
            return Err(Error::Value { what, why: "there are two".to_owned() });
        }
        Ok(item)
    }

    /// Whole items of a payload; a cut one waits for the next frame.
    fn items<T: DeserializeOwned>(&mut self, payload: &[u8], what: &'static str) -> Result<Vec<T>, Error> {
        let joined;
        let mut bytes = payload;
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(payload);
            let length = self.partial.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
            // Copied once, when it is whole: a long item comes in many frames.
            if self.partial.len() < u32::BYTES.saturating_add(length) && length <= ITEM_BYTES_MAX {
                return Ok(Vec::new());
            }
            joined = std::mem::take(&mut self.partial);
            bytes = &joined;
        }
        let mut items = Vec::new();
        while let Some((length, rest)) = bytes.split_at_checked(u32::BYTES) {
            let length = u32::get(length).unwrap_or(0) as usize;
            if length > ITEM_BYTES_MAX {
                return Err(Error::Value { what, why: format!("{length} bytes are longer than {ITEM_BYTES_MAX}") });
            }
            let Some((item, rest)) = rest.split_at_checked(length) else {
                break;
            };
            items.push(unpack(item).map_err(|why| Error::Value { what, why })?);
            bytes = rest;
        }
        self.partial = bytes.to_vec();
        Ok(items)
    }
}

impl Building {
    fn owner(&mut self, kind: Kind) -> Result<&mut OwnerImage, Error> {
        let owner = self.stream.image.owners.last_mut();
        owner.ok_or(Error::Order { kind: kind as u8, place: "before an owner" })
    }

    fn begin_owner(&mut self, head: OwnerHead) -> Result<(), Error> {
        self.check_hashes()?;
        self.stream.image.owners.push(head.into_image()?);
        self.lengths.clear();
        self.full = 0;
        Ok(())
    }

    fn begin_group(&mut self, group: GroupImage) -> Result<(), Error> {
        let kind = Kind::Group as u8;
        let groups = self.owner(Kind::Group)?.rest.groups.as_mut();
        groups.ok_or(Error::Order { kind, place: "at an owner without groups" })?.list.push(group);
        Ok(())
    }

    fn group(&mut self, kind: Kind) -> Result<&mut GroupImage, Error> {
        let groups = self.owner(kind)?.rest.groups.as_mut();
        let group = groups.and_then(|groups| groups.list.last_mut());
        group.ok_or(Error::Order { kind: kind as u8, place: "before a group" })
    }

    /// Every announced run of own hashes has come whole.
    fn check_hashes(&self) -> Result<(), Error> {
        let Some(owner) = self.stream.image.owners.last() else {
            return Ok(());
        };
        let whole = owner.hashes.iter().zip(&self.lengths).skip(self.full).all(|(run, len)| run.1.len() as u32 == *len);
        if whole { Ok(()) } else { Err(Error::Value { what: "own hashes", why: "some are missing".to_owned() }) }
    }

    fn records(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let image = &mut self.stream.image;
        match kind {
            Kind::Runs => extend(&mut image.runs, payload, "runs"),
            Kind::Locals => extend(&mut image.locals, payload, "local hashes"),
            Kind::Engines => extend(&mut image.engines, payload, "engine hashes"),
            Kind::HashRuns => {
                let runs: Vec<(u32, u32)> = records(payload, "own hashes")?;
                self.owner(kind)?.hashes.extend(runs.iter().map(|(from, _)| (*from, Vec::new())));
                self.lengths.extend(runs.iter().map(|(_, len)| *len));
                Ok(())
            }
            Kind::Hashes => self.own_hashes(records(payload, "own hashes")?),
            Kind::GroupHeld => extend(&mut self.group(kind)?.held, payload, "blocks of a group"),
            Kind::GroupBare => extend(&mut self.group(kind)?.bare, payload, "bare blocks of a group"),
            _ => self.owner_records(kind, payload),
        }
    }

    fn owner_records(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let owner = self.owner(kind)?;
        if let Some(row) = Kind::ROWS.iter().position(|row| *row == kind) {
            return extend(&mut owner.rows[row], payload, "ranges");
        }
        let rest = &mut owner.rest;
        match kind {
            Kind::Recents => extend(&mut owner.recents, payload, "remembered hashes"),
            Kind::Free => extend(&mut rest.free, payload, "free records"),
            Kind::Copies => extend(&mut rest.copies, payload, "copies"),
            Kind::Spans => extend(&mut rest.spans, payload, "spans"),
            Kind::Pieces => extend(&mut rest.pieces, payload, "pieces"),
            Kind::Removals => extend(&mut rest.removals, payload, "removals"),
            Kind::Ages => {
                let place = "at an owner without ages";
                let ages = rest.ages.as_mut().ok_or(Error::Order { kind: kind as u8, place })?;
                extend(&mut ages.queue, payload, "ages")
            }
            _ => Err(Error::Order { kind: kind as u8, place: "inside a stream" }),
        }
    }

    fn own_hashes(&mut self, hashes: Vec<u64>) -> Result<(), Error> {
        let owner = self.stream.image.owners.last_mut();
        let owner = owner.ok_or(Error::Order { kind: Kind::Hashes as u8, place: "before an owner" })?;
        let mut hashes = &hashes[..];
        while !hashes.is_empty() {
            let (Some((_, run)), Some(len)) = (owner.hashes.get_mut(self.full), self.lengths.get(self.full)) else {
                return Err(Error::Value { what: "own hashes", why: "there are too many".to_owned() });
            };
            let part = hashes.len().min(*len as usize - run.len());
            run.extend_from_slice(&hashes[..part]);
            hashes = &hashes[part..];
            if run.len() == *len as usize {
                self.full += 1;
            }
        }
        Ok(())
    }
}

fn records<T: Record>(payload: &[u8], what: &'static str) -> Result<Vec<T>, Error> {
    let mut list = Vec::new();
    extend(&mut list, payload, what)?;
    Ok(list)
}

fn extend<T: Record>(list: &mut Vec<T>, payload: &[u8], what: &'static str) -> Result<(), Error> {
    let invalid = |why: &str| Error::Value { what, why: why.to_owned() };
    if !payload.len().is_multiple_of(T::BYTES) {
        return Err(invalid("a part of one is missing"));
    }
    list.reserve(payload.len() / T::BYTES);
    for bytes in payload.chunks_exact(T::BYTES) {
        list.push(T::get(bytes).ok_or_else(|| invalid("one is out of its range"))?);
    }
    Ok(())
}

/// One MessagePack value and nothing behind it.
fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut reader = rmp_serde::Deserializer::new(bytes);
    reader.set_max_depth(DEPTH_MAX);
    let value = T::deserialize(&mut reader).map_err(|error| error.to_string())?;
    if reader.get_ref().is_empty() { Ok(value) } else { Err("bytes follow it".to_owned()) }
}
