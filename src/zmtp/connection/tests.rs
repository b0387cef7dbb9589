//! One connection against a scripted peer on the other end of a socket pair.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;

/// A SUB connection after the handshake with a PUB, and the PUB's end.
async fn pair(timing: Timing, minor: u8) -> (Connection, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let options = Options { timing, ..Options::default() };
    let mut connection = Connection::new(Socket::Unix(ours), &options);
    let mut script = codec::greeting().to_vec();
    script[11] = minor;
    let mut ready = BytesMut::new();
    codec::put_ready(&mut ready, "PUB", None);
    script.extend_from_slice(&ready);
    theirs.write_all(&script).await.unwrap();
    connection.shake_hands(Role::Sub, &[]).await.unwrap();
    connection.clock.start();
    let mut sent = [0; 64 + 27 + 3];
    theirs.read_exact(&mut sent).await.unwrap();
    assert_eq!(&sent[91..], b"\x00\x01\x01", "the subscription to everything");
    (connection, theirs)
}

async fn receive(connection: &mut Connection) -> Result<Message, Error> {
    poll_fn(|cx| connection.poll_message(cx)).await
}

fn message(frames: &[&[u8]]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for (i, frame) in frames.iter().enumerate() {
        codec::put_frame(&mut bytes, frame, i + 1 < frames.len());
    }
    bytes
}

#[tokio::test]
async fn a_dropped_receive_loses_nothing() {
    let (mut connection, mut peer) = pair(Timing::default(), 1).await;
    let writer = async {
        for n in 0u32..200 {
            for piece in message(&[b"topic", &n.to_be_bytes(), &[7; 100]]).chunks(31) {
                peer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    };
    let reader = async {
        let mut want = 0u32;
        while want < 200 {
            tokio::select! {
                biased;
                message = receive(&mut connection) => {
                    assert_eq!(&message.unwrap().frames[1][..], want.to_be_bytes());
                    want += 1;
                }
                () = tokio::task::yield_now() => {}
            }
        }
    };
    tokio::join!(writer, reader);
}

#[tokio::test]
async fn an_announced_length_allocates_nothing() {
    let (mut connection, mut peer) = pair(Timing::default(), 1).await;
    let announced = [&[2][..], &(64u64 * 1024 * 1024).to_be_bytes(), b"begin"].concat();
    peer.write_all(&announced).await.unwrap();
    assert!(timeout(Duration::from_millis(50), receive(&mut connection)).await.is_err(), "there is no message");
    assert_eq!(connection.inbox.len(), announced.len());
    assert!(connection.inbox.capacity() <= 2 * READ_BYTES_MIN, "{}", connection.inbox.capacity());
}

#[tokio::test]
async fn the_memory_of_a_huge_message_is_given_back() {
    let (mut connection, mut peer) = pair(Timing::default(), 1).await;
    let huge = vec![1; 8 * 1024 * 1024];
    let writer = async {
        peer.write_all(&message(&[b"", b"n", &huge])).await.unwrap();
        for _ in 0..2 {
            peer.write_all(&message(&[b"small"])).await.unwrap();
        }
    };
    let reader = async {
        assert_eq!(receive(&mut connection).await.unwrap().frames[2].len(), huge.len());
        for _ in 0..2 {
            assert_eq!(&receive(&mut connection).await.unwrap().frames[0][..], b"small");
        }
    };
    tokio::join!(writer, reader);
    peer.write_all(&message(&[b"small"])).await.unwrap();
    receive(&mut connection).await.unwrap();
    assert!(connection.inbox.capacity() <= RETAINED_BYTES_MAX, "{}", connection.inbox.capacity());
    connection.rest();
    assert_eq!(connection.inbox.capacity(), 0);
}

#[tokio::test]
async fn pings_of_a_peer_that_does_not_read_are_dropped_not_queued() {
    let (mut connection, mut peer) = pair(Timing::default(), 1).await;
    let flood = b"\x04\x17\x04PING\0\0contextof16bytes".repeat(50_000);
    let writer = async {
        peer.write_all(&flood).await.unwrap();
        peer.write_all(&message(&[b"end"])).await.unwrap();
    };
    let reader = async {
        let end = receive(&mut connection).await.unwrap();
        assert_eq!(&end.frames[0][..], b"end");
        assert!(connection.outbox.len() <= UNSENT_BYTES_MAX + 32, "{}", connection.outbox.len());
    };
    tokio::join!(writer, reader);
}

#[tokio::test]
async fn a_ping_is_answered_with_its_context_while_messages_wait() {
    let (mut connection, mut peer) = pair(Timing::default(), 1).await;
    let mut script = b"\x04\x0a\x04PING\0\0abc".to_vec();
    script.extend_from_slice(&message(&[b"a"]));
    script.extend_from_slice(&message(&[b"b"]));
    peer.write_all(&script).await.unwrap();
    assert_eq!(&receive(&mut connection).await.unwrap().frames[0][..], b"a");
    let mut pong = [0; 10];
    timeout(Duration::from_secs(10), peer.read_exact(&mut pong)).await.expect("an answer").unwrap();
    assert_eq!(&pong, b"\x04\x08\x04PONGabc");
    assert_eq!(&connection.buffered().unwrap().unwrap().frames[0][..], b"b");
    assert_eq!(connection.buffered().unwrap(), None);
}

fn short(ping_ms: u64, dead_ms: u64) -> Timing {
    Timing {
        ping_interval: Duration::from_millis(ping_ms),
        dead_after: Duration::from_millis(dead_ms),
        ..Timing::default()
    }
}

#[tokio::test]
async fn a_silent_peer_of_3_1_is_asked_and_then_dead() {
    let (mut connection, mut peer) = pair(short(20, 100), 1).await;
    let began = Instant::now();
    let error = receive(&mut connection).await.unwrap_err();
    assert!(error.to_string().starts_with("peer is silent: no byte and no answer to PING for "), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(100));
    let mut asked = [0; 9];
    peer.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"\x04\x07\x04PING\0\0");
}

#[tokio::test]
async fn a_peer_that_answers_lives_and_a_peer_of_3_0_is_never_asked() {
    let (mut connection, mut peer) = pair(short(10, 40), 1).await;
    let answers = async {
        for _ in 0..20 {
            let mut asked = [0; 9];
            timeout(Duration::from_secs(10), peer.read_exact(&mut asked)).await.expect("a PING").unwrap();
            peer.write_all(b"\x04\x05\x04PONG").await.unwrap();
        }
        peer.write_all(&message(&[b"alive"])).await.unwrap();
    };
    let (got, ()) = tokio::join!(receive(&mut connection), answers);
    assert_eq!(&got.unwrap().frames[0][..], b"alive");

    let (mut connection, mut peer) = pair(short(10, 40), 0).await;
    assert!(timeout(Duration::from_millis(200), receive(&mut connection)).await.is_err(), "silence is no death");
    peer.write_all(&message(&[b"alive"])).await.unwrap();
    receive(&mut connection).await.unwrap();
    drop(connection);
    let mut said = Vec::new();
    peer.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"", "no PING");
}

