//! Names and small quantities that every room speaks about: indexes, instances, ranks, owners, tiers, hashes.
//!
//! Pure values. Invariant: nothing here reads the clock, the environment or a socket.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest text form of an [`InstanceId`], in bytes: a Kubernetes namespace (63), a slash and a Pod name (253).
pub const INSTANCE_ID_BYTES_MAX: usize = 317;

/// Tenant that holds when a request or registration names none.
pub const DEFAULT_TENANT: &str = "default";

/// Name of a served model. Any text, empty too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelName(Arc<str>);

/// Name of a tenant. Any text, empty too; [`DEFAULT_TENANT`] when absent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(Arc<str>);

macro_rules! text_id {
    ($name:ident) => {
        impl $name {
            /// The name as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}
text_id!(ModelName);
text_id!(TenantId);

impl Default for TenantId {
    fn default() -> Self {
        Self::from(DEFAULT_TENANT)
    }
}

/// Which index: one per model and tenant, and two never see each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IndexKey {
    /// Model that the blocks belong to.
    pub model: ModelName,
    /// Tenant that the blocks belong to.
    pub tenant: TenantId,
}

impl IndexKey {
    /// Key of a model and a tenant.
    pub fn new(model: impl Into<ModelName>, tenant: impl Into<TenantId>) -> Self {
        Self { model: model.into(), tenant: tenant.into() }
    }

    /// `model:tenant`, the key of an entry in `/dump`. Ambiguous when a name has a colon: never parse it.
    #[must_use]
    pub fn joined(&self) -> String {
        format!("{}:{}", self.model, self.tenant)
    }
}

/// Id of one engine instance: a number, or a text of 1 to [`INSTANCE_ID_BYTES_MAX`] bytes without control characters.
///
/// A canonical decimal `u64` is the number however it was written: `7` and `"7"` are one instance, `007` is a text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstanceId {
    /// A number, echoed as a JSON number.
    Number(u64),
    /// Anything else, echoed as a JSON string.
    Text(Arc<str>),
}

/// Why a text is not an [`InstanceId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InstanceIdError {
    /// No text at all.
    #[error("instance_id must not be empty")]
    Empty,
    /// Longer than [`INSTANCE_ID_BYTES_MAX`] bytes.
    #[error("instance_id must be at most {INSTANCE_ID_BYTES_MAX} bytes")]
    TooLong,
    /// Has a control character.
    #[error("instance_id must not contain control characters")]
    ControlCharacter,
}

impl InstanceId {
    /// Reads a text form.
    ///
    /// # Errors
    /// Empty, too long, or with control characters.
    pub fn parse(text: &str) -> Result<Self, InstanceIdError> {
        if text.is_empty() {
            return Err(InstanceIdError::Empty);
        }
        if text.len() > INSTANCE_ID_BYTES_MAX {
            return Err(InstanceIdError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(InstanceIdError::ControlCharacter);
        }
        let canonical = text == "0" || (text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0'));
        match text.parse::<u64>() {
            Ok(number) if canonical => Ok(Self::Number(number)),
            _ => Ok(Self::Text(text.into())),
        }
    }
}

impl From<u64> for InstanceId {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for InstanceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for InstanceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = InstanceId;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("instance_id as an unsigned 64-bit number or a text")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<InstanceId, E> {
                Ok(InstanceId::Number(number))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<InstanceId, E> {
                InstanceId::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Data-parallel rank inside an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DpRank(pub u32);

impl fmt::Display for DpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whose blocks: one rank of one instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The engine instance.
    pub instance: InstanceId,
    /// Its data-parallel rank.
    pub rank: DpRank,
}

impl Owner {
    /// Owner of an instance and a rank.
    pub fn new(instance: impl Into<InstanceId>, rank: u32) -> Self {
        Self { instance: instance.into(), rank: DpRank(rank) }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.instance, self.rank)
    }
}

/// Tokens per block of an index, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// Block size of `tokens`; none for 0.
    #[must_use]
    pub fn new(tokens: u32) -> Option<Self> {
        NonZeroU32::new(tokens).map(Self)
    }

    /// Tokens per block.
    #[must_use]
    pub fn tokens(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a batch in its publisher's sequence. All values are ordinary numbers; there is no sentinel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The next number, none after the largest.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of a publisher's sequence together with the identity of what it carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The number.
    pub seq: Seq,
    /// Hash of the payload that had this number: `wire::payload_hash`.
    pub payload_hash: u64,
}

/// Where a block lies, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tier {
    /// Memory of the accelerator.
    Device = 0,
    /// Memory of the host.
    HostPinned = 1,
    /// Local or mounted disk.
    Disk = 2,
    /// Shared remote storage.
    External = 3,
}

impl Tier {
    /// All tiers, nearest first; `ALL[i] as usize == i`.
    pub const ALL: [Self; 4] = [Self::Device, Self::HostPinned, Self::Disk, Self::External];

    /// The word of `/dump` and of metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::HostPinned => "host_pinned",
            Self::Disk => "disk",
            Self::External => "external",
        }
    }

