//! What an engine said, decoded: the values that `wire` makes and `index` applies.
//!
//! A [`Batch`] keeps the variable parts of its events (hashes, tokens, extra keys) in arenas of its own, so that one
//! batch object can be decoded into again and again without allocating per event. It borrows nothing from the network
//! buffer. Invariant: every range of an event lies inside the arenas of its batch.

use std::ops::Range;

use crate::ids::{DpRank, EngineHash, GroupId, LocalHash, Namespace, Tier};

/// One decoded batch.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Batch {
    /// The publisher's time in milliseconds since 1970, when it gave one that is finite and above zero.
    pub timestamp_ms: Option<u64>,
    /// Rank named by the batch; overrides the registered one.
    pub rank: Option<DpRank>,
    /// In the order of the batch; an event that could not be used is here too, as [`Event::Skipped`].
    pub events: Vec<Event>,
    /// Arena of engine hashes.
    pub hashes: Vec<EngineHash>,
    /// Arena of tokens, four bytes little endian each.
    pub token_bytes: Vec<u8>,
    /// Arena of local hashes, one per index block, computed with the seed of the namespace that the event itself names.
    pub locals: Vec<LocalHash>,
    /// Arena of per-block identities (images, prompt embeddings).
    pub extras: Vec<ExtraKey>,
}

/// Identity of one engine block beside its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtraKey {
    /// Which block of the event, counted in the event's own blocks.
    pub block: u32,
    /// Appended to the token bytes of every piece of that block before hashing, in ascending order.
    pub value: u64,
}

/// One event of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Blocks were cached.
    Stored(Stored),
    /// Blocks were evicted.
    Removed(Removed),
    /// The engine emptied its cache.
    Cleared,
    /// By design without effect on answers; counted only.
    Ignored(IgnoreReason),
    /// We could not use what the engine said; counted, and the owner is degraded.
    Skipped(SkipReason),
}

/// `BlockStored`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Range in [`Batch::hashes`]. May be empty in a side group.
    pub hashes: Range<u32>,
    /// Hash of the block before the first one; none at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// Range in [`Batch::token_bytes`], in bytes. Empty in a hash-only event.
    pub token_bytes: Range<u32>,
    /// Tokens per engine block. None when the event gives none, or 0: a hash-only event.
    pub block_size: Option<u32>,
    /// Range in [`Batch::locals`]: one per *index* block of the event's tokens (`tokens / index block size`), with the seed of `named`. Empty
    /// when `block_size` is no multiple of the index's block size or the counts do not fit.
    pub locals: Range<u32>,
    /// Range in [`Batch::extras`], sorted.
    pub extras: Range<u32>,
    /// LoRA and salt that this event names. A part that is absent comes from the parent.
    pub named: Namespace,
    /// Where the blocks lie.
    pub tier: Tier,
    /// Cache group and kind, when given.
    pub group: GroupInfo,
}

/// `BlockRemoved`.
#[derive(Debug, Clone, PartialEq)]
pub struct Removed {
    /// Range in [`Batch::hashes`].
    pub hashes: Range<u32>,
    /// Where the blocks lay.
    pub tier: Tier,
    /// Cache group and kind, when given.
    pub group: GroupInfo,
    /// `remaining_copy_counts`, parallel to the hashes: 0 removes, more keeps. None when absent or of a wrong length.
    pub remaining_copies: Option<Vec<u64>>,
    /// `remaining_copy_counts` was there with a wrong length: a plain removal, counted as ignored.
    pub remaining_copies_invalid: bool,
}

/// Cache group of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupInfo {
    /// `group_idx`.
    pub id: Option<GroupId>,
    /// `kv_cache_spec_kind`.
    pub kind: Option<CacheKind>,
    /// `kv_cache_spec_sliding_window`, in tokens.
    pub window_tokens: Option<u32>,
}

