//! What `/workers` and `/metrics` show: a copy, made without waiting for any operation.

use std::collections::BTreeMap;

use crate::ids::{IndexKey, InstanceId, ModelName, TenantId};
use crate::registry::core::Core;
use crate::registry::state::{IndexEntry, InstanceEntry, StreamKey};
use crate::registry::{RankView, WorkerView};

impl Core {
    pub(super) fn workers(&self, model: Option<&ModelName>, tenant: Option<&TenantId>) -> Vec<WorkerView> {
        let state = self.state.read();
        let wanted = |key: &IndexKey| {
            model.is_none_or(|model| *model == key.model) && tenant.is_none_or(|tenant| *tenant == key.tenant)
        };
        let mut views = Vec::new();
        for (key, index) in state.indexes.iter().filter(|(key, _)| wanted(key)) {
            for (instance, entry) in &index.instances {
                views.extend(view(key, index, instance, entry));
            }
        }
        views
    }
}

fn view(key: &IndexKey, index: &IndexEntry, instance: &InstanceId, entry: &InstanceEntry) -> Option<WorkerView> {
    let guard = index.to.index.read();
    let ranks: BTreeMap<_, _> = entry
        .ranks
        .iter()
        .map(|(rank, worker)| {
            let stream = entry.streams.get(&StreamKey::of(&worker.spec));
            let report = guard.owner_id(&worker.spec.owner).map(|owner| guard.report(owner));
            let view = RankView {
                spec: worker.spec.clone(),
                source: worker.source,
                superseded: worker.superseded.as_ref().map(|superseded| superseded.1),
                stream: stream.map(|stream| stream.report()).unwrap_or_default(),
                report: report.unwrap_or_default(),
            };
            (*rank, view)
        })
        .collect();
    let source = ranks.values().next()?.source;
    Some(WorkerView {
        key: key.clone(),
        instance: instance.clone(),
        block_size: index.to.index.block_size(),
        source,
        ranks,
    })
}
