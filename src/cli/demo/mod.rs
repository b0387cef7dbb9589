//! `kvindexer demo`: an indexer and four simulated engine ranks in one process, on loopback ports that the system chooses.
//!
//! A short run with an engine's restart, a lost batch and an emptied cache; then every prompt is asked over HTTP, and each
//! answer is compared with what the engines themselves hold. Any difference ends it with an error.

mod table;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use clap::{Args, Parser};

use super::sim::check::{self, Indexer};
use super::sim::encode::{Encoder, EngineKind, EventForm};
use super::sim::engine::EngineSpec;
use super::sim::fleet::{Fleet, RankSpec};
use super::sim::publisher::{self, PublisherSpec};
use super::sim::workload::{Generator, Prompt, Router, tokens};
use crate::app::{App, Signals, init_log};
use crate::config::{self, Config, LogFormat, ServeArgs};
use crate::ids::{DEFAULT_TENANT, DpRank, InstanceId, Owner};
use table::{Row, Table};

/// Model name of the demonstration.
const MODEL: &str = "demo";

/// Tokens per block.
const BLOCK_SIZE: usize = 16;

/// Tokens of one content id: small, so that prompts fit a screen.
const TOKENS_PER_ID: u32 = 64;

/// Time for anything that is awaited; usually it takes milliseconds.
const WAIT: Duration = Duration::from_secs(30);

/// Prompts in the table.
const ROWS: usize = 10;

/// The tasks of the socket library are not waited for longer than this.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// Command line of `kvindexer demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Keep serving after the table, until Ctrl-C
    #[arg(long)]
    pub keep: bool,
    /// Requests to serve
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub requests: u32,
    /// Requests per second
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Seed of the prompts
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Port of the HTTP API; 0 lets the system choose
    #[arg(long, default_value_t = 0)]
    pub port: u16,
}

