//! Names and places of the fields of an event.

/// A field with a meaning for the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Type,
    EventType,
    Hashes,
    SeqHashes,
    Parent,
    ParentHash,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    CacheSalt,
    AdditionalSalt,
    ExtraKeys,
    BlockMmInfos,
    MmKeys,
    Group,
    Kind,
    Window,
    Locality,
    Ownership,
    RemainingCopies,
}

impl Field {
    /// How many there are; `field as usize` is below it.
    pub(super) const COUNT: usize = Self::RemainingCopies as usize + 1;

    /// The field of a map key; none for the many keys without meaning here.
    pub(super) fn from_key(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"type" => Self::Type,
            b"event_type" => Self::EventType,
            b"block_hashes" => Self::Hashes,
            b"seq_hashes" => Self::SeqHashes,
            b"parent_block_hash" => Self::Parent,
            b"parent_hash" => Self::ParentHash,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"cache_salt" => Self::CacheSalt,
            b"additional_salt" => Self::AdditionalSalt,
            b"extra_keys" => Self::ExtraKeys,
            b"block_mm_infos" => Self::BlockMmInfos,
            b"mm_keys" => Self::MmKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            b"kv_cache_spec_sliding_window" => Self::Window,
            b"locality" => Self::Locality,
            b"ownership" => Self::Ownership,
            b"remaining_copy_counts" => Self::RemainingCopies,
            _ => return None,
        })
    }
}

/// Fields of a `BlockStored` array after the tag. The first [`STORED_REQUIRED`] must be there.
pub(super) const STORED_LAYOUT: [Field; 13] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
    Field::Window,
    Field::Locality,
    Field::Ownership,
];

/// Hashes, parent, tokens and block size.
pub(super) const STORED_REQUIRED: usize = 4;

/// Fields of a `BlockRemoved` array after the tag. The first [`REMOVED_REQUIRED`] must be there.
pub(super) const REMOVED_LAYOUT: [Field; 7] =
    [Field::Hashes, Field::Medium, Field::Group, Field::Kind, Field::Window, Field::Locality, Field::Ownership];

/// The hashes.
pub(super) const REMOVED_REQUIRED: usize = 1;
