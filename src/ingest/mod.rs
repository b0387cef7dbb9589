//! Listeners: one task per stream reads a publisher, keeps its sequence, and feeds the index.
//! `cursor` and `stream` are pure; `listener` and `replay` do the I/O.
#![allow(missing_docs, unused_variables, dead_code, reason = "skeleton")]

use std::sync::Arc;

use crate::ids::{DpRank, IndexKey, InstanceId, Seq};
use crate::index::SharedIndex;
use crate::zmtp::{Context, Endpoint, Options};

/// State of a listener, as observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Pending,
    Active,
    Paused,
    Failed,
}

/// What one stream feeds, and how.
pub struct StreamSpec {
    pub key: IndexKey,
    pub instance: InstanceId,
    pub endpoint: Endpoint,
    pub replay_endpoint: Option<Endpoint>,
    pub ranks: Vec<DpRank>,
    pub topic: Option<String>,
    pub default_lora: Option<u64>,
    /// Last applied number of an earlier registration: only to recognise a restart.
    pub remembered: Option<Remembered>,
}

/// Cursor kept over unregister and register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    pub seq: Seq,
    pub payload_hash: u64,
}

/// What a stream has observed so far; copied out for `/workers` and metrics.
#[derive(Debug, Clone)]
pub struct StreamReport {
    pub status: Status,
    pub last_error: Option<String>,
    pub last_seq: Option<Seq>,
    /// When the last batch arrived here.
    pub last_event_ms: Option<u64>,
    /// Arrival time minus the batch's timestamp, of the last batch.
    pub lag_ms: Option<u64>,
    pub gaps: u64,
    pub missing_batches: u64,
    pub replays_complete: u64,
    pub replays_incomplete: u64,
    pub replays_failed: u64,
    pub duplicates: u64,
    pub restarts: u64,
    pub malformed: u64,
    pub replaying: bool,
    pub connects: u64,
}
