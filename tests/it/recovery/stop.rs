//! The end of a replica: in order and in time, also in the middle of a recovery and under load.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::http::{Request, exchange};
use crate::harness::msgpack::{batch, stored};
use crate::harness::worker::tokens;
use crate::harness::{FakePeer, Publisher, Service, Worker, wait_for};

/// Everything is over so long after the signal.
const STOP_MAX: Duration = Duration::from_secs(10);

#[track_caller]
fn ends_in_order(service: &mut Service) {
    let began = Instant::now();
    let status = service.terminate();
    assert_eq!(status.code(), Some(0), "{:?}", service.log());
    assert!(began.elapsed() < STOP_MAX, "{:?}", began.elapsed());
}

#[test]
fn a_replica_that_recovers_ends_in_order() {
    let source = Service::start();
    let mut worker = Worker::new(&source, "stop");
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    for hangs in ["/digest", "registrations", "snapshot"] {
        let peer = FakePeer::start(move |asked, line| {
            let here = match hangs {
                "/digest" => asked.path() == "/digest",
                "registrations" => asked.target.contains("part=registrations"),
                _ => asked.is_whole_snapshot(),
            };
            match crate::harness::fake_peer::ask(source.address, asked) {
                Ok(_) if here => line.hang(),
                Ok(reply) => line.pass(&reply),
                Err(error) => line.reply(502, "text/plain", error.as_bytes()),
            }
        });
        let mut service = Service::launch(&["--peers", &peer.url()], &[]);
        wait_for("the peer to be asked", || {
            let asked = peer.asked();
            let reached = match hangs {
                "/digest" => asked.iter().any(|asked| asked.path() == "/digest"),
                "registrations" => asked.iter().any(|asked| asked.target.contains("part=registrations")),
                _ => peer.snapshots_asked() > 0,
            };
            if reached { Ok(()) } else { Err(format!("{asked:?}")) }
        });
        assert_eq!(service.get("/ready").status, 503);
        ends_in_order(&mut service);
    }
}

#[test]
fn a_replica_under_load_ends_in_order() {
    let mut service = Service::start();
    let publisher = Publisher::bind();
    let body = json!({"instance_id": 1, "model_name": "stop", "block_size": 4, "endpoint": publisher.endpoint});
    assert_eq!(service.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    let address = service.address;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            for number in 0.. {
                let hashes: Vec<u64> = (0..50).map(|at| number * 50 + at + 1).collect();
                let first = 1 + (number % 10_000) as u32 * 200;
                publisher.send("kv-events", number, &batch(json!([stored(&hashes, None, &tokens(first, 200))])));
                if over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                let body = json!({"model_name": "stop", "token_ids": tokens(1, 200)}).to_string();
                let request = Request {
                    method: "POST",
                    path: "/query",
                    content_type: Some("application/json"),
                    body: Some(body.as_bytes()),
                };
                while !over.load(Ordering::Relaxed) {
                    // Refused connections are what an end looks like.
                    if exchange(address, &request).is_err() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        wait_for("the load to be felt", || {
            let listener = service.listener("stop", "default", "1", 0).unwrap_or_default();
            if listener["last_seq"].as_u64() > Some(100) { Ok(()) } else { Err(listener.to_string()) }
        });
        // A client that takes the beginning of a snapshot and then nothing.
        let mut stalled = TcpStream::connect(address).expect("it serves");
        stalled.write_all(b"GET /snapshot HTTP/1.1\r\nHost: here\r\n\r\n").expect("it reads");
        stalled.read_exact(&mut [0; 12]).expect("it answers");
        ends_in_order(&mut service);
        over.store(true, Ordering::Relaxed);
        drop(stalled);
    });
}
