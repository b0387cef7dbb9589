//! What may be registered, replaced and removed, and what happens to the index. Nothing listens at the endpoints.

mod recovered;

use super::*;
use crate::ingest::SystemClock;

const NOBODY: &str = "tcp://127.0.0.1:1";
const NOBODY_ELSE: &str = "tcp://127.0.0.1:2";

fn registry() -> Arc<Registry> {
    build(false)
}

fn build(recovering: bool) -> Arc<Registry> {
    Registry::new(RegistryConfig {
        zmtp: Options::default(),
        context: Context::new(1),
        index_limits: crate::index::Limits::default(),
        ingest_limits: ingest::Limits::default(),
        clock: Arc::new(SystemClock),
        recovering,
        threads: ingest::Threads::default(),
    })
}

fn spec(instance: impl Into<InstanceId>, rank: u32, address: &str) -> WorkerSpec {
    WorkerSpec {
        key: IndexKey::new("m", "t"),
        owner: Owner::new(instance, rank),
        block_size: BlockSize::new(4).unwrap(),
        endpoint: Endpoint::parse(address).unwrap(),
        replay_endpoint: None,
        topic: None,
        additional_salt: None,
        default_lora: None,
        owner_spec: OwnerSpec::default(),
        incarnation: None,
    }
}

fn unregister(instance: u64, tenant: Option<&str>, rank: Option<u32>) -> Unregister {
    Unregister {
        model: "m".into(),
        tenant: tenant.map(TenantId::from),
        instance: instance.into(),
        rank: rank.map(DpRank),
    }
}

fn desired(specs: impl IntoIterator<Item = WorkerSpec>) -> BTreeMap<(IndexKey, Owner), WorkerSpec> {
    specs.into_iter().map(|spec| ((spec.key.clone(), spec.owner.clone()), spec)).collect()
}

/// `instance/rank source` of all workers.
fn listed(registry: &Registry) -> Vec<String> {
    let workers = registry.workers(None, None);
    let ranks = workers.iter().flat_map(|worker| worker.ranks.values());
    ranks.map(|rank| format!("{} {}", rank.spec.owner, rank.source.as_str())).collect()
}

#[tokio::test]
async fn an_unchanged_repetition_is_fine_and_another_endpoint_must_be_asked_for() {
    let registry = registry();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    let error = registry.register(spec(1, 0, NOBODY_ELSE), Source::Manual, false).await.unwrap_err();
    assert_eq!(error.to_string(), "instance 1 dp_rank 0 already registered");
    registry.register(spec(1, 0, NOBODY_ELSE), Source::Manual, true).await.unwrap();
    let workers = registry.workers(None, None);
    assert_eq!(workers[0].ranks[&DpRank(0)].spec.endpoint.as_str(), NOBODY_ELSE);
    registry.shutdown().await;
}

#[tokio::test]
async fn the_first_registration_fixes_the_block_size_until_the_last_worker_leaves() {
    let registry = registry();
    let eight = |instance: u64| WorkerSpec { block_size: BlockSize::new(8).unwrap(), ..spec(instance, 0, NOBODY) };
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    let error = registry.register(eight(2), Source::Manual, false).await.unwrap_err();
    assert_eq!(error.to_string(), "block_size mismatch for model=m tenant=t: existing=4, requested=8");
    let error = registry.register(eight(1), Source::Manual, false).await.unwrap_err();
    assert!(matches!(error, Error::BlockSizeMismatch { .. }));
    registry.unregister(unregister(1, None, None)).await.unwrap();
    assert!(registry.index(&IndexKey::new("m", "t")).is_none());
    registry.register(eight(2), Source::Manual, false).await.unwrap();
    assert_eq!(registry.indexes()[0].1.block_size().tokens(), 8);
    registry.shutdown().await;
}

