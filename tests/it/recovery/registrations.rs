//! Who is registered, in a set of replicas: told of once, taken back everywhere, never back from the dead.

use std::time::Duration;

use serde_json::{Value, json};

use super::small_dump;
use crate::harness::http::{Reply, Request, exchange_with};
use crate::harness::msgpack::stored;
use crate::harness::service::{free_address, plain};
use crate::harness::worker::tokens;
use crate::harness::zmq_sockets::DeadEndpoint;
use crate::harness::{FakePeer, Service, Worker, wait_for, wait_within};

const MODEL: &str = "members";
/// Time in which the replicas of a test compare themselves several times.
const NEXT_COMPARISON: Duration = Duration::from_secs(20);

/// Two replicas that tell each other of registrations.
fn pair(more: &[&str]) -> [Service; 2] {
    let addresses = [free_address(), free_address()];
    let start = |own: usize| {
        let mut peers = vec![format!("http://{}", addresses[1 - own])];
        peers.extend(more.iter().map(|peer| (*peer).to_owned()));
        let args = ["--forward-registrations", "--compare-interval-s", "1", "--peers", &peers.join(",")];
        Service::launch_at(addresses[own], &args, &[])
    };
    let pair = [start(0), start(1)];
    pair.iter().for_each(Service::wait_ready);
    pair
}

fn body(instance: u64, endpoint: &DeadEndpoint) -> Value {
    json!({"instance_id": instance, "model_name": MODEL, "block_size": 4, "endpoint": endpoint.endpoint})
}

fn unregister(service: &Service, instance: u64) -> Reply {
    service.post("/unregister", &json!({"instance_id": instance, "model_name": MODEL}))
}

fn instances(service: &Service) -> Vec<String> {
    let mut ids: Vec<String> = service.workers(MODEL).iter().map(|worker| plain(&worker["instance_id"])).collect();
    ids.sort();
    ids
}

fn tombstones(service: &Service) -> Vec<String> {
    let digest = service.get("/digest").json();
    let all = digest["tombstones"].as_array().expect("tombstones").iter();
    all.map(|stone| plain(&stone["instance"])).collect()
}

#[test]
fn registrations_and_their_end_are_told_once_to_every_peer() {
    let witness = FakePeer::start(|asked, line| match asked.path() {
        "/register" | "/unregister" => line.json(201, &json!({"status": "ok"})),
        "/dump" => line.json(200, &json!({})),
        _ => line.not_found(),
    });
    let endpoint = DeadEndpoint::reserve();
    let [a, b] = pair(&[&witness.url()]);
    let reply = a.post("/register", &body(1, &endpoint));
    assert_eq!(reply.status, 201, "{}", reply.text());
    let peers = &reply.json()["peers"];
    assert_eq!((&peers[b.url()], &peers[witness.url()]), (&json!("ok"), &json!("ok")), "{peers}");
    assert_eq!((instances(&a), instances(&b)), (vec!["1".to_owned()], vec!["1".to_owned()]));
    assert_eq!(witness.asked_for("/register"), 1, "by the first, not again by the one that was told");
    let told = witness.asked().into_iter().find(|asked| asked.path() == "/register").expect("it was told");
    assert!(told.header("x-kvindexer-forwarded").is_some());
    assert_eq!(serde_json::from_slice::<Value>(&told.body).expect("JSON")["instance_id"], 1);

    let reply = unregister(&b, 1);
    assert_eq!((reply.status, &reply.json()["peers"][a.url()]), (200, &json!("ok")), "{}", reply.text());
    assert!(instances(&a).is_empty() && instances(&b).is_empty());
    assert_eq!(witness.asked_for("/unregister"), 1);
    assert_eq!((tombstones(&a), tombstones(&b)), (vec!["1".to_owned()], vec!["1".to_owned()]));

    // A later registration counts, everywhere.
    assert_eq!(a.post("/register", &body(1, &endpoint)).status, 201);
    assert_eq!((instances(&a), instances(&b)), (vec!["1".to_owned()], vec!["1".to_owned()]));
    assert!(tombstones(&a).is_empty() && tombstones(&b).is_empty());
}

#[test]
fn a_request_that_was_forwarded_goes_no_further() {
    let witness = FakePeer::start(|asked, line| match asked.path() {
        "/dump" => line.json(200, &json!({})),
        _ => line.not_found(),
    });
    let service = Service::start_with(&["--forward-registrations", "--peers", &witness.url()], &[]);
    let endpoint = DeadEndpoint::reserve();
    let text = body(1, &endpoint).to_string();
    let request = Request {
        method: "POST",
        path: "/register",
        content_type: Some("application/json"),
        body: Some(text.as_bytes()),
    };
    let told = [("x-kvindexer-forwarded", "00000000000000ff")];
    let reply = exchange_with(service.address, &request, &told).expect("an answer");
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert!(reply.json()["peers"].is_null(), "{}", reply.text());
    assert_eq!(witness.asked_for("/register"), 0);
}

#[test]
fn without_the_option_nobody_is_told() {
    let witness = FakePeer::start(|asked, line| match asked.path() {
        "/dump" => line.json(200, &json!({})),
        _ => line.not_found(),
    });
    let service = Service::start_with(&["--peers", &witness.url()], &[]);
    let endpoint = DeadEndpoint::reserve();
    let reply = service.post("/register", &body(1, &endpoint));
    assert_eq!(reply.status, 201);
    assert!(reply.json()["peers"].is_null(), "{}", reply.text());
    assert_eq!(unregister(&service, 1).status, 200);
    assert_eq!(witness.asked_for("/register") + witness.asked_for("/unregister"), 0);
}

