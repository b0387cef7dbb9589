//! The check of the fuzz target `wire_decode`, run small.

use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

#[path = "../../fuzz/checks/wire_decode.rs"]
mod check;

/// All payloads of the recorded engine streams.
fn recorded() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines");
    let mut payloads = vec![];
    for entry in fs::read_dir(folder).expect("recorded streams") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let file: Value = serde_json::from_slice(&fs::read(&path).expect("a readable file")).expect("JSON");
        for message in file["frames"].as_array().expect("frames") {
            let digits = message[2].as_str().expect("a payload in hex").as_bytes();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
            payloads.push(digits.chunks(2).map(byte).collect());
        }
    }
    payloads
}

fn damaged() -> impl Strategy<Value = Vec<u8>> {
    (select(recorded()), vec((any::<Index>(), any::<u8>()), 0..4), any::<u8>()).prop_map(|(payload, changes, size)| {
        let mut payload = payload;
        for (at, byte) in changes {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        [vec![size], payload].concat()
    })
}

proptest! {
    #[test]
    fn damaged_payloads_of_engines_pass_the_check_of_the_fuzz_target(data in damaged()) {
        check::check(&data);
    }

    #[test]
    fn any_bytes_pass_the_check_of_the_fuzz_target(data in vec(any::<u8>(), 0..300)) {
        check::check(&data);
    }
}
