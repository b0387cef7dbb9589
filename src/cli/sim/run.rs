//! The program `kvindexer sim`: requests at a rate, commands from stdin, over HTTP and from the schedule, answers as JSON
//! lines.

use std::collections::VecDeque;
use std::fs::File;
use std::future::pending;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::check::{self, Indexer};
use super::command::{Command, Target};
use super::control::{Asked, Control, Question};
use super::describe;
use super::fleet::Fleet;
use super::workload::{Generator, Prompt, Router, read_trace, tokens};
use super::{SimArgs, publisher, workload};
use crate::ids::InstanceIdError;

/// Time for an indexer to apply the last batch.
const CATCH_UP: Duration = Duration::from_secs(60);

/// The tasks of the socket library are not waited for longer than this.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// Questions over HTTP that wait for the loop.
const QUESTIONS_MAX: usize = 16;

/// Most prompts that a check asks about: the last distinct ones.
const CHECKED_PROMPTS_MAX: usize = 256;

/// Why a simulation ends without success.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Prefix and number make no instance id.
    #[error("the id of an instance cannot be used")]
    InstanceId(#[from] InstanceIdError),
    /// More ranks than ports.
    #[error("the ports of the ranks must be at most 65535")]
    PortRange,
    /// No such rank.
    #[error("there must be at least one worker with one rank")]
    NoRanks,
    /// A rate that is no number of requests per second.
    #[error("--rate must be 0 or more")]
    Rate,
    /// The trace cannot be opened.
    #[error("failed to open {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The trace cannot be used.
    #[error("failed to use the trace")]
    Trace(#[from] workload::Error),
    /// A rank cannot publish.
    #[error("a simulated engine failed")]
    Publisher(#[from] publisher::Error),
    /// The indexer cannot be used.
    #[error("the indexer cannot be used")]
    Indexer(#[from] check::Error),
    /// No HTTP.
    #[error("failed to take commands at {address}")]
    Control {
        /// Where.
        address: std::net::SocketAddr,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The answer cannot be written.
    #[error("failed to write")]
    Output(#[from] std::io::Error),
    /// Answers that are not the truth.
    #[error("{0} answers of the indexer are wrong")]
    Wrong(usize),
}

/// `kvindexer sim`, with reports on standard output.
///
/// # Errors
/// As [`run`].
pub fn main(args: SimArgs) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(run(args, &mut std::io::stdout()));
    runtime.shutdown_timeout(RUNTIME_END);
    outcome
}

/// Runs a simulated fleet until its requests are done (`--exit`), `quit`, or SIGINT or SIGTERM. Reports go to `out` as JSON
/// lines.
///
/// # Errors
/// Bad options, a port that is taken, an indexer that refuses, or (`--check`) one whose answers are wrong.
pub async fn run(args: SimArgs, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    if !(args.rate.is_finite() && args.rate >= 0.0) {
        return Err(Error::Rate);
    }
    // Before the first line is written: who reads that may stop the fleet at once.
    let mut stops = Stops::listen()?;
    let prompts = prompts(&args)?;
    let specs = args.rank_specs()?;
    if specs.is_empty() {
        return Err(Error::NoRanks);
    }
    let fleet = Fleet::start(specs).await?;
    let indexer = match &args.register {
        Some(url) => Some(Indexer::new(url, &args.model_name, &args.tenant_id)?),
        None => None,
    };
    if let Some(indexer) = &indexer {
        indexer.register(&fleet.status(), args.advertise.as_deref()).await?;
    }
    let router = Router::new(fleet.len());
    let mut simulation = Simulation {
        fleet,
        indexer,
        router,
        tokens_per_id: args.tokens_per_id,
        recent: VecDeque::new(),
        out,
        answer: String::new(),
    };
    simulation.report_status()?;
    let (asked, questions) = mpsc::channel(QUESTIONS_MAX);
    let control = match args.control {
        Some(address) => {
            let control = Control::bind(address).await.map_err(|source| Error::Control { address, source })?;
            simulation.write(&json!({"control": format!("http://{}", control.address())}))?;
            Some((address, control))
        }
        None => None,
    };
    let answering = async {
        match control {
            Some((address, control)) => control.serve(asked).await.map_err(|source| Error::Control { address, source }),
            None => pending().await,
        }
    };
    let outcome = tokio::select! {
        // One listener for the whole run: it keeps a signal that comes while a request is served.
        outcome = simulation.serve(&args, prompts, (questions, &mut stops)) => outcome,
        failed = answering => failed,
    };
    simulation.fleet.stop().await?;
    outcome
}

fn prompts(args: &SimArgs) -> Result<Box<dyn Iterator<Item = Prompt> + Send>, Error> {
    let prompts: Box<dyn Iterator<Item = Prompt> + Send> = match &args.trace {
        Some(path) => {
            let file = File::open(path).map_err(|source| Error::Open { path: path.clone(), source })?;
            Box::new(read_trace(BufReader::new(file))?.into_iter())
        }
        None => Box::new(Generator::new(args.seed)),
    };
    Ok(if args.requests > 0 { Box::new(prompts.take(args.requests)) } else { prompts })
}

struct Simulation<'a> {
    fleet: Fleet,
    indexer: Option<Indexer>,
    router: Router,
    tokens_per_id: u32,
    /// The last distinct prompts, oldest first.
    recent: VecDeque<Prompt>,
    out: &'a mut (dyn Write + Send),
    /// Lines since the last command began: what its sender is told.
    answer: String,
}

/// Signals that end the fleet.
struct Stops {
    interrupts: Signal,
    /// The first process of a container is not ended by a signal that it does not listen to.
    terminations: Signal,
}

impl Stops {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { interrupts: signal(SignalKind::interrupt())?, terminations: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupts.recv() => {}
            _ = self.terminations.recv() => {}
        }
    }
}

/// What the loop does after a command.
enum Next {
    Go,
    Pause,
    Quit,
}

impl Simulation<'_> {
    async fn serve(
        &mut self,
        args: &SimArgs,
        prompts: impl Iterator<Item = Prompt>,
        (mut questions, stops): (mpsc::Receiver<Asked>, &mut Stops),
    ) -> Result<(), Error> {
        let mut prompts = prompts.peekable();
        let mut lines = stdin_lines();
        let mut schedule = args.schedule.clone();
        schedule.sort_by_key(|scheduled| std::cmp::Reverse(scheduled.after));
        let start = Instant::now();
        let interval = if args.rate > 0.0 { Duration::from_secs_f64(1.0 / args.rate) } else { Duration::ZERO };
        let (mut next_request, mut paused, mut done) = (start, false, false);
        loop {
            let at = schedule.last().map(|scheduled| start + scheduled.after);
            // Stop first, then commands, then requests: a fast fleet must still listen.
            self.answer.clear();
            let mut asker = None;
            let command = tokio::select! {
                biased;
                () = stops.next() => return Ok(()),
                () = sleep_until(at.unwrap_or(start)), if at.is_some() => {
                    schedule.pop().map(|scheduled| scheduled.command)
                }
                Some(line) = lines.recv() => self.parse(&line)?,
                Some(Asked { question, answer }) = questions.recv() => {
                    asker = Some(answer);
                    self.consider(question, args)?
                }
                () = sleep_until(next_request), if !paused && prompts.peek().is_some() => {
                    if let Some(prompt) = prompts.next() {
                        self.request(prompt).await?;
                    }
                    next_request += interval;
                    None
                }
                () = std::future::ready(()), if !done && prompts.peek().is_none() && schedule.is_empty() => {
                    done = true;
                    self.write(&json!({"served_all_requests": true}))?;
                    if args.check {
                        self.check().await?;
                    }
                    args.exit.then_some(Command::Quit)
                }
            };
            let next = self.obey(command).await?;
            if let Some(asker) = asker {
                // Who has gone away does not want to know.
                let _gone = asker.send(std::mem::take(&mut self.answer));
            }
            match next {
                Some(Next::Go) => (paused, next_request) = (false, Instant::now()),
                Some(Next::Pause) => paused = true,
                Some(Next::Quit) => return Ok(()),
                None => {}
            }
        }
    }

    async fn request(&mut self, prompt: Prompt) -> Result<(), Error> {
        let position = self.router.route(&prompt);
        self.fleet.request(position, &tokens(&prompt, self.tokens_per_id)).await?;
        if !self.recent.contains(&prompt) {
            if self.recent.len() == CHECKED_PROMPTS_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(prompt);
        }
        Ok(())
    }

    /// The command in a question; one that is none is answered here.
    fn consider(&mut self, question: Question, args: &SimArgs) -> Result<Option<Command>, Error> {
        let ranks = self.fleet.status();
        let description = match question {
            Question::Command(line) => return self.parse(&line),
            Question::KvEventSources => describe::kv_event_sources(&ranks, args),
            Question::ServerInfo => describe::server_info(&ranks, args),
        };
        self.answer = description.to_string();
        Ok(None)
    }

    fn parse(&mut self, line: &str) -> Result<Option<Command>, Error> {
        match line.parse() {
            _ if line.trim().is_empty() => Ok(None),
            Ok(command) => Ok(Some(command)),
            Err(error) => self.write(&json!({"error": error.to_string()})).map(|()| None),
        }
    }

    async fn obey(&mut self, command: Option<Command>) -> Result<Option<Next>, Error> {
        match command {
            None => {}
            Some(Command::Quit) => return Ok(Some(Next::Quit)),
            Some(Command::Pause) => return Ok(Some(Next::Pause)),
            Some(Command::Resume) => return Ok(Some(Next::Go)),
            Some(Command::Status) => self.report_status()?,
            Some(Command::Check) => self.check().await?,
            Some(Command::Truth(prompt)) => {
                let truth = check::truth(&self.fleet, &tokens(&prompt, self.tokens_per_id));
                let rows: Value = truth
                    .into_iter()
                    .map(|(id, row)| (id, json!({"gpu": row.gpu, "cpu": row.cpu, "dp": row.dp})))
                    .collect::<serde_json::Map<_, _>>()
                    .into();
                self.write(&json!({"truth": rows, "prompt": prompt}))?;
            }
            Some(Command::Tokens(prompt)) => {
                self.write(&json!({"tokens": tokens(&prompt, self.tokens_per_id)}))?;
            }
            Some(Command::Request(target, prompt)) => {
                let tokens = tokens(&prompt, self.tokens_per_id);
                for position in self.positions(&target)? {
                    self.fleet.request(position, &tokens).await?;
                    self.write(&json!({"served": position, "prompt": prompt}))?;
                }
            }
            Some(Command::Restart(target)) => {
                for position in self.positions(&target)? {
                    self.fleet.restart(position).await?;
                    self.write(&json!({"restarted": position}))?;
                }
            }
            Some(Command::Clear(target)) => {
                for position in self.positions(&target)? {
                    self.fleet.clear(position).await?;
                    self.write(&json!({"cleared": position}))?;
                }
            }
            Some(Command::Gap(target, batches)) => {
                for position in self.positions(&target)? {
                    self.fleet.lose(position, batches);
                    self.write(&json!({"losing": position, "batches": batches}))?;
                }
            }
        }
        Ok(None)
    }

    /// Positions of a target; none is reported.
    fn positions(&mut self, target: &Target) -> Result<Vec<usize>, Error> {
        let positions = self.fleet.positions(&target.instance, target.rank);
        if positions.is_empty() {
            self.write(&json!({"error": format!("no such rank: {} {:?}", target.instance, target.rank.map(|r| r.0))}))?;
        }
        Ok(positions)
    }

    async fn check(&mut self) -> Result<(), Error> {
        let Some(indexer) = &self.indexer else {
            return self.write(&json!({"error": "nothing to check: --register is not given"}));
        };
        self.fleet.end_losses().await?;
        indexer.caught_up(&self.fleet.status(), CATCH_UP).await?;
        let prompts: Vec<_> =
            self.recent.iter().map(|prompt| (prompt.clone(), tokens(prompt, self.tokens_per_id))).collect();
        let differences = indexer.compare(&self.fleet, &prompts).await?;
        let wrong = differences.iter().filter(|difference| !difference.is_admitted()).count();
        for difference in differences.iter().take(10) {
            self.write(&json!({"difference": format!("{difference:?}")}))?;
        }
        self.write(&json!({"checked_prompts": prompts.len(), "wrong": wrong, "admitted": differences.len() - wrong}))?;
        if wrong > 0 { Err(Error::Wrong(wrong)) } else { Ok(()) }
    }

    fn report_status(&mut self) -> Result<(), Error> {
        let ranks: Vec<_> = self
            .fleet
            .status()
            .into_iter()
            .map(|rank| {
                json!({
                    "instance_id": rank.owner.instance, "dp_rank": rank.owner.rank, "last_seq": rank.last_seq,
                    "endpoint": format!("tcp://{}", rank.address),
                    "replay_endpoint": rank.replay_address.map(|address| format!("tcp://{address}")),
                    "device_blocks": rank.blocks.0, "host_blocks": rank.blocks.1,
                })
            })
            .collect();
        self.write(&json!({"status": ranks}))
    }

    fn write(&mut self, line: &Value) -> Result<(), Error> {
        let line = format!("{line}\n");
        self.answer.push_str(&line);
        self.out.write_all(line.as_bytes())?;
        Ok(self.out.flush()?)
    }
}

/// Lines of stdin, until it ends. A thread of its own, because reading cannot be cancelled; it ends with the process.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
