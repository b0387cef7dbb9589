//! `kvindexer digest`: what a replica says of itself, as a table.

use std::io::Write;

use clap::Args;

use super::replica::{Error, Replica};
use crate::wire::digest::Digest;

/// Command line of `kvindexer digest`.
#[derive(Debug, Clone, Args)]
pub struct DigestArgs {
    /// Address of the replica, like http://127.0.0.1:8090
    pub url: String,
}

/// Asks a replica and writes a line per stream.
///
/// # Errors
/// No answer, or a form that cannot be read.
pub async fn run(args: &DigestArgs, out: &mut (dyn Write + Send)) -> Result<std::io::Result<()>, Error> {
    let digest = Replica::at(&args.url)?.digest().await?;
    Ok(write(&digest, out))
}

fn write(digest: &Digest, out: &mut dyn Write) -> std::io::Result<()> {
    let Digest { replica_id, version, phase, owners, exact_owners, blocks, streams, .. } = digest;
    writeln!(
        out,
        "replica {replica_id}, version {version}, {phase:?}: {exact_owners} of {owners} owners exact, {blocks} blocks"
    )?;
    for stream in streams {
        let current = stream
            .current
            .as_ref()
            .map_or_else(|| "no batch yet".to_owned(), |sum| format!("batch {} digest {}", sum.seq, sum.digest));
        let states: Vec<_> = stream.ranks.iter().map(|rank| format!("{}:{}", rank.dp_rank, rank.state)).collect();
        writeln!(
            out,
            "model {} tenant {} instance {} at {}: {current}, {}",
            stream.key.model,
            stream.key.tenant,
            stream.instance_id,
            stream.endpoint,
            states.join(" ")
        )?;
    }
    Ok(())
}
