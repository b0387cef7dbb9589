//! A running replica as a client of its HTTP API sees it.

use std::time::Duration;

use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use crate::ids::{IndexKey, InstanceId};
use crate::image::StreamImage;
use crate::wire::digest::Digest;
use crate::wire::snapshot::Error as SnapshotError;
use crate::wire::snapshot::{Decoder, Item};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A replica that sends nothing for so long has failed. A comparison with an engine's replay takes its time.
const SILENCE: Duration = Duration::from_secs(60);

/// Snapshots are two at a time: a busy replica is asked again so often, after its `Retry-After`.
const BUSY_ATTEMPTS: usize = 20;

/// Wait of a busy replica.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Why a replica's answer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No URL.
    #[error("`{0}` is no address like http://host:port")]
    Address(String),
    /// No HTTP answer, or one of another form.
    #[error("failed to ask {url}")]
    Http {
        /// Whom.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It refused.
    #[error("{url} answered {status}: {body}")]
    Refused {
        /// Who.
        url: String,
        /// Status.
        status: StatusCode,
        /// Body.
        body: String,
    },
    /// Its snapshot is none.
    #[error("the snapshot of {url} cannot be read")]
    Snapshot {
        /// Whose.
        url: String,
        /// Why.
        #[source]
        source: SnapshotError,
    },
}

/// One replica.
#[derive(Debug, Clone)]
pub struct Replica {
    client: Client,
    base: Url,
}

impl Replica {
    /// The replica at an address; `http://` may be left out, and a slash at the end is harmless.
    ///
    /// # Errors
    /// No address.
    pub fn at(address: &str) -> Result<Self, Error> {
        let refused = || Error::Address(address.to_owned());
        let full = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        let mut base = Url::parse(&full).map_err(|_| refused())?;
        if !base.has_host() || base.cannot_be_a_base() {
            return Err(refused());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(SILENCE).no_proxy().build();
        Ok(Self { client: client.map_err(|source| Error::Http { url: address.to_owned(), source })?, base })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        self.base.as_str()
    }

    fn join(&self, path: &str) -> Url {
        self.base.join(path).expect("plain words extend every base")
    }

    fn failed(&self) -> impl Fn(reqwest::Error) -> Error + '_ {
        |source| Error::Http { url: self.url().to_owned(), source }
    }

    async fn accept(&self, response: Response) -> Result<Response, Error> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.text().await.unwrap_or_default();
        Err(Error::Refused { url: self.url().to_owned(), status, body })
    }

    /// `GET /digest`.
    ///
    /// # Errors
    /// No answer, or one of another form.
    pub async fn digest(&self) -> Result<Digest, Error> {
        let response = self.client.get(self.join("digest")).send().await.map_err(self.failed())?;
        self.accept(response).await?.json().await.map_err(self.failed())
    }

    /// `POST /verify`.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn verify(&self, body: &Value) -> Result<Value, Error> {
        let response = self.client.post(self.join("verify")).json(body).send().await.map_err(self.failed())?;
        self.accept(response).await?.json().await.map_err(self.failed())
    }

    /// All streams of an instance, whole and verified.
    ///
    /// # Errors
    /// No answer, a refusal, or bytes that are no snapshot.
    pub async fn streams(&self, key: &IndexKey, instance: &InstanceId) -> Result<Vec<StreamImage>, Error> {
        let mut url = self.join("snapshot");
        url.query_pairs_mut()
            .append_pair("model_name", key.model.as_str())
            .append_pair("tenant_id", key.tenant.as_str())
            .append_pair("instance_id", &instance.to_string());
        let mut attempts = 0;
        let mut response = loop {
            let response = self.client.get(url.clone()).send().await.map_err(self.failed())?;
            attempts += 1;
            if response.status() != StatusCode::SERVICE_UNAVAILABLE || attempts == BUSY_ATTEMPTS {
                break self.accept(response).await?;
            }
            tokio::time::sleep(BUSY_WAIT).await;
        };
        let broken = |source| Error::Snapshot { url: self.url().to_owned(), source };
        let (mut decoder, mut streams) = (Decoder::new(), Vec::new());
        while let Some(bytes) = response.chunk().await.map_err(self.failed())? {
            decoder.push(&bytes);
            while let Some(item) = decoder.next_item().map_err(broken)? {
                if let Item::Stream(stream) = item {
                    streams.push(*stream);
                }
            }
        }
        decoder.finish().map_err(broken)?;
        Ok(streams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_scheme_and_slash() {
        for (address, want) in [
            ("http://h:1", Some("http://h:1/digest")),
            ("http://h:1/", Some("http://h:1/digest")),
            ("h:1", Some("http://h:1/digest")),
            ("[::1]:1", Some("http://[::1]:1/digest")),
            ("https://h/kv", Some("https://h/kv/digest")),
            ("", None),
            ("http://", None),
            ("no spaces please", None),
        ] {
            let found = Replica::at(address).ok().map(|replica| replica.join("digest").to_string());
            assert_eq!(found.as_deref(), want, "{address}");
        }
    }
}
