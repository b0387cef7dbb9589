//! Many messages, many publishers, and removal in the middle of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Lab, key, payload, worker};
use crate::harness::Publisher;

#[test]
fn a_burst_of_20000_messages_is_applied_without_an_unreported_loss() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    lab.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    (0..20_000).for_each(|n| publisher.send("", n, &payload(n)));
    lab.wait_seq(1, 0, 19_999);
    let view = lab.view(1, 0).expect("registered");
    let held = lab.held(1, 0).len() as u64;
    assert_eq!(held + view.stream.missing_batches, 20_000, "{view:?}");
    assert_eq!((view.stream.gaps > 0), (view.stream.missing_batches > 0));
}

#[test]
fn publishers_64_at_once_are_all_heard() {
    let lab = Lab::new();
    let publishers: Vec<Publisher> = (0..64).map(|_| Publisher::bind()).collect();
    for (instance, publisher) in publishers.iter().enumerate() {
        lab.register(worker(instance as u64, 0, &publisher.endpoint));
    }
    publishers.iter().for_each(Publisher::wait_subscribed);
    for n in 0..50 {
        publishers.iter().for_each(|publisher| publisher.send("", n, &payload(n)));
    }
    for instance in 0..64 {
        lab.wait_seq(instance, 0, 49);
        assert_eq!(lab.held(instance, 0).len(), 50);
        lab.wait_reasons(instance, 0, &[]);
    }
}

#[test]
fn nothing_of_a_worker_is_left_or_comes_back_after_unregister_under_traffic() {
    let (lab, publisher) = (Lab::new(), Publisher::bind());
    // Another worker keeps the index alive.
    lab.register(worker(2, 0, "tcp://127.0.0.1:1"));
    let address = publisher.endpoint.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let traffic = std::thread::spawn(move || {
        // 5,000 per second.
        let start = Instant::now();
        let mut n = 0;
        while !stopped.load(Ordering::Relaxed) {
            publisher.send("", n, &payload(n % 1_000));
            n += 1;
            while start.elapsed() < Duration::from_micros(200 * n) && !stopped.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    });
    for _ in 0..10 {
        lab.register(worker(1, 0, &address));
        lab.wait("traffic", 1, 0, |view| view.report.blocks[0] > 20);
        lab.unregister(1, None);
        let index = lab.registry.index(&key()).expect("kept by the other worker");
        assert_eq!(index.read().owners().len(), 1, "the owner is gone when the call returns");
        assert_eq!(index.read().stats().held_blocks, 0);
        assert!(lab.view(1, 0).is_none());
    }
    stop.store(true, Ordering::Relaxed);
    traffic.join().expect("the traffic ends");
}
