//! The built binary on a free loopback port. Killed by its handle when dropped.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Reply, Request, exchange};
use super::{DEADLINE, try_within, wait_for};

const START_ATTEMPTS: usize = 10;
const LOG_LINES_SHOWN: usize = 40;

/// A running `kvindexer serve`.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Service {
    /// With defaults, ready.
    pub(crate) fn start() -> Self {
        Self::start_with(&[], &[])
    }

    /// With more options and environment variables, ready.
    ///
    /// # Panics
    /// When it does not answer.
    pub(crate) fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        let service = Self::launch(args, env);
        service.wait_ready();
        service
    }

    /// With more options and environment variables; answers `/health`, and need not be ready.
    ///
    /// # Panics
    /// When it does not answer.
    pub(crate) fn launch(args: &[&str], env: &[(&str, &str)]) -> Self {
        for _ in 0..START_ATTEMPTS {
            let mut service = Self::spawn(free_address(), args, env);
            if service.is_up() {
                return service;
            }
        }
        panic!("the service did not come up in {START_ATTEMPTS} attempts");
    }

    /// [`Self::launch`] at an address that was its own before, or is reserved for it.
    ///
    /// # Panics
    /// When it does not answer.
    pub(crate) fn launch_at(address: SocketAddr, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut service = Self::spawn(address, args, env);
        assert!(service.is_up(), "the service did not come up at {address}: {:?}", service.log());
        service
    }

    /// [`Self::launch`] with an option whose value is a host with its own port.
    pub(crate) fn launch_naming_itself(option: &str, host: &str) -> Self {
        let address = free_address();
        Self::launch_at(address, &[option, &format!("{host}:{}", address.port())], &[])
    }

    /// Waits until `/ready` is 200.
    #[track_caller]
    pub(crate) fn wait_ready(&self) {
        wait_for("the service to be ready", || {
            let reply = self.get("/ready");
            if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
        });
    }

    /// Ends it without a warning, as a lost machine does.
    pub(crate) fn kill(&mut self) {
        // Both fail only when the process has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, and waits for that.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let sent = Command::new("kill").args(["-s", "TERM", &self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        wait_for("the service to end", || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        })
    }

    /// Lines of its log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("no holder panics").clone()
    }

    /// Waits for a line of its log: what was written may still be on its way here.
    ///
    /// # Errors
    /// All lines, when none is like that in time.
    pub(crate) fn has_logged(&self, is_it: impl Fn(&str) -> bool) -> Result<(), String> {
        try_within(DEADLINE, || {
            let log = self.log();
            if log.iter().any(|line| is_it(line)) { Ok(()) } else { Err(format!("{log:?}")) }
        })
    }

    /// Address as other replicas name it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn spawn(address: SocketAddr, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvindexer"))
            .args(["serve", "--host", "127.0.0.1", "--port", &address.port().to_string()])
            .args(args)
            .env_remove("DYN_ROUTER_MIN_INITIAL_WORKERS")
            .env_remove("DYN_KV_INDEXER_TEST_ENDPOINTS")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the built binary starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().expect("stderr is piped");
        let lines = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().expect("no holder panics").push(line);
            }
        });
        Self { child, address, log, reader: Some(reader) }
    }

    /// False when the process ended, as it does when its port was taken meanwhile.
    fn is_up(&mut self) -> bool {
        let address = self.address;
        let child = &mut self.child;
        let outcome = try_within(DEADLINE, || {
            if let Ok(Some(_)) = child.try_wait() {
                return Ok(false);
            }
            let health = Request { method: "GET", path: "/health", ..Request::default() };
            match exchange(address, &health) {
                Ok(reply) if reply.status == 200 => Ok(true),
                other => Err(format!("{other:?}")),
            }
        });
        outcome.unwrap_or(false)
    }

    /// Process id of the child.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One exchange.
    ///
    /// # Panics
    /// When the connection fails.
    #[track_caller]
    pub(crate) fn send(&self, request: &Request<'_>) -> Reply {
        match exchange(self.address, request) {
            Ok(reply) => reply,
            Err(error) => panic!("{} {}: {error}", request.method, request.path),
        }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(&Request { method: "GET", path, ..Request::default() })
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_raw(path, "application/json", body.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn post_raw(&self, path: &str, content_type: &str, body: &[u8]) -> Reply {
        self.send(&Request { method: "POST", path, content_type: Some(content_type), body: Some(body) })
    }

    /// Answer of a query that must work.
    #[track_caller]
    pub(crate) fn query(&self, request: &Value) -> Value {
        let reply = self.post("/query", request);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// Entries of `/workers` for a model.
    #[track_caller]
    pub(crate) fn workers(&self, model: &str) -> Vec<Value> {
        let reply = self.get(&format!("/workers?model_name={}", percent(model)));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json().as_array().expect("an array of workers").clone()
    }

    /// One rank of an instance in `/workers`, when it is there.
    pub(crate) fn listener(&self, model: &str, tenant: &str, instance: &str, rank: u32) -> Option<Value> {
        let worker = self
            .workers(model)
            .into_iter()
            .find(|it| plain(&it["instance_id"]) == instance && it["tenant_id"] == tenant)?;
        worker["listeners"].get(rank.to_string()).cloned()
    }

    /// Blocks of a model in `/dump`, by its key, one object per block.
    pub(crate) fn dump(&self, model: &str) -> Value {
        let reply = self.get("/dump");
        assert_eq!(reply.status, 200, "{}", reply.text());
        let whole = reply.json();
        let entries = whole.as_object().expect("an object of entries").iter();
        entries
            .filter(|(_, entry)| entry["model_name"] == model)
            .map(|(key, entry)| {
                (key.clone(), json!({"block_size": entry["block_size"], "blocks": flatten(&entry["events"])}))
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Sum of the samples of a metric whose labels include all of the given ones; 0 when there is none.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let page = self.get("/metrics").text();
        let has = |line: &str| {
            labels.iter().all(|(key, value)| {
                let label = format!("{key}=\"{value}\"");
                line.contains(&format!("{{{label}")) || line.contains(&format!(",{label}"))
            })
        };
        let named = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        page.lines()
            .filter(named)
            .filter(|line| has(line))
            .filter_map(|line| line.rsplit(' ').next())
            .filter_map(|value| value.parse::<f64>().ok())
            .sum()
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS is there");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") * 1024
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if std::thread::panicking()
            && let Ok(log) = self.log.lock()
        {
            let from = log.len().saturating_sub(LOG_LINES_SHOWN);
            eprintln!("--- last lines of the service's log\n{}\n---", log[from..].join("\n"));
        }
    }
}

/// A loopback address whose port nobody holds at the moment.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("loopback has a free port")
}

/// A text without quotes; a number in decimal.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Percent-encodes what a query parameter must not hold.
pub(crate) fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~/:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// One object per block: its parent is the block before it in the event, else the parent that the event names.
fn flatten(events: &Value) -> Vec<Value> {
    let mut blocks = Vec::new();
    for event in events.as_array().into_iter().flatten() {
        let stored = &event["event"]["data"]["stored"];
        let mut parent = stored["parent_hash"].clone();
        for block in stored["blocks"].as_array().into_iter().flatten() {
            blocks.push(json!({
                "worker_id": event["worker_id"], "dp_rank": event["event"]["dp_rank"], "storage_tier": event["storage_tier"],
                "parent_hash": parent, "block_hash": block["block_hash"], "tokens_hash": block["tokens_hash"],
                "mm_extra_info": block["mm_extra_info"],
            }));
            parent = block["block_hash"].clone();
        }
    }
    blocks
}

/// The largest wait of a runner that plays many cases at once.
pub(crate) const CASE_DEADLINE: Duration = Duration::from_secs(10);
