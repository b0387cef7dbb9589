//! The log of the process, on stderr.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// The client of the API server says every failure of every request; whoever asked says it once per state.
const QUIET: &str = "kube_client::client=off";

/// Starts logging; to be called once, before anything else logs.
///
/// # Errors
/// The filter is no list of directives, or logging was started before.
pub fn init(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    // Whoever names the same part of the client in `--log` hears it: the later of two directives holds.
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .with_context(|| format!("--log must be directives, not `{filter}`"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("{error}")).context("failed to start the log")
}
