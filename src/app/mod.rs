//! The service as a whole: the only place that knows every room. It builds them, spawns their tasks, and awaits them.
//!
//! Order of a start: addresses are checked, HTTP is bound, the registry gets the workers of the command line, whose
//! streams only hold what they hear while state is looked for at peers and on disk; without any, their first replays are
//! waited for. Order of a stop: `/ready` says 503, requests are still taken for the drain time, the listening socket
//! closes, open requests finish while the last snapshot is written, streams stop, tasks are awaited. A task that ends by
//! itself is a fault and ends the process.

mod kubernetes;
mod log;
mod memory;
mod replicas;
mod signals;
mod start;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Config, Limits, LogConfig, ServeArgs};
use crate::http::{AccessLog, AppState, HttpConfig, PATHS, ServerLimits, Services, router, serve};
use crate::index;
use crate::ingest::{self, SystemClock};
use crate::metrics::Metrics;
use crate::readiness::{Hold, Readiness};
use crate::recovery;
use crate::registry::{Registry, RegistryConfig};
use crate::wire::digest::Phase;
use crate::zmtp;

pub use log::init as init_log;
pub use signals::{Signal, Signals};

use replicas::{Place, RecoveryHolds};

/// A stop is over so long after its signal: Kubernetes would kill after 30 s, and nobody waits that long.
const STOP_MAX: Duration = Duration::from_secs(10);

/// What is kept of it for stopping streams and tasks after the last request.
const STOP_RESERVE: Duration = Duration::from_secs(2);

/// Name look-ups at once: they occupy blocking threads of the runtime.
const LOOKUPS_MAX: usize = 32;

/// When the runtime ends, name look-ups may still occupy blocking threads; they are not waited for longer than this.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// `kvindexer serve`: runs until a stop signal.
///
/// # Errors
/// A value that cannot be used, a port that cannot be bound, a fault, or a stop that was cut short.
pub fn main(args: ServeArgs) -> anyhow::Result<()> {
    memory::refuse_huge_pages();
    let config = Config::try_from(args)?;
    init_log(&config.log.filter, config.log.format)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(config.threads).enable_all().build().context("failed to start threads")?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        // A start can be stopped too.
        let app = tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            app = App::start(config) => app?,
        };
        app.run(async || signals.next().await).await
    });
    runtime.shutdown_timeout(RUNTIME_END);
    outcome
}

/// A running service.
pub struct App {
    address: SocketAddr,
    registry: Arc<Registry>,
    place: Place,
    readiness: Readiness,
    drain: Duration,
    /// Ends the HTTP server.
    http_stop: CancellationToken,
    /// Ends everything else.
    root: CancellationToken,
    tasks: JoinSet<&'static str>,
}

impl App {
    /// Starts everything. When it returns, HTTP answers and the workers of the command line are registered; queries are
    /// answered once the start-up conditions hold.
    ///
    /// # Errors
    /// A bad address, a port that cannot be bound, an access log that cannot be opened.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        // Taken apart whole, so that an option without a use is a warning of the compiler.
        let Config {
            host,
            port,
            threads,
            workers,
            replicas,
            kubernetes,
            min_initial_workers,
            limits,
            log,
            test_endpoints,
        } = config;
        let desired = workers.map(start::worker_specs).transpose()?.unwrap_or_default();
        let access_log = access_log(&log)?;
        let (replica, forwarder, recovery) = replicas::prepare(&replicas, kubernetes.pod_name.clone())?;
        let following = kubernetes::prepare(kubernetes, &replica).await?;
        let address = SocketAddr::new(host, port);
        let listener = TcpListener::bind(address).await.with_context(|| format!("failed to bind {address}"))?;
        let address = listener.local_addr().context("failed to read the bound address")?;

        let listening = ingest::Threads::start(threads).context("failed to start threads")?;
        let registry = Registry::new(registry_config(&limits, replicas.may_recover(), listening));
        let (readiness, starting) = Readiness::starting("starting");
        let (http_stop, root) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let metrics = Arc::new(Metrics::new(PATHS));
        let services = Services {
            registry: Arc::clone(&registry),
            readiness: readiness.clone(),
            replica: replica.clone(),
            forwarder,
            metrics: Arc::clone(&metrics),
            access_log,
            config: HttpConfig {
                query_body_bytes_max: limits.query_body_bytes_max,
                body_bytes_max: limits.body_bytes_max,
                requests_in_flight_max: limits.requests_in_flight_max,
                test_endpoints,
            },
        };
        let finish_timeout = STOP_MAX - STOP_RESERVE - limits.drain;
        let server_limits = ServerLimits { threads, finish_timeout, ..ServerLimits::default() };
        let server = serve(listener, router(AppState::new(services)), server_limits, http_stop.clone());
        tasks.spawn(async {
            server.await;
            "http"
        });
        info!(%address, version = env!("CARGO_PKG_VERSION"), "http is bound");

