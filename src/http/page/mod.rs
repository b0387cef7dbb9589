//! The built-in page: plain HTML without scripts and without anything from elsewhere.
//!
//! It gets values and returns text; every text from outside is escaped. It knows no other room.

use std::fmt::{self, Write as _};

/// All that the page shows.
pub(super) struct View {
    pub(super) version: &'static str,
    /// Empty when ready.
    pub(super) not_ready: Vec<String>,
    pub(super) indexes: Vec<IndexRow>,
    pub(super) workers: Vec<WorkerRow>,
    /// With those that are not shown.
    pub(super) workers_total: usize,
    pub(super) peers: Vec<String>,
    pub(super) paths: Vec<&'static str>,
}

/// One index.
pub(super) struct IndexRow {
    pub(super) model: String,
    pub(super) tenant: String,
    pub(super) block_size: u32,
    pub(super) ranks: u64,
    pub(super) held_blocks: u64,
    pub(super) content_blocks: u64,
}

/// One rank of a worker.
pub(super) struct WorkerRow {
    pub(super) instance: String,
    pub(super) rank: u32,
    pub(super) model: String,
    pub(super) tenant: String,
    pub(super) source: &'static str,
    pub(super) endpoint: String,
    pub(super) status: &'static str,
    /// `exact`, `degraded` or `stale`.
    pub(super) trust: &'static str,
    pub(super) reasons: Vec<String>,
    pub(super) last_error: Option<String>,
    pub(super) last_seq: Option<u64>,
    /// Device, host, disk, external.
    pub(super) blocks: [u64; 4],
    pub(super) gaps: u64,
    pub(super) restarts: u64,
}

