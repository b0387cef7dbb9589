//! `kvindexer diff`: whether two replicas hold the same, and where not: index, owner, and the first differing blocks.
//!
//! `digests` compares what both say of themselves; `normal` brings two copies of a stream into one form. Both are pure.

mod digests;
mod normal;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use clap::Args;

use super::Verdict;
use super::replica::{self, Replica};
use crate::ids::{IndexKey, Owner, Seq};
use crate::image::{Image, OwnerImage, StreamImage};
use crate::wire::digest::Digest;
use digests::{Finding, Name, Pair};
use normal::{Held, Normal, Paths};

/// Attempts to find both replicas at one batch.
const ATTEMPTS: usize = 20;

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// Differing blocks that are shown, of each owner and side.
const SHOWN_MAX: usize = 5;

/// Command line of `kvindexer diff`.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// Address of a replica, like http://127.0.0.1:8090
    #[arg(value_name = "A")]
    pub first: String,
    /// Address of another one
    #[arg(value_name = "B")]
    pub second: String,
    /// This model only
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// This tenant only
    #[arg(long, alias = "routing-group", value_name = "NAME")]
    pub tenant_id: Option<String>,
    /// Compare the blocks of all streams, not only of those whose digests differ
    #[arg(long)]
    pub deep: bool,
}