        let place = Place { replica, registry: Arc::clone(&registry), config: Arc::new(recovery) };
        let mut app = Self { address, registry, place, readiness, drain: limits.drain, http_stop, root, tasks };
        // All are there before registration begins, so that the service is never ready too early.
        let hold = |wanted: bool, reason: &str| wanted.then(|| app.readiness.hold(reason));
        let may_recover = replicas.may_recover();
        let holds = RecoveryHolds {
            recovery: hold(may_recover, "recovery: begins"),
            cold_start: hold(
                may_recover || following.is_some() || !desired.is_empty(),
                "first replays: not asked for yet",
            ),
        };
        let gate = hold(min_initial_workers > 0, "waiting for workers");
        start::register(&app.registry, desired).await?;
        let (place, registry) = (app.place.clone(), Arc::clone(&app.registry));
        let first_view = following.map(|following| {
            let (task, first_view) = following.begin(&app.registry, &place.replica, &app.readiness, &metrics);
            app.spawn("kubernetes", task);
            first_view
        });
        app.spawn("replica", async move { place.live(holds, first_view).await });
        app.spawn("watch", watch(registry, gate, min_initial_workers, limits));
        drop(starting);
        Ok(app)
    }

    /// Where HTTP is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until queries are answered.
    pub async fn serving(&self) {
        self.readiness.serving().await;
    }

    /// Serves until a signal, and stops in order. A second signal ends the wait at once.
    ///
    /// # Errors
    /// A task ended by itself, or a second signal cut the stop short.
    pub async fn run(mut self, mut next_signal: impl AsyncFnMut() -> Signal) -> anyhow::Result<()> {
        // Signals first, so that a fault during a stop does not hide that it was wanted.
        let signal = tokio::select! {
            biased;
            signal = next_signal() => signal,
            ended = self.tasks.join_next() => return Err(fault(ended)),
        };
        info!(?signal, "stopping");
        let drain = if signal == Signal::Terminate { self.drain } else { Duration::ZERO };
        tokio::select! {
            biased;
            signal = next_signal() => Err(anyhow!("the stop was cut short by a second signal ({signal:?})")),
            stopped = self.stop_after(drain) => stopped,
        }
    }

    /// Stops in order, without a drain.
    ///
    /// # Errors
    /// A task ended by itself before.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop_after(Duration::ZERO).await
    }

    async fn stop_after(mut self, drain: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + STOP_MAX;
        self.readiness.stop();
        self.place.replica.set_phase(Phase::Stopping);
        if !drain.is_zero() {
            tokio::select! {
                biased;
                ended = self.tasks.join_next() => return Err(fault(ended)),
                () = tokio::time::sleep(drain) => {}
            }
        }
        if let Some(ended) = self.tasks.try_join_next() {
            return Err(fault(Some(ended)));
        }
        let stopped = async {
            self.root.cancel();
            self.http_stop.cancel();
            let mut panicked = None;
            let ended = async {
                while let Some(ended) = self.tasks.join_next().await {
                    panicked = panicked.take().or(ended.err());
                }
            };
            // Requests take what time they need, and may leave none: the file is written beside them.
            let ((), ()) = tokio::join!(ended, last_snapshot(&self.place, deadline - STOP_RESERVE));
            self.registry.shutdown().await;
            panicked
        };
        match timeout_at(deadline, stopped).await {
            Ok(None) => info!("stopped"),
            Ok(Some(panicked)) => return Err(fault(Some(Err(panicked)))),
            Err(_) => warn!("stopped before everything had ended: its time was over"),
        }
        Ok(())
    }

    /// Spawns work that ends with the service.
    fn spawn(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let root = self.root.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = root.cancelled() => {}
                () = work => {}
            }
            name
        });
    }
}

/// Watches the gate and the memory. The gate ends when its condition holds, so it shares a task with the memory.
async fn watch(registry: Arc<Registry>, gate: Option<Hold>, min_initial_workers: usize, limits: Limits) {
    let limit = memory::limit_bytes(limits.memory);
    match limit {
        Some(bytes) => info!(bytes, "memory limit"),
        None => info!("no memory limit"),
    }
    tokio::join!(start::hold_for_workers(&registry, gate, min_initial_workers), memory::watch(&registry, limit),);
}

/// Writes the snapshot on disk once more. A state that is itself not whole is not worth a file.
async fn last_snapshot(place: &Place, deadline: Instant) {
    if place.registry.is_recovering() {
        return;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    recovery::write_last(&place.replica, &place.registry, &place.config, left).await;
}

fn fault(ended: Option<Result<&'static str, tokio::task::JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok(task)) => anyhow!("the task `{task}` ended unexpectedly"),
        Some(Err(error)) => anyhow!(error).context("a task failed"),
        None => anyhow!("all tasks ended unexpectedly"),
    }
}

fn access_log(log: &LogConfig) -> anyhow::Result<Option<AccessLog>> {
    if log.access_log_local_time {
        warn!("--access-log-local-time is accepted without effect: the access log gives milliseconds since 1970");
    }
    let Some(path) = &log.access_log else {
        return Ok(None);
    };
    let header = log.trace_id_header.as_deref().map(str::parse).transpose().context("--trace-id-header")?;
    let opened = AccessLog::open(path, header);
    Ok(Some(opened.with_context(|| format!("failed to open the access log {}", path.display()))?))
}

fn registry_config(limits: &Limits, recovering: bool, threads: ingest::Threads) -> RegistryConfig {
    RegistryConfig {
        zmtp: zmtp::Options {
            limits: zmtp::Limits {
                frame_bytes_max: limits.zmtp_frame_bytes_max,
                message_bytes_max: limits.zmtp_message_bytes_max,
                frames_max: limits.zmtp_frames_max,
            },
            ..zmtp::Options::default()
        },
        context: zmtp::Context::new(LOOKUPS_MAX),
        index_limits: index::Limits {
            recent_hashes_max: 65_536,
            pending_blocks_max: 65_536,
            removals_remembered_max: 1_024,
            held_blocks_max: limits.held_blocks_max,
        },
        ingest_limits: ingest::Limits::default(),
        clock: Arc::new(SystemClock),
        recovering,
        threads,
    }
}
