//! The two services as processes: start, end, and what the kernel knows about them.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::children;
use super::http::{Client, Request};

/// Ticks of `/proc/PID/stat` in a second: fixed by the kernel's interface.
const TICKS_PER_SECOND: f64 = 100.0;
const START_MAX: Duration = Duration::from_secs(30);
const START_ATTEMPTS: usize = 3;
const POLL: Duration = Duration::from_millis(1);
/// Lines of a log that are shown when a service does not start.
const LOG_LINES: usize = 8;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The program of this project.
    Ours,
    /// The service that it is compared with.
    Reference,
}

impl Side {
    /// In the order in which samples are taken.
    pub(crate) const ABBA: [Self; 4] = [Self::Ours, Self::Reference, Self::Reference, Self::Ours];

    /// Where a service says that it may be asked.
    pub(crate) fn ready_path(self) -> &'static str {
        match self {
            Self::Ours => "/ready",
            Self::Reference => "/health",
        }
    }

    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Reference => "reference",
        }
    }
}

/// How the services are started.
#[derive(Debug, Clone)]
pub(crate) struct Commands {
    pub(crate) ours: Vec<String>,
    pub(crate) reference: Vec<String>,
    /// Folder for their logs.
    pub(crate) logs: PathBuf,
}

/// A running service; killed when dropped.
pub(crate) struct Service {
    pub(crate) side: Side,
    pub(crate) address: SocketAddr,
    pub(crate) began: Instant,
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts the process and waits for nothing.
    pub(crate) fn launch(commands: &Commands, side: Side, more: &[String]) -> Result<Self> {
        let command = match side {
            Side::Ours => &commands.ours,
            Side::Reference => &commands.reference,
        };
        let (program, arguments) = command.split_first().context("an empty command")?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let log = commands.logs.join(format!("{}-{}.log", side.name(), address.port()));
        let began = Instant::now();
        let child = Command::new(program)
            .args(arguments)
            .args(["--port", &address.port().to_string()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("failed to start {program}"))?;
        children::add(child.id());
        Ok(Self { side, address, began, child, log })
    }

    /// Starts the process, on another port if its own was taken, and waits until it may be asked.
    pub(crate) fn start(commands: &Commands, side: Side) -> Result<Self> {
        for attempt in 1.. {
            let mut service = Self::launch(commands, side, &[])?;
            match service.wait_ready(START_MAX) {
                Ok(_) => return Ok(service),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
        unreachable!("the loop ends by itself")
    }

    /// Waits until the service says that it may be asked; time since its start.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Result<Duration> {
        while !self.says_yes() {
            if self.has_ended() || self.began.elapsed() > limit {
                bail!("{} does not come up:\n{}", self.side.name(), self.last_log_lines());
            }
            std::thread::sleep(POLL);
        }
        Ok(self.began.elapsed())
    }

    /// Whether the service says that it may be asked.
    pub(crate) fn says_yes(&self) -> bool {
        let request = Request::get(self.side.ready_path());
        let answer = Client::connect(self.address).and_then(|mut client| Ok(client.call(&request)?.status));
        answer.is_ok_and(|status| status == 200)
    }

    /// Processor time used so far, user and system, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64> {
        let stat = fs::read_to_string(self.proc("stat"))?;
        let behind_name = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = behind_name.split_whitespace().collect();
        let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).context("a short stat line")?.parse::<f64>()?) };
        Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
    }

    /// Number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub(crate) fn rss(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    /// Largest resident memory since the start or [`Self::reset_peak`], in bytes.
    pub(crate) fn peak(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    /// Begins a new peak at the present size.
    pub(crate) fn reset_peak(&self) -> Result<()> {
        fs::write(self.proc("clear_refs"), "5").context("failed to reset the peak of resident memory")
    }

    /// Address as replicas name each other.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn status(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(self.proc("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.child.id()))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn last_log_lines(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail only when the process has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        children::remove(self.child.id());
        let _ = fs::remove_file(&self.log);
    }
}
