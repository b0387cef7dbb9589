//! Compares the index with the model: answers, dump, report, trust.

use std::collections::BTreeMap;

use kvindexer::hash;
use kvindexer::ids::{EngineHash, LocalHash, Owner, Tier};
use kvindexer::index::{self, DumpBlock, PrefixIndex};
use kvindexer::trust::Trust;

use super::walk::{Answer, DumpRow, Row};
use super::{INDEX_REASONS, Model, OwnerModel};

/// What differs, in words.
pub(crate) type Difference = String;

/// Compares everything that both can tell; `queries` are asked of both.
pub(crate) fn compare(model: &Model, index: &PrefixIndex, queries: &[Vec<LocalHash>]) -> Result<(), Difference> {
    let mut known = index.owners();
    known.sort();
    same("owners", &known, &model.owners.keys().cloned().collect::<Vec<_>>())?;
    for (owner, entry) in &model.owners {
        owner_state(owner, entry, index)?;
    }
    if !model.owners.values().any(OwnerModel::is_kindless_hybrid) {
        let held: u64 = model.owners.values().map(|entry| entry.blocks().iter().sum::<u64>()).sum();
        same("stats.held_blocks", &index.stats().held_blocks, &held)?;
    }
    same("stats.owners", &index.stats().owners, &(model.owners.len() as u64))?;
    for query in queries {
        answers(model, index, query)?;
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: impl std::fmt::Display, index: &T, model: &T) -> Result<(), Difference> {
    if index == model { Ok(()) } else { Err(format!("{what}: index {index:?}, model {model:?}")) }
}

fn owner_state(owner: &Owner, entry: &OwnerModel, index: &PrefixIndex) -> Result<(), Difference> {
    let id = index.owner_id(owner).ok_or_else(|| format!("{owner}: unknown to the index"))?;
    let report = index.report(id);
    same(format!("{owner} registered"), &report.registered, &entry.registered)?;
    if !entry.is_kindless_hybrid() {
        same(format!("{owner} blocks by tier"), &report.blocks, &entry.blocks())?;
    }
    same(format!("{owner} pending blocks"), &report.pending_blocks, &(entry.pending_blocks() as u64))?;
    same(format!("{owner} trust of report"), &report.trust, &index.trust(id))?;
    trust(owner, entry, &index.trust(id))?;
    if entry.is_kindless_hybrid() {
        return Ok(());
    }
    dump((owner, entry), &entry.dump(), index.dump(id))
}

fn trust(owner: &Owner, entry: &OwnerModel, trust: &Trust) -> Result<(), Difference> {
    for reason in INDEX_REASONS {
        same(format!("{owner} reason {}", reason.as_str()), &trust.has(reason), &entry.reasons.contains(&reason))?;
    }
    Ok(())
}

/// Equal as multisets of (tier, hash, content, pending); parents as far as the rules fix them.
fn dump(
    (owner, entry): (&Owner, &OwnerModel),
    expected: &[DumpRow],
    mut blocks: Vec<DumpBlock>,
) -> Result<(), Difference> {
    blocks.sort_by_key(|block| (block.tier, block.hash, block.local, block.pending, block.parent));
    // How a hash that names several index blocks is written is not laid down.
    let spans = entry.has_spans();
    let short = |tier: Tier, hash: EngineHash, local: LocalHash, pending: bool| {
        (tier, (!spans).then_some(hash), local, pending)
    };
    let mut index_rows: Vec<_> = blocks.iter().map(|b| short(b.tier, b.hash, b.local, b.pending)).collect();
    let mut model_rows: Vec<_> = expected.iter().map(|r| short(r.tier, r.hash, r.local, r.pending)).collect();
    index_rows.sort_unstable();
    model_rows.sort_unstable();
    same(format!("{owner} dump"), &index_rows, &model_rows)?;
    if spans {
        return Ok(());
    }
    let mut allowed: BTreeMap<_, Vec<&DumpRow>> = BTreeMap::new();
    for row in expected {
        allowed.entry(short(row.tier, row.hash, row.local, row.pending)).or_default().push(row);
    }
    for block in &blocks {
        let rows = &allowed[&short(block.tier, block.hash, block.local, block.pending)];
        if !rows.iter().any(|row| row.parents.is_empty() || row.parents.contains(&block.parent)) {
            return Err(format!("{owner} dump: {block:?} has a parent that nobody named, rows {rows:?}"));
        }
    }
    Ok(())
}

fn answers(model: &Model, index: &PrefixIndex, query: &[LocalHash]) -> Result<(), Difference> {
    let expected = model.find(query);
    let found = index.find(query);
    let what = |name: &str| format!("{name} {:?}", query.iter().map(|local| local.0).collect::<Vec<_>>());
    same(what("find"), &shown(&found), &expected)?;
    for row in found.owners() {
        let id = index.owner_id(row.owner).ok_or("an answer names an unknown owner")?;
        same(what("trust in the answer of"), &row.trust, &index.trust(id))?;
    }
    let mut rolling: Vec<u64> = Vec::new();
    for local in query {
        rolling.push(hash::rolling(rolling.last().copied(), *local));
    }
    same(what("find_rolling"), &shown(&index.find_rolling(&rolling)), &expected)?;
    for explanation in index.explain(query) {
        let Some(row) = expected.rows.iter().find(|row| row.owner == explanation.owner) else { continue };
        same(what("explain, device end"), &explanation.device_end.blocks, &row.reach[0])?;
        same(what("explain, total end"), &explanation.total_end.blocks, &row.reach[2])?;
    }
    Ok(())
}

fn shown(answer: &index::Answer) -> Answer {
    let row = |row: index::OwnerAnswer<'_>| Row {
        owner: row.owner.clone(),
        registered: row.registered,
        reach: [row.device, row.host_pinned, row.disk],
        own: row.own_prefix,
    };
    let mut rows: Vec<Row> = answer.owners().map(row).collect();
    rows.sort_by(|a, b| a.owner.cmp(&b.owner));
    Answer { rows, frequencies: answer.frequencies.iter().collect() }
}
