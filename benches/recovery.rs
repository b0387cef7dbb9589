//! How long a second replica needs to take a large state from the first, and what that costs both. Prints a table; asserts
//! that answers are right, and no time.
//!
//! `cargo bench --bench recovery -- [PAIRS ..]` measures ours with so many unique (block, owner) pairs (4,000,000 and
//! 10,000,000 without any). `KVINDEXER_REFERENCE_CMD` names a command that starts the reference service, which then does
//! the same.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rmp::encode as mp;
use serde_json::{Value, json};

const OWNERS: u64 = 8;
const SEQUENCE_BLOCKS: u64 = 512;
const BLOCK_SIZE: usize = 16;
const MODEL: &str = "bench";
/// Sequences on the way to the first replica at most.
const WINDOW: u64 = 64;
/// Questions at the end.
const SAMPLES: usize = 300;
const FEED_MAX: Duration = Duration::from_secs(1_200);
const READY_MAX: Duration = Duration::from_secs(300);
const WRITES: &str = "writing to memory cannot fail";

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Tokens of a sequence: unlike those of any other.
fn tokens(sequence: u64) -> impl Iterator<Item = u32> {
    (0..SEQUENCE_BLOCKS * BLOCK_SIZE as u64).map(move |at| match at {
        0 => sequence as u32,
        _ => (mix(sequence << 16 ^ at) % 128_000) as u32,
    })
}

/// A batch that stores the whole sequence on the device.
fn payload(sequence: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 * 1024);
    mp::write_array_len(&mut out, 3).expect(WRITES);
    mp::write_f64(&mut out, 1.0).expect(WRITES);
    mp::write_array_len(&mut out, 1).expect(WRITES);
    mp::write_array_len(&mut out, 7).expect(WRITES);
    mp::write_str(&mut out, "BlockStored").expect(WRITES);
    mp::write_array_len(&mut out, SEQUENCE_BLOCKS as u32).expect(WRITES);
    for block in 0..SEQUENCE_BLOCKS {
        mp::write_uint(&mut out, mix(sequence << 20 ^ block)).expect(WRITES);
    }
    mp::write_nil(&mut out).expect(WRITES);
    mp::write_array_len(&mut out, (SEQUENCE_BLOCKS as usize * BLOCK_SIZE) as u32).expect(WRITES);
    for token in tokens(sequence) {
        mp::write_uint(&mut out, token.into()).expect(WRITES);
    }
    mp::write_uint(&mut out, BLOCK_SIZE as u64).expect(WRITES);
    mp::write_nil(&mut out).expect(WRITES);
    mp::write_str(&mut out, "GPU").expect(WRITES);
    mp::write_nil(&mut out).expect(WRITES);
    out
}

/// One exchange on a connection of its own: status and body.
fn exchange(address: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    stream.set_nodelay(true)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw)?;
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    let status = String::from_utf8_lossy(&raw[..end]).split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, raw.split_off(end + 4)))
}

/// A service as a process.
struct Process {
    child: Child,
    address: SocketAddr,
    began: Instant,
}

