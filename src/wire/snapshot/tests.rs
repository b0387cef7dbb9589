//! What is written is read again; anything else is refused with words.

use proptest::prelude::*;

use super::*;
use crate::ids::{DuplicatePolicy, IndexKey, InstanceId, Mark, Namespace, Owner, OwnerSpec, Role, Seq, Source};
use crate::image::{
    AgesImage, GroupImage, GroupsImage, Image, ImageRun, IndexHead, OverlayImage, OwnerImage, OwnerRest, PendingImage,
    Position, Registration, RemovalImage, StreamImage, StreamName, Tombstone,
};
use crate::trust::{Reason, Trust};

fn registration(instance: &str, superseded: Option<Registration>) -> Registration {
    Registration {
        key: IndexKey::new("org/llama:8b", "t:1"),
        block_size: 16,
        instance: InstanceId::parse(instance).unwrap(),
        dp_rank: 3,
        endpoint: "tcp://10.0.0.1:5557".to_owned(),
        replay_endpoint: Some("tcp://10.0.0.1:5558".to_owned()),
        topic: Some("kv".to_owned()),
        additional_salt: None,
        default_lora: Some("lora".to_owned()),
        spec: OwnerSpec { policy: DuplicatePolicy::Copies, role: Role::Store, lower_tier_ttl_ms: Some(7) },
        source: Source::Manual,
        registered_ms: 1_700_000_000_000,
        incarnation: Some(crate::ids::Incarnation { pod_uid: "u".into(), container_id: "c".into(), restart_count: 2 }),
        superseded: superseded.map(Box::new),
    }
}

fn rest() -> OwnerRest {
    let group = |key| GroupImage {
        key,
        kind: Some(1),
        in_tree: true,
        complete: false,
        window_tokens: Some(64),
        block_tokens: None,
        held: vec![(1, 0, 2), (u64::MAX, 4, 1)],
        bare: vec![(u64::MAX, 4)],
    };
    let pending = PendingImage {
        hash: 1,
        parent: 2,
        token_bytes: vec![0, 255, 7],
        extras: vec![u64::MAX],
        named: Namespace { lora: Some(1), salt: None },
        locals: vec![9],
        rows: 17,
        stores: vec![(None, 0, 1), (Some(3), 1, 2)],
    };
    OwnerRest {
        overlays: vec![OverlayImage { block: 1, main: 2, records: vec![(2, 3, vec![4, u64::MAX])] }],
        multi: vec![(5, vec![0, 2])],
        free: vec![(1, 6)],
        copies: vec![(6, 1, 2)],
        spans: vec![(6, 4)],
        pieces: vec![7, 8],
        removals: vec![RemovalImage { hash: 1, seq: Seq(u64::MAX), at_ms: 3 }],
        removals_overflowed: true,
        pending: vec![pending],
        pending_dropped: true,
        groups: Some(GroupsImage { list: vec![group(None), group(Some(u32::MAX))], sets: true }),
        ages: Some(AgesImage { clock_ms: 5, queue: vec![(1, 2, None, 3), (1, 2, Some(0), 4)] }),
        whole_groups: vec![None, Some(1)],
        twins: 3,
        announced_block_size: Some(32),
    }
}

fn owner(instance: &str, rest: OwnerRest) -> OwnerImage {
    let mut trust = Trust::with(Reason::Gap, 5);
    trust.set(Reason::PendingParents, true, 9);
    OwnerImage {
        owner: Owner::new(InstanceId::parse(instance).unwrap(), 1),
        spec: OwnerSpec::default(),
        trust,
        rows: [vec![(0, 1), (2, 3)], vec![], vec![(1, 2)], vec![], vec![(0, 3)]],
        hashes: vec![(0, vec![u64::MAX]), (2, vec![5])],
        recents: vec![3, 2, 1],
        rest,
    }
}

fn stream(instance: &str, owners: Vec<OwnerImage>) -> StreamImage {
    let plain = Namespace::default();
    StreamImage {
        name: StreamName {
            instance: InstanceId::parse(instance).unwrap(),
            endpoint: "tcp://10.0.0.1:5557".to_owned(),
            topic: None,
            default_lora: Some("l".to_owned()),
        },
        position: Position {
            mark: Some(Mark { seq: Seq(u64::MAX), payload_hash: 3 }),
            connected: true,
            unverified: false,
            holes: true,
            counts_from_one: false,
            heard: true,
        },
        image: Image {
            runs: vec![
                ImageRun { parent: None, len: 2, namespace: plain },
                ImageRun { parent: Some(1), len: 1, namespace: Namespace { lora: Some(0), salt: Some(u64::MAX) } },
            ],
            locals: vec![1, u64::MAX, 3],
            engines: vec![4, 5, 6],
            owners,
        },
    }
}

