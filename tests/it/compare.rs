//! What the comparison with the reference rests on: answers are really compared, figures are really put together.

#![allow(dead_code, reason = "the parts that start services are used by the bench only")]

#[path = "../../benches/compare/answers.rs"]
mod answers;
#[path = "../../benches/compare/children.rs"]
mod children;
#[path = "../../benches/compare/http.rs"]
mod http;
#[path = "../../benches/compare/measure.rs"]
mod measure;
#[path = "../../benches/compare/service.rs"]
mod service;
#[path = "../../benches/compare/table.rs"]
mod table;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use answers::{Ledger, of_prefixes, scores};
use http::{Client, Request, download};
// The modules above look for it beside them.
use crate::workload::shared as workload;
use service::Side;
use table::{Row, Target};

#[test]
fn zeros_do_not_count_and_every_other_difference_does() {
    let ours = br#"{"scores": {"1": {"0": 32, "1": 0}, "2": {"0": 0}, "3": {"0": 16}}, "frequencies": [2, 1]}"#;
    let same = br#"{"scores": {"3": {"0": 16}, "1": {"0": 32}}, "frequencies": []}"#;
    let less = br#"{"scores": {"1": {"0": 16}, "3": {"0": 16}}}"#;
    let more = br#"{"scores": {"1": {"0": 32}, "3": {"0": 16}, "4": {"0": 16}}}"#;
    let ours = scores(ours).unwrap();
    let mut ledger = Ledger::default();
    for (theirs, different) in [(&same[..], 0), (less, 1), (more, 2), (br#"{"scores": {}}"#, 3)] {
        ledger.enter("a query", &ours, &scores(theirs).unwrap());
        assert_eq!(ledger.different, different);
    }
    assert_eq!((ledger.compared, ledger.workers, ledger.tokens), (4, 2, 48));
    assert_eq!(ledger.lines[0], "different: a query: 1:0 Some(32) against Some(16)");
    assert_eq!(ledger.lines[1], "different: a query: 4:0 None against Some(16)");
    assert_eq!(of_prefixes(&[2, 0, 1]), ours);
    assert!(scores(b"{}").is_err() && scores(b"[1").is_err() && scores(br#"{"scores": {"1": 3}}"#).is_err());
}

#[test]
fn a_target_is_judged_by_medians() {
    let with = |ours: &[f64], reference: &[f64], target| Row {
        ours: ours.to_vec(),
        reference: reference.to_vec(),
        target,
        ..Row::new("group", "row", "us")
    };
    let never = f64::INFINITY;
    for (ours, reference, target, met) in [
        (&[1.0, 9.0, 2.0][..], &[20.0, 10.0, 11.0][..], Target::TimesLess(5.5), Some(true)),
        (&[1.0, 9.0, 2.0], &[20.0, 10.0, 11.0], Target::TimesLess(5.6), Some(false)),
        (&[1.0, 3.0], &[never, never], Target::TimesLess(5.0), Some(true)),
        (&[never, never, 1.0], &[2.0], Target::TimesLess(1.0), Some(false)),
        (&[1.0, 3.0], &[], Target::AtMost(2.0), Some(true)),
        (&[1.0, 3.1], &[], Target::AtMost(2.0), Some(false)),
        (&[], &[1.0], Target::AtMost(2.0), Some(false)),
        (&[], &[1.0], Target::TimesLess(2.0), Some(false)),
        (&[1.0], &[1.0], Target::None, None),
    ] {
        assert_eq!(with(ours, reference, target).is_met(), met, "{ours:?} {reference:?} {target:?}");
    }
    let text = table::text(&[with(&[1.0, 3.0], &[never, never], Target::AtMost(2.5))]);
    let line = text.lines().find(|line| line.starts_with("row")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[..9], ["row", "us", "2.00", "(1.00..3.00)", "never", "(never..never)", "never", "<=", "2.50"]);
    assert_eq!(words[9], "met");
    let json = with(&[1.0, 3.0], &[never], Target::AtMost(2.5)).json();
    assert_eq!((&json["ours"]["median"], &json["reference"]["samples"][0]), (&2.0.into(), &"never".into()));
}

#[test]
fn quantiles_and_medians_are_values_of_the_list_or_between_two() {
    let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
    assert_eq!((measure::quantile(&mut values, 0.5), measure::quantile(&mut values, 0.99)), (51.0, 100.0));
    assert_eq!((measure::median(&[5.0, 1.0, 3.0]), measure::median(&[4.0, 1.0])), (3.0, 2.5));
    assert!(measure::quantile(&mut [], 0.5).is_nan() && measure::median(&[]).is_nan());
}

#[test]
fn samples_are_taken_in_the_order_a_b_b_a() {
    let mut row = Row::new("group", "row", "us");
    for (side, value) in Side::ABBA.into_iter().zip([1.0, 2.0, 3.0, 4.0]) {
        row.add(side, value);
    }
    assert_eq!((row.ours, row.reference, row.loads.len()), (vec![1.0, 4.0], vec![2.0, 3.0], 4));
}

/// Reads one request without a body.
fn request(stream: &mut TcpStream) -> String {
    let mut bytes = vec![];
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_client_keeps_its_connection_and_replaces_one_that_was_closed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        for body in ["one", "two"] {
            assert!(request(&mut first).starts_with("GET /path HTTP/1.1\r\n"));
            first.write_all(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 3\r\n").unwrap();
            first.write_all(format!("\r\n{body}").as_bytes()).unwrap();
        }
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        request(&mut second);
        let long = "x".repeat(1 << 20);
        second
            .write_all(format!("HTTP/1.1 503 No\r\nContent-Length: {}\r\n\r\n{long}", long.len()).as_bytes())
            .unwrap();
    });
    let mut client = Client::connect(address).unwrap();
    let get = Request::get("/path");
    assert_eq!(client.expect(&get).unwrap(), b"one");
    assert_eq!(client.expect(&get).unwrap(), b"two");
    let reply = client.call(&get).unwrap();
    assert_eq!((reply.status, reply.body.len()), (503, 1 << 20));
    server.join().unwrap();
}

#[test]
fn a_download_is_counted_to_its_last_byte_and_refused_unless_it_is_200() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        for (status, body) in [("200 OK", "a".repeat(600_000) + "}"), ("503 No", "no".to_owned())] {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(request(&mut stream).starts_with("GET /dump HTTP/1.0\r\n"));
            stream.write_all(format!("HTTP/1.0 {status}\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    assert_eq!(download(address, "/dump").unwrap(), (600_001, b'}'));
    assert!(download(address, "/dump").unwrap_err().to_string().contains("503"));
    server.join().unwrap();
}
