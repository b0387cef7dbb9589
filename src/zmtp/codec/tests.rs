//! The codec against bytes written by hand, and any split of them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MECHANISM_AT: usize = 12;

fn greeting_of(major: u8, minor: u8, mechanism: &[u8]) -> Vec<u8> {
    let mut bytes = greeting().to_vec();
    bytes[10] = major;
    bytes[11] = minor;
    bytes[MECHANISM_AT..MECHANISM_AT + 20].fill(0);
    bytes[MECHANISM_AT..MECHANISM_AT + mechanism.len()].copy_from_slice(mechanism);
    bytes
}

#[track_caller]
fn check_greeting(bytes: &[u8], want: &str) {
    let got = match Greeting::parse(bytes) {
        Ok(None) => "more".to_owned(),
        Ok(Some(greeting)) => format!("3.{}", greeting.minor),
        Err(error) => error.to_string(),
    };
    assert_eq!(got, want);
}

#[test]
fn greetings_are_judged_as_early_as_possible() {
    let v2 = [&[0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 1][..], &[2]].concat();
    check_greeting(b"", "more");
    check_greeting(&greeting_of(3, 0, b"NULL"), "3.0");
    check_greeting(&greeting_of(3, 1, b"NULL"), "3.1");
    check_greeting(&greeting_of(3, 2, b"NULL"), "3.2");
    check_greeting(&greeting()[..63], "more");
    check_greeting(&[0xFF], "more");
    check_greeting(&greeting()[..10], "more");
    check_greeting(&greeting_of(4, 7, b"NULL"), "peer speaks ZMTP 4.7, 3.0 or 3.1 is needed");
    check_greeting(&v2, "peer speaks ZMTP 2.0, 3.0 or 3.1 is needed");
    check_greeting(&[1], "more");
    check_greeting(&[1, 0], "peer speaks ZMTP 1.0, 3.0 or 3.1 is needed");
    check_greeting(&[0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0], "peer speaks ZMTP 1.0, 3.0 or 3.1 is needed");
    check_greeting(&greeting_of(3, 1, b"CURVE"), "peer demands security mechanism \"CURVE\", only NULL is supported");
    check_greeting(&greeting_of(3, 0, b"PLAIN"), "peer demands security mechanism \"PLAIN\", only NULL is supported");
    check_greeting(&greeting_of(3, 0, b"NULLX"), "peer demands security mechanism \"NULLX\", only NULL is supported");
    check_greeting(
        b"HTTP/1.1 400 Bad Request\r\n",
        "peer does not speak ZMTP, it began with \"HTTP/1.1 400 Bad Request\"",
    );
    check_greeting(b"\x16\x03", "peer does not speak ZMTP, it began with \"\\x16\\x03\"");
    check_greeting(b"\x01\x02", "peer does not speak ZMTP, it began with \"\\x01\\x02\"");
}

#[test]
fn only_peers_of_3_1_and_later_get_a_ping() {
    for (minor, want) in [(0, false), (1, true), (2, true)] {
        let greeting = Greeting::parse(&greeting_of(3, minor, b"NULL")).unwrap().unwrap();
        assert_eq!(greeting.knows_ping(), want, "3.{minor}");
    }
}

/// All items of `bytes`, then what is left or wrong.
fn decode(limits: Limits, bytes: &[u8]) -> (Vec<String>, String) {
    let mut decoder = Decoder::new(limits);
    let mut buffer = BytesMut::from(bytes);
    let mut items = Vec::new();
    loop {
        match decoder.next(&mut buffer) {
            Ok(Some(Item::Frame { more, body })) => {
                items.push(format!("{}{}", body.escape_ascii(), if more { "+" } else { "" }));
            }
            Ok(Some(Item::Command(body))) => items.push(format!("/{}", body.escape_ascii())),
            Ok(None) => return (items, format!("missing {}", decoder.missing())),
            Err(error) => return (items, error.to_string()),
        }
    }
}

