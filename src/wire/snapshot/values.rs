//! What frames carry in a form of their own, and what the reader gives.

use serde::{Deserialize, Serialize};

use super::Error;
use crate::ids::{DpRank, InstanceId, Owner, OwnerSpec};
use crate::image::{
    GroupImage, IndexHead, OwnerImage, OwnerRest, Position, Registration, StreamImage, StreamName, Tombstone,
};
use crate::trust::{Reason, Trust};

/// Who wrote a snapshot, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Id of the replica.
    pub replica_id: String,
    /// Version of its program.
    pub program: String,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
}

/// One part of a snapshot, in the order in which they come.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Always the first.
    Header(Header),
    /// One registration.
    Registration(Box<Registration>),
    /// One registration that was taken back.
    Tombstone(Tombstone),
    /// The streams that follow belong to this index.
    Index(IndexHead),
    /// One stream, whole.
    Stream(Box<StreamImage>),
    /// Always the last: everything before is complete.
    End(Totals),
}

/// What the trailer counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames before the trailer.
    pub frames: u64,
    /// Streams.
    pub streams: u64,
    /// Owners of all streams.
    pub owners: u64,
    /// Content blocks of all streams.
    pub blocks: u64,
}

/// Begin of a stream.
#[derive(Serialize, Deserialize)]
pub(super) struct StreamHead {
    pub(super) name: StreamName,
    pub(super) position: Position,
}

/// Begin of an owner: all of it that is small.
#[derive(Serialize, Deserialize)]
pub(super) struct OwnerHead {
    instance: InstanceId,
    dp_rank: u32,
    spec: OwnerSpec,
    reasons: Vec<String>,
    since_ms: u64,
    removals_overflowed: bool,
    pending_dropped: bool,
    /// The owner has announced groups; whether its main groups keep sets of their own.
    group_sets: Option<bool>,
    /// Blocks age; latest timestamp of a batch.
    age_clock_ms: Option<u64>,
    whole_groups: Vec<Option<u32>>,
    twins: u32,
    announced_block_size: Option<u32>,
}

impl OwnerHead {
    /// The small values of an owner.
    pub(super) fn of(image: &OwnerImage) -> Self {
        let rest = &image.rest;
        Self {
            instance: image.owner.instance.clone(),
            dp_rank: image.owner.rank.0,
            spec: image.spec,
            reasons: image.trust.reasons().map(|reason| reason.as_str().to_owned()).collect(),
            since_ms: image.trust.since_ms(),
            removals_overflowed: rest.removals_overflowed,
            pending_dropped: rest.pending_dropped,
            group_sets: rest.groups.as_ref().map(|groups| groups.sets),
            age_clock_ms: rest.ages.as_ref().map(|ages| ages.clock_ms),
            whole_groups: rest.whole_groups.clone(),
            twins: rest.twins,
            announced_block_size: rest.announced_block_size,
        }
    }

    /// An owner with these values and empty lists.
    pub(super) fn into_image(self) -> Result<OwnerImage, Error> {
        Ok(OwnerImage {
            trust: trust(&self.reasons, self.since_ms)?,
            owner: Owner { instance: self.instance, rank: DpRank(self.dp_rank) },
            spec: self.spec,
            rows: Default::default(),
            hashes: Vec::new(),
            recents: Vec::new(),
            rest: OwnerRest {
                removals_overflowed: self.removals_overflowed,
                pending_dropped: self.pending_dropped,
                groups: self.group_sets.map(|sets| crate::image::GroupsImage { list: Vec::new(), sets }),
                ages: self.age_clock_ms.map(|clock_ms| crate::image::AgesImage { clock_ms, queue: Vec::new() }),
                whole_groups: self.whole_groups,
                twins: self.twins,
                announced_block_size: self.announced_block_size,
                ..OwnerRest::default()
            },
        })
    }
}

fn trust(reasons: &[String], since_ms: u64) -> Result<Trust, Error> {
    // Raising and ending one leaves nothing but the time.
    let mut trust = Trust::with(Reason::Gap, since_ms);
    trust.set(Reason::Gap, false, since_ms);
    for word in reasons {
        let reason = Reason::ALL.iter().find(|reason| reason.as_str() == word);
        let reason = reason.ok_or_else(|| Error::Value { what: "trust", why: format!("unknown reason `{word}`") })?;
        trust.set(*reason, true, since_ms);
    }
    Ok(trust)
}

/// A group without its lists.
pub(super) fn group_head(group: &GroupImage) -> GroupImage {
    let GroupImage { key, kind, in_tree, complete, window_tokens, block_tokens, held: _, bare: _ } = *group;
    GroupImage { key, kind, in_tree, complete, window_tokens, block_tokens, held: Vec::new(), bare: Vec::new() }
}
