//! Documents as the reference writes them, as they may look, and as they must not.

use std::fmt::Write as _;

use super::*;

/// One line per call, in order.
#[derive(Default)]
struct Lines(String);

impl Sink for Lines {
    fn begin(&mut self, block_size: BlockSize) {
        writeln!(self.0, "begin {block_size}").unwrap();
    }
    fn event(&mut self, event: Event) {
        let Event { owner, tier, data } = event;
        let word = tier.as_str();
        let data = match data {
            Data::Stored { parent, blocks } => {
                let parent = parent.map_or("root".to_owned(), |parent| parent.0.to_string());
                let blocks: Vec<_> = blocks.iter().map(|(hash, local)| format!("{}={}", hash.0, local.0)).collect();
                format!("{parent}: {}", blocks.join(" "))
            }
            Data::Removed(hashes) => format!("without {:?}", hashes.iter().map(|hash| hash.0).collect::<Vec<_>>()),
            Data::Cleared => "cleared".to_owned(),
        };
        writeln!(self.0, "{owner} {word} {data}").unwrap();
    }
    fn end(&mut self, key: IndexKey) {
        writeln!(self.0, "end {} of {}", key.tenant, key.model).unwrap();
    }
}

fn read_text(text: &str, known: &[IndexKey]) -> Result<String, String> {
    let mut lines = Lines::default();
    read(text.as_bytes(), known, &mut lines).map_err(|error| error.to_string())?;
    Ok(lines.0)
}

#[track_caller]
fn check(text: &str, want: &str) {
    assert_eq!(read_text(text, &[]).as_deref(), Ok(want));
}

#[track_caller]
fn refused(text: &str, why: &str) {
    let error = read_text(text, &[]).expect_err("it must be refused");
    assert!(error.contains(why), "{error}");
}

#[test]
fn the_reference_s_shapes_are_read() {
    check(
        r#"{"m:t": {"block_size": 4, "events": [
            {"worker_id": 1, "storage_tier": "device", "event": {"event_id": 0, "data": {"stored": {"parent_hash": null,
             "start_position": null, "blocks": [{"block_hash": 11, "tokens_hash": 14643705804678351452,
             "mm_extra_info": null}, {"block_hash": 12, "tokens_hash": 2}]}}, "dp_rank": 3}, "residency_domain": "worker"},
            {"worker_id": "ns/pod", "storage_tier": "host_pinned", "event": {"data": {"stored": {"parent_hash": 12,
             "blocks": []}}}},
            {"worker_id": 1, "event": {"event_id": 1, "data": {"removed": {"block_hashes": [12]}}, "dp_rank": 0}},
            {"worker_id": 3, "event": {"event_id": 1, "data": "cleared"}}]},
           "a:b:c": {"events": [], "block_size": 16, "later": {"x": [1]}}}"#,
        "begin 4\n1/3 device root: 11=14643705804678351452 12=2\nns/pod/0 host_pinned 12: \n\
         1/0 device without [12]\n3/0 device cleared\nend t of m\nbegin 16\nend b:c of a\n",
    );
    check("{}", "");
}

#[test]
fn names_in_fields_win_then_known_indexes_then_the_first_colon() {
    let entry = |names: &str| format!(r#"{{"org/llama:8b:t": {{"block_size": 1, {names} "events": []}}}}"#);
    check(&entry(r#""model_name": "org/llama:8b", "tenant_id": "t","#), "begin 1\nend t of org/llama:8b\n");
    check(&entry(""), "begin 1\nend 8b:t of org/llama\n");
    let known = [IndexKey::new("org/llama:8b", "t"), IndexKey::new("x", "t")];
    assert_eq!(read_text(&entry(""), &known).as_deref(), Ok("begin 1\nend t of org/llama:8b\n"));
    let both = [IndexKey::new("org/llama:8b", "t"), IndexKey::new("org/llama", "8b:t")];
    assert_eq!(read_text(&entry(""), &both).as_deref(), Ok("begin 1\nend 8b:t of org/llama\n"));
}

const STORED: &str =
    r#"{"worker_id": 1, "event": {"data": {"stored": {"blocks": [{"block_hash": 1, "tokens_hash": 2}]}}}}"#;

#[test]
fn events_may_stand_before_their_block_size() {
    check(
        &format!(r#"{{"m:t": {{"events": [{STORED}], "block_size": 4}}}}"#),
        "begin 4\n1/0 device root: 1=2\nend t of m\n",
    );
    let many = vec![STORED; EARLY_BLOCKS_MAX + 1].join(",");
    refused(&format!(r#"{{"m:t": {{"events": [{many}], "block_size": 4}}}}"#), "must stand before");
}

#[test]
fn everything_else_is_refused() {
    for (text, why) in [
        ("not json", "expected"),
        ("", "EOF"),
        ("[]", "an object of indexes"),
        (r#"{"m:t": {"block_size": 4, "events": []}} x"#, "trailing"),
        (r#"{"m:t": {"block_size": 4, "events": []}"#, "EOF"),
        (r#"{"m:t": {"error": "x"}}"#, "failed there"),
        (r#"{"m:t": {"events": []}}"#, "block_size"),
        (r#"{"m:t": {"block_size": 0, "events": []}}"#, "above 0"),
        (r#"{"m:t": {"block_size": 4}}"#, "events"),
        (r#"{"nocolon": {"block_size": 4, "events": []}}"#, "nocolon"),
        (r#"{"m:t": {"block_size": 4, "events": []}, "m:t": {"block_size": 4, "events": []}}"#, "twice"),
        (r#"{"m:t": {"block_size": 4, "events": [], "events": []}}"#, "twice"),
        (r#"{"m:t": 5}"#, "invalid type"),
        (
            r#"{"m:t": {"block_size": 4, "events": [{"worker_id": 1, "storage_tier": "tape", "event": {"data": "cleared"}}]}}"#,
            "tape",
        ),
        (r#"{"m:t": {"block_size": 4, "events": [{"worker_id": -1, "event": {"data": "cleared"}}]}}"#, "instance_id"),
        (r#"{"m:t": {"block_size": 4, "events": [{"worker_id": 1, "event": {"data": "grown"}}]}}"#, "grown"),
        (r#"{"m:t": {"block_size": 4, "events": [{"worker_id": 1, "event": {}}]}}"#, "data"),
    ] {
        refused(text, why);
    }
}

/// Nothing in the sequence of calls depends on how the bytes come.
#[test]
fn bytes_may_come_one_by_one() {
    struct Drip<'a>(&'a [u8]);
    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            buffer[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }
    let text = format!(r#"{{"m:t": {{"block_size": 4, "events": [{STORED},{STORED}]}}}}"#);
    let mut lines = Lines::default();
    read(Drip(text.as_bytes()), &[], &mut lines).unwrap();
    assert_eq!(Ok(lines.0), read_text(&text, &[]));
}
