//! Brings the registry to what is desired, again after every change.

use crate::controller::Parts;

/// The loop.
pub(super) struct Drive {
    parts: Parts,
}

impl Drive {
    /// A loop that has not begun.
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Ends only by being dropped.
    pub(super) async fn run(self) {
        let _ = self.parts;
        std::future::pending().await
    }
}
