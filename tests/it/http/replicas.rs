//! What replicas and their operators ask: snapshots, digests, registrations that are sent on, comparisons.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use kvindexer::cli::{self, Question, Verdict, diff, verify};
use kvindexer::http::ServerLimits;
use kvindexer::ids::{IndexKey, Owner, Tier};
use kvindexer::image::{Registration, StreamImage};
use kvindexer::readiness::Readiness;
use kvindexer::wire::snapshot::{Decoder, Item};
use serde_json::{Value, json};

use super::{Server, Setup, tokens};
use crate::harness::http::{Reply, Request};
use crate::harness::wait_for;

/// Registrations and streams of a snapshot.
fn read(reply: &Reply) -> (Vec<Registration>, Vec<(IndexKey, StreamImage)>) {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/octet-stream")));
    let mut decoder = Decoder::new();
    let (mut registrations, mut streams, mut key) = (Vec::new(), Vec::new(), None);
    decoder.push(&reply.body);
    while let Some(item) = decoder.next_item().expect("a snapshot") {
        match item {
            Item::Registration(registration) => registrations.push(*registration),
            Item::Index(head) => key = Some(head.key),
            Item::Stream(stream) => streams.push((key.clone().expect("an index before its streams"), *stream)),
            Item::Header(_) | Item::Tombstone(_) | Item::End(_) => {}
        }
    }
    decoder.finish().expect("the whole of it");
    (registrations, streams)
}

/// A connection that has asked and reads nothing.
fn ask_and_stall(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    // The first byte says that the request is at work.
    stream.read_exact(&mut [0]).unwrap();
    stream
}

/// More blocks than the sockets between client and server can hold.
fn with_much(limits: ServerLimits) -> Server {
    let server = Server::build(Setup { limits, ..Setup::default() });
    server.register(1, "m", &json!({}));
    server.store(&IndexKey::new("m", "default"), &Owner::new(1, 0), Tier::Device, &tokens(4 * 700_000));
    server
}

#[test]
fn a_snapshot_has_what_the_filters_ask_for() {
    let server = Server::start();
    for (instance, model, tenant) in [(1, "org/m:8b", "a:b"), (2, "org/m:8b", "a:b"), (1, "other", "default")] {
        server.register(instance, model, &json!({"tenant_id": tenant}));
        let prompt = tokens(4 * instance as u32);
        server.store(&IndexKey::new(model, tenant), &Owner::new(instance, 0), Tier::Device, &prompt);
    }
    for (path, registered, copied) in [
        ("/snapshot", 3, &[(1, 1), (2, 2), (1, 1)][..]),
        ("/snapshot?model_name=org/m:8b&tenant_id=a%3Ab", 0, &[(1, 1), (2, 2)]),
        ("/snapshot?routing_group=a:b&instance_id=2", 0, &[(2, 2)]),
        ("/snapshot?model_name=none", 0, &[]),
        ("/snapshot?part=registrations", 3, &[]),
    ] {
        let (registrations, streams) = read(&server.get(path));
        let found: Vec<_> = streams
            .iter()
            .map(|(key, stream)| {
                assert!(key.model.as_str() == "other" || key.tenant.as_str() == "a:b", "{path}");
                (stream.name.instance.to_string().parse::<u64>().unwrap(), stream.image.block_count())
            })
            .collect();
        assert_eq!(found, copied, "{path}");
        // A part is for a replica that has the registrations.
        assert_eq!(registrations.len(), registered, "{path}: {registrations:?}");
    }
    for (path, code) in [
        ("/snapshot?part=half", "invalid_query"),
        ("/snapshot?instance_id=", "invalid_query"),
        ("/snapshot?tenant_id=a&routing_group=b", "tenant_conflict"),
    ] {
        assert_eq!(server.get(path).code(), code, "{path}");
    }
}

