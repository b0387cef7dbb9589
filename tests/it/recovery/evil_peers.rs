//! Peers that fail in every way in which one can: nothing of theirs stays, and the good peer behind them is taken.
//!
//! The evil one passes a real replica's answers on and spoils the snapshot, so that the choice of peers sees two good ones.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{digest, replica_id};
use crate::harness::fake_peer::{Asked, Line, ask};
use crate::harness::http::Reply;
use crate::harness::msgpack::stored;
use crate::harness::service::free_address;
use crate::harness::worker::tokens;
use crate::harness::zmq_sockets::DeadEndpoint;
use crate::harness::{FakePeer, Service, Worker, in_parallel, wait_for, wait_within};

const MODEL: &str = "evil";
/// Blocks of the source, one prompt.
const BLOCKS: u64 = 400;
const READY_MAX: Duration = Duration::from_secs(40);

/// A replica whose worker holds [`BLOCKS`] blocks.
fn source_of(service: &Service) -> Worker<'_> {
    let mut worker = Worker::new(service, MODEL);
    for first in (1..=BLOCKS).step_by(50) {
        let hashes: Vec<u64> = (first..first + 50).collect();
        let parent = (first > 1).then(|| first - 1);
        worker.publish(json!([stored(&hashes, parent, &tokens(4 * first as u32, 200))]));
    }
    worker
}

/// Everything is there, once, and right.
#[track_caller]
fn has_all(service: &Service) {
    let answer = service.query(&json!({"model_name": MODEL, "token_ids": tokens(4, 4 * BLOCKS as u32)}));
    assert_eq!(answer["instances"]["1"]["gpu"], 4 * BLOCKS, "{answer}");
    assert!(answer["instances"]["1"]["trust"].is_null(), "exact: {answer}");
    let listener = service.listener(MODEL, "default", "1", 0).expect("the registration came along");
    assert_eq!(listener["last_seq"], BLOCKS / 50 - 1, "{listener}");
    assert_eq!(listener["blocks"]["device"], BLOCKS, "{listener}");
}

#[track_caller]
fn ready_within(service: &Service, limit: Duration) {
    wait_within(limit, "the service to be ready", || {
        let reply = service.get("/ready");
        if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
    });
}

type Spoil = fn(&Reply, &mut Line);

/// How a snapshot can be spoilt on its way.
const WAYS: &[(&str, Spoil)] = &[
    ("ends at once", |_, _| {}),
    ("says nothing", |_, line| line.hang()),
    ("hangs in the middle", |reply, line| {
        line.head(200, &[("Content-Length", &reply.body.len().to_string())]);
        line.write(&reply.body[..reply.body.len() / 2]);
        line.hang();
    }),
    ("dies in the middle", |reply, line| {
        line.head(200, &[("Content-Length", &reply.body.len().to_string())]);
        line.write(&reply.body[..reply.body.len() / 2]);
    }),
    ("dies before the last byte", |reply, line| {
        line.head(200, &[("Content-Length", &reply.body.len().to_string())]);
        line.write(&reply.body[..reply.body.len() - 1]);
    }),
    ("says that the middle is the end", |reply, line| {
        line.reply(200, "application/octet-stream", &reply.body[..reply.body.len() / 2]);
    }),
    ("says that all but the last byte is all", |reply, line| {
        line.reply(200, "application/octet-stream", &reply.body[..reply.body.len() - 1]);
    }),
    ("is empty", |_, line| line.reply(200, "application/octet-stream", b"")),
    ("has something behind its end", |reply, line| {
        let longer = [&reply.body[..], b"more"].concat();
        line.reply(200, "application/octet-stream", &longer);
    }),
    ("comes twice", |reply, line| {
        let twice = [&reply.body[..], &reply.body[..]].concat();
        line.reply(200, "application/octet-stream", &twice);
    }),
    ("is garbage", |reply, line| {
        let garbage: Vec<u8> = (0..reply.body.len()).map(|at| (at as u32).wrapping_mul(2_654_435_761) as u8).collect();
        line.reply(200, "application/octet-stream", &garbage);
    }),
    ("is garbage behind a good beginning", |reply, line| {
        let mut body = reply.body.clone();
        let half = body.len() / 2;
        body[half..].fill(0xA5);
        line.reply(200, "application/octet-stream", &body);
    }),
    ("has another first byte", |reply, line| flipped(reply, line, 0)),
    ("has another bit in the middle", |reply, line| flipped(reply, line, reply.body.len() / 2)),
    ("has another last byte", |reply, line| flipped(reply, line, reply.body.len() - 1)),
    ("has another version", |reply, line| {
        // The version stands behind the magic word; whatever byte it is, each of the first ones counts.
        let mut body = reply.body.clone();
        body[8..10].fill(0xFF);
        line.reply(200, "application/octet-stream", &body);
    }),
    ("names a length of 16 EiB", |reply, line| {
        let mut body = reply.body.clone();
        body[10..20].fill(0xFF);
        line.reply(200, "application/octet-stream", &body);
    }),
    ("is a page for people", |_, line| line.reply(200, "text/html", b"<html>Welcome to nginx!</html>")),
    ("is an error", |_, line| line.json(500, &json!({"error": "oops", "code": "internal"}))),
    ("is always too busy", |_, line| {
        line.head(503, &[("Retry-After", "1"), ("Content-Length", "0")]);
    }),
    ("is forbidden", |_, line| line.json(403, &json!({"error": "no", "code": "forbidden"}))),
    ("is somewhere else, which is here", |_, line| {
        line.head(302, &[("Location", "/snapshot"), ("Content-Length", "0")]);
    }),
    ("is no HTTP", |_, line| {
        line.write(b"SSH-2.0-OpenSSH_9.2\r\n");
    }),
    ("has endless headers", |_, line| {
        line.write(b"HTTP/1.1 200 OK\r\n");
        while line.write(b"X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n") {}
    }),
];