impl Process {
    fn start(command: &[String], more: &[String]) -> std::io::Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let began = Instant::now();
        let child = Command::new(&command[0])
            .args(&command[1..])
            .args(["--port", &address.port().to_string()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, address, began })
    }

    fn is(&self, path: &str) -> bool {
        exchange(self.address, "GET", path, "").is_ok_and(|(status, _)| status == 200)
    }

    /// Time from the start of the process until `path` is 200.
    fn wait(&self, path: &str) -> Option<Duration> {
        while !self.is(path) {
            if self.began.elapsed() > READY_MAX {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(self.began.elapsed())
    }

    /// A field of `/proc/<pid>/status`, in MiB.
    fn memory_mib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
    }

    /// Processor time so far, in seconds.
    fn cpu_s(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }

    /// Tokens of a sequence by instance.
    fn ask(&self, sequence: u64) -> Value {
        let list: Vec<String> = tokens(sequence).map(|token| token.to_string()).collect();
        let body = format!("{{\"model_name\":\"{MODEL}\",\"token_ids\":[{}]}}", list.join(","));
        let answer = exchange(self.address, "POST", "/query", &body);
        answer.ok().and_then(|(_, body)| serde_json::from_slice(&body).ok()).unwrap_or(Value::Null)
    }

    /// The owner of a sequence holds all of it, and nobody else anything.
    fn knows(&self, sequence: u64) -> bool {
        let answer = self.ask(sequence);
        let Some(instances) = answer["instances"].as_object() else { return false };
        let whole = SEQUENCE_BLOCKS * BLOCK_SIZE as u64;
        let owner = (sequence % OWNERS + 1).to_string();
        instances.get(&owner).is_some_and(|it| it["gpu"] == whole)
            && instances.iter().all(|(id, it)| *id == owner || it["gpu"] == 0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when the process has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Engines that have said everything to the first replica. They stay: the second one may connect to them.
fn feed(
    context: &zmq::Context,
    first: &Process,
    sequences: u64,
) -> Result<Vec<zmq::Socket>, Box<dyn std::error::Error>> {
    let mut sockets = vec![];
    for owner in 1..=OWNERS {
        let socket = context.socket(zmq::XPUB)?;
        socket.set_sndhwm(0)?;
        socket.set_linger(0)?;
        socket.bind("tcp://127.0.0.1:*")?;
        let endpoint = socket.get_last_endpoint()?.map_err(|_| "an endpoint that is no text")?;
        let body = json!({"instance_id": owner, "model_name": MODEL, "block_size": BLOCK_SIZE, "endpoint": endpoint});
        let (status, answer) = exchange(first.address, "POST", "/register", &body.to_string())?;
        if status != 201 {
            return Err(format!("register: {status} {}", String::from_utf8_lossy(&answer)).into());
        }
        socket.set_rcvtimeo(20_000)?;
        socket.recv_bytes(0)?;
        sockets.push(socket);
    }
    let began = Instant::now();
    for sequence in 0..sequences {
        let socket = &sockets[(sequence % OWNERS) as usize];
        let number = (sequence / OWNERS).to_be_bytes();
        socket.send_multipart([b"".as_slice(), &number, &payload(sequence)], 0)?;
        if sequence % WINDOW == WINDOW - 1 || sequence + 1 == sequences {
            for last in sequence.saturating_sub(OWNERS - 1)..=sequence {
                while !first.knows(last) {
                    if began.elapsed() > FEED_MAX {
                        return Err(
                            format!("sequence {last} of {sequences} does not arrive: {}", first.ask(last)).into()
                        );
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    Ok(sockets)
}

/// Longest and middle answer time of the first replica while `done` is false, in microseconds.
fn answer_times(first: &Process, sequences: u64, done: &AtomicBool) -> (u128, u128) {
    let mut times = vec![];
    for at in 0.. {
        let began = Instant::now();
        first.ask(mix(at) % sequences);
        times.push(began.elapsed().as_micros());
        if done.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

struct Service<'a> {
    name: &'a str,
    command: Vec<String>,
    /// Path that says that it serves.
    ready: &'a str,
    dump: &'a str,
}

fn measure(out: &mut impl Write, service: &Service<'_>, pairs: u64) -> Result<(), Box<dyn std::error::Error>> {
    let sequences = pairs / SEQUENCE_BLOCKS;
    let context = zmq::Context::new();
    let first = Process::start(&service.command, &[])?;
    first.wait(service.ready).ok_or("the first replica does not come up")?;
    let began = Instant::now();
    let _engines = feed(&context, &first, sequences)?;
    let fed = began.elapsed();
    let (before, cpu_before) = (first.memory_mib("VmRSS"), first.cpu_s());
    let peers = format!("http://{}", first.address);
    let done = AtomicBool::new(false);
    let (second, ready, times) = std::thread::scope(|scope| -> Result<_, std::io::Error> {
        let asker = scope.spawn(|| answer_times(&first, sequences, &done));
        let second = Process::start(&service.command, &["--peers".to_owned(), peers])?;
        let ready = second.wait(service.ready);
        done.store(true, Ordering::Relaxed);
        Ok((second, ready, asker.join().unwrap_or_default()))
    })?;
    let cpu = (first.cpu_s() - cpu_before, second.cpu_s());
    let right = (0..SAMPLES as u64).filter(|at| second.knows(mix(*at) % sequences)).count();
    let still = (0..SAMPLES as u64).filter(|at| first.knows(mix(*at) % sequences)).count();
    let (first_peak, second_peak) = (first.memory_mib("VmHWM"), second.memory_mib("VmHWM"));
    let second_rss = second.memory_mib("VmRSS");
    let bytes = exchange(first.address, "GET", service.dump, "").map_or(0, |(_, body)| body.len());
    writeln!(
        out,
        "| {} | {pairs} | {:.1} | {} | {right} of {SAMPLES} (first: {still}) | {before} -> {first_peak} | {second_peak} ({second_rss}) | {:.1} / {:.1} | {} | {} / {} |",
        service.name,
        fed.as_secs_f64(),
        ready.map_or("never".to_owned(), |time| format!("{:.2}", time.as_secs_f64())),
        cpu.0,
        cpu.1,
        bytes / 1_000_000,
        times.0,
        times.1,
    )?;
    out.flush()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes: Vec<u64> = std::env::args().filter_map(|word| word.replace(['_', ','], "").parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![4_000_000, 10_000_000];
    }
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut services = vec![Service {
        name: "kvindexer",
        command: [env!("CARGO_BIN_EXE_kvindexer"), "serve", "--host", "127.0.0.1"].map(str::to_owned).into(),
        ready: "/ready",
        dump: "/snapshot",
    }];
    let reference = std::env::var("KVINDEXER_REFERENCE_CMD").unwrap_or_default();
    if let Some(command) = reference.split(';').next().filter(|command| !command.trim().is_empty()) {
        services.push(Service { name: "reference", command: words(command), ready: "/health", dump: "/dump" });
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| service | pairs | fed in s | ready after s | right answers | RSS MiB first -> peak | peak (kept) MiB second | CPU s first / second | body MB | query at first meanwhile, us p50 / max |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for pairs in sizes {
        for service in &services {
            if let Err(error) = measure(&mut out, service, pairs) {
                writeln!(out, "| {} | {pairs} | failed: {error} |", service.name)?;
            }
        }
    }
    Ok(())
}
