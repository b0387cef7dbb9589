//! `kvindexer sim --control`: commands over HTTP, and engines that describe themselves.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A running fleet that serves only what it is told.
struct Sim {
    process: Child,
    /// Kept open: the fleet writes its answers there too.
    _lines: std::io::Lines<BufReader<ChildStdout>>,
    control: String,
    status: Value,
}

impl Sim {
    fn start(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvindexer"))
            .args(["sim", "--port", "0", "--at", "0=pause", "--tokens-per-id", "16", "--control", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut line = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
        let status = line()["status"].clone();
        let control = line()["control"].as_str().unwrap().to_owned();
        Self { process, _lines: lines, control, status }
    }

    async fn command(&self, line: &str) -> (u16, String) {
        let response = reqwest::Client::new()
            .post(format!("{}/command", self.control))
            .body(line.to_owned())
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let response = reqwest::get(format!("{}{path}", self.control)).await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    fn port(&self, rank: usize, name: &str) -> u64 {
        self.status[rank][name].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _code = self.process.wait();
    }
}

#[tokio::test]
async fn a_command_over_http_is_obeyed_and_answered_with_its_own_lines() {
    let mut sim = Sim::start(&["--workers", "1", "--ranks", "2"]);
    assert_eq!(sim.command("truth 7 8").await, (200, truth(&[7, 8], 0, 0)));
    assert_eq!(sim.command("request 1:1 7 8").await, (200, line(&json!({"served": 1, "prompt": [7, 8]}))));
    assert_eq!(sim.command("truth 7 8 9").await, (200, truth(&[7, 8, 9], 0, 32)));
    let (status, answer) = sim.command("clear 1").await;
    assert_eq!((status, answer), (200, format!("{}{}", line(&json!({"cleared": 0})), line(&json!({"cleared": 1})))));
    assert_eq!(sim.command("truth 7 8").await, (200, truth(&[7, 8], 0, 0)));
    let (status, answer) = sim.command("fly").await;
    assert!(status == 400 && answer.contains("unknown command"), "{answer}");
    let (status, answer) = sim.command("restart 9").await;
    assert!(status == 400 && answer.contains("no such rank"), "{answer}");
    let (_, tokens) = sim.command("tokens 7").await;
    let want = kvindexer::cli::sim::workload::tokens(&[7], 16);
    assert_eq!(tokens, line(&json!({ "tokens": want })));
    sim.command("quit").await;
    assert!(sim.process.wait().unwrap().success());
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

fn truth(prompt: &[u64], first: u64, second: u64) -> String {
    let most = first.max(second);
    let row = json!({"gpu": most, "cpu": most, "dp": {"0": first, "1": second}});
    line(&json!({"truth": {"1": row}, "prompt": prompt}))
}

#[tokio::test]
async fn an_engine_describes_its_ranks_as_its_kind_does() {
    let vllm = Sim::start(&["--workers", "1", "--ranks", "2", "--topic", "kv", "--no-replay"]);
    let (status, sources) = vllm.get("/kv_event_sources").await;
    assert_eq!((status, sources.as_object().unwrap().len()), (200, 2));
    for (rank, source) in [(0, &sources["0"]), (1, &sources["1"])] {
        let endpoint = format!("tcp://127.0.0.1:{}", vllm.port(rank, "endpoint"));
        assert_eq!((&source["endpoint"], &source["topic"]), (&json!(endpoint), &json!("kv")));
        assert_eq!((&source["publisher"], &source["replay_endpoint"]), (&json!("zmq"), &Value::Null));
    }
    assert_eq!(vllm.get("/server_info").await.0, 404);

    let sglang = Sim::start(&["--workers", "1", "--first-rank", "0", "--engine", "sglang", "--block-size", "32"]);
    let (status, info) = sglang.get("/server_info").await;
    let events = &info["kv_events"];
    assert_eq!((status, &events["block_size"], &events["dp_size"]), (200, &json!(32), &json!(1)));
    assert_eq!(events["endpoint_port_base"], json!(sglang.port(0, "endpoint")));
    assert_eq!(events["replay_endpoint_port_base"], json!(sglang.port(0, "replay_endpoint")));
    assert_eq!(sglang.get("/kv_event_sources").await.0, 404);
}

#[cfg(unix)]
#[tokio::test]
async fn a_fleet_ends_when_it_is_told_to_terminate() {
    let mut sim = Sim::start(&["--workers", "1"]);
    let pid = sim.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(sim.process.wait().unwrap().success());
}
