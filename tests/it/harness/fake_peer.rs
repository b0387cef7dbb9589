//! A small HTTP server that says what a test tells it, also in ways in which no decent server speaks; and a relay that
//! passes a real replica's answers on and breaks them on the way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http::{Reply, Request, exchange};
use super::{DEADLINE, try_within};

const STEP: Duration = Duration::from_millis(20);

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path and query, as sent.
    pub(crate) target: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    /// The target without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Part of a snapshot that may be large: neither the registrations alone nor another path.
    pub(crate) fn is_whole_snapshot(&self) -> bool {
        self.path() == "/snapshot" && !self.target.contains("part=registrations")
    }
}

/// The way back to who asked. Every write is best effort: who asked may be gone.
pub(crate) struct Line {
    stream: TcpStream,
    stopped: Arc<AtomicBool>,
}

impl Line {
    /// A whole answer.
    pub(crate) fn reply(&mut self, status: u16, content_type: &str, body: &[u8]) {
        self.head(status, &[("Content-Type", content_type), ("Content-Length", &body.len().to_string())]);
        self.write(body);
    }

    pub(crate) fn json(&mut self, status: u16, body: &Value) {
        self.reply(status, "application/json", body.to_string().as_bytes());
    }

    pub(crate) fn not_found(&mut self) {
        self.json(404, &serde_json::json!({"error": "no such path", "code": "not_found"}));
    }

    /// What a real replica answered.
    pub(crate) fn pass(&mut self, reply: &Reply) {
        let content_type = reply.header("content-type").unwrap_or("application/octet-stream").to_owned();
        self.reply(reply.status, &content_type, &reply.body);
    }

    /// Status line and headers; the connection is closed after the answer.
    pub(crate) fn head(&mut self, status: u16, headers: &[(&str, &str)]) {
        let mut text = format!("HTTP/1.1 {status} Said\r\nConnection: close\r\n");
        for (key, value) in headers {
            text.push_str(&format!("{key}: {value}\r\n"));
        }
        text.push_str("\r\n");
        self.write(text.as_bytes());
    }

    /// False when nobody takes it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).is_ok()
    }

    /// Lets time pass; false when the server ends meanwhile.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < time {
            if self.stopped.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(STEP.min(time));
        }
        true
    }

    /// Says nothing more until the other side goes away or the server ends.
    pub(crate) fn hang(&mut self) {
        // Only to look for the end of the connection; the request was read before.
        let _ = self.stream.set_read_timeout(Some(STEP));
        let mut byte = [0];
        while !self.stopped.load(Ordering::Relaxed) {
            match self.stream.read(&mut byte) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(_) => return,
            }
        }
    }

    /// Bytes one by one.
    pub(crate) fn drip(&mut self, bytes: &[u8], interval: Duration) {
        for byte in bytes {
            if !self.write(std::slice::from_ref(byte)) || !self.pause(interval) {
                return;
            }
        }
    }
}

/// What the server does with a request.
pub(crate) type Answer = dyn Fn(&Asked, &mut Line) + Send + Sync;

/// Serves until dropped.
pub(crate) struct FakePeer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl FakePeer {
    pub(crate) fn start(answer: impl Fn(&Asked, &mut Line) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("bound");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stopped = Arc::new(AtomicBool::new(false));
        let (seen, stop) = (Arc::clone(&asked), Arc::clone(&stopped));
        let answer: Arc<Answer> = Arc::new(answer);
        let acceptor = std::thread::spawn(move || accept(&listener, &answer, &seen, &stop));
        Self { address, asked, stopped, acceptor: Some(acceptor) }
    }

    /// Like the reference service: this answer to `GET /dump`, and no other path.
    pub(crate) fn with_dump(dump: Value) -> Self {
        Self::start(move |asked, line| match asked.path() {
            "/dump" => line.json(200, &dump),
            _ => line.not_found(),
        })
    }

    /// Passes on what a real replica at `source` answers; `spoil` does the whole snapshot in its own way.
    pub(crate) fn relay(source: SocketAddr, spoil: impl Fn(&Reply, &mut Line) + Send + Sync + 'static) -> Self {
        Self::start(move |asked, line| match ask(source, asked) {
            Ok(reply) if asked.is_whole_snapshot() => spoil(&reply, line),
            Ok(reply) => line.pass(&reply),
            Err(error) => line.reply(502, "text/plain", error.as_bytes()),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no holder panics").clone()
    }

    /// Requests so far whose path is this.
    pub(crate) fn asked_for(&self, path: &str) -> usize {
        self.asked().iter().filter(|asked| asked.path() == path).count()
    }

    /// Requests so far for the whole of a snapshot.
    pub(crate) fn snapshots_asked(&self) -> usize {
        self.asked().iter().filter(|asked| asked.is_whole_snapshot()).count()
    }
}

/// Asks a real service the same; again while it is busy with others.
///
/// # Errors
/// When it cannot be reached.
pub(crate) fn ask(source: SocketAddr, asked: &Asked) -> Result<Reply, String> {
    let body = (!asked.body.is_empty()).then_some(asked.body.as_slice());
    let content_type = asked.header("content-type");
    let request = Request { method: &asked.method, path: &asked.target, content_type, body };
    try_within(DEADLINE, || match exchange(source, &request)? {
        reply if reply.code() == "overloaded" => Err(reply.text()),
        reply => Ok(reply),
    })
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, answer: &Arc<Answer>, seen: &Arc<Mutex<Vec<Asked>>>, stopped: &Arc<AtomicBool>) {
    let mut lines: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        let Ok(stream) = stream else { continue };
        let (answer, seen, stopped) = (Arc::clone(answer), Arc::clone(seen), Arc::clone(stopped));
        lines.retain(|line| !line.is_finished());
        lines.push(std::thread::spawn(move || {
            let limit = Duration::from_secs(5);
            let _ = stream.set_read_timeout(Some(limit));
            let _ = stream.set_write_timeout(Some(limit));
            let _ = stream.set_nodelay(true);
            let Some(asked) = read(&stream) else { return };
            seen.lock().expect("no holder panics").push(asked.clone());
            let mut line = Line { stream, stopped };
            answer(&asked, &mut line);
            let _ = line.stream.shutdown(Shutdown::Both);
        }));
    }
    for line in lines {
        let _ = line.join();
    }
}

/// None when no whole request came.
fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut text = String::new();
        if reader.read_line(&mut text).ok()? == 0 {
            return None;
        }
        let Some((key, value)) = text.trim_end().split_once(':') else { break };
        headers.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    let mut asked = Asked { method, target, headers, body: Vec::new() };
    let length = asked.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    asked.body = vec![0; length];
    reader.read_exact(&mut asked.body).ok()?;
    Some(asked)
}
