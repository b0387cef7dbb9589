//! A history as text, one line per event, with hashes renamed by their first appearance.

use std::collections::HashMap;
use std::fmt::Write as _;

use kvindexer::event::GroupInfo;
use kvindexer::ids::Namespace;

use super::batches::{Letter, Said};
use super::histories::{History, Step};

/// Names given so far.
#[derive(Default)]
struct Names(HashMap<u64, usize>);

impl Names {
    fn of(&mut self, hash: u64) -> String {
        let next = self.0.len();
        format!("h{}", self.0.entry(hash).or_insert(next))
    }

    fn list(&mut self, hashes: &[u64]) -> String {
        let names: Vec<String> = hashes.iter().map(|hash| self.of(*hash)).collect();
        format!("[{}]", names.join(" "))
    }
}

/// The whole history.
pub(crate) fn tell(history: &History) -> String {
    let mut text = format!("seed {}, block size {}, {:?}\n", history.seed, history.block_size, history.limits);
    let mut names = Names::default();
    for character in &history.owners {
        writeln!(text, "owner {} interned {} {:?}", character.owner, character.interned, character.spec)
            .expect("a text");
    }
    for (i, step) in history.steps.iter().enumerate() {
        let owner = |at: usize| &history.owners[at].owner;
        match step {
            Step::Apply { owner: at, said } => {
                for event in said {
                    writeln!(text, "{i}: {} {}", owner(*at), event_in_words(event, &mut names)).expect("a text");
                }
            }
            Step::Clear { owner: at, clear } => writeln!(text, "{i}: {} clear {clear:?}", owner(*at)).expect("a text"),
            Step::Rebuild { owner: at } => writeln!(text, "{i}: {} begin_rebuild", owner(*at)).expect("a text"),
            Step::Skip { owner: at, reason } => writeln!(text, "{i}: {} skip {reason:?}", owner(*at)).expect("a text"),
            Step::Register { owner: at, policy } => {
                writeln!(text, "{i}: {} register {policy:?}", owner(*at)).expect("a text");
            }
            Step::Unregister { owner: at } => writeln!(text, "{i}: {} unregister", owner(*at)).expect("a text"),
        }
    }
    text
}

fn event_in_words(said: &Said, names: &mut Names) -> String {
    match said {
        Said::Stored { hashes, parent, letters, block_tokens, named, tier, group } => {
            let parent = parent.map_or_else(|| "the root".to_owned(), |parent| names.of(parent));
            let hashes = names.list(hashes);
            let letters: Vec<String> = letters.iter().map(letter_in_words).collect();
            let letters = letters.join(" ");
            let rest = format!("{}{}", namespace_in_words(*named), group_in_words(*group));
            format!("store {tier:?} {hashes} below {parent}, blocks {letters} of {block_tokens} tokens{rest}")
        }
        Said::Bare { hashes, tier, group } => {
            format!("store {tier:?} {} without tokens{}", names.list(hashes), group_in_words(*group))
        }
        Said::Removed { hashes, tier, group, remaining } => {
            let remaining = remaining.as_ref().map_or(String::new(), |left| format!(" remaining {left:?}"));
            format!("remove {tier:?} {}{remaining}{}", names.list(hashes), group_in_words(*group))
        }
        other => format!("{other:?}"),
    }
}

fn letter_in_words(letter: &Letter) -> String {
    letter.image.map_or_else(|| letter.token.to_string(), |image| format!("{}i{image}", letter.token))
}

fn namespace_in_words(named: Namespace) -> String {
    let part = |name: &str, part: Option<u64>| part.map_or(String::new(), |value| format!(" {name} {value}"));
    part("lora", named.lora) + &part("salt", named.salt)
}

fn group_in_words(group: GroupInfo) -> String {
    let kind = group.kind.map_or(String::new(), |kind| format!(" {kind:?}"));
    let window = group.window_tokens.map_or(String::new(), |tokens| format!(" of {tokens} tokens"));
    group.id.map_or(String::new(), |id| format!(", group {}{kind}{window}", id.0))
}
