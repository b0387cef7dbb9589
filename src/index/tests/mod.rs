//! Rules of the index, one line per case, in a tiny notation.
//!
//! A story is a list of steps joined by `;`, each `owner words..`: `+1,2,3=ABC` stores hashes 1 to 3 for the tokens A,
//! B, C (block size 1), `+3<4=D` below hash 3, `+7=AB/2` one hash for two blocks, `+1,2` hashes without tokens, `-2`
//! removes, `clear`, `newlife`, `gone`. Further words: a medium (`cpu`, `disk`, `ext`), a group (`g1`, `g1:full`,
//! `g1:mamba`, `g1:window5`), `lora:x`, `salt:x`, `img:n` (on every block), `left:n`, `at:ms`. A step that begins with
//! `,` belongs to the batch of the step before.
//! An answer is `owner device/host/disk` for every row that is listed.

mod bytes;
mod digests;
mod evict;
mod find;
mod groups;
mod images;
mod memory;
mod rules;

use super::*;
use crate::event::{Batch, CacheKind, Event, ExtraKey, GroupInfo, Removed, SkipReason, Stored};
use crate::hash;
use crate::ids::{BlockSize, DuplicatePolicy, EngineHash, GroupId, LocalHash, Namespace, Owner, Role, Seq, Tier};
use crate::trust::{Reason, State};

/// An index and what was said to it.
struct Story {
    index: PrefixIndex,
    seq: u64,
    spec: OwnerSpec,
}

fn owner(name: &str) -> Owner {
    Owner::new(crate::ids::InstanceId::parse(name).expect("a name in a test is an id"), 0)
}

fn locals(tokens: &str, namespace: Namespace, image: Option<u64>) -> Vec<LocalHash> {
    tokens.bytes().map(|token| hash::local_hash(&u32::from(token).to_le_bytes(), image, namespace.seed())).collect()
}

impl Story {
    fn new() -> Self {
        Self::with(OwnerSpec::default(), Limits::default(), 1)
    }

    fn with(spec: OwnerSpec, limits: Limits, block_size: u32) -> Self {
        let block_size = BlockSize::new(block_size).expect("block sizes of tests are above 0");
        Self { index: PrefixIndex::new(block_size, limits), seq: 0, spec }
    }

    fn policy(policy: DuplicatePolicy) -> Self {
        Self::with(OwnerSpec { policy, ..OwnerSpec::default() }, Limits::default(), 1)
    }

    fn limited(recent: usize, pending: usize) -> Self {
        let limits = Limits {
            recent_hashes_max: recent,
            pending_blocks_max: pending,
            removals_remembered_max: 8,
            held_blocks_max: 0,
        };
        Self::with(OwnerSpec::default(), limits, 1)
    }

    fn id(&mut self, name: &str) -> OwnerId {
        let owner = owner(name);
        if let Some(id) = self.index.owner_id(&owner) {
            return id;
        }
        let role = if name.starts_with("pool") { Role::Store } else { Role::Worker };
        let id = self.index.register(&owner, OwnerSpec { role, ..self.spec }, 1);
        self.index.set_reason(id, Reason::NotConnected, false, 1);
        id
    }

