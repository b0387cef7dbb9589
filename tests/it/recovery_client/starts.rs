//! How a start ends, by what peers and files give it.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kvindexer::image::Position;
use kvindexer::recovery::{DiskConfig, write_last};

use super::*;
use crate::recovery::small_dump;

/// A side that two engines have filled.
fn source() -> (Side, Vec<Engine>) {
    let side = Side::serving();
    let engines = (1..=2).map(|instance| {
        let mut engine = Engine::new();
        engine.register_at(&side, instance);
        fill(&mut engine);
        side.wait_seq(instance, 2);
        engine
    });
    let engines = engines.collect();
    (side, engines)
}

#[test]
fn a_started_replica_equals_its_source_and_stays_equal() {
    let (source, mut engines) = source();
    let peer = source.voice().serve();
    let replica = Side::starting(&[format!("{}/", peer.url())]);
    assert_eq!(replica.recover(), Outcome::Recovered(peer.url()));
    assert_eq!(replica.state(), source.state());
    assert_eq!(replica.registry.registrations(), source.registry.registrations());
    assert_eq!(replica.replica.phase(), Phase::Ready);
    assert_eq!((replica.attempts("snapshot", "ok"), replica.attempts("snapshot", "failed")), (1, 0));
    for (engine, instance) in engines.iter_mut().zip(1..) {
        let tokens: Vec<u32> = (1..=4).flat_map(block).collect();
        engine.publish(json!([stored(&[4], Some(3), &tokens[12..]), removed(&[1], "CPU")]));
        source.wait_seq(instance, 3);
        replica.wait_seq(instance, 3);
    }
    assert_eq!(replica.state(), source.state());
    assert_eq!(replica.trust(1), [""; 0]);
}

/// Between the question for registrations and the one for everything somebody registers, and says something.
#[test]
fn a_worker_that_registers_meanwhile_comes_along_and_must_prove_itself() {
    let (source, _engines) = source();
    let late = Arc::new(Mutex::new(Engine::new()));
    let (voice, runtime, engine) = (source.voice(), source.runtime.handle().clone(), Arc::clone(&late));
    let peer = source.voice().serve_spoilt(move |_, line| {
        let mut engine = engine.lock().unwrap();
        let spec = spec(3, &engine.publisher.endpoint);
        runtime.block_on(voice.registry.register(spec, Source::Manual, false)).unwrap();
        engine.publisher.wait_subscribed();
        engine.publish(json!([stored(&[1], None, &block(1))]));
        wait_for("the batch", || match voice.digest()["streams"][2]["current"]["seq"] == 0 {
            true => Ok(()),
            false => Err(voice.digest().to_string()),
        });
        line.reply(200, "application/octet-stream", &voice.snapshot("/snapshot"));
    });
    let replica = Side::starting(&[peer.url()]);
    assert_eq!(replica.recover(), Outcome::Recovered(peer.url()));
    assert_eq!(replica.registry.registrations(), source.registry.registrations());
    let mut engine = late.lock().unwrap();
    engine.publisher.wait_subscribed();
    wait_for("the doubt", || match replica.trust(3)[..] {
        ["unverified_reconnect"] => Ok(()),
        ref reasons => Err(format!("{reasons:?}")),
    });
    assert_eq!((replica.trust(1), replica.trust(2)), (vec![], vec![]));
    engine.publish(json!([stored(&[2], Some(1), &block(2))]));
    source.wait_seq(3, 1);
    replica.wait_seq(3, 1);
    assert_eq!(replica.state(), source.state());
}

#[test]
fn spoilt_snapshots_leave_nothing_and_the_next_peer_is_taken() {
    let (source, _engines) = source();
    type Spoil = fn(&[u8], &mut Line);
    let ways: [(&str, Spoil); 6] = [
        ("hangs in the middle", |body, line| {
            line.head(200, &[("Content-Length", &body.len().to_string())]);
            line.write(&body[..body.len() / 2]);
            line.hang();
        }),
        ("ends in the middle as if that were all", |body, line| {
            line.reply(200, "application/octet-stream", &body[..body.len() / 2]);
        }),
        ("has another bit", |body, line| {
            let mut body = body.to_vec();
            let last = body.len() - 20;
            body[last] ^= 1;
            line.reply(200, "application/octet-stream", &body);
        }),
        ("has another version", |body, line| {
            let mut body = body.to_vec();
            body[8] = 200;
            line.reply(200, "application/octet-stream", &body);
        }),
        ("is busy", |_, line| line.head(503, &[("Retry-After", "1"), ("Content-Length", "0")])),
        ("is not there", |_, line| line.not_found()),
    ];
    for (way, spoil) in ways {
        let (bad, good) = (source.voice().serve_spoilt(spoil), source.voice().serve());
        let replica = Side::starting(&[bad.url(), good.url()]);
        assert_eq!(replica.recover(), Outcome::Recovered(good.url()), "{way}");
        assert_eq!(bad.snapshots_asked(), 1, "{way}");
        assert_eq!(replica.state(), source.state(), "{way}");
    }
}

