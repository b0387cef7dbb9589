//! Replicas that serve stay equal: what one lost comes from the other, and what differs without anybody's fault being
//! known shows.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::msgpack::{batch, stored};
use crate::harness::service::free_address;
use crate::harness::worker::tokens;
use crate::harness::{Publisher, Service, wait_for};

const MODEL: &str = "equal";
const TEST_ROUTES: &[(&str, &str)] = &[("DYN_KV_INDEXER_TEST_ENDPOINTS", "1")];

/// Two replicas that compare themselves every second, with one worker without a replay socket.
struct Pair {
    replicas: [Service; 2],
    publisher: Publisher,
}

impl Pair {
    fn start() -> Self {
        let addresses = [free_address(), free_address()];
        let start = |own: usize| {
            let peer = format!("http://{}", addresses[1 - own]);
            Service::launch_at(addresses[own], &["--peers", &peer, "--compare-interval-s", "1"], TEST_ROUTES)
        };
        let replicas = [start(0), start(1)];
        replicas.iter().for_each(Service::wait_ready);
        let pair = Self { replicas, publisher: Publisher::bind() };
        let body = json!({
            "instance_id": 1, "model_name": MODEL, "block_size": 4, "endpoint": pair.publisher.endpoint,
        });
        for replica in &pair.replicas {
            let reply = replica.post("/register", &body);
            assert_eq!(reply.status, 201, "{}", reply.text());
            pair.publisher.wait_subscribed();
        }
        pair
    }

    /// Batch n of `life` stores one block below that of the batch before.
    fn publish(&self, life: u64, number: u64) {
        let parent = (number > 0).then(|| hash(life, number - 1));
        let tokens = tokens(1 + 1_000 * life as u32 + 4 * number as u32, 4);
        self.publisher.send("kv-events", number, &batch(json!([stored(&[hash(life, number)], parent, &tokens)])));
    }

    /// The listener of a replica stops or goes on.
    fn listen(&self, replica: usize, verb: &str) {
        let reply =
            self.replicas[replica].post(&format!("/test/{verb}_listener"), &json!({"instance_id": 1, "dp_rank": 0}));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    fn listener(&self, replica: usize) -> Value {
        self.replicas[replica].listener(MODEL, "default", "1", 0).unwrap_or(Value::Null)
    }

    #[track_caller]
    fn wait_at(&self, replica: usize, number: u64, state: &str) {
        wait_for(&format!("replica {replica} to be {state} at {number}"), || {
            let listener = self.listener(replica);
            if listener["last_seq"] == number && listener["trust"]["state"] == state {
                Ok(())
            } else {
                Err(listener.to_string())
            }
        });
    }

    fn gpu(&self, replica: usize, life: u64) -> u64 {
        let request = json!({"model_name": MODEL, "token_ids": tokens(1 + 1_000 * life as u32, 80)});
        let answer = self.replicas[replica].query(&request);
        answer["instances"]["1"]["gpu"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// `kvindexer diff` of the two.
    fn diff(&self, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kvindexer"))
            .args(["diff", &self.replicas[0].url(), &self.replicas[1].url()])
            .args(more)
            .output()
            .expect("the built binary starts")
    }
}

fn hash(life: u64, number: u64) -> u64 {
    1 + 1_000 * life + number
}

#[test]
fn what_one_replica_lost_comes_from_the_other_while_both_serve() {
    let pair = Pair::start();
    (0..3).for_each(|number| pair.publish(0, number));
    [0, 1].iter().for_each(|replica| pair.wait_at(*replica, 2, "exact"));
    pair.listen(1, "pause");
    (3..6).for_each(|number| pair.publish(0, number));
    pair.wait_at(0, 5, "exact");
    pair.listen(1, "resume");
    pair.publisher.wait_subscribed();
    pair.publish(0, 6);
    // Numbers 3 to 5 were lost for ever: nobody can be asked for them but the other replica.
    pair.wait_at(1, 6, "exact");
    assert_eq!((pair.gpu(0, 0), pair.gpu(1, 0)), (28, 28));
    assert!(pair.replicas[1].metric("kvindexer_recovery_refills_total", &[("outcome", "ok")]) >= 1.0);
    pair.publish(0, 7);
    pair.wait_at(1, 7, "exact");
    assert_eq!(pair.gpu(1, 0), 32);
    let said = pair.diff(&["--deep"]);
    assert_eq!(said.status.code(), Some(0), "{}", String::from_utf8_lossy(&said.stdout));
}

#[test]
fn a_difference_that_no_rule_can_see_shows_in_metric_log_and_diff() {
    let mut pair = Pair::start();
    pair.listen(1, "pause");
    (0..3).for_each(|number| pair.publish(0, number));
    pair.wait_at(0, 2, "exact");
    // The first one does not listen while another life of the publisher says as much to the second one. On the next
    // number both go on: only side by side can it be seen that they hold different blocks.
    pair.listen(0, "pause");
    let endpoint = pair.publisher.endpoint.clone();
    pair.publisher = Publisher::bind();
    pair.publisher = Publisher::bind_to(&endpoint);
    pair.listen(1, "resume");
    pair.publisher.wait_subscribed();
    (0..3).for_each(|number| pair.publish(1, number));
    pair.wait_at(1, 2, "exact");
    pair.listen(0, "resume");
    pair.publisher.wait_subscribed();
    pair.publisher.send("kv-events", 3, &batch(json!([stored(&[9_999], None, &tokens(90_001, 4))])));
    [0, 1].iter().for_each(|replica| pair.wait_at(*replica, 3, "exact"));
    assert_eq!((pair.gpu(0, 0), pair.gpu(1, 0), pair.gpu(0, 1), pair.gpu(1, 1)), (12, 0, 0, 12));
    for replica in &pair.replicas {
        wait_for("the difference to be counted and said", || {
            let differing = replica.metric("kvindexer_replica_differing_streams", &[]);
            let said = replica.log().iter().any(|line| line.contains("WARN") && line.contains("differ"));
            if differing == 1.0 && said { Ok(()) } else { Err(format!("{differing} {said}")) }
        });
    }
    let said = pair.diff(&[]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.status.code(), Some(1), "{text}");
    for part in [MODEL, &hash(0, 0).to_string(), &hash(1, 0).to_string()] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // A clear makes both right again.
    pair.publisher.send("kv-events", 4, &batch(json!([["AllBlocksCleared"]])));
    [0, 1].iter().for_each(|replica| pair.wait_at(*replica, 4, "exact"));
    assert_eq!(pair.diff(&["--deep"]).status.code(), Some(0));
    for replica in &pair.replicas {
        wait_for("the difference to end", || match replica.metric("kvindexer_replica_differing_streams", &[]) {
            0.0 => Ok(()),
            differing => Err(format!("{differing}")),
        });
    }
}
