//! Pairs of digests, in a short notation.

use super::*;
use crate::ids::{OwnerSpec, Source};
use crate::wire::digest::{Phase, RankDigest, Sum};

/// `1 exact 256=a 300=b`: instance, trust or reasons, digests by number of batch; the last one is the present.
/// `ages`, `foreign` and `first` (nothing applied) are further words.
fn stream(text: &str) -> StreamDigest {
    let words: Vec<_> = text.split_whitespace().collect();
    let mut history: Vec<Sum> = words[2..]
        .iter()
        .filter_map(|word| word.split_once('='))
        .map(|(seq, digest)| Sum { seq: Seq(seq.parse().unwrap()), digest: digest.to_owned() })
        .collect();
    let reasons: Vec<String> = match words[1] {
        "exact" => vec![],
        reasons => reasons.split('+').map(str::to_owned).collect(),
    };
    StreamDigest {
        key: IndexKey::new("m", "t"),
        instance_id: InstanceId::parse(words[0]).unwrap(),
        endpoint: "tcp://a:1".to_owned(),
        topic: None,
        default_lora: None,
        exact: reasons.is_empty(),
        current: history.pop(),
        history,
        ranks: vec![RankDigest { dp_rank: 0, state: String::new(), reasons, blocks: 1 }],
        foreign_blocks: u64::from(words.contains(&"foreign")),
        ages: words.contains(&"ages"),
    }
}

/// Streams with `|` between them.
fn digest(text: &str) -> Digest {
    Digest {
        replica_id: "r".to_owned(),
        name: String::new(),
        version: String::new(),
        phase: Phase::Ready,
        progress: 0,
        owners: 0,
        exact_owners: 0,
        applied: 0,
        blocks: 0,
        streams: text.split('|').filter(|one| !one.trim().is_empty()).map(stream).collect(),
        registrations: Vec::new(),
        tombstones: Vec::new(),
    }
}

#[test]
fn streams_are_compared_at_the_greatest_common_number() {
    let at = |seq| Verdict::Equal(Seq(seq));
    let differ = |seq| Verdict::Differ(Seq(seq));
    for (ours, theirs, want) in [
        ("exact 256=a 300=b", "exact 256=a 301=c", at(256)),
        ("exact 256=a 300=b", "exact 256=x 301=c", differ(256)),
        ("exact 0=a 256=b 300=c", "exact 0=x 256=b 511=d", at(256)),
        ("exact 0=x 256=a 300=b", "exact 0=y 300=b", at(300)),
        ("exact 512=a 600=b", "exact 256=a 300=b", Verdict::NotComparable),
        ("exact 512=a 600=b", "exact 600=b", at(600)),
        ("exact", "exact 600=b", Verdict::NotComparable),
        ("gap 256=a 300=b", "exact 256=x 301=c", Verdict::NotComparable),
        ("exact 256=a 300=b", "stale 256=x 301=c", Verdict::NotComparable),
        ("exact 300=b ages", "exact 300=b", at(300)),
        ("exact 300=a ages", "exact 300=b", Verdict::NotComparable),
        ("exact 300=a", "exact 300=b foreign", Verdict::NotComparable),
    ] {
        let (ours, theirs) = (digest(&format!("1 {ours}")), digest(&format!("1 {theirs}")));
        let got = streams(&ours, &theirs);
        assert_eq!(got.iter().map(|(_, verdict)| *verdict).collect::<Vec<_>>(), [want], "{ours:?} {theirs:?}");
    }
}

#[test]
fn only_streams_that_both_know_are_compared() {
    let got = streams(&digest("1 exact 0=a | 2 exact 0=a"), &digest("2 exact 0=b | 3 exact 0=a"));
    let name = stream("2 exact 0=a").name();
    assert_eq!(got, [((IndexKey::new("m", "t"), name), Verdict::Differ(Seq(0)))]);
    let mut unfed = digest("1 exact 0=a");
    unfed.streams[0].endpoint = String::new();
    assert!(streams(&unfed, &unfed).is_empty(), "nobody publishes");
}

