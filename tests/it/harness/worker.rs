//! One registered worker with its publisher, for tests that tell a story.

use serde_json::{Value, json};

use super::service::plain;
use super::zmq_sockets::Ring;
use super::{Publisher, Router, Service, compare, msgpack, wait_for};

/// An instance with a model of its own, its publisher, and the number of the next batch.
pub(crate) struct Worker<'a> {
    pub(crate) service: &'a Service,
    pub(crate) publisher: Publisher,
    pub(crate) model: String,
    pub(crate) instance: u64,
    pub(crate) next: u64,
    ring: Option<Ring>,
}

/// Tokens per block of every [`Worker`].
pub(crate) const BLOCK: usize = 4;

impl<'a> Worker<'a> {
    /// Instance 1 of `model`, block size 4, without a replay endpoint, connected.
    pub(crate) fn new(service: &'a Service, model: &str) -> Self {
        Self::with(service, model, 1, json!({}))
    }

    /// The same with an id and more fields in the registration.
    pub(crate) fn with(service: &'a Service, model: &str, instance: u64, extra: Value) -> Self {
        let publisher = Publisher::bind();
        let worker = Self { service, publisher, model: model.to_owned(), instance, next: 0, ring: None };
        worker.register(extra);
        worker.publisher.wait_subscribed();
        worker.wait_status("active");
        worker
    }

    /// With a replay server that keeps what is published through [`Self::publish`].
    pub(crate) fn with_replay(service: &'a Service, model: &str, instance: u64, router: &Router, ring: &Ring) -> Self {
        let mut worker = Self::with(service, model, instance, json!({"replay_endpoint": router.endpoint}));
        worker.ring = Some(ring.clone());
        worker
    }

