//! What all groups of rows share: sizes, progress, results.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::answers::Ledger;
use super::rig::Rig;
use super::service::{Commands, Side};
use super::table::Row;
use super::workload::wire::Payload;

/// Messages on the way to a service at most while it is filled: what waits in its queues would count as its memory.
const FILL_MESSAGES: usize = 64;
const FILL_POLL: Duration = Duration::from_millis(1);

/// A run.
pub(crate) struct Bench {
    pub(crate) commands: Commands,
    /// Small sizes and few samples: every kind of row, and no figure to believe.
    pub(crate) short: bool,
    pub(crate) began: Instant,
    pub(crate) rows: Vec<Row>,
    pub(crate) ledger: Ledger,
    /// Steps that did not come to an end.
    pub(crate) failures: Vec<String>,
}

/// Both services at the same time.
pub(crate) struct Pair {
    pub(crate) ours: Rig,
    pub(crate) reference: Rig,
}

impl Pair {
    /// Fresh services with so many workers each.
    pub(crate) fn start(commands: &Commands, workers: u64) -> Result<Self> {
        Ok(Self {
            ours: Rig::start(commands, Side::Ours, workers)?,
            reference: Rig::start(commands, Side::Reference, workers)?,
        })
    }

    /// One of them.
    pub(crate) fn of(&mut self, side: Side) -> &mut Rig {
        match side {
            Side::Ours => &mut self.ours,
            Side::Reference => &mut self.reference,
        }
    }

    /// Gives both the same batches, few at a time, until all are visible.
    pub(crate) fn fill(&mut self, messages: impl Iterator<Item = (u64, Payload)>) -> Result<Filled> {
        let mut filled = Filled::default();
        for (worker, payload) in messages {
            for rig in [&mut self.ours, &mut self.reference] {
                rig.fleet.send(worker, &payload)?;
            }
            filled.count(&payload);
            if filled.messages % self.ours.fleet.workers().max(FILL_MESSAGES) == 0 {
                self.settle(&mut filled)?;
            }
        }
        self.settle(&mut filled)?;
        Ok(filled)
    }

    fn settle(&mut self, filled: &mut Filled) -> Result<()> {
        self.ours.settle(FILL_POLL)?;
        self.reference.settle(FILL_POLL)?;
        filled.pairs += self.ours.fleet.workers() as u64;
        Ok(())
    }
}

/// Fills one service, few batches at a time, until all are visible.
pub(crate) fn fill_one(rig: &mut Rig, messages: impl Iterator<Item = (u64, Payload)>) -> Result<Filled> {
    let mut filled = Filled::default();
    for (worker, payload) in messages {
        rig.fleet.send(worker, &payload)?;
        filled.count(&payload);
        if filled.messages % rig.fleet.workers().max(FILL_MESSAGES) == 0 {
            rig.settle(FILL_POLL)?;
            filled.pairs += rig.fleet.workers() as u64;
        }
    }
    rig.settle(FILL_POLL)?;
    filled.pairs += rig.fleet.workers() as u64;
    Ok(filled)
}

/// What a fill has stored.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Filled {
    messages: usize,
    /// (Block, owner) pairs, sentinels included.
    pub(crate) pairs: u64,
}

impl Filled {
    fn count(&mut self, payload: &Payload) {
        self.messages += 1;
        self.pairs += u64::from(payload.stored_blocks);
    }
}

impl Bench {
    /// Progress, with the time since the start.
    pub(crate) fn say(&self, text: &str) {
        let elapsed = self.began.elapsed().as_secs();
        // Nobody listens to stderr: the table goes elsewhere.
        let _ = writeln!(std::io::stderr(), "[{:2}:{:02}] {text}", elapsed / 60, elapsed % 60);
    }

    /// A row is complete.
    pub(crate) fn push(&mut self, row: Row) {
        self.say(&format!("  {}", row.line()));
        self.rows.push(row);
    }

    /// One of two sizes.
    pub(crate) fn size<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// Orders of the two sides for rows that need fresh services for every sample: A B, B A, and so on.
    pub(crate) fn halves(&self, rounds: usize) -> Vec<[Side; 2]> {
        let [a, b, ..] = Side::ABBA;
        let round = [[a, b], [b, a]];
        round.into_iter().cycle().take(self.size(2 * rounds, 1)).collect()
    }

    /// Asks both sides the same queries by hash and enters the answers into the ledger.
    pub(crate) fn compare(&mut self, pair: &mut Pair, what: &str, queries: &[Vec<u64>]) -> Result<()> {
        let (mut workers, mut tokens) = (0, 0);
        for (at, locals) in queries.iter().enumerate() {
            let query = super::rig::hash_query(locals);
            let (ours, theirs) = (pair.ours.ask(&query)?, pair.reference.ask(&query)?);
            workers += ours.len();
            tokens += ours.values().sum::<u64>();
            self.ledger.enter(&format!("{what}, query {at}"), &ours, &theirs);
        }
        ensure!(workers > 0, "{what}: nothing matched, so nothing was compared");
        self.say(&format!("  answers compared: {what}: {} queries, {workers} workers, {tokens} tokens", queries.len()));
        Ok(())
    }
}