#[test]
fn a_stream_is_refilled_if_that_makes_it_exact() {
    for (ours, theirs, want) in [
        ("gap 300=a", "exact 300=b", Some(300)),
        ("gap 300=a", "exact 301=b", Some(301)),
        ("nothing_heard", "exact 7=b", Some(7)),
        ("gap+pending_parents 300=a", "exact 301=b", Some(301)),
        ("gap 300=a", "exact 299=b", None),
        ("gap 300=a", "exact", None),
        ("gap 300=a", "gap 400=b", None),
        ("exact 300=a", "exact 400=b", None),
        ("gap+not_connected 300=a", "exact 400=b", None),
        ("gap+memory 300=a", "exact 400=b", None),
        ("two_sources 300=a", "exact 400=b", None),
        ("unconfirmed 300=a", "exact 400=b", None),
        ("container_down 300=a", "exact 400=b", None),
    ] {
        let got = refills(&digest(&format!("1 {ours}")), &digest(&format!("1 {theirs}")));
        assert_eq!(got.first().map(|(_, seq)| seq.0), want, "{ours} | {theirs}");
    }
}

fn registration(instance: u64, registered_ms: u64, endpoint: &str) -> Registration {
    Registration {
        key: IndexKey::new("m", "t"),
        block_size: 16,
        instance: instance.into(),
        dp_rank: 0,
        endpoint: endpoint.to_owned(),
        replay_endpoint: None,
        topic: None,
        additional_salt: None,
        default_lora: None,
        spec: OwnerSpec::default(),
        source: Source::Manual,
        registered_ms,
        incarnation: None,
        superseded: None,
    }
}

/// `+1@5` registered at 5, `-1@9` taken back at 9, `+1@5:b` with the endpoint `b`.
fn by_hand(text: &str) -> Digest {
    let mut digest = digest("");
    for word in text.split_whitespace() {
        let (instance, rest) = word[1..].split_once('@').unwrap();
        let (at, endpoint) = rest.split_once(':').unwrap_or((rest, "a"));
        let (instance, at) = (instance.parse::<u64>().unwrap(), at.parse().unwrap());
        if word.starts_with('+') {
            digest.registrations.push(registration(instance, at, endpoint));
        } else {
            let key = IndexKey::new("m", "t");
            digest.tombstones.push(Tombstone { key, instance: instance.into(), dp_rank: 0, at_ms: at });
        }
    }
    digest
}

#[test]
fn the_latest_word_about_a_registration_counts() {
    for (ours, others, want) in [
        ("", "+1@5", "register 1@5, 1 differ"),
        ("", "+1@5 | +1@7", "register 1@7, 1 differ"),
        ("+1@5", "+1@5", "0 differ"),
        // Made at another time here: the same.
        ("+1@5", "+1@6", "0 differ"),
        ("+1@5", "+1@6:b", "1 differ"),
        // The others take it over.
        ("+1@5", "", "0 differ"),
        // Taken back there later.
        ("+1@5", "-1@9", "unregister 1@9, 1 differ"),
        ("+1@5", "-1@9 | +1@4", "unregister 1@9, 1 differ"),
        // Registered again since, here or at a third.
        ("+1@10", "-1@9", "0 differ"),
        ("+1@5", "-1@9 | +1@10", "0 differ"),
        ("", "-1@9 | +1@10", "register 1@10, 1 differ"),
        // Taken back here.
        ("-1@9", "+1@5", "0 differ"),
        ("-1@9", "+1@10", "register 1@10, 1 differ"),
        ("+1@5 +2@5 -3@5", "+1@5 -2@6 +3@9 +4@9", "register 3@9, register 4@9, unregister 2@6, 3 differ"),
    ] {
        let others: Vec<_> = others.split('|').map(by_hand).collect();
        let changes = registrations(&by_hand(ours), &others);
        let register = changes.register.iter().map(|one| format!("register {}@{}", one.instance, one.registered_ms));
        let unregister = changes.unregister.iter().map(|one| format!("unregister {}@{}", one.instance, one.at_ms));
        let mut words: Vec<_> = register.chain(unregister).collect();
        words.push(format!("{} differ", changes.differing));
        assert_eq!(words.join(", "), want, "{ours} | {others:?}");
    }
}