    /// Tier of a medium as engines write it, in any case; the empty text is the device. None for an unknown medium.
    #[must_use]
    pub fn from_medium(medium: &str) -> Option<Self> {
        const NAMES: [(&str, Tier); 20] = [
            ("GPU", Tier::Device),
            ("DEVICE", Tier::Device),
            ("XPU", Tier::Device),
            ("NPU", Tier::Device),
            ("HBM", Tier::Device),
            ("", Tier::Device),
            ("CPU", Tier::HostPinned),
            ("CPU_PINNED", Tier::HostPinned),
            ("CPU_TIER1", Tier::HostPinned),
            ("HOST", Tier::HostPinned),
            ("CPU_TIER2", Tier::Disk),
            ("DISK", Tier::Disk),
            ("NVME", Tier::Disk),
            ("SSD", Tier::Disk),
            ("STORAGE", Tier::Disk),
            ("FS", Tier::Disk),
            ("OBJ", Tier::Disk),
            ("EXTERNAL", Tier::External),
            ("NETWORK", Tier::External),
            ("REMOTE", Tier::External),
        ];
        if medium.eq_ignore_ascii_case("SHARED") {
            return Some(Self::External);
        }
        NAMES.iter().find(|(name, _)| medium.eq_ignore_ascii_case(name)).map(|(_, tier)| *tier)
    }
}

/// Content of one block: XXH3-64 of its tokens (and images) with the seed of its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalHash(pub u64);

/// The engine's own hash of a block, as 64 bits: identity, per owner, tier and cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// What separates equal tokens that must never match: LoRA adapter and cache salt. The parts are addends of the
/// hash seed (`hash::lora_name`, `hash::lora_id`, `hash::salt` make them); images are part of single blocks instead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Namespace {
    /// LoRA name, or LoRA id where no name is given.
    pub lora: Option<u64>,
    /// Cache salt.
    pub salt: Option<u64>,
}

impl Namespace {
    /// Seed of the plain namespace.
    pub const PLAIN_SEED: u64 = 1337;

    /// Seed for local hashes in this namespace.
    #[must_use]
    pub fn seed(self) -> u64 {
        Self::PLAIN_SEED.wrapping_add(self.lora.unwrap_or(0)).wrapping_add(self.salt.unwrap_or(0))
    }

    /// True for blocks without LoRA and salt.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self == Self::default()
    }
}

/// Number of a cache group of a hybrid model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// How repeated stores of one block count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DuplicatePolicy {
    /// `Copies` once the owner has announced a side group, else `Set`.
    #[default]
    Auto,
    /// Storing twice is one block; one removal ends it.
    Set,
    /// Each store adds a copy, each removal takes one.
    Copies,
}

/// What a registration stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An engine: listed in answers.
    #[default]
    Worker,
    /// A shared pool: not listed; its blocks extend the external tier of every owner of the index.
    Store,
}

/// What a registration says about an owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerSpec {
    /// How repeated stores count.
    pub policy: DuplicatePolicy,
    /// Worker or shared pool.
    pub role: Role,
    /// Ages out blocks of host, disk and external tier by batch timestamps.
    pub lower_tier_ttl_ms: Option<u64>,
}

/// Which life of a Kubernetes container a registration speaks about; two that differ never share blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// UID of the Pod.
    pub pod_uid: String,
    /// Id of the container, as the kubelet gives it.
    pub container_id: String,
    /// Restarts of the container so far.
    pub restart_count: u32,
}

/// Who asked for a registration; each source changes only its own workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `POST /register`.
    Manual,
    /// The option `--workers`.
    CommandLine,
    /// A Pod or an `IndexerWorker` object.
    Kubernetes,
    /// A peer's state; not confirmed by anybody here.
    Recovered,
}

impl Source {
    /// The word in `/workers`. Registrations by hand keep the reference's word `zmq`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manual | Self::CommandLine => "zmq",
            Self::Kubernetes => "kubernetes",
            Self::Recovered => "recovered",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_decimals_are_numbers_and_all_else_is_text() {
        for (text, number) in [("0", Some(0)), ("7", Some(7)), ("18446744073709551615", Some(u64::MAX))] {
            assert_eq!(InstanceId::parse(text), Ok(InstanceId::Number(number.unwrap())), "{text}");
        }
        for text in ["007", "00", "18446744073709551616", "+7", "-7", "a", "serving/llama-0", " 7"] {
            assert_eq!(InstanceId::parse(text), Ok(InstanceId::Text(text.into())), "{text}");
        }
        assert_eq!(InstanceId::parse(""), Err(InstanceIdError::Empty));
        assert_eq!(InstanceId::parse("a\nb"), Err(InstanceIdError::ControlCharacter));
        assert!(InstanceId::parse(&"a".repeat(INSTANCE_ID_BYTES_MAX)).is_ok());
        assert_eq!(InstanceId::parse(&"a".repeat(INSTANCE_ID_BYTES_MAX + 1)), Err(InstanceIdError::TooLong));
    }

    #[test]
    fn media_are_read_in_any_case() {
        for (medium, tier) in [
            ("", Some(Tier::Device)),
            ("gpu", Some(Tier::Device)),
            ("Cpu_Tier2", Some(Tier::Disk)),
            ("shared", Some(Tier::External)),
            ("host", Some(Tier::HostPinned)),
            ("LOCAL", None),
        ] {
            assert_eq!(Tier::from_medium(medium), tier, "{medium}");
        }
    }
}
