//! A service with its publishers and a connection: everything that one side of a row needs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::answers::{self, Scores};
use super::http::{Client, Request};
use super::service::{Commands, Service, Side};
use super::workload::wire::{self, Payload, TOPIC};
use super::workload::{BLOCK_SIZE, content};

/// Name of the model in every request.
pub(crate) const MODEL: &str = "bench";

/// Longest wait until everything sent is visible.
const VISIBLE_MAX: Duration = Duration::from_secs(180);
const SUBSCRIBED_MAX_MS: i32 = 20_000;

/// Publishers of all workers, on libzmq like the engines' own.
pub(crate) struct Fleet {
    sockets: Vec<zmq::Socket>,
    /// Number of each worker's next batch.
    next: Vec<u64>,
    sentinels: u64,
    _context: zmq::Context,
}

impl Fleet {
    fn bind(workers: u64) -> Result<Self> {
        let context = zmq::Context::new();
        let socket = || -> Result<zmq::Socket> {
            // XPUB is a PUB that sees subscriptions.
            let socket = context.socket(zmq::XPUB)?;
            socket.set_sndhwm(0)?;
            socket.set_linger(0)?;
            socket.set_rcvtimeo(SUBSCRIBED_MAX_MS)?;
            socket.bind("tcp://127.0.0.1:*")?;
            Ok(socket)
        };
        let sockets = (0..workers).map(|_| socket()).collect::<Result<Vec<_>>>()?;
        Ok(Self { next: vec![0; sockets.len()], sockets, sentinels: 0, _context: context })
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.sockets.len()
    }

    /// Publishes the next batch of a worker.
    pub(crate) fn send(&mut self, worker: u64, payload: &Payload) -> Result<()> {
        let worker = usize::try_from(worker)?;
        let number = self.next[worker].to_be_bytes();
        self.next[worker] += 1;
        Ok(self.sockets[worker].send_multipart([TOPIC, &number, &payload.bytes], 0)?)
    }

    /// Every worker publishes a block that nobody has seen; returns the query for it.
    pub(crate) fn sentinel(&mut self) -> Result<Request> {
        for worker in 0..self.next.len() as u64 {
            self.send(worker, &sentinel_payload(self.sentinels))?;
        }
        self.sentinels += 1;
        Ok(sentinel_query(self.sentinels - 1))
    }

    /// A sentinel that one worker will publish, and the query for it.
    pub(crate) fn next_sentinel(&mut self) -> (Payload, Request) {
        self.sentinels += 1;
        (sentinel_payload(self.sentinels - 1), sentinel_query(self.sentinels - 1))
    }
}

fn sentinel_payload(number: u64) -> Payload {
    wire::stored(None, &[content::sentinel(number)])
}

fn sentinel_query(number: u64) -> Request {
    hash_query(&[content::sentinel(number).local])
}

/// A service, its publishers and a connection to it.
pub(crate) struct Rig {
    // Fields are dropped in this order: the service goes first.
    pub(crate) service: Service,
    pub(crate) client: Client,
    pub(crate) fleet: Fleet,
    /// Resident memory when all workers were connected and nothing was sent.
    pub(crate) empty_bytes: u64,
}

impl Rig {
    /// A fresh service with so many registered and connected workers.
    pub(crate) fn start(commands: &Commands, side: Side, workers: u64) -> Result<Self> {
        let service = Service::start(commands, side)?;
        let mut client = Client::connect(service.address)?;
        let fleet = Fleet::bind(workers)?;
        for (at, socket) in fleet.sockets.iter().enumerate() {
            let endpoint = socket.get_last_endpoint()?.map_err(|_| anyhow::anyhow!("an endpoint that is no text"))?;
            let body = format!(
                "{{\"instance_id\":{},\"model_name\":\"{MODEL}\",\"block_size\":{BLOCK_SIZE},\"endpoint\":\"{endpoint}\"}}",
                at + 1
            );
            client.expect(&Request::json("/register", &body)).context("failed to register a worker")?;
        }
        for socket in &fleet.sockets {
            socket.recv_bytes(0).context("no subscription arrived")?;
        }
        let empty_bytes = service.rss()?;
        Ok(Self { service, client, fleet, empty_bytes })
    }

    /// Waits until all workers' last batches are visible.
    pub(crate) fn settle(&mut self, pace: Duration) -> Result<()> {
        let query = self.fleet.sentinel()?;
        let workers = self.fleet.workers();
        let began = Instant::now();
        loop {
            let seen = self.ask(&query)?.len();
            if seen == workers {
                return Ok(());
            }
            if began.elapsed() > VISIBLE_MAX {
                bail!("{}: {seen} of {workers} workers' last batches are visible", self.service.side.name());
            }
            std::thread::sleep(pace);
        }
    }

    /// What is scored above zero.
    pub(crate) fn ask(&mut self, query: &Request) -> Result<Scores> {
        answers::scores(self.client.expect(query)?)
    }
}

/// A query by local hashes, as the reference's clients send it: signed numbers.
pub(crate) fn hash_query(locals: &[u64]) -> Request {
    let list: Vec<String> = locals.iter().map(|local| local.cast_signed().to_string()).collect();
    let body = format!("{{\"block_hashes\":[{}],\"model_name\":\"{MODEL}\"}}", list.join(","));
    Request::json("/query_by_hash", &body)
}

/// A query by tokens.
pub(crate) fn token_query(tokens: &[u32], more: &str) -> Request {
    let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let body = format!("{{\"token_ids\":[{}],\"model_name\":\"{MODEL}\"{more}}}", list.join(","));
    Request::json("/query", &body)
}

/// A query by tokens in binary form, which only our side knows.
pub(crate) fn binary_query(tokens: &[u32]) -> Request {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    Request::binary(&format!("/query?model_name={MODEL}"), &bytes)
}
