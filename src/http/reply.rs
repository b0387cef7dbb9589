//! Writes the answer of a query into one buffer: no tree of values, no map of texts.

use std::ops::Range;

use bytes::Bytes;

use crate::ids::{BlockSize, InstanceId};
use crate::index::{Answer, Frequencies, OwnerAnswer};
use crate::trust::{State, Trust};

/// Bytes of a score, an instance and a frequency with usual numbers: what is reserved for them.
const SCORE_BYTES: usize = 32;
const INSTANCE_BYTES: usize = 112;
const FREQUENCY_BYTES: usize = 4;

/// The documented answer: `scores`, `frequencies`, `instances`, in tokens.
///
/// Scores and instances are written side by side. Instances of one rank with equal numbers often follow each other: what
/// was written for one is copied for the next.
pub(crate) fn query(answer: &Answer, block_size: BlockSize, matched_only: bool) -> Bytes {
    let tokens = u64::from(block_size.tokens());
    let rows = rows(answer, matched_only);
    let mut instances = Vec::with_capacity(rows.len() * INSTANCE_BYTES);
    let others = answer.frequencies.len() * FREQUENCY_BYTES + rows.len() * INSTANCE_BYTES;
    let mut out = Vec::with_capacity(64 + rows.len() * SCORE_BYTES + others);
    out.extend_from_slice(b"{\"scores\":{");
    let mut written: Option<(OwnerAnswer<'_>, [Range<usize>; 2])> = None;
    for (nth, ranks) in by_instance(&rows).enumerate() {
        let from = out.len();
        key(&mut out, nth, &ranks[0].owner.instance);
        instances.extend_from_slice(&out[from..]);
        if let (Some((row, [score, instance])), [one]) = (&written, ranks)
            && alike(row, one)
        {
            out.extend_from_within(score.clone());
            instances.extend_from_within(instance.clone());
            continue;
        }
        let from = [out.len(), instances.len()];
        out.push(b'{');
        ranks_and(&mut out, ranks, |row| u64::from(row.device) * tokens);
        out.push(b'}');
        instance(&mut instances, ranks, tokens);
        let one = (ranks.len() == 1).then_some(ranks[0]);
        written = one.map(|row| (row, [from[0]..out.len(), from[1]..instances.len()]));
    }
    out.extend_from_slice(b"},\"frequencies\":[");
    frequencies(&mut out, &answer.frequencies);
    out.extend_from_slice(b"],\"instances\":{");
    out.extend_from_slice(&instances);
    out.extend_from_slice(b"}}");
    Bytes::from(out)
}

/// True if two rows differ in their instance only.
fn alike(a: &OwnerAnswer<'_>, b: &OwnerAnswer<'_>) -> bool {
    let shown = |row: &OwnerAnswer<'_>| (row.owner.rank, row.device, row.host_pinned, row.disk, row.trust);
    shown(a) == shown(b)
}

/// Rows to show, instance by instance.
pub(super) fn rows(answer: &Answer, matched_only: bool) -> Vec<OwnerAnswer<'_>> {
    let mut rows: Vec<_> = answer.owners().filter(|row| !matched_only || row.disk > 0).collect();
    if !rows.is_sorted_by(|a, b| a.owner <= b.owner) {
        rows.sort_unstable_by(|a, b| a.owner.cmp(b.owner));
    }
    rows
}

/// Runs of rows of one instance.
pub(super) fn by_instance<'a, 'b>(rows: &'b [OwnerAnswer<'a>]) -> impl Iterator<Item = &'b [OwnerAnswer<'a>]> {
    rows.chunk_by(|a, b| a.owner.instance == b.owner.instance)
}

