//! `kvindexer verify`: asks a replica to compare one rank with what its engine replays, and shows the outcome.

use std::io::Write;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::Verdict;
use super::replica::{self, Replica};
use crate::ids::{DEFAULT_TENANT, InstanceId, InstanceIdError};

/// Command line of `kvindexer verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Address of the replica, like http://127.0.0.1:8090
    pub url: String,
    /// Model of the index
    #[arg(long, value_name = "NAME")]
    pub model_name: String,
    /// Tenant of the index
    #[arg(long, alias = "routing-group", value_name = "NAME", default_value = DEFAULT_TENANT)]
    pub tenant_id: String,
    /// The instance
    #[arg(long, value_name = "ID")]
    pub instance_id: String,
    /// Its rank
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub dp_rank: u32,
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The replica does not answer, or refuses.
    #[error(transparent)]
    Replica(#[from] replica::Error),
    /// The id.
    #[error("--instance-id")]
    InstanceId(#[from] InstanceIdError),
    /// Another answer than expected.
    #[error("the answer cannot be read")]
    Answer(#[from] serde_json::Error),
    /// The outcome cannot be written.
    #[error("failed to write")]
    Output(#[from] std::io::Error),
}

/// What is read of the answer.
#[derive(Debug, Deserialize)]
struct Answer {
    equal: Option<bool>,
    at: Option<u64>,
    replayed_from: Option<u64>,
    rebuilt_blocks: u64,
    live_blocks: u64,
    missing: Difference,
    surplus: Difference,
}

#[derive(Debug, Deserialize)]
struct Difference {
    count: u64,
    first: Vec<Block>,
}

#[derive(Debug, Deserialize)]
struct Block {
    tier: String,
    parent_hash: Option<String>,
    block_hash: String,
    tokens_hash: String,
}

/// Compares and writes the outcome to `out`.
///
/// # Errors
/// No answer, or a refusal.
pub async fn run(args: &VerifyArgs, out: &mut (dyn Write + Send)) -> Result<Verdict, Error> {
    let instance = InstanceId::parse(&args.instance_id)?;
    let body = json!({
        "model_name": args.model_name, "tenant_id": args.tenant_id, "instance_id": instance, "dp_rank": args.dp_rank,
    });
    let answer: Answer = serde_json::from_value(Replica::at(&args.url)?.verify(&body).await?)?;
    write(&format!("{instance}/{}", args.dp_rank), &answer, out)?;
    Ok(match answer.equal {
        Some(true) => Verdict::Equal,
        Some(false) => Verdict::Different,
        None => Verdict::Unknown,
    })
}

fn write(owner: &str, answer: &Answer, out: &mut dyn Write) -> std::io::Result<()> {
    let number = |seq: Option<u64>| seq.map_or_else(|| "none".to_owned(), |seq| seq.to_string());
    writeln!(
        out,
        "{owner} at batch {}: {} blocks live, {} rebuilt from a replay that begins at {}",
        number(answer.at),
        answer.live_blocks,
        answer.rebuilt_blocks,
        number(answer.replayed_from)
    )?;
    for (what, difference) in [("lacks", &answer.missing), ("has too much", &answer.surplus)] {
        if difference.count > 0 {
            writeln!(out, "  the live state {what}: {} blocks", difference.count)?;
        }
        for Block { tier, parent_hash, block_hash, tokens_hash } in &difference.first {
            let parent = parent_hash.as_deref().unwrap_or("the root");
            writeln!(out, "    {tier} block {block_hash}, content {tokens_hash}, below {parent}")?;
        }
    }
    match answer.equal {
        Some(true) => writeln!(out, "equal"),
        Some(false) => writeln!(out, "DIFFERENT"),
        None if answer.at.is_none() => writeln!(out, "unknown: no batch was applied yet"),
        None => writeln!(out, "unknown: the engine does not remember its first batches"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_names_the_blocks() {
        let block =
            json!({"tier": "device", "parent_hash": null, "block_hash": "18446744073709551615", "tokens_hash": "2"});
        let answer = json!({"complete": true, "equal": false, "at": 9, "replayed_from": 0, "rebuilt_blocks": 3,
            "live_blocks": 2, "missing": {"count": 1, "first": [block]}, "surplus": {"count": 0, "first": []}});
        let mut out = Vec::new();
        write("7/0", &serde_json::from_value(answer).unwrap(), &mut out).unwrap();
        let want = "7/0 at batch 9: 2 blocks live, 3 rebuilt from a replay that begins at 0\n  the live state lacks: 1 blocks\n    \
                    device block 18446744073709551615, content 2, below the root\nDIFFERENT\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
