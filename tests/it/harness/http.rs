//! A blocking HTTP/1.1 client with full control over method, headers and body; one connection per request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A request as it goes out; the path is sent as it stands.
#[derive(Debug, Default, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) body: Option<&'a [u8]>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null when it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The stable word of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// One exchange.
///
/// # Errors
/// When the connection fails or the answer cannot be read.
pub(crate) fn exchange(address: SocketAddr, request: &Request<'_>) -> Result<Reply, String> {
    exchange_with(address, request, &[])
}

/// [`exchange`] with more headers.
///
/// # Errors
/// When the connection fails or the answer cannot be read.
pub(crate) fn exchange_with(
    address: SocketAddr,
    request: &Request<'_>,
    headers: &[(&str, &str)],
) -> Result<Reply, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let mut head = format!("{} {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n", request.method, request.path);
    if let Some(content_type) = request.content_type {
        head.push_str(&format!("Content-Type: {content_type}\r\n"));
    }
    for (key, value) in headers {
        head.push_str(&format!("{key}: {value}\r\n"));
    }
    let body = request.body.unwrap_or_default();
    if request.body.is_some() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    // A server that refuses a large body may stop reading it; its answer still counts.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut raw = Vec::new();
    let read = stream.read_to_end(&mut raw);
    parse(&raw, request.method == "HEAD").map_err(|error| format!("{error}; sent {sent:?}, read {read:?}"))
}

fn parse(raw: &[u8], is_head: bool) -> Result<Reply, String> {
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no end of headers")?;
    let head = std::str::from_utf8(&raw[..end]).map_err(|error| error.to_string())?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|word| word.parse().ok())
        .ok_or("no status line")?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let mut reply = Reply { status, headers, body: Vec::new() };
    if is_head {
        return Ok(reply);
    }
    let rest = &raw[end + 4..];
    if reply.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        reply.body = unchunk(rest)?;
    } else {
        let length = reply.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(rest.len());
        reply.body = rest.get(..length).ok_or("body shorter than its length")?.to_vec();
    }
    Ok(reply)
}

fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").ok_or("chunk without a size")?;
        let size = std::str::from_utf8(&rest[..end]).map_err(|error| error.to_string())?;
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            .map_err(|error| error.to_string())?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(rest.get(..size).ok_or("chunk cut short")?);
        rest = rest.get(size + 2..).ok_or("chunk without an end")?;
    }
}