fn instance(out: &mut Vec<u8>, ranks: &[OwnerAnswer<'_>], tokens: u64) {
    let most = |blocks: fn(&OwnerAnswer<'_>) -> u32| {
        ranks.iter().map(|row| u64::from(blocks(row)) * tokens).max().unwrap_or(0)
    };
    let disk = most(|row| row.disk);
    out.extend_from_slice(b"{\"longest_matched\":");
    number(out, disk);
    out.extend_from_slice(b",\"gpu\":");
    number(out, most(|row| row.device));
    out.extend_from_slice(b",\"dp\":{");
    ranks_and(out, ranks, |row| u64::from(row.device) * tokens);
    out.extend_from_slice(b"},\"cpu\":");
    number(out, most(|row| row.host_pinned));
    out.extend_from_slice(b",\"disk\":");
    number(out, disk);
    let trust = ranks.iter().fold(Trust::default(), |worst, row| worst.worst_of(row.trust));
    if trust.state() != State::Exact {
        out.extend_from_slice(b",\"trust\":");
        write_trust(out, &trust);
    }
    out.push(b'}');
}

fn write_trust(out: &mut Vec<u8>, trust: &Trust) {
    out.extend_from_slice(b"{\"state\":\"");
    out.extend_from_slice(trust.state().as_str().as_bytes());
    out.extend_from_slice(b"\",\"reasons\":[");
    for (nth, reason) in trust.reasons().enumerate() {
        out.extend_from_slice(if nth == 0 { b"\"" } else { b",\"" });
        out.extend_from_slice(reason.as_str().as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b"],\"since_ms\":");
    number(out, trust.since_ms());
    out.push(b'}');
}

/// `"rank":tokens` for each row.
pub(super) fn ranks_and(out: &mut Vec<u8>, ranks: &[OwnerAnswer<'_>], tokens: impl Fn(&OwnerAnswer<'_>) -> u64) {
    for (nth, row) in ranks.iter().enumerate() {
        out.extend_from_slice(if nth == 0 { b"\"" } else { b",\"" });
        number(out, u64::from(row.owner.rank.0));
        out.extend_from_slice(b"\":");
        number(out, tokens(row));
    }
}

/// `"instance":`, after a comma unless it is the first.
pub(super) fn key(out: &mut Vec<u8>, nth: usize, instance: &InstanceId) {
    if nth > 0 {
        out.push(b',');
    }
    match instance {
        InstanceId::Number(id) => {
            out.push(b'"');
            number(out, *id);
            out.push(b'"');
        }
        InstanceId::Text(text) => {
            serde_json::to_writer(&mut *out, &**text).expect("writing a text into memory cannot fail");
        }
    }
    out.push(b':');
}

/// Each run of one number is formatted once and copied, twice as much each time.
fn frequencies(out: &mut Vec<u8>, counts: &Frequencies) {
    for (count, blocks) in counts.runs() {
        let from = out.len();
        number(out, u64::from(count));
        out.push(b',');
        let end = from + (out.len() - from) * blocks as usize;
        while out.len() < end {
            let more = (out.len() - from).min(end - out.len());
            out.extend_from_within(from..from + more);
        }
    }
    if !counts.is_empty() {
        // The comma behind the last number.
        out.pop();
    }
}

/// A decimal number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Owner;
    use crate::trust::Reason;

    fn row(owner: &Owner, [device, host_pinned, disk]: [u32; 3]) -> OwnerAnswer<'_> {
        OwnerAnswer { owner, registered: true, device, host_pinned, disk, own_prefix: [0; 3], trust: Trust::default() }
    }

    fn text(answer: &Answer, matched_only: bool) -> String {
        let reply = query(answer, BlockSize::new(4).unwrap(), matched_only);
        serde_json::from_slice::<serde_json::Value>(&reply).expect("the answer is JSON");
        String::from_utf8(reply.to_vec()).unwrap()
    }

    #[test]
    fn rows_of_one_instance_stand_together_in_tokens() {
        let [late, first, early] = [Owner::new(7, 1), Owner::new(1, 0), Owner::new(7, 0)];
        let rows = [row(&late, [3, 4, 6]), row(&first, [0, 0, 0]), row(&early, [1, 5, 5])];
        let answer = Answer::of(&rows, &[2, 1, 1]);
        assert_eq!(
            text(&answer, false),
            r#"{"scores":{"1":{"0":0},"7":{"0":4,"1":12}},"frequencies":[2,1,1],"instances":{"1":{"longest_matched":0,"gpu":0,"dp":{"0":0},"cpu":0,"disk":0},"7":{"longest_matched":24,"gpu":12,"dp":{"0":4,"1":12},"cpu":20,"disk":24}}}"#
        );
        assert_eq!(
            text(&answer, true),
            r#"{"scores":{"7":{"0":4,"1":12}},"frequencies":[2,1,1],"instances":{"7":{"longest_matched":24,"gpu":12,"dp":{"0":4,"1":12},"cpu":20,"disk":24}}}"#
        );
    }

    #[test]
    fn the_worst_trust_of_the_ranks_is_shown_and_exact_is_not() {
        let owners = [Owner::new(1, 0), Owner::new(1, 1)];
        let doubtful = OwnerAnswer { trust: Trust::with(Reason::Gap, 5), ..row(&owners[1], [0; 3]) };
        let answer = Answer::of(&[row(&owners[0], [0; 3]), doubtful], &[]);
        assert!(
            text(&answer, false).contains(r#""disk":0,"trust":{"state":"degraded","reasons":["gap"],"since_ms":5}}"#)
        );
    }

    /// Written row by row, with nothing copied.
    fn plainly(answer: &Answer, tokens: u64) -> String {
        let rows = rows(answer, false);
        let (mut scores, mut instances) = (Vec::new(), Vec::new());
        for (nth, ranks) in by_instance(&rows).enumerate() {
            key(&mut scores, nth, &ranks[0].owner.instance);
            scores.push(b'{');
            ranks_and(&mut scores, ranks, |row| u64::from(row.device) * tokens);
            scores.push(b'}');
            key(&mut instances, nth, &ranks[0].owner.instance);
            instance(&mut instances, ranks, tokens);
        }
        let text = |bytes| String::from_utf8(bytes).unwrap();
        format!(r#"{{"scores":{{{}}},"frequencies":[],"instances":{{{}}}}}"#, text(scores), text(instances))
    }

    #[test]
    fn rows_that_are_alike_are_written_like_any_others() {
        // Instance, rank, blocks by tier, trusted or not: each row differs from its neighbours in one of them, or in none.
        let list = [
            (1, 0, [2, 2, 2], true),
            (2, 0, [2, 2, 2], true),
            (3, 1, [2, 2, 2], true),
            (4, 1, [1, 2, 2], true),
            (5, 1, [1, 3, 3], true),
            (6, 1, [1, 3, 4], true),
            (7, 1, [1, 3, 4], false),
            (8, 1, [1, 3, 4], false),
            (9, 1, [1, 3, 4], true),
            (10, 1, [1, 3, 4], true),
            (10, 2, [1, 3, 4], true),
            (11, 1, [1, 3, 4], true),
            (12, 1, [1, 3, 4], true),
        ];
        let owners = list.map(|(instance, rank, ..)| Owner::new(instance, rank));
        let rows = owners.iter().zip(list).map(|(owner, (.., blocks, exact))| {
            let trust = if exact { Trust::default() } else { Trust::with(Reason::Gap, 5) };
            OwnerAnswer { trust, ..row(owner, blocks) }
        });
        let rows: Vec<_> = rows.collect();
        let answer = Answer::of(&rows, &[]);
        assert_eq!(text(&answer, false), plainly(&answer, 4));
    }

    #[test]
    fn text_ids_are_escaped() {
        let owner = Owner { instance: InstanceId::parse("a\"b\\ü").unwrap(), rank: crate::ids::DpRank(0) };
        let answer = Answer::of(&[row(&owner, [1; 3])], &[1]);
        assert!(text(&answer, false).starts_with(r#"{"scores":{"a\"b\\ü":{"0":4}}"#));
    }

    #[test]
    fn frequencies_are_written_run_by_run() {
        let long = |len: usize| (0..len).map(|at| [8, 8, 3][at / 130 % 3]).collect();
        for counts in
            [vec![], vec![7], vec![7, 7, 7], vec![12, 12, 3, 3, 3, 1, 100, 1], vec![0, 0], long(64), long(1000)]
        {
            let mut out = Vec::new();
            frequencies(&mut out, &Frequencies::of(&counts));
            let want = counts.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }
}
