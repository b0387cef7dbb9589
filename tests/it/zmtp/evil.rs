//! Peers that misbehave: before, in and after the handshake. All run at once.
//!
//! For each: the process lives, the error names the cause, attempts stay below ten per second, and a good publisher
//! that takes the port is heard within five seconds.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvindexer::zmtp::{SubEvent, Subscriber};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{frames, heard, libzmq, message, peer, publish, quick, subscriber, within};

type Script = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>;

/// A peer and what the error must say of it.
struct Evil {
    name: &'static str,
    says: &'static str,
    script: Box<dyn Fn(TcpStream) -> Script + Send + Sync>,
}

fn evil<F>(name: &'static str, says: &'static str, script: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Evil
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    Evil { name, says, script: Box::new(move |stream| Box::pin(script(stream))) }
}

/// Says these bytes, then keeps the connection open.
fn saying(name: &'static str, says: &'static str, bytes: Vec<u8>) -> Evil {
    let bytes = Arc::new(bytes);
    evil(name, says, move |mut stream| {
        let bytes = Arc::clone(&bytes);
        async move {
            stream.write_all(&bytes).await?;
            read_to_end(&mut stream).await
        }
    })
}

async fn read_to_end(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut sink = [0; 1024];
    while stream.read(&mut sink).await? > 0 {}
    Ok(())
}

/// After a good handshake.
fn after(bytes: &[u8]) -> Vec<u8> {
    [&peer::handshake("PUB"), bytes].concat()
}

/// A READY with these properties, after a good greeting.
fn ready(properties: &[u8]) -> Vec<u8> {
    [peer::greeting(3, 1, "NULL"), peer::command(&[b"\x05READY", properties].concat())].concat()
}

fn before_the_handshake() -> Vec<Evil> {
    let mut random = fastrand::Rng::with_seed(20_261_130);
    let noise: Vec<u8> = (0..4096).map(|_| random.u8(..)).collect();
    let v1 = vec![1, 0];
    let v2 = [&[0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 1, 1][..], &[0, 0]].concat();
    vec![
        saying("random bytes", "peer does not speak ZMTP, it began with", noise),
        saying(
            "HTTP answer",
            "peer does not speak ZMTP, it began with \"HTTP/1.1 400 Bad Request\"",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".to_vec(),
        ),
        // With our greeting unread the system says reset instead of end.
        evil("close at once", " before it sent anything", |stream| async move {
            drop(stream);
            Ok(())
        }),
        saying("silent", "peer accepted the connection and sent nothing", vec![]),
        evil("drip", "peer sent only a part of its greeting", |mut stream| async move {
            for byte in peer::greeting(3, 1, "NULL") {
                stream.write_all(&[byte]).await?;
                sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        }),
        saying("CURVE", "security mechanism \"CURVE\", only NULL", peer::greeting(3, 1, "CURVE")),
        saying("PLAIN", "security mechanism \"PLAIN\", only NULL", peer::greeting(3, 0, "PLAIN")),
        saying("ZMTP 2.0", "peer speaks ZMTP 2.0", v2),
        saying("ZMTP 1.0", "peer speaks ZMTP 1.0", v1),
        saying("ZMTP 4.0", "peer speaks ZMTP 4.0", peer::greeting(4, 0, "NULL")),
    ]
}

fn in_the_handshake() -> Vec<Evil> {
    let refusal = [peer::greeting(3, 1, "NULL"), peer::command(b"\x05ERROR\x07go away")].concat();
    vec![
        saying("ERROR", "peer refused with ERROR: \"go away\"", refusal),
        saying("wrong type", "peer is a PULL socket, SUB needs PUB or XPUB", peer::handshake("PULL")),
        saying("long property", "value of READY is cut off", ready(b"\x0bSocket-Type\0\0\0\x63PUB")),
        saying("no value", "property of READY has no value", ready(b"\x0bSocket-Type")),
        saying("no type", "READY names no socket type", ready(b"")),
        saying("no READY", "peer sent its greeting but no READY", peer::greeting(3, 1, "NULL")),
        saying(
            "message first",
            "a message came before READY",
            [peer::greeting(3, 1, "NULL"), peer::message(&[b"hello"])].concat(),
        ),
        evil("FIN after READY", "peer closed the connection", |mut stream| async move {
            stream.write_all(&peer::handshake("PUB")).await?;
            stream.shutdown().await?;
            read_to_end(&mut stream).await
        }),
        evil("RST after READY", "connection lost", |mut stream| async move {
            stream.write_all(&peer::handshake("PUB")).await?;
            // The subscription is there: the handshake is over on the other side too.
            let mut said = [0; 64 + 27 + 3];
            stream.read_exact(&mut said).await?;
            stream.set_zero_linger()?;
            drop(stream);
            Ok(())
        }),
    ]
}

fn after_the_handshake() -> Vec<Evil> {
    let mut evils = vec![
        saying("2^34", "announced a frame of 17179869184 bytes, the limit is 67108864", after(&peer::long(1 << 34))),
        saying("2^40", "announced a frame of 1099511627776 bytes", after(&peer::long(1 << 40))),
        saying("2^62", "announced a frame of 4611686018427387904 bytes", after(&peer::long(1 << 62))),
        saying("2^64-1", "announced a frame of 18446744073709551615 bytes", after(&peer::long(u64::MAX))),
        saying("reserved bits", "reserved flag bits are set", after(b"\x80\x00")),
        saying("MORE on a command", "a command has the MORE flag", after(b"\x05\x06\x05HELLO")),
        saying("late ERROR", "peer refused with ERROR: \"enough\"", after(&peer::command(b"\x05ERROR\x06enough"))),
        evil("death in mid-frame", "peer closed the connection in the middle of a message", |mut stream| async move {
            stream.write_all(&after(b"\x01\x01t\x00\x50half")).await?;
            stream.shutdown().await?;
            read_to_end(&mut stream).await
        }),
    ];
    evils.push(evil("endless multipart", "a message of more than 16 frames, the limit", |mut stream| async move {
        stream.write_all(&peer::handshake("PUB")).await?;
        loop {
            stream.write_all(&[1, 0].repeat(10_000)).await?;
        }
    }));
    evils.push(evil("4 GiB frame", "announced a frame of 4294967296 bytes", |mut stream| async move {
        stream.write_all(&after(&peer::long(1 << 32))).await?;
        loop {
            stream.write_all(&[0; 65536]).await?;
        }
    }));
    evils
}

#[tokio::test]
async fn no_bad_peer_stops_a_subscriber() {
    let rss_before = rss_kb();
    let evils = [before_the_handshake(), in_the_handshake(), after_the_handshake()].into_iter().flatten();
    let cases = evils.enumerate().map(|(i, evil)| suffer(evil, u8::try_from(i).unwrap() + 1));
    futures::future::join_all(cases).await;
    let grown = rss_kb().saturating_sub(rss_before);
    // Other tests share the process: a loose bound, far below what one unbounded peer would take in this time.
    assert!(grown < 300_000, "memory grew by {grown} kB");
}

fn rss_kb() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn suffer(evil: Evil, host: u8) {
    let name = evil.name;
    // A loopback address of its own, so that nobody else takes the port when the bad peer leaves it.
    let listener = TcpListener::bind(SocketAddr::from(([127, 42, 0, host], 0))).await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let attempts: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, evil.script, Arc::clone(&attempts)));
    let mut subscriber = subscriber(&address, quick());

    check_errors(&mut subscriber, name, evil.says).await;
    let attempts = attempts.lock().unwrap().clone();
    for start in &attempts {
        let in_a_second = attempts.iter().filter(|at| **at >= *start && **at - *start < Duration::from_secs(1)).count();
        assert!(in_a_second <= 10, "{name}: {in_a_second} attempts in a second");
    }

    server.shutdown().await;
    let (good, _) = libzmq(zmq::PUB, &address).await;
    let began = Instant::now();
    let got = heard(&mut subscriber, Duration::from_secs(5), || publish(&good, "good", 9)).await;
    assert_eq!(frames(&got), [&b"good"[..], &9u64.to_be_bytes(), b"payload"], "{name}");
    assert!(began.elapsed() < Duration::from_secs(5), "{name}");
}