fn flipped(reply: &Reply, line: &mut Line, at: usize) {
    let mut body = reply.body.clone();
    body[at] ^= 0x10;
    line.reply(reply.status, "application/octet-stream", &body);
}

/// Passes a replica on under another id with more to offer, so that it is chosen before any other, and spoils the
/// snapshot.
fn evil(source: SocketAddr, spoil: impl Fn(&Reply, &mut Line) + Send + Sync + 'static) -> FakePeer {
    FakePeer::start(move |asked: &Asked, line: &mut Line| match ask(source, asked) {
        Ok(reply) if asked.path() == "/digest" => {
            let mut better = reply.json();
            better["replica_id"] = json!("0000000000000001");
            for key in ["exact_owners", "applied", "blocks", "owners"] {
                better[key] = json!(better[key].as_u64().unwrap_or(0) + 1_000);
            }
            line.json(200, &better);
        }
        Ok(reply) if asked.is_whole_snapshot() => spoil(&reply, line),
        Ok(reply) => line.pass(&reply),
        Err(error) => line.reply(502, "text/plain", error.as_bytes()),
    })
}

#[test]
fn a_snapshot_spoilt_in_any_way_leaves_nothing_and_the_next_peer_is_taken() {
    let source = Service::start();
    let _worker = source_of(&source);
    let outcomes = in_parallel(WAYS, 6, |(way, spoil)| {
        catch_unwind(AssertUnwindSafe(|| {
            let bad = evil(source.address, *spoil);
            let service = Service::launch(&["--peers", &format!("{},{}", bad.url(), source.url())], &[]);
            ready_within(&service, READY_MAX);
            assert!(bad.snapshots_asked() > 0, "the evil peer was asked first");
            has_all(&service);
            // One that is busy has not failed.
            let failed = service.metric("kvindexer_recovery_attempts_total", &[("outcome", "failed")]);
            assert!(failed >= 1.0 || way.contains("busy"), "{failed} attempts failed");
        }))
        .map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            format!("a snapshot that {way}: {}", text.unwrap_or_else(|| "a check failed, see above".to_owned()))
        })
    });
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), WAYS.len(), failures.join("\n"));
}