/// Why two replicas cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of them does not answer.
    #[error(transparent)]
    Replica(#[from] replica::Error),
    /// Both addresses lead to one process.
    #[error("both addresses lead to one replica ({0})")]
    Same(String),
    /// The outcome cannot be written.
    #[error("failed to write")]
    Output(#[from] std::io::Error),
}

impl DiffArgs {
    fn wants(&self, key: &IndexKey) -> bool {
        self.model_name.as_ref().is_none_or(|model| model == key.model.as_str())
            && self.tenant_id.as_ref().is_none_or(|tenant| tenant == key.tenant.as_str())
    }
}

/// Compares two replicas and writes what was found to `out`.
///
/// # Errors
/// A replica that does not answer, or one and the same twice.
pub async fn run(args: &DiffArgs, out: &mut (dyn Write + Send)) -> Result<Verdict, Error> {
    let (first, second) = (Replica::at(&args.first)?, Replica::at(&args.second)?);
    let (digests, pairs) = settled(args, &first, &second).await?;
    for (side, digest, replica) in [("A", &digests.0, &first), ("B", &digests.1, &second)] {
        writeln!(
            out,
            "{side}  {}  replica {}, {:?}, {} of {} owners exact, {} blocks",
            replica.url(),
            digest.replica_id,
            digest.phase,
            digest.exact_owners,
            digest.owners,
            digest.blocks
        )?;
    }
    let mut verdict = Verdict::Equal;
    for Pair { name, finding, notes } in &pairs {
        let (line, mut found) = judged(finding);
        let (key, stream) = name;
        let place = if stream.endpoint.is_empty() { "without a stream" } else { &stream.endpoint };
        writeln!(out, "model {} tenant {} instance {} {place}: {line}", key.model, key.tenant, stream.instance)?;
        for note in notes {
            writeln!(out, "  {note}")?;
        }
        let one_sided = matches!(finding, Finding::OnlyFirst | Finding::OnlySecond);
        if !one_sided && (args.deep || found != Verdict::Equal) {
            found = dig(name, found, (&first, &second), out).await?;
        }
        verdict = verdict.worse(found);
    }
    for line in digests::registrations(&digests.0, &digests.1, |key| args.wants(key)) {
        writeln!(out, "registration {line}")?;
        verdict = Verdict::Different;
    }
    writeln!(out, "{} streams: {verdict}", pairs.len())?;
    Ok(verdict)
}

/// The digests of both, asked for again while a stream moves on and no common batch is known.
async fn settled(args: &DiffArgs, first: &Replica, second: &Replica) -> Result<((Digest, Digest), Vec<Pair>), Error> {
    let mut attempts = 0;
    loop {
        let digests = tokio::try_join!(first.digest(), second.digest())?;
        if digests.0.replica_id == digests.1.replica_id {
            return Err(Error::Same(digests.0.replica_id));
        }
        let pairs = digests::compare(&digests.0, &digests.1, |key| args.wants(key));
        attempts += 1;
        // Two streams without a batch have no common one, and waiting does not change it: their blocks are compared.
        let moving = |pair: &Pair| matches!(pair.finding, Finding::Apart(first, second) if first != second);
        if attempts == ATTEMPTS || !pairs.iter().any(moving) {
            return Ok((digests, pairs));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn judged(finding: &Finding) -> (String, Verdict) {
    match finding {
        Finding::Equal(seq) => (format!("equal at batch {seq}"), Verdict::Equal),
        Finding::Different(seq) => (format!("DIFFERENT at batch {seq}"), Verdict::Different),
        Finding::Apart(first, second) => {
            let line = format!("no common batch: A at {}, B at {}", number(*first), number(*second));
            (line, Verdict::Unknown)
        }
        Finding::OnlyFirst => ("ONLY IN A".to_owned(), Verdict::Different),
        Finding::OnlySecond => ("ONLY IN B".to_owned(), Verdict::Different),
    }
}

/// Copies a stream from both, compares the copies, and writes the differences. Where both are never seen at one batch,
/// what the digests said remains.
async fn dig(
    (key, stream): &Name,
    known: Verdict,
    (first, second): (&Replica, &Replica),
    out: &mut (dyn Write + Send),
) -> Result<Verdict, Error> {
    let mut seen = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let copies = tokio::try_join!(first.streams(key, &stream.instance), second.streams(key, &stream.instance))?;
        let [ours, theirs] = [copies.0, copies.1].map(|streams| streams.into_iter().find(|copy| copy.name == *stream));
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => match apart(&ours, &theirs) {
                None => return report(&ours, &theirs, out),
                Some(why) => seen = why,
            },
            _ => "one of them has no copy of it".clone_into(&mut seen),
        }
    }
    writeln!(out, "  the blocks were not compared: {seen}")?;
    Ok(known)
}

/// Why two copies are not of one moment of the publisher; none if they are.
fn apart(ours: &StreamImage, theirs: &StreamImage) -> Option<String> {
    let [a, b] = [ours, theirs].map(|copy| copy.position.mark.map(|mark| mark.seq));
    (a != b).then(|| format!("A stood at batch {}, B at {}", number(a), number(b)))
}

fn number(seq: Option<Seq>) -> String {
    seq.map_or_else(|| "none".to_owned(), |seq| seq.to_string())
}

fn report(ours: &StreamImage, theirs: &StreamImage, out: &mut dyn Write) -> Result<Verdict, Error> {
    let mut verdict = Verdict::Equal;
    if let [Some(a), Some(b)] = [ours, theirs].map(|copy| copy.position.mark)
        && a.payload_hash != b.payload_hash
    {
        writeln!(out, "  batch {} is not the same in A and B: two lives of the publisher", a.seq)?;
        verdict = Verdict::Different;
    }
    let [mut a, mut b] = [ours, theirs].map(|copy| owners(&copy.image));
    let names: BTreeSet<_> = a.keys().chain(b.keys()).cloned().collect();
    for name in names {
        let found = write_difference(&name, a.remove(&name), b.remove(&name), out)?;
        verdict = verdict.worse(found);
    }
    Ok(verdict)
}

fn owners(image: &Image) -> BTreeMap<Owner, Normal> {
    let paths = Paths::of(image);
    let of = |owner: &OwnerImage| (owner.owner.clone(), normal::normal(image, &paths, owner));
    image.owners.iter().map(of).collect()
}

/// Writes how two states of one owner differ.
fn write_difference(
    owner: &Owner,
    first: Option<Normal>,
    second: Option<Normal>,
    out: &mut dyn Write,
) -> Result<Verdict, Error> {
    let (Some(first), Some(second)) = (&first, &second) else {
        let (side, state) = if first.is_some() { ("A", &first) } else { ("B", &second) };
        let blocks = state.as_ref().map_or(0, |state| state.held.len());
        writeln!(out, "  owner {owner}: only in {side}, {blocks} blocks")?;
        return Ok(Verdict::Different);
    };
    if first.held == second.held && first.rare == second.rare {
        writeln!(out, "  owner {owner}: {} blocks, the same", first.held.len())?;
        return Ok(Verdict::Equal);
    }
    writeln!(out, "  owner {owner}: {} blocks in A, {} in B", first.held.len(), second.held.len())?;
    for (side, here, there) in [("A", first, second), ("B", second, first)] {
        let (count, blocks) = normal::only_in(&here.held, &there.held, SHOWN_MAX);
        if count > 0 {
            writeln!(out, "    only in {side}: {count} blocks")?;
        }
        for Held { depth, path: _, local, tier, hash } in blocks {
            writeln!(out, "      {} block {hash}, content {local}, {depth} blocks from the root", tier.as_str())?;
        }
        let lines: Vec<_> = here.rare.difference(&there.rare).collect();
        for line in lines.iter().take(SHOWN_MAX) {
            writeln!(out, "    only in {side}: {line}")?;
        }
        if lines.len() > SHOWN_MAX {
            writeln!(out, "    only in {side}: {} more like these", lines.len() - SHOWN_MAX)?;
        }
    }
    Ok(Verdict::Different)
}