    /// `POST /register` of this worker; `extra` overrides fields.
    pub(crate) fn register(&self, extra: Value) {
        let mut body = json!({
            "instance_id": self.instance, "endpoint": self.publisher.endpoint, "model_name": self.model, "block_size": BLOCK,
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        let reply = self.service.post("/register", &body);
        assert_eq!(reply.status, 201, "{body}: {}", reply.text());
    }

    /// Publishes a batch with the next number and waits until it is applied.
    #[track_caller]
    pub(crate) fn publish(&mut self, events: Value) {
        self.publish_payload(&msgpack::batch(events));
    }

    /// [`Self::publish`] for a payload as it stands.
    #[track_caller]
    pub(crate) fn publish_payload(&mut self, payload: &[u8]) {
        let seq = self.next;
        if let Some(ring) = &self.ring {
            ring.push(seq, payload);
        }
        self.publisher.send("kv-events", seq, payload);
        self.next += 1;
        self.wait_applied(seq);
    }

    /// This worker's rank 0 in `/workers`.
    pub(crate) fn listener(&self) -> Value {
        self.service.listener(&self.model, "default", &self.instance.to_string(), 0).unwrap_or(Value::Null)
    }

    #[track_caller]
    pub(crate) fn wait_applied(&self, seq: u64) {
        wait_for(&format!("batch {seq} of {} to be applied", self.model), || {
            let listener = self.listener();
            if listener["last_seq"] == seq { Ok(()) } else { Err(listener.to_string()) }
        });
    }

    #[track_caller]
    pub(crate) fn wait_status(&self, status: &str) {
        wait_for(&format!("{} to be {status}", self.model), || {
            let listener = self.listener();
            if listener["status"] == status { Ok(()) } else { Err(listener.to_string()) }
        });
    }

    /// Waits for a state of trust with this reason (none: only the state counts).
    #[track_caller]
    pub(crate) fn wait_trust(&self, state: &str, reason: Option<&str>) {
        let want = json!({"state": state, "reasons_include": reason.into_iter().collect::<Vec<_>>()});
        wait_for(&format!("{} to be {want}", self.model), || {
            let listener = self.listener();
            compare::trust(&listener, &want).map_err(|error| format!("{error} in {listener}"))
        });
    }

    /// The state of trust with this reason as `/workers`, `/query` and `/metrics` say it.
    #[track_caller]
    pub(crate) fn assert_says(&self, state: &str, reason: &str) {
        self.wait_trust(state, Some(reason));
        let said = self.trust_in_query();
        assert_eq!(said["state"], state, "{said}");
        assert!(said["reasons"].as_array().is_some_and(|all| all.contains(&json!(reason))), "{reason} in {said}");
        let gauge = |state| self.metric("kvindexer_trust", &[("state", state)]);
        assert_eq!(
            ["exact", "degraded", "stale"].map(gauge),
            ["exact", "degraded", "stale"].map(|it| f64::from(it == state))
        );
    }

    /// Exact in `/workers`, `/query` and `/metrics`.
    #[track_caller]
    pub(crate) fn assert_exact(&self) {
        self.wait_trust("exact", None);
        assert_eq!(self.trust_in_query(), Value::Null);
        assert_eq!(self.metric("kvindexer_trust", &[("state", "exact")]), 1.0);
        assert_eq!(self.metric("kvindexer_trust", &[("state", "degraded")]), 0.0);
    }

    fn trust_in_query(&self) -> Value {
        let answer = self.service.query(&json!({"model_name": self.model, "token_ids": []}));
        answer["instances"][self.instance.to_string()]["trust"].clone()
    }

    /// Closes the publisher, waits until that was noticed, and binds another one to the same address. Numbers begin at 0.
    pub(crate) fn restart_publisher(&mut self) {
        self.reconnect();
        self.next = 0;
        if let Some(ring) = &self.ring {
            ring.clear();
        }
    }

    /// Loses the connection and gets another one at the same address; the numbers go on.
    pub(crate) fn reconnect(&mut self) {
        let endpoint = self.publisher.endpoint.clone();
        self.disconnect();
        self.publisher = Publisher::bind_to(&endpoint);
        self.publisher.wait_subscribed();
        self.wait_status("active");
    }

    /// Closes the publisher and waits until that was noticed.
    pub(crate) fn disconnect(&mut self) {
        // Dropping the publisher frees its address; the other one only takes its place.
        self.publisher = Publisher::bind();
        self.wait_status("pending");
    }

    /// Publishes a number that is not the next one and goes on from there; waits until it is applied.
    #[track_caller]
    pub(crate) fn jump_to(&mut self, seq: u64, events: Value) {
        self.next = seq;
        self.publish(events);
    }

    /// `gpu`, `cpu`, `disk` in tokens of this instance for a prompt.
    #[track_caller]
    pub(crate) fn tiers(&self, tokens: &[u32]) -> [u64; 3] {
        self.tiers_of(json!({"token_ids": tokens}))
    }

    /// The same for a request with more fields.
    #[track_caller]
    pub(crate) fn tiers_of(&self, mut request: Value) -> [u64; 3] {
        request["model_name"] = json!(self.model);
        let answer = self.service.query(&request);
        let instance = &answer["instances"][self.instance.to_string()];
        ["gpu", "cpu", "disk"].map(|tier| instance[tier].as_u64().unwrap_or_else(|| panic!("no {tier} in {answer}")))
    }

    #[track_caller]
    pub(crate) fn gpu(&self, tokens: &[u32]) -> u64 {
        self.tiers(tokens)[0]
    }

    /// A metric of this worker.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let instance = self.instance.to_string();
        let mut all = vec![("model", self.model.as_str()), ("instance_id", instance.as_str())];
        all.extend_from_slice(labels);
        self.service.metric(name, &all)
    }

    /// Skipped events by reason.
    pub(crate) fn skipped(&self, reason: &str) -> f64 {
        self.metric("kvindexer_skipped_events_total", &[("reason", reason)])
    }

    /// Hashes of all blocks that `/dump` shows for this model, sorted.
    pub(crate) fn held(&self) -> Vec<u64> {
        let dump = self.service.dump(&self.model);
        let entries = dump.as_object().into_iter().flat_map(serde_json::Map::values);
        let blocks = entries.flat_map(|entry| entry["blocks"].as_array().into_iter().flatten());
        let mut hashes: Vec<u64> = blocks
            .filter(|block| plain(&block["worker_id"]) == self.instance.to_string())
            .map(|block| block["block_hash"].as_u64().expect("hashes are u64"))
            .collect();
        hashes.sort_unstable();
        hashes
    }
}

/// `count` different tokens from `from` on.
pub(crate) fn tokens(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}
