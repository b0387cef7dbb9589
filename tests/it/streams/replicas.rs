//! A second registry takes its state from the first one while publishers run: without HTTP, only copy, import, adopt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvindexer::ids::{Mark, Seq, Source};
use kvindexer::image::StreamName;
use kvindexer::registry::{Adopted, ExportFilter, Recovered, RecoveredIndex, RecoveredStream, Registry, StreamView};
use kvindexer::trust::{Reason, State};

use super::{Lab, key, payload, with_replay, worker};
use crate::harness::zmq_sockets::{Ring, Shape};
use crate::harness::{Publisher, msgpack, wait_for};

/// Everything that `from` has, built apart with the bounds of `to`.
fn copied(from: &Registry, to: &Registry) -> Recovered {
    let mut indexes = BTreeMap::new();
    for stream in from.exports(&ExportFilter::default()) {
        let block_size = stream.head.block_size().expect("not zero");
        let Some(image) = stream.copy() else { continue };
        let into = indexes
            .entry(stream.head.key.clone())
            .or_insert_with(|| RecoveredIndex { index: to.new_index(block_size), streams: Vec::new() });
        into.index.import(&image.image, 0).expect("consistent");
        into.streams.push(RecoveredStream::from(&image));
    }
    Recovered { indexes }
}

fn recover(from: &Lab, to: &Lab) -> Adopted {
    let recovered = copied(&from.registry, &to.registry);
    to.runtime.block_on(to.registry.adopt(recovered))
}

fn view_of(lab: &Lab, instance: u64) -> StreamView {
    let mut views = lab.registry.digests().into_iter();
    views.find(|view| view.name.instance == instance.into()).expect("a stream")
}

/// Waits until both have applied `seq`, and compares digests, history and trust.
#[track_caller]
fn check_equal(a: &Lab, b: &Lab, instance: u64, seq: u64) {
    for lab in [a, b] {
        lab.wait_seq(instance, 0, seq);
        lab.wait_reasons(instance, 0, &[]);
    }
    let (ours, theirs) = (view_of(a, instance), view_of(b, instance));
    assert_eq!(ours.position, theirs.position);
    assert_eq!(ours.digest, theirs.digest);
    assert_eq!(a.held(instance, 0), b.held(instance, 0));
    let common: Vec<_> =
        ours.history.iter().filter(|entry| theirs.history.iter().any(|other| other.0 == entry.0)).collect();
    assert!(!common.is_empty(), "{:?} {:?}", ours.history, theirs.history);
    assert!(common.iter().all(|entry| theirs.history.contains(entry)), "{:?} {:?}", ours.history, theirs.history);
}

/// Sends numbers at 2,000 per second until told to end; the count goes on.
fn traffic(publisher: Publisher, ring: Option<Ring>) -> (Arc<AtomicU64>, impl FnOnce() -> (Publisher, u64)) {
    let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, stopped) = (Arc::clone(&sent), Arc::clone(&stop));
    let thread = std::thread::spawn(move || {
        let start = Instant::now();
        let mut n = 0;
        while !stopped.load(Ordering::Relaxed) {
            let bytes = batch(n);
            ring.iter().for_each(|ring| ring.push(n, &bytes));
            publisher.send("", n, &bytes);
            n += 1;
            count.store(n, Ordering::Relaxed);
            while start.elapsed() < Duration::from_micros(500 * n) && !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        (publisher, n)
    });
    let end = move || {
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("the traffic ends")
    };
    (sent, end)
}

/// Stores block 100 + n and removes what was stored 300 batches before.
fn batch(n: u64) -> Vec<u8> {
    let first = 4 * u32::try_from(n).expect("small");
    let stored = msgpack::stored(&[100 + n], None, &[first + 1, first + 2, first + 3, first + 4]);
    let removed = n.checked_sub(300).map(|old| serde_json::json!(["BlockRemoved", [100 + old]]));
    msgpack::batch(std::iter::once(stored).chain(removed).collect())
}

fn wait_sent(sent: &AtomicU64, count: u64) {
    wait_for("traffic", || match sent.load(Ordering::Relaxed) {
        so_far if so_far >= count => Ok(()),
        so_far => Err(so_far.to_string()),
    });
}

