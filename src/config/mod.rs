//! Options of `kvindexer serve`, from the command line and the environment, into a plain validated [`Config`].
//!
//! Read once, at the start; nobody else looks at the environment. Addresses of engines stay text here: the application
//! turns them into endpoints before anything starts, so that a bad one ends the process with exit code 1 like any bad value.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, ValueEnum};

use crate::ids::{BlockSize, DEFAULT_TENANT, IndexKey, InstanceIdError};

mod kubernetes;
mod replicas;
mod value;
mod workers;

use kubernetes::KubernetesArgs;
pub use kubernetes::{InstanceIds, Kubernetes};
use replicas::ReplicaArgs;
pub use replicas::{DiskSnapshot, Replicas};
pub use value::MemoryLimit;
pub use workers::WorkerEntry;

const MIB: u64 = 1024 * 1024;

/// Longest drain: everything must be over 10 s after the signal, and open requests need some of it.
const DRAIN_SECONDS_MAX: u64 = 8;

/// Command line of `kvindexer serve`. Every option has an environment variable; the option wins.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Tokens per block of the index that --workers feed; needed with --workers
    #[arg(long, env = "KVINDEXER_BLOCK_SIZE", value_name = "TOKENS")]
    pub block_size: Option<u32>,
    /// Port of the HTTP API; 0 lets the system choose
    #[arg(long, env = "KVINDEXER_PORT", default_value_t = 8090)]
    pub port: u16,
    /// Address that the HTTP API binds; `[::]` takes IPv4 too
    #[arg(long, env = "KVINDEXER_HOST", default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub host: String,
    /// Threads that run the service, as many that read events (an index stays on one of them), and as many that answer
    /// over HTTP; 0 counts as 1
    #[arg(long, env = "KVINDEXER_THREADS", default_value_t = 4)]
    pub threads: usize,
    /// Workers to register at the start, as `id[:rank]=endpoint[|replay_endpoint]`, separated by commas
    #[arg(long, env = "KVINDEXER_WORKERS", value_name = "LIST", default_value = "", hide_default_value = true)]
    pub workers: String,
    /// Model of --workers
    #[arg(long, env = "KVINDEXER_MODEL_NAME", default_value = "default", value_name = "NAME")]
    pub model_name: String,
    /// Tenant of --workers
    #[arg(long, alias = "routing-group", env = "KVINDEXER_TENANT_ID", default_value = DEFAULT_TENANT, value_name = "NAME")]
    pub tenant_id: String,
    /// Distinct instances that must be registered before queries are answered; 0 or empty: none
    #[arg(long, env = "DYN_ROUTER_MIN_INITIAL_WORKERS", value_name = "NUMBER", default_value = "0")]
    pub min_initial_workers: String,
    #[command(flatten)]
    replicas: ReplicaArgs,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Serve /test/pause_listener and /test/resume_listener
    #[arg(long, env = "DYN_KV_INDEXER_TEST_ENDPOINTS", hide = true, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub test_endpoints: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Resident memory beyond which no more blocks are taken: bytes, or with KiB, MiB, GiB; `auto` is 85 % of the cgroup's limit, `off` none
    #[arg(long, env = "KVINDEXER_MEMORY_LIMIT", default_value = "auto", value_name = "SIZE")]
    memory_limit: String,
    /// Blocks that one index may hold, counted per owner and tier; beyond it the oldest ones of the largest owner go; 0 is no limit
    #[arg(long, env = "KVINDEXER_MAX_BLOCKS_PER_INDEX", default_value_t = 0, value_name = "NUMBER")]
    max_blocks_per_index: u64,
    /// Largest body of /query and /query_by_hash, in bytes
    #[arg(long, env = "KVINDEXER_QUERY_BODY_BYTES_MAX", default_value_t = 64 * MIB, value_name = "BYTES")]
    query_body_bytes_max: u64,
    /// Largest body of other requests, in bytes
    #[arg(long, env = "KVINDEXER_BODY_BYTES_MAX", default_value_t = 2 * MIB, value_name = "BYTES")]
    body_bytes_max: u64,
    /// Requests at work at once; more are answered 503
    #[arg(long, env = "KVINDEXER_REQUESTS_IN_FLIGHT_MAX", default_value_t = 1024, value_name = "NUMBER")]
    requests_in_flight_max: usize,
    /// After SIGTERM, seconds in which requests are still taken while /ready says 503 (at most 8)
    #[arg(long, env = "KVINDEXER_DRAIN_SECONDS", default_value_t = 0, value_name = "SECONDS")]
    drain_seconds: u64,
    /// Largest frame taken from an engine, in bytes
    #[arg(long, env = "KVINDEXER_ZMTP_FRAME_BYTES_MAX", default_value_t = 64 * MIB, value_name = "BYTES")]
    zmtp_frame_bytes_max: u64,
    /// Largest message taken from an engine, all frames together, in bytes
    #[arg(long, env = "KVINDEXER_ZMTP_MESSAGE_BYTES_MAX", default_value_t = 64 * MIB, value_name = "BYTES")]
    zmtp_message_bytes_max: u64,
    /// Most frames of one message from an engine
    #[arg(long, env = "KVINDEXER_ZMTP_FRAMES_MAX", default_value_t = 16, value_name = "NUMBER")]
    zmtp_frames_max: usize,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
