//! What leaves a registry: copies of streams for other replicas and files, and their digests. Nothing here waits for an
//! operation; each copy is made under the read lock of one index.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{IndexKey, Owner, Seq};
use crate::image::{IndexHead, Position, StreamImage, StreamName};
use crate::index::{OwnerId, PrefixIndex, SharedIndex};
use crate::ingest::Handle;
use crate::registry::core::Core;
use crate::registry::state::IndexEntry;
use crate::registry::{Export, ExportFilter, StreamDump, StreamView};

/// Where a copy comes from.
pub(super) struct Copied {
    index: Arc<SharedIndex>,
    from: From,
}

enum From {
    /// A running stream.
    Stream(Handle),
    /// Owners that nobody registered, as a recovered state left them.
    Recovered(Vec<Owner>, Position),
}

impl Copied {
    pub(super) fn copy(&self, name: &StreamName) -> Option<StreamImage> {
        let index = self.index.read();
        let (position, owners) = self.owners(name, &index);
        let ids: Vec<OwnerId> = owners.into_iter().map(|(_, id)| id).collect();
        let image = index.export(&ids);
        drop(index);
        (!image.owners.is_empty()).then(|| StreamImage { name: name.clone(), position, image })
    }

    pub(super) fn dump(&self, name: &StreamName) -> Option<StreamDump> {
        let index = self.index.read();
        let (position, owners) = self.owners(name, &index);
        let owners: Vec<_> = owners.into_iter().map(|(owner, id)| (owner, index.chains(id))).collect();
        (!owners.is_empty()).then_some(StreamDump { position, owners })
    }

    /// Owners that are there, and where their stream stands.
    fn owners(&self, name: &StreamName, index: &PrefixIndex) -> (Position, Vec<(Owner, OwnerId)>) {
        let (position, owners): (_, Vec<Owner>) = match &self.from {
            From::Stream(handle) => {
                let applied = handle.applied();
                let owner = |(rank, _)| Owner { instance: name.instance.clone(), rank };
                (applied.position, applied.owners.into_iter().map(owner).collect())
            }
            From::Recovered(owners, position) => (*position, owners.clone()),
        };
        let present = owners.into_iter().filter_map(|owner| Some((index.owner_id(&owner)?, owner)));
        (position, present.map(|(id, owner)| (owner, id)).collect())
    }
}

impl Core {
    pub(super) fn exports(&self, filter: &ExportFilter) -> Vec<Export> {
        let state = self.state.read();
        let mut exports = Vec::new();
        for (key, entry) in state.indexes.iter().filter(|(key, _)| filter.has_index(key)) {
            for (name, from) in sources(entry) {
                if filter.instance.as_ref().is_some_and(|instance| *instance != name.instance) {
                    continue;
                }
                let head = IndexHead { key: key.clone(), block_size: entry.to.index.block_size().tokens() };
                exports.push(Export { head, name, copied: Copied { index: Arc::clone(&entry.to.index), from } });
            }
        }
        exports
    }

    pub(super) fn digests(&self) -> Vec<StreamView> {
        let streams: Vec<_> = {
            let state = self.state.read();
            let of = |(key, entry): (&IndexKey, &IndexEntry)| {
                let (key, index) = (key.clone(), Arc::clone(&entry.to.index));
                let streams: Vec<_> = entry.streams().map(|(name, running)| (name, running.handle.clone())).collect();
                streams.into_iter().map(move |(name, handle)| (key.clone(), Arc::clone(&index), name, handle))
            };
            state.indexes.iter().flat_map(of).collect()
        };
        streams.into_iter().map(|(key, index, name, handle)| digest_of(key, &index, name, &handle)).collect()
    }
}

/// Names of all streams of an index in order, those without a registration last, and where their copies come from.
fn sources(entry: &IndexEntry) -> Vec<(StreamName, From)> {
    let running: BTreeMap<_, _> =
        entry.streams().map(|(name, running)| (name, From::Stream(running.handle.clone()))).collect();
    let mut left: BTreeMap<StreamName, (Vec<Owner>, Position)> = BTreeMap::new();
    for (owner, from) in &entry.recovered {
        let placed = from.clone().filter(|(name, _)| !running.contains_key(name));
        let nowhere = || StreamName {
            instance: owner.instance.clone(),
            endpoint: String::new(),
            topic: None,
            default_lora: None,
        };
        let (name, position) = placed.unwrap_or_else(|| (nowhere(), Position::default()));
        left.entry(name).or_insert_with(|| (Vec::new(), position)).0.push(owner.clone());
    }
    let left = left.into_iter().map(|(name, (owners, position))| (name, From::Recovered(owners, position)));
    running.into_iter().chain(left).collect()
}

fn digest_of(key: IndexKey, shared: &SharedIndex, name: StreamName, handle: &Handle) -> StreamView {
    let index = shared.read();
    let applied = handle.applied();
    let mut view = StreamView {
        key,
        position: applied.position,
        digest: 0,
        history: applied.history.into_iter().collect::<Vec<(Seq, u64)>>(),
        owners: Vec::with_capacity(applied.owners.len()),
        foreign_blocks: 0,
        ages: false,
        name,
    };
    for (rank, id) in applied.owners {
        let digest = index.digest(id);
        view.digest = view.digest.wrapping_add(digest.value);
        view.foreign_blocks += digest.foreign_blocks;
        view.ages |= digest.ages;
        let owner = Owner { instance: view.name.instance.clone(), rank };
        let report = index.report(id);
        view.owners.push((owner, report.trust, report.blocks.iter().sum()));
    }
    view.owners.sort_by(|a, b| a.0.cmp(&b.0));
    view
}

impl ExportFilter {
    fn has_index(&self, key: &IndexKey) -> bool {
        self.model.as_ref().is_none_or(|model| *model == key.model)
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
    }
}
