//! Bodies and query strings: limits, content types and the strict reading of JSON that all handlers share.
//!
//! JSON is read strictly: text after the value and bytes that are no UTF-8 are malformed (400); an array in place of
//! an object, a known key twice, or a wrong type is a wrong shape (422).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use tokio::time::{Instant, Sleep, sleep_until};

use super::error::Error;

/// Longest wait for the next piece of a body: a peer that is silent that long is gone.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);

/// Room made for a body before it arrives, at most: a claimed length alone costs next to nothing.
const PREALLOCATED_BYTES_MAX: usize = 1 << 16;

/// What is read and thrown away of a body over the limit, so that the client can read the answer instead of a reset.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// Form of a body that a route may accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// JSON text.
    Json,
    /// Little-endian numbers.
    Binary,
}

/// Form that the content type names; binary only where `binary_accepted`.
pub(crate) fn form(headers: &HeaderMap, binary_accepted: bool) -> Result<Form, Error> {
    let expected = if binary_accepted { "application/json or application/octet-stream" } else { "application/json" };
    let refused = Error::UnsupportedMediaType { expected };
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else {
        return Err(refused);
    };
    let essence = value.split(';').next().unwrap_or("").trim();
    let Some((kind, subtype)) = essence.split_once('/') else {
        return Err(refused);
    };
    if kind.eq_ignore_ascii_case("application") && subtype.eq_ignore_ascii_case("octet-stream") && binary_accepted {
        return Ok(Form::Binary);
    }
    let suffixed = subtype.len() > 5 && subtype.as_bytes()[subtype.len() - 5..].eq_ignore_ascii_case(b"+json");
    let plain = kind.eq_ignore_ascii_case("application") && subtype.eq_ignore_ascii_case("json");
    if plain || (suffixed && !kind.is_empty()) { Ok(Form::Json) } else { Err(refused) }
}

/// A body of at most so many bytes, piece by piece.
pub(crate) struct Pieces {
    body: Body,
    limit: usize,
    /// Bytes that came.
    arrived: usize,
    silence: Silence,
}

/// How long nothing has come. The timer is made at the first wait and set anew only when it runs out: arming one for
/// each piece costs as much as a small piece itself.
struct Silence {
    patience: Duration,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pieces {
    /// The pieces of `body`, which may be `limit` bytes long.
    pub(crate) fn new(body: Body, limit: usize) -> Self {
        let silence = Silence { patience: PIECE_TIMEOUT, since: None, timer: None };
        Self { body, limit, arrived: 0, silence }
    }

    /// Length of the body as its sender claims it, or as far as it is known.
    pub(crate) fn claimed(&self) -> usize {
        usize::try_from(self.body.size_hint().lower()).unwrap_or(usize::MAX).saturating_add(self.arrived)
    }

    /// True if no piece is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The next piece; none at the end. After an error the body is read no more.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.claimed() > self.limit {
            return self.refuse().await;
        }
        let piece = self.frame().await?;
        self.arrived += piece.as_ref().map_or(0, Bytes::len);
        if self.arrived > self.limit {
            drop(piece);
            return self.refuse().await;
        }
        Ok(piece)
    }

    /// All pieces. A body of one piece is not copied.
    pub(crate) async fn whole(mut self) -> Result<Bytes, Error> {
        let Some(first) = self.next().await? else {
            return Ok(Bytes::new());
        };
        if self.is_at_end() {
            return Ok(first);
        }
        let room = self.claimed().clamp(first.len(), PREALLOCATED_BYTES_MAX.max(first.len()));
        let mut whole = BytesMut::with_capacity(room);
        whole.extend_from_slice(&first);
        drop(first);
        while let Some(piece) = self.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Self { body, silence, .. } = self;
            let frame = poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(frame) => Poll::Ready(Some(frame)),
                Poll::Pending => silence.poll_timeout(cx).map(|()| None),
            });
            let frame = frame.await.ok_or(Error::RequestTimeout)?;
            silence.since = None;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::BrokenBody(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Reads on for a while, so that the client can read the answer.
    async fn refuse<T>(&mut self) -> Result<T, Error> {
        let mut discarded = 0;
        while discarded <= DISCARDED_BYTES_MAX
            && let Ok(Some(piece)) = self.frame().await
        {
            discarded += piece.len();
        }
        Err(Error::BodyTooLarge { limit: self.limit })
    }
}

impl Silence {
    /// Ready when nothing has come for too long; to be asked while nothing comes.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = *self.since.get_or_insert_with(Instant::now) + self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Error> {
    Pieces::new(body, limit).whole().await
}

/// Reads one JSON object of a known shape.
pub(crate) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let text = std::str::from_utf8(body).map_err(|error| Error::InvalidJson(error.to_string()))?;
    let is_object = text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{');
    let failure = if is_object {
        match serde_json::from_str::<T>(text) {
            Ok(value) => return Ok(value),
            Err(error) => error.to_string(),
        }
    } else {
        "expected an object".to_owned()
    };
    // A wrong shape may end the reading before a later fault of the text is seen: the text decides first.
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Err(Error::InvalidBody(failure)),
        Err(error) => Err(Error::InvalidJson(error.to_string())),
    }
}

