//! Reads `/dump`, the JSON state of the reference service (its releases 1.3.1 and 1.6.1) and of this program, as it comes.
//!
//! ```text
//! {"<model>:<tenant>": {"block_size": 16, "model_name": "..", "tenant_id": "..", "events": [
//!    {"worker_id": 1, "storage_tier": "device", "event": {"event_id": 0, "dp_rank": 0, "data":
//!        {"stored": {"parent_hash": null, "blocks": [{"block_hash": 11, "tokens_hash": 146}]}}}},
//!    .. {"removed": {"block_hashes": [12]}} .. "cleared" ..
//! ]}}
//! ```
//!
//! `storage_tier` may be absent (`device`), `dp_rank` too (0); unknown fields are passed over. The fields `model_name` and
//! `tenant_id` name the index if both are there; else the key is taken for one of the indexes that the caller knows, if
//! exactly one joins to it, and is split at its first colon otherwise. Fields come in any order, but at most
//! [`EARLY_BLOCKS_MAX`] blocks are kept for a `block_size` that comes behind its events (both services write it first).
//!
//! Invariants: the document is never held as a whole; any fault in it is an error, and what was given out before counts
//! for nothing then.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::ids::{BlockSize, EngineHash, IndexKey, InstanceId, LocalHash, Owner, Tier};

/// Blocks of events that may stand before the `block_size` of their entry.
pub const EARLY_BLOCKS_MAX: usize = 1 << 20;

/// Blocks of one event: such a prompt would have tens of millions of tokens.
const EVENT_BLOCKS_MAX: usize = 1 << 22;

/// Why a document is no dump.
#[derive(Debug, thiserror::Error)]
#[error("not a dump: {0}")]
pub struct Error(#[from] serde_json::Error);

/// One event of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Whose blocks.
    pub owner: Owner,
    /// Where they lie.
    pub tier: Tier,
    /// What became of them.
    pub data: Data,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// A chain of blocks.
    Stored {
        /// Hash of the block before the first one.
        parent: Option<EngineHash>,
        /// Hash and content of each block.
        blocks: Vec<(EngineHash, LocalHash)>,
    },
    /// These are gone.
    Removed(Vec<EngineHash>),
    /// All are gone, on every tier.
    Cleared,
}

/// Where a dump goes: `begin`, any number of `event`, `end` for each index.
pub trait Sink {
    /// An index of this block size begins.
    fn begin(&mut self, block_size: BlockSize);
    /// One event of it.
    fn event(&mut self, event: Event);
    /// It is whole, and this is its name.
    fn end(&mut self, key: IndexKey);
}

/// Reads a document to its end.
///
/// * `known`: indexes whose joined keys are recognised where an entry does not name itself.
///
/// # Errors
/// It cannot be read, is no JSON, or no dump: an entry with `error`, without `block_size` or `events`, named twice, or
/// without a name; an unknown tier.
pub fn read(reader: impl Read, known: &[IndexKey], sink: &mut impl Sink) -> Result<(), Error> {
    let mut json = serde_json::Deserializer::from_reader(std::io::BufReader::with_capacity(64 << 10, reader));
    json.deserialize_map(Document { known, sink })?;
    json.end()?;
    Ok(())
}

struct Document<'a, S> {
    known: &'a [IndexKey],
    sink: &'a mut S,
}

impl<'de, S: Sink> Visitor<'de> for Document<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of indexes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(joined) = map.next_key::<String>()? {
            let names = map.next_value_seed(Entry { sink: &mut *self.sink })?;
            let key = names.key(&joined, self.known).ok_or_else(|| {
                de::Error::custom(format_args!("key `{joined}` must be the model, a colon, and the tenant"))
            })?;
            if !seen.insert(key.clone()) {
                return Err(de::Error::custom(format_args!("index `{joined}` is there twice")));
            }
            self.sink.end(key);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Names {
    model: Option<String>,
    tenant: Option<String>,
}

impl Names {
    fn key(self, joined: &str, known: &[IndexKey]) -> Option<IndexKey> {
        if let (Some(model), Some(tenant)) = (self.model, self.tenant) {
            return Some(IndexKey::new(model, tenant));
        }
        let mut fitting = known.iter().filter(|key| key.joined() == joined);
        if let (Some(key), None) = (fitting.next(), fitting.next()) {
            return Some(key.clone());
        }
        joined.split_once(':').map(|(model, tenant)| IndexKey::new(model, tenant))
    }
}

/// One index.
struct Entry<'a, S> {
    sink: &'a mut S,
}

