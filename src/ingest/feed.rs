//! From a stream to the index: which owners a stream feeds, and what its decisions do to them.
//!
//! Batches are decoded as they come, outside the lock; decisions and batches queue up in order and are carried out
//! together under one write lock. No socket, no clock. Invariant: [`Feed::flush`] is the only place where a listener
//! changes the index, for live and replayed batches alike.

mod adopting;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::event::{Batch, Event, SkipReason};
use crate::ids::{DpRank, InstanceId, Mark, Owner};
use crate::index::{ApplyContext, Clear, OwnerId, PrefixIndex, SharedIndex};
use crate::ingest::applied::{Applied, DIGEST_STEP};
use crate::ingest::sources::{Sources, StreamId};
use crate::ingest::stream::Effect;
use crate::trust::{Reason, State};
use crate::wire::{self, DecodeContext};

/// Hashes that may queue up before the lock is taken: a query waits for at most about this much work.
const QUEUED_HASHES_MAX: usize = 512;

/// Batches that may queue up before the lock is taken.
const QUEUED_BATCHES_MAX: usize = 16;

/// Whom a batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// All owners that are not waiting for their history.
    All,
    /// Only those that are.
    Joining,
}

/// Where a feed writes.
#[derive(Clone)]
pub(super) struct FeedTarget {
    /// The index.
    pub(super) index: Arc<SharedIndex>,
    /// Who feeds whom in it.
    pub(super) sources: Arc<Sources>,
    /// This stream.
    pub(super) stream: StreamId,
    /// The instance that the stream belongs to.
    pub(super) instance: InstanceId,
    /// How payloads are read.
    pub(super) decode: DecodeContext,
    /// What of the stream stands in the index. Locked under a lock of the index only.
    pub(super) applied: Arc<Mutex<Applied>>,
}

/// One owner of the stream.
#[derive(Debug)]
struct Fed {
    rank: DpRank,
    id: OwnerId,
    /// False for a rank that only batches named.
    registered: bool,
    /// Another stream is registered for it: its connection and gaps are not ours.
    foreign: bool,
    joining: bool,
    lost: bool,
    incomplete: bool,
    unverified: bool,
}

#[derive(Debug)]
enum Op {
    Apply {
        batch: usize,
        mark: Mark,
        target: Target,
    },
    /// `mark`: of a batch that nobody can read; none for a message without a number.
    Skip {
        reason: SkipReason,
        mark: Option<Mark>,
        target: Target,
    },
    Effect(Effect),
}

/// The owners of one stream and what waits to be done to them.
pub(super) struct Feed {
    to: FeedTarget,
    owners: Vec<Fed>,
    /// Ranks that were unregistered while the stream runs: batches that name them are dropped.
    muted: Vec<DpRank>,
    ops: Vec<Op>,
    batches: Vec<Batch>,
    batches_used: usize,
    hashes_queued: usize,
    connected: bool,
    catching_up: bool,
    heard: bool,
    /// The index is about to be replaced: its owners are not touched before [`Feed::adopt`].
    blind: bool,
}

impl Feed {
    /// A feed without owners. `blind`: nothing is shown in the index before [`Feed::adopt`].
    pub(super) fn new(to: FeedTarget, blind: bool) -> Self {
        Self {
            to,
            owners: Vec::new(),
            muted: Vec::new(),
            ops: Vec::new(),
            batches: Vec::new(),
            batches_used: 0,
            hashes_queued: 0,
            connected: false,
            catching_up: false,
            heard: false,
            blind,
        }
    }

    /// Adds a registered rank, which the index knows already. True if the stream has fed it before, so that it misses nothing.
    pub(super) fn add_rank(&mut self, rank: DpRank, now_ms: u64) -> bool {
        self.muted.retain(|muted| *muted != rank);
        let mut index = self.to.index.write();
        let Some(id) = index.owner_id(&self.owner(rank)) else {
            return false;
        };
        if self.heard {
            index.set_reason(id, Reason::NothingHeard, false, now_ms);
        }
        let known = self.owners.iter_mut().find(|fed| fed.rank == rank);
        let fed_before = known.as_ref().is_some_and(|fed| fed.id == id);
        if let Some(fed) = known {
            *fed = Fed { id, registered: true, foreign: false, ..*fed };
        } else {
            self.owners.push(Fed::new(rank, id, true));
        }
        for fed in self.owners.iter().filter(|fed| fed.rank == rank) {
            self.show(&mut index, fed, now_ms);
        }
        self.note_owners();
        fed_before
    }

