//! Answers of both sides, compared: a bench of wrong answers measures nothing.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::workload::BLOCK_SIZE;

/// Tokens by worker (instance and rank); zeros are left out, because only our side lists them.
pub(crate) type Scores = BTreeMap<(u64, u64), u64>;

/// Differences shown in full.
const SHOWN_MAX: u64 = 5;

/// Scores above zero of an answer.
pub(crate) fn scores(body: &[u8]) -> Result<Scores> {
    let answer: Value = serde_json::from_slice(body).context("an answer that is no JSON")?;
    let mut scores = Scores::new();
    for (instance, ranks) in answer["scores"].as_object().context("an answer without scores")? {
        for (rank, tokens) in ranks.as_object().context("scores by rank")? {
            let tokens = tokens.as_u64().context("a score")?;
            if tokens > 0 {
                scores.insert((instance.parse()?, rank.parse()?), tokens);
            }
        }
    }
    Ok(scores)
}

/// The right answer where worker `w` (instance `w + 1`) holds so many leading blocks.
pub(crate) fn of_prefixes(prefixes: &[usize]) -> Scores {
    let held = prefixes.iter().zip(1..).filter(|(blocks, _)| **blocks > 0);
    held.map(|(blocks, instance)| ((instance, 0), *blocks as u64 * u64::from(BLOCK_SIZE))).collect()
}

/// What came of all comparisons.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Queries asked of both sides, whose answers must be equal.
    pub(crate) compared: u64,
    /// Among them, with different answers.
    pub(crate) different: u64,
    /// Sum of workers and of scores, in tokens, over the equal answers.
    pub(crate) workers: u64,
    pub(crate) tokens: u64,
    /// For the report.
    pub(crate) lines: Vec<String>,
}

impl Ledger {
    /// Two answers to one query.
    pub(crate) fn enter(&mut self, what: &str, ours: &Scores, theirs: &Scores) {
        self.compared += 1;
        if ours == theirs {
            self.workers += ours.len() as u64;
            self.tokens += ours.values().sum::<u64>();
            return;
        }
        self.different += 1;
        if self.different <= SHOWN_MAX {
            let differing = ours.iter().filter(|(owner, score)| theirs.get(owner) != Some(score));
            let more = theirs.iter().filter(|(owner, _)| !ours.contains_key(owner));
            let first: Vec<_> = differing.chain(more).take(4).map(|(owner, _)| owner).collect();
            let rows: Vec<String> = first
                .iter()
                .map(|owner| format!("{}:{} {:?} against {:?}", owner.0, owner.1, ours.get(owner), theirs.get(owner)))
                .collect();
            self.lines.push(format!("different: {what}: {}", rows.join(", ")));
        }
    }
}