#[test]
fn without_a_good_peer_three_passes_end_in_a_start_without_a_state() {
    let (source, _engines) = source();
    let bad = source.voice().serve_spoilt(|body, line| {
        line.reply(200, "application/octet-stream", &body[..body.len() - 1]);
    });
    let replica = Side::starting(&[bad.url()]);
    assert_eq!(replica.recover(), Outcome::Failed);
    assert_eq!((bad.snapshots_asked(), replica.attempts("snapshot", "failed")), (3, 3));
    assert_eq!(replica.replica.counters().cold_starts, 1);
    assert_eq!((replica.held_blocks(), replica.registry.is_recovering()), (0, false));
    assert_eq!(replica.registry.registrations().len(), 2, "who is registered was read whole");
}

#[test]
fn a_busy_peer_is_asked_again_when_it_said() {
    let (source, _engines) = source();
    let refusals = AtomicU32::new(2);
    let busy = source.voice().serve_spoilt(move |body, line| {
        if refusals.load(Ordering::SeqCst) > 0 {
            refusals.fetch_sub(1, Ordering::SeqCst);
            line.head(503, &[("Retry-After", "1"), ("Content-Length", "0")]);
        } else {
            line.reply(200, "application/octet-stream", body);
        }
    });
    let replica = Side::starting(&[busy.url()]);
    let began = Instant::now();
    assert_eq!(replica.recover(), Outcome::Recovered(busy.url()));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((busy.snapshots_asked(), replica.attempts("snapshot", "failed")), (3, 2));
}

#[test]
fn a_drip_is_read_as_long_as_it_drips() {
    let (source, _engines) = source();
    let slow = source.voice().serve_spoilt(|body, line| {
        line.head(200, &[("Content-Length", &body.len().to_string())]);
        for piece in body.chunks(body.len().div_ceil(8)) {
            line.write(piece);
            line.pause(Duration::from_millis(200));
        }
    });
    let replica = Side::starting(&[slow.url()]);
    let began = Instant::now();
    assert_eq!(replica.recover(), Outcome::Recovered(slow.url()));
    assert!(began.elapsed() > 2 * replica.config.times.silence, "{:?}", began.elapsed());
}

#[test]
fn a_replica_without_a_snapshot_is_read_through_its_dump() {
    let (source, _engines) = source();
    let voice = source.voice();
    let older = FakePeer::start(move |asked, line| match asked.path() {
        "/digest" => line.json(200, &voice.digest()),
        "/dump" => line.json(200, &small_dump("m:t", 7)),
        _ => line.not_found(),
    });
    let replica = Side::starting(&[older.url()]);
    assert_eq!(replica.recover(), Outcome::Recovered(older.url()));
    let index = replica.registry.index(&IndexKey::new("m", "t")).expect("the index of the dump");
    let index = index.read();
    let owner = index.owner_id(&Owner::new(7, 0)).expect("its owner");
    let reasons: Vec<_> = index.trust(owner).reasons().map(|reason| reason.as_str()).collect();
    assert_eq!((index.dump(owner).len(), reasons), (1, vec!["no_watermark", "not_connected"]));
}

