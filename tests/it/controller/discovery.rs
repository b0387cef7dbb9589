//! Engines that describe themselves over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvindexer::ids::BlockSize;
use serde_json::{Value, json};

use super::{Engine, Lab, NS, bare, object};
use crate::fake_kube::Kind;
use crate::harness::wait_for;

/// The HTTP server of an engine: answers by path, 404 for the others. Its thread ends with the process.
struct Http {
    port: u16,
    answers: Arc<Mutex<Vec<(&'static str, Value)>>>,
    asked: Arc<AtomicUsize>,
}

impl Http {
    fn start(answers: &[(&'static str, Value)]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("bound").port();
        let http = Self { port, answers: Arc::new(Mutex::new(answers.to_vec())), asked: Arc::default() };
        let (answers, asked) = (Arc::clone(&http.answers), Arc::clone(&http.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                asked.fetch_add(1, Ordering::Relaxed);
                let known = answers.lock().expect("no holder panics").clone();
                // An asker that went away is none of the engine's business.
                let _ = answer(stream, &known);
            }
        });
        http
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: TcpStream, known: &[(&'static str, Value)]) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let head = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = head.split(' ').nth(1).unwrap_or_default();
    let found = known.iter().find(|(known, _)| *known == path);
    let (status, body) = match found {
        Some((_, body)) => ("200 OK", body.to_string()),
        None => ("404 Not Found", r#"{"detail":"Not Found"}"#.to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A Pod with the label `app: llama`, and the object that claims it and wants it asked.
fn asked_pod(engine: &Engine, http: &Http) -> [Value; 2] {
    let mut pod = bare("a", engine.ip);
    pod["metadata"]["labels"] = json!({"app": "llama"});
    let mut object = object("llama", "m", engine.port);
    object["spec"]["discovery"] = json!("Auto");
    object["spec"]["ports"]["http"] = json!(http.port);
    [pod, object]
}

/// Ranks of the Pod with their ports and topics: `rank:events/replay topic`.
fn ranks(lab: &Lab) -> Vec<String> {
    let workers = lab.registry.workers(None, None);
    let ranks = workers.iter().flat_map(|worker| &worker.ranks);
    let port = |endpoint: &str| endpoint.rsplit(':').next().unwrap_or_default().to_owned();
    ranks
        .map(|(rank, view)| {
            let replay = view.spec.replay_endpoint.as_ref().map(|endpoint| port(endpoint.as_str())).unwrap_or_default();
            let topic = view.spec.topic.clone().unwrap_or_default();
            format!("{}:{}/{replay} {topic}", rank.0, port(view.spec.endpoint.as_str()))
        })
        .collect()
}

#[track_caller]
fn wait_ranks(lab: &Lab, want: &[String]) {
    wait_for(&format!("ranks {want:?}"), || match ranks(lab) {
        seen if seen == want => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
}

#[test]
fn vllm_tells_its_ranks_and_topics() {
    let engine = Engine::at("127.0.0.1");
    let source = |rank: u16| {
        json!({"data_parallel_rank": rank, "endpoint": format!("tcp://*:{}", engine.port + rank),
               "replay_endpoint": format!("tcp://*:{}", 60_000 + rank), "topic": "kv"})
    };
    let http = Http::start(&[("/kv_event_sources", json!([source(0), source(1)]))]);
    let lab = Lab::start(|kube| kube.put_all(asked_pod(&engine, &http)));
    wait_ranks(&lab, &[format!("0:{}/60000 kv", engine.port), format!("1:{}/60001 kv", engine.port + 1)]);
    assert_eq!(lab.metrics.descriptions.with_label_values(&["ok"]).get(), 1);
    // Once per life of the container.
    let asked = http.asked();
    lab.kube.edit(Kind::Pods, NS, "a", |pod| pod["metadata"]["labels"]["more"] = json!("yes"));
    lab.kube.put(super::annotated("marker", "127.0.0.1", 1));
    wait_for("the marker", || if lab.rank("marker").is_some() { Ok(()) } else { Err("no".to_owned()) });
    assert_eq!(http.asked(), asked);
    lab.kube.edit(Kind::Pods, NS, "a", |pod| super::restarted(pod, 1));
    wait_for("another question", || if http.asked() > asked { Ok(()) } else { Err("no".to_owned()) });
}

#[test]
fn sglang_tells_its_block_size_which_is_shown_where_it_differs() {
    let engine = Engine::at("127.0.0.1");
    let events = json!({"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": engine.port, "topic": "",
                        "block_size": 64, "dp_size": 1});
    let http = Http::start(&[("/server_info", json!({"kv_events": events}))]);
    let lab = Lab::start(|kube| kube.put_all(asked_pod(&engine, &http)));
    wait_for("the mismatch", || match lab.metrics.faults.with_label_values(&["BlockSizeMismatch"]).get() {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    // The spec wins.
    wait_ranks(&lab, &[format!("0:{}/ ", engine.port)]);
    assert_eq!(lab.rank("a").unwrap().spec.block_size, BlockSize::new(4).unwrap());
}

#[test]
fn an_engine_that_says_nothing_costs_only_its_description() {
    let engine = Engine::at("127.0.0.1");
    let http = Http::start(&[]);
    let lab = Lab::start(|kube| kube.put_all(asked_pod(&engine, &http)));
    wait_ranks(&lab, &[format!("0:{}/ ", engine.port)]);
    wait_for("more than one question", || match lab.metrics.descriptions.with_label_values(&["failed"]).get() {
        0 | 1 => Err("fewer".to_owned()),
        _ => Ok(()),
    });
    // It begins to answer later.
    let source = json!([{"data_parallel_rank": 0, "endpoint": format!("tcp://*:{}", engine.port), "replay_endpoint": "tcp://*:60000", "topic": ""}]);
    http.answers.lock().unwrap().push(("/kv_event_sources", source));
    wait_ranks(&lab, &[format!("0:{}/60000 ", engine.port)]);
}
