//! The request trace: which content every request asks for, and which worker gets it.

use std::path::PathBuf;

use super::mix;

/// Requests of the trace.
pub(crate) const REQUESTS: usize = 12_031;
/// Different ids in it.
pub(crate) const IDS: usize = 182_790;
/// Requests that the ingest rows play: some four million stored and removed blocks.
pub(crate) const INGEST_REQUESTS: usize = 2_500;

/// First state of the chance that spreads requests.
const ROUTE_SEED: u64 = 42;

/// What cannot be read of the trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read { path: String, source: std::io::Error },
    /// A line is no request.
    #[error("line {line} of the trace: {source}")]
    Line { line: usize, source: serde_json::Error },
    /// It is another trace.
    #[error("the trace has {requests} requests and {ids} ids; expected {REQUESTS} and {IDS}")]
    Other { requests: usize, ids: usize },
}

#[derive(serde::Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

/// Ids of every request, in order of arrival.
pub(crate) struct Trace {
    pub(crate) requests: Vec<Vec<u64>>,
}

impl Trace {
    /// Reads the trace of the test data and checks its figures.
    pub(crate) fn read() -> Result<Self, Error> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces/conversation_trace.jsonl");
        let read = std::fs::read_to_string(&path);
        let text = read.map_err(|source| Error::Read { path: path.display().to_string(), source })?;
        let lines = text.lines().enumerate();
        let requests = lines
            .map(|(at, line)| {
                let parsed: Result<Line, _> = serde_json::from_str(line);
                parsed.map(|line| line.hash_ids).map_err(|source| Error::Line { line: at + 1, source })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ids = requests.iter().flatten().collect::<std::collections::HashSet<_>>().len();
        if (requests.len(), ids) != (REQUESTS, IDS) {
            return Err(Error::Other { requests: requests.len(), ids });
        }
        Ok(Self { requests })
    }
}

/// Gives requests to workers: eight of ten by content, so that prefixes are met again, the others by chance.
pub(crate) struct Router {
    workers: u64,
    chance: u64,
}

impl Router {
    /// For so many workers.
    pub(crate) fn new(workers: u64) -> Self {
        Self { workers, chance: ROUTE_SEED }
    }

    /// Worker of the next request.
    pub(crate) fn next(&mut self, ids: &[u64]) -> u64 {
        self.chance = mix(self.chance);
        if self.chance % 10 < 8 {
            let content = ids.get(1).or(ids.first()).copied().unwrap_or_default();
            mix(content) % self.workers
        } else {
            (self.chance >> 8) % self.workers
        }
    }
}
