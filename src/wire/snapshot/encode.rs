//! Values to bytes. Lists are moved in and drained frame by frame, so that a stream is not held twice.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::record::Record;
use super::values::{Header, OwnerHead, StreamHead, Totals, group_head};
use super::{FRAME_BYTES_MAX, Kind, MAGIC, VERSION};
use crate::image::{GroupsImage, IndexHead, OwnerImage, OwnerRest, Registration, StreamImage, Tombstone};

/// Payload of a frame, at most: large enough that its frame costs nothing, small enough to be a step of progress.
const PAYLOAD_BYTES: usize = 128 << 10;
const _: () = assert!(PAYLOAD_BYTES <= FRAME_BYTES_MAX);

/// A piece is given out once it has so many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Writes a snapshot: parts are put in, pieces are taken out.
pub struct Encoder {
    out: Vec<u8>,
    running: Xxh3,
    totals: Totals,
    waiting: VecDeque<(Kind, Box<dyn Source>)>,
}

impl Encoder {
    /// A snapshot that begins.
    #[must_use]
    pub fn new(header: Header) -> Self {
        let mut out = Vec::with_capacity(PIECE_BYTES + PAYLOAD_BYTES + 64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let mut running = Xxh3::new();
        running.update(&out);
        let mut encoder = Self { out, running, totals: Totals::default(), waiting: VecDeque::new() };
        encoder.put(Kind::Header, Items::new(vec![header]));
        encoder
    }

    /// Registrations, before the first index.
    pub fn registrations(&mut self, registrations: Vec<Registration>) {
        self.list(Kind::Registrations, registrations, Items::new);
    }

    /// Registrations that were taken back, before the first index.
    pub fn tombstones(&mut self, tombstones: Vec<Tombstone>) {
        self.list(Kind::Tombstones, tombstones, Items::new);
    }

    /// The streams that follow belong to this index.
    pub fn begin_index(&mut self, head: IndexHead) {
        self.put(Kind::IndexBegin, Items::new(vec![head]));
    }

    /// No stream of this index follows.
    pub fn end_index(&mut self) {
        self.put(Kind::IndexEnd, Nothing);
    }

    /// One stream, within an index.
    pub fn stream(&mut self, stream: StreamImage) {
        let StreamImage { name, position, image } = stream;
        self.totals.streams += 1;
        self.totals.owners += image.owners.len() as u64;
        self.totals.blocks += image.block_count() as u64;
        self.put(Kind::StreamBegin, Items::new(vec![StreamHead { name, position }]));
        self.list(Kind::Runs, image.runs, Records::new);
        self.list(Kind::Locals, image.locals, Records::new);
        self.list(Kind::Engines, image.engines, Records::new);
        for owner in image.owners {
            self.owner(owner);
        }
        self.put(Kind::StreamEnd, Nothing);
    }

    fn owner(&mut self, owner: OwnerImage) {
        self.put(Kind::OwnerBegin, Items::new(vec![OwnerHead::of(&owner)]));
        for (kind, ranges) in Kind::ROWS.into_iter().zip(owner.rows) {
            self.list(kind, ranges, Records::new);
        }
        let runs = owner.hashes.iter().map(|(from, hashes)| (*from, hashes.len() as u32)).collect();
        self.list(Kind::HashRuns, runs, Records::new);
        let hashes: Vec<_> = owner.hashes.into_iter().map(|(_, hashes)| hashes).filter(|run| !run.is_empty()).collect();
        self.list(Kind::Hashes, hashes, Flat::new);
        self.list(Kind::Recents, owner.recents, Records::new);
        self.rest(owner.rest);
    }

    fn rest(&mut self, rest: OwnerRest) {
        self.list(Kind::Overlays, rest.overlays, Items::new);
        self.list(Kind::Multi, rest.multi, Items::new);
        self.list(Kind::Free, rest.free, Records::new);
        self.list(Kind::Copies, rest.copies, Records::new);
        self.list(Kind::Spans, rest.spans, Records::new);
        self.list(Kind::Pieces, rest.pieces, Records::new);
        self.list(Kind::Removals, rest.removals, Records::new);
        self.list(Kind::Pending, rest.pending, Items::new);
        for group in rest.groups.into_iter().flat_map(|GroupsImage { list, sets: _ }| list) {
            self.put(Kind::Group, Items::new(vec![group_head(&group)]));
            self.list(Kind::GroupHeld, group.held, Records::new);
            self.list(Kind::GroupBare, group.bare, Records::new);
        }
        self.list(Kind::Ages, rest.ages.map(|ages| ages.queue).unwrap_or_default(), Records::new);
    }

    /// Everything was put in.
    pub fn finish(&mut self) {
        self.put(Kind::Trailer, Nothing);
    }

    fn list<T, S: Source + 'static>(&mut self, kind: Kind, list: Vec<T>, source: impl FnOnce(Vec<T>) -> S) {
        if !list.is_empty() {
            self.put(kind, source(list));
        }
    }

