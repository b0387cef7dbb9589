//! What `/workers` and `/metrics` show: a copy, made without waiting for any operation.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{BlockSize, DpRank, IndexKey, InstanceId, ModelName, Owner, Source, TenantId};
use crate::index::{OwnerSpec, PrefixIndex};
use crate::ingest::StreamReport;
use crate::registry::core::Core;
use crate::registry::state::{IndexEntry, StreamKey};
use crate::registry::{Endpoint, RankView, UNKNOWN_ENDPOINT, WorkerSpec, WorkerView};

impl Core {
    pub(super) fn workers(&self, model: Option<&ModelName>, tenant: Option<&TenantId>) -> Vec<WorkerView> {
        let state = self.state.read();
        let wanted = |key: &IndexKey| {
            model.is_none_or(|model| *model == key.model) && tenant.is_none_or(|tenant| *tenant == key.tenant)
        };
        let mut views = Vec::new();
        for (key, entry) in state.indexes.iter().filter(|(key, _)| wanted(key)) {
            let recovered = entry.recovered.keys().map(|owner| &owner.instance);
            let instances: BTreeSet<&InstanceId> = entry.instances.keys().chain(recovered).collect();
            views.extend(instances.into_iter().filter_map(|instance| view(key, entry, instance)));
        }
        views
    }
}

fn view(key: &IndexKey, entry: &IndexEntry, instance: &InstanceId) -> Option<WorkerView> {
    let block_size = entry.to.index.block_size();
    let index = entry.to.index.read();
    let mut ranks = registered(entry, instance, &index);
    for owner in entry.recovered.keys().filter(|owner| owner.instance == *instance) {
        ranks.extend(recovered((key, block_size), entry, owner, &index));
    }
    let source = ranks.values().next()?.source;
    Some(WorkerView { key: key.clone(), instance: instance.clone(), block_size, source, ranks })
}

fn registered(entry: &IndexEntry, instance: &InstanceId, index: &PrefixIndex) -> BTreeMap<DpRank, RankView> {
    let Some(entry) = entry.instances.get(instance) else {
        return BTreeMap::new();
    };
    let views = entry.ranks.iter().map(|(rank, worker)| {
        let stream = entry.streams.get(&StreamKey::of(&worker.spec));
        let report = index.owner_id(&worker.spec.owner).map(|owner| index.report(owner));
        let view = RankView {
            spec: worker.spec.clone(),
            source: worker.source,
            superseded: worker.superseded.as_ref().map(|superseded| superseded.source),
            stream: stream.map(|stream| stream.report()).unwrap_or_default(),
            report: report.unwrap_or_default(),
        };
        (*rank, view)
    });
    views.collect()
}

/// An owner without a registration, in the form of one.
fn recovered(
    (key, block_size): (&IndexKey, BlockSize),
    entry: &IndexEntry,
    owner: &Owner,
    index: &PrefixIndex,
) -> Option<(DpRank, RankView)> {
    let stream = entry.recovered.get(owner)?.as_ref();
    let endpoint = stream.and_then(|(name, _)| Endpoint::parse(&name.endpoint).ok());
    let spec = WorkerSpec {
        key: key.clone(),
        owner: owner.clone(),
        block_size,
        endpoint: endpoint.or_else(|| Endpoint::parse(UNKNOWN_ENDPOINT).ok())?,
        replay_endpoint: None,
        topic: stream.and_then(|(name, _)| name.topic.clone()),
        additional_salt: None,
        default_lora: stream.and_then(|(name, _)| name.default_lora.clone()),
        owner_spec: OwnerSpec::default(),
        incarnation: None,
    };
    let seen = StreamReport {
        last_error: Some("not registered here".to_owned()),
        last_seq: stream.and_then(|(_, position)| position.mark).map(|mark| mark.seq),
        settled: true,
        ..StreamReport::default()
    };
    let report = index.owner_id(owner).map(|id| index.report(id)).unwrap_or_default();
    let view = RankView { spec, source: Source::Recovered, superseded: None, stream: seen, report };
    Some((owner.rank, view))
}
