//! What a registry takes from another one, and what becomes of it. Nothing listens at the endpoints.

use super::*;
use crate::ids::{EngineHash, LocalHash, Seq, Tier};
use crate::image::{Registration, Tombstone};
use crate::index::ApplyContext;
use crate::trust::Reason;

/// Puts a block into an owner of a registry, as if its stream had brought it.
fn fill(registry: &Registry, owner: &Owner, hash: u64) {
    let index = registry.index(&IndexKey::new("m", "t")).expect("it has a worker");
    let mut index = index.write();
    let id = index.owner_id(owner).expect("registered");
    let context = ApplyContext { seq: Seq(0), now_ms: 0 };
    index.load(id, Tier::Device, (None, &[(EngineHash(hash), LocalHash(hash))]), context);
}

/// Everything that `from` has, built apart with the bounds of `to`.
fn copied(from: &Registry, to: &Registry) -> Recovered {
    let mut recovered = Recovered::default();
    for export in from.exports(&ExportFilter::default()) {
        let image = export.copy().expect("it runs");
        let block_size = export.head.block_size().expect("not zero");
        let into = recovered
            .indexes
            .entry(export.head.key.clone())
            .or_insert_with(|| RecoveredIndex { index: to.new_index(block_size), streams: Vec::new() });
        into.index.import(&image.image, 0).expect("consistent");
        into.streams.push(RecoveredStream::from(&image));
    }
    recovered
}

/// `instance/rank source blocks reasons` of all workers.
fn shown(registry: &Registry) -> Vec<String> {
    let workers = registry.workers(None, None);
    let ranks = workers.iter().flat_map(|worker| worker.ranks.values());
    let show = |rank: &RankView| {
        let reasons: Vec<_> = rank.report.trust.reasons().map(Reason::as_str).collect();
        let (owner, source) = (&rank.spec.owner, rank.source.as_str());
        format!("{owner} {source} {} {}", rank.report.blocks[0], reasons.join(" "))
    };
    ranks.map(show).collect()
}

/// A registry with workers 1 and 2, each with a block.
async fn source() -> Arc<Registry> {
    let registry = registry();
    for instance in [1_u64, 2] {
        registry.register(spec(instance, 0, NOBODY), Source::Manual, false).await.unwrap();
        fill(&registry, &Owner::new(instance, 0), instance);
    }
    registry
}

fn with_incarnation(spec: WorkerSpec, container: &str) -> WorkerSpec {
    let incarnation = Incarnation { pod_uid: "u".into(), container_id: container.into(), restart_count: 0 };
    WorkerSpec { incarnation: Some(incarnation), ..spec }
}

#[tokio::test]
async fn recovered_owners_are_shown_and_go_by_hand_or_with_time() {
    let (from, to) = (source().await, build(true));
    let recovered = copied(&from, &to);
    assert!(to.is_recovering());
    let adopted = to.adopt(recovered).await;
    assert_eq!((adopted.indexes, adopted.owners, adopted.streams), (1, 2, 0));
    assert!(!to.is_recovering());
    assert_eq!(
        shown(&to),
        ["1/0 recovered 1 not_connected nothing_heard", "2/0 recovered 1 not_connected nothing_heard"]
    );
    assert_eq!(to.instance_count(), 0, "the gate counts registered workers");
    assert_eq!(to.workers(None, None)[0].ranks[&DpRank(0)].spec.endpoint.as_str(), NOBODY);
    assert_eq!(to.unregister(unregister(1, None, None)).await.unwrap(), [(IndexKey::new("m", "t"), Owner::new(1, 0))]);
    assert_eq!(shown(&to).len(), 1);
    assert_eq!(to.index(&IndexKey::new("m", "t")).unwrap().read().owners(), [Owner::new(2, 0)]);
    assert_eq!(to.drop_recovered().await, [(IndexKey::new("m", "t"), Owner::new(2, 0))]);
    assert!(to.indexes().is_empty(), "an index goes with its last owner");
    assert!(to.unregister(unregister(2, None, None)).await.is_err());
}

#[tokio::test]
async fn a_registration_of_a_recovered_owner_keeps_its_blocks() {
    let (from, to) = (source().await, build(true));
    to.adopt(copied(&from, &to)).await;
    to.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    assert_eq!(
        shown(&to),
        ["1/0 zmq 1 no_watermark not_connected", "2/0 recovered 1 not_connected nothing_heard"],
        "the source's stream had heard nothing: where the block comes from is not known"
    );
    assert_eq!(to.drop_recovered().await.len(), 1);
    assert_eq!(shown(&to).len(), 1);
    to.shutdown().await;
}