    /// Takes a rank out; nothing is written for it afterwards.
    pub(super) fn remove_rank(&mut self, rank: DpRank) {
        self.owners.retain(|fed| fed.rank != rank);
        self.muted.push(rank);
        let index = self.to.index.read();
        self.note_owners();
        drop(index);
    }

    /// The address may have become another publisher's: whoever knows better ends the reason in the index.
    pub(super) fn doubt_address(&self, now_ms: u64) {
        if self.blind {
            return;
        }
        let mut index = self.to.index.write();
        for fed in self.owners.iter().filter(|fed| fed.registered && !fed.foreign) {
            index.set_reason(fed.id, Reason::Unconfirmed, true, now_ms);
        }
    }

    /// True if an owner misses batches for good.
    pub(super) fn misses_batches(&self) -> bool {
        self.owners.iter().any(|fed| fed.lost || fed.incomplete)
    }

    /// Queues a batch. Returns its timestamp if it could be read.
    pub(super) fn batch(&mut self, mark: Mark, payload: &[u8], target: Target, now_ms: u64) -> Option<u64> {
        if self.batches_used == QUEUED_BATCHES_MAX || self.hashes_queued >= QUEUED_HASHES_MAX {
            self.flush(now_ms);
        }
        if self.batches_used == self.batches.len() {
            self.batches.push(Batch::default());
        }
        let slot = self.batches_used;
        let batch = &mut self.batches[slot];
        match wire::decode(payload, self.to.decode, batch) {
            Ok(()) => {
                self.batches_used += 1;
                self.hashes_queued += batch.hashes.len();
                let timestamp_ms = batch.timestamp_ms;
                self.ops.push(Op::Apply { batch: slot, mark, target });
                timestamp_ms
            }
            Err(reason) => {
                self.ops.push(Op::Skip { reason, mark: Some(mark), target });
                None
            }
        }
    }

    /// Queues a message without a number that could not be used.
    pub(super) fn skip(&mut self, reason: SkipReason) {
        self.ops.push(Op::Skip { reason, mark: None, target: Target::All });
    }

    /// Queues a decision of the stream.
    pub(super) fn effect(&mut self, effect: Effect) {
        self.ops.push(Op::Effect(effect));
    }