#[tokio::test]
async fn the_only_worker_of_an_index_may_be_replaced_with_another_block_size() {
    let registry = registry();
    let eight = WorkerSpec { block_size: BlockSize::new(8).unwrap(), ..spec(1, 0, NOBODY) };
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    registry.register(eight.clone(), Source::Manual, true).await.unwrap();
    assert_eq!(registry.indexes()[0].1.block_size().tokens(), 8);
    registry.register(WorkerSpec { owner: Owner::new(2, 0), ..eight }, Source::Manual, false).await.unwrap();
    let error = registry.register(spec(1, 0, NOBODY), Source::Manual, true).await.unwrap_err();
    assert!(matches!(error, Error::BlockSizeMismatch { .. }));
    assert_eq!(listed(&registry), ["1/0 zmq", "2/0 zmq"], "a refused replacement removes nothing");
    registry.shutdown().await;
}

#[tokio::test]
async fn an_instance_may_be_in_several_indexes_and_leaves_those_that_are_named() {
    let registry = registry();
    for (model, tenant) in [("m", "t"), ("m", "u"), ("n", "t")] {
        let spec = WorkerSpec { key: IndexKey::new(model, tenant), ..spec(7, 0, NOBODY) };
        registry.register(spec, Source::Manual, false).await.unwrap();
    }
    assert_eq!(registry.instance_count(), 1);
    assert_eq!(registry.unregister(unregister(7, Some("u"), None)).await.unwrap().len(), 1);
    assert_eq!(registry.indexes().len(), 2);
    assert_eq!(registry.unregister(unregister(7, None, Some(0))).await.unwrap().len(), 1, "all tenants of the model");
    assert_eq!(registry.workers(Some(&"n".into()), None).len(), 1, "another model stays");
    registry.shutdown().await;
}

#[tokio::test]
async fn what_is_not_there_cannot_be_removed() {
    let registry = registry();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    for (what, text) in [
        (unregister(2, None, None), "instance 2 not found"),
        (unregister(1, Some("other"), None), "instance 1 not found"),
        (unregister(1, None, Some(3)), "instance 1 dp_rank 3 not found"),
    ] {
        assert_eq!(registry.unregister(what).await.unwrap_err().to_string(), text);
    }
    assert_eq!(registry.pause(&2.into(), None).await.unwrap_err().to_string(), "instance 2 not found");
    assert_eq!(
        registry.pause(&1.into(), Some(DpRank(3))).await.unwrap_err().to_string(),
        "instance 1 dp_rank 3 not found"
    );
    registry.shutdown().await;
}

#[tokio::test]
async fn text_and_number_ids_stand_side_by_side() {
    let registry = registry();
    for id in ["serving/llama-0", "7", "007"] {
        registry.register(spec(InstanceId::parse(id).unwrap(), 0, NOBODY), Source::Manual, false).await.unwrap();
    }
    assert_eq!(listed(&registry), ["7/0 zmq", "007/0 zmq", "serving/llama-0/0 zmq"]);
    registry.shutdown().await;
}

#[tokio::test]
async fn an_endpoint_that_can_never_connect_fails_without_a_task() {
    let registry = registry();
    for (instance, address) in [(1, "tcp://*:5557"), (2, "tcp://127.0.0.1:0"), (3, "inproc://x")] {
        registry.register(spec(instance, 0, address), Source::Manual, false).await.unwrap();
        let worker = registry.workers(None, None).pop().unwrap();
        let stream = &worker.ranks[&DpRank(0)].stream;
        assert_eq!(stream.status, Status::Failed, "{address}");
        assert!(stream.last_error.is_some(), "{address}");
        let error = registry.pause(&instance.into(), None).await.unwrap_err();
        assert_eq!(error.to_string(), format!("instance {instance} dp_rank 0 cannot be paused from status failed"));
    }
    registry.unregister(unregister(1, None, None)).await.unwrap();
    registry.shutdown().await;
}

fn owners(names: Vec<(IndexKey, Owner)>) -> Vec<Owner> {
    names.into_iter().map(|(_, owner)| owner).collect()
}

