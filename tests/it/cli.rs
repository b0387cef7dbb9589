//! The built program as an operator meets it: options, exit codes, signals, the start-up gate, `sim` and `demo`.

mod replicas;
mod verify;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvindexer::cli::sim::workload::{Generator, tokens};
use serde_json::{Value, json};

use crate::harness::http::{Reply, Request, exchange};
use crate::harness::{wait_for, wait_within};

/// A stop may take so long by contract.
const STOP_MAX: Duration = Duration::from_secs(10);

fn kvindexer(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvindexer"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVINDEXER_") || name.starts_with("DYN_")) {
        command.env_remove(name);
    }
    command.envs(env.iter().copied());
    command
}

/// Runs to the end. For command lines that end by themselves.
fn run(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = kvindexer(args, env).output().expect("the built binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// `kvindexer` serving on a port that the system chose; killed when dropped.
struct Serving {
    child: Child,
    address: SocketAddr,
    log: Option<JoinHandle<String>>,
}

impl Serving {
    fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let fixed = ["--host", "127.0.0.1", "--port", "0", "--log-format", "json"];
        // Options without a command are those of `serve`; an option wins over its variable.
        let mut child = kvindexer(&[&fixed[..], args].concat(), env)
            .args(["--threads", "2"])
            .env("KVINDEXER_MEMORY_LIMIT", "off")
            .spawn()
            .expect("the built binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut log = String::new();
        let address = loop {
            let from = log.len();
            assert!(lines.read_line(&mut log).expect("the log is text") > 0, "ended without serving:\n{log}");
            let line: Value = serde_json::from_str(&log[from..]).expect("a line of the log is JSON");
            if line["message"] == "http is bound" {
                break line["address"].as_str().expect("an address").parse().expect("an address");
            }
        };
        let log = std::thread::spawn(move || {
            lines.read_to_string(&mut log).expect("the log is text");
            log
        });
        Self { child, address, log: Some(log) }
    }

    fn send(&self, method: &'static str, path: &str, body: Option<&Value>) -> Reply {
        let body = body.map(ToString::to_string);
        let content_type = body.as_ref().map(|_| "application/json");
        let body = body.as_ref().map(String::as_bytes);
        exchange(self.address, &Request { method, path, content_type, body }).expect("an answer")
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, None)
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill runs").success());
    }

    /// Status and log of the end that was asked for.
    fn end(mut self) -> (ExitStatus, String) {
        let child = &mut self.child;
        let status = wait_within(STOP_MAX, "the process to end", || {
            child.try_wait().expect("the process is ours").ok_or_else(|| "runs".to_owned())
        });
        (status, self.log.take().expect("read once").join().expect("the log is text"))
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn wrong_command_lines_end_with_2_and_bad_values_with_1() {
    for (args, env, want, says) in [
        (&["--bogus"][..], &[][..], 2, "--bogus"),
        (&["serve", "stray"], &[], 2, "stray"),
        (&["deom"], &[], 2, "deom"),
        (&["--port", "65536"], &[], 2, "--port"),
        (&["--block-size", "x"], &[], 2, "--block-size"),
        (&["sim", "--replay-frames", "5"], &[], 2, "--replay-frames"),
        (&["--block-size", "0"], &[], 1, "at least 1"),
        (&["--workers", "1=tcp://h:1"], &[], 1, "--block-size is required"),
        (&["--block-size", "16", "--workers", "1"], &[], 1, "id[:rank]=endpoint"),
        (&["--block-size", "16", "--workers", "1=h:1"], &[], 1, "invalid ZMQ endpoint `h:1`: missing scheme"),
        (&["--block-size", "16", "--workers", "1=tcp://h"], &[], 1, "missing TCP port"),
        (&["--block-size", "16", "--workers", "1=tcp://h:1|x"], &[], 1, "invalid replay endpoint `x`"),
        (&["--block-size", "16", "--workers", "1=tcp://h:1,1:0=tcp://h:2"], &[], 1, "twice"),
        (&["--host", "example.org"], &[], 1, "IP address"),
        (&["--peer-service", "peers"], &[], 1, "--peer-service must be a host and a port"),
        (&["--forward-registrations=maybe"], &[], 1, "must be `on` or `off`"),
        (&["--snapshot-interval-s", "0"], &[], 1, "--snapshot-interval-s must be at least 1"),
        (&["--host", "127.0.0.1", "--port", "0", "--snapshot-dir", "/dev/null/at/all"], &[], 1, "--snapshot-dir"),
        (&["diff", "http://127.0.0.1:9"], &[], 2, "<B>"),
        (&["diff", "http://127.0.0.1:9", "http://127.0.0.1:10"], &[], 2, "failed to ask"),
        (&["verify", "http://127.0.0.1:9", "--model-name", "m", "--instance-id", "1"], &[], 2, "failed to ask"),
        (&["digest", "no address"], &[], 2, "no address"),
        (&["--access-log", "/nowhere/at/all"], &[], 1, "access log"),
        (&["--log", "=["], &[], 1, "--log"),
        (&[], &[("DYN_ROUTER_MIN_INITIAL_WORKERS", "-1")], 1, "non-negative integer"),
        (&[], &[("DYN_ROUTER_MIN_INITIAL_WORKERS", "many")], 1, "non-negative integer"),
        (&[], &[("KVINDEXER_MEMORY_LIMIT", "much")], 1, "--memory-limit"),
        (&[], &[("KVINDEXER_PORT", "99999")], 2, "99999"),
        (&["sim", "--workers", "0"], &[], 1, "at least one worker"),
        (&["sim", "--port", "65535", "--no-replay", "--workers", "2"], &[], 1, "at most 65535"),
    ] {
        let (code, _, stderr) = run(args, env);
        assert_eq!(code, Some(want), "{args:?} {env:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?} {env:?}: {stderr}");
    }
}

#[test]
fn help_and_version_are_there_for_every_command() {
    let (code, stdout, _) = run(&["--version"], &[]);
    assert_eq!((code, stdout.trim()), (Some(0), concat!("kvindexer ", env!("CARGO_PKG_VERSION"))));
    for (args, names) in [
        (&["--help"][..], &["serve", "sim", "demo", "diff", "verify", "digest"][..]),
        (&["diff", "--help"], &["--model-name", "--tenant-id", "--deep", "0 equal, 1 different, 2 not compared"]),
        (&["verify", "--help"], &["--model-name", "--instance-id", "--dp-rank", "2 not compared"]),
        (
            &["serve", "--help"],
            &[
                "--block-size",
                "--port",
                "--host",
                "--threads",
                "--workers",
                "--model-name",
                "--tenant-id",
                "--peers",
                "--peer-service",
                "--forward-registrations",
                "--compare-interval-s",
                "--recovered-grace-s",
                "--snapshot-dir",
                "--snapshot-interval-s",
                "--snapshot-age-max-s",
                "--min-initial-workers",
                "--memory-limit",
                "--query-body-bytes-max",
                "--requests-in-flight-max",
                "--drain-seconds",
                "--zmtp-frame-bytes-max",
                "--log-format",
                "--access-log",
                "--trace-id-header",
                "--access-log-local-time",
                "KVINDEXER_PORT",
                "DYN_ROUTER_MIN_INITIAL_WORKERS",
            ],
        ),
        (&["sim", "--help"], &["--register", "--trace", "--host-blocks", "restart ID[:RANK]", "--check"]),
        (&["demo", "--help"], &["--keep", "--requests"]),
    ] {
        let (code, stdout, _) = run(args, &[]);
        assert_eq!(code, Some(0), "{args:?}");
        for name in names {
            assert!(stdout.contains(name), "{args:?} does not name {name}");
        }
    }
}

#[test]
fn both_stop_signals_end_with_0() {
    for signal in ["TERM", "INT"] {
        let serving = Serving::start(&[], &[]);
        wait_for("ready", || match serving.get("/ready") {
            reply if reply.status == 200 => Ok(()),
            reply => Err(reply.text()),
        });
        serving.signal(signal);
        let (status, log) = serving.end();
        assert_eq!(status.code(), Some(0), "{signal}: {log}");
        assert!(log.contains("\"message\":\"stopped\""), "{signal}: {log}");
    }
}

#[test]
fn a_drain_says_503_on_ready_answers_queries_and_a_second_signal_ends_it() {
    let serving = Serving::start(&["--drain-seconds", "8"], &[]);
    serving.signal("TERM");
    wait_for("/ready to say that a stop is under way", || match serving.get("/ready") {
        reply if reply.status == 503 && reply.text().contains("stopping") => Ok(()),
        reply => Err(format!("{} {}", reply.status, reply.text())),
    });
    let query = serving.send("POST", "/query", Some(&json!({"model_name": "none", "token_ids": []})));
    assert_eq!((query.status, query.code().as_str()), (404, "unknown_index"), "queries are still answered");
    assert_eq!(serving.get("/health").status, 200);
    let start = Instant::now();
    serving.signal("INT");
    let (status, log) = serving.end();
    assert!(start.elapsed() < Duration::from_secs(4), "it must not sit the drain out");
    assert_eq!(status.code(), Some(1), "{log}");
}

#[test]
fn a_drain_ends_by_itself_with_0() {
    let serving = Serving::start(&["--drain-seconds", "1"], &[]);
    serving.signal("TERM");
    let (status, log) = serving.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_busy_port_ends_with_1() {
    let holder = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    let port = holder.local_addr().expect("an address").port().to_string();
    let (code, _, stderr) = run(&["--host", "127.0.0.1", "--port", &port], &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("failed to bind"), "{stderr}");
}

#[test]
fn the_gate_counts_instances_and_registering_opens_it() {
    let serving = Serving::start(&[], &[("DYN_ROUTER_MIN_INITIAL_WORKERS", "2")]);
    let query = || serving.send("POST", "/query", Some(&json!({"model_name": "m", "token_ids": [1]})));
    let register = |instance: u64, rank: u32| {
        let body = json!({"instance_id": instance, "dp_rank": rank, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 1});
        assert_eq!(serving.send("POST", "/register", Some(&body)).status, 201);
    };
    let ready = serving.get("/ready");
    assert_eq!(ready.status, 503);
    assert_eq!(serving.get("/health").status, 200);
    assert_eq!((query().status, query().code().as_str()), (503, "not_ready"));
    register(1, 0);
    register(1, 1);
    wait_for("one instance to be counted", || {
        let text = serving.get("/ready").text();
        if text.contains("workers: 1 of 2 registered") { Ok(()) } else { Err(text) }
    });
    register(2, 0);
    wait_for("the gate to open", || match serving.get("/ready") {
        reply if reply.status == 200 => Ok(()),
        reply => Err(reply.text()),
    });
    assert_eq!(query().status, 200);
}

#[test]
fn workers_and_peers_of_the_command_line_are_listed() {
    let workers = "7=tcp://127.0.0.1:1|tcp://127.0.0.1:2, serving/llama-0:3=tcp://localhost:1";
    let args = ["--block-size", "16", "--workers", workers, "--model-name", "m", "--routing-group", "g"];
    let env = [("KVINDEXER_PEERS", "http://127.0.0.1:1, not a url"), ("DYN_ROUTER_MIN_INITIAL_WORKERS", "")];
    let serving = Serving::start(&args, &env);
    let listed = wait_for("both workers", || {
        let listed = serving.get("/workers").json();
        let listed = listed.as_array().cloned().unwrap_or_default();
        if listed.len() == 2 { Ok(listed) } else { Err(format!("{listed:?}")) }
    });
    let find = |id: Value| listed.iter().find(|worker| worker["instance_id"] == id).expect("listed").clone();
    let (number, text) = (find(7.into()), find("serving/llama-0".into()));
    assert_eq!(
        (&number["model_name"], &number["tenant_id"], &number["block_size"]),
        (&"m".into(), &"g".into(), &16.into())
    );
    assert_eq!(number["endpoints"], json!({"0": "tcp://127.0.0.1:1"}));
    assert_eq!(text["endpoints"], json!({"3": "tcp://localhost:1"}));
    assert_eq!(serving.get("/peers").json(), json!(["http://127.0.0.1:1", "not a url"]));
    // Nobody listens there: after the time to connect the start does not wait for them.
    wait_for("ready without them", || match serving.get("/ready") {
        reply if reply.status == 200 => Ok(()),
        reply => Err(reply.text()),
    });
}

#[test]
fn the_access_log_has_a_line_per_request() {
    let folder = std::env::temp_dir().join(format!("kvindexer-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let path = folder.join("access.log");
    let serving =
        Serving::start(&["--access-log", path.to_str().expect("a plain path"), "--access-log-local-time"], &[]);
    assert_eq!(serving.get("/workers").status, 200);
    let text = wait_for("a line", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.contains("/workers") { Ok(text) } else { Err(text) }
    });
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    serving.signal("TERM");
    let (_, log) = serving.end();
    assert!(log.contains("without effect"), "{log}");
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

#[test]
fn a_simulated_fleet_with_a_restart_a_gap_and_a_clear_is_answered_exactly() {
    for form in [
        &["--engine", "vllm", "--events", "array", "--own-hashes"][..],
        &["--engine", "sglang", "--events", "map", "--replay-frames", "4"],
    ] {
        let serving = Serving::start(&[], &[]);
        let fleet = [
            "sim",
            "--port",
            "0",
            "--workers",
            "2",
            "--ranks",
            "2",
            "--blocks",
            "500",
            "--host-blocks",
            "300",
            "--tokens-per-id",
            "64",
            "--requests",
            "500",
            "--rate",
            "500",
            "--register",
            &serving.url(),
            "--check",
            "--exit",
            "--at",
            "0.2=gap 1:1 3",
            "--at",
            "0.4=restart 2",
            "--at",
            "0.6=clear 1:0",
        ];
        let (code, stdout, stderr) = run(&[&fleet[..], form].concat(), &[]);
        assert_eq!(code, Some(0), "{form:?}\n{stdout}\n{stderr}");
        let checked = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let checked = checked.filter(|line| line["checked_prompts"].as_u64() > Some(100)).collect::<Vec<_>>();
        assert_eq!(checked.len(), 1, "{stdout}");
        assert_eq!((&checked[0]["wrong"], &checked[0]["admitted"]), (&0.into(), &0.into()), "{stdout}");
    }
}

#[test]
fn without_replays_what_was_lost_is_admitted_in_every_wrong_answer() {
    let serving = Serving::start(&[], &[]);
    let fleet = [
        "sim",
        "--port",
        "0",
        "--no-replay",
        "--workers",
        "2",
        "--blocks",
        "400",
        "--tokens-per-id",
        "64",
        "--requests",
        "400",
        "--rate",
        "400",
        "--register",
        &serving.url(),
        "--check",
        "--exit",
        "--at",
        "0.3=gap 1 8",
        "--at",
        "0.5=restart 2",
    ];
    let (code, stdout, stderr) = run(&fleet, &[]);
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    let workers = serving.get("/workers").json();
    let first = workers.as_array().and_then(|workers| workers.iter().find(|worker| worker["instance_id"] == 1));
    let trust = &first.expect("listed")["listeners"]["0"]["trust"];
    // The fleet has ended: the state is stale, and the gap is still a reason.
    assert!(trust["reasons"].as_array().is_some_and(|reasons| reasons.contains(&"gap".into())), "{trust}");
}

#[test]
fn a_start_beside_a_full_and_idle_engine_is_ready_only_with_its_blocks() {
    let mut sim = kvindexer(
        &["sim", "--port", "0", "--workers", "1", "--tokens-per-id", "16", "--requests", "200", "--rate", "0"],
        &[],
    )
    .stdin(Stdio::piped())
    .spawn()
    .expect("the built binary starts");
    let mut commands = sim.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(sim.stdout.take().expect("stdout is piped")).lines();
    let mut answer_with = |key: &str| {
        let mut lines = lines.by_ref().map(|line| line.expect("a line"));
        let found = lines.find_map(|line| Some(serde_json::from_str::<Value>(&line).ok()?.get(key)?.clone()));
        found.unwrap_or_else(|| panic!("the fleet ended without `{key}`"))
    };
    let rank = answer_with("status")[0].clone();
    answer_with("served_all_requests");
    let address = |key: &str| rank[key].as_str().expect("an address").to_owned();
    let worker = format!("1={}|{}", address("endpoint"), address("replay_endpoint"));
    let serving = Serving::start(&["--block-size", "16", "--workers", &worker, "--model-name", "sim"], &[]);
    wait_for("ready", || match serving.get("/ready") {
        reply if reply.status == 200 => Ok(()),
        reply => Err(reply.text()),
    });
    // The first answers after ready: nothing is awaited between.
    for prompt in Generator::new(1).take(200) {
        let ids: Vec<_> = prompt.iter().map(ToString::to_string).collect();
        writeln!(commands, "truth {}", ids.join(" ")).expect("the fleet reads");
        let truth = answer_with("truth");
        let body = json!({"model_name": "sim", "token_ids": tokens(&prompt, 16)});
        let answer = serving.send("POST", "/query", Some(&body)).json();
        assert_eq!(answer["instances"]["1"]["gpu"], truth["1"]["gpu"], "{prompt:?}: {answer}");
        assert!(answer["instances"]["1"]["gpu"].as_u64() > Some(0), "{prompt:?}: {answer}");
        assert!(answer["instances"]["1"].get("trust").is_none(), "{answer}");
    }
    writeln!(commands, "fly\nquit").expect("the fleet reads");
    assert!(answer_with("error").as_str().is_some_and(|text| text.contains("unknown command `fly`")));
    assert!(sim.wait().expect("the process is ours").success());
}

#[test]
fn over_the_memory_limit_blocks_are_refused_and_that_is_said() {
    let serving = Serving::start(&["--memory-limit", "1"], &[]);
    let fleet = ["sim", "--port", "0", "--workers", "1", "--requests", "20", "--rate", "0"];
    // The limit is looked at once a second: the fleet starts when it is certain to be known.
    let url = serving.url();
    let mut seen = String::new();
    wait_for("stores to be refused", || {
        let (_, stdout, _) = run(&[&fleet[..], &["--register", &url, "--check", "--exit"]].concat(), &[]);
        seen = stdout;
        let body = json!({"instance_id": 1, "model_name": "sim"});
        let workers = serving.get("/workers").text();
        assert_eq!(serving.send("POST", "/unregister", Some(&body)).status, 200);
        if workers.contains("\"memory\"") { Ok(()) } else { Err(workers) }
    });
    let checked = seen.lines().find(|line| line.contains("checked_prompts")).unwrap_or_default();
    assert!(checked.contains("\"wrong\":0"), "what is missing is admitted: {seen}");
    assert!(!checked.contains("\"admitted\":0"), "something is missing: {seen}");
}

#[test]
fn the_demonstration_ends_with_0_and_shows_a_table() {
    let (code, stdout, stderr) = run(&["demo", "--requests", "80", "--rate", "400"], &[]);
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    for part in ["worker sglang-0", "prompt (content ids)", ", 0 wrong", "curl http://127.0.0.1:"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}