    fn tell(&mut self, steps: &str) -> &mut Self {
        let mut batch: Option<(OwnerId, Batch)> = None;
        for step in steps.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            let joined = step.strip_prefix(',');
            if joined.is_none() {
                self.send(batch.take());
            }
            let mut words = joined.unwrap_or(step).split_whitespace();
            let id = self.id(words.next().expect("a step begins with an owner"));
            let words: Vec<&str> = words.collect();
            match words[..] {
                ["newlife"] => self.index.clear(id, Clear::NewLife, 2),
                ["register"] => {}
                ["gone"] => {
                    let name = joined.unwrap_or(step).split_whitespace().next().expect("checked above");
                    assert!(self.index.unregister(&owner(name)));
                }
                _ => {
                    let (_, batch) = batch.get_or_insert_with(|| (id, Batch::default()));
                    add(batch, &words, self.index.block_size().tokens());
                }
            }
        }
        self.send(batch);
        self
    }

    fn send(&mut self, batch: Option<(OwnerId, Batch)>) {
        if let Some((id, batch)) = batch {
            self.index.apply(id, &batch, ApplyContext { seq: Seq(self.seq), now_ms: 1000 + self.seq });
            self.seq += 1;
        }
    }

    fn answer(&self, tokens: &str) -> String {
        self.answer_in(tokens, Namespace::default())
    }

    fn answer_in(&self, tokens: &str, namespace: Namespace) -> String {
        rows(&self.index.find(&locals(tokens, namespace, None)))
    }

    fn reasons(&mut self, name: &str) -> Vec<&'static str> {
        let id = self.id(name);
        self.index.trust(id).reasons().map(Reason::as_str).collect()
    }

    fn skipped(&mut self, name: &str, reason: SkipReason) -> u64 {
        let id = self.id(name);
        self.index.report(id).skipped[reason as usize]
    }

    /// `tier parent>hash` of every block of a dump; `?` for waiting ones.
    fn dump(&mut self, name: &str) -> String {
        let id = self.id(name);
        let blocks = self.index.dump(id);
        let words = blocks.iter().map(|block| {
            let parent = block.parent.map_or("root".into(), |parent| parent.0.to_string());
            let mark = if block.pending { "?" } else { "" };
            format!("{} {parent}>{}{mark}", block.tier.as_str(), block.hash.0)
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

fn rows(answer: &Answer) -> String {
    let rows =
        answer.owners().map(|row| format!("{} {}/{}/{}", row.owner.instance, row.device, row.host_pinned, row.disk));
    rows.collect::<Vec<_>>().join(" | ")
}

fn add(batch: &mut Batch, words: &[&str], index_size: u32) {
    let mut tier = Tier::Device;
    let mut group = GroupInfo::default();
    let mut named = Namespace::default();
    let (mut image, mut left) = (None, None);
    for word in words {
        match word.split_once(':').unwrap_or((word, "")) {
            ("lora", name) => named.lora = hash::lora_name(name),
            ("salt", name) => named.salt = hash::salt(name),
            ("img", number) => image = number.parse().ok(),
            ("left", number) => left = Some(vec![number.parse().expect("a number of copies")]),
            ("at", number) => batch.timestamp_ms = number.parse().ok(),
            ("cpu", _) => tier = Tier::HostPinned,
            ("disk", _) => tier = Tier::Disk,
            ("ext", _) => tier = Tier::External,
            (id, kind) if id.starts_with('g') => {
                group.id = id[1..].parse().ok().map(GroupId);
                group.window_tokens = kind.strip_prefix("window").and_then(|window| window.parse().ok());
                group.kind = match kind {
                    "" => None,
                    "full" => Some(CacheKind::Full),
                    "mamba" => Some(CacheKind::Mamba),
                    _ => Some(CacheKind::SlidingWindow),
                };
            }
            _ => {}
        }
    }
    for word in words {
        let hashes = |batch: &mut Batch, list: &str| {
            let start = batch.hashes.len() as u32;
            let list = list.split(',').filter(|hash| !hash.is_empty());
            batch.hashes.extend(list.map(|hash| EngineHash(hash.parse().expect("a hash is a number"))));
            start..batch.hashes.len() as u32
        };
        if *word == "clear" {
            batch.events.push(Event::Cleared);
        } else if let Some(list) = word.strip_prefix('-') {
            let hashes = hashes(batch, list);
            batch.events.push(Event::Removed(Removed {
                hashes,
                tier,
                group,
                remaining_copies: left.clone(),
                remaining_copies_invalid: false,
            }));
        } else if let Some(what) = word.strip_prefix('+') {
            let (parent, what) =
                what.split_once('<').map_or((None, what), |(parent, what)| (parent.parse().ok(), what));
            let (list, tokens) = what.split_once('=').map_or((what, None), |(list, tokens)| (list, Some(tokens)));
            let (tokens, size) = match tokens.map(|tokens| tokens.split_once('/').unwrap_or((tokens, ""))) {
                None => ("", None),
                Some((tokens, "")) => (tokens, Some(index_size)),
                Some((tokens, size)) => (tokens, size.parse().ok()),
            };
            let hashes = hashes(batch, list);
            let bytes = batch.token_bytes.len() as u32;
            batch.token_bytes.extend(tokens.bytes().flat_map(|token| u32::from(token).to_le_bytes()));
            let (first_local, first_extra) = (batch.locals.len() as u32, batch.extras.len() as u32);
            if index_size == 1 {
                batch.locals.extend(locals(tokens, named, image));
            }
            if let Some(value) = image {
                batch.extras.extend((0..hashes.len() as u32).map(|block| ExtraKey { block, value }));
            }
            batch.events.push(Event::Stored(Stored {
                hashes,
                parent: parent.map(EngineHash),
                token_bytes: bytes..batch.token_bytes.len() as u32,
                block_size: size,
                locals: first_local..batch.locals.len() as u32,
                extras: first_extra..batch.extras.len() as u32,
                named,
                tier,
                group,
            }));
        }
    }
}

/// Tells a story and compares the answer to a query.
#[track_caller]
fn check(story: &str, query: &str, want: &str) {
    let mut told = Story::new();
    told.tell(story);
    assert_eq!(told.answer(query), want, "{story} ? {query}");
}
