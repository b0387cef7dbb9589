//! Public faults of comparable systems: the index. Each test is one row.

use serde_json::{Value, json};

use crate::harness::msgpack::{removed, stored, stored_on};
use crate::harness::worker::{BLOCK, tokens};
use crate::harness::{Service, Worker};

/// Suffixes of the churn test; the environment variable asks for another number (the whole row: 1000000).
const CHURN: u64 = 200_000;
const CHURN_VARIABLE: &str = "KVINDEXER_TEST_CHURN";
const CHURN_LIVE: u64 = 10_000;
const CHURN_BATCH: u64 = 500;

#[test]
fn f25_a_removal_touches_its_own_worker_only() {
    let service = Service::start();
    let mut a = Worker::with(&service, "f25", 1, json!({}));
    let mut b = Worker::with(&service, "f25", 2, json!({}));
    for worker in [&mut a, &mut b] {
        worker.publish(json!([stored(&[1, 2], None, &tokens(1, 8))]));
    }
    a.publish(json!([removed(&[1, 2], "GPU")]));
    assert_eq!((a.gpu(&tokens(1, 8)), b.gpu(&tokens(1, 8))), (0, 8));
}

#[test]
fn f26_a_clear_empties_all_tiers_of_its_own_worker_only() {
    let service = Service::start();
    let mut a = Worker::with(&service, "f26", 1, json!({}));
    let mut b = Worker::with(&service, "f26", 2, json!({}));
    for worker in [&mut a, &mut b] {
        worker.publish(json!([
            stored(&[1], None, &tokens(1, 4)),
            stored_on("CPU", &[2], Some(1), &tokens(5, 4)),
            stored_on("DISK", &[3], Some(2), &tokens(9, 4)),
            stored_on("REMOTE", &[4], Some(3), &tokens(13, 4)),
        ]));
        assert_eq!(worker.tiers(&tokens(1, 16)), [4, 8, 16]);
    }
    a.publish(json!([["AllBlocksCleared"]]));
    assert_eq!((a.tiers(&tokens(1, 16)), b.tiers(&tokens(1, 16))), ([0, 0, 0], [4, 8, 16]));
    assert_eq!((a.held(), b.held()), (vec![], vec![1, 2, 3, 4]));
}

#[test]
fn f27_equal_blocks_in_a_chain_keep_their_depth() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f27");
    let hashes: Vec<u64> = (1..=50).collect();
    let equal = |blocks: usize| vec![7_u32; blocks * BLOCK];
    worker.publish(json!([stored(&hashes, None, &equal(50))]));
    for (blocks, want) in [(50, 50), (51, 50), (10, 10)] {
        assert_eq!(worker.gpu(&equal(blocks)), want * BLOCK as u64, "{blocks} blocks");
    }
    worker.publish(json!([removed(&[25], "GPU")]));
    assert_eq!(worker.gpu(&equal(50)), 24 * BLOCK as u64);
    worker.publish(json!([stored(&[25], Some(24), &equal(1))]));
    assert_eq!(worker.gpu(&equal(50)), 50 * BLOCK as u64);
}

#[test]
fn f28_memory_stays_flat_under_prefix_churn() {
    let suffixes = std::env::var(CHURN_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(CHURN);
    let service = Service::start();
    let mut worker = Worker::new(&service, "f28");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let mut halfway = 0;
    for first in (0..suffixes).step_by(CHURN_BATCH as usize) {
        worker.publish(churn(first));
        if first == suffixes / 2 / CHURN_BATCH * CHURN_BATCH {
            halfway = service.resident_bytes();
        }
    }
    let end = service.resident_bytes();
    assert!(end as f64 <= 1.2 * halfway as f64, "{halfway} bytes at half, {end} at the end");
    assert_eq!(worker.held().len() as u64, 1 + CHURN_LIVE.min(suffixes), "live blocks");
    assert_eq!(worker.gpu(&tokens(1, 4)), 4);
    worker.assert_exact();
}

/// Stores the suffixes from `first` on below block 1 and removes those that are too many.
fn churn(first: u64) -> Value {
    let hash = |suffix: u64| 100 + suffix;
    let prompt = |suffix: u64| [(suffix >> 20) as u32, (suffix & 0xf_ffff) as u32, 1, 2];
    let stores = (first..first + CHURN_BATCH).map(|suffix| stored(&[hash(suffix)], Some(1), &prompt(suffix)));
    let old = first.checked_sub(CHURN_LIVE).map(|old| (old..old + CHURN_BATCH).map(hash).collect::<Vec<_>>());
    stores.chain(old.map(|hashes| removed(&hashes, "GPU"))).collect()
}