/// Paths that answer a plain GET, and so can be links.
const LINKS: [&str; 8] = ["/health", "/ready", "/workers", "/dump", "/digest", "/peers", "/metrics", "/openapi.json"];

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1a1a1a;background:#fff}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}\
th{font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}\
.exact{color:#0a6b2c}.degraded{color:#8a5300}.stale{color:#a11212}.note{color:#555}\
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}th,td{border-color:#3a3a3a}a{color:#8ab4f8}.exact{color:#6fd08c}.degraded{color:#f0b35a}.stale{color:#ff8a80}.note{color:#aaa}}";

/// Text with the five special characters of HTML replaced.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// The whole page.
pub(super) fn render(view: &View) -> String {
    let mut out = String::with_capacity(4096 + view.workers.len() * 512);
    write_page(&mut out, view).expect("writing into memory cannot fail");
    out
}

fn write_page(out: &mut String, view: &View) -> fmt::Result {
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>kvindexer</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>kvindexer</h1>\n<p>Version {}. ",
        Escaped(view.version)
    )?;
    if view.not_ready.is_empty() {
        out.push_str("<strong class=\"exact\">Ready.</strong></p>\n");
    } else {
        writeln!(out, "<strong class=\"stale\">Not ready:</strong> {}</p>", Escaped(&view.not_ready.join("; ")))?;
    }
    indexes(out, &view.indexes)?;
    workers(out, view)?;
    if !view.peers.is_empty() {
        out.push_str("<h2>Peers</h2>\n<ul>\n");
        for url in &view.peers {
            writeln!(out, "<li><code>{}</code></li>", Escaped(url))?;
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h2>API</h2>\n<ul>\n");
    for path in &view.paths {
        if LINKS.contains(path) {
            writeln!(out, "<li><a href=\"{path}\"><code>{path}</code></a></li>")?;
        } else if *path != "/" {
            writeln!(out, "<li><code>POST {path}</code></li>")?;
        }
    }
    out.push_str("</ul>\n</main>\n</body>\n</html>\n");
    Ok(())
}

fn head(out: &mut String, columns: &[(&str, bool)]) -> fmt::Result {
    out.push_str("<div class=\"scroll\">\n<table>\n<thead><tr>");
    for (name, number) in columns {
        write!(out, "<th scope=\"col\"{}>{name}</th>", if *number { " class=\"n\"" } else { "" })?;
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    Ok(())
}

const TABLE_END: &str = "</tbody>\n</table>\n</div>\n";

fn indexes(out: &mut String, rows: &[IndexRow]) -> fmt::Result {
    out.push_str("<h2>Indexes</h2>\n");
    if rows.is_empty() {
        out.push_str("<p class=\"note\">None yet: the first registration of a model makes one.</p>\n");
        return Ok(());
    }
    head(
        out,
        &[
            ("Model", false),
            ("Tenant", false),
            ("Block size", true),
            ("Ranks", true),
            ("Blocks held", true),
            ("Distinct blocks", true),
        ],
    )?;
    for row in rows {
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            Escaped(&row.model),
            Escaped(&row.tenant),
            row.block_size,
            row.ranks,
            row.held_blocks,
            row.content_blocks
        )?;
    }
    out.push_str(TABLE_END);
    Ok(())
}

fn workers(out: &mut String, view: &View) -> fmt::Result {
    out.push_str("<h2>Workers</h2>\n");
    if view.workers.is_empty() {
        out.push_str("<p class=\"note\">None yet: <code>POST /register</code> adds one.</p>\n");
        return Ok(());
    }
    if view.workers_total > view.workers.len() {
        writeln!(
            out,
            "<p class=\"note\">{} of {} ranks, troubled ones first; <a href=\"/workers\">/workers</a> has all.</p>",
            view.workers.len(),
            view.workers_total
        )?;
    }
    head(
        out,
        &[
            ("Instance", false),
            ("Rank", true),
            ("Model", false),
            ("Tenant", false),
            ("Source", false),
            ("Endpoint", false),
            ("Status", false),
            ("Trust", false),
            ("Last number", true),
            ("Device", true),
            ("Host", true),
            ("Disk", true),
            ("External", true),
            ("Gaps", true),
            ("Restarts", true),
        ],
    )?;
    for row in &view.workers {
        worker(out, row)?;
    }
    out.push_str(TABLE_END);
    Ok(())
}

fn worker(out: &mut String, row: &WorkerRow) -> fmt::Result {
    write!(
        out,
        "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td><td><code>{}</code></td><td>{}",
        Escaped(&row.instance),
        row.rank,
        Escaped(&row.model),
        Escaped(&row.tenant),
        Escaped(row.source),
        Escaped(&row.endpoint),
        Escaped(row.status)
    )?;
    if let Some(error) = &row.last_error {
        write!(out, "<br><span class=\"note\">{}</span>", Escaped(error))?;
    }
    write!(out, "</td><td><strong class=\"{0}\">{0}</strong>", Escaped(row.trust))?;
    if !row.reasons.is_empty() {
        write!(out, "<br><span class=\"note\">{}</span>", Escaped(&row.reasons.join(", ")))?;
    }
    let last = row.last_seq.map_or_else(|| "\u{2013}".to_owned(), |seq| seq.to_string());
    write!(out, "</td><td class=\"n\">{last}</td>")?;
    for number in row.blocks.into_iter().chain([row.gaps, row.restarts]) {
        write!(out, "<td class=\"n\">{number}</td>")?;
    }
    out.push_str("</tr>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(text: &str) -> View {
        View {
            version: "1",
            not_ready: Vec::new(),
            indexes: vec![IndexRow {
                model: text.to_owned(),
                tenant: text.to_owned(),
                block_size: 4,
                ranks: 1,
                held_blocks: 2,
                content_blocks: 2,
            }],
            workers: vec![WorkerRow {
                instance: text.to_owned(),
                rank: 3,
                model: text.to_owned(),
                tenant: text.to_owned(),
                source: "zmq",
                endpoint: text.to_owned(),
                status: "pending",
                trust: "degraded",
                reasons: vec!["gap".to_owned(), text.to_owned()],
                last_error: Some(text.to_owned()),
                last_seq: None,
                blocks: [1, 2, 3, 4],
                gaps: 5,
                restarts: 6,
            }],
            workers_total: 2,
            peers: vec![text.to_owned()],
            paths: vec!["/", "/query", "/workers"],
        }
    }

    /// Every element that is opened is closed, in order; the few that have no end are known.
    #[track_caller]
    fn check_nesting(html: &str) {
        let mut open = Vec::new();
        for piece in html.split('<').skip(1) {
            let tag = piece.split('>').next().unwrap();
            let name: String =
                tag.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '/' || *c == '!').collect();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop().as_deref(), Some(name), "</{name}>"),
                None if ["!DOCTYPE", "meta", "br"].contains(&name.as_str()) => {}
                None => open.push(name),
            }
        }
        assert_eq!(open, Vec::<String>::new());
    }

    #[test]
    fn every_text_from_outside_is_escaped_and_elements_nest() {
        let evil = "<script>alert('x')</script>\"&";
        let html = render(&view(evil));
        assert!(!html.contains("<script") && !html.contains("('x')"), "{html}");
        assert_eq!(html.matches("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;").count(), 9);
        check_nesting(&html);
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let html = render(&view("m"));
        for word in ["http:", "https:", "//", "<script", "<link", "<img", "@import", "url("] {
            assert!(!html.contains(word), "{word}");
        }
    }

    #[test]
    fn an_empty_service_says_what_to_do() {
        let empty = View {
            indexes: Vec::new(),
            workers: Vec::new(),
            workers_total: 0,
            not_ready: vec!["recovery <1>".to_owned()],
            ..view("m")
        };
        let html = render(&empty);
        assert!(html.contains("POST /register") && html.contains("Not ready:</strong> recovery &lt;1&gt;"), "{html}");
        check_nesting(&html);
    }
}