#[test]
fn without_another_peer_a_spoilt_snapshot_ends_in_a_cold_start_that_says_so() {
    let source = Service::start();
    let _worker = source_of(&source);
    let bad = evil(source.address, |reply, line| flipped(reply, line, reply.body.len() / 2));
    let service = Service::launch(&["--peers", &bad.url()], &[]);
    ready_within(&service, Duration::from_secs(60));
    assert!(bad.snapshots_asked() >= 3, "three rounds: {}", bad.snapshots_asked());
    assert_eq!(service.metric("kvindexer_recovery_cold_starts_total", &[]), 1.0);
    service.has_logged(|line| line.contains("ERROR")).expect("an error is said");
    // The worker was learnt of, its blocks were not.
    let listener = service.listener(MODEL, "default", "1", 0).expect("registrations are taken");
    assert_ne!(listener["trust"]["state"], "exact", "{listener}");
    let answer = service.query(&json!({"model_name": MODEL, "token_ids": tokens(4, 400)}));
    assert_eq!(answer["instances"]["1"]["gpu"], 0, "{answer}");
}

#[test]
fn a_dripping_snapshot_is_read_to_its_end() {
    let source = Service::start();
    let _worker = source_of(&source);
    let slow = FakePeer::relay(source.address, |reply, line| {
        line.head(200, &[("Content-Length", &reply.body.len().to_string())]);
        for piece in reply.body.chunks(reply.body.len().div_ceil(24)) {
            if !line.write(piece) || !line.pause(Duration::from_millis(500)) {
                return;
            }
        }
    });
    let began = Instant::now();
    let service = Service::launch(&["--peers", &slow.url()], &[]);
    ready_within(&service, READY_MAX);
    assert!(began.elapsed() > Duration::from_secs(10), "slower than any total limit: {:?}", began.elapsed());
    has_all(&service);
}

#[test]
fn a_busy_peer_is_asked_again_when_it_said() {
    let source = Service::start();
    let _worker = source_of(&source);
    let refusals = Mutex::new(2);
    let busy = FakePeer::relay(source.address, move |reply, line| {
        let mut left = refusals.lock().expect("no holder panics");
        if *left > 0 {
            *left -= 1;
            line.head(503, &[("Retry-After", "1"), ("Content-Length", "0")]);
        } else {
            line.pass(reply);
        }
    });
    let service = Service::launch(&["--peers", &busy.url()], &[]);
    ready_within(&service, READY_MAX);
    has_all(&service);
}

