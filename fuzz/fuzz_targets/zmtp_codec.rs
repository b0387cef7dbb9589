//! `cargo +nightly fuzz run zmtp_codec`: any bytes of a peer.
#![no_main]

#[path = "../checks/zmtp_codec.rs"]
mod zmtp_codec_check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| zmtp_codec_check::check(data));
