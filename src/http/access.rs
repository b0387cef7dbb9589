//! The access log: one line of JSON per request, in a file that can be moved away and opened anew.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use axum::http::HeaderName;
use parking_lot::Mutex;
use serde::Serialize;

/// An open access log.
pub struct AccessLog {
    path: PathBuf,
    trace_id_header: Option<HeaderName>,
    /// None writes to stderr.
    file: Mutex<Option<File>>,
}

/// What is known of a request before it is answered.
pub(super) struct Entry {
    method: String,
    path: String,
    trace_id: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    method: &'a str,
    path: &'a str,
    status: u16,
    duration_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
}

impl AccessLog {
    /// Opens `path` for appending; `-` is stderr.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, trace_id_header: Option<HeaderName>) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), trace_id_header, file: Mutex::new(append_to(path)?) })
    }

    /// Opens the file anew; the old one stays in use if that fails.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn reopen(&self) -> io::Result<()> {
        let file = append_to(&self.path)?;
        *self.file.lock() = file;
        Ok(())
    }

    pub(super) fn begin(&self, request: &Request) -> Entry {
        let trace_id = self.trace_id_header.as_ref().and_then(|name| request.headers().get(name));
        Entry {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            trace_id: trace_id.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
        }
    }

    pub(super) fn end(&self, entry: Entry, status: u16, seconds: f64) {
        let line = Line {
            time_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            method: &entry.method,
            path: &entry.path,
            status,
            duration_us: (seconds * 1e6) as u64,
            trace_id: entry.trace_id.as_deref(),
        };
        let mut text = serde_json::to_vec(&line).expect("a line of plain fields can be written");
        text.push(b'\n');
        let written = match &mut *self.file.lock() {
            Some(file) => file.write_all(&text),
            None => io::stderr().write_all(&text),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "access log not written");
        }
    }
}

fn append_to(path: &Path) -> io::Result<Option<File>> {
    if path == Path::new("-") {
        return Ok(None);
    }
    OpenOptions::new().create(true).append(true).open(path).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn lines_are_json_and_go_on_in_a_fresh_file_after_reopening() {
        let name = format!("kvindexer-access-{}-{:x}", std::process::id(), fastrand::u64(..));
        let (path, moved) = (std::env::temp_dir().join(&name), std::env::temp_dir().join(format!("{name}.1")));
        let log = AccessLog::open(&path, Some(HeaderName::from_static("x-trace"))).unwrap();
        let request = Request::builder().uri("/query?secret=1").header("x-trace", "t\"1").body(Body::empty()).unwrap();
        log.end(log.begin(&request), 200, 0.001);
        std::fs::rename(&path, &moved).unwrap();
        log.reopen().unwrap();
        log.end(log.begin(&request), 404, 0.002);
        for (path, status) in [(&moved, 200), (&path, 404)] {
            let text = std::fs::read_to_string(path).unwrap();
            std::fs::remove_file(path).unwrap();
            let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
            assert_eq!(
                (&line["status"], &line["path"], &line["trace_id"]),
                (&status.into(), &"/query".into(), &"t\"1".into())
            );
        }
    }
}
