//! A stream's life: restarts, names that come and move, peers that fall silent.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvindexer::zmtp::{Context, Dealer, Error, Options, SubEvent, Subscriber, Timing};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{DEADLINE, endpoint, heard, libzmq, loss, options, peer, publish, quick, subscriber, within};

/// An address of the loopback net of its own: another test's port 0 can never take the port between two lives.
const RESTARTS: &str = "tcp://127.41.0.1:*";

#[tokio::test]
async fn a_publisher_killed_and_restarted_is_heard_again_each_time() {
    let (mut socket, address) = libzmq(zmq::PUB, RESTARTS).await;
    let mut subscriber = subscriber(&address, quick());
    for life in 0..5u64 {
        let got = heard(&mut subscriber, Duration::from_secs(5), || publish(&socket, "", life)).await;
        assert_eq!(got.frames[1][..], life.to_be_bytes());
        drop(socket);
        // Messages that were under way come first.
        assert!(loss(&mut subscriber).await.starts_with("peer closed the connection"));
        assert!(loss(&mut subscriber).await.starts_with("connection refused by 127.41.0.1:"));
        (socket, _) = libzmq(zmq::PUB, &address).await;
    }
}

#[tokio::test]
async fn a_peer_that_falls_silent_after_the_handshake_is_left_for_its_successor() {
    let listener = TcpListener::bind("127.41.0.2:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let timing = Timing { ping_interval: Duration::from_millis(50), dead_after: Duration::from_millis(200), ..quick() };
    let mut subscriber = subscriber(&format!("tcp://{address}"), timing);
    let silent = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&peer::handshake("PUB")).await.unwrap();
        stream
    };
    let (stream, first) = tokio::join!(within("a connection", silent), within("the handshake", subscriber.next()));
    assert!(matches!(first, SubEvent::Connected));
    let error = loss(&mut subscriber).await;
    assert!(error.starts_with("peer is silent: no byte and no answer to PING for "), "{error}");
    drop(listener);
    let (socket, _) = libzmq(zmq::PUB, &format!("tcp://{address}")).await;
    heard(&mut subscriber, Duration::from_secs(5), || publish(&socket, "", 1)).await;
    drop(stream);
}

#[tokio::test]
async fn a_name_that_resolves_later_and_moves_is_followed() {
    let names: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let (book, counter) = (Arc::clone(&names), Arc::clone(&asked));
    let context = Context::with_resolver(1, move |host, _| {
        assert_eq!(host, "pod-0.engines");
        counter.fetch_add(1, Ordering::SeqCst);
        book.lock().unwrap().map(|address| vec![address]).ok_or_else(|| io::Error::other("no such name"))
    });
    let mut subscriber = Subscriber::new(endpoint("tcp://pod-0.engines:5557"), options(quick(), &[]), context);
    for _ in 0..3 {
        assert_eq!(loss(&mut subscriber).await, "failed to resolve host `pod-0.engines`: no such name");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 3, "each attempt asks");
    for place in ["tcp://127.41.0.3:*", "tcp://127.41.0.4:*"] {
        let (socket, address) = libzmq(zmq::PUB, place).await;
        *names.lock().unwrap() = Some(address.strip_prefix("tcp://").unwrap().parse().unwrap());
        heard(&mut subscriber, Duration::from_secs(5), || publish(&socket, "", 1)).await;
    }
}

#[tokio::test]
async fn the_first_address_that_answers_is_taken() {
    let (socket, address) = libzmq(zmq::PUB, "tcp://127.41.0.5:*").await;
    let good: SocketAddr = address.strip_prefix("tcp://").unwrap().parse().unwrap();
    let dead = SocketAddr::from(([127, 41, 0, 6], good.port()));
    let context = Context::with_resolver(1, move |_, _| Ok(vec![dead, dead, good]));
    let mut subscriber = Subscriber::new(endpoint("tcp://pod:1"), options(quick(), &[]), context);
    heard(&mut subscriber, DEADLINE, || publish(&socket, "", 1)).await;
}