/// Why a demonstration ends without success.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The indexer could not start, or failed.
    #[error("the indexer failed: {0:#}")]
    App(anyhow::Error),
    /// Its options.
    #[error("the options of the indexer cannot be used")]
    Config(#[from] config::Error),
    /// A simulated engine failed.
    #[error("a simulated engine failed")]
    Publisher(#[from] publisher::Error),
    /// The API failed.
    #[error("the API of the indexer failed")]
    Check(#[from] check::Error),
    /// The table cannot be written.
    #[error("failed to write")]
    Output(#[from] std::io::Error),
    /// Answers that are not the truth.
    #[error("{0} answers of the indexer are WRONG")]
    Wrong(usize),
}

/// `kvindexer demo`, with the table on standard output.
///
/// # Errors
/// Anything that did not work, and any answer that is not what the engines hold.
pub fn main(args: DemoArgs) -> Result<(), Error> {
    init_log("error", LogFormat::Text).map_err(Error::App)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let outcome = runtime.block_on(run(&args, &mut std::io::stdout()));
    runtime.shutdown_timeout(RUNTIME_END);
    outcome
}

/// Runs the demonstration and writes its table to `out`.
///
/// # Errors
/// As [`main`].
pub async fn run(args: &DemoArgs, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let mut signals = Signals::listen().map_err(Error::App)?;
    let app = App::start(indexer_config(args.port)?).await.map_err(Error::App)?;
    let base = format!("http://{}", app.address());
    let fleet = Fleet::start(engines()).await?;
    let outcome = tokio::select! {
        biased;
        _ = signals.next() => Ok(None),
        outcome = show(args, &base, fleet, out) => outcome.map(Some),
    };
    if args.keep && matches!(outcome, Ok(Some(_))) {
        writeln!(out, "\nServing on {base} until Ctrl-C.")?;
        out.flush()?;
        signals.next().await;
    }
    // The indexer first: engines that end under it would look like a fault.
    let stopped = app.stop().await.map_err(Error::App);
    if let Some(fleet) = outcome? {
        fleet.stop().await?;
    }
    stopped
}

/// Options of the indexer, read like a command line so that every default is that of `serve`.
fn indexer_config(port: u16) -> Result<Config, config::Error> {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }
    let mut config = Config::try_from(Line::parse_from(["demo"]).serve)?;
    // The environment is for `serve`: of it nothing but the limits holds here.
    (config.host, config.port) = (IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    (config.workers, config.min_initial_workers) = (None, 0);
    config.replicas.peers.clear();
    (config.replicas.peer_service, config.replicas.disk) = (None, None);
    config.replicas.forward_registrations = false;
    config.log.access_log = None;
    Ok(config)
}

/// Two vLLM instances of different ages, one of which offloads to host memory, and an SGLang instance with two ranks.
/// The first has no fixed hash seed: equal content has other hashes there.
fn engines() -> Vec<RankSpec> {
    let rank = |owner: Owner, kind, form, host_blocks, chain_seed| RankSpec {
        engine: EngineSpec {
            block_size: BLOCK_SIZE,
            device_blocks: 600,
            host_blocks,
            stored_blocks_max: 512,
            chain_seed,
        },
        encoder: Encoder { kind, form, block_size: BLOCK_SIZE, rank: owner.rank.0 },
        publisher: PublisherSpec {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            replay_port: Some(0),
            replay_batches: 10_000,
            replay_topic: form == EventForm::Map,
            topic: "kv-events".to_owned(),
        },
        owner,
    };
    let sglang = InstanceId::Text("sglang-0".into());
    vec![
        rank(Owner::new(1, 0), EngineKind::Vllm, EventForm::Array, 0, Some(7)),
        rank(Owner::new(2, 0), EngineKind::Vllm, EventForm::Map, 600, None),
        rank(Owner::new(sglang.clone(), 0), EngineKind::Sglang, EventForm::Array, 600, None),
        rank(Owner::new(sglang, 1), EngineKind::Sglang, EventForm::Array, 600, None),
    ]
}

async fn show(args: &DemoArgs, base: &str, fleet: Fleet, out: &mut (dyn Write + Send)) -> Result<Fleet, Error> {
    let indexer = Indexer::new(base, MODEL, DEFAULT_TENANT)?;
    let mut fleet = fleet;
    writeln!(out, "Indexer at {base}, {} simulated engine ranks, {} requests ..", fleet.len(), args.requests)?;
    out.flush()?;
    indexer.register(&fleet.status(), None).await?;
    indexer.connected(&fleet.status(), WAIT).await?;
    let (prompts, happened) = serve_requests(args, &mut fleet).await?;
    let start = Instant::now();
    indexer.caught_up(&fleet.status(), WAIT).await?;
    let waited = start.elapsed();

    let asked: Vec<_> = prompts.into_iter().map(|prompt| (tokens(&prompt, TOKENS_PER_ID), prompt)).collect();
    let mut times = vec![];
    let mut rows = vec![];
    let mut differences = vec![];
    for (tokens, prompt) in &asked {
        let start = Instant::now();
        let answer = indexer.query(tokens).await?;
        let took = start.elapsed();
        times.push(took);
        differences.extend(check::differences(prompt, &check::truth(&fleet, tokens), &answer));
        rows.push(Row { prompt: prompt.clone(), tokens: tokens.len(), instances: answer.instances, took });
    }
    let step = rows.len().div_ceil(ROWS).max(1);
    let rows = rows.into_iter().step_by(step).collect();
    write!(out, "\n{}", Table { rows, instances: check::truth(&fleet, &[]).into_keys().collect() })?;
    times.sort();
    writeln!(
        out,
        "\n{happened}\nThe last batch was applied {waited:.1?} after the last request.\n\
         {} prompts asked, {} answers compared with the engines' own caches, {} wrong.\n\
         Time of a query over HTTP: {:.0?} at the median, {:.0?} at most.",
        asked.len(),
        asked.len() * check::truth(&fleet, &[]).len(),
        differences.len(),
        times.get(times.len() / 2).copied().unwrap_or_default(),
        times.last().copied().unwrap_or_default(),
    )?;
    try_by_hand(out, base, args.keep)?;
    for difference in differences.iter().take(5) {
        writeln!(out, "WRONG: {difference:?}")?;
    }
    if differences.is_empty() { Ok(fleet) } else { Err(Error::Wrong(differences.len())) }
}

/// Serves the requests; returns the distinct prompts and a sentence about what happened on the way.
async fn serve_requests(args: &DemoArgs, fleet: &mut Fleet) -> Result<(Vec<Prompt>, String), Error> {
    let mut router = Router::new(fleet.len());
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / args.rate);
    let mut distinct = BTreeMap::new();
    let count = args.requests as usize;
    let at = |instance: InstanceId, rank| fleet.positions(&instance, Some(DpRank(rank)))[0];
    let (restarted, lossy, cleared) = (at(1.into(), 0), at(2.into(), 0), at(InstanceId::Text("sglang-0".into()), 1));
    for (number, prompt) in Generator::new(args.seed).take(count).enumerate() {
        ticks.tick().await;
        if number == count / 4 {
            fleet.lose(lossy, 3);
        }
        if number == count / 2 {
            fleet.restart(restarted).await?;
        }
        if number == count * 3 / 4 {
            fleet.clear(cleared).await?;
        }
        let position = router.route(&prompt);
        fleet.request(position, &tokens(&prompt, TOKENS_PER_ID)).await?;
        distinct.entry(prompt).or_insert(number);
    }
    fleet.end_losses().await?;
    let mut prompts: Vec<_> = distinct.into_iter().collect();
    prompts.sort_by_key(|(_, number)| *number);
    let happened = "On the way, engine 1 was restarted, three batches of engine 2 were lost and replayed, and sglang-0/1 \
        emptied its cache.";
    Ok((prompts.into_iter().map(|(prompt, _)| prompt).collect(), happened.to_owned()))
}

/// Lines to copy into a shell.
fn try_by_hand(out: &mut dyn Write, base: &str, keep: bool) -> std::io::Result<()> {
    let first_block = &tokens(&[0], TOKENS_PER_ID)[..BLOCK_SIZE];
    let hint = if keep { "Try by hand" } else { "Try by hand (with `kvindexer demo --keep`)" };
    writeln!(out, "\n{hint}:\n  {base}/\n  curl {base}/workers")?;
    writeln!(
        out,
        "  curl {base}/query -H 'Content-Type: application/json' \\\n    -d '{{\"model_name\":\"{MODEL}\",\"token_ids\":{first_block:?}}}'",
    )
}