#[track_caller]
fn check_frames(bytes: &[u8], want: &str, end: &str) {
    let limits = Limits { frame_bytes_max: 300, message_bytes_max: 310, frames_max: 3 };
    let (items, rest) = decode(limits, bytes);
    assert_eq!((items.join(" ").as_str(), rest.as_str()), (want, end));
}

#[test]
fn frames_are_cut_and_limits_come_before_the_body() {
    let mut long = vec![2, 0, 0, 0, 0, 0, 0, 0, 2];
    check_frames(b"", "", "missing 1");
    check_frames(b"\x00", "", "missing 1");
    check_frames(b"\x00\x03ab", "", "missing 1");
    check_frames(b"\x01\x01a\x01\x00\x00\x01c", "a+ + c", "missing 1");
    check_frames(b"\x04\x03\x02hi\x00\x00", "/\\x02hi ", "missing 1");
    check_frames(&long, "", "missing 2");
    long.extend(b"ab");
    check_frames(&long, "ab", "missing 1");
    check_frames(&[2, 0, 0, 0, 0, 0, 0, 1, 44], "", "missing 300");
    check_frames(&[2, 0, 0, 0, 0, 0, 0, 1, 45], "", "peer announced a frame of 301 bytes, the limit is 300");
    for (exponent, len) in [(34, 1u64 << 34), (40, 1 << 40), (62, 1 << 62), (64, u64::MAX)] {
        let bytes = [&[2][..], &len.to_be_bytes()].concat();
        let want = format!("peer announced a frame of {len} bytes, the limit is 300");
        assert_eq!(decode(Limits { frame_bytes_max: 300, ..Limits::default() }, &bytes).1, want, "2^{exponent}");
        check_frames(&bytes, "", &want);
    }
    check_frames(&[6, 0, 0, 0, 0, 0, 1, 0, 1], "", "peer announced a command of 65537 bytes, the limit is 65536");
    check_frames(b"\x01\x00\x01\x00\x01\x00\x00\x00", "+ + +", "peer sent a message of more than 3 frames, the limit");
    check_frames(b"\x01\x00\x01\x00\x00\x00\x01\x00", "+ +  +", "missing 1");
    check_frames(b"\x08\x00", "", "peer broke the protocol: reserved flag bits are set in a frame");
    check_frames(b"\x05\x00", "", "peer broke the protocol: a command has the MORE flag");
    let two = [&[1, 20][..], &[b'x'; 20], &[2, 0, 0, 0, 0, 0, 0, 1, 35]].concat();
    check_frames(&two, &format!("{}+", "x".repeat(20)), "peer sent a message of more than 310 bytes, the limit");
}

#[test]
fn a_command_between_frames_leaves_the_message_whole() {
    check_frames(b"\x01\x01a\x04\x05\x04PONG\x01\x01b\x00\x01c", "a+ /\\x04PONG b+ c", "missing 1");
}

#[track_caller]
fn check_command(body: &[u8], want: Result<Command<'_>, &str>) {
    let got = Command::parse(body).map_err(|error| error.to_string());
    assert_eq!(got, want.map_err(|what| format!("peer broke the protocol: {what}")));
}

