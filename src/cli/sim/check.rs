//! An indexer as a client of its HTTP API sees it, and the comparison of its answers with a fleet's own truth.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::Held;
use super::fleet::{Fleet, RankStatus};
use crate::ids::{DpRank, InstanceId, Owner};

/// One request may take so long, with room for a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Rhythm of asking while something is awaited.
const POLL: Duration = Duration::from_millis(20);

/// Why an indexer cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No HTTP answer, or one of another form.
    #[error("failed to ask the indexer")]
    Http(#[from] reqwest::Error),
    /// No URL.
    #[error("`{0}` is no URL like http://host:port")]
    Address(String),
    /// It refused.
    #[error("the indexer answered {status} to {path}: {body}")]
    Refused {
        /// Which request.
        path: &'static str,
        /// Status.
        status: StatusCode,
        /// Body.
        body: String,
    },
    /// It did not get there in time.
    #[error("the indexer was not there after {after:?}: {what}")]
    Late {
        /// How long it had.
        after: Duration,
        /// What is missing.
        what: String,
    },
}

/// One index of a running indexer.
#[derive(Debug, Clone)]
pub struct Indexer {
    client: Client,
    base: String,
    model: String,
    tenant: String,
}

/// Answer of `POST /query`, in tokens; unknown fields are ignored.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
    /// By instance id.
    pub instances: BTreeMap<String, InstanceAnswer>,
}

/// What one instance holds of a prompt, in tokens, cumulative.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct InstanceAnswer {
    /// On the device.
    pub gpu: u64,
    /// Then in host memory.
    pub cpu: u64,
    /// Then on lower tiers.
    pub disk: u64,
    /// The longest of these.
    pub longest_matched: u64,
    /// Device tokens by rank.
    #[serde(default)]
    pub dp: BTreeMap<String, u64>,
    /// Present when an owner is not exact.
    #[serde(default)]
    pub trust: Option<Value>,
}

/// An answer that is not the truth.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Content ids of the prompt.
    pub prompt: Vec<u64>,
    /// Which instance.
    pub instance: String,
    /// What the fleet holds.
    pub truth: InstanceAnswer,
    /// What the indexer said.
    pub answer: Option<InstanceAnswer>,
}

impl Difference {
    /// True when the indexer itself said that it was not sure.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.trust.is_some())
    }
}

impl Indexer {
    /// The index of a model and tenant at `base`, for example `http://127.0.0.1:8090`.
    ///
    /// # Errors
    /// The HTTP client cannot be built.
    pub fn new(base: &str, model: &str, tenant: &str) -> Result<Self, Error> {
        let client = Client::builder().no_proxy().timeout(REQUEST_TIMEOUT).build()?;
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { client, base, model: model.to_owned(), tenant: tenant.to_owned() })
    }

    /// Registers every rank of a fleet under `host`, or under the addresses that it bound.
    ///
    /// # Errors
    /// A registration is refused.
    pub async fn register(&self, ranks: &[RankStatus], host: Option<&str>) -> Result<(), Error> {
        for rank in ranks {
            let endpoint = |address: std::net::SocketAddr| match host {
                Some(host) => format!("tcp://{host}:{}", address.port()),
                None => format!("tcp://{address}"),
            };
            let body = json!({
                "instance_id": rank.owner.instance,
                "dp_rank": rank.owner.rank.0,
                "endpoint": endpoint(rank.address),
                "replay_endpoint": rank.replay_address.map(endpoint),
                "model_name": self.model,
                "tenant_id": self.tenant,
                "block_size": rank.block_size,
            });
            self.post("/register", &body).await?;
        }
        Ok(())
    }

    /// Longest cached prefix per instance.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn query(&self, tokens: &[u32]) -> Result<Answer, Error> {
        let body = json!({"model_name": self.model, "tenant_id": self.tenant, "token_ids": tokens});
        Ok(self.post("/query", &body).await?.json().await?)
    }

    /// Waits until the last batch of every rank is applied.
    ///
    /// # Errors
    /// No answer, or not in time.
    pub async fn caught_up(&self, ranks: &[RankStatus], deadline: Duration) -> Result<(), Error> {
        self.wait(deadline, |listeners| {
            ranks.iter().find_map(|rank| {
                let applied = listener(listeners, &rank.owner).and_then(|listener| listener["last_seq"].as_u64());
                (applied != rank.last_seq)
                    .then(|| format!("rank {} has applied {applied:?} of {:?}", rank.owner, rank.last_seq))
            })
        })
        .await
    }

    /// Waits until every rank is connected.
    ///
    /// # Errors
    /// No answer, or not in time.
    pub async fn connected(&self, ranks: &[RankStatus], deadline: Duration) -> Result<(), Error> {
        self.wait(deadline, |listeners| {
            ranks.iter().find_map(|rank| {
                let listener = listener(listeners, &rank.owner);
                let active = listener.is_some_and(|listener| listener["status"] == "active");
                (!active).then(|| format!("rank {} is {}", rank.owner, listener.unwrap_or(&Value::Null)))
            })
        })
        .await
    }

    /// Compares the answers to `prompts` with the fleet. All batches must be applied.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn compare(&self, fleet: &Fleet, prompts: &[(Vec<u64>, Vec<u32>)]) -> Result<Vec<Difference>, Error> {
        let mut differences = vec![];
        for (prompt, tokens) in prompts {
            let answer = self.query(tokens).await?;
            differences.extend(self::differences(prompt, &truth(fleet, tokens), &answer));
        }
        Ok(differences)
    }

    async fn wait(&self, deadline: Duration, missing: impl Fn(&Value) -> Option<String>) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let response = self.client.get(self.workers_url()?).send().await?;
            let workers: Value = accept("/workers", response).await?.json().await?;
            let Some(what) = missing(&workers) else {
                return Ok(());
            };
            if start.elapsed() > deadline {
                return Err(Error::Late { after: deadline, what });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn workers_url(&self) -> Result<Url, Error> {
        let mut url = Url::parse(&format!("{}/workers", self.base)).map_err(|_| Error::Address(self.base.clone()))?;
        url.query_pairs_mut().append_pair("model_name", &self.model).append_pair("tenant_id", &self.tenant);
        Ok(url)
    }

    async fn post(&self, path: &'static str, body: &Value) -> Result<reqwest::Response, Error> {
        accept(path, self.client.post(format!("{}{path}", self.base)).json(body).send().await?).await
    }
}