/// A name whose first address belongs to somebody else, who accepts connections.
#[tokio::test]
async fn a_stranger_at_the_first_address_does_not_hide_the_publisher() {
    let (_stranger, address) = libzmq(zmq::ROUTER, "tcp://127.41.0.8:*").await;
    let first: SocketAddr = address.strip_prefix("tcp://").unwrap().parse().unwrap();
    let (socket, address) = libzmq(zmq::PUB, "tcp://127.41.0.9:*").await;
    let second: SocketAddr = address.strip_prefix("tcp://").unwrap().parse().unwrap();
    let context = Context::with_resolver(1, move |_, _| Ok(vec![first, second]));
    let mut subscriber = Subscriber::new(endpoint("tcp://pod:1"), options(quick(), &[]), context);
    assert!(loss(&mut subscriber).await.starts_with("peer is a ROUTER socket"));
    heard(&mut subscriber, DEADLINE, || publish(&socket, "", 1)).await;
}

#[tokio::test]
async fn a_real_name_is_resolved_by_the_system() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://localhost:{}", listener.local_addr().unwrap().port());
    let mut subscriber = subscriber(&address, quick());
    let accept = async { listener.accept().await.unwrap() };
    tokio::select! {
        (mut stream, _) = within("a connection", accept) => stream.write_all(&peer::handshake("PUB")).await.unwrap(),
        event = async { loss(&mut subscriber).await } => panic!("{event}"),
    }
    let unknown = loss(&mut Subscriber::new(
        endpoint("tcp://no-such-host.invalid:5557"),
        options(Timing { lookup: Duration::from_secs(1), ..quick() }, &[]),
        Context::new(1),
    ))
    .await;
    assert!(unknown.starts_with("failed to resolve host `no-such-host.invalid`: "), "{unknown}");
}

#[tokio::test]
async fn a_hopeless_endpoint_says_so_and_nothing_is_tried() {
    for (text, want) in [
        ("tcp://*:5557", "endpoint can never connect: host `*` is for the side that binds; name the publisher's host"),
        ("tcp://h:0", "endpoint can never connect: port 0 is for the side that binds; name the publisher's port"),
        ("inproc://x", "endpoint can never connect: inproc reaches only sockets of the same process"),
    ] {
        let context = Context::with_resolver(1, |_, _| panic!("looked up"));
        let mut subscriber = Subscriber::new(endpoint(text), options(quick(), &[]), context);
        assert_eq!(loss(&mut subscriber).await, want);
    }
}

#[tokio::test]
async fn a_closed_port_is_an_error_at_once_for_a_dealer() {
    let listener = TcpListener::bind("127.41.0.7:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let began = Instant::now();
    let target = endpoint(&format!("tcp://{address}"));
    let error = Dealer::connect(&target, &Options::default(), &Context::new(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { address: at } if *at == address.to_string()), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2));
}

/// The publisher never waits for us: what it sends beyond the kernel's buffers waits in it, not in this process.
#[tokio::test]
async fn a_stalled_consumer_stops_the_publisher_by_tcp_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut subscriber = subscriber(&format!("tcp://{}", listener.local_addr().unwrap()), quick());
    let publisher = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&peer::handshake("PUB")).await.unwrap();
        stream
    };
    let (mut stream, first) =
        tokio::join!(within("a connection", publisher), within("the handshake", subscriber.next()));
    assert!(matches!(first, SubEvent::Connected));
    let batch = peer::message(&[b"", &[0; 8], &[7; 200]]).repeat(1000);
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(300), stream.write(&batch)).await {
        sent += written.unwrap();
        assert!(sent < 256 * 1024 * 1024, "nothing slows the publisher down");
    }
    // Whole frames were cut by the partial writes above in the middle of a batch: count bytes, not batches.
    let mut seen = 0;
    let whole = peer::message(&[b"", &[0; 8], &[7; 200]]).len();
    while seen + whole <= sent {
        let message = super::message(&mut subscriber).await;
        assert_eq!(message.frames[2].len(), 200);
        seen += whole;
    }
}
