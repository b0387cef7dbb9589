//! Telling the other replicas of a registration by hand, once.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::recovery::Replica;

/// Marks a request that comes from a replica: it is not sent on.
pub const FORWARDED_HEADER: &str = "x-kvindexer-forwarded";

/// What each peer answered: `ok`, or why not. By address.
pub type Outcomes = BTreeMap<String, String>;

/// Sends registrations on. Cheap to clone.
#[derive(Clone)]
pub struct Forwarder {}

impl Forwarder {
    /// Sends to the peers of `replica`.
    #[must_use]
    pub fn new(_replica: Replica) -> Self {
        todo!("recovery")
    }

    /// Posts `body` to `path` (`/register` or `/unregister`) of every peer at once; each has 2 s.
    pub async fn forward(&self, _path: &'static str, _body: Bytes) -> Outcomes {
        todo!("recovery")
    }
}