/// Every kind of frame.
fn sample() -> Vec<Item> {
    let head = |model: &str| IndexHead { key: IndexKey::new(model, ""), block_size: 16 };
    let fresh = Trust::default();
    vec![
        Item::Header(Header { replica_id: "0011".into(), program: "0.1.0".into(), created_ms: 5 }),
        Item::Registration(Box::new(registration("7", None))),
        Item::Registration(Box::new(registration("ns/pod", Some(registration("ns/pod", None))))),
        Item::Tombstone(Tombstone { key: IndexKey::new("m", "t"), instance: 1.into(), dp_rank: 0, at_ms: 9 }),
        Item::Index(head("a")),
        Item::Stream(Box::new(stream("7", vec![owner("7", rest()), owner("ns/pod", OwnerRest::default())]))),
        Item::Stream(Box::new(stream("b", vec![]))),
        Item::Index(head("b:c")),
        Item::Stream(Box::new(stream("8", vec![OwnerImage { trust: fresh, ..owner("8", OwnerRest::default()) }]))),
        Item::End(Totals { frames: 0, streams: 3, owners: 3, blocks: 9 }),
    ]
}

fn encode(items: &[Item]) -> Vec<u8> {
    let mut encoder = None;
    let mut bytes = Vec::new();
    let mut in_index = false;
    for item in items {
        match item {
            Item::Header(header) => encoder = Some(Encoder::new(header.clone())),
            item => {
                let encoder = encoder.as_mut().expect("the header is first");
                match item {
                    Item::Header(_) => unreachable!("it was matched above"),
                    Item::Registration(one) => encoder.registrations(vec![(**one).clone()]),
                    Item::Tombstone(one) => encoder.tombstones(vec![one.clone()]),
                    Item::Stream(stream) => encoder.stream((**stream).clone()),
                    Item::Index(_) | Item::End(_) => {
                        if std::mem::replace(&mut in_index, true) {
                            encoder.end_index();
                        }
                        match item {
                            Item::Index(head) => encoder.begin_index(head.clone()),
                            _ => encoder.finish(),
                        }
                    }
                }
                while let Some(piece) = encoder.next_piece() {
                    bytes.extend_from_slice(&piece);
                }
            }
        }
    }
    bytes
}

/// Reads bytes that come in pieces of `step`.
fn decode(bytes: &[u8], step: usize) -> Result<Vec<Item>, Error> {
    let mut decoder = Decoder::new();
    let mut items = Vec::new();
    for piece in bytes.chunks(step) {
        decoder.push(piece);
        while let Some(item) = decoder.next_item()? {
            items.push(item);
        }
    }
    decoder.finish()?;
    Ok(items)
}

fn same(mut got: Vec<Item>, want: &[Item]) -> bool {
    if let Some(Item::End(totals)) = got.last_mut() {
        totals.frames = 0;
    }
    got == want
}

#[test]
fn what_is_written_is_read_again_however_it_is_cut() {
    let bytes = encode(&sample());
    for step in [1, 7, 4096, bytes.len()] {
        assert!(same(decode(&bytes, step).unwrap(), &sample()), "{step}");
    }
}

#[test]
fn long_lists_and_long_items_go_over_many_frames() {
    let count = 200_000_u32;
    let mut long = rest();
    long.pending[0].token_bytes = vec![200; 900_000];
    long.multi = (0..count).map(|n| (u64::from(n), vec![n])).collect();
    long.groups.as_mut().unwrap().list[0].held = (0..u64::from(count)).map(|n| (n, 0, 1)).collect();
    let mut big = owner("7", long);
    big.rows[0] = (0..count).map(|n| (2 * n, 2 * n + 1)).collect();
    big.hashes = (0..1000).map(|run| (run, (0..u64::from(run)).collect())).collect();
    let mut wide = stream("7", vec![big]);
    wide.image.locals = (0..u64::from(count)).collect();
    wide.image.engines = wide.image.locals.iter().map(|n| n << 32).collect();
    let mut items = sample();
    items[6] = Item::Stream(Box::new(wide));
    if let Some(Item::End(totals)) = items.last_mut() {
        totals.owners += 1;
        totals.blocks += u64::from(count) - 3;
    }
    let bytes = encode(&items);
    assert!(same(decode(&bytes, 65_536).unwrap(), &items));
}