#[test]
fn a_replica_that_joins_under_traffic_equals_its_source_with_and_without_a_replay_endpoint() {
    for has_replay in [false, true] {
        let (a, b) = (Lab::new(), Lab::recovering());
        let (publisher, ring) = (Publisher::bind(), Ring::default());
        let router = ring.router(Shape::Three);
        let spec = match has_replay {
            true => with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint),
            false => worker(1, 0, &publisher.endpoint),
        };
        a.register(spec);
        publisher.wait_subscribed();
        let subscriptions = publisher.endpoint.clone();
        let (sent, end) = traffic(publisher, has_replay.then(|| ring.clone()));
        wait_sent(&sent, 700);
        // Registrations first: B hears and holds; then the state.
        let restored = b.runtime.block_on(b.registry.restore(a.registry.registrations(), a.registry.tombstones()));
        assert_eq!((restored.added, restored.kept, restored.refused.len()), (1, 0, 0), "{subscriptions}");
        b.wait("a connection", 1, 0, |view| view.stream.connects == 1);
        wait_sent(&sent, sent.load(Ordering::Relaxed) + 300);
        assert_eq!(b.held(1, 0), Vec::<u64>::new(), "nothing is applied before the state is there");
        let adopted = recover(&a, &b);
        assert_eq!((adopted.indexes, adopted.owners, adopted.streams, adopted.refused), (1, 1, 1, 0));
        wait_sent(&sent, sent.load(Ordering::Relaxed) + 600);
        let (_publisher, count) = end();
        check_equal(&a, &b, 1, count - 1);
        let view = b.view(1, 0).expect("registered");
        assert_eq!((view.source, view.stream.restarts, view.stream.missing_batches), (Source::Manual, 0, 0));
        assert!(view.stream.settled && !view.stream.holding);
    }
}

#[test]
fn a_publisher_that_restarts_between_the_copy_and_the_adoption_is_noticed() {
    let (a, b) = (Lab::new(), Lab::recovering());
    let publisher = Publisher::bind();
    a.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    (0..4).for_each(|n| publisher.send("", n, &payload(n)));
    a.wait_seq(1, 0, 3);
    let state = copied(&a.registry, &b.registry);
    b.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    // Another life: other payloads under the same numbers.
    (0..6).for_each(|n| publisher.send("", n, &payload(50 + n)));
    a.wait_held(1, 0, &[150, 151, 152, 153, 154, 155]);
    b.runtime.block_on(b.registry.adopt(state));
    b.wait_held(1, 0, &[150, 151, 152, 153, 154, 155]);
    b.wait_reasons(1, 0, &[]);
    assert_eq!(view_of(&a, 1).digest, view_of(&b, 1).digest);
}

#[test]
fn ranks_that_only_batches_name_come_along_and_go_on() {
    let (a, b) = (Lab::new(), Lab::recovering());
    let publisher = Publisher::bind();
    a.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    publisher.send("", 1, &msgpack::batch_of_rank(super::store(1), 7));
    a.wait_seq(1, 0, 1);
    b.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    recover(&a, &b);
    publisher.send("", 2, &msgpack::batch_of_rank(super::store(2), 7));
    for lab in [&a, &b] {
        lab.wait_held(1, 7, &[101, 102]);
        lab.wait_reasons(1, 0, &[]);
    }
    assert_eq!(view_of(&a, 1).digest, view_of(&b, 1).digest);
    assert_eq!(view_of(&b, 1).owners.len(), 2);
}

#[test]
fn a_rank_that_the_source_does_not_know_is_degraded_and_the_other_is_not() {
    let (a, b) = (Lab::new(), Lab::recovering());
    let publisher = Publisher::bind();
    a.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 0, &payload(0));
    a.wait_seq(1, 0, 0);
    b.register(worker(1, 0, &publisher.endpoint));
    b.register(worker(1, 3, &publisher.endpoint));
    publisher.wait_subscribed();
    recover(&a, &b);
    publisher.send("", 1, &payload(1));
    b.wait_held(1, 0, &[100, 101]);
    b.wait_held(1, 3, &[101]);
    b.wait_reasons(1, 0, &[]);
    b.wait_reasons(1, 3, &[Reason::Gap]);
}

