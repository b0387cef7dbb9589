//! Several sources that want the same.
