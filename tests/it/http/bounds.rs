//! Bounds of requests and connections, and the end of the server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kvindexer::http::{HttpConfig, ServerLimits};
use kvindexer::readiness::Readiness;
use serde_json::json;

use super::Server;
use crate::harness::http::{Request, exchange};
use crate::harness::wait_for;

const FIRST_HALF: &str = r#"{"model_name":"#;
const SECOND_HALF: &str = r#""m","token_ids":[1]}"#;

/// A connection that has sent the head of a query and a part of its body. The request is at work: the server has asked
/// for the body.
fn half_sent(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = FIRST_HALF.len() + SECOND_HALF.len();
    let head = "POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n";
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes()).unwrap();
    let mut asked = [0; 25];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(FIRST_HALF.as_bytes()).unwrap();
    stream
}

/// Sends what [`half_sent`] left out.
fn send_rest(stream: &mut TcpStream) {
    stream.write_all(SECOND_HALF.as_bytes()).unwrap();
}

fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset after the answer is an end like any other.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn config(change: impl FnOnce(&mut HttpConfig)) -> HttpConfig {
    let mut config = HttpConfig::default();
    change(&mut config);
    config
}

#[test]
fn requests_beyond_the_bound_are_overloaded_and_probes_are_not() {
    let config = config(|config| config.requests_in_flight_max = 1);
    let server = Server::with(config, ServerLimits::default(), Readiness::ready());
    let mut first = half_sent(&server);
    let refused = wait_for("the first request is at work", || {
        let reply = server.get("/workers");
        if reply.status == 503 { Ok(reply) } else { Err(reply.text()) }
    });
    assert_eq!((refused.code().as_str(), refused.header("retry-after")), ("overloaded", Some("1")));
    for path in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    send_rest(&mut first);
    let mut answer = [0; 12];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 404", "no such index, but answered");
    wait_for("the place is free again", || match server.get("/workers").status {
        200 => Ok(()),
        other => Err(other.to_string()),
    });
}

#[test]
fn bodies_over_the_limit_are_413_with_and_without_a_length() {
    let config = config(|config| {
        config.body_bytes_max = 1000;
        config.query_body_bytes_max = 2000;
    });
    let server = Server::with(config, ServerLimits::default(), Readiness::ready());
    let post = |path: &str, pad: usize| server.post(path, &json!({"pad": "x".repeat(pad)})).code();
    assert_eq!(post("/register", 900), "invalid_body");
    assert_eq!(post("/register", 1000), "body_too_large");
    assert_eq!(post("/query", 1900), "invalid_body");
    assert_eq!(post("/query", 2000), "body_too_large");
    assert_eq!(post("/query", 3 << 20), "body_too_large", "the answer arrives although the client is still sending");
    let mut chunked = TcpStream::connect(server.address).unwrap();
    chunked.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = "POST /query HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("640\r\n{}\r\n", "x".repeat(1600));
    chunked.write_all(format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes()).unwrap();
    assert!(read_to_end(&mut chunked).starts_with("HTTP/1.1 413"));
}

#[test]
fn a_head_that_does_not_come_or_is_too_large_ends_the_connection() {
    let limits = ServerLimits { header_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let server = Server::with(HttpConfig::default(), limits, Readiness::ready());
    for start in ["", "GET /health HTTP/1.1\r\nHost: x\r\nX-Slow"] {
        let mut slow = TcpStream::connect(server.address).unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        slow.write_all(start.as_bytes()).unwrap();
        let began = Instant::now();
        let answer = read_to_end(&mut slow);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(10), "{start:?}");
    }
    let answer_to = |headers: &str| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may have seen enough, and closed, before all is sent.
        let _ = stream.write_all(format!("GET /health HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes());
        read_to_end(&mut stream)
    };
    let many: String = (0..200).map(|number| format!("X-{number}: 1\r\n")).collect();
    assert!(answer_to(&many).starts_with("HTTP/1.1 431"));
    let large = answer_to(&format!("X-Large: {}\r\n", "x".repeat(1 << 20)));
    assert!(large.is_empty() || large.starts_with("HTTP/1.1 431"), "{large}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn connections_beyond_the_bound_wait_for_their_turn() {
    let limits = ServerLimits { connections_max: 1, ..ServerLimits::default() };
    let server = Server::with(HttpConfig::default(), limits, Readiness::ready());
    let mut first = half_sent(&server);
    let address = server.address;
    let second = std::thread::spawn(move || {
        exchange(address, &Request { method: "GET", path: "/health", ..Request::default() })
    });
    send_rest(&mut first);
    let mut answer = [0; 12];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 404");
    assert!(!second.is_finished(), "the first connection still holds the only place");
    drop(first);
    assert_eq!(second.join().unwrap().unwrap().status, 200);
}

#[test]
fn a_stop_is_told_at_once_and_open_requests_are_finished() {
    let config = config(|config| config.requests_in_flight_max = 1);
    let mut server = Server::with(config, ServerLimits::default(), Readiness::ready());
    server.readiness.stop();
    let ready = server.get("/ready");
    assert_eq!((ready.status, ready.json()["ready"].clone()), (503, json!(false)));
    let mut open = half_sent(&server);
    let mut idle = TcpStream::connect(server.address).unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK", "answered while stopping");
    assert!(read_to_end(&mut idle).to_lowercase().contains("connection: close"));
    wait_for("the open request is at work", || match server.get("/workers").status {
        503 => Ok(()),
        other => Err(other.to_string()),
    });
    server.stop.cancel();
    send_rest(&mut open);
    let answer = read_to_end(&mut open).to_lowercase();
    assert!(answer.starts_with("http/1.1 404") && answer.contains("connection: close"), "{answer}");
    server.stop_and_wait();
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

#[test]
fn a_request_that_never_ends_is_cut_after_its_time() {
    let limits = ServerLimits { finish_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let config = config(|config| config.requests_in_flight_max = 1);
    let mut server = Server::with(config, limits, Readiness::ready());
    let mut endless = half_sent(&server);
    wait_for("the request is at work", || match server.get("/workers").status {
        503 => Ok(()),
        other => Err(other.to_string()),
    });
    let began = Instant::now();
    server.stop_and_wait();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(read_to_end(&mut endless), "");
}

#[test]
fn queries_wait_for_readiness_and_registering_does_not() {
    let (readiness, hold) = Readiness::starting("gate: 1 of 2 workers");
    let server = Server::with(HttpConfig::default(), ServerLimits::default(), readiness);
    server.register(1, "m", &json!({}));
    for (path, body) in [
        ("/query", json!({"model_name": "m", "token_ids": []})),
        ("/query_by_hash", json!({"model_name": "m", "block_hashes": []})),
        ("/explain", json!({"model_name": "m", "token_ids": []})),
    ] {
        let reply = server.post(path, &body);
        assert_eq!((reply.status, reply.code().as_str()), (503, "not_ready"), "{path}");
    }
    let ready = server.get("/ready");
    assert_eq!((ready.status, ready.json()["reasons"].clone()), (503, json!(["gate: 1 of 2 workers"])));
    assert_eq!(server.get("/health").status, 200);
    drop(hold);
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.post("/query", &json!({"model_name": "m", "token_ids": []})).status, 200);
}
