//! What `run` and the environment tell the bench.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::service::Commands;

/// Starts the reference; `run` sets it.
const REFERENCE: &str = "KVINDEXER_REFERENCE_CMD";
/// Starts another build of ours.
const OURS: &str = "KVINDEXER_OURS_CMD";

/// All options.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) short: bool,
    /// Names of groups; all if empty.
    pub(crate) rows: Vec<String>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) commands: Commands,
}

impl Options {
    /// From the words of the command line.
    pub(crate) fn parse(words: impl Iterator<Item = String>, groups: &[&str]) -> Result<Self> {
        let (mut short, mut rows, mut json, mut out) = (false, vec![], None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--short" => short = true,
                "--rows" => rows = value()?.split(',').map(str::to_owned).collect(),
                "--json" => json = Some(PathBuf::from(value()?)),
                "--out" => out = Some(PathBuf::from(value()?)),
                // Cargo adds it.
                "--bench" => {}
                other => bail!("unknown option {other}"),
            }
        }
        for row in &rows {
            ensure!(groups.contains(&row.as_str()), "unknown rows {row}; there are {}", groups.join(", "));
        }
        Ok(Self { short, rows, json, out, commands: commands()? })
    }
}

fn commands() -> Result<Commands> {
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let reference = std::env::var(REFERENCE).unwrap_or_default();
    ensure!(
        !reference.trim().is_empty(),
        "{REFERENCE} must be a command that starts the reference; benches/compare/run installs it and sets this"
    );
    let ours = match std::env::var(OURS) {
        Ok(command) => words(&command),
        Err(_) => vec![env!("CARGO_BIN_EXE_kvindexer").to_owned(), "serve".to_owned()],
    };
    let ours = ours.into_iter().chain(["--host".to_owned(), "127.0.0.1".to_owned()]).collect();
    let logs = std::env::temp_dir();
    Ok(Commands { ours, reference: words(&reference), logs })
}