#[test]
fn two_that_wait_for_each_other_both_end() {
    let sides = [Side::starting(&[]), Side::starting(&[])];
    let peers = [sides[0].voice().serve(), sides[1].voice().serve()];
    for peer in &peers {
        sides.iter().for_each(|side| assert!(side.replica.peers().add(&peer.url())));
    }
    let began = Instant::now();
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let running: Vec<_> = sides.iter().map(|side| scope.spawn(|| side.recover())).collect();
        running.into_iter().map(|side| side.join().unwrap()).collect()
    });
    assert_eq!(outcomes, [Outcome::Empty, Outcome::Empty]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// An empty peer is no source, but who is registered there is known.
#[test]
fn an_empty_peer_tells_who_is_registered() {
    let source = Side::serving();
    let engine = Engine::new();
    engine.register_at(&source, 1);
    let peer = source.voice().serve();
    let replica = Side::starting(&[peer.url()]);
    assert_eq!(replica.recover(), Outcome::Empty);
    assert_eq!(replica.registry.registrations(), source.registry.registrations());
}

/// A directory that goes away.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("kvindexer-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("kvindexer.snapshot")
    }

    fn config(&self, age_max: Duration) -> Option<DiskConfig> {
        Some(DiskConfig { dir: self.0.clone(), interval: Duration::from_secs(600), age_max })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// The file of a filled side; its publishers stay.
fn written(dir: &Dir) -> (Side, Vec<Engine>) {
    let (mut source, engines) = source();
    source.config.disk = dir.config(HOUR);
    source.runtime.block_on(write_last(&source.replica, &source.registry, &source.config, Duration::from_secs(5)));
    assert_eq!(source.replica.counters().files_written, [("ok", 1)]);
    (source, engines)
}

fn from_file(dir: &Dir, age_max: Duration, peers: &[String]) -> (Side, Outcome) {
    let mut replica = Side::starting(peers);
    replica.config.disk = dir.config(age_max);
    let outcome = replica.recover();
    (replica, outcome)
}

/// What the owners hold and after which batch, without doubts about it.
fn content(side: &Side) -> Vec<StreamImage> {
    let mut streams = side.state();
    for stream in &mut streams {
        stream.position = Position { mark: stream.position.mark, ..Position::default() };
        stream.image.owners.iter_mut().for_each(|owner| owner.trust = Trust::default());
    }
    streams
}

#[test]
fn the_file_is_used_when_no_peer_can_serve() {
    let dir = Dir::new("used");
    let (source, _engines) = written(&dir);
    let (replica, outcome) = from_file(&dir, HOUR, &[]);
    assert_eq!(outcome, Outcome::Recovered(dir.file().display().to_string()));
    assert_eq!(content(&replica), content(&source));
    // Nobody was listening in between.
    assert_eq!((source.trust(1), replica.trust(1)), (vec![], vec!["unverified_reconnect"]));
    let bad = source.voice().serve_spoilt(|_, line| line.json(500, &json!({})));
    let (replica, outcome) = from_file(&dir, HOUR, &[bad.url()]);
    assert_eq!(outcome, Outcome::Recovered(dir.file().display().to_string()));
    assert_eq!((content(&replica), bad.snapshots_asked()), (content(&source), 3));
    let good = source.voice().serve();
    let (_, outcome) = from_file(&dir, HOUR, &[good.url()]);
    assert_eq!(outcome, Outcome::Recovered(good.url()));
}

#[test]
fn a_file_that_cannot_be_used_is_ignored_and_counted() {
    let dir = Dir::new("ignored");
    let _source = written(&dir);
    let whole = fs::read(dir.file()).unwrap();
    let foreign = [&whole[..8], &[9, 0], &whole[10..]].concat();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (bytes, age_max, word) in [
        (&whole[..whole.len() - 1], HOUR, "corrupt_file"),
        (&flipped, HOUR, "corrupt_file"),
        (&[], HOUR, "corrupt_file"),
        (b"something else altogether", HOUR, "foreign_file"),
        (&foreign, HOUR, "foreign_file"),
        (&whole, Duration::ZERO, "old_file"),
    ] {
        fs::write(dir.file(), bytes).unwrap();
        if word == "old_file" {
            std::thread::sleep(Duration::from_millis(1_100)); // The age is counted in whole seconds.
        }
        let (replica, outcome) = from_file(&dir, age_max, &[]);
        assert_eq!(outcome, Outcome::Empty, "{word}");
        assert_eq!(replica.replica.counters().refused, [(word, 1)]);
        assert_eq!((replica.held_blocks(), replica.registry.registrations().len()), (0, 0), "{word}");
    }
}

#[test]
fn a_replica_that_knows_nothing_keeps_the_file_that_is_there() {
    let dir = Dir::new("kept");
    let _source = written(&dir);
    let before = fs::read(dir.file()).unwrap();
    let mut empty = Side::serving();
    empty.config.disk = dir.config(HOUR);
    empty.runtime.block_on(write_last(&empty.replica, &empty.registry, &empty.config, Duration::from_secs(5)));
    assert_eq!(empty.replica.counters().files_written, []);
    assert_eq!(fs::read(dir.file()).unwrap(), before);
}
