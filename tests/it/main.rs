//! All tests that need sockets or the whole service, in one binary.

mod harness;