#[tokio::test]
async fn recovered_owners_are_copied_on_to_the_next_replica() {
    let (from, middle, to) = (source().await, build(true), build(true));
    middle.adopt(copied(&from, &middle)).await;
    let recovered = copied(&middle, &to);
    let names: Vec<_> =
        recovered.indexes.values().flat_map(|index| &index.streams).map(|stream| &stream.name).collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.endpoint == NOBODY), "{names:?}");
    assert_eq!(to.adopt(recovered).await.owners, 2);
}

#[tokio::test]
async fn an_index_with_another_block_size_is_refused_and_the_others_count() {
    let (from, to) = (source().await, build(true));
    let other = WorkerSpec { key: IndexKey::new("n", "t"), ..spec(3, 0, NOBODY) };
    from.register(other, Source::Manual, false).await.unwrap();
    let eight = WorkerSpec { block_size: BlockSize::new(8).unwrap(), ..spec(1, 0, NOBODY) };
    to.register(eight.clone(), Source::Manual, false).await.unwrap();
    let adopted = to.adopt(copied(&from, &to)).await;
    assert_eq!((adopted.indexes, adopted.refused), (1, 1));
    assert_eq!(shown(&to)[0], "1/0 zmq 0 not_connected nothing_heard");
    assert_eq!(shown(&to).len(), 2);
    // Without a registration the recovered index gives way.
    to.register(WorkerSpec { key: IndexKey::new("n", "t"), ..eight }, Source::Manual, false).await.unwrap();
    assert!(to.indexes().iter().all(|(_, index)| index.block_size().tokens() == 8));
    to.shutdown().await;
}

#[tokio::test]
async fn owners_that_are_others_here_are_left_out() {
    let (from, to) = (source().await, build(true));
    let mut kubernetes = Vec::new();
    for instance in [3_u64, 4, 5] {
        let spec = with_incarnation(spec(instance, 0, NOBODY), "old");
        kubernetes.push(spec);
    }
    from.converge(Source::Kubernetes, desired(kubernetes)).await;
    [3, 4, 5].into_iter().for_each(|instance| fill(&from, &Owner::new(instance, 0), instance));
    let restored = to.restore(from.registrations(), Vec::new()).await;
    assert_eq!(restored.added, 5);
    // Another endpoint, another life, an unregistration, and one that is confirmed.
    to.register(spec(1, 0, NOBODY_ELSE), Source::Manual, true).await.unwrap();
    to.unregister(unregister(2, None, None)).await.unwrap();
    let desired = desired([
        with_incarnation(spec(3, 0, NOBODY), "new"),
        with_incarnation(spec(4, 0, NOBODY), "old"),
        with_incarnation(spec(5, 0, NOBODY_ELSE), "old"),
    ]);
    let converged = to.converge(Source::Kubernetes, desired).await;
    assert_eq!(owners(converged.replaced), [Owner::new(3, 0), Owner::new(5, 0)]);
    let adopted = to.adopt(copied(&from, &to)).await;
    assert_eq!(adopted.owners, 1);
    assert_eq!(
        shown(&to),
        [
            "1/0 zmq 0 not_connected nothing_heard",
            "3/0 kubernetes 0 not_connected nothing_heard",
            "4/0 kubernetes 1 not_connected nothing_heard",
            "5/0 kubernetes 0 not_connected nothing_heard",
        ]
    );
    to.shutdown().await;
}

#[tokio::test]
async fn a_state_is_adopted_once() {
    let (from, to) = (source().await, registry());
    assert_eq!(to.adopt(copied(&from, &to)).await, Adopted::default());
    assert!(to.indexes().is_empty());
    from.shutdown().await;
}

