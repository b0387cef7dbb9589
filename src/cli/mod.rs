//! The commands of the program: what stands behind `kvindexer <command>`. All but `serve` use the service from outside,
//! over HTTP and real sockets; `demo` starts one in the same process.

pub mod crd;
pub mod demo;
pub mod diff;
pub mod digest;
pub mod replica;
pub mod sim;
pub mod verify;

use std::ffi::OsString;
use std::fmt;
use std::io::Write;

use clap::{Parser, Subcommand};

use crate::config::ServeArgs;

/// Exact, live index of every KV-cache block in an LLM inference fleet
#[derive(Debug, Parser)]
#[command(
    name = "kvindexer",
    version,
    about,
    after_help = "Without a command, `serve` runs: `kvindexer --port 8090` is \
    `kvindexer serve --port 8090`. Its options: `kvindexer serve --help`."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the indexer (the default)
    Serve(Box<ServeArgs>),
    /// Run a fleet of simulated engines with real sockets
    #[command(after_help = SIM_HELP)]
    Sim(Box<sim::SimArgs>),
    /// Run an indexer and a few simulated engines for some seconds, and show what it answers
    Demo(demo::DemoArgs),
    /// Print the CustomResourceDefinition of IndexerWorkers
    Crd,
    /// Compare two replicas: where they differ, name index, owner and the first differing blocks
    #[command(after_help = EXIT_HELP)]
    Diff(diff::DiffArgs),
    /// Compare a rank's live state with what its engine replays from the first batch on
    #[command(after_help = EXIT_HELP)]
    Verify(verify::VerifyArgs),
    /// Show how far a replica is, and the digests of its streams
    Digest(digest::DigestArgs),
}

const EXIT_HELP: &str = "Exit code: 0 equal, 1 different, 2 not compared.";

/// Outcome of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The same.
    Equal,
    /// Nobody knows.
    Unknown,
    /// Not the same.
    Different,
}

impl Verdict {
    /// Of two parts of one comparison: what holds for the whole.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        self.max(other)
    }

    /// As `diff` has it: 0 equal, 1 different, 2 trouble.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Equal => 0,
            Self::Different => 1,
            Self::Unknown => 2,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "equal",
            Self::Unknown => "not all could be compared",
            Self::Different => "DIFFERENT",
        })
    }
}

/// Why a command that asks replicas has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of `diff`.
    #[error(transparent)]
    Diff(#[from] diff::Error),
    /// Of `verify`.
    #[error(transparent)]
    Verify(#[from] verify::Error),
    /// Of `digest`.
    #[error(transparent)]
    Replica(#[from] replica::Error),
    /// No runtime, or no output.
    #[error("failed to start or to write")]
    Io(#[from] std::io::Error),
}

/// A command that asks replicas.
#[derive(Debug, Clone)]
pub enum Question {
    /// `diff`.
    Diff(diff::DiffArgs),
    /// `verify`.
    Verify(verify::VerifyArgs),
    /// `digest`.
    Digest(digest::DigestArgs),
}

/// Asks, and writes the outcome to `out`.
///
/// # Errors
/// No answer.
pub fn ask(question: &Question, out: &mut (dyn Write + Send)) -> Result<Verdict, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Ok(match question {
            Question::Diff(args) => diff::run(args, out).await?,
            Question::Verify(args) => verify::run(args, out).await?,
            Question::Digest(args) => {
                digest::run(args, out).await??;
                Verdict::Equal
            }
        })
    })
}

const SIM_HELP: &str = "\
Lines on stdin, and bodies of `POST /command` at --control, are commands; answers are JSON lines on stdout, and in the response:
  restart ID[:RANK]          the engine loses its cache and begins at number 0
  gap ID[:RANK] [BATCHES]    the next batches (default 1) are lost on the way
  clear ID[:RANK]            the engine empties its cache and says so
  request ID[:RANK] CONTENT..
                             serves the prompt with these content ids
  pause, resume              requests stop and go on
  truth ID..                 what each instance holds of the prompt with these content ids, in tokens
  tokens ID..                the tokens of that prompt
  status                     addresses, numbers of the last batches, sizes
  check                      compares the indexer's answers with the truth (needs --register)
  quit";

impl Cli {
    /// Reads a command line. Help, version and mistakes end the process here, mistakes with exit code 2.
    #[must_use]
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Self {
        Self::parse_from(with_default_command(args.into_iter().collect()))
    }

    /// The command.
    #[must_use]
    pub fn into_command(self) -> Command {
        self.command
    }
}

/// Puts `serve` in front of options that stand without a command, as in the command line of the reference service.
fn with_default_command(mut args: Vec<OsString>) -> Vec<OsString> {
    let first = args.get(1).map(|arg| arg.to_string_lossy().into_owned());
    let is_top_level = |first: &str| {
        let names = ["help", "-h", "--help", "-V", "--version"];
        // A bare word is meant as a command: a wrong one must not be read as an argument of `serve`.
        names.contains(&first) || !first.starts_with('-') || first.is_empty()
    };
    if !first.as_deref().is_some_and(is_top_level) {
        args.insert(args.len().min(1), "serve".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_without_a_command_are_those_of_serve() {
        for (line, want) in [
            ("kvindexer", "kvindexer serve"),
            ("kvindexer --port 1", "kvindexer serve --port 1"),
            ("kvindexer serve --port 1", "kvindexer serve --port 1"),
            ("kvindexer --version", "kvindexer --version"),
            ("kvindexer sim", "kvindexer sim"),
            ("kvindexer deom", "kvindexer deom"),
        ] {
            let args = line.split(' ').map(OsString::from).collect();
            assert_eq!(with_default_command(args), want.split(' ').map(OsString::from).collect::<Vec<_>>(), "{line}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
