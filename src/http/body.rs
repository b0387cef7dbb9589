//! Bodies and query strings: limits, content types and the strict reading of JSON that all handlers share.
//!
//! JSON is read strictly: text after the value and bytes that are no UTF-8 are malformed (400); an array in place of
//! an object, a known key twice, or a wrong type is a wrong shape (422).

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

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

/// Reads a whole body of at most `limit` bytes. A body of one piece is not copied.
pub(crate) async fn read(mut body: Body, limit: usize) -> Result<Bytes, Error> {
    let claimed = body.size_hint().lower();
    if claimed > limit as u64 {
        discard(body, DISCARDED_BYTES_MAX).await;
        return Err(Error::BodyTooLarge { limit });
    }
    let Some(first) = next_piece(&mut body).await? else {
        return Ok(Bytes::new());
    };
    if first.len() > limit {
        discard(body, DISCARDED_BYTES_MAX).await;
        return Err(Error::BodyTooLarge { limit });
    }
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole =
        BytesMut::with_capacity((claimed as usize).clamp(first.len(), PREALLOCATED_BYTES_MAX.max(first.len())));
    whole.extend_from_slice(&first);
    while let Some(piece) = next_piece(&mut body).await? {
        if whole.len() + piece.len() > limit {
            drop(whole);
            discard(body, DISCARDED_BYTES_MAX).await;
            return Err(Error::BodyTooLarge { limit });
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, Error> {
    loop {
        match tokio::time::timeout(PIECE_TIMEOUT, body.frame()).await {
            Err(_) => return Err(Error::RequestTimeout),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(Error::BrokenBody(error.to_string())),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn discard(mut body: Body, bytes_max: usize) {
    let mut seen = 0;
    while let Ok(Some(piece)) = next_piece(&mut body).await {
        seen += piece.len();
        if seen > bytes_max {
            return;
        }
    }
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
}
