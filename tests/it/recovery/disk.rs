//! The snapshot on disk: written whole or not at all, used when no peer can serve, and believed only when it is sound.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::msgpack::{batch, stored};
use crate::harness::service::free_address;
use crate::harness::worker::tokens;
use crate::harness::zmq_sockets::{Ring, Shape};
use crate::harness::{Publisher, Service, Worker, in_parallel, wait_for, wait_within};

const MODEL: &str = "disk";
const FILE: &str = "kvindexer.snapshot";

/// A directory of its own, removed in the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvindexer-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }

    fn args(&self) -> [&str; 2] {
        ["--snapshot-dir", self.0.to_str().expect("a text")]
    }

    fn file(&self) -> PathBuf {
        self.0.join(FILE)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("it is there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn instance(service: &Service, prompt: &[u32]) -> Value {
    service.query(&json!({"model_name": MODEL, "token_ids": prompt}))["instances"]["1"].clone()
}

fn listener(service: &Service) -> Value {
    service.listener(MODEL, "default", "1", 0).unwrap_or(Value::Null)
}

/// A publisher whose first two batches a service has written to the directory before it ended.
fn written(dir: &Dir, replay: Option<&str>) -> Publisher {
    let mut service = Service::start_with(&dir.args(), &[]);
    let publisher = Publisher::bind();
    let mut body = json!({"instance_id": 1, "model_name": MODEL, "block_size": 4, "endpoint": publisher.endpoint});
    if let Some(replay) = replay {
        body["replay_endpoint"] = json!(replay);
    }
    assert_eq!(service.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    publisher.send("kv-events", 0, &payload(0));
    publisher.send("kv-events", 1, &payload(1));
    wait_for("both batches", || match listener(&service)["last_seq"] == 1 {
        true => Ok(()),
        false => Err(listener(&service).to_string()),
    });
    let began = Instant::now();
    assert!(service.terminate().success());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(dir.names(), [FILE], "the file, and no other");
    publisher
}

/// Batch n stores block n + 1 below block n.
fn payload(number: u64) -> Vec<u8> {
    let parent = (number > 0).then_some(number);
    batch(json!([stored(&[number + 1], parent, &tokens(1 + 4 * number as u32, 4))]))
}

#[track_caller]
fn wait_gpu(service: &Service, want: u64, state: &str) {
    wait_for(&format!("{want} tokens, {state}"), || {
        let (instance, listener) = (instance(service, &tokens(1, 40)), listener(service));
        if instance["gpu"] == want && listener["trust"]["state"] == state {
            Ok(())
        } else {
            Err(format!("{instance} {listener}"))
        }
    });
}

#[test]
fn the_file_of_a_stop_is_the_state_of_the_next_start() {
    let dir = Dir::new("stop");
    let publisher = written(&dir, None);
    let service = Service::start_with(&dir.args(), &[]);
    publisher.wait_subscribed();
    assert_eq!(instance(&service, &tokens(1, 40))["gpu"], 8);
    // Whether something was said meanwhile is known only from the next number.
    wait_for("the doubt to show", || {
        let trust = listener(&service)["trust"].clone();
        let doubts = trust["reasons"].as_array().is_some_and(|all| all.contains(&json!("unverified_reconnect")));
        if doubts { Ok(()) } else { Err(trust.to_string()) }
    });
    publisher.send("kv-events", 2, &payload(2));
    wait_gpu(&service, 12, "exact");
    let taken = [("source", "disk"), ("outcome", "ok")];
    assert_eq!(service.metric("kvindexer_recovery_attempts_total", &taken), 1.0);
}

#[test]
fn what_was_said_between_stop_and_start_is_replayed_or_shows_as_a_gap() {
    let ring = Ring::default();
    (0..5).for_each(|number| ring.push(number, &payload(number)));
    let router = ring.router(Shape::Three);
    for replay in [Some(router.endpoint.as_str()), None] {
        let dir = Dir::new("between");
        let publisher = written(&dir, replay);
        for number in 2..4 {
            publisher.send("kv-events", number, &payload(number));
        }
        let service = Service::start_with(&dir.args(), &[]);
        publisher.wait_subscribed();
        if replay.is_some() {
            wait_gpu(&service, 20, "exact");
        } else {
            publisher.send("kv-events", 4, &payload(4));
            wait_gpu(&service, 8, "degraded");
        }
    }
}

#[test]
fn a_publisher_that_began_anew_meanwhile_is_noticed() {
    let dir = Dir::new("anew");
    let publisher = written(&dir, None);
    let service = Service::start_with(&dir.args(), &[]);
    publisher.wait_subscribed();
    publisher.send("kv-events", 0, &batch(json!([stored(&[90], None, &tokens(90_001, 4))])));
    wait_gpu(&service, 0, "exact");
    assert_eq!(instance(&service, &tokens(90_001, 4))["gpu"], 4);
}

#[test]
fn the_file_is_written_at_intervals() {
    let dir = Dir::new("interval");
    let args = [&dir.args()[..], &["--snapshot-interval-s", "1"]].concat();
    let mut service = Service::start_with(&args, &[]);
    let mut worker = Worker::new(&service, MODEL);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    let began = std::time::SystemTime::now();
    wait_for("a file younger than the batch", || {
        let modified = std::fs::metadata(dir.file()).and_then(|it| it.modified()).map_err(|error| error.to_string())?;
        if modified > began { Ok(()) } else { Err(format!("{modified:?}")) }
    });
    // The file is counted once its directory is safe, too.
    wait_for("a counted file", || {
        let written = service.metric("kvindexer_replica_snapshot_files_total", &[("outcome", "ok")]);
        if written >= 1.0 { Ok(()) } else { Err(format!("{written} files")) }
    });
    drop(worker);
    service.kill();
    let next = Service::start_with(&dir.args(), &[]);
    assert_eq!(instance(&next, &tokens(1, 4))["gpu"], 4);
}

#[test]
fn a_file_that_cannot_be_believed_is_left_aside_with_a_word_and_a_count() {
    let dir = Dir::new("sound");
    drop(written(&dir, None));
    let sound = std::fs::read(dir.file()).expect("it was written");
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut bytes = sound.clone();
        change(&mut bytes);
        bytes
    };
    let files: Vec<(&str, &str, Vec<u8>)> = vec![
        (
            "flipped",
            "corrupt_file",
            changed(|bytes| {
                let half = bytes.len() / 2;
                bytes[half] ^= 1;
            }),
        ),
        ("cut short", "corrupt_file", changed(|bytes| bytes.truncate(bytes.len() / 2))),
        ("without its last byte", "corrupt_file", changed(|bytes| bytes.truncate(bytes.len() - 1))),
        ("longer than its end", "corrupt_file", changed(|bytes| bytes.push(0))),
        ("empty", "", Vec::new()),
        ("of another version", "foreign_file", changed(|bytes| bytes[8..10].fill(0xFF))),
        ("somebody else's", "", b"{\"this\": \"is no snapshot\"}".to_vec()),
    ];
    let outcomes = in_parallel(&files, 4, |(what, reason, bytes)| {
        let dir = Dir::new(&what.replace([' ', '\''], "-"));
        std::fs::write(dir.file(), bytes).expect("the directory can be written");
        let service = Service::start_with(&dir.args(), &[]);
        let labels: &[(&str, &str)] = if reason.is_empty() { &[] } else { &[("reason", reason)] };
        let refused = service.metric("kvindexer_recovery_refused_total", labels);
        let workers = service.get("/workers").json();
        let said = service.has_logged(|line| line.contains("WARN") && line.contains(FILE));
        if refused == 1.0 && said.is_ok() && workers == json!([]) {
            Ok(())
        } else {
            Err(format!("{what}: refused {refused}, said {said:?}, {workers}"))
        }
    });
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_old_file_is_left_aside() {
    let dir = Dir::new("old");
    drop(written(&dir, None));
    let old = Instant::now();
    wait_for("the file to be older than it may be", || {
        if old.elapsed() > Duration::from_millis(2_100) { Ok(()) } else { Err(format!("{:?}", old.elapsed())) }
    });
    let service = Service::start_with(&[&dir.args()[..], &["--snapshot-age-max-s", "1"]].concat(), &[]);
    assert_eq!(service.metric("kvindexer_recovery_refused_total", &[("reason", "old_file")]), 1.0);
    assert_eq!(service.get("/workers").json(), json!([]));
}

#[test]
fn a_peer_that_serves_is_preferred_to_the_file() {
    let dir = Dir::new("preferred");
    let publisher = written(&dir, None);
    let source = Service::start();
    let body = json!({"instance_id": 1, "model_name": MODEL, "block_size": 4, "endpoint": publisher.endpoint});
    assert_eq!(source.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    // Another life, which the file does not know.
    publisher.send("kv-events", 0, &batch(json!([stored(&[90], None, &tokens(90_001, 4))])));
    wait_for("the batch to be applied", || match instance(&source, &tokens(90_001, 4))["gpu"] == 4 {
        true => Ok(()),
        false => Err(listener(&source).to_string()),
    });
    let service = Service::start_with(&[&dir.args()[..], &["--peers", &source.url()]].concat(), &[]);
    assert_eq!(instance(&service, &tokens(90_001, 4))["gpu"], 4);
    assert_eq!(instance(&service, &tokens(1, 8))["gpu"], 0);
}

#[test]
fn the_file_is_used_when_no_peer_serves() {
    let dir = Dir::new("alone");
    let _publisher = written(&dir, None);
    let dead = crate::harness::zmq_sockets::DeadEndpoint::reserve();
    let peer = dead.endpoint.replace("tcp://", "http://");
    let service = Service::start_with(&[&dir.args()[..], &["--peers", &peer]].concat(), &[]);
    assert_eq!(instance(&service, &tokens(1, 8))["gpu"], 8);
}

#[test]
fn replicas_that_start_together_from_their_files_both_have_all() {
    let dirs = [Dir::new("together-a"), Dir::new("together-b")];
    let publisher = written(&dirs[0], None);
    std::fs::copy(dirs[0].file(), dirs[1].file()).expect("it was written");
    let addresses = [free_address(), free_address()];
    let peers = format!("http://{},http://{}", addresses[0], addresses[1]);
    let starts: Vec<(SocketAddr, &Dir)> = addresses.into_iter().zip(&dirs).collect();
    let replicas = in_parallel(&starts, 2, |(address, dir)| {
        Service::launch_at(*address, &[&dir.args()[..], &["--peers", &peers]].concat(), &[])
    });
    replicas.iter().for_each(Service::wait_ready);
    for _ in &replicas {
        publisher.wait_subscribed();
    }
    publisher.send("kv-events", 2, &payload(2));
    replicas.iter().for_each(|replica| wait_gpu(replica, 12, "exact"));
}

#[test]
fn a_kill_while_the_file_is_written_leaves_the_previous_one() {
    let dir = Dir::new("kill");
    let args = [&dir.args()[..], &["--snapshot-interval-s", "1"]].concat();
    let mut killed_in_the_middle = 0;
    let mut service = Service::start_with(&args, &[]);
    let publisher = Publisher::bind();
    let body = json!({"instance_id": 1, "model_name": MODEL, "block_size": 4, "endpoint": publisher.endpoint});
    assert_eq!(service.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    // Large enough that writing takes a while.
    const BATCHES: u64 = 100;
    for number in 0..BATCHES {
        let hashes: Vec<u64> = (0..500).map(|at| number * 500 + at + 1).collect();
        let parent = (number > 0).then_some(number * 500);
        publisher.send(
            "kv-events",
            number,
            &batch(json!([stored(&hashes, parent, &tokens(1 + 2_000 * number as u32, 2_000))])),
        );
    }
    wait_for("all batches", || match listener(&service)["last_seq"] == BATCHES - 1 {
        true => Ok(()),
        false => Err(listener(&service).to_string()),
    });
    let all = listener(&service)["blocks"]["device"].clone();
    wait_for("a whole file", || {
        let written = service.metric("kvindexer_replica_snapshot_files_total", &[("outcome", "ok")]);
        let since = std::fs::metadata(dir.file()).map(|it| it.len()).unwrap_or(0);
        if written >= 1.0 && since > 400_000 { Ok(()) } else { Err(format!("{written} {since}")) }
    });
    for _ in 0..3 {
        let another = |dir: &Path| {
            std::fs::read_dir(dir)
                .is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(|entry| entry.file_name() != FILE)))
        };
        let began = Instant::now();
        while !another(&dir.0) && began.elapsed() < Duration::from_secs(4) {
            std::thread::sleep(Duration::from_micros(200));
        }
        service.kill();
        killed_in_the_middle += usize::from(another(&dir.0));
        service = Service::start_with(&args, &[]);
        assert_eq!(listener(&service)["blocks"]["device"], all, "the whole state is there");
        assert_eq!(service.metric("kvindexer_recovery_refused_total", &[]), 0.0);
        wait_for("nothing unfinished to be left", || {
            let names = dir.names();
            if names.len() <= 2 { Ok(()) } else { Err(format!("{names:?}")) }
        });
    }
    assert!(killed_in_the_middle > 0, "no kill came while the file was written");
}

#[test]
fn a_directory_that_goes_away_stops_nothing() {
    let dir = Dir::new("absent");
    let args = [&dir.args()[..], &["--snapshot-interval-s", "1"]].concat();
    let mut service = Service::start_with(&args, &[]);
    let mut worker = Worker::new(&service, MODEL);
    worker.publish(json!([stored(&[1], None, &tokens(1, 4))]));
    std::fs::remove_dir_all(&dir.0).expect("it was there");
    wait_within(Duration::from_secs(20), "a failure to be counted", || {
        match service.metric("kvindexer_replica_snapshot_files_total", &[("outcome", "failed")]) {
            0.0 => Err(service.log().join("\n")),
            _ => Ok(()),
        }
    });
    worker.publish(json!([stored(&[2], Some(1), &tokens(5, 4))]));
    assert_eq!(worker.gpu(&tokens(1, 8)), 8);
    drop(worker);
    assert!(service.terminate().success());
}

#[test]
fn what_was_unregistered_or_cleared_does_not_come_back_from_the_file() {
    let dir = Dir::new("gone");
    let publisher = written(&dir, None);
    let mut service = Service::start_with(&dir.args(), &[]);
    assert_eq!(instance(&service, &tokens(1, 4))["gpu"], 4);
    let other = Publisher::bind();
    let body = json!({"instance_id": 2, "model_name": MODEL, "block_size": 4, "endpoint": other.endpoint});
    assert_eq!(service.post("/register", &body).status, 201);
    other.wait_subscribed();
    other.send("kv-events", 0, &batch(json!([stored(&[7], None, &tokens(9, 4))])));
    assert_eq!(service.post("/unregister", &json!({"instance_id": 1, "model_name": MODEL})).status, 200);
    other.send("kv-events", 1, &batch(json!([["AllBlocksCleared"]])));
    wait_for("the clear", || match service.listener(MODEL, "default", "2", 0) {
        Some(listener) if listener["last_seq"] == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(service.terminate().success());
    let service = Service::start_with(&dir.args(), &[]);
    assert_eq!(instance(&service, &tokens(1, 4)), Value::Null);
    let answer = service.query(&json!({"model_name": MODEL, "token_ids": tokens(9, 4)}));
    assert_eq!(answer["instances"]["2"]["gpu"], 0, "{answer}");
    drop(publisher);
}
