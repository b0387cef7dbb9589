//! A fleet of simulated engines: one cache and one pair of sockets per rank, and the truth about all of them.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::encode::Encoder;
use super::engine::{CacheEvent, Engine, EngineSpec, Held};
use super::publisher::{Error, Publisher, PublisherSpec};
use crate::ids::{DpRank, InstanceId, Owner};

/// Most events of one batch, as in a busy engine.
const BATCH_EVENTS_MAX: usize = 64;

/// One simulated rank before it runs.
#[derive(Debug, Clone)]
pub struct RankSpec {
    /// Whose blocks.
    pub owner: Owner,
    /// Its cache.
    pub engine: EngineSpec,
    /// Its wire form; the rank is taken from the owner.
    pub encoder: Encoder,
    /// Its sockets.
    pub publisher: PublisherSpec,
}

/// One running rank.
#[derive(Debug)]
struct Rank {
    owner: Owner,
    engine: Engine,
    encoder: Encoder,
    publisher: Publisher,
    /// Batches still to be lost.
    lose: u64,
    last_was_lost: bool,
}

/// What others need to know about a running rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankStatus {
    /// Whose blocks.
    pub owner: Owner,
    /// Tokens per block.
    pub block_size: usize,
    /// Where events are published.
    pub address: SocketAddr,
    /// Where replays are asked for.
    pub replay_address: Option<SocketAddr>,
    /// Number of the last batch of this life.
    pub last_seq: Option<u64>,
    /// Blocks on the device and in host memory.
    pub blocks: (usize, usize),
}

/// Running simulated engines.
#[derive(Debug)]
pub struct Fleet {
    ranks: Vec<Rank>,
}

impl Fleet {
    /// Binds all sockets.
    ///
    /// # Errors
    /// A port that cannot be bound.
    pub async fn start(specs: Vec<RankSpec>) -> Result<Self, Error> {
        let mut ranks = Vec::with_capacity(specs.len());
        for spec in specs {
            let encoder = Encoder { rank: spec.owner.rank.0, ..spec.encoder };
            let publisher = Publisher::bind(spec.publisher).await?;
            ranks.push(Rank {
                owner: spec.owner,
                engine: Engine::new(spec.engine),
                encoder,
                publisher,
                lose: 0,
                last_was_lost: false,
            });
        }
        Ok(Self { ranks })
    }

    /// Number of ranks; they are addressed by position.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// True without ranks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Positions of the ranks of an instance: one, or all.
    #[must_use]
    pub fn positions(&self, instance: &InstanceId, rank: Option<DpRank>) -> Vec<usize> {
        let wanted = |owner: &Owner| owner.instance == *instance && rank.is_none_or(|rank| rank == owner.rank);
        (0..self.ranks.len()).filter(|position| wanted(&self.ranks[*position].owner)).collect()
    }

    /// Lets a rank serve a prompt, and publishes what that changed.
    ///
    /// # Errors
    /// The publisher has ended.
    pub async fn request(&mut self, position: usize, tokens: &[u32]) -> Result<(), Error> {
        let rank = &mut self.ranks[position];
        let mut events = vec![];
        rank.engine.request(tokens, &mut events);
        rank.publish(&events).await
    }

    /// Empties a rank's cache and says so.
    ///
    /// # Errors
    /// The publisher has ended.
    pub async fn clear(&mut self, position: usize) -> Result<(), Error> {
        let rank = &mut self.ranks[position];
        let mut events = vec![];
        rank.engine.clear(&mut events);
        rank.publish(&events).await
    }

    /// Restarts a rank: cache and sequence begin anew, silently.
    ///
    /// # Errors
    /// The publisher has ended.
    pub async fn restart(&mut self, position: usize) -> Result<(), Error> {
        let rank = &mut self.ranks[position];
        rank.engine.reset();
        (rank.lose, rank.last_was_lost) = (0, false);
        rank.publisher.restart().await
    }

    /// The next `batches` batches of a rank are lost on the way.
    pub fn lose(&mut self, position: usize, batches: u64) {
        self.ranks[position].lose += batches;
    }

    /// Ends all losses. A rank whose last batch was lost publishes an empty one: without it no reader can know.
    ///
    /// # Errors
    /// A publisher has ended.
    pub async fn end_losses(&mut self) -> Result<(), Error> {
        for rank in &mut self.ranks {
            rank.lose = 0;
            if rank.last_was_lost {
                rank.send(&[]).await?;
            }
        }
        Ok(())
    }

    /// The truth about a prompt, by rank.
    #[must_use]
    pub fn held(&self, tokens: &[u32]) -> Vec<(Owner, Held)> {
        self.ranks.iter().map(|rank| (rank.owner.clone(), rank.engine.held(tokens))).collect()
    }

    /// All ranks, by position.
    #[must_use]
    pub fn status(&self) -> Vec<RankStatus> {
        self.ranks
            .iter()
            .map(|rank| RankStatus {
                owner: rank.owner.clone(),
                block_size: rank.encoder.block_size,
                address: rank.publisher.address(),
                replay_address: rank.publisher.replay_address(),
                last_seq: rank.publisher.last_seq(),
                blocks: rank.engine.block_counts(),
            })
            .collect()
    }

    /// Closes all sockets.
    ///
    /// # Errors
    /// What ended a publisher before.
    pub async fn stop(self) -> Result<(), Error> {
        for rank in self.ranks {
            rank.publisher.stop().await?;
        }
        Ok(())
    }
}

impl Rank {
    async fn publish(&mut self, events: &[CacheEvent]) -> Result<(), Error> {
        for events in events.chunks(BATCH_EVENTS_MAX) {
            self.send(events).await?;
        }
        Ok(())
    }

    async fn send(&mut self, events: &[CacheEvent]) -> Result<(), Error> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_was_lost = self.lose > 0;
        self.lose = self.lose.saturating_sub(1);
        let batch = self.encoder.batch(events, since_1970.as_secs_f64());
        self.publisher.publish(batch, self.last_was_lost).await?;
        Ok(())
    }
}