    fn put(&mut self, kind: Kind, source: impl Source + 'static) {
        self.waiting.push_back((kind, Box::new(source)));
    }

    /// About 256 KiB; less when nothing more was put in, none when nothing is left.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        while self.out.len() < PIECE_BYTES
            && let Some((kind, mut source)) = self.waiting.pop_front()
        {
            let begin = self.out.len();
            self.out.push(kind as u8);
            0_u32.put(&mut self.out);
            let more = if kind == Kind::Trailer {
                self.trailer();
                false
            } else {
                source.fill(&mut self.out, PAYLOAD_BYTES)
            };
            self.close_frame(begin);
            if more {
                self.waiting.push_front((kind, source));
            }
        }
        if self.out.is_empty() {
            return None;
        }
        let next = Vec::with_capacity(PIECE_BYTES + PAYLOAD_BYTES + 64);
        Some(Bytes::from(std::mem::replace(&mut self.out, next)))
    }

    fn close_frame(&mut self, begin: usize) {
        let length = (self.out.len() - begin - super::FRAME_HEAD_BYTES) as u32;
        self.out[begin + 1..begin + super::FRAME_HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
        let checksum = xxh3_64(&self.out[begin..]).to_le_bytes();
        self.out.extend_from_slice(&checksum);
        self.running.update(&checksum);
        self.totals.frames += 1;
    }

    fn trailer(&mut self) {
        let Totals { frames, streams, owners, blocks } = self.totals;
        for number in [frames, streams, owners, blocks, self.running.digest()] {
            number.put(&mut self.out);
        }
    }
}

/// Bytes of a list, a frame at a time.
trait Source: Send {
    /// Appends at most `room` bytes; true if more is left.
    fn fill(&mut self, out: &mut Vec<u8>, room: usize) -> bool;
}

/// No bytes.
struct Nothing;

impl Source for Nothing {
    fn fill(&mut self, _out: &mut Vec<u8>, _room: usize) -> bool {
        false
    }
}

/// Records of a fixed size.
struct Records<T> {
    list: Vec<T>,
    written: usize,
}

impl<T> Records<T> {
    fn new(list: Vec<T>) -> Self {
        Self { list, written: 0 }
    }
}

impl<T: Record + Send> Source for Records<T> {
    fn fill(&mut self, out: &mut Vec<u8>, room: usize) -> bool {
        let end = self.list.len().min(self.written + room / T::BYTES);
        self.list[self.written..end].iter().for_each(|record| record.put(out));
        self.written = end;
        end < self.list.len()
    }
}

/// Hashes of several lists, one behind the other. No list is empty.
struct Flat {
    lists: VecDeque<Vec<u64>>,
    written: usize,
}

impl Flat {
    fn new(lists: Vec<Vec<u64>>) -> Self {
        Self { lists: lists.into(), written: 0 }
    }
}

impl Source for Flat {
    fn fill(&mut self, out: &mut Vec<u8>, room: usize) -> bool {
        let mut room = room / u64::BYTES;
        while room > 0
            && let Some(list) = self.lists.front()
        {
            let end = list.len().min(self.written + room);
            list[self.written..end].iter().for_each(|hash| hash.put(out));
            room -= end - self.written;
            self.written = end;
            if end == list.len() {
                self.lists.pop_front();
                self.written = 0;
            }
        }
        !self.lists.is_empty()
    }
}

/// Items with their length.
struct Items<T> {
    left: std::vec::IntoIter<T>,
    /// The item at work, and how much of it is written.
    item: Vec<u8>,
    written: usize,
}

impl<T> Items<T> {
    fn new(list: Vec<T>) -> Self {
        Self { left: list.into_iter(), item: Vec::new(), written: 0 }
    }
}

impl<T: Serialize + Send> Source for Items<T> {
    fn fill(&mut self, out: &mut Vec<u8>, room: usize) -> bool {
        let end = out.len() + room;
        while out.len() < end {
            if self.written == self.item.len() {
                let Some(next) = self.left.next() else {
                    break;
                };
                self.item.clear();
                self.written = 0;
                0_u32.put(&mut self.item);
                rmp_serde::encode::write_named(&mut self.item, &next).expect("plain values become MessagePack");
                let length = (self.item.len() - u32::BYTES) as u32;
                self.item[..u32::BYTES].copy_from_slice(&length.to_le_bytes());
            }
            let part = (end - out.len()).min(self.item.len() - self.written);
            out.extend_from_slice(&self.item[self.written..self.written + part]);
            self.written += part;
        }
        self.written < self.item.len() || self.left.len() > 0
    }
}
