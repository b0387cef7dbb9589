//! `/digest` as JSON: what replicas tell each other about how far they are, and what they hold. Values only.

use serde::{Deserialize, Serialize};

use crate::ids::{IndexKey, InstanceId, Seq};
use crate::image::{Registration, StreamName, Tombstone};

/// How far a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Looks for a peer to recover from; has nothing yet.
    Waiting,
    /// Takes a peer's or a file's state.
    Loading,
    /// Serves.
    Ready,
    /// About to end.
    Stopping,
}

/// Answer of `GET /digest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Random, made at the start of the process; 16 hexadecimal digits.
    pub replica_id: String,
    /// What people call it: the name of its Pod; empty where nobody gave it one.
    #[serde(default)]
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// How far it is.
    pub phase: Phase,
    /// Grows while it takes a state: bytes read.
    pub progress: u64,
    /// All owners.
    pub owners: u64,
    /// Owners whose blocks can be believed.
    pub exact_owners: u64,
    /// Sum of the last applied numbers of all streams.
    pub applied: u64,
    /// Held blocks of all owners.
    pub blocks: u64,
    /// Every stream.
    pub streams: Vec<StreamDigest>,
    /// Registrations by hand.
    pub registrations: Vec<Registration>,
    /// Registrations by hand that were taken back lately.
    pub tombstones: Vec<Tombstone>,
}

/// One stream of one index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDigest {
    /// The index.
    #[serde(flatten)]
    pub key: IndexKey,
    /// The instance.
    pub instance_id: InstanceId,
    /// Address of the publisher.
    pub endpoint: String,
    /// Topic that it hears, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// LoRA name of events that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_lora: Option<String>,
    /// Every owner is exact: the digests can be compared.
    pub exact: bool,
    /// Last applied number and the digest after it.
    pub current: Option<Sum>,
    /// Digests at multiples of 256 batches, oldest first.
    pub history: Vec<Sum>,
    /// The owners.
    pub ranks: Vec<RankDigest>,
    /// Blocks that the digest leaves out, because another owner's announcement placed them.
    pub foreign_blocks: u64,
    /// Blocks of lower tiers age out: replicas may differ for a while.
    pub ages: bool,
}

impl StreamDigest {
    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> StreamName {
        StreamName {
            instance: self.instance_id.clone(),
            endpoint: self.endpoint.clone(),
            topic: self.topic.clone(),
            default_lora: self.default_lora.clone(),
        }
    }
}

/// A digest after a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Number of the batch.
    pub seq: Seq,
    /// 16 hexadecimal digits.
    pub digest: String,
}

/// One owner of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankDigest {
    /// The rank.
    pub dp_rank: u32,
    /// `exact`, `degraded` or `stale`.
    pub state: String,
    /// Why it is not exact.
    pub reasons: Vec<String>,
    /// Held blocks.
    pub blocks: u64,
}
