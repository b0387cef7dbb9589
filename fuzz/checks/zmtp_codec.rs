//! What must hold for any bytes of a peer; shared by the fuzz target and a property test.

use bytes::BytesMut;
use kvindexer::zmtp::Limits;
use kvindexer::zmtp::codec::{Command, Decoder, Greeting, Item};

const LIMITS: Limits = Limits { frame_bytes_max: 256, message_bytes_max: 512, frames_max: 4 };

/// Never panics; limits hold; what is cut off was sent; pieces of any size give what the whole gives.
///
/// The first byte chooses the size of the pieces.
pub(super) fn check(data: &[u8]) {
    let _ = Greeting::parse(data);
    let _ = Command::parse(data);
    let Some((&size, stream)) = data.split_first() else { return };
    let whole = decode(stream, stream.len().max(1));
    assert_eq!(decode(stream, usize::from(size).max(1)), whole);
    let bodies: usize = whole.0.iter().map(body_len).sum();
    assert!(bodies + 2 * whole.0.len() <= stream.len(), "more came out than went in");
    check_limits(&whole.0);
}

/// All items, and the error that ended the stream, if any.
fn decode(stream: &[u8], piece_bytes: usize) -> (Vec<Item>, Option<String>) {
    let mut decoder = Decoder::new(LIMITS);
    let (mut buffer, mut items) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece_bytes) {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(item)) => {
                    if let Item::Command(body) = &item {
                        let _ = Command::parse(body);
                    }
                    items.push(item);
                }
                Ok(None) => break assert!(decoder.missing() > 0),
                Err(error) => return (items, Some(error.to_string())),
            }
        }
    }
    (items, None)
}

fn body_len(item: &Item) -> usize {
    match item {
        Item::Frame { body, .. } | Item::Command(body) => body.len(),
    }
}

fn check_limits(items: &[Item]) {
    let (mut frames, mut bytes) = (0, 0);
    for item in items {
        let Item::Frame { more, body } = item else { continue };
        frames += 1;
        bytes += body.len() as u64;
        assert!(frames <= LIMITS.frames_max && bytes <= LIMITS.message_bytes_max);
        assert!(body.len() as u64 <= LIMITS.frame_bytes_max);
        if !more {
            (frames, bytes) = (0, 0);
        }
    }
}
