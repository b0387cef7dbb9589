//! What a status says, from findings and from what all replicas observe. Pure.
