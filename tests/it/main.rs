//! All tests that need sockets or the whole service, in one binary.

mod engines;
mod golden_events;
mod golden_hashes;
mod golden_http;
mod harness;