struct LogArgs {
    /// What is logged: a level, or directives like `info,kvindexer::ingest=debug`
    #[arg(long, env = "KVINDEXER_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// Form of the log on stderr
    #[arg(long, env = "KVINDEXER_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Write a line per request to this file (`-` is stderr); POST /reopen_logs opens it anew
    #[arg(long, env = "KVINDEXER_ACCESS_LOG", value_name = "FILE", default_value = "", hide_default_value = true)]
    access_log: OsString,
    /// Request header whose value stands in the access log as trace id
    #[arg(long, env = "KVINDEXER_TRACE_ID_HEADER", value_name = "NAME")]
    trace_id_header: Option<String>,
    /// Accepted for compatibility and without effect: times in the access log are UTC
    #[arg(long, env = "KVINDEXER_ACCESS_LOG_LOCAL_TIME", action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    access_log_local_time: bool,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Everything that `serve` needs to know, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the HTTP API binds.
    pub host: IpAddr,
    /// Port of the HTTP API; 0 lets the system choose.
    pub port: u16,
    /// Threads of the runtime, as many that read events, and as many that serve HTTP; at least 1.
    pub threads: usize,
    /// Workers to register at the start.
    pub workers: Option<InitialWorkers>,
    /// Other replicas, and the snapshot on disk.
    pub replicas: Replicas,
    /// Whether and how Kubernetes is followed.
    pub kubernetes: Kubernetes,
    /// Distinct instances that open the gate; 0 = no gate.
    pub min_initial_workers: usize,
    /// Bounds of memory, requests and the stop.
    pub limits: Limits,
    /// Form and places of logs.
    pub log: LogConfig,
    /// Serve the two test routes.
    pub test_endpoints: bool,
}

/// `--workers` with the index that they feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialWorkers {
    /// The index.
    pub key: IndexKey,
    /// Its block size.
    pub block_size: BlockSize,
    /// At least one; no owner twice.
    pub entries: Vec<WorkerEntry>,
}

/// Bounds of memory, requests and the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Resident memory beyond which no more blocks are taken.
    pub memory: MemoryLimit,
    /// Held blocks of one index, by owner and tier; 0 is no bound.
    pub held_blocks_max: u64,
    /// Largest body of the two queries.
    pub query_body_bytes_max: usize,
    /// Largest body of other requests.
    pub body_bytes_max: usize,
    /// Requests at work at once.
    pub requests_in_flight_max: usize,
    /// Time after SIGTERM in which requests are still taken.
    pub drain: Duration,
    /// Largest frame of an engine.
    pub zmtp_frame_bytes_max: u64,
    /// Largest message of an engine.
    pub zmtp_message_bytes_max: u64,
    /// Most frames of a message of an engine.
    pub zmtp_frames_max: usize,
}

/// Form and places of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Directives of the filter.
    pub filter: String,
    /// Form of the log on stderr.
    pub format: LogFormat,
    /// File of the access log; `-` is stderr.
    pub access_log: Option<PathBuf>,
    /// Header with the trace id, in lower case.
    pub trace_id_header: Option<String>,
    /// Asked for, without effect.
    pub access_log_local_time: bool,
}

/// Why a value of an option cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Blocks without tokens mean nothing.
    #[error("--block-size must be at least 1")]
    BlockSizeZero,
    /// The index of the workers needs one.
    #[error("--block-size is required with --workers")]
    BlockSizeMissing,
    /// No `=` in an entry.
    #[error("--workers entry `{0}` must be id[:rank]=endpoint[|replay_endpoint]")]
    WorkerForm(String),
    /// The id of an entry.
    #[error("--workers entry `{entry}`: {source}")]
    WorkerId {
        /// The entry.
        entry: String,
        /// What is wrong with its id.
        #[source]
        source: InstanceIdError,
    },
    /// The rank of an entry.
    #[error("--workers entry `{0}`: rank must be a number from 0 to 4294967295")]
    WorkerRank(String),
    /// The replay endpoint of an entry.
    #[error("--workers entry `{0}`: nothing stands behind `|`")]
    WorkerReplay(String),
    /// One owner twice.
    #[error("--workers names {0} twice")]
    WorkerTwice(String),
    /// The gate.
    #[error("DYN_ROUTER_MIN_INITIAL_WORKERS must be a non-negative integer, not `{0}`")]
    MinInitialWorkers(String),
    /// The address to bind.
    #[error("--host must be an IP address, not `{0}`")]
    Host(String),
    /// The memory limit.
    #[error("--memory-limit must be `auto`, `off` or a size like 1500000000 or 4GiB, not `{0}`")]
    MemoryLimit(String),
    /// A limit that would refuse everything.
    #[error("{0} must be at least 1")]
    LimitZero(&'static str),
    /// More than the stop may last.
    #[error("--drain-seconds must be at most {DRAIN_SECONDS_MAX}")]
    DrainTooLong,
    /// Not a host and a port.
    #[error("--peer-service must be a host and a port like kvindexer-peers:8090, not `{0}`")]
    PeerService(String),
    /// Neither on nor off.
    #[error("{name} must be `on` or `off`, not `{value}`")]
    Switch {
        /// The option.
        name: &'static str,
        /// What was given.
        value: String,
    },
    /// Not the name of an HTTP header.
    #[error("--trace-id-header must be the name of a header, not `{0}`")]
    TraceIdHeader(String),
}

