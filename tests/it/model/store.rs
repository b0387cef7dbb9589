//! What a `BlockStored` means to the model.

use std::collections::BTreeSet;

use kvindexer::event::{Batch, CacheKind, SkipReason, Stored};
use kvindexer::hash;
use kvindexer::ids::{EngineHash, LocalHash, Namespace, Owner, Tier};
use kvindexer::trust::Reason;

use super::{Group, Model, OwnerModel, Parent, Pending, Piece, Place};

/// One event on its way into the model.
struct Incoming<'a> {
    hashes: &'a [EngineHash],
    tier: Tier,
    group: Group,
    named: Namespace,
}

/// Applies one `BlockStored`.
pub(super) fn stored(model: &mut Model, owner: &Owner, batch: &Batch, event: &Stored) {
    if model.over_memory {
        return model.skip(owner, SkipReason::Memory);
    }
    let incoming = Incoming {
        hashes: batch.hashes_of(&event.hashes),
        tier: event.tier,
        group: event.group.id.map_or(0, |id| id.0),
        named: event.named,
    };
    let numbered = event.group.id.is_some();
    let entry = model.owner(owner);
    let facts = entry.groups.entry(incoming.group).or_default();
    facts.numbered |= numbered;
    if event.group.kind.is_some() {
        facts.kind = event.group.kind;
        facts.window_tokens = event.group.window_tokens;
    }
    let kind = facts.kind;
    if numbered && kind.is_none() {
        entry.reasons.insert(Reason::UnknownGroup);
    } else if !entry.groups.values().any(|group| group.numbered && group.kind.is_none()) {
        entry.reasons.remove(&Reason::UnknownGroup);
    }
    if matches!(kind, Some(CacheKind::SlidingWindow | CacheKind::Mamba)) {
        return bare(entry, &incoming);
    }
    let tokens = batch.token_bytes_of(&event.token_bytes).len() / 4;
    match event.block_size {
        Some(size) if tokens > 0 => {
            with_tokens(model, owner, (batch, event), (&incoming, size, kind.is_none() && numbered))
        }
        _ => hash_only(model, owner, &incoming),
    }
    model.owner(owner).settle_pending();
}

/// Hashes without a place of their own.
fn bare(entry: &mut OwnerModel, incoming: &Incoming<'_>) {
    for hash in incoming.hashes {
        *entry.copies.entry((*hash, incoming.tier, incoming.group)).or_default() += 1;
    }
}

