//! Bytes of a scripted peer, written by hand: nothing here comes from the codec under test.

/// A greeting of ZMTP `major.minor`.
pub(super) fn greeting(major: u8, minor: u8, mechanism: &str) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xFF, 0x7F, major, minor);
    bytes[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    bytes
}

/// Greeting 3.1 with NULL and READY as `socket_type`: all that a peer says in a good handshake.
pub(super) fn handshake(socket_type: &str) -> Vec<u8> {
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(u8::try_from(socket_type.len()).unwrap());
    ready.extend_from_slice(socket_type.as_bytes());
    [greeting(3, 1, "NULL"), command(&ready)].concat()
}

pub(super) fn command(body: &[u8]) -> Vec<u8> {
    [&[4, u8::try_from(body.len()).unwrap()], body].concat()
}

/// Short frames only.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        bytes.extend([u8::from(i + 1 < frames.len()), u8::try_from(frame.len()).unwrap()]);
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// Header of a long frame.
pub(super) fn long(len: u64) -> Vec<u8> {
    [&[2][..], &len.to_be_bytes()].concat()
}
