//! The check of the fuzz target `zmtp_codec`, run small.

use proptest::collection::vec;
use proptest::prelude::*;

#[path = "../../../fuzz/checks/zmtp_codec.rs"]
mod check;

/// Bytes that are often frames: flags and small lengths are likely.
fn traffic() -> impl Strategy<Value = Vec<u8>> {
    let frame = (0u8..8, vec(any::<u8>(), 0..20)).prop_map(|(flags, body)| {
        let len = u8::try_from(body.len()).unwrap();
        if flags & 2 == 0 {
            [&[flags, len][..], &body].concat()
        } else {
            [&[flags, 0, 0, 0, 0, 0, 0, 0, len][..], &body].concat()
        }
    });
    (any::<u8>(), vec(frame, 0..12), vec(any::<u8>(), 0..20))
        .prop_map(|(size, frames, rest)| [&[size][..], &frames.concat(), &rest].concat())
}

proptest! {
    #[test]
    fn any_traffic_passes_the_check_of_the_fuzz_target(data in traffic()) {
        check::check(&data);
    }

    #[test]
    fn any_bytes_pass_the_check_of_the_fuzz_target(data in vec(any::<u8>(), 0..300)) {
        check::check(&data);
    }
}
