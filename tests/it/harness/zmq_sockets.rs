//! Publishers and replay servers on libzmq, the library that engines use.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{DEADLINE, msgpack, wait_for};

static CONTEXT: LazyLock<zmq::Context> = LazyLock::new(zmq::Context::new);

const LOOPBACK_ANY: &str = "tcp://127.0.0.1:*";
const ROUTER_POLL_MS: i64 = 10;

/// Frames of one message.
pub(crate) type Frames = Vec<Vec<u8>>;

/// A PUB socket that sees its subscriptions (XPUB), without a high-water mark.
pub(crate) struct Publisher {
    socket: zmq::Socket,
    pub(crate) endpoint: String,
}

impl Publisher {
    /// On a free port.
    pub(crate) fn bind() -> Self {
        Self::bind_to(LOOPBACK_ANY)
    }

    /// On an address that a closed publisher may still be leaving.
    pub(crate) fn bind_to(endpoint: &str) -> Self {
        let socket = CONTEXT.socket(zmq::XPUB).expect("a socket");
        socket.set_sndhwm(0).expect("no mark");
        socket.set_linger(0).expect("no linger");
        socket.set_xpub_verbose(true).expect("every subscription is seen");
        socket.set_ipv6(endpoint.contains('[')).expect("address family");
        let endpoint = bind(&socket, endpoint);
        Self { socket, endpoint }
    }

    /// Waits for the next subscription.
    ///
    /// # Panics
    /// When none arrives in time.
    #[track_caller]
    pub(crate) fn wait_subscribed(&self) {
        let start = Instant::now();
        self.socket.set_rcvtimeo(100).expect("time limit");
        while start.elapsed() < DEADLINE {
            if self.socket.recv_bytes(0).is_ok_and(|message| message.first() == Some(&1)) {
                return;
            }
        }
        panic!("no subscription arrived at {}", self.endpoint);
    }

    /// True when a subscription arrives in time.
    pub(crate) fn hears_within(&self, time: Duration) -> bool {
        self.socket.set_rcvtimeo(time.as_millis() as i32).expect("time limit");
        self.socket.recv_bytes(0).is_ok_and(|message| message.first() == Some(&1))
    }

    /// True when nobody subscribed since the last look: no listener reconnected.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.socket.recv_bytes(zmq::DONTWAIT).is_err()
    }

    pub(crate) fn send_frames<F: AsRef<[u8]>>(&self, frames: &[F]) {
        self.socket.send_multipart(frames.iter().map(AsRef::as_ref), 0).expect("PUB never waits");
    }

    /// Topic, number, payload.
    pub(crate) fn send(&self, topic: &str, seq: u64, payload: &[u8]) {
        self.send_frames(&[topic.as_bytes(), &seq.to_be_bytes(), payload]);
    }

    /// A batch of these events without a rank, in `msgpack::encode`'s notation.
    pub(crate) fn batch(&self, seq: u64, events: serde_json::Value) {
        self.send("kv-events", seq, &msgpack::batch(events));
    }
}

fn bind(socket: &zmq::Socket, endpoint: &str) -> String {
    wait_for("the address to be free", || socket.bind(endpoint).map_err(|error| format!("{endpoint}: {error}")));
    socket.get_last_endpoint().expect("bound").expect("text")
}

/// What a replay server answers to one request (frames after the identity): messages without the identity.
pub(crate) type Answer = dyn FnMut(&[Vec<u8>]) -> Vec<Frames> + Send;

