//! Options about other replicas and about the snapshot on disk.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::Error;
use super::value::switch;

/// Options under the heading `Replicas`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Replicas")]
pub(super) struct ReplicaArgs {
    /// Addresses of other replicas, separated by commas: this one takes the state of the best of them when it starts, and
    /// is compared with all of them while it serves
    #[arg(long, env = "KVINDEXER_PEERS", value_name = "LIST", default_value = "", hide_default_value = true)]
    peers: String,
    /// Name and port under which a DNS look-up gives the addresses of all replicas, like kvindexer-peers:8090
    #[arg(
        long,
        env = "KVINDEXER_PEER_SERVICE",
        value_name = "HOST:PORT",
        default_value = "",
        hide_default_value = true
    )]
    peer_service: String,
    /// Whether /register and /unregister are sent on to all peers: `on` or `off`; on with --peer-service, else off
    #[arg(
        long,
        env = "KVINDEXER_FORWARD_REGISTRATIONS",
        value_name = "on|off",
        num_args = 0..=1,
        default_value = "",
        default_missing_value = "on",
        hide_default_value = true
    )]
    forward_registrations: String,
    /// Seconds between two comparisons with the peers
    #[arg(long, env = "KVINDEXER_COMPARE_INTERVAL_S", value_name = "SECONDS", default_value_t = 30)]
    compare_interval_s: u64,
    /// Seconds after the start in which recovered blocks of workers that nobody registers are kept
    #[arg(long, env = "KVINDEXER_RECOVERED_GRACE_S", value_name = "SECONDS", default_value_t = 60)]
    recovered_grace_s: u64,
    /// Directory for a snapshot of the whole state, read at the start when no peer can serve; empty: none
    #[arg(
        long,
        env = "KVINDEXER_SNAPSHOT_DIR",
        value_name = "DIRECTORY",
        default_value = "",
        hide_default_value = true
    )]
    snapshot_dir: OsString,
    /// Seconds between two snapshots on disk
    #[arg(long, env = "KVINDEXER_SNAPSHOT_INTERVAL_S", value_name = "SECONDS", default_value_t = 300)]
    snapshot_interval_s: u64,
    /// Age in seconds beyond which a snapshot on disk is not used
    #[arg(long, env = "KVINDEXER_SNAPSHOT_AGE_MAX_S", value_name = "SECONDS", default_value_t = 3600)]
    snapshot_age_max_s: u64,
}

/// Other replicas, and the snapshot on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicas {
    /// Addresses of other replicas, as given.
    pub peers: Vec<String>,
    /// Name and port of the headless Service of the replica set.
    pub peer_service: Option<String>,
    /// Registrations by hand are sent on to all peers.
    pub forward_registrations: bool,
    /// Rhythm of comparisons.
    pub compare_interval: Duration,
    /// Time for recovered owners that nobody registers.
    pub recovered_grace: Duration,
    /// The snapshot on disk.
    pub disk: Option<DiskSnapshot>,
}

/// Where and how often the state is written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSnapshot {
    /// The directory.
    pub dir: PathBuf,
    /// Time between two.
    pub interval: Duration,
    /// An older one is not used.
    pub age_max: Duration,
}

impl Replicas {
    /// A state may be waiting somewhere: a start looks for it before it serves.
    #[must_use]
    pub fn may_recover(&self) -> bool {
        !self.peers.is_empty() || self.peer_service.is_some() || self.disk.is_some()
    }
}

impl TryFrom<ReplicaArgs> for Replicas {
    type Error = Error;

    fn try_from(args: ReplicaArgs) -> Result<Self, Error> {
        for (value, name) in [
            (args.compare_interval_s, "--compare-interval-s"),
            (args.snapshot_interval_s, "--snapshot-interval-s"),
            (args.snapshot_age_max_s, "--snapshot-age-max-s"),
        ] {
            if value == 0 {
                return Err(Error::LimitZero(name));
            }
        }
        let peer_service = peer_service(args.peer_service.trim())?;
        let forward_registrations = switch(&args.forward_registrations, peer_service.is_some()).ok_or_else(|| {
            Error::Switch { name: "--forward-registrations", value: args.forward_registrations.clone() }
        })?;
        let peers = args.peers.split(',').map(str::trim).filter(|peer| !peer.is_empty());
        let dir = Some(PathBuf::from(args.snapshot_dir)).filter(|dir| !dir.as_os_str().is_empty());
        Ok(Self {
            peers: peers.map(str::to_owned).collect(),
            peer_service,
            forward_registrations,
            compare_interval: Duration::from_secs(args.compare_interval_s),
            recovered_grace: Duration::from_secs(args.recovered_grace_s),
            disk: dir.map(|dir| DiskSnapshot {
                dir,
                interval: Duration::from_secs(args.snapshot_interval_s),
                age_max: Duration::from_secs(args.snapshot_age_max_s),
            }),
        })
    }
}

/// A host, an IPv6 one in brackets, and a port above 0. Nothing for an empty text.
fn peer_service(text: &str) -> Result<Option<String>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let refused = || Error::PeerService(text.to_owned());
    let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some();
    let plain = !host.is_empty() && !host.contains(|c: char| c == ':' || c == '/' || c.is_whitespace());
    match port.parse::<u16>() {
        Ok(1..) if bracketed || plain => Ok(Some(text.to_owned())),
        _ => Err(refused()),
    }
}