/// For two seconds and at least three losses: every loss names the cause, and no message is made up.
async fn check_errors(subscriber: &mut Subscriber, name: &str, says: &str) {
    let began = Instant::now();
    let mut losses = 0;
    while losses < 3 || began.elapsed() < Duration::from_secs(2) {
        match within(name, subscriber.next()).await {
            SubEvent::Disconnected { error } => {
                assert!(error.contains(says), "{name}: {error:?} does not say {says:?}");
                losses += 1;
            }
            SubEvent::Connected => {}
            SubEvent::Message(message) => panic!("{name}: a message {message:?}"),
        }
    }
}

async fn serve(
    listener: TcpListener,
    script: Box<dyn Fn(TcpStream) -> Script + Send + Sync>,
    attempts: Arc<Mutex<Vec<Instant>>>,
) {
    let mut open = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        attempts.lock().unwrap().push(Instant::now());
        open.spawn(script(stream));
    }
}

/// Odd but allowed, or harmless: the connection must stay, and the messages arrive as they are.
#[tokio::test]
async fn harmless_oddities_do_not_cost_the_connection() {
    let ping = peer::command(b"\x04PING\x00\x00context");
    let odd = [
        peer::command(b"\x07UNKNOWNwhatever"),
        peer::command(b"\x00"),
        ping.clone(),
        peer::message(&[b""]).repeat(100),
        peer::message(&[b"one"]),
        peer::message(&[b"one", b"two"]),
        peer::message(&[b"1", b"2", b"3", b"4"]),
        peer::message(&[b"", &[0; 7], b"p"]),
        peer::message(&[b"", &[0; 9], b"p"]),
        // libzmq's heart-beat may fall between two frames of a message.
        [&[1, 1, b'a'], &ping[..], &[0, 1, b'b']].concat(),
    ]
    .concat();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut subscriber = subscriber(&format!("tcp://{}", listener.local_addr().unwrap()), quick());
    let peer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&after(&odd)).await.unwrap();
        let mut said = vec![0; 64 + 27 + 3 + 2 * 14];
        stream.read_exact(&mut said).await.unwrap();
        stream.write_all(&peer::message(&[b"end"])).await.unwrap();
        (stream, said.split_off(64 + 27 + 3))
    });
    let mut seen = Vec::new();
    while seen.last() != Some(&vec![3]) || seen.len() < 107 {
        let got = message(&mut subscriber).await;
        seen.push(frames(&got).iter().map(|frame| frame.len()).collect::<Vec<_>>());
    }
    let mut want = vec![vec![0]; 100];
    want.extend([vec![3], vec![3, 3], vec![1, 1, 1, 1], vec![0, 7, 1], vec![0, 9, 1], vec![1, 1], vec![3]]);
    assert_eq!(seen, want);
    let (_stream, pongs) = within("the peer", peer).await.unwrap();
    assert_eq!(pongs, peer::command(b"\x04PONGcontext").repeat(2), "the context comes back");
    assert!(timeout(Duration::from_millis(50), subscriber.next()).await.is_err(), "still connected");
}
