//! Real peers: libzmq (PUB, XPUB, ROUTER; heart-beats) and the crate `zeromq` (the same; it announces ZMTP 3.0).

use std::time::{Duration, Instant};

use kvindexer::zmtp::{Context, Dealer, Options, SubEvent, Subscriber, Timing};
use zeromq::{Socket as _, SocketRecv as _, SocketSend as _, ZmqMessage};

use super::{
    DEADLINE, endpoint, frames, heard, libzmq, loss, message, options, publish, quick, received, subscriber, within,
};

#[tokio::test]
async fn libzmq_xpub_every_message_of_the_prefixes_arrives_in_order() {
    let (socket, address) = libzmq(zmq::XPUB, "tcp://127.0.0.1:*").await;
    let options = options(quick(), &["kv@", "other"]);
    let mut subscriber = Subscriber::new(endpoint(&address), options, Context::new(1));
    assert!(matches!(within("the handshake", subscriber.next()).await, SubEvent::Connected));
    let pump = async {
        // The connection writes its subscriptions while it is polled.
        loop {
            assert!(!matches!(subscriber.next().await, SubEvent::Disconnected { .. }));
        }
    };
    tokio::select! {
        () = pump => {}
        () = async {
            assert_eq!(received(&socket).await, [b"\x01kv@"]);
            assert_eq!(received(&socket).await, [b"\x01other"]);
        } => {}
    }
    for n in 0..1000 {
        publish(&socket, "kv@model", n);
        publish(&socket, "unwanted", n);
        socket.send_multipart([&b""[..], &[]], 0).unwrap();
        socket.send_multipart([&b"other"[..], &vec![n as u8; 100_000]], 0).unwrap();
    }
    for n in 0..1000u64 {
        let got = message(&mut subscriber).await;
        assert_eq!(frames(&got), [&b"kv@model"[..], &n.to_be_bytes(), b"payload"]);
        let got = message(&mut subscriber).await;
        assert_eq!(frames(&got), [&b"other"[..], &vec![n as u8; 100_000]]);
    }
}