#[test]
fn a_replica_that_recovers_gives_registrations_and_its_digest_and_no_blocks() {
    let (readiness, hold) = Readiness::starting("recovery: asks 2 peers");
    let server = Server::build(Setup { readiness, recovering: true, ..Setup::default() });
    server.register(1, "m", &json!({}));
    let refused = server.get("/snapshot");
    assert_eq!((refused.status, refused.code().as_str()), (503, "not_ready"), "{}", refused.text());
    assert!(refused.text().contains("asks 2 peers"), "{}", refused.text());
    assert_eq!(read(&server.get("/snapshot?part=registrations")).0.len(), 1);
    let digest = server.get("/digest");
    assert_eq!((digest.status, &digest.json()["phase"]), (200, &json!("waiting")));
    assert_eq!(digest.json()["registrations"].as_array().map(Vec::len), Some(1));
    drop(hold);
}

#[test]
fn a_third_snapshot_at_once_is_refused_and_a_client_that_takes_nothing_makes_room() {
    let server = with_much(ServerLimits { stall_timeout: Duration::from_secs(3), ..ServerLimits::default() });
    let (_first, _second) = (ask_and_stall(&server, "/snapshot"), ask_and_stall(&server, "/snapshot"));
    let refused = server.get("/snapshot");
    assert_eq!((refused.status, refused.code().as_str()), (503, "overloaded"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(server.get("/snapshot?part=registrations").status, 200, "small, and what a start needs first");
    assert_eq!(
        server.post("/query", &json!({"model_name": "m", "token_ids": tokens(8)})).status,
        200,
        "no lock is held"
    );
    let whole = wait_for("the stalled clients to be cut off", || {
        let reply = server.get("/snapshot");
        if reply.status == 200 { Ok(reply) } else { Err(reply.text()) }
    });
    assert_eq!(read(&whole).1[0].1.image.block_count(), 700_000);
}

#[test]
fn a_client_that_goes_away_gives_its_place_back() {
    let server = with_much(ServerLimits::default());
    drop([ask_and_stall(&server, "/snapshot"), ask_and_stall(&server, "/snapshot")]);
    wait_for("a place", || match server.get("/snapshot") {
        reply if reply.status == 200 => Ok(()),
        reply => Err(reply.text()),
    });
}

#[test]
fn a_dump_says_at_which_number_each_stream_was_copied() {
    let server = Server::start();
    let key = IndexKey::new("m", "default");
    server.register(1, "m", &json!({}));
    server.register(1, "m", &json!({"dp_rank": 1}));
    server.register("a/b", "m", &json!({"endpoint": "tcp://127.0.0.1:10"}));
    server.store(&key, &Owner::new(1, 1), Tier::Device, &tokens(8));
    let entry = server.get("/dump").json()["m:default"].clone();
    assert_eq!(entry["events"].as_array().map(Vec::len), Some(1), "{entry}");
    let want = json!([
        {"instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "last_seq": null, "dp_ranks": [0, 1]},
        {"instance_id": "a/b", "endpoint": "tcp://127.0.0.1:10", "last_seq": null, "dp_ranks": [0]},
    ]);
    assert_eq!(entry["streams"], want);
}

/// Answer to a request as another replica sends it on.
fn sent_on(server: &Server, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nX-Kvindexer-Forwarded: \
         0123456789abcdef\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn registered(server: &Server) -> usize {
    server.get("/workers").json().as_array().expect("a list").len()
}

#[test]
fn registrations_are_sent_on_once() {
    let far = Server::build(Setup { forwards_to: Some(Vec::new()), ..Setup::default() });
    let peers = vec![far.url(), "http://127.0.0.1:9".to_owned()];
    let near = Server::build(Setup { forwards_to: Some(peers), ..Setup::default() });
    // Each knows the other: without a mark a request would go round for ever.
    assert_eq!(far.post("/register_peer", &json!({"url": near.url()})).status, 201);
    let worker =
        json!({"instance_id": "serving/a", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4});
    let reply = near.post("/register", &worker);
    assert_eq!((reply.status, &reply.json()["status"]), (201, &json!("ok")), "{}", reply.text());
    assert_eq!(reply.json()["peers"][far.url()], "ok", "{}", reply.text());
    let absent = reply.json()["peers"]["http://127.0.0.1:9"].clone();
    assert!(absent.as_str().is_some_and(|text| text != "ok"), "{absent}");
    assert_eq!(far.get("/workers").json()[0]["instance_id"], "serving/a");

    let wrong = json!({"instance_id": 1, "endpoint": "h:1", "model_name": "m", "block_size": 4});
    assert_eq!(near.post("/register", &wrong).code(), "invalid_endpoint");
    let other =
        json!({"instance_id": "serving/a", "endpoint": "tcp://127.0.0.1:10", "model_name": "m", "block_size": 4});
    assert_eq!(near.post("/register", &other).code(), "already_registered", "what is refused here is not sent on");
    assert_eq!(far.get("/workers").json()[0]["endpoints"], json!({"0": "tcp://127.0.0.1:9"}));

    let gone = json!({"instance_id": "serving/a", "model_name": "m"});
    let reply = far.post("/unregister", &gone);
    assert_eq!((reply.status, &reply.json()["peers"]), (200, &json!({near.url(): "ok"})), "{}", reply.text());
    assert_eq!((registered(&far), registered(&near)), (0, 0));
    assert_eq!(near.post("/unregister", &gone).code(), "unknown_instance", "nobody has it");
}

#[test]
fn what_was_sent_on_is_not_sent_on_again_and_one_peer_that_had_it_is_enough() {
    let far = Server::start();
    let near = Server::build(Setup { forwards_to: Some(vec![far.url()]), ..Setup::default() });
    let worker = json!({"instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4});
    let answer = sent_on(&near, "/register", &worker);
    assert!(answer.starts_with("HTTP/1.1 201") && answer.ends_with(r#"{"status":"ok"}"#), "{answer}");
    assert_eq!((registered(&near), registered(&far)), (1, 0));
    let gone = json!({"instance_id": 1, "model_name": "m"});
    assert!(sent_on(&near, "/unregister", &gone).starts_with("HTTP/1.1 200"));
    assert!(sent_on(&near, "/unregister", &gone).starts_with("HTTP/1.1 404"));

    far.register(1, "m", &json!({}));
    assert_eq!((registered(&near), registered(&far)), (0, 1));
    let reply = near.post("/unregister", &gone);
    assert_eq!((reply.status, &reply.json()["peers"][far.url()]), (200, &json!("ok")), "{}", reply.text());
    assert_eq!(registered(&far), 0);
}

#[test]
fn metrics_tell_of_recovery_and_replicas() {
    let server = Server::build(Setup { forwards_to: Some(vec!["http://a".to_owned()]), ..Setup::default() });
    let text = server.get("/metrics").text();
    for line in [
        r#"kvindexer_replica_phase{phase="waiting"} 1"#,
        r#"kvindexer_replica_phase{phase="ready"} 0"#,
        "kvindexer_replica_peers 1",
        "kvindexer_replica_compared_streams 0",
        "kvindexer_replica_differing_streams 0",
        "kvindexer_replica_differing_registrations 0",
        "kvindexer_recovery_bytes_total 0",
        "kvindexer_recovery_blocks_total 0",
        "kvindexer_recovery_cold_starts_total 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn verify_refuses_what_cannot_be_compared() {
    let server = Server::start();
    server.register(1, "m", &json!({}));
    server.register(2, "m", &json!({"endpoint": "tcp://127.0.0.1:10", "replay_endpoint": "tcp://127.0.0.1:11"}));
    for (body, status, code) in [
        (json!({"model_name": "m"}), 422, "invalid_body"),
        (json!({"model_name": "n", "instance_id": 1}), 404, "unknown_index"),
        (json!({"model_name": "m", "instance_id": 3}), 404, "unknown_instance"),
        (json!({"model_name": "m", "instance_id": 1, "dp_rank": 5}), 404, "unknown_rank"),
        (json!({"model_name": "m", "instance_id": 1}), 409, "no_replay_endpoint"),
        (json!({"model_name": "m", "instance_id": 1, "tenant_id": "a", "routing_group": "b"}), 422, "tenant_conflict"),
    ] {
        let reply = server.post("/verify", &body);
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{body}: {}", reply.text());
    }
    let nothing = server.post("/verify", &json!({"model_name": "m", "instance_id": 2}));
    assert_eq!((nothing.status, &nothing.json()["equal"]), (200, &Value::Null), "{}", nothing.text());
    let question = Question::Verify(verify::VerifyArgs {
        url: server.url(),
        model_name: "m".to_owned(),
        tenant_id: "default".to_owned(),
        instance_id: "2".to_owned(),
        dp_rank: 0,
    });
    let mut out = Vec::new();
    assert_eq!(cli::ask(&question, &mut out).unwrap(), Verdict::Unknown);
    assert!(String::from_utf8(out).unwrap().contains("no batch was applied yet"));
}

/// Outcome and text of `kvindexer diff`.
fn compared(first: &Server, second: &Server, model: Option<&str>) -> (Verdict, String) {
    let question = Question::Diff(diff::DiffArgs {
        first: first.url(),
        second: format!("{}/", second.address),
        model_name: model.map(str::to_owned),
        tenant_id: None,
        deep: true,
    });
    let mut out = Vec::new();
    let verdict = cli::ask(&question, &mut out).unwrap();
    (verdict, String::from_utf8(out).unwrap())
}

#[test]
fn diff_names_index_owner_and_the_first_differing_blocks() {
    let (first, second) = (Server::start(), Server::start());
    let key = IndexKey::new("org/m:8b", "a:b");
    for server in [&first, &second] {
        server.register("serving/a", "org/m:8b", &json!({"tenant_id": "a:b"}));
        server.register(1, "same", &json!({}));
        server.store(&IndexKey::new("same", "default"), &Owner::new(1, 0), Tier::Device, &tokens(40));
    }
    let owner = Owner { instance: kvindexer::ids::InstanceId::Text("serving/a".into()), rank: Default::default() };
    first.store(&key, &owner, Tier::Device, &tokens(40));
    second.store(&key, &owner, Tier::Device, &tokens(8));
    second.store(&key, &owner, Tier::HostPinned, &tokens(4));

    let (verdict, text) = compared(&first, &second, Some("same"));
    assert_eq!(verdict, Verdict::Equal, "{text}");
    assert!(text.contains("owner 1/0: 10 blocks, the same"), "{text}");

    let (verdict, text) = compared(&first, &second, None);
    assert_eq!(verdict, Verdict::Different, "{text}");
    for part in [
        "model org/m:8b tenant a:b instance serving/a",
        "owner serving/a/0: 10 blocks in A, 3 in B",
        "only in A: 8 blocks",
        "device block ",
        ", 2 blocks from the root",
        "only in B: 1 blocks",
        "host_pinned block ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    second.register(2, "same", &json!({"endpoint": "tcp://127.0.0.1:10"}));
    let (verdict, text) = compared(&first, &second, Some("same"));
    assert_eq!(verdict, Verdict::Different, "{text}");
    assert!(text.contains("ONLY IN B") && text.contains("registration only in B"), "{text}");
}

#[test]
fn diff_of_one_replica_or_of_none_is_no_outcome() {
    let server = Server::start();
    for second in [server.url(), "http://127.0.0.1:9".to_owned(), "no address".to_owned()] {
        let (model_name, tenant_id) = (None, None);
        let args = diff::DiffArgs { first: server.url(), second, model_name, tenant_id, deep: false };
        assert!(cli::ask(&Question::Diff(args), &mut Vec::new()).is_err());
    }
    let reply = server.send(&Request { method: "HEAD", path: "/digest", ..Request::default() });
    assert_eq!(reply.status, 200);
}
