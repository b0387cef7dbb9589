//! Asks peers: `/digest`, `/snapshot`, `/dump`. Every wait has a limit; a state as a whole has none.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode, Url};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::recovery::Times;
use crate::recovery::load::{Feed, LoadError};
use crate::wire::digest::Digest;

/// Longest `/digest` that is read: a thousand streams with all their history take about 4 MB.
const DIGEST_BYTES_MAX: usize = 64 << 20;

/// Peers that are asked at once.
const DIGESTS_AT_ONCE: usize = 64;

/// Pieces of a state between the socket and the thread that reads it.
const PIECES_WAITING: usize = 8;

/// Wait for a busy peer that does not say how long.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Why a peer gave nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// It has no such path.
    #[error("it has no such path")]
    NotThere,
    /// It asks to come again.
    #[error("it is busy")]
    Busy {
        /// Not before this.
        after: Duration,
    },
    /// It refuses.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// It sent no byte for too long.
    #[error("no byte for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// The address is none.
    #[error("`{0}` is no address")]
    Address(String),
    /// The connection failed.
    #[error("{}", cause(.0))]
    Http(#[from] reqwest::Error),
    /// What it sent is no state, or not a whole one.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Error {
    /// It had begun to give a state.
    pub(super) fn had_state(&self) -> bool {
        matches!(self, Self::Load(error) if error.had_state)
    }
}

/// A client that never waits longer for a connection, and speaks to nobody in between.
pub(super) fn http_client(connect: Duration) -> reqwest::Client {
    let client = reqwest::Client::builder().connect_timeout(connect).no_proxy().build();
    client.expect("a client without TLS and proxies needs nothing that could be missing")
}

/// The innermost reason: the outer ones only say that something failed.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Asks peers.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    silence: Duration,
}

impl Client {
    /// With the limits of `times`.
    pub(super) fn new(times: &Times) -> Self {
        Self { http: http_client(times.connect), silence: times.silence }
    }

    /// `base` with a path, and parameters.
    pub(super) fn url(base: &str, path: &str, parameters: &[(&str, &str)]) -> Result<Url, Error> {
        let mut url = Url::parse(&format!("{base}{path}")).map_err(|_| Error::Address(base.to_owned()))?;
        if !parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(parameters);
        }
        Ok(url)
    }

    /// The digest of a peer; `NotThere` for whoever speaks HTTP and has none.
    pub(super) async fn digest(&self, base: &str) -> Result<Digest, Error> {
        let mut response = match self.get(Self::url(base, "/digest", &[])?).await {
            Err(Error::Status(_)) => return Err(Error::NotThere),
            other => other?,
        };
        let mut body = Vec::new();
        while let Some(piece) = self.piece(&mut response).await? {
            if body.len() + piece.len() > DIGEST_BYTES_MAX {
                return Err(Error::NotThere);
            }
            body.extend_from_slice(&piece);
        }
        serde_json::from_slice(&body).map_err(|_| Error::NotThere)
    }

    /// The digests of several peers at once. Once one of them is `enough`, the others are waited for no longer than `soft`
    /// in all; otherwise as long as a peer may be silent.
    pub(super) async fn digests(
        &self,
        urls: impl IntoIterator<Item = String>,
        soft: Duration,
        enough: impl Fn(&Digest) -> bool,
    ) -> BTreeMap<String, Result<Digest, Error>> {
        let mut answers = BTreeMap::new();
        let ask = |url: String| async move {
            let digest = timeout(self.silence, self.digest(&url)).await;
            (url, digest.unwrap_or(Err(Error::Silent(self.silence))))
        };
        let soft = Instant::now() + soft;
        let hard = Instant::now() + self.silence;
        let urls: Vec<String> = urls.into_iter().collect();
        let mut asking = stream::iter(urls.clone()).map(ask).buffer_unordered(DIGESTS_AT_ONCE);
        loop {
            let found = answers.values().flatten().any(&enough);
            match timeout_at(if found { soft } else { hard }, asking.next()).await {
                Ok(Some((url, answer))) => drop(answers.insert(url, answer)),
                Ok(None) => break,
                Err(_) => {
                    let silent = urls.iter().filter(|url| !answers.contains_key(*url)).cloned().collect::<Vec<_>>();
                    answers.extend(silent.into_iter().map(|url| (url, Err(Error::Silent(self.silence)))));
                    break;
                }
            }
        }
        answers
    }

    /// Reads a state on a thread that may block, piece by piece. `read` is told of every piece.
    pub(super) async fn load<T: Send + 'static>(
        &self,
        url: Url,
        mut read: impl FnMut(u64),
        consume: impl FnOnce(Feed) -> Result<T, LoadError> + Send + 'static,
    ) -> Result<T, Error> {
        let mut response = self.get(url).await?;
        let (pieces, feed) = mpsc::channel::<Bytes>(PIECES_WAITING);
        // If this future is dropped, the channel ends and so does the thread.
        let consumer = spawn_blocking(move || consume(Feed::new(feed)));
        let broken = loop {
            match self.piece(&mut response).await {
                Ok(Some(piece)) => {
                    read(piece.len() as u64);
                    if pieces.send(piece).await.is_err() {
                        break None; // It has seen enough, and says why below.
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        drop(pieces);
        let outcome = match consumer.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => std::future::pending().await, // Only when the runtime is being dropped, and we with it.
        };
        match (broken, outcome) {
            (None, outcome) => outcome.map_err(Error::Load),
            (Some(error), Ok(_)) => Err(error),
            // The state ends because the connection did: that is the reason to name, and it tells whether there was one.
            (Some(error), Err(load)) if load.had_state => {
                tracing::warn!(%error, "a peer was cut off while it gave its state");
                Err(Error::Load(load))
            }
            (Some(error), Err(_)) => Err(error),
        }
    }

    async fn get(&self, url: Url) -> Result<Response, Error> {
        let response = timeout(self.silence, self.http.get(url).send()).await;
        let response = response.map_err(|_| Error::Silent(self.silence))??;
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                Err(Error::NotThere)
            }
            StatusCode::SERVICE_UNAVAILABLE => Err(Error::Busy { after: retry_after(&response) }),
            status => Err(Error::Status(status)),
        }
    }

    async fn piece(&self, response: &mut Response) -> Result<Option<Bytes>, Error> {
        let piece = timeout(self.silence, response.chunk()).await;
        Ok(piece.map_err(|_| Error::Silent(self.silence))??)
    }
}

fn retry_after(response: &Response) -> Duration {
    let text = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.trim().parse().ok()).map_or(BUSY_WAIT, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_escaped_and_no_slash_is_doubled() {
        let url = Client::url("http://a:1", "/snapshot", &[("model_name", "org/llama:8b"), ("tenant_id", "a&b")]);
        assert_eq!(url.unwrap().as_str(), "http://a:1/snapshot?model_name=org%2Fllama%3A8b&tenant_id=a%26b");
        assert!(Client::url("http://[", "/dump", &[]).is_err());
    }
}