impl TryFrom<ServeArgs> for Config {
    type Error = Error;

    fn try_from(args: ServeArgs) -> Result<Self, Error> {
        let block_size =
            args.block_size.map(|tokens| BlockSize::new(tokens).ok_or(Error::BlockSizeZero)).transpose()?;
        let entries = workers::parse(&args.workers)?;
        let workers = match (entries.is_empty(), block_size) {
            (true, _) => None,
            (false, None) => return Err(Error::BlockSizeMissing),
            (false, Some(block_size)) => {
                Some(InitialWorkers { key: IndexKey::new(args.model_name, args.tenant_id), block_size, entries })
            }
        };
        Ok(Self {
            host: host(&args.host)?,
            port: args.port,
            threads: args.threads.max(1),
            workers,
            replicas: args.replicas.try_into()?,
            kubernetes: args.kubernetes.try_into()?,
            min_initial_workers: min_initial_workers(&args.min_initial_workers)?,
            limits: args.limits.try_into()?,
            log: args.log.try_into()?,
            test_endpoints: args.test_endpoints,
        })
    }
}

impl TryFrom<LimitArgs> for Limits {
    type Error = Error;

    fn try_from(args: LimitArgs) -> Result<Self, Error> {
        for (value, name) in [
            (args.query_body_bytes_max, "--query-body-bytes-max"),
            (args.body_bytes_max, "--body-bytes-max"),
            (args.requests_in_flight_max as u64, "--requests-in-flight-max"),
            (args.zmtp_frame_bytes_max, "--zmtp-frame-bytes-max"),
            (args.zmtp_message_bytes_max, "--zmtp-message-bytes-max"),
            (args.zmtp_frames_max as u64, "--zmtp-frames-max"),
        ] {
            if value == 0 {
                return Err(Error::LimitZero(name));
            }
        }
        if args.drain_seconds > DRAIN_SECONDS_MAX {
            return Err(Error::DrainTooLong);
        }
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Self {
            memory: args.memory_limit.parse().map_err(|()| Error::MemoryLimit(args.memory_limit))?,
            held_blocks_max: args.max_blocks_per_index,
            query_body_bytes_max: bytes(args.query_body_bytes_max),
            body_bytes_max: bytes(args.body_bytes_max),
            requests_in_flight_max: args.requests_in_flight_max,
            drain: Duration::from_secs(args.drain_seconds),
            zmtp_frame_bytes_max: args.zmtp_frame_bytes_max,
            zmtp_message_bytes_max: args.zmtp_message_bytes_max,
            zmtp_frames_max: args.zmtp_frames_max,
        })
    }
}

impl TryFrom<LogArgs> for LogConfig {
    type Error = Error;

    fn try_from(args: LogArgs) -> Result<Self, Error> {
        let trace_id_header =
            args.trace_id_header.filter(|name| !name.is_empty()).map(|name| name.to_ascii_lowercase());
        if let Some(name) = &trace_id_header
            && !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        {
            return Err(Error::TraceIdHeader(name.clone()));
        }
        Ok(Self {
            filter: args.log,
            format: args.log_format,
            access_log: Some(PathBuf::from(args.access_log)).filter(|path| !path.as_os_str().is_empty()),
            trace_id_header,
            access_log_local_time: args.access_log_local_time,
        })
    }
}

/// An IP address, an IPv6 one also in brackets.
fn host(text: &str) -> Result<IpAddr, Error> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match bare {
        Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6).ok(),
        None => text.parse().ok(),
    };
    address.ok_or_else(|| Error::Host(text.to_owned()))
}

/// Empty and 0 switch the gate off.
fn min_initial_workers(text: &str) -> Result<usize, Error> {
    match text.trim() {
        "" => Ok(0),
        number => number.parse().map_err(|_| Error::MinInitialWorkers(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;
