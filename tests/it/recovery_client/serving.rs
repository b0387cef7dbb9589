//! What a replica that serves does about its peers.

use std::time::Duration;

use bytes::Bytes;
use kvindexer::ids::DpRank;
use kvindexer::recovery::{FORWARDED_HEADER, Forwarder, watch};
use kvindexer::registry::Unregister;

use super::*;

/// Watches until the condition holds.
#[track_caller]
fn watch_until<T>(side: &Side, what: &str, holds: impl FnMut() -> Result<T, String>) -> T {
    let (registry, replica, config) = (Arc::clone(&side.registry), side.replica.clone(), side.config.clone());
    let watching = side.runtime.spawn(async move { watch(&replica, &registry, &config, std::future::ready(())).await });
    let got = wait_for(what, holds);
    watching.abort();
    got
}

#[test]
fn a_degraded_stream_is_refilled_from_an_exact_peer() {
    let (full, late) = (Side::serving(), Side::serving());
    let mut engine = Engine::new();
    engine.register_at(&full, 1);
    fill(&mut engine);
    full.wait_seq(1, 2);
    // It begins in the middle, and there is nobody to ask for what was before.
    engine.register_at(&late, 1);
    engine.publish(json!([stored(&[9], None, &block(9))]));
    late.wait_seq(1, 3);
    full.wait_seq(1, 3);
    assert_eq!(late.trust(1), ["gap"]);
    let peer = full.voice().serve();
    assert!(late.replica.peers().add(&peer.url()));
    // The count follows the state: what is watched must not be dropped in between.
    watch_until(&late, "the stream to be exact, and counted", || {
        match (&late.trust(1)[..], &late.replica.counters().refills[..]) {
            ([], [("ok", 1)]) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(late.state(), full.state());
    engine.publish(json!([removed(&[9], "GPU")]));
    late.wait_seq(1, 4);
    full.wait_seq(1, 4);
    assert_eq!(late.state(), full.state());
}

#[test]
fn equal_replicas_are_compared_and_a_difference_is_counted() {
    let sides = [Side::serving(), Side::serving()];
    let mut engine = Engine::new();
    sides.iter().for_each(|side| engine.register_at(side, 1));
    fill(&mut engine);
    sides.iter().for_each(|side| side.wait_seq(1, 2));
    let peer = sides[1].voice().serve();
    assert!(sides[0].replica.peers().add(&peer.url()));
    let compared = |differing: u64| {
        let replica = sides[0].replica.clone();
        move || match replica.counters() {
            counters if (counters.compared_streams, counters.differing_streams) == (1, differing) => Ok(()),
            counters => Err(format!("{counters:?}")),
        }
    };
    watch_until(&sides[0], "an equal comparison", compared(0));
    // A fault of ours: a block vanishes at one of them without a word of the engine.
    let index = sides[1].registry.index(&key()).unwrap();
    let owner = index.read().owner_id(&Owner::new(1, 0)).unwrap();
    let batch = kvindexer::event::Batch {
        events: vec![kvindexer::event::Event::Cleared],
        ..kvindexer::event::Batch::default()
    };
    let context = kvindexer::index::ApplyContext { seq: kvindexer::ids::Seq(2), now_ms: 0 };
    index.write().apply(owner, &batch, context);
    watch_until(&sides[0], "the difference", compared(1));
}

#[test]
fn registrations_by_hand_are_taken_over_and_taken_back() {
    let (source, mut replica) = (Side::serving(), Side::serving());
    replica.config.forward_registrations = true;
    let engines = [Engine::new(), Engine::new()];
    for (engine, instance) in engines.iter().zip(1..) {
        engine.register_at(&source, instance);
    }
    let peer = source.voice().serve();
    assert!(replica.replica.peers().add(&peer.url()));
    let known = || replica.registry.registrations().len();
    watch_until(&replica, "two registrations", || if known() == 2 { Ok(()) } else { Err(known().to_string()) });
    assert_eq!(replica.registry.registrations(), source.registry.registrations());
    let what = Unregister { model: key().model, tenant: None, instance: 1.into(), rank: Some(DpRank(0)) };
    // Later than the registration, by the clock that both use.
    std::thread::sleep(Duration::from_millis(5));
    source.runtime.block_on(source.registry.unregister(what)).unwrap();
    watch_until(&replica, "one registration", || if known() == 1 { Ok(()) } else { Err(known().to_string()) });
    assert_eq!(replica.registry.registrations(), source.registry.registrations());
}

#[test]
fn without_forwarding_nobody_s_registrations_are_taken_over() {
    let (source, replica) = (Side::serving(), Side::serving());
    let engine = Engine::new();
    engine.register_at(&source, 1);
    let peer = source.voice().serve();
    assert!(replica.replica.peers().add(&peer.url()));
    let asked = |least: usize| {
        let peer = &peer;
        move || if peer.asked_for("/digest") >= least { Ok(()) } else { Err(peer.asked_for("/digest").to_string()) }
    };
    watch_until(&replica, "three comparisons", asked(3));
    assert_eq!(replica.registry.registrations(), []);
    assert_eq!(replica.replica.counters().differing_registrations, 1);
}

#[test]
fn a_registration_is_told_to_every_peer_once() {
    let good = FakePeer::start(|_, line| line.json(201, &json!({"status": "ok"})));
    let bad = FakePeer::start(|_, line| line.json(409, &json!({"error": "known", "code": "already_registered"})));
    let silent = FakePeer::start(|_, line| line.hang());
    let replica = Replica::new(PeerList::new([good.url(), bad.url(), silent.url()]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let body = Bytes::from_static(b"{\"instance_id\":1}");
    let outcomes = runtime.block_on(Forwarder::new(replica.clone()).forward("/register", body.clone()));
    assert_eq!(outcomes[&good.url()], "ok");
    assert!(outcomes[&bad.url()].starts_with("409 ") && outcomes[&bad.url()].contains("known"), "{outcomes:?}");
    assert!(outcomes[&silent.url()].contains("no answer"), "{outcomes:?}");
    for peer in [&good, &bad, &silent] {
        let asked = peer.asked();
        assert_eq!(asked.len(), 1);
        assert_eq!((asked[0].method.as_str(), asked[0].path()), ("POST", "/register"));
        assert_eq!(asked[0].header(FORWARDED_HEADER), Some(replica.id()));
        assert_eq!(asked[0].header("content-type"), Some("application/json"));
        assert_eq!(asked[0].body, body);
    }
}
