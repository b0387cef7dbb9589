//! The Lease: one replica writes. The decision is pure.