impl<'de, S: Sink> DeserializeSeed<'de> for Entry<'_, S> {
    type Value = Names;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Names, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for Entry<'_, S> {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an index with `block_size` and `events`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        let mut names = Names::default();
        let mut begun = false;
        let mut early = Vec::new();
        let mut events = false;
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "block_size" if !begun => {
                    let tokens = map.next_value::<u32>()?;
                    let size = BlockSize::new(tokens).ok_or_else(|| de::Error::custom("block_size must be above 0"))?;
                    self.sink.begin(size);
                    std::mem::take(&mut early).into_iter().for_each(|event| self.sink.event(event));
                    begun = true;
                }
                "events" if !events => {
                    map.next_value_seed(Events { sink: &mut *self.sink, early: (!begun).then_some(&mut early) })?;
                    events = true;
                }
                "block_size" | "events" => return Err(de::Error::custom(format_args!("`{field}` is there twice"))),
                "model_name" => names.model = map.next_value()?,
                "tenant_id" => names.tenant = map.next_value()?,
                "error" => {
                    let error = map.next_value::<serde_json::Value>()?;
                    return Err(de::Error::custom(format_args!("the index has failed there: {error}")));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if !begun {
            return Err(de::Error::missing_field("block_size"));
        }
        if events { Ok(names) } else { Err(de::Error::missing_field("events")) }
    }
}

/// The events of one index.
struct Events<'a, S> {
    sink: &'a mut S,
    /// Where they wait until the block size is known.
    early: Option<&'a mut Vec<Event>>,
}

impl<'de, S: Sink> DeserializeSeed<'de> for Events<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for Events<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut waiting = 0;
        while let Some(event) = seq.next_element::<EventText>()? {
            let event = event.into_event().map_err(de::Error::custom)?;
            match &mut self.early {
                None => self.sink.event(event),
                Some(early) => {
                    waiting += event.weight();
                    if waiting > EARLY_BLOCKS_MAX {
                        return Err(de::Error::custom("`block_size` must stand before so many events"));
                    }
                    early.push(event);
                }
            }
        }
        Ok(())
    }
}

impl Event {
    fn weight(&self) -> usize {
        match &self.data {
            Data::Stored { blocks, .. } => blocks.len().max(1),
            Data::Removed(hashes) => hashes.len().max(1),
            Data::Cleared => 1,
        }
    }
}

#[derive(Deserialize)]
struct EventText {
    worker_id: InstanceId,
    #[serde(default)]
    storage_tier: Option<String>,
    event: EventBody,
}

#[derive(Deserialize)]
struct EventBody {
    #[serde(default)]
    dp_rank: u32,
    data: DataText,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum DataText {
    Stored(StoredText),
    Removed(RemovedText),
    Cleared,
}

#[derive(Deserialize)]
struct StoredText {
    #[serde(default)]
    parent_hash: Option<u64>,
    #[serde(deserialize_with = "bounded")]
    blocks: Vec<BlockText>,
}

#[derive(Deserialize)]
struct RemovedText {
    #[serde(deserialize_with = "bounded")]
    block_hashes: Vec<u64>,
}

#[derive(Deserialize)]
struct BlockText {
    block_hash: u64,
    tokens_hash: u64,
}

impl EventText {
    fn into_event(self) -> Result<Event, String> {
        let word = self.storage_tier.as_deref().unwrap_or(Tier::Device.as_str());
        let tier = Tier::ALL.into_iter().find(|tier| tier.as_str() == word);
        let data = match self.event.data {
            DataText::Stored(stored) => Data::Stored {
                parent: stored.parent_hash.map(EngineHash),
                blocks: stored
                    .blocks
                    .iter()
                    .map(|block| (EngineHash(block.block_hash), LocalHash(block.tokens_hash)))
                    .collect(),
            },
            DataText::Removed(removed) => Data::Removed(removed.block_hashes.into_iter().map(EngineHash).collect()),
            DataText::Cleared => Data::Cleared,
        };
        Ok(Event {
            owner: Owner::new(self.worker_id, self.event.dp_rank),
            tier: tier.ok_or_else(|| format!("unknown storage_tier `{word}`"))?,
            data,
        })
    }
}

/// A list of at most [`EVENT_BLOCKS_MAX`] values.
fn bounded<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Bounded<T>(Vec<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Vec<T>, A::Error> {
            while let Some(value) = seq.next_element()? {
                if self.0.len() == EVENT_BLOCKS_MAX {
                    return Err(de::Error::custom(format_args!("more than {EVENT_BLOCKS_MAX} blocks in one event")));
                }
                self.0.push(value);
            }
            Ok(self.0)
        }
    }
    deserializer.deserialize_seq(Bounded(Vec::new()))
}

#[cfg(test)]
mod tests;
