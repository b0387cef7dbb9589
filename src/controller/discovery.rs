//! Asks engines to describe themselves. What an answer says is read by [`answer`], which is pure.
//!
//! An engine is asked once per life of its container; until it answers it is asked again, more and more seldom. What the
//! life before said holds meanwhile: a restart alone changes no rank and no port. An engine may be slow, wrong or silent:
//! that costs its description, and nothing else waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use reqwest::StatusCode;
use serde_json::Value;
use tokio::sync::watch as channel;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use crate::controller::desired::{Described, Description, Probe};
use crate::metrics::ControllerMetrics;

mod answer;

/// Engines that are asked at once.
const ASKED_MAX: usize = 16;

/// A longer answer is none.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// Wait for a whole answer.
const WHOLE: Duration = Duration::from_secs(5);

/// The wait between two attempts doubles up to so many times the first: an engine that has loaded its model should be heard
/// by the right topic before it has served much.
const RETRY_GROWTH_MAX: u32 = 4;

/// Asks whoever is wanted.
pub(super) struct Discovery {
    /// Who is to be asked.
    pub(super) wanted: channel::Receiver<BTreeSet<Probe>>,
    /// What they say; those that are not wanted any more are left out.
    pub(super) answers: channel::Sender<Arc<Described>>,
    /// First wait after an attempt that failed.
    pub(super) retry: Duration,
    pub(super) metrics: Arc<ControllerMetrics>,
}

/// An engine that has not answered.
struct Open {
    due: Instant,
    wait: Duration,
    asking: bool,
}

type Asking = FuturesUnordered<BoxFuture<'static, (Probe, Option<Description>)>>;

impl Discovery {
    /// Ends only by being dropped.
    pub(super) async fn run(mut self) {
        let client = client();
        let mut open: BTreeMap<Probe, Open> = BTreeMap::new();
        let mut asking = Asking::new();
        loop {
            let next = self.ask_due(&client, &mut open, &mut asking);
            tokio::select! {
                biased;
                Ok(()) = self.wanted.changed() => self.take_over(&mut open),
                Some((probe, answer)) = asking.next() => self.take_in(probe, answer, &mut open),
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Asks those whose time has come, as far as there is room. When the next one is due; none: something else comes first.
    fn ask_due(
        &self,
        client: &reqwest::Client,
        open: &mut BTreeMap<Probe, Open>,
        asking: &mut Asking,
    ) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (probe, open) in open.iter_mut().filter(|(_, open)| !open.asking) {
            if asking.len() >= ASKED_MAX {
                return None;
            }
            if open.due > Instant::now() {
                next = Some(next.map_or(open.due, |next| next.min(open.due)));
                continue;
            }
            open.asking = true;
            let (client, probe) = (client.clone(), probe.clone());
            asking.push(Box::pin(async move {
                let answer = ask(&client, &probe.authority).await;
                (probe, answer)
            }));
        }
        next
    }

    /// Forgets who is not wanted any more, and takes on who is new.
    fn take_over(&mut self, open: &mut BTreeMap<Probe, Open>) {
        let wanted = self.wanted.borrow_and_update().clone();
        let places: BTreeSet<_> = wanted.iter().map(Probe::place).collect();
        self.answers.send_if_modified(|answers| {
            let gone = answers.keys().any(|probe| !places.contains(&probe.place()));
            if gone {
                Arc::make_mut(answers).retain(|probe, _| places.contains(&probe.place()));
            }
            gone
        });
        open.retain(|probe, _| wanted.contains(probe));
        let answers = self.answers.borrow();
        for probe in wanted.into_iter().filter(|probe| !answers.contains_key(probe)) {
            open.entry(probe).or_insert_with(|| Open { due: Instant::now(), wait: self.retry, asking: false });
        }
    }

    fn take_in(&self, probe: Probe, answer: Option<Description>, open: &mut BTreeMap<Probe, Open>) {
        let outcome = if answer.is_some() { "ok" } else { "failed" };
        self.metrics.descriptions.with_label_values(&[outcome]).inc();
        let Some(place) = open.get_mut(&probe) else {
            return;
        };
        let Some(description) = answer else {
            // Whole fleets start at once: their engines are not asked in step.
            place.due = Instant::now() + place.wait.mul_f64(0.5 + fastrand::f64() / 2.0);
            place.wait = (place.wait * 2).min(self.retry * RETRY_GROWTH_MAX);
            place.asking = false;
            return;
        };
        info!(
            engine = probe.authority,
            ranks = description.ranks.len(),
            block_size = description.block_size,
            "engine describes itself"
        );
        open.remove(&probe);
        self.answers.send_modify(|answers| {
            let answers = Arc::make_mut(answers);
            answers.retain(|earlier, _| earlier.place() != probe.place());
            answers.insert(probe, description);
        });
    }
}

fn client() -> reqwest::Client {
    let client = reqwest::Client::builder()
        .no_proxy()
        .connect_timeout(CONNECT)
        .timeout(WHOLE)
        // An engine that points elsewhere does not describe itself.
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .build();
    client.expect("a client without TLS and proxies needs nothing that could be missing")
}

/// Asks in the way of each engine, until one of them is understood.
async fn ask(client: &reqwest::Client, authority: &str) -> Option<Description> {
    for (path, read) in answer::WAYS {
        match get(client, authority, path).await {
            Ok(body) => {
                if let Some(description) = read(&body, authority) {
                    return Some(description);
                }
            }
            Err(why) => debug!(engine = authority, path, why, "engine gave no description"),
        }
    }
    None
}

async fn get(client: &reqwest::Client, authority: &str, path: &str) -> Result<Value, String> {
    let failed = |error: reqwest::Error| error.to_string();
    let mut response = client.get(format!("http://{authority}{path}")).send().await.map_err(failed)?;
    if response.status() != StatusCode::OK {
        return Err(format!("it answers {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(failed)? {
        if body.len() + piece.len() > BODY_BYTES_MAX {
            return Err("its answer is too long".to_owned());
        }
        body.extend_from_slice(&piece);
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}
