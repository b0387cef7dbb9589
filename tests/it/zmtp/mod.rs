//! The room `zmtp` against real sockets: libzmq, the crate `zeromq`, and peers that misbehave.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod black_hole;
mod evil;
mod fuzz;
mod interop;
mod life;
mod peer;
mod process;
mod scale;

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use kvindexer::zmtp::{Context, Endpoint, Message, Options, SubEvent, Subscriber, Timing};
use tokio::time::{sleep, timeout};

/// Long enough for a loaded machine; what is awaited comes within milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

static LIBZMQ: LazyLock<zmq::Context> = LazyLock::new(zmq::Context::new);

/// Default times, with the waits that tests have to sit out made short.
fn quick() -> Timing {
    Timing { handshake: Duration::from_millis(400), backoff_max: Duration::from_millis(800), ..Timing::default() }
}

fn options(timing: Timing, topics: &[&'static str]) -> Options {
    Options { timing, topics: topics.iter().map(|t| Bytes::from_static(t.as_bytes())).collect(), ..Options::default() }
}

fn endpoint(text: &str) -> Endpoint {
    Endpoint::parse(text).unwrap()
}

fn subscriber(text: &str, timing: Timing) -> Subscriber {
    Subscriber::new(endpoint(text), options(timing, &[]), Context::new(4))
}

#[track_caller]
fn within<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move { timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("not in time: {what} ({place})")) }
}

/// The next message; a lost connection is a failure of the test.
async fn message(subscriber: &mut Subscriber) -> Message {
    loop {
        if let Some(message) = subscriber.try_next() {
            return message;
        }
        match within("a message", subscriber.next()).await {
            SubEvent::Message(message) => return message,
            SubEvent::Connected => {}
            SubEvent::Disconnected { error } => panic!("connection lost: {error}"),
        }
    }
}

/// Why the connection was lost, or could not be made.
async fn loss(subscriber: &mut Subscriber) -> String {
    loop {
        if let SubEvent::Disconnected { error } = within("a loss", subscriber.next()).await {
            return error;
        }
    }
}

/// Publishes until something is heard; `Disconnected` on the way is fine. A subscription takes a moment to arrive.
async fn heard(subscriber: &mut Subscriber, limit: Duration, mut publish: impl FnMut()) -> Message {
    let listen = async {
        loop {
            publish();
            if let Ok(SubEvent::Message(message)) = timeout(POLL, subscriber.next()).await {
                return message;
            }
        }
    };
    timeout(limit, listen).await.unwrap_or_else(|_| panic!("nothing heard within {limit:?}"))
}

fn frames(message: &Message) -> Vec<&[u8]> {
    message.frames.iter().map(|frame| &frame[..]).collect()
}

/// A libzmq socket without marks and linger, bound; and where.
async fn libzmq(kind: zmq::SocketType, address: &str) -> (zmq::Socket, String) {
    let socket = LIBZMQ.socket(kind).unwrap();
    socket.set_sndhwm(0).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_ipv6(address.contains('[')).unwrap();
    within("a free address", async {
        while socket.bind(address).is_err() {
            sleep(POLL).await;
        }
    })
    .await;
    let address = socket.get_last_endpoint().unwrap().unwrap();
    (socket, address)
}

/// The next message of a libzmq socket.
async fn received(socket: &zmq::Socket) -> Vec<Vec<u8>> {
    within("a message at libzmq", async {
        loop {
            match socket.recv_multipart(zmq::DONTWAIT) {
                Ok(frames) => return frames,
                Err(_) => sleep(POLL).await,
            }
        }
    })
    .await
}

fn publish(socket: &zmq::Socket, topic: &str, n: u64) {
    socket.send_multipart([topic.as_bytes(), &n.to_be_bytes(), b"payload"], 0).unwrap();
}
