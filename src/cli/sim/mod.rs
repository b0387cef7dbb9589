//! `kvindexer sim`: a fleet of simulated engines with real sockets, for demonstrations and tests of the indexer.
//!
//! `engine`, `encode`, `workload`, `command` and `describe` are pure; `publisher` owns sockets, `fleet` joins both, `check`
//! compares an indexer's answers with the fleet's own truth, `control` takes commands over HTTP, and `run` is the program.

pub mod check;
pub mod command;
mod control;
mod describe;
pub mod encode;
pub mod engine;
pub mod fleet;
pub mod publisher;
mod run;
pub mod workload;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

pub use run::{Error, main, run};

use command::Scheduled;
use encode::{Encoder, EngineKind, EventForm};
use engine::EngineSpec;
use fleet::RankSpec;
use publisher::PublisherSpec;

use crate::ids::{DEFAULT_TENANT, InstanceId, Owner};

/// Command line of `kvindexer sim`.
#[derive(Debug, Clone, Args)]
pub struct SimArgs {
    /// Engine instances
    #[arg(long, default_value_t = 3)]
    pub workers: u64,
    /// Data-parallel ranks of each instance
    #[arg(long, default_value_t = 1)]
    pub ranks: u32,
    /// First rank of each instance, as in the later Pods of a group; ports are counted from rank 0
    #[arg(long, default_value_t = 0, value_name = "RANK")]
    pub first_rank: u32,
    /// Id of the first instance; the others follow
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub first_id: u64,
    /// Makes ids text: the prefix and the number
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub id_prefix: String,
    /// Address to bind
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: IpAddr,
    /// Events port of the first rank; all ranks of all instances follow. 0 lets the system choose each
    #[arg(long, default_value_t = 5557)]
    pub port: u16,
    /// Replay port of the first rank, likewise; without it 1000 above --port
    #[arg(long)]
    pub replay_port: Option<u16>,
    /// Bind no replay sockets
    #[arg(long)]
    pub no_replay: bool,
    /// Batches kept for replay by each rank
    #[arg(long, default_value_t = 10_000, value_name = "BATCHES")]
    pub replay_batches: usize,
    /// Frames of a replay answer: 4 repeats the topic
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=4))]
    pub replay_frames: u8,
    /// Topic of every batch
    #[arg(long, default_value = "kv-events")]
    pub topic: String,
    /// Whose habits the events have
    #[arg(long, value_enum, default_value_t = EngineKind::Vllm)]
    pub engine: EngineKind,
    /// Form of the events
    #[arg(long, value_enum, default_value_t = EventForm::Array)]
    pub events: EventForm,
    /// Tokens per block
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub block_size: u32,
    /// Device blocks of each rank
    #[arg(long, default_value_t = 16_384, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(1..))]
    pub blocks: u32,
    /// Host blocks of each rank, filled at eviction; 0: no offload
    #[arg(long, default_value_t = 0, value_name = "BLOCKS")]
    pub host_blocks: u32,
    /// Each rank hashes with a seed of its own, as engines without a fixed hash seed do
    #[arg(long)]
    pub own_hashes: bool,
    /// Request trace: one JSON object with `hash_ids` per line. Without it a generator makes prompts
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Tokens that one content id stands for
    #[arg(long, default_value_t = workload::TOKENS_PER_ID, value_name = "TOKENS")]
    pub tokens_per_id: u32,
    /// Seed of the generator
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests to serve; 0: all of the trace, or no end
    #[arg(long, default_value_t = 0)]
    pub requests: usize,
    /// Requests per second over the whole fleet; 0: as fast as possible
    #[arg(long, default_value_t = 100.0)]
    pub rate: f64,
    /// Command at a time, as SECONDS=COMMAND, for example `5=restart 1`; can be repeated
    #[arg(long = "at", value_name = "SECONDS=COMMAND")]
    pub schedule: Vec<Scheduled>,
    /// Take commands at `POST /command`, and describe the first instance as its engine would, at this address; port 0 lets
    /// the system choose
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub control: Option<SocketAddr>,
    /// Register the ranks at this indexer, for example http://127.0.0.1:8090
    #[arg(long, value_name = "URL")]
    pub register: Option<String>,
    /// Host name for registrations; without it the bound address
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,
    /// Model of registrations
    #[arg(long, default_value = "sim")]
    pub model_name: String,
    /// Tenant of registrations
    #[arg(long, alias = "routing-group", default_value = DEFAULT_TENANT)]
    pub tenant_id: String,
    /// After the last request, compare the indexer's answers with the truth; a wrong answer ends with exit code 1
    #[arg(long, requires = "register")]
    pub check: bool,
    /// End after the last request instead of serving replays until told to quit
    #[arg(long)]
    pub exit: bool,
}

impl SimArgs {
    /// All ranks, in order of instance and rank.
    fn rank_specs(&self) -> Result<Vec<RankSpec>, Error> {
        let above = || if self.port == 0 { Some(0) } else { self.port.checked_add(1000) };
        let replay_port = self.replay_port.or_else(above).ok_or(Error::PortRange)?;
        let mut specs = vec![];
        for worker in 0..self.workers {
            let id = format!("{}{}", self.id_prefix, self.first_id.saturating_add(worker));
            let instance = InstanceId::parse(&id)?;
            for rank in 0..self.ranks {
                let rank = self.first_rank.saturating_add(rank);
                let position = worker * u64::from(self.ranks) + u64::from(rank);
                specs.push(RankSpec {
                    owner: Owner::new(instance.clone(), rank),
                    engine: EngineSpec {
                        block_size: self.block_size as usize,
                        device_blocks: self.blocks as usize,
                        host_blocks: self.host_blocks as usize,
                        stored_blocks_max: 512,
                        chain_seed: self.own_hashes.then_some(position),
                    },
                    encoder: Encoder {
                        kind: self.engine,
                        form: self.events,
                        block_size: self.block_size as usize,
                        rank,
                    },
                    publisher: PublisherSpec {
                        host: self.host,
                        port: port(self.port, position)?,
                        replay_port: (!self.no_replay).then(|| port(replay_port, position)).transpose()?,
                        replay_batches: self.replay_batches,
                        replay_topic: self.replay_frames == 4,
                        topic: self.topic.clone(),
                    },
                });
            }
        }
        Ok(specs)
    }
}

/// Port of the rank at a position; 0 stays 0.
fn port(base: u16, position: u64) -> Result<u16, Error> {
    match base {
        0 => Ok(0),
        base => u16::try_from(u64::from(base) + position).map_err(|_| Error::PortRange),
    }
}
