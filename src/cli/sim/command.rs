//! What a simulated fleet is told while it runs: lines on stdin or over HTTP, and options with a time.
//!
//! A target is an instance id, or `id:rank` for one rank. Pure.

use std::str::FromStr;
use std::time::Duration;

use crate::ids::{DpRank, InstanceId};

/// Ranks that a command is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The instance.
    pub instance: InstanceId,
    /// One rank, or all.
    pub rank: Option<DpRank>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `restart TARGET`: the engine loses its cache and begins at number 0.
    Restart(Target),
    /// `gap TARGET [BATCHES]`: the next batches are lost on the way.
    Gap(Target, u64),
    /// `clear TARGET`: the engine empties its cache and says so.
    Clear(Target),
    /// `request TARGET ID..`: serves one prompt, on every rank of the target.
    Request(Target, Vec<u64>),
    /// `pause`: no more requests.
    Pause,
    /// `resume`: requests go on.
    Resume,
    /// `truth ID..`: what each rank holds of a prompt, in tokens.
    Truth(Vec<u64>),
    /// `tokens ID..`: the tokens of a prompt.
    Tokens(Vec<u64>),
    /// `status`: addresses, numbers and sizes.
    Status,
    /// `check`: compares the indexer with the truth.
    Check,
    /// `quit`: ends the fleet.
    Quit,
}

/// A command at a time after the start: `SECONDS=COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    /// When, counted from the start.
    pub after: Duration,
    /// What.
    pub command: Command,
}

/// Why a line is no command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such word.
    #[error("unknown command `{0}`: restart, gap, clear, request, pause, resume, truth, tokens, status, check or quit")]
    Unknown(String),
    /// Too many words, too few, or of the wrong kind.
    #[error("must be `{0}`")]
    Form(&'static str),
}

impl FromStr for Command {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let mut words = line.split_whitespace();
        let word = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        match (word, &rest[..]) {
            ("restart", [name]) => target(name).map(Self::Restart).ok_or(Error::Form("restart ID[:RANK]")),
            ("restart", _) => Err(Error::Form("restart ID[:RANK]")),
            ("gap", [name]) => target(name).map(|target| Self::Gap(target, 1)).ok_or(Error::Form(GAP)),
            ("gap", [name, batches]) => {
                target(name).zip(batches.parse().ok()).map(|(target, n)| Self::Gap(target, n)).ok_or(Error::Form(GAP))
            }
            ("gap", _) => Err(Error::Form(GAP)),
            ("clear", [name]) => target(name).map(Self::Clear).ok_or(Error::Form("clear ID[:RANK]")),
            ("clear", _) => Err(Error::Form("clear ID[:RANK]")),
            ("pause", []) => Ok(Self::Pause),
            ("resume", []) => Ok(Self::Resume),
            ("status", []) => Ok(Self::Status),
            ("check", []) => Ok(Self::Check),
            ("quit", []) => Ok(Self::Quit),
            ("request", [name, prompt @ ..]) => target(name)
                .zip(ids(prompt))
                .map(|(target, ids)| Self::Request(target, ids))
                .ok_or(Error::Form(REQUEST)),
            ("request", []) => Err(Error::Form(REQUEST)),
            ("truth", prompt) => ids(prompt).map(Self::Truth).ok_or(Error::Form("truth ID..")),
            ("tokens", prompt) => ids(prompt).map(Self::Tokens).ok_or(Error::Form("tokens ID..")),
            _ => Err(Error::Unknown(word.to_owned())),
        }
    }
}

const GAP: &str = "gap ID[:RANK] [BATCHES]";
const REQUEST: &str = "request ID[:RANK] CONTENT..";

/// Content ids of a prompt.
fn ids(words: &[&str]) -> Option<Vec<u64>> {
    words.iter().map(|id| id.parse().ok()).collect()
}

impl FromStr for Scheduled {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let form = Error::Form("SECONDS=COMMAND");
        let (seconds, command) = text.split_once('=').ok_or(form.clone())?;
        let seconds: f64 = seconds.trim().parse().map_err(|_| form.clone())?;
        let after = Duration::try_from_secs_f64(seconds).map_err(|_| form)?;
        Ok(Self { after, command: command.parse()? })
    }
}

/// `id`, or `id:rank` where the rank is a number.
fn target(name: &str) -> Option<Target> {
    let (id, rank) = match name.rsplit_once(':') {
        Some((id, rank)) => (id, Some(DpRank(rank.parse().ok()?))),
        None => (name, None),
    };
    Some(Target { instance: InstanceId::parse(id).ok()?, rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands() {
        let one = |id: u64, rank| Target { instance: id.into(), rank };
        for (line, want) in [
            ("restart 1", Ok(Command::Restart(one(1, None)))),
            ("gap 1:2", Ok(Command::Gap(one(1, Some(DpRank(2))), 1))),
            ("gap 1 5", Ok(Command::Gap(one(1, None), 5))),
            (" clear  2 ", Ok(Command::Clear(one(2, None)))),
            ("truth 0 17", Ok(Command::Truth(vec![0, 17]))),
            ("truth", Ok(Command::Truth(vec![]))),
            ("tokens 3", Ok(Command::Tokens(vec![3]))),
            ("request 1:2 7 8", Ok(Command::Request(one(1, Some(DpRank(2))), vec![7, 8]))),
            ("request", Err(Error::Form("request ID[:RANK] CONTENT.."))),
            ("request 1 x", Err(Error::Form("request ID[:RANK] CONTENT.."))),
            ("quit", Ok(Command::Quit)),
            ("gap 1 x", Err(Error::Form("gap ID[:RANK] [BATCHES]"))),
            ("restart", Err(Error::Form("restart ID[:RANK]"))),
            ("restart a:b", Err(Error::Form("restart ID[:RANK]"))),
            ("quit now", Err(Error::Unknown("quit".into()))),
            ("fly", Err(Error::Unknown("fly".into()))),
        ] {
            assert_eq!(line.parse::<Command>(), want, "{line}");
        }
        let scheduled: Scheduled = "1.5=restart 7".parse().unwrap();
        assert_eq!(
            scheduled,
            Scheduled { after: Duration::from_millis(1500), command: Command::Restart(one(7, None)) }
        );
        assert_eq!("-1=quit".parse::<Scheduled>(), Err(Error::Form("SECONDS=COMMAND")));
    }
}