#[test]
fn commands_are_read_or_refused() {
    let ready = |data: &[u8]| [b"\x05READY", data].concat();
    let ours = {
        let mut out = BytesMut::new();
        put_ready(&mut out, "DEALER", Some(b""));
        out.split_off(2)
    };
    check_command(&ours, Ok(Command::Ready { socket_type: Some(b"DEALER") }));
    check_command(&ready(b""), Ok(Command::Ready { socket_type: None }));
    check_command(
        &ready(b"\x03Foo\0\0\0\x01x\x0bsocket-type\0\0\0\x03PUB"),
        Ok(Command::Ready { socket_type: Some(b"PUB") }),
    );
    check_command(&ready(b"\x0bSocket-Type\0\0\0\x09PUB"), Err("a property value of READY is cut off"));
    check_command(&ready(b"\x0bSocket-Type\xff\xff\xff\xffPUB"), Err("a property value of READY is cut off"));
    check_command(&ready(b"\x0bSocket-Type"), Err("a property of READY has no value"));
    check_command(&ready(b"\x0bSocket"), Err("a property name of READY is cut off"));
    check_command(&ready(b"\x0bSocket-Type\0\0\0\x03PUB\x09"), Err("a property name of READY is cut off"));
    check_command(b"\x05ERROR\x02no", Ok(Command::Error { reason: b"no" }));
    check_command(b"\x05ERROR\x03no", Err("the reason of an ERROR command is cut off"));
    check_command(b"\x04PING\0\0", Ok(Command::Ping { context: b"" }));
    check_command(b"\x04PING\0\x05abc", Ok(Command::Ping { context: b"abc" }));
    check_command(b"\x04PING\0\x050123456789abcdefXYZ", Ok(Command::Ping { context: b"0123456789abcdef" }));
    check_command(b"\x04PING\0", Err("a PING has no time to live"));
    check_command(b"\x04PONGabc", Ok(Command::Pong));
    check_command(b"\x09SUBSCRIBEx", Ok(Command::Unknown));
    check_command(b"\x00", Ok(Command::Unknown));
    check_command(b"", Err("a command's name is cut off"));
    check_command(b"\x09SUB", Err("a command's name is cut off"));
}

#[test]
fn what_we_write_is_what_the_specification_says() {
    let mut out = BytesMut::new();
    put_ready(&mut out, "SUB", None);
    assert_eq!(&out[..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    out.clear();
    put_subscribe(&mut out, b"kv@");
    put_subscribe(&mut out, b"");
    assert_eq!(&out[..], b"\x00\x04\x01kv@\x00\x01\x01");
    out.clear();
    put_ping(&mut out);
    put_pong(&mut out, b"ctx");
    assert_eq!(&out[..], b"\x04\x07\x04PING\0\0\x04\x08\x04PONGctx");
    out.clear();
    put_frame(&mut out, b"", true);
    put_frame(&mut out, &[7; 256], false);
    assert_eq!(&out[..11], [1, 0, 2, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(out.len(), 11 + 256);
}

fn items() -> impl Strategy<Value = Vec<(bool, bool, Vec<u8>)>> {
    let body = prop_oneof![4 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 250..600)];
    vec((any::<bool>(), prop::bool::weighted(0.2), body), 0..30)
}

/// Feeds `bytes` in pieces of the given sizes (in turn), decoding after each.
fn decode_in_pieces(bytes: &[u8], sizes: &[usize]) -> (Vec<Item>, bool) {
    let mut decoder = Decoder::new(Limits::default());
    let (mut buffer, mut items, mut rest) = (BytesMut::new(), Vec::new(), bytes);
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        buffer.extend_from_slice(piece);
        rest = behind;
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(_) => return (items, false),
            }
        }
    }
    (items, true)
}

proptest! {
    #[test]
    fn any_split_of_the_stream_gives_the_same_frames(items in items(), sizes in vec(1usize..70, 1..20)) {
        let mut bytes = BytesMut::new();
        let mut want = Vec::new();
        let mut in_message = 0;
        for (more, command, body) in items {
            let more = more && !command && in_message < 15;
            if command {
                put(&mut bytes, COMMAND, &[&body]);
                want.push(Item::Command(body.into()));
            } else {
                put_frame(&mut bytes, &body, more);
                in_message = if more { in_message + 1 } else { 0 };
                want.push(Item::Frame { more, body: body.into() });
            }
        }
        prop_assert_eq!(decode_in_pieces(&bytes, &sizes), (want, true));
    }

    #[test]
    fn any_split_of_garbage_gives_the_same_frames(bytes in vec(0u8..10, 0..400), sizes in vec(1usize..70, 1..20)) {
        prop_assert_eq!(decode_in_pieces(&bytes, &sizes), decode_in_pieces(&bytes, &[usize::MAX]));
    }
}