fn with_tokens(
    model: &mut Model,
    owner: &Owner,
    (batch, event): (&Batch, &Stored),
    (incoming, size, kindless): (&Incoming<'_>, u32, bool),
) {
    let token_bytes = batch.token_bytes_of(&event.token_bytes);
    let (tokens, size) = (token_bytes.len() / 4, size as usize);
    let index_size = model.block_size as usize;
    let entry = model.owner(owner);
    if tokens > incoming.hashes.len() * size {
        if kindless {
            entry.groups.entry(incoming.group).or_default().incomplete = true;
            return bare(entry, incoming);
        }
        if event.group.id.is_none() {
            entry.reasons.insert(Reason::AmbiguousGroups);
        }
    }
    if tokens != incoming.hashes.len() * size {
        return model.skip(owner, SkipReason::TokenCount);
    }
    let facts = entry.groups.entry(incoming.group).or_default();
    if size % index_size != 0 {
        if size < index_size && facts.stored_whole {
            return;
        }
        return model.skip(owner, SkipReason::BlockSize);
    }
    facts.block_sizes.insert(event.block_size.expect("given"));
    facts.stored_whole |= size == index_size;
    let blocks: Vec<Vec<Piece>> = (0..incoming.hashes.len())
        .map(|block| {
            let extras: Vec<u64> = batch
                .extras_of(&event.extras)
                .iter()
                .filter(|extra| extra.block as usize == block)
                .map(|extra| extra.value)
                .collect();
            token_bytes[block * size * 4..(block + 1) * size * 4]
                .chunks(index_size * 4)
                .map(|piece| Piece { token_bytes: piece.to_vec(), extras: extras.clone() })
                .collect()
        })
        .collect();
    place_chain(model, owner, incoming, (event.parent, blocks));
}

/// Hangs the blocks of one event one below the other, or lets all of them wait.
fn place_chain(
    model: &mut Model,
    owner: &Owner,
    incoming: &Incoming<'_>,
    (parent, blocks): (Option<EngineHash>, Vec<Vec<Piece>>),
) {
    let base = match parent {
        None => Some((Vec::new(), incoming.named, Parent::Root)),
        Some(parent) => match model.owner(owner).newest(parent) {
            Some(place) => match inherit(incoming.named, place.namespace) {
                Some(namespace) => Some((place.path.clone(), namespace, Parent::Hash(parent))),
                None => return model.skip(owner, SkipReason::NamespaceConflict),
            },
            None => None,
        },
    };
    let Some((mut path, namespace, mut carrier)) = base else {
        return wait(model, owner, incoming, (parent.expect("roots never wait"), blocks));
    };
    for (hash, pieces) in incoming.hashes.iter().zip(blocks) {
        *model.owner(owner).copies.entry((*hash, incoming.tier, incoming.group)).or_default() += 1;
        let len = pieces.len();
        path.extend(locals(&pieces, namespace));
        let place = Place {
            path: path.clone(),
            len,
            namespace,
            parents: [carrier].into(),
            on: [(incoming.tier, incoming.group)].into(),
            stamp: 0,
        };
        put(model, owner, *hash, place);
        carrier = Parent::Hash(*hash);
    }
}

fn wait(
    model: &mut Model,
    owner: &Owner,
    incoming: &Incoming<'_>,
    (mut parent, blocks): (EngineHash, Vec<Vec<Piece>>),
) {
    let pending_max = model.limits.pending_blocks_max;
    let entry = model.owner(owner);
    for (hash, pieces) in incoming.hashes.iter().zip(blocks) {
        let on = BTreeSet::from([(incoming.tier, incoming.group)]);
        let block = Pending { hash: *hash, parent, named: incoming.named, pieces, on };
        parent = *hash;
        *entry.copies.entry((*hash, incoming.tier, incoming.group)).or_default() += 1;
        let same = |known: &&mut Pending| Pending { on: block.on.clone(), ..(*known).clone() } == block;
        match entry.pending.iter_mut().find(same) {
            Some(known) => known.on.extend(&block.on),
            None => entry.pending.push(block),
        }
        while entry.pending_blocks() > pending_max {
            let oldest = entry.pending.remove(0);
            entry.pending_dropped = true;
            forget_dropped(entry, &oldest);
        }
    }
}

/// A dropped pending block is not held any more, unless its hash also has a place or waits elsewhere.
fn forget_dropped(entry: &mut OwnerModel, block: &Pending) {
    for at in &block.on {
        let waits = entry.pending.iter().any(|other| other.hash == block.hash && other.on.contains(at));
        let placed = entry.places.get(&block.hash).is_some_and(|places| places.iter().any(|p| p.on.contains(at)));
        if !waits && !placed {
            entry.copies.remove(&(block.hash, at.0, at.1));
        }
    }
}

/// LoRA and salt of a child; none if it names another one than its parent has.
fn inherit(named: Namespace, parent: Namespace) -> Option<Namespace> {
    let part = |named: Option<u64>, parent: Option<u64>| match named {
        Some(_) if named != parent => None,
        _ => Some(parent),
    };
    Some(Namespace { lora: part(named.lora, parent.lora)?, salt: part(named.salt, parent.salt)? })
}

/// Content of index blocks in a namespace.
pub(super) fn locals(pieces: &[Piece], namespace: Namespace) -> Vec<LocalHash> {
    pieces.iter().map(|p| hash::local_hash(&p.token_bytes, p.extras.iter().copied(), namespace.seed())).collect()
}

/// Gives a hash a place (copies are counted by the caller) and joins what waited for it.
fn put(model: &mut Model, owner: &Owner, hash: EngineHash, mut place: Place) {
    let stamp = model.tick();
    let entry = model.owner(owner);
    entry.recent.retain(|recent| *recent != hash);
    let places = entry.places.entry(hash).or_default();
    place.stamp = stamp;
    match places.iter_mut().find(|known| known.path == place.path && known.len == place.len) {
        Some(known) => {
            if known.on.is_empty() {
                known.parents.clear();
            }
            known.parents.extend(&place.parents);
            known.on.extend(&place.on);
            known.stamp = stamp;
        }
        None => places.push(place),
    }
    join(model, owner, hash);
}

/// Blocks that waited for `parent` hang below its newest place.
fn join(model: &mut Model, owner: &Owner, parent: EngineHash) {
    loop {
        let entry = model.owner(owner);
        let Some(at) = entry.pending.iter().position(|block| block.parent == parent) else { return };
        let block = entry.pending.remove(at);
        let below = entry.newest(parent).expect("it was just placed").clone();
        let Some(namespace) = inherit(block.named, below.namespace) else {
            forget_dropped(entry, &block);
            model.skip(owner, SkipReason::NamespaceConflict);
            continue;
        };
        let mut path = below.path;
        path.extend(locals(&block.pieces, namespace));
        let place = Place {
            path,
            len: block.pieces.len(),
            namespace,
            parents: [Parent::Hash(parent)].into(),
            on: block.on.clone(),
            stamp: 0,
        };
        put(model, owner, block.hash, place);
    }
}

fn hash_only(model: &mut Model, owner: &Owner, incoming: &Incoming<'_>) {
    if incoming.hashes.is_empty() {
        return model.skip(owner, SkipReason::NoHashes);
    }
    for hash in incoming.hashes {
        let entry = model.owner(owner);
        let waiting = entry.pending.iter_mut().rfind(|block| block.hash == *hash);
        if let (None, Some(block)) = (entry.places.get(hash), waiting) {
            block.on.insert((incoming.tier, incoming.group));
            *entry.copies.entry((*hash, incoming.tier, incoming.group)).or_default() += 1;
            continue;
        }
        let found = match model.owner(owner).newest(*hash) {
            Some(place) => Ok(place.clone()),
            None => from_others(model, owner, *hash),
        };
        match found {
            Ok(mut place) => {
                place.on = [(incoming.tier, incoming.group)].into();
                *model.owner(owner).copies.entry((*hash, incoming.tier, incoming.group)).or_default() += 1;
                put_bare(model, owner, *hash, place);
            }
            Err(reason) => model.skip(owner, reason),
        }
    }
}

/// A store without tokens names no parent: what is remembered about parents stays.
fn put_bare(model: &mut Model, owner: &Owner, hash: EngineHash, place: Place) {
    let kept = model.owner(owner).newest(hash).map(|known| known.parents.clone());
    let path = place.path.clone();
    put(model, owner, hash, place);
    if let (Some(kept), Some(places)) = (kept, model.owner(owner).places.get_mut(&hash)) {
        for known in places.iter_mut().filter(|known| known.path == path) {
            known.parents = kept.clone();
        }
    }
}

/// The one place at which all other owners that know the hash have it.
fn from_others(model: &Model, owner: &Owner, hash: EngineHash) -> Result<Place, SkipReason> {
    let mut known = model
        .owners
        .iter()
        .filter(|(other, _)| *other != owner)
        .flat_map(|(_, entry)| entry.places.get(&hash).into_iter().flatten());
    let Some(first) = known.next() else { return Err(SkipReason::UnknownHash) };
    if known.any(|other| other.path != first.path || other.len != first.len) {
        return Err(SkipReason::AmbiguousHash);
    }
    Ok(Place { parents: [Parent::Content].into(), on: Default::default(), ..first.clone() })
}