    /// Carries out all that is queued, in order.
    pub(super) fn flush(&mut self, now_ms: u64) {
        if self.ops.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.to.index);
        let mut index = shared.write();
        let (mut ops, batches) = (std::mem::take(&mut self.ops), std::mem::take(&mut self.batches));
        for op in ops.drain(..) {
            match op {
                Op::Apply { batch, mark, target } => {
                    let context = ApplyContext { seq: mark.seq, now_ms };
                    self.apply_batch(&mut index, &batches[batch], target, context);
                    self.passed(&index, mark, target);
                }
                Op::Skip { reason, mark, target } => {
                    if reason == SkipReason::UndecodableBatch {
                        self.hear(&mut index, now_ms);
                    }
                    for fed in self.owners.iter().filter(|fed| fed.registered && fed.is_for(target)) {
                        index.skip(fed.id, reason, now_ms);
                    }
                    if let Some(mark) = mark {
                        self.passed(&index, mark, target);
                    }
                }
                Op::Effect(effect) => self.perform(&mut index, effect, now_ms),
            }
        }
        self.note_flags(&mut self.to.applied.lock());
        self.note_owners();
        (self.ops, self.batches) = (ops, batches);
        (self.batches_used, self.hashes_queued) = (0, 0);
    }

    /// A batch of the sequence is in the index, or is known to be of no use.
    fn passed(&self, index: &PrefixIndex, mark: Mark, target: Target) {
        if target == Target::Joining {
            return;
        }
        let mut applied = self.to.applied.lock();
        applied.position.mark = Some(mark);
        if mark.seq.0.is_multiple_of(DIGEST_STEP) {
            let own = || self.owners.iter().filter(|fed| !fed.foreign).map(|fed| fed.id);
            // What is not exact is not compared, and may become exact without a trace in later digests.
            if own().all(|id| index.trust(id).state() != State::Degraded) {
                let digest = own().fold(0, |sum: u64, id| sum.wrapping_add(index.digest(id).value));
                applied.remember(mark.seq, digest);
            }
        }
    }

    /// A number of the publisher has come by, readable or not.
    fn hear(&mut self, index: &mut PrefixIndex, now_ms: u64) {
        if !std::mem::replace(&mut self.heard, true) {
            self.owners.iter().for_each(|fed| index.set_reason(fed.id, Reason::NothingHeard, false, now_ms));
        }
    }

    fn apply_batch(&mut self, index: &mut PrefixIndex, batch: &Batch, target: Target, context: ApplyContext) {
        self.hear(index, context.now_ms);
        let chosen = match batch.rank {
            Some(rank) if self.muted.contains(&rank) => return,
            Some(rank) => {
                let place = self.place_of(index, rank, context.now_ms);
                place..place + 1
            }
            None => 0..self.owners.len(),
        };
        let cleared = batch.events.iter().any(|event| matches!(event, Event::Cleared));
        for place in chosen {
            let fed = &self.owners[place];
            if !fed.is_for(target) || (batch.rank.is_none() && !fed.registered) {
                continue;
            }
            if self.to.sources.claim(fed.id, self.to.stream) {
                index.set_reason(fed.id, Reason::TwoSources, true, context.now_ms);
            }
            index.apply(fed.id, batch, context);
            if cleared {
                self.end_reasons(index, place, context.now_ms);
            }
        }
    }

    /// Place of a rank that a batch names; a rank nobody registered becomes an owner of its own.
    fn place_of(&mut self, index: &mut PrefixIndex, rank: DpRank, now_ms: u64) -> usize {
        if let Some(place) = self.owners.iter().position(|fed| fed.rank == rank) {
            return place;
        }
        let owner = self.owner(rank);
        let mut fed = match (index.owner_id(&owner), self.owners.first()) {
            (Some(id), _) => Fed { foreign: true, ..Fed::new(rank, id, false) },
            (None, Some(like)) => Fed::new(rank, index.intern(&owner, like.id, now_ms), false),
            (None, None) => unreachable!("a stream has at least one registered rank"),
        };
        fed.lost = !fed.foreign && self.owners.iter().any(|other| other.lost);
        fed.incomplete = !fed.foreign && self.owners.iter().any(|other| other.incomplete);
        fed.unverified = !fed.foreign && self.owners.iter().any(|other| other.unverified);
        self.show(index, &fed, now_ms);
        self.owners.push(fed);
        self.owners.len() - 1
    }

    fn perform(&mut self, index: &mut PrefixIndex, effect: Effect, now_ms: u64) {
        let owners = &mut self.owners;
        let own = |fed: &&mut Fed| !fed.foreign;
        match effect {
            Effect::Connected(holds) => self.connected = holds,
            Effect::CatchingUp(holds) => self.catching_up = holds,
            Effect::Restarted => {
                self.to.applied.lock().begin_anew();
                self.restart(index, now_ms);
            }
            Effect::ToldAnew => {
                self.to.applied.lock().begin_anew();
                self.restart(index, now_ms);
                self.heard = false;
                self.owners.iter().for_each(|fed| index.set_reason(fed.id, Reason::NothingHeard, true, now_ms));
            }
            Effect::BeginRebuild => {
                self.to.applied.lock().begin_anew();
                owners.iter_mut().filter(own).for_each(|fed| index.begin_rebuild(fed.id, now_ms));
            }
            Effect::FillBegins => {
                owners.iter().filter(|fed| fed.joining).for_each(|fed| index.begin_rebuild(fed.id, now_ms));
            }
            Effect::Placed => {
                owners.iter().for_each(|fed| index.set_reason(fed.id, Reason::NoWatermark, false, now_ms));
            }
            Effect::CountsFromOne => self.to.applied.lock().position.counts_from_one = true,
            Effect::Rebuilt => owners.iter_mut().filter(own).for_each(|fed| {
                (fed.lost, fed.incomplete) = (false, false);
                index.set_reason(fed.id, Reason::NoWatermark, false, now_ms);
            }),
            Effect::Lost { .. } => owners.iter_mut().filter(own).for_each(|fed| fed.lost = true),
            Effect::Incomplete => owners.iter_mut().filter(own).for_each(|fed| fed.incomplete = true),
            Effect::Unverified(holds) => owners.iter_mut().filter(own).for_each(|fed| fed.unverified = holds),
            Effect::NothingSent => {
                owners.iter().for_each(|fed| index.set_reason(fed.id, Reason::NothingHeard, false, now_ms));
            }
            Effect::JoinWaits(rank) => {
                owners.iter_mut().filter(|fed| fed.rank == rank).for_each(|fed| fed.joining = true);
            }
            Effect::Joined => {
                self.to.applied.lock().history.clear();
                owners.iter_mut().for_each(|fed| fed.joining = false);
            }
            Effect::JoinLost => {
                self.to.applied.lock().history.clear();
                owners.iter_mut().filter(|fed| fed.joining).for_each(|fed| (fed.joining, fed.lost) = (false, true));
            }
            Effect::GapSeen
            | Effect::DuplicateReleased
            | Effect::StartReplay { .. }
            | Effect::StopReplay
            | Effect::ReplayEnded(_) => return,
        }
        for fed in &self.owners {
            self.show(index, fed, now_ms);
        }
    }

    /// Another life: nothing of the old one stays, and ranks that only batches named are gone with it.
    fn restart(&mut self, index: &mut PrefixIndex, now_ms: u64) {
        for place in 0..self.owners.len() {
            index.clear(self.owners[place].id, Clear::NewLife, now_ms);
            self.owners[place].joining = false;
            self.end_reasons(index, place, now_ms);
        }
        let instance = &self.to.instance;
        self.owners.retain(|fed| {
            let stays = fed.registered || fed.foreign;
            if !stays {
                index.unregister(&Owner { instance: instance.clone(), rank: fed.rank });
                self.to.sources.forget(fed.id);
            }
            stays
        });
        self.catching_up = false;
    }

    /// The owner's content is whole again: the engine emptied it, or began anew.
    fn end_reasons(&mut self, index: &mut PrefixIndex, place: usize, now_ms: u64) {
        let fed = &mut self.owners[place];
        (fed.lost, fed.incomplete, fed.unverified) = (false, false, false);
        self.to.sources.reset(fed.id, self.to.stream);
        index.set_reason(fed.id, Reason::TwoSources, false, now_ms);
        index.set_reason(fed.id, Reason::NoWatermark, false, now_ms);
        let fed = &self.owners[place];
        self.show(index, fed, now_ms);
    }

    /// Shows the stream's reasons of one owner in the index.
    fn show(&self, index: &mut PrefixIndex, fed: &Fed, now_ms: u64) {
        if fed.foreign || self.blind {
            return;
        }
        index.set_reason(fed.id, Reason::NotConnected, !self.connected, now_ms);
        index.set_reason(fed.id, Reason::Gap, fed.lost || fed.joining || self.catching_up, now_ms);
        index.set_reason(fed.id, Reason::ReplayIncomplete, fed.incomplete, now_ms);
        index.set_reason(fed.id, Reason::UnverifiedReconnect, fed.unverified, now_ms);
    }

    fn owner(&self, rank: DpRank) -> Owner {
        Owner { instance: self.to.instance.clone(), rank }
    }
}

impl Fed {
    fn new(rank: DpRank, id: OwnerId, registered: bool) -> Self {
        Self { rank, id, registered, foreign: false, joining: false, lost: false, incomplete: false, unverified: false }
    }

    fn is_for(&self, target: Target) -> bool {
        self.joining == (target == Target::Joining)
    }
}