#[test]
fn what_a_peer_missed_is_made_up_for_at_the_next_comparison() {
    let endpoint = DeadEndpoint::reserve();
    let [a, b] = pair(&[]);
    assert_eq!(a.post("/register", &body(1, &endpoint)).status, 201);
    assert_eq!(instances(&b), ["1"]);
    signal(&b, "STOP");
    let told = unregister(&a, 1);
    let registered = a.post("/register", &body(2, &endpoint));
    signal(&b, "CONT");
    for reply in [told, registered] {
        assert!(reply.status < 300, "a peer that does not answer holds nobody up: {}", reply.text());
        assert_ne!(reply.json()["peers"][b.url()], "ok", "{}", reply.text());
    }
    wait_within(NEXT_COMPARISON, "both changes at the peer", || {
        let seen = instances(&b);
        if seen == ["2"] { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!(instances(&a), ["2"], "nothing came back");
}

fn signal(service: &Service, name: &str) {
    let sent = std::process::Command::new("kill").args(["-s", name, &service.pid().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

#[test]
fn the_dead_do_not_come_back_from_a_peer_that_still_names_them() {
    let source = Service::start();
    let mut worker = Worker::new(&source, MODEL);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let endpoint = DeadEndpoint::reserve();
    assert_eq!(source.post("/register", &body(2, &endpoint)).status, 201);
    assert_eq!(unregister(&source, 2).status, 200);
    let service = Service::start_with(&["--peers", &source.url()], &[]);
    assert_eq!(instances(&service), ["1"]);
    assert_eq!(tombstones(&service), ["2"], "the memory of it came along");
}

#[test]
fn a_recovered_registration_is_the_one_that_the_peer_had() {
    let source = Service::start();
    let worker = Worker::with(
        &source,
        MODEL,
        1,
        json!({"dp_rank": 0, "replay_endpoint": "tcp://127.0.0.1:1", "duplicate_policy": "copies", "topic": "",
            "lower_tier_ttl_s": 60, "additional_salt": "salt", "role": "worker"}),
    );
    let store = DeadEndpoint::reserve();
    let mut pool = body(2, &store);
    (pool["role"], pool["dp_rank"], pool["topic"]) = (json!("store"), json!(3), json!("kv@"));
    assert_eq!(source.post("/register", &pool).status, 201);
    let service = Service::start_with(&["--peers", &source.url()], &[]);
    wait_for("the publisher to be heard", || {
        let listener = service.listener(MODEL, "default", "1", 0).unwrap_or(Value::Null);
        if listener["status"] == "active" { Ok(()) } else { Err(listener.to_string()) }
    });
    let shown = |service: &Service| {
        let mut workers = service.workers(MODEL);
        workers.sort_by_key(|worker| plain(&worker["instance_id"]));
        for worker in &mut workers {
            for listener in worker["listeners"].as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
                // What each process has seen for itself.
                for key in ["counters", "last_event_ms", "lag_ms", "last_error", "trust"] {
                    listener.as_object_mut().expect("a listener").remove(key);
                }
            }
        }
        json!(workers)
    };
    assert_eq!(shown(&service), shown(&source));
    drop(worker);
}

#[test]
fn our_own_registration_stays_where_a_peer_has_another_address() {
    let source = Service::start();
    let mut worker = Worker::new(&source, MODEL);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let ours = DeadEndpoint::reserve();
    let workers = format!("1={}", ours.endpoint);
    let args = ["--peers", &source.url(), "--block-size", "4", "--model-name", MODEL, "--workers", &workers];
    let service = Service::launch(&args, &[]);
    wait_within(Duration::from_secs(40), "the service to be ready", || {
        let reply = service.get("/ready");
        if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
    });
    let listener = service.listener(MODEL, "default", "1", 0).expect("our worker");
    assert_eq!(listener["endpoint"], json!(ours.endpoint));
    assert_eq!(listener["blocks"]["device"], 0, "what the peer heard elsewhere is not ours: {listener}");
}

#[test]
fn a_recovered_owner_that_registers_goes_on_and_one_that_does_not_goes_after_its_grace() {
    let mut dump = small_dump("grace:default", 1);
    let other = small_dump("grace:default", 2)["grace:default"]["events"][0].clone();
    dump["grace:default"]["events"].as_array_mut().expect("events").push(other);
    let peer = FakePeer::with_dump(dump);
    let service = Service::start_with(&["--recovered-grace-s", "3", "--peers", &peer.url()], &[]);
    let gpu = |instance: &str| {
        let answer = service.query(&json!({"model_name": "grace", "token_ids": tokens(1, 4)}));
        answer["instances"][instance]["gpu"].clone()
    };
    assert_eq!((gpu("1"), gpu("2")), (json!(4), json!(4)));
    let endpoint = DeadEndpoint::reserve();
    let mut registration = body(2, &endpoint);
    registration["model_name"] = json!("grace");
    assert_eq!(service.post("/register", &registration).status, 201);
    wait_within(Duration::from_secs(20), "the other one to be dropped", || {
        let workers = service.workers("grace");
        if workers.len() == 1 { Ok(()) } else { Err(format!("{workers:?}")) }
    });
    assert_eq!((gpu("1"), gpu("2")), (Value::Null, json!(4)));
    let dump = service.get("/dump").json();
    let left = dump["grace:default"]["events"].as_array().expect("events").len();
    assert_eq!(left, 1, "its blocks are gone with it: {dump}");
}