#[test]
fn a_degraded_owner_is_refilled_from_an_exact_replica_at_run_time() {
    let (a, b) = (Lab::new(), Lab::new());
    let publisher = Publisher::bind();
    a.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    (0..3).for_each(|n| publisher.send("", n, &payload(n)));
    a.wait_seq(1, 0, 2);
    b.register(worker(1, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.send("", 3, &payload(3));
    b.wait_reasons(1, 0, &[Reason::Gap]);
    let name = view_of(&b, 1).name;
    let begin = || b.runtime.block_on(b.registry.begin_refill(&key(), &name));
    let refill = begin().expect("it runs");
    assert_eq!(refill.position.mark.map(|mark| mark.seq.0), Some(3));
    assert!(begin().is_none(), "it holds as it is");
    publisher.send("", 4, &payload(4));
    a.wait_seq(1, 0, 4);
    assert_eq!(b.held(1, 0), [103], "what comes waits");
    let image = image(&a, &name);
    publisher.send("", 5, &payload(5));
    assert!(b.runtime.block_on(b.registry.end_refill(refill, image)));
    b.wait_held(1, 0, &[100, 101, 102, 103, 104, 105]);
    b.wait_reasons(1, 0, &[]);
    a.wait_seq(1, 0, 5);
    assert_eq!(view_of(&a, 1).digest, view_of(&b, 1).digest);

    // An image that is older than what is here, or none, changes nothing.
    let old = self::image(&a, &name);
    publisher.send("", 6, &payload(6));
    b.wait_seq(1, 0, 6);
    let refill = begin().expect("it runs");
    assert!(!b.runtime.block_on(b.registry.end_refill(refill, old)));
    // Nor does one of a life that nobody here has heard, though its numbers are larger and it calls itself exact.
    let mut other_life = self::image(&a, &name).expect("it is there");
    other_life.position.mark = Some(Mark { seq: Seq(9), payload_hash: 9 });
    let refill = begin().expect("it was let go");
    assert!(!b.runtime.block_on(b.registry.end_refill(refill, Some(other_life))));
    drop(begin().expect("it was let go"));
    publisher.send("", 7, &payload(7));
    b.wait_held(1, 0, &[100, 101, 102, 103, 104, 105, 106, 107]);
    b.wait_reasons(1, 0, &[]);
}

fn image(from: &Lab, name: &StreamName) -> Option<kvindexer::image::StreamImage> {
    from.registry.exports(&ExportFilter::default()).iter().find(|export| export.name == *name)?.copy()
}

#[test]
fn content_without_a_position_is_degraded_until_the_beginning_is_replayed() {
    let (a, b) = (Lab::new(), Lab::recovering());
    let (publisher, ring) = (Publisher::bind(), Ring::default());
    let router = ring.router(Shape::Three);
    a.register(worker(1, 0, &publisher.endpoint));
    a.register(worker(2, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.wait_subscribed();
    for n in 0..3 {
        ring.push(n, &payload(n));
        publisher.send("", n, &payload(n));
    }
    a.wait_seq(1, 0, 2);
    a.wait_seq(2, 0, 2);
    b.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    b.register(worker(2, 0, &publisher.endpoint));
    let mut state = copied(&a.registry, &b.registry);
    // As a `/dump` would give it.
    state.indexes.values_mut().for_each(|index| index.streams.clear());
    let adopted = b.runtime.block_on(b.registry.adopt(state));
    assert_eq!((adopted.owners, adopted.streams), (2, 0));
    b.wait_held(2, 0, &[100, 101, 102]);
    b.wait_reasons(2, 0, &[Reason::NoWatermark]);
    b.wait_reasons(1, 0, &[]);
    b.wait_held(1, 0, &[100, 101, 102]);
    assert_eq!(view_of(&b, 1).position.mark.map(|mark| mark.seq.0), Some(2));
}

#[test]
fn verify_rebuilds_an_owner_and_names_what_differs() {
    let lab = Lab::new();
    let (publisher, ring) = (Publisher::bind(), Ring::default());
    let router = ring.router(Shape::Four);
    lab.register(with_replay(worker(1, 0, &publisher.endpoint), &router.endpoint));
    lab.register(worker(2, 0, &publisher.endpoint));
    publisher.wait_subscribed();
    publisher.wait_subscribed();
    for n in 0..5 {
        ring.push(n, &payload(n));
        publisher.send("", n, &payload(n));
    }
    lab.wait_seq(1, 0, 4);
    let owner = |instance: u64| kvindexer::ids::Owner::new(instance, 0);
    let verify = |instance| {
        let idle = Duration::from_secs(2);
        lab.runtime.block_on(lab.registry.verify(&key(), &owner(instance), idle))
    };
    let outcome = verify(1).expect("it answers");
    assert_eq!((outcome.at.map(|seq| seq.0), outcome.replayed_from.map(|seq| seq.0)), (Some(4), Some(0)));
    assert!(outcome.complete);
    assert_eq!((outcome.rebuilt_blocks, outcome.live_blocks, outcome.missing.0, outcome.surplus.0), (5, 5, 0, 0));
    assert_eq!(verify(2).expect_err("nobody to ask").to_string(), "instance 2 dp_rank 0 has no replay endpoint");
    assert_eq!(verify(3).expect_err("unknown").to_string(), "instance 3 not found");

    // A live state that drifted: its blocks are gone.
    {
        let index = lab.registry.index(&key()).expect("an index");
        let mut index = index.write();
        let id = index.owner_id(&owner(1)).expect("registered");
        index.clear(id, kvindexer::index::Clear::AllBlocksCleared, 0);
    }
    let outcome = verify(1).expect("it answers");
    assert_eq!((outcome.missing.0, outcome.missing.1.len(), outcome.surplus.0), (5, 5, 0));
    assert!(outcome.complete);
    let state = lab.view(1, 0).expect("registered").report.trust.state();
    assert_eq!(state, State::Exact, "verify touches nothing");
}