/// Heart-beats of both sides run for half a second at 20 ms; the stream must not break once.
#[tokio::test]
async fn libzmq_pub_with_heart_beats_on_loses_nothing() {
    let socket = super::LIBZMQ.socket(zmq::PUB).unwrap();
    socket.set_heartbeat_ivl(20).unwrap();
    socket.set_heartbeat_timeout(1000).unwrap();
    socket.set_heartbeat_ttl(1000).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let address = socket.get_last_endpoint().unwrap().unwrap();
    let timing =
        Timing { ping_interval: Duration::from_millis(20), dead_after: Duration::from_millis(1500), ..quick() };
    let mut subscriber = subscriber(&address, timing);
    let mut n = 0u64;
    let first = heard(&mut subscriber, DEADLINE, || {
        publish(&socket, "", n);
        n += 1;
    })
    .await;
    let mut want = u64::from_be_bytes(first.frames[1][..].try_into().unwrap());
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) || want < n - 1 {
        publish(&socket, "", n);
        n += 1;
        want += 1;
        assert_eq!(message(&mut subscriber).await.frames[1][..], want.to_be_bytes());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Our own PING would cut these peers: they announce 3.0, and 15 intervals pass.
#[tokio::test]
async fn zeromq_pub_and_xpub_are_heard_and_never_pinged() {
    let timing = Timing { ping_interval: Duration::from_millis(20), dead_after: Duration::from_millis(60), ..quick() };
    let mut publisher = zeromq::PubSocket::new();
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    check_zeromq(&mut publisher, &mut subscriber(&address, timing)).await;
    let mut publisher = zeromq::XPubSocket::new();
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let mut subscriber = subscriber(&address, timing);
    // This XPUB takes note of a subscription when it is received, not before.
    let subscription = async { publisher.recv().await.unwrap().into_vec() };
    tokio::select! {
        got = within("a subscription", subscription) => assert_eq!(got, [&b"\x01"[..]]),
        error = loss(&mut subscriber) => panic!("cut: {error}"),
    }
    check_zeromq(&mut publisher, &mut subscriber).await;
}

async fn check_zeromq(publisher: &mut impl zeromq::SocketSend, subscriber: &mut Subscriber) {
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < Duration::from_millis(300) || count == 0 {
        assert!(began.elapsed() < DEADLINE, "nothing was heard");
        let parts: Vec<bytes::Bytes> = vec!["topic".into(), vec![0; 8].into(), "payload".into()];
        publisher.send(ZmqMessage::try_from(parts).unwrap()).await.unwrap();
        match tokio::time::timeout(super::POLL, subscriber.next()).await {
            Ok(SubEvent::Message(message)) => {
                assert_eq!(frames(&message), [&b"topic"[..], &[0; 8], b"payload"]);
                count += 1;
            }
            Ok(SubEvent::Disconnected { error }) => panic!("cut: {error}"),
            Ok(SubEvent::Connected) | Err(_) => {}
        }
    }
}

async fn dealer(address: &str) -> Dealer {
    let options = Options { timing: quick(), ..Options::default() };
    within("a dealer", Dealer::connect(&endpoint(address), &options, &Context::new(1))).await.unwrap()
}

#[tokio::test]
async fn libzmq_router_answers_a_dealer_and_its_death_is_an_error_at_once() {
    let (router, address) = libzmq(zmq::ROUTER, "tcp://127.0.0.1:*").await;
    let mut dealer = dealer(&address).await;
    within("a request", dealer.send(&[b"", &7u64.to_be_bytes()])).await.unwrap();
    let request = received(&router).await;
    assert_eq!(request[1..], [b"".to_vec(), 7u64.to_be_bytes().to_vec()]);
    for n in 7..2000u64 {
        router.send_multipart([&request[0][..], b"", &n.to_be_bytes(), &[1; 300]], 0).unwrap();
    }
    for n in 7..2000u64 {
        let answer = within("an answer", dealer.recv()).await.unwrap();
        assert_eq!(frames(&answer), [&b""[..], &n.to_be_bytes(), &[1; 300]]);
    }
    let silent = tokio::time::timeout(Duration::from_millis(50), dealer.recv()).await;
    assert!(silent.is_err(), "a silent router is the caller's to judge");
    drop(router);
    let error = within("the end", dealer.recv()).await.unwrap_err();
    assert_eq!(error.to_string(), "peer closed the connection");
}

#[tokio::test]
async fn zeromq_router_answers_a_dealer() {
    let mut router = zeromq::RouterSocket::new();
    let address = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let mut dealer = dealer(&address).await;
    within("a request", dealer.send(&[b"", &7u64.to_be_bytes()])).await.unwrap();
    let request = within("the request", router.recv()).await.unwrap().into_vec();
    assert_eq!(request[1..], [&b""[..], &7u64.to_be_bytes()]);
    for n in 7..100u64 {
        let parts = vec![request[0].clone(), "".into(), n.to_be_bytes().to_vec().into(), "payload".into()];
        router.send(ZmqMessage::try_from(parts).unwrap()).await.unwrap();
    }
    for n in 7..100u64 {
        let answer = within("an answer", dealer.recv()).await.unwrap();
        assert_eq!(frames(&answer), [&b""[..], &n.to_be_bytes(), b"payload"]);
    }
}

#[tokio::test]
async fn swapped_event_and_replay_ports_are_named() {
    let (_router, address) = libzmq(zmq::ROUTER, "tcp://127.0.0.1:*").await;
    let error = loss(&mut subscriber(&address, quick())).await;
    assert_eq!(error, "peer is a ROUTER socket, SUB needs PUB or XPUB (is this the replay port?)");
    let (_publisher, address) = libzmq(zmq::PUB, "tcp://127.0.0.1:*").await;
    let options = Options { timing: quick(), ..Options::default() };
    let error = Dealer::connect(&endpoint(&address), &options, &Context::new(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "peer is a PUB socket, DEALER needs ROUTER (is this the event port?)");
}

#[tokio::test]
async fn ipv6_and_ipc_are_heard() {
    let directory = std::env::temp_dir().join(format!("kvindexer-zmtp-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = format!("ipc://{}/kv.sock", directory.display());
    let name = format!("ipc://@kvindexer-zmtp-{}", std::process::id());
    let mut addresses = vec![path, name];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        addresses.push("tcp://[::1]:*".to_owned());
    }
    for address in addresses {
        let (socket, bound) = libzmq(zmq::PUB, &address).await;
        let mut subscriber = subscriber(&bound, quick());
        let got = heard(&mut subscriber, DEADLINE, || publish(&socket, "topic", 5)).await;
        assert_eq!(frames(&got), [&b"topic"[..], &5u64.to_be_bytes(), b"payload"], "{bound}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