#[tokio::test]
async fn converge_changes_the_workers_of_its_source_only() {
    let registry = registry();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    let outcome = registry.converge(Source::Kubernetes, desired([spec(2, 0, NOBODY), spec(3, 0, NOBODY)])).await;
    assert_eq!(owners(outcome.added), [Owner::new(2, 0), Owner::new(3, 0)]);
    let again = registry.converge(Source::Kubernetes, desired([spec(2, 0, NOBODY), spec(3, 0, NOBODY)])).await;
    assert!(again.added.is_empty() && again.removed.is_empty() && again.replaced.is_empty(), "{again:?}");
    let eight = WorkerSpec { block_size: BlockSize::new(8).unwrap(), ..spec(4, 0, NOBODY) };
    let outcome = registry.converge(Source::Kubernetes, desired([spec(3, 0, NOBODY_ELSE), eight])).await;
    assert_eq!((owners(outcome.removed), owners(outcome.replaced)), (vec![Owner::new(2, 0)], vec![Owner::new(3, 0)]));
    assert!(matches!(outcome.failed[..], [(_, Error::BlockSizeMismatch { .. })]));
    assert_eq!(listed(&registry), ["1/0 zmq", "3/0 kubernetes"]);
    let outcome = registry.converge(Source::Kubernetes, desired([])).await;
    assert_eq!(owners(outcome.removed), [Owner::new(3, 0)]);
    assert_eq!(listed(&registry), ["1/0 zmq"]);
    registry.shutdown().await;
}

#[tokio::test]
async fn kubernetes_supersedes_a_registration_by_hand_and_gives_it_back() {
    let registry = registry();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    registry.converge(Source::Kubernetes, desired([spec(1, 0, NOBODY_ELSE)])).await;
    let workers = registry.workers(None, None);
    assert_eq!(workers[0].ranks[&DpRank(0)].superseded, Some(Source::Manual));
    assert_eq!(listed(&registry), ["1/0 kubernetes"]);
    let error = registry.register(spec(1, 0, NOBODY), Source::Manual, true).await.unwrap_err();
    assert!(matches!(error, Error::OwnedByKubernetes { .. }));
    let error = registry.unregister(unregister(1, None, None)).await.unwrap_err();
    assert!(matches!(error, Error::OwnedByKubernetes { .. }));
    registry.converge(Source::Kubernetes, desired([])).await;
    let workers = registry.workers(None, None);
    assert_eq!(listed(&registry), ["1/0 zmq"]);
    assert_eq!(workers[0].ranks[&DpRank(0)].spec.endpoint.as_str(), NOBODY);
    registry.shutdown().await;
}

#[tokio::test]
async fn after_shutdown_nothing_can_be_changed_and_views_still_answer() {
    let registry = registry();
    registry.register(spec(1, 0, NOBODY), Source::Manual, false).await.unwrap();
    registry.shutdown().await;
    assert!(matches!(registry.register(spec(2, 0, NOBODY), Source::Manual, false).await, Err(Error::ShuttingDown)));
    assert!(matches!(registry.unregister(unregister(1, None, None)).await, Err(Error::ShuttingDown)));
    assert_eq!(listed(&registry), ["1/0 zmq"]);
}

#[tokio::test]
async fn an_operation_ends_even_if_its_caller_goes_away() {
    let registry = registry();
    let abandoned = Arc::clone(&registry);
    let caller = tokio::spawn(async move { abandoned.register(spec(1, 0, NOBODY), Source::Manual, false).await });
    while registry.operations.is_empty() && !caller.is_finished() {
        tokio::task::yield_now().await;
    }
    caller.abort();
    let ended = async {
        while !registry.operations.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), ended).await.expect("the operation ends by itself");
    assert_eq!(listed(&registry), ["1/0 zmq"]);
    registry.shutdown().await;
}
