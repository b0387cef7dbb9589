//! Prompts for a simulated fleet: a recorded request trace, or a generator with a seed.
//!
//! Pure apart from the reader that it is given. A prompt is a list of content ids; each id stands for a fixed run of tokens
//! that a formula makes, so that equal ids in front mean an equal prefix. Which worker serves a prompt is decided by a
//! formula too: most follow their content, some go anywhere.

use std::io::BufRead;

use serde::Deserialize;

/// Tokens of one content id.
pub const TOKENS_PER_ID: u32 = 512;

/// Tokens are below this; the size of a usual vocabulary.
const VOCABULARY: u64 = 128_000;

/// Content ids of one prompt.
pub type Prompt = Vec<u64>;

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("failed to read the trace")]
    Io(#[from] std::io::Error),
    /// A line is no request.
    #[error("line {line} of the trace is no request")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct TraceLine {
    hash_ids: Prompt,
}

/// Reads a trace: one JSON object per line, of which `hash_ids` counts.
///
/// # Errors
/// Unreadable file, or a line of another form.
pub fn read_trace(reader: impl BufRead) -> Result<Vec<Prompt>, Error> {
    let mut prompts = vec![];
    for (index, line) in reader.lines().enumerate() {
        let line = line?;
        if !line.trim().is_empty() {
            let request: TraceLine =
                serde_json::from_str(&line).map_err(|source| Error::Line { line: index + 1, source })?;
            prompts.push(request.hash_ids);
        }
    }
    Ok(prompts)
}

/// Conversations that grow turn by turn below shared system prompts. Endless; equal seeds give equal prompts.
#[derive(Debug)]
pub struct Generator {
    random: fastrand::Rng,
    conversations: Vec<Prompt>,
    next_id: u64,
}

impl Generator {
    /// Conversations open at a time.
    const CONVERSATIONS: usize = 24;
    /// A conversation ends when it has as many ids as this.
    const IDS_MAX: usize = 12;
    /// System prompts; each starts a conversation as its first id.
    const SYSTEM_PROMPTS: u64 = 4;

    /// A generator of one seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, conversations: vec![], next_id: Self::SYSTEM_PROMPTS }
    }
}

impl Iterator for Generator {
    type Item = Prompt;

    fn next(&mut self) -> Option<Prompt> {
        if self.conversations.len() < Self::CONVERSATIONS {
            self.conversations.push(vec![self.random.u64(0..Self::SYSTEM_PROMPTS)]);
        }
        let chosen = self.random.usize(0..self.conversations.len());
        let conversation = &mut self.conversations[chosen];
        for _ in 0..self.random.usize(1..=2) {
            conversation.push(self.next_id);
            self.next_id += 1;
        }
        let prompt = conversation.clone();
        if prompt.len() >= Self::IDS_MAX {
            self.conversations.swap_remove(chosen);
        }
        Some(prompt)
    }
}

/// Tokens of a prompt.
#[must_use]
pub fn tokens(prompt: &[u64], tokens_per_id: u32) -> Vec<u32> {
    prompt.iter().flat_map(|id| (0..tokens_per_id).map(move |position| token(*id, position))).collect()
}

fn token(id: u64, position: u32) -> u32 {
    let token = mix((id << 20) ^ u64::from(position)) % VOCABULARY;
    u32::try_from(token).expect("the vocabulary is below 2^32")
}

/// Picks the worker of each prompt: eight of ten by content (the second id, or the first), the others anywhere.
#[derive(Debug)]
pub struct Router {
    state: u64,
    workers: u64,
}

impl Router {
    /// A router over `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { state: 42, workers: workers.max(1) as u64 }
    }

    /// Worker of the next prompt.
    pub fn route(&mut self, prompt: &[u64]) -> usize {
        self.state = mix(self.state);
        let by_content = prompt.get(1).or(prompt.first()).copied();
        let worker = match by_content {
            Some(id) if self.state % 10 < 8 => mix(id) % self.workers,
            _ => (self.state >> 8) % self.workers,
        };
        usize::try_from(worker).expect("the number of workers is a usize")
    }
}

/// splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        // The first outputs of the published generator for seed 0.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn equal_ids_make_equal_tokens_at_any_place() {
        let (a, b) = (tokens(&[1, 2], 32), tokens(&[1, 3], 32));
        assert_eq!((a.len(), &a[..32]), (64, &b[..32]));
        assert_ne!(a[32..], b[32..]);
        assert_eq!(tokens(&[2], 32), a[32..]);
    }

    #[test]
    fn traces_are_read_line_by_line() {
        let trace = "{\"timestamp\": 0, \"hash_ids\": [0, 1]}\n\n{\"hash_ids\": []}\n";
        assert_eq!(read_trace(trace.as_bytes()).unwrap(), [vec![0, 1], vec![]]);
        let error = read_trace("{\"hash_ids\": [0]}\n{}\n".as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "line 2 of the trace is no request");
    }

    #[test]
    fn equal_seeds_give_equal_prompts_that_share_prefixes() {
        let prompts: Vec<_> = Generator::new(7).take(300).collect();
        assert_eq!(prompts, Generator::new(7).take(300).collect::<Vec<_>>());
        assert_ne!(prompts, Generator::new(8).take(300).collect::<Vec<_>>());
        let grown = prompts
            .iter()
            .enumerate()
            .filter(|(i, prompt)| prompts[..*i].iter().any(|earlier| earlier.len() > 1 && prompt.starts_with(earlier)));
        assert!(grown.count() > 150);
    }

    #[test]
    fn most_prompts_follow_their_content() {
        let mut router = Router::new(4);
        let home = usize::try_from(mix(77) % 4).unwrap();
        let at_home = (0..1000).filter(|_| router.route(&[0, 77]) == home).count();
        assert!((800..900).contains(&at_home), "{at_home}");
    }
}
