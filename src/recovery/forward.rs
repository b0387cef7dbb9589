//! Telling the other replicas of a registration by hand, once.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;

use crate::recovery::Replica;
use crate::recovery::client::http_client;

/// Marks a request that comes from a replica: it is not sent on.
pub const FORWARDED_HEADER: &str = "x-kvindexer-forwarded";

/// Each peer has so long: who registers waits for it.
const LIMIT: Duration = Duration::from_secs(2);

/// Peers that are told at once.
const AT_ONCE: usize = 32;

/// Bytes of an error's text that are passed on.
const TEXT_MAX: usize = 300;

/// What each peer answered: `ok`, or why not. By address.
pub type Outcomes = BTreeMap<String, String>;

/// Sends registrations on. Cheap to clone.
#[derive(Clone)]
pub struct Forwarder {
    replica: Replica,
    client: reqwest::Client,
}

impl Forwarder {
    /// Sends to the peers of `replica`.
    #[must_use]
    pub fn new(replica: Replica) -> Self {
        Self { replica, client: http_client(LIMIT) }
    }

    /// Posts `body` to `path` (`/register` or `/unregister`) of every peer at once; each has 2 s.
    pub async fn forward(&self, path: &'static str, body: Bytes) -> Outcomes {
        let tell = |url: String| {
            let body = body.clone();
            async move {
                let outcome = tokio::time::timeout(LIMIT, self.tell(&url, path, body)).await;
                (url, outcome.unwrap_or_else(|_| format!("no answer within {} s", LIMIT.as_secs())))
            }
        };
        // A replica may have come back elsewhere since the last comparison.
        self.replica.look_up_peers().await;
        stream::iter(self.replica.other_urls()).map(tell).buffer_unordered(AT_ONCE).collect().await
    }

    async fn tell(&self, url: &str, path: &str, body: Bytes) -> String {
        let request = self.client.post(format!("{url}{path}"));
        let request = request.header(FORWARDED_HEADER, self.replica.id()).header("content-type", "application/json");
        match request.body(body).send().await {
            Ok(response) if response.status().is_success() => "ok".to_owned(),
            Ok(response) => {
                let status = response.status().as_u16();
                let text = start_of(response).await;
                format!("{status} {text}").trim_end().to_owned()
            }
            Err(error) => super::client::cause(&error),
        }
    }
}

/// The begin of an answer, of which no more is read.
async fn start_of(mut response: reqwest::Response) -> String {
    let mut text = Vec::new();
    while text.len() < TEXT_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        text.extend_from_slice(&chunk[..chunk.len().min(TEXT_MAX - text.len())]);
    }
    String::from_utf8_lossy(&text).into_owned()
}
