//! Faults of comparable systems at a start from peers: each row that must not happen here is one test.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{digest, small_dump};
use crate::harness::msgpack::stored;
use crate::harness::worker::tokens;
use crate::harness::zmq_sockets::{DeadEndpoint, Frames};
use crate::harness::{FakePeer, Publisher, Router, Service, Worker, wait_for, wait_within};

/// Ready "at once": no time limit of a peer was waited for.
const AT_ONCE: Duration = Duration::from_secs(5);

fn ready_within(service: &Service, limit: Duration) {
    wait_within(limit, "the service to be ready", || {
        let reply = service.get("/ready");
        if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
    });
}

fn gpu(service: &Service, model: &str, instance: &str, tokens: &[u32]) -> Value {
    service.query(&json!({"model_name": model, "token_ids": tokens}))["instances"][instance]["gpu"].clone()
}

#[test]
fn f34_a_full_peer_behind_an_empty_one_is_the_source() {
    let (empty, full) = (Service::start(), Service::start());
    let mut worker = Worker::new(&full, "f34");
    worker.publish(json!([stored(&[1, 2], None, &tokens(1, 8))]));
    for peers in [[empty.url(), full.url()], [full.url(), empty.url()]] {
        let service = Service::start_with(&["--peers", &peers.join(",")], &[]);
        assert_eq!(gpu(&service, "f34", "1", &tokens(1, 8)), 8, "{peers:?}");
    }
}

#[test]
fn f34_a_peer_that_is_not_ready_is_no_source_beside_a_full_one() {
    // Says that it loads, and never gets on.
    let loading = FakePeer::start(|asked, line| match asked.path() {
        "/digest" => line.json(200, &digest("00000000000000aa", "loading", json!({"owners": 9, "blocks": 9_999}))),
        _ => line.json(503, &json!({"error": "recovering", "code": "not_ready"})),
    });
    let full = Service::start();
    let mut worker = Worker::new(&full, "f34");
    worker.publish(json!([stored(&[1, 2], None, &tokens(1, 8))]));
    let service = Service::launch(&["--peers", &format!("{},{}", loading.url(), full.url())], &[]);
    ready_within(&service, Duration::from_secs(10));
    assert_eq!(gpu(&service, "f34", "1", &tokens(1, 8)), 8);
    assert_eq!(loading.snapshots_asked(), 0);
}

#[test]
fn f34_a_full_reference_behind_an_empty_one_is_the_source() {
    let (empty, full) = (FakePeer::with_dump(json!({})), FakePeer::with_dump(small_dump("f34:default", 7)));
    for peers in [[empty.url(), full.url()], [full.url(), empty.url()]] {
        let service = Service::start_with(&["--peers", &peers.join(",")], &[]);
        assert_eq!(gpu(&service, "f34", "7", &tokens(1, 4)), 4, "{peers:?}");
    }
}

#[test]
fn f34_all_peers_empty_is_ready_at_once() {
    let (own, reference) = (Service::start(), FakePeer::with_dump(json!({})));
    for peers in [own.url(), reference.url(), format!("{},{}", own.url(), reference.url())] {
        let began = Instant::now();
        let service = Service::launch(&["--peers", &peers], &[]);
        ready_within(&service, AT_ONCE);
        assert!(began.elapsed() < AT_ONCE, "{peers}: {:?}", began.elapsed());
        assert_eq!(service.get("/dump").json(), json!({}), "{peers}");
    }
}

#[test]
fn f35_blocks_of_unknown_workers_are_visible_and_can_be_removed() {
    let peer = FakePeer::with_dump(small_dump("f35:default", 1));
    let service = Service::start_with(&["--peers", &peer.url()], &[]);
    assert_eq!(gpu(&service, "f35", "1", &tokens(1, 4)), 4);
    let workers = service.workers("f35");
    assert_eq!(workers[0]["source"], "recovered", "{workers:?}");
    assert_eq!(workers[0]["listeners"]["0"]["trust"]["state"], "stale", "{workers:?}");
    let reply = service.post("/unregister", &json!({"instance_id": 1, "model_name": "f35"}));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(service.workers("f35").is_empty());
    assert!(
        service
            .get("/dump")
            .json()
            .as_object()
            .is_some_and(|entries| { entries.values().all(|entry| entry["events"] == json!([])) })
    );
}

