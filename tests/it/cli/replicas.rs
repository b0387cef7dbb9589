//! The built program among others: a stop while it recovers, the state on disk, and the commands that compare.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::json;

use super::{Serving, kvindexer, run};
use crate::harness::wait_for;

#[test]
fn a_replica_that_still_recovers_answers_503_and_stops_in_time_with_0() {
    // A peer that takes connections and never answers; its backlog is enough.
    let mute = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    let peers = format!("http://{}", mute.local_addr().expect("an address"));
    let folder = std::env::temp_dir().join(format!("kvindexer-recovers-{}", std::process::id()));
    let dir = folder.to_str().expect("a plain path");
    let serving = Serving::start(&["--peers", &peers, "--snapshot-dir", dir], &[]);
    wait_for("/ready to say what the start waits for", || match serving.get("/ready") {
        reply if reply.status == 503 && reply.text().contains("recovery") => Ok(()),
        reply => Err(format!("{} {}", reply.status, reply.text())),
    });
    let query = serving.send("POST", "/query", Some(&json!({"model_name": "m", "token_ids": []})));
    assert_eq!((query.status, query.code().as_str()), (503, "not_ready"));
    assert_eq!(serving.get("/health").status, 200);
    assert_eq!(serving.get("/digest").json()["phase"], "waiting");
    serving.signal("TERM");
    let (status, log) = serving.end();
    assert_eq!(status.code(), Some(0), "{log}");
    let files = std::fs::read_dir(&folder).expect("made at the start").count();
    assert_eq!(files, 0, "a state that was not whole is not worth a file");
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

#[test]
fn a_state_survives_on_disk_and_diff_and_verify_tell_by_their_exit_code() {
    let folder = std::env::temp_dir().join(format!("kvindexer-disk-{}", std::process::id()));
    let dir = folder.to_str().expect("a plain path");
    let first = Serving::start(&["--snapshot-dir", dir], &[]);
    let fleet =
        ["sim", "--port", "0", "--workers", "2", "--blocks", "200", "--tokens-per-id", "64", "--requests", "100"];
    let mut sim = kvindexer(&[&fleet[..], &["--rate", "500", "--register", &first.url(), "--check"]].concat(), &[])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the built binary starts");
    let mut lines = BufReader::new(sim.stdout.take().expect("stdout is piped")).lines();
    let checked = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("checked_prompts")));
    assert!(checked.is_some(), "the fleet ended early");
    first.signal("TERM");
    let (status, log) = first.end();
    assert_eq!(status.code(), Some(0), "{log}");

    let again = Serving::start(&["--snapshot-dir", dir], &[]);
    let other = Serving::start(&["--peers", &again.url()], &[]);
    for serving in [&again, &other] {
        wait_for("ready", || match serving.get("/ready") {
            reply if reply.status == 200 => Ok(()),
            reply => Err(reply.text()),
        });
        assert_eq!(serving.get("/digest").json()["streams"].as_array().map(Vec::len), Some(2));
        assert!(serving.get("/digest").json()["blocks"].as_u64() > Some(100), "{}", serving.get("/digest").text());
    }
    let (code, stdout, stderr) = run(&["diff", &again.url(), &other.url(), "--deep"], &[]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("equal at batch") && stdout.contains("2 streams: equal"), "{stdout}");
    let verify = |id: &str| run(&["verify", &other.url(), "--model-name", "sim", "--instance-id", id], &[]);
    let (code, stdout, stderr) = verify("2");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.ends_with("equal\n"), "{stdout}");
    assert_eq!(verify("9").0, Some(2), "no such instance");

    let gone = json!({"instance_id": 1, "model_name": "sim"});
    assert_eq!(other.send("POST", "/unregister", Some(&gone)).status, 200);
    let (code, stdout, _) = run(&["diff", &again.url(), &other.url()], &[]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("ONLY IN A"), "{stdout}");
    let (code, stdout, _) = run(&["digest", &again.url()], &[]);
    assert!(code == Some(0) && stdout.contains("instance 1 at"), "{stdout}");
    drop(sim.stdin.take());
    sim.kill().expect("the process is ours");
    sim.wait().expect("the process is ours");
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}