/// For `#[serde(default, deserialize_with = "present")]`: the field may be absent, but not null.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Query parameters, decoded. Each may stand once.
#[derive(Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Reads a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, Error> {
        let mut params = Vec::<(String, String)>::new();
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (percent_decode(name)?, percent_decode(value)?);
            if params.iter().any(|(known, _)| *known == name) {
                return Err(Error::InvalidQuery(format!("duplicate field `{name}`")));
            }
            params.push((name, value));
        }
        Ok(Self(params))
    }

    /// Value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A parameter read by `parse`.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| Error::InvalidQuery(format!("bad value `{text}` of `{name}`")))
    }
}

fn percent_decode(text: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => match tail {
                [high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    bytes.push(hex_value(*high) << 4 | hex_value(*low));
                    rest = tail;
                }
                _ => bytes.push(b'%'),
            },
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).map_err(|_| Error::InvalidQuery(format!("`{text}` is not UTF-8")))
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Shape {
        a: u32,
        #[serde(default, deserialize_with = "present")]
        t: Option<String>,
    }

    fn code(body: &[u8]) -> &'static str {
        json::<Shape>(body).map_or_else(|error| error.status_and_code().1, |_| "ok")
    }

    #[test]
    fn json_is_read_strictly() {
        for (body, want) in [
            (&br#"{"a":1}"#[..], "ok"),
            (b" \n{\"a\":1, \"other\":[1,{}]} \t", "ok"),
            (br#"{"a":1} x"#, "invalid_json"),
            (br#"{"a":1}{"a":1}"#, "invalid_json"),
            (b"", "invalid_json"),
            (b"{", "invalid_json"),
            (b"[1", "invalid_json"),
            (b"[1]", "invalid_body"),
            (b"7", "invalid_body"),
            (br#"{"a":"x"}"#, "invalid_body"),
            (br#"{"a":"x""#, "invalid_json"),
            (br#"{"a":1,"a":2}"#, "invalid_body"),
            (br#"{}"#, "invalid_body"),
            (br#"{"a":1,"t":null}"#, "invalid_body"),
            (br#"{"a":1.0}"#, "invalid_body"),
            (b"{\"a\":1,\"other\":\"\xff\"}", "invalid_json"),
        ] {
            assert_eq!(code(body), want, "{}", String::from_utf8_lossy(body));
        }
        let shape = json::<Shape>(br#"{"a":3,"t":"x"}"#).unwrap();
        assert_eq!((shape.a, shape.t.as_deref()), (3, Some("x")));
    }

    #[test]
    fn content_types_are_judged_by_kind_and_suffix() {
        for (value, binary, want) in [
            (Some("application/json"), false, Some(Form::Json)),
            (Some("Application/JSON; charset=utf-8"), false, Some(Form::Json)),
            (Some("application/vnd.api+json"), false, Some(Form::Json)),
            (Some("text/plain"), false, None),
            (Some("json"), false, None),
            (Some("application/octet-stream"), true, Some(Form::Binary)),
            (Some("application/octet-stream"), false, None),
            (None, true, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            }
            assert_eq!(form(&headers, binary).ok(), want, "{value:?}");
        }
    }

    #[test]
    fn query_strings_are_decoded_and_each_name_stands_once() {
        let params = Params::parse(Some("model_name=%D0%BC%2F+a&x=&y")).unwrap();
        assert_eq!(params.get("model_name"), Some("м/ a"));
        assert_eq!((params.get("x"), params.get("y"), params.get("z")), (Some(""), Some(""), None));
        for query in ["a=1&a=2", "a=1&%61=2", "a=%ff"] {
            assert!(matches!(Params::parse(Some(query)), Err(Error::InvalidQuery(_))), "{query}");
        }
        assert!(Params::parse(Some("n=x")).unwrap().parsed::<u32>("n").is_err());
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_and_one_at_the_limit_is_read() {
        assert_eq!(read(Body::from("abcd"), 4).await.unwrap(), "abcd");
        assert!(matches!(read(Body::from("abcde"), 4).await, Err(Error::BodyTooLarge { limit: 4 })));
        let pieces = |texts: &'static [&'static str]| {
            Body::from_stream(futures::stream::iter(texts.iter().map(|text| Ok::<_, std::io::Error>(*text))))
        };
        assert_eq!(read(pieces(&["ab", "cd"]), 4).await.unwrap(), "abcd");
        assert!(matches!(read(pieces(&["ab", "cde"]), 4).await, Err(Error::BodyTooLarge { .. })));
    }

    #[tokio::test]
    async fn a_body_that_stops_coming_is_given_up() {
        let silent = futures::stream::iter(["ab", "c"].map(Ok::<_, std::io::Error>)).chain(futures::stream::pending());
        let mut pieces = Pieces::new(Body::from_stream(silent), 4);
        pieces.silence.patience = Duration::from_millis(1);
        assert_eq!(pieces.next().await.unwrap().unwrap(), "ab");
        assert_eq!(pieces.next().await.unwrap().unwrap(), "c");
        assert!(matches!(pieces.next().await, Err(Error::RequestTimeout)));
    }

    #[tokio::test]
    async fn a_timer_that_runs_out_after_a_piece_came_is_set_anew() {
        let mut silence = Silence { patience: Duration::ZERO, since: None, timer: None };
        poll_fn(|cx| silence.poll_timeout(cx)).await;
        // A piece came, and the next wait is longer than the timer, which has run out.
        (silence.patience, silence.since) = (Duration::from_secs(3600), None);
        let asked = poll_fn(|cx| Poll::Ready(silence.poll_timeout(cx))).await;
        assert!(asked.is_pending());
    }
}