/// A ROUTER in a thread of its own that answers replay requests and remembers them.
pub(crate) struct Router {
    pub(crate) endpoint: String,
    requests: Arc<Mutex<Vec<Frames>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// On a free port.
    pub(crate) fn start(answer: Box<Answer>) -> Self {
        let socket = CONTEXT.socket(zmq::ROUTER).expect("a socket");
        socket.set_sndhwm(0).expect("no mark");
        socket.set_linger(0).expect("no linger");
        let endpoint = bind(&socket, LOOPBACK_ANY);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped) = (Arc::clone(&requests), Arc::clone(&stop));
        let thread = std::thread::spawn(move || serve(&socket, answer, &seen, &stopped));
        Self { endpoint, requests, stop, thread: Some(thread) }
    }

    /// Frames of all requests so far, after the identity.
    pub(crate) fn requests(&self) -> Vec<Frames> {
        self.requests.lock().expect("no holder panics").clone()
    }

    /// Start numbers of all well-formed requests so far.
    pub(crate) fn starts(&self) -> Vec<u64> {
        self.requests().iter().filter_map(|frames| start_of(frames)).collect()
    }
}

/// Start number of a request `["", number]`.
pub(crate) fn start_of(frames: &[Vec<u8>]) -> Option<u64> {
    let [delimiter, start] = frames else { return None };
    delimiter.is_empty().then(|| start.as_slice().try_into().ok().map(u64::from_be_bytes)).flatten()
}

fn serve(socket: &zmq::Socket, mut answer: Box<Answer>, seen: &Mutex<Vec<Frames>>, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        if socket.poll(zmq::POLLIN, ROUTER_POLL_MS).unwrap_or(0) == 0 {
            continue;
        }
        let Ok(mut frames) = socket.recv_multipart(0) else { continue };
        let identity = frames.remove(0);
        seen.lock().expect("no holder panics").push(frames.clone());
        for message in answer(&frames) {
            // An asker that went away is none of the router's business.
            let _ = socket.send_multipart(std::iter::once(&identity).chain(&message), 0);
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Shapes of a replay answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `["", number, payload]`
    Three,
    /// `["", topic, number, payload]`
    Four,
}

impl Shape {
    pub(crate) fn message(self, seq: u64, payload: &[u8]) -> Frames {
        let mut frames = vec![Vec::new()];
        if self == Self::Four {
            frames.push(b"kv-events".to_vec());
        }
        frames.push(seq.to_be_bytes().to_vec());
        frames.push(payload.to_vec());
        frames
    }

    /// The end marker: all ones and an empty payload.
    pub(crate) fn end(self) -> Frames {
        self.message(u64::MAX, &[])
    }
}

/// A publisher's replay buffer, shared with its router.
#[derive(Clone, Default)]
pub(crate) struct Ring(Arc<Mutex<Vec<Kept>>>);

/// Number and payload.
type Kept = (u64, Vec<u8>);

impl Ring {
    pub(crate) fn push(&self, seq: u64, payload: &[u8]) {
        self.0.lock().expect("no holder panics").push((seq, payload.to_vec()));
    }

    /// [`Self::push`]; the oldest go beyond so many.
    pub(crate) fn push_bounded(&self, seq: u64, payload: &[u8], most: usize) {
        let mut kept = self.0.lock().expect("no holder panics");
        kept.push((seq, payload.to_vec()));
        let surplus = kept.len().saturating_sub(most);
        kept.drain(..surplus);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().expect("no holder panics").clear();
    }

    /// Everything from `start` on, in order.
    pub(crate) fn since(&self, start: u64) -> Vec<Kept> {
        self.0.lock().expect("no holder panics").iter().filter(|(seq, _)| *seq >= start).cloned().collect()
    }

    /// A router that answers like an engine: all of the buffer from the asked number on, then the end marker.
    pub(crate) fn router(&self, shape: Shape) -> Router {
        let ring = self.clone();
        Router::start(Box::new(move |request| {
            let Some(start) = start_of(request) else { return Vec::new() };
            let kept = ring.since(start);
            kept.iter().map(|(seq, payload)| shape.message(*seq, payload)).chain([shape.end()]).collect()
        }))
    }
}

/// An address where nothing listens; the port is kept, so that nobody else gets it meanwhile.
pub(crate) struct DeadEndpoint {
    _socket: socket2::Socket,
    pub(crate) endpoint: String,
}

impl DeadEndpoint {
    pub(crate) fn reserve() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("loopback has a free port");
        let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("bound");
        Self { _socket: socket, endpoint: format!("tcp://{address}") }
    }
}
