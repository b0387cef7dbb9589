//! Building one owner's state anew from a publisher's whole replay, beside the live one. The same rules as for every
//! replay say what an answer means; nothing of the live stream is touched.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::event::Batch;
use crate::hash;
use crate::ids::{BlockSize, Mark, Owner, OwnerSpec, Seq};
use crate::index::{ApplyContext, Limits, OwnerId, PrefixIndex};
use crate::ingest::Shared;
use crate::ingest::replay::{self, Item, Question};
use crate::ingest::rounds::{Next, RoundEnd, Rounds, Verdict};
use crate::wire::{self, DecodeContext, ReplayAnswer};
use crate::zmtp::Endpoint;

/// What is to be rebuilt, and from where.
pub struct RebuildSpec {
    /// Whose blocks.
    pub owner: Owner,
    /// Policy, role, ageing.
    pub owner_spec: OwnerSpec,
    /// Tokens per block of its index.
    pub block_size: BlockSize,
    /// Bounds of its index.
    pub limits: Limits,
    /// LoRA name of events that name none.
    pub default_lora: Option<String>,
    /// The publisher's replay socket.
    pub replay_endpoint: Endpoint,
    /// One replay at a time per worker.
    pub turn: Arc<Semaphore>,
    /// Last batch to apply.
    pub upto: Mark,
    /// The publisher's first number is 1.
    pub counts_from_one: bool,
    /// A round without progress for so long is over.
    pub idle: Duration,
}

/// A rebuilt state.
pub struct Rebuilt {
    /// An index with this owner only.
    pub index: PrefixIndex,
    /// The owner in it.
    pub owner: OwnerId,
    /// First number that the publisher still had.
    pub from: Option<Seq>,
    /// Everything from the publisher's first number to the last one wanted was there, and that one was the same batch.
    pub complete: bool,
    /// The publisher answered at all.
    pub answered: bool,
}

/// Replays from the beginning into an index of its own.
pub async fn rebuild(shared: Arc<Shared>, spec: RebuildSpec) -> Rebuilt {
    let mut index = PrefixIndex::new(spec.block_size, spec.limits);
    let owner = index.register(&spec.owner, spec.owner_spec, shared.clock.now_ms());
    let rebuilt = Rebuilt { index, owner, from: None, complete: false, answered: false };
    let mut work = Work {
        rounds: Rounds::new(None, spec.counts_from_one),
        end: spec.upto.seq.next(),
        batch: Batch::default(),
        head_lost: false,
        same_life: false,
        shared,
        spec,
        rebuilt,
    };
    work.run().await;
    work.rebuilt
}

struct Work {
    shared: Arc<Shared>,
    spec: RebuildSpec,
    rounds: Rounds,
    /// First number that is not wanted.
    end: Option<Seq>,
    batch: Batch,
    head_lost: bool,
    /// The last number wanted carried the same batch.
    same_life: bool,
    rebuilt: Rebuilt,
}

impl Work {
    async fn run(&mut self) {
        loop {
            let Some(how) = self.round().await else {
                return;
            };
            let mut next = self.rounds.over(how, self.end);
            if next == Next::Empty {
                next = self.rounds.over_empty();
            }
            match next {
                Next::Complete | Next::Empty => break,
                Next::GiveUp => return,
                Next::Again { wait, .. } => {
                    if wait {
                        tokio::time::sleep(self.spec.idle).await;
                    }
                }
            }
        }
        self.rebuilt.complete = !self.head_lost && self.same_life;
    }

    /// One question and its answers. None when what comes is of another life than what is wanted.
    async fn round(&mut self) -> Option<RoundEnd> {
        let mut exchange = replay::exchange(Question {
            endpoint: self.spec.replay_endpoint.clone(),
            from: self.rounds.from(),
            shared: Arc::clone(&self.shared),
            turn: Arc::clone(&self.spec.turn),
        });
        let mut begun = false;
        loop {
            tokio::task::consume_budget().await;
            // The wait for a turn is not the publisher's.
            let item = if begun { timeout(self.spec.idle, exchange.next()).await } else { Ok(exchange.next().await) };
            let message = match item {
                Ok(Some(Item::Begun)) => {
                    begun = true;
                    continue;
                }
                Ok(Some(Item::Answer(message))) => message,
                Ok(Some(Item::Failed(_)) | None) => return Some(RoundEnd::Failed),
                Err(_) => return Some(RoundEnd::Idle),
            };
            let frames: SmallVec<[&[u8]; 4]> = message.frames.iter().map(|frame| &frame[..]).collect();
            self.rebuilt.answered = true;
            match wire::replay_answer(&frames) {
                Ok(ReplayAnswer::End) => return Some(RoundEnd::Marker),
                Err(_) => return Some(RoundEnd::Failed),
                Ok(ReplayAnswer::Batch { seq, payload }) => {
                    let mark = Mark { seq, payload_hash: wire::payload_hash(payload) };
                    match self.rounds.answer(mark, self.end) {
                        Verdict::Ignore | Verdict::Confirmed => {}
                        Verdict::OtherLife => return None,
                        Verdict::Hole | Verdict::Reached => return Some(RoundEnd::Cut),
                        Verdict::HeadLost { .. } => {
                            self.head_lost = true;
                            self.apply(mark, payload);
                        }
                        Verdict::Apply => self.apply(mark, payload),
                    }
                }
            }
            if self.rounds.reaches(self.end) {
                return Some(RoundEnd::Cut);
            }
        }
    }

    fn apply(&mut self, mark: Mark, payload: &[u8]) {
        let now_ms = self.shared.clock.now_ms();
        self.rebuilt.from = self.rebuilt.from.or(Some(mark.seq));
        self.same_life = mark == self.spec.upto;
        let decode = DecodeContext {
            block_size: self.spec.block_size,
            default_lora: self.spec.default_lora.as_deref().and_then(hash::lora_name),
        };
        match wire::decode(payload, decode, &mut self.batch) {
            Err(reason) => self.rebuilt.index.skip(self.rebuilt.owner, reason, now_ms),
            Ok(()) if self.batch.rank.is_none_or(|rank| rank == self.spec.owner.rank) => {
                let context = ApplyContext { seq: mark.seq, now_ms };
                self.rebuilt.index.apply(self.rebuilt.owner, &self.batch, context);
            }
            Ok(()) => {}
        }
    }
}
