//! Bodies of queries that arrive in pieces, cut where their numbers are not: the answer is that of the whole body.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use kvindexer::hash;
use kvindexer::ids::{BlockSize, IndexKey, Namespace, Owner, Tier};
use serde_json::{Value, json};

use super::{Server, tokens, without_trust};
use crate::harness::http::Request;

/// Status and body of the answer to a body sent in chunks of so many bytes.
fn in_chunks(server: &Server, path: &str, content_type: &str, body: &[u8], chunk_bytes: usize) -> (u16, Value) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for chunk in body.chunks(chunk_bytes) {
        let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
        stream.write_all(&framed).unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_question_in_pieces_has_the_answer_of_the_whole() {
    let server = Server::start();
    let key = IndexKey::new("m", "default");
    server.register(1, "m", &json!({}));
    server.register("text id", "m", &json!({"endpoint": "tcp://127.0.0.1:10"}));
    let prompt: Vec<u32> = tokens(3001).iter().map(|token| token * 37 % 128_000).collect();
    server.store(&key, &Owner::new(1, 0), Tier::Device, &prompt[..2000]);
    let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let locals = hash::local_hashes(&bytes, BlockSize::new(4).unwrap(), Namespace::default());
    let hash_bytes: Vec<u8> = locals.iter().flat_map(|local| local.0.to_le_bytes()).collect();
    let list = |separator: &str| prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(separator);
    let want = server.post("/query", &json!({"model_name": "m", "token_ids": prompt}));
    assert_eq!((want.status, &want.json()["scores"]["1"]), (200, &json!({"0": 2000})));
    let want = without_trust(want.json());
    let (json_type, binary_type) = ("application/json", "application/octet-stream");
    for (path, content_type, body) in [
        ("/query", json_type, format!(r#"{{"model_name":"m","token_ids":[{}]}}"#, list(",")).into_bytes()),
        ("/query", json_type, format!(r#"{{"token_ids": [{}], "model_name": "m"}}"#, list(", ")).into_bytes()),
        ("/query", json_type, format!("{{\"token_ids\":[\n{}],\"model_name\":\"m\"}}", list(",\n")).into_bytes()),
        ("/query?model_name=m", binary_type, bytes.clone()),
        ("/query_by_hash?model_name=m", binary_type, hash_bytes),
    ] {
        for chunk_bytes in [7, 64, 1000, 1 << 20] {
            let (status, answer) = in_chunks(&server, path, content_type, &body, chunk_bytes);
            assert_eq!((status, &without_trust(answer)), (200, &want), "{path} {chunk_bytes}");
        }
    }
}

#[test]
fn faults_of_a_binary_question_are_told_in_one_order_however_it_arrives() {
    let server = Server::start();
    server.register(1, "m", &json!({}));
    for (path, bytes_len, want) in [
        ("/query?a=1&a=2", 5, (400, "invalid_query")),
        ("/query?model_name=nobody", 5, (422, "invalid_body")),
        ("/query?model_name=nobody", 8, (404, "unknown_index")),
        ("/query?model_name=m&matched_only=x", 6, (422, "invalid_body")),
        ("/query?model_name=m&matched_only=x", 8, (400, "invalid_query")),
        ("/query?model_name=m&lora_id=x", 8, (400, "invalid_query")),
        ("/query", 8, (422, "invalid_body")),
        ("/query_by_hash?a=1&a=2", 5, (400, "invalid_query")),
        ("/query_by_hash?model_name=nobody", 9, (422, "invalid_body")),
        ("/query_by_hash?model_name=m&cache_salt=s", 8, (400, "salt_not_accepted")),
        ("/query_by_hash?model_name=nobody", 8, (404, "unknown_index")),
    ] {
        let body = vec![7; bytes_len];
        let content_type = "application/octet-stream";
        let whole = server.send(&Request { method: "POST", path, content_type: Some(content_type), body: Some(&body) });
        let (status, pieces) = in_chunks(&server, path, content_type, &body, 3);
        assert_eq!((whole.status, whole.code().as_str()), want, "{path} {bytes_len}");
        assert_eq!((status, &pieces), (want.0, &whole.json()), "{path} {bytes_len}");
    }
}

#[test]
fn a_query_does_not_wait_for_the_threads_of_the_service() {
    let server = Server::start();
    server.register(1, "m", &json!({}));
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut ask = |request: &str| {
        stream.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        String::from_utf8(answer).unwrap()
    };
    assert!(ask("GET /health HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
    let [blocked, free] = [(); 2].map(|()| Arc::new(Barrier::new(3)));
    for _ in 0..2 {
        let (blocked, free) = (Arc::clone(&blocked), Arc::clone(&free));
        server.runtime.as_ref().unwrap().spawn(async move {
            blocked.wait();
            free.wait();
        });
    }
    // Both threads of the service stand still.
    blocked.wait();
    let body = r#"{"model_name":"m","token_ids":[1,2,3,4]}"#;
    let length = body.len();
    let answer = ask(&format!(
        "POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    free.wait();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
