//! `cargo +nightly fuzz run wire_decode`: any payload of an engine.
#![no_main]

#[path = "../checks/wire_decode.rs"]
mod wire_decode_check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| wire_decode_check::check(data));
