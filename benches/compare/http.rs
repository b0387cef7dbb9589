//! A blocking HTTP/1.1 client on one kept connection: requests are formed once, answers have a `Content-Length`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Longest wait for a piece of an answer.
const PIECE_MAX: Duration = Duration::from_secs(120);
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// First size of the answer's buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// Content type of a binary body.
const BINARY: &str = "application/octet-stream";

/// A request as it is written to the socket.
#[derive(Debug, Clone)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// Without a body.
    pub(crate) fn get(path: &str) -> Self {
        Self(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes())
    }

    /// With a JSON body.
    pub(crate) fn json(path: &str, body: &str) -> Self {
        Self::post(path, "application/json", body.as_bytes())
    }

    /// With a binary body.
    pub(crate) fn binary(path: &str, body: &[u8]) -> Self {
        Self::post(path, BINARY, body)
    }

    /// Its length on the wire.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    fn post(path: &str, content_type: &str, body: &[u8]) -> Self {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        Self(bytes)
    }
}

/// An answer; the body lies in the client's buffer.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

/// One connection.
pub(crate) struct Client {
    address: SocketAddr,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        Ok(Self { address, stream: connect(address)?, buffer: vec![0; BUFFER_BYTES] })
    }

    /// One exchange. A connection that was closed meanwhile, as servers do with idle ones, is replaced once.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Reply<'_>> {
        let mut filled = self.send(request).unwrap_or(0);
        if filled == 0 {
            self.stream = connect(self.address)?;
            filled = self.send(request)?;
            ensure!(filled > 0, "the service closed the connection");
        }
        let (status, body_at, end) = loop {
            if let Some(head) = head(&self.buffer[..filled])? {
                break head;
            }
            filled += self.read(filled)?;
        };
        if end > self.buffer.len() {
            self.buffer.resize(end, 0);
        }
        while filled < end {
            filled += self.read(filled)?;
        }
        Ok(Reply { status, body: &self.buffer[body_at..end] })
    }

    /// Writes the request and reads the beginning of the answer; 0 if the connection ends in place of it.
    fn send(&mut self, request: &Request) -> Result<usize> {
        self.stream.write_all(&request.0)?;
        Ok(self.stream.read(&mut self.buffer)?)
    }

    /// The body of an exchange that must succeed.
    pub(crate) fn expect(&mut self, request: &Request) -> Result<&[u8]> {
        let reply = self.call(request)?;
        if !(200..300).contains(&reply.status) {
            let text = String::from_utf8_lossy(&reply.body[..reply.body.len().min(400)]).into_owned();
            bail!("status {}: {text}", reply.status);
        }
        Ok(reply.body)
    }

    fn read(&mut self, filled: usize) -> Result<usize> {
        match self.stream.read(&mut self.buffer[filled..]) {
            Ok(0) => bail!("the service closed the connection, or its head of an answer is too long"),
            Ok(count) => Ok(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PIECE_MAX))?;
    stream.set_write_timeout(Some(PIECE_MAX))?;
    Ok(stream)
}

/// Status, begin and end of the body, once the head is complete.
fn head(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..end])?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?.parse()?;
    let is_length = |name: &str| name.eq_ignore_ascii_case("content-length");
    let length = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| is_length(name));
    let length: usize = length.context("no Content-Length")?.1.trim().parse()?;
    Ok(Some((status, end + 4, end + 4 + length)))
}

/// Reads a long answer on a connection of its own and throws it away. Returns its length and its last byte.
///
/// HTTP/1.0 is spoken, so that the body comes without chunks.
pub(crate) fn download(address: SocketAddr, path: &str) -> Result<(u64, u8)> {
    let mut stream = connect(address)?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    let body_at = loop {
        let count = stream.read(&mut buffer[filled..])?;
        filled += count;
        if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if count == 0 {
            bail!("{path}: no answer");
        }
    };
    let line = String::from_utf8_lossy(&buffer[..body_at]).lines().next().unwrap_or_default().to_owned();
    if line.split(' ').nth(1) != Some("200") {
        bail!("{path}: {line}");
    }
    let mut bytes = (filled - body_at) as u64;
    let mut last = buffer[filled - 1];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok((bytes, last));
        }
        bytes += count as u64;
        last = buffer[count - 1];
    }
}