#[tokio::test]
async fn our_own_pause_is_not_the_peers_death() {
    let (mut connection, _peer) = pair(short(10, 40), 1).await;
    let now = Instant::now();
    connection.clock.heard_at = now - Duration::from_secs(60);
    assert_eq!(connection.clock.dead_at(), None, "nothing was asked");
    connection.clock.unanswered_since = Some(now);
    assert_eq!(connection.clock.dead_at(), Some(now + Duration::from_millis(30)));
    connection.clock.heard_at = now;
    assert_eq!(connection.clock.dead_at(), Some(now + Duration::from_millis(40)));
    connection.clock.heard();
    assert_eq!(connection.clock.dead_at(), None);
}

#[tokio::test]
async fn the_last_messages_before_the_end_are_delivered() {
    let (mut connection, mut peer) = pair(Timing::default(), 1).await;
    peer.write_all(&message(&[b"last"])).await.unwrap();
    peer.write_all(b"\x01\x00\x00\x05abc").await.unwrap();
    drop(peer);
    assert_eq!(&receive(&mut connection).await.unwrap().frames[0][..], b"last");
    let error = receive(&mut connection).await.unwrap_err();
    assert_eq!(error.to_string(), "peer closed the connection in the middle of a message");
}

#[tokio::test]
async fn the_cause_that_a_write_met_is_not_lost() {
    let (mut connection, peer) = pair(Timing::default(), 1).await;
    connection.unsendable(io::Error::from(io::ErrorKind::BrokenPipe));
    connection.unsendable(io::Error::from(io::ErrorKind::TimedOut));
    drop(peer);
    assert_eq!(receive(&mut connection).await.unwrap_err().to_string(), "connection lost: timed out");
}