#[test]
fn f36_a_dead_replay_socket_of_a_worker_that_is_gone_delays_no_start() {
    let publisher = Publisher::bind();
    // Takes every request and answers none.
    let silent = Router::start(Box::new(|_| Vec::<Frames>::new()));
    let workers = format!("1={}|{}", publisher.endpoint, silent.endpoint);
    let service = Service::launch(&["--block-size", "4", "--model-name", "f36", "--workers", &workers], &[]);
    publisher.wait_subscribed();
    wait_for("the replay to be asked for", || {
        match silent.requests().len() {
            0 => Err("nothing asked"),
            _ => Ok(()),
        }
        .map_err(str::to_owned)
    });
    assert_eq!(service.get("/ready").status, 503, "the replay runs");
    let reply = service.post("/unregister", &json!({"instance_id": 1, "model_name": "f36"}));
    assert_eq!(reply.status, 200, "{}", reply.text());
    ready_within(&service, Duration::from_secs(2));
}

#[test]
fn f36_a_dead_replay_socket_at_a_peer_delays_no_start_either() {
    let source = Service::start();
    let dead = DeadEndpoint::reserve();
    let gone = Worker::with(&source, "f36", 1, json!({"replay_endpoint": dead.endpoint}));
    let mut stays = Worker::with(&source, "f36", 2, json!({}));
    stays.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let reply = source.post("/unregister", &json!({"instance_id": 1, "model_name": "f36"}));
    assert_eq!(reply.status, 200);
    let service = Service::launch(&["--peers", &source.url()], &[]);
    ready_within(&service, AT_ONCE);
    assert_eq!(gpu(&service, "f36", "2", &tokens(1, 4)), 4);
    assert!(service.listener("f36", "default", &gone.instance.to_string(), 0).is_none());
}

/// Passes everything on; the whole snapshot takes `time`.
fn slow(source: SocketAddr, time: Duration) -> FakePeer {
    const PIECES: u32 = 30;
    FakePeer::relay(source, move |reply, line| {
        line.head(reply.status, &[("Content-Length", &reply.body.len().to_string())]);
        for piece in reply.body.chunks(reply.body.len().div_ceil(PIECES as usize).max(1)) {
            if !line.write(piece) || !line.pause(time / PIECES) {
                return;
            }
        }
    })
}

#[test]
fn f37_nothing_is_answered_before_recovery_ends_and_progress_shows() {
    let source = Service::start();
    let mut worker = Worker::new(&source, "f37");
    let hashes: Vec<u64> = (1..=500).collect();
    worker.publish(json!([stored(&hashes, None, &tokens(1, 2_000))]));
    let peer = slow(source.address, Duration::from_secs(3));
    let service = Service::launch(&["--peers", &peer.url()], &[]);
    wait_for("the snapshot to be asked for", || match peer.snapshots_asked() {
        0 => Err(service.get("/ready").text()),
        _ => Ok(()),
    });
    let asked = Instant::now();
    let mut progress = vec![];
    let mut reasons = vec![];
    loop {
        assert_eq!(service.get("/health").status, 200);
        // The query first: readiness may come between the two.
        let query = service.post("/query", &json!({"model_name": "f37", "token_ids": tokens(1, 2_000)}));
        let ready = service.get("/ready");
        if ready.status == 200 {
            break;
        }
        assert_eq!((query.status, query.code().as_str()), (503, "not_ready"), "{}", query.text());
        assert_eq!(service.get("/digest").json()["phase"], "loading");
        progress.push(service.metric("kvindexer_recovery_bytes_total", &[]));
        reasons.push(ready.text());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(asked.elapsed() > Duration::from_secs(2), "the peer was slow: {:?}", asked.elapsed());
    let steps = progress.windows(2).filter(|two| two[0] < two[1]).count();
    assert!(steps >= 5 && progress.is_sorted(), "progress grows: {progress:?}");
    assert!(reasons.iter().all(|reason| reason.contains("recovery")), "{reasons:?}");
    assert_eq!(gpu(&service, "f37", "1", &tokens(1, 2_000)), 2_000);
}

#[test]
fn f38_a_single_replica_whose_service_names_nobody_or_itself_is_ready_soon() {
    let nobody = Service::launch(&["--peer-service", "no-such-name.invalid:8090"], &[]);
    ready_within(&nobody, Duration::from_secs(10));
    let itself = Service::launch_naming_itself("--peer-service", "localhost");
    ready_within(&itself, AT_ONCE);
    assert_eq!(itself.get("/digest").json()["phase"], "ready");
}