/// Kinds of cache groups. Chunked, cross and encoder-only attention never come this far: they are [`IgnoreReason::CacheKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// `full_attention`, `mla_attention`, `sink_full_attention`: a main group.
    Full,
    /// `sliding_window`, `sliding_window_mla`: a side group.
    SlidingWindow,
    /// `mamba`: a side group.
    Mamba,
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant,)* }
        impl $name {
            /// All of them; `ALL[i] as usize == i`.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// The word on the wire and in metric labels.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Why something an engine said has no effect by design.
    IgnoreReason {
        /// A tag that engines use for "nothing to tell".
        IgnoredTag = "ignored_tag",
        /// Chunked, cross or encoder-only attention.
        CacheKind = "cache_kind",
        /// `ownership` names somebody else.
        ForeignOwnership = "foreign_ownership",
        /// A smaller store in a main group that has stored whole blocks.
        PartialTail = "partial_tail",
        /// `remaining_copy_counts` of a wrong length; the removal itself counts.
        CopyCountLength = "copy_count_length",
        /// Removal of a hash that the owner does not hold there.
        UnknownRemoval = "unknown_removal",
    }
}

words! {
    /// Why something an engine said could not be used. Each degrades the owner.
    SkipReason {
        /// Not three frames, or a sequence that is not eight bytes.
        MalformedFrames = "malformed_frames",
        /// The payload is no batch at all.
        UndecodableBatch = "undecodable_batch",
        /// The event is no event, or a required field is missing or of a wrong type.
        MalformedEvent = "malformed_event",
        /// An event type we do not know.
        UnknownEvent = "unknown_event",
        /// A medium we do not know.
        UnknownMedium = "unknown_medium",
        /// A cache kind we do not know.
        UnknownCacheKind = "unknown_cache_kind",
        /// A hash that is neither an integer nor bytes.
        InvalidHash = "invalid_hash",
        /// A token that is no u32, or a text.
        InvalidToken = "invalid_token",
        /// No hashes where there must be some.
        NoHashes = "no_hashes",
        /// Number of tokens is not hashes x block size.
        TokenCount = "token_count",
        /// Length of `extra_keys` is not the number of hashes.
        ExtraKeysLength = "extra_keys_length",
        /// One hash twice in an event.
        RepeatedHash = "repeated_hash",
        /// The parent is among the event's own hashes.
        ParentInHashes = "parent_in_hashes",
        /// The event's block size is no multiple of the index's.
        BlockSize = "block_size",
        /// A child names another LoRA or salt than its parent.
        NamespaceConflict = "namespace_conflict",
        /// A hash-only event names a hash nobody has announced.
        UnknownHash = "unknown_hash",
        /// A hash-only event names a hash that stands for several contents.
        AmbiguousHash = "ambiguous_hash",
        /// Too many pending blocks: the oldest was dropped.
        PendingOverflow = "pending_overflow",
        /// Over the memory limit.
        Memory = "memory",
    }
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.timestamp_ms = None;
        self.rank = None;
        self.events.clear();
        self.hashes.clear();
        self.token_bytes.clear();
        self.locals.clear();
        self.extras.clear();
    }

    /// Engine hashes of a range.
    #[must_use]
    pub fn hashes_of(&self, range: &Range<u32>) -> &[EngineHash] {
        &self.hashes[range.start as usize..range.end as usize]
    }

    /// Token bytes of a range.
    #[must_use]
    pub fn token_bytes_of(&self, range: &Range<u32>) -> &[u8] {
        &self.token_bytes[range.start as usize..range.end as usize]
    }

    /// Local hashes of a range.
    #[must_use]
    pub fn locals_of(&self, range: &Range<u32>) -> &[LocalHash] {
        &self.locals[range.start as usize..range.end as usize]
    }

    /// Extra keys of a range.
    #[must_use]
    pub fn extras_of(&self, range: &Range<u32>) -> &[ExtraKey] {
        &self.extras[range.start as usize..range.end as usize]
    }
}