#[test]
fn a_peer_that_hangs_at_every_path_delays_the_start_by_its_limit_only() {
    let source = Service::start();
    let _worker = source_of(&source);
    let silent = FakePeer::start(|_, line| line.hang());
    for peers in [format!("{},{}", silent.url(), source.url()), format!("{},{}", source.url(), silent.url())] {
        let service = Service::launch(&["--peers", &peers], &[]);
        ready_within(&service, Duration::from_secs(15));
        has_all(&service);
    }
    let began = Instant::now();
    let service = Service::launch(&["--peers", &silent.url()], &[]);
    ready_within(&service, READY_MAX);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn an_index_of_another_block_size_is_refused_and_the_others_are_taken() {
    let source = Service::start();
    let _worker = source_of(&source);
    let mut other = Worker::new(&source, "other");
    other.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let dead = DeadEndpoint::reserve();
    let workers = format!("9={}", dead.endpoint);
    let args = ["--peers", &source.url(), "--block-size", "16", "--model-name", "other", "--workers", &workers];
    let service = Service::launch(&args, &[]);
    ready_within(&service, READY_MAX);
    has_all(&service);
    assert_eq!(service.metric("kvindexer_recovery_refused_total", &[("reason", "block_size")]), 1.0);
    let answer = service.query(&json!({"model_name": "other", "token_ids": tokens(1, 16)}));
    assert!(answer["instances"].as_object().is_some_and(|all| all.keys().eq(["9"])), "{answer}");
    let warns = |line: &str| line.contains("WARN") && line.contains("other") && line.contains("16");
    service.has_logged(warns).expect("a warning names the index and the size");
}

#[test]
fn a_peer_that_is_ourselves_is_no_source() {
    let service = Service::launch_naming_itself("--peers", "http://127.0.0.1");
    ready_within(&service, Duration::from_secs(5));
    assert_eq!(service.get("/dump").json(), json!({}));
}

#[test]
fn replicas_that_name_each_other_and_start_together_all_get_ready() {
    for count in [2, 3] {
        let addresses: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
        let peers: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
        let peers = peers.join(",");
        // Each also names itself, as replicas of one set with one configuration do.
        let replicas =
            in_parallel(&addresses, count, |address| Service::launch_at(*address, &["--peers", &peers], &[]));
        for replica in &replicas {
            ready_within(replica, Duration::from_secs(10));
        }
        let ids: BTreeSet<String> = replicas.iter().map(replica_id).collect();
        assert_eq!(ids.len(), count, "{ids:?}");
    }
}

#[test]
fn two_replicas_that_start_together_beside_a_full_one_both_have_all() {
    let source = Service::start();
    let mut worker = source_of(&source);
    let addresses = [free_address(), free_address()];
    let all = format!("http://{},http://{},{}", addresses[0], addresses[1], source.url());
    let replicas = in_parallel(&addresses, 2, |address| Service::launch_at(*address, &["--peers", &all], &[]));
    for replica in &replicas {
        ready_within(replica, READY_MAX);
        has_all(replica);
    }
    worker.publish(json!([stored(&[9_001], None, &tokens(90_001, 4))]));
    for replica in &replicas {
        wait_for("the batch after the start", || {
            let answer = replica.query(&json!({"model_name": MODEL, "token_ids": tokens(90_001, 4)}));
            let instance = answer["instances"]["1"].clone();
            if instance["gpu"] == 4 && instance["trust"].is_null() { Ok(()) } else { Err(instance.to_string()) }
        });
    }
}

#[test]
fn a_peer_that_restarts_while_it_is_read_is_followed_by_the_next() {
    let source = Service::start();
    let mut worker = source_of(&source);
    let registration =
        json!({"instance_id": 1, "endpoint": worker.publisher.endpoint, "model_name": MODEL, "block_size": 4});
    let mut dying = Service::start_with(&["--peers", &source.url()], &[]);
    has_all(&dying);
    let dying_address = dying.address;
    let read = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&read);
    // The snapshot stops half-way, and at every later question a process without any state stands there.
    let relay = evil(dying_address, move |reply, line| {
        line.head(200, &[("Content-Length", &reply.body.len().to_string())]);
        line.write(&reply.body[..reply.body.len() / 2]);
        seen.fetch_add(1, Ordering::SeqCst);
        line.pause(Duration::from_millis(500));
    });
    let service = Service::launch(&["--peers", &format!("{},{}", relay.url(), source.url())], &[]);
    wait_for("the relay to be read", || match read.load(Ordering::SeqCst) {
        0 => Err(service.get("/ready").text()),
        _ => Ok(()),
    });
    dying.kill();
    let reborn = Service::launch_at(dying_address, &[], &[]);
    assert_eq!(reborn.post("/register", &registration).status, 201);
    ready_within(&service, READY_MAX);
    has_all(&service);
    worker.publish(json!([stored(&[9_001], None, &tokens(90_001, 4))]));
    wait_for("the batch after the start", || {
        let answer = service.query(&json!({"model_name": MODEL, "token_ids": tokens(90_001, 4)}));
        if answer["instances"]["1"]["gpu"] == 4 { Ok(()) } else { Err(answer.to_string()) }
    });
}

#[test]
fn a_digest_of_nonsense_is_survived() {
    let source = Service::start();
    let _worker = source_of(&source);
    for said in [
        json!([]),
        json!({"replica_id": 7}),
        digest("x", "dancing", json!({})),
        digest("", "ready", json!({"owners": -1})),
        digest("0000000000000002", "ready", json!({"streams": [{"endpoint": null}]})),
    ] {
        let said_text = said.to_string();
        let odd = FakePeer::start(move |asked, line| match asked.path() {
            "/digest" => line.json(200, &said),
            _ => line.not_found(),
        });
        let service = Service::launch(&["--peers", &format!("{},{}", odd.url(), source.url())], &[]);
        ready_within(&service, READY_MAX);
        has_all(&service);
        drop(service);
        let alone = Service::launch(&["--peers", &odd.url()], &[]);
        wait_within(READY_MAX, &format!("ready beside {said_text}"), || {
            if alone.get("/ready").status == 200 { Ok(()) } else { Err(alone.get("/ready").text()) }
        });
    }
}
