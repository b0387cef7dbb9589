//! The bytes of `/snapshot` and of the file on disk: a stream of checked frames, written and read piece by piece.
//!
//! All numbers are little endian.
//!
//! ```text
//!  snapshot   "KVIXSNAP" · version u16 · frame · frame · ... · frame of kind 2 (trailer), and nothing behind it
//!  frame      kind u8 · length u32 · payload (at most 1 MiB) · XXH3-64 of kind, length and payload
//!
//!  order      header · registrations · tombstones · index* · trailer
//!  index      index begin · stream* · index end
//!  stream     stream begin · runs · locals · engines · owner* · stream end
//!  owner      owner begin · rows · own hashes · recents · what is rare (overlays .. ages)
//! ```
//!
//! The payloads of neighbouring frames of one kind are one run of bytes: a long list goes on in the next frame, and an
//! item may be cut anywhere. A list without entries has no frame. Bulk lists are records of a fixed size (`record`
//! names them); everything small or of a changing size is an item: its length as u32, then MessagePack with named fields.
//!
//! | kind | content | form |
//! |---|---|---|
//! | 1 | header: id of the replica, version of its program, time | item |
//! | 2 | trailer: frames, streams, owners, blocks, XXH3-64 of the first ten bytes and of all frames' checksums | five u64 |
//! | 3, 4 | registrations, tombstones | items |
//! | 5, 6 | index begin: model, tenant, block size; index end | item; empty |
//! | 7, 8 | stream begin: name and position; stream end | item; empty |
//! | 10 | runs: flags (1 parent, 2 LoRA, 4 salt), parent, length, LoRA, salt | u8 u32 u32 u64 u64 |
//! | 11, 12 | local hashes, engine hashes | u64 |
//! | 20 | owner begin: name, spec, trust as words with its time, small values | item |
//! | 21 to 25 | ranges of blocks on each tier, and of remembered blocks | u32 u32 |
//! | 26, 27 | own hashes: first block and length of each run; the hashes of all of them | u32 u32; u64 |
//! | 28 | removed but remembered hashes | u64 |
//! | 30, 31 | blocks with several hashes, hashes with several places | items |
//! | 32, 33, 34, 35, 36 | free records, copies, spans, pieces, removals | records |
//! | 37 | waiting blocks | items |
//! | 38, 39, 40 | cache group; what it holds; what of it is bare (both of the group before) | item; records |
//! | 41 | ages | records |
//!
//! **Versions.** A release writes [`VERSION`] and reads it and the one before; anything else is refused with both
//! numbers, and the reader falls back to `/dump`. A field may be added to an item without another version if its absence
//! has a meaning; everything else makes one.
//!
//! Invariants: no byte sequence makes the reader panic, or allocate more than a small multiple of what was pushed into
//! it; a state is complete only after the trailer, and any missing or changed byte is an error.

mod decode;
mod encode;
mod record;
mod values;

#[cfg(test)]
mod tests;

pub use decode::Decoder;
pub use encode::Encoder;
pub use values::{Header, Item, Totals};

/// Version that this release writes.
pub const VERSION: u16 = 1;

/// Oldest version that this release reads.
pub const VERSION_OLDEST: u16 = 1;

/// First bytes of a snapshot.
const MAGIC: [u8; 8] = *b"KVIXSNAP";

/// Magic and version.
const PREAMBLE_BYTES: usize = MAGIC.len() + 2;

/// Longest payload of a frame: what a reader must hold before it can check it.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Kind and length.
const FRAME_HEAD_BYTES: usize = 5;

/// Checksum.
const FRAME_TAIL_BYTES: usize = 8;

/// Why bytes are no snapshot, or not a whole one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It begins with something else.
    #[error("not a snapshot: the first bytes are others")]
    Magic,
    /// Another release wrote it.
    #[error("snapshot version {found} cannot be read: this release reads {oldest} to {newest}")]
    Version {
        /// Its version.
        found: u16,
        /// Oldest that can be read.
        oldest: u16,
        /// Newest that can be read.
        newest: u16,
    },
    /// A frame claims to be longer than any may be.
    #[error("frame of {0} bytes is longer than {FRAME_BYTES_MAX}")]
    FrameLength(u32),
    /// Bytes were changed on their way.
    #[error("frame {0} is damaged: its checksum differs")]
    Checksum(u64),
    /// A kind that this version does not have.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// A frame stands where it must not.
    #[error("frame of kind {kind} must not stand {place}")]
    Order {
        /// The kind.
        kind: u8,
        /// Where it stands.
        place: &'static str,
    },
    /// A value inside a frame is no such value.
    #[error("invalid {what}: {why}")]
    Value {
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        why: String,
    },
    /// The trailer counts something else than what came.
    #[error("trailer does not fit: {0} differ")]
    Totals(&'static str),
    /// It ends before its trailer.
    #[error("snapshot ends before its trailer")]
    Truncated,
    /// Bytes behind the trailer.
    #[error("bytes follow the trailer")]
    Trailing,
}

/// What a frame carries; numbers as in the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Header = 1,
    Trailer = 2,
    Registrations = 3,
    Tombstones = 4,
    IndexBegin = 5,
    IndexEnd = 6,
    StreamBegin = 7,
    StreamEnd = 8,
    Runs = 10,
    Locals = 11,
    Engines = 12,
    OwnerBegin = 20,
    Row0 = 21,
    Row1 = 22,
    Row2 = 23,
    Row3 = 24,
    Row4 = 25,
    HashRuns = 26,
    Hashes = 27,
    Recents = 28,
    Overlays = 30,
    Multi = 31,
    Free = 32,
    Copies = 33,
    Spans = 34,
    Pieces = 35,
    Removals = 36,
    Pending = 37,
    Group = 38,
    GroupHeld = 39,
    GroupBare = 40,
    Ages = 41,
}

impl Kind {
    const ROWS: [Self; crate::image::ROWS] = [Self::Row0, Self::Row1, Self::Row2, Self::Row3, Self::Row4];

    const ALL: [Self; 32] = [
        Self::Header,
        Self::Trailer,
        Self::Registrations,
        Self::Tombstones,
        Self::IndexBegin,
        Self::IndexEnd,
        Self::StreamBegin,
        Self::StreamEnd,
        Self::Runs,
        Self::Locals,
        Self::Engines,
        Self::OwnerBegin,
        Self::Row0,
        Self::Row1,
        Self::Row2,
        Self::Row3,
        Self::Row4,
        Self::HashRuns,
        Self::Hashes,
        Self::Recents,
        Self::Overlays,
        Self::Multi,
        Self::Free,
        Self::Copies,
        Self::Spans,
        Self::Pieces,
        Self::Removals,
        Self::Pending,
        Self::Group,
        Self::GroupHeld,
        Self::GroupBare,
        Self::Ages,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}