#[tokio::test]
async fn registrations_of_another_replica_are_taken_over_where_ours_say_nothing() {
    let (from, to) = (registry(), registry());
    from.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    from.register(spec(2, 0, NOBODY), Source::Manual, false).await.unwrap();
    from.converge(Source::Kubernetes, desired([spec(2, 0, NOBODY_ELSE), spec(3, 0, NOBODY)])).await;
    to.register(spec(1, 0, NOBODY_ELSE), Source::Manual, false).await.unwrap();
    let mut registrations = from.registrations();
    let broken = Registration { endpoint: "nonsense".into(), dp_rank: 9, ..registrations[0].clone() };
    let eight = Registration { block_size: 8, dp_rank: 8, ..registrations[0].clone() };
    registrations.extend([broken, eight]);
    let restored = to.restore(registrations.clone(), Vec::new()).await;
    assert_eq!((restored.added, restored.kept), (2, 1));
    let refused: Vec<_> = restored.refused.iter().map(|(_, owner, error)| format!("{owner}: {error}")).collect();
    assert_eq!(refused[0], "1/9: registration of instance 1 dp_rank 9 has an invalid endpoint");
    assert_eq!(refused[1], "1/8: block_size mismatch for model=m tenant=t: existing=4, requested=8");
    assert_eq!(
        shown(&to),
        [
            "1/0 zmq 0 not_connected nothing_heard",
            "2/0 kubernetes 0 unconfirmed not_connected nothing_heard",
            "3/0 kubernetes 0 unconfirmed not_connected nothing_heard",
        ]
    );
    assert_eq!(to.registrations()[1..], registrations[1..3], "time, source and what was superseded come along");
    // The first complete list confirms one and removes the other, whose registration by hand returns.
    to.converge(Source::Kubernetes, desired([spec(3, 0, NOBODY)])).await;
    assert_eq!(
        shown(&to)[1..],
        ["2/0 zmq 0 not_connected nothing_heard", "3/0 kubernetes 0 not_connected nothing_heard"]
    );
    from.shutdown().await;
    to.shutdown().await;
}

#[tokio::test]
async fn an_unregistration_by_hand_is_remembered_until_the_next_registration() {
    let (from, to) = (registry(), registry());
    from.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    let registrations = from.registrations();
    from.unregister(unregister(1, None, None)).await.unwrap();
    let tombstones = from.tombstones();
    assert!(matches!(&tombstones[..], [Tombstone { dp_rank: 0, .. }]));
    let restored = to.restore(registrations.clone(), tombstones.clone()).await;
    assert!(matches!(restored.refused[..], [(_, _, Error::Withdrawn { .. })]), "{restored:?}");
    assert_eq!(to.tombstones(), tombstones);
    // Registered again after that: the tombstone is history.
    to.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    assert!(to.tombstones().is_empty());
    let later = Registration { registered_ms: tombstones[0].at_ms + 1, ..registrations[0].clone() };
    assert_eq!(from.restore(vec![later], Vec::new()).await.added, 1);
    // What Kubernetes takes away leaves none.
    from.converge(Source::Kubernetes, desired([spec(5, 0, NOBODY)])).await;
    from.converge(Source::Kubernetes, desired([])).await;
    assert!(from.tombstones().iter().all(|tombstone| tombstone.instance != InstanceId::Number(5)));
    from.shutdown().await;
    to.shutdown().await;
}

#[tokio::test]
async fn another_incarnation_is_another_worker_and_a_learnt_one_is_not() {
    let registry = registry();
    registry.converge(Source::Kubernetes, desired([spec(1, 0, NOBODY)])).await;
    fill(&registry, &Owner::new(1, 0), 7);
    registry.converge(Source::Kubernetes, desired([with_incarnation(spec(1, 0, NOBODY), "a")])).await;
    assert_eq!(shown(&registry), ["1/0 kubernetes 1 not_connected nothing_heard"], "learnt");
    registry.converge(Source::Kubernetes, desired([with_incarnation(spec(1, 0, NOBODY), "b")])).await;
    assert_eq!(shown(&registry), ["1/0 kubernetes 0 not_connected nothing_heard"], "another life");
    registry.shutdown().await;
}

#[tokio::test]
async fn a_refill_of_a_stream_that_is_gone_is_not_taken() {
    let registry = registry();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    let name = registry.digests()[0].name.clone();
    let key = IndexKey::new("m", "t");
    let refill = registry.begin_refill(&key, &name).await.expect("it runs");
    let image = registry.exports(&ExportFilter::default())[0].copy();
    registry.unregister(unregister(1, None, None)).await.unwrap();
    assert!(!registry.end_refill(refill, image).await);
    assert!(registry.begin_refill(&key, &name).await.is_none());
}