/// The truth about a prompt by instance, in the form of an answer.
#[must_use]
pub fn truth(fleet: &Fleet, tokens: &[u32]) -> BTreeMap<String, InstanceAnswer> {
    let block_sizes: BTreeMap<Owner, usize> =
        fleet.status().into_iter().map(|rank| (rank.owner, rank.block_size)).collect();
    let mut truth = BTreeMap::<String, InstanceAnswer>::new();
    for (owner, held) in fleet.held(tokens) {
        let Held { device, host } = held;
        let in_tokens = |blocks: usize| (blocks * block_sizes[&owner]) as u64;
        let row = truth.entry(owner.instance.to_string()).or_default();
        row.gpu = row.gpu.max(in_tokens(device));
        row.cpu = row.cpu.max(in_tokens(host));
        row.disk = row.cpu;
        row.longest_matched = row.cpu;
        row.dp.insert(owner.rank.to_string(), in_tokens(device));
    }
    truth
}

/// Where an answer is not the truth; an instance that is missing in it is a difference too.
#[must_use]
pub fn differences(prompt: &[u64], truth: &BTreeMap<String, InstanceAnswer>, answer: &Answer) -> Vec<Difference> {
    let differs = |(instance, truth): (&String, &InstanceAnswer)| {
        let answer = answer.instances.get(instance).cloned();
        let plain = answer.clone().map(|answer| InstanceAnswer { trust: None, ..answer });
        (plain.as_ref() != Some(truth)).then(|| Difference {
            prompt: prompt.to_vec(),
            instance: instance.clone(),
            truth: truth.clone(),
            answer,
        })
    };
    truth.iter().filter_map(differs).collect()
}

/// One listener in the answer of `/workers`.
fn listener<'a>(workers: &'a Value, owner: &Owner) -> Option<&'a Value> {
    let Owner { instance, rank: DpRank(rank) } = owner;
    let is_ours = |worker: &&Value| match instance {
        InstanceId::Number(number) => worker["instance_id"] == json!(number),
        InstanceId::Text(text) => worker["instance_id"] == json!(&**text),
    };
    workers.as_array()?.iter().find(is_ours)?["listeners"].get(rank.to_string())
}

async fn accept(path: &'static str, response: reqwest::Response) -> Result<reqwest::Response, Error> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    Err(Error::Refused { path, status, body: response.text().await.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(instances: Value) -> Answer {
        serde_json::from_value(json!({"instances": instances, "scores": {}, "frequencies": []})).unwrap()
    }

    #[test]
    fn every_difference_is_found_and_doubt_is_told_apart() {
        let row = InstanceAnswer {
            gpu: 16,
            cpu: 32,
            disk: 32,
            longest_matched: 32,
            dp: [("0".into(), 16)].into(),
            trust: None,
        };
        let truth = BTreeMap::from([("7".to_owned(), row)]);
        let good = json!({"gpu": 16, "cpu": 32, "disk": 32, "longest_matched": 32, "dp": {"0": 16}});
        let with = |key: &str, value: Value| {
            let mut row = good.clone();
            row[key] = value;
            json!({ "7": row })
        };
        for (instances, want) in [
            (json!({"7": good}), None),
            (json!({"7": good, "8": good}), None),
            (with("trust", json!({"state": "degraded"})), None),
            (with("gpu", 32.into()), Some(false)),
            (with("dp", json!({"0": 16, "1": 0})), Some(false)),
            (json!({}), Some(false)),
        ] {
            let found = differences(&[1], &truth, &answer(instances.clone()));
            assert_eq!(found.first().map(Difference::is_admitted), want, "{instances}");
        }
        let mut doubtful = with("cpu", 16.into());
        doubtful["7"]["trust"] = json!({"state": "stale"});
        assert!(differences(&[1], &truth, &answer(doubtful))[0].is_admitted());
    }
}