#[test]
fn every_changed_byte_is_an_error() {
    let bytes = encode(&sample());
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(decode(&changed, 512).is_err(), "byte {at} of {}, changed by {change}", bytes.len());
        }
    }
}

#[test]
fn every_missing_and_every_further_byte_is_an_error() {
    let bytes = encode(&sample());
    for end in 0..bytes.len() {
        let error = decode(&bytes[..end], bytes.len()).expect_err("it is cut");
        assert!(matches!(error, Error::Truncated), "{end}: {error}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(decode(&longer, 64), Err(Error::Trailing)));
}

/// Frames can be left out, doubled or swapped without touching a checksum of their own.
#[test]
fn frames_that_are_missing_or_stand_elsewhere_are_errors() {
    let bytes = encode(&sample());
    let mut frames = vec![];
    let mut at = PREAMBLE_BYTES;
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize;
        let end = at + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES;
        frames.push(&bytes[at..end]);
        at = end;
    }
    let rebuilt = |frames: &[&[u8]]| [&bytes[..PREAMBLE_BYTES], &frames.concat()].concat();
    assert_eq!(rebuilt(&frames), bytes);
    for at in 0..frames.len() {
        let mut fewer = frames.clone();
        fewer.remove(at);
        assert!(decode(&rebuilt(&fewer), 512).is_err(), "without frame {at}");
        let mut twice = frames.clone();
        twice.insert(at, frames[at]);
        assert!(decode(&rebuilt(&twice), 512).is_err(), "frame {at} twice");
        for other in 0..at {
            let mut swapped = frames.clone();
            swapped.swap(at, other);
            if swapped != frames {
                assert!(decode(&rebuilt(&swapped), 512).is_err(), "frames {other} and {at} swapped");
            }
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = encode(&sample());
    bytes[MAGIC.len()] = 9;
    let error = decode(&bytes, 512).expect_err("nobody writes version 9");
    assert_eq!(error.to_string(), "snapshot version 9 cannot be read: this release reads 1 to 1");
    assert!(matches!(decode(b"{\"m:t\":{}}", 512), Err(Error::Magic)));
}

/// Nested values of a peer must not exhaust the stack.
#[test]
fn deep_nesting_is_refused() {
    let mut deep = registration("7", None);
    for _ in 0..200 {
        deep = registration("7", Some(deep));
    }
    let mut items = sample();
    items[1] = Item::Registration(Box::new(deep));
    assert!(matches!(decode(&encode(&items), 512), Err(Error::Value { what: "registration", .. })));
}

#[test]
fn a_long_frame_is_refused_before_its_bytes_come() {
    let mut bytes = encode(&sample())[..PREAMBLE_BYTES].to_vec();
    bytes.push(Kind::Header as u8);
    bytes.extend_from_slice(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes());
    assert!(matches!(decode(&bytes, 512), Err(Error::FrameLength(_))));
}

/// A frame of its own, with a right checksum.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn kind() -> impl Strategy<Value = u8> {
    prop_oneof![4 => (0..Kind::ALL.len()).prop_map(|at| Kind::ALL[at] as u8), 1 => any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), step in 1..64_usize) {
        prop_assert!(decode(&bytes, step).is_err());
        let begun = [&encode(&sample())[..PREAMBLE_BYTES], &bytes].concat();
        prop_assert!(decode(&begun, step).is_err());
    }

    /// Right checksums around anything: never a panic, and never a state, because the trailer cannot fit.
    #[test]
    fn random_frames_are_refused(
        frames in proptest::collection::vec((kind(), proptest::collection::vec(any::<u8>(), 0..60)), 0..12),
        stream_first in any::<bool>(),
    ) {
        let whole = encode(&sample());
        // Up to the begin of the first stream, so that parts of streams are reached too.
        let begin = if stream_first { begin_of_owner(&whole) } else { PREAMBLE_BYTES };
        let mut bytes = whole[..begin].to_vec();
        frames.iter().for_each(|(kind, payload)| bytes.extend(frame(*kind, payload)));
        prop_assert!(decode(&bytes, 50).is_err());
    }
}

fn begin_of_owner(bytes: &[u8]) -> usize {
    let mut at = PREAMBLE_BYTES;
    loop {
        let kind = bytes[at];
        at += FRAME_HEAD_BYTES
            + u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize
            + FRAME_TAIL_BYTES;
        if kind == Kind::OwnerBegin as u8 {
            return at;
        }
    }
}
