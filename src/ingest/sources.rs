//! Which streams feed which owner of an index: two that feed one make its content a guess.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::index::OwnerId;

/// A stream, numbered in the order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId(pub u64);

/// Streams by owner, of one index. A leaf lock, held for one look-up.
#[derive(Debug, Default)]
pub struct Sources(Mutex<FxHashMap<OwnerId, SmallVec<[StreamId; 1]>>>);

impl Sources {
    /// Takes note that `stream` feeds `owner`. True if another stream does, too.
    pub(super) fn claim(&self, owner: OwnerId, stream: StreamId) -> bool {
        let mut sources = self.0.lock();
        let streams = sources.entry(owner).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        streams.len() > 1
    }

    /// The owner's content was emptied by `stream`: what others fed before is gone.
    pub(super) fn reset(&self, owner: OwnerId, stream: StreamId) {
        if let Some(streams) = self.0.lock().get_mut(&owner) {
            streams.clear();
            streams.push(stream);
        }
    }

    /// `stream` feeds the owner no more.
    pub(super) fn forget_stream(&self, owner: OwnerId, stream: StreamId) {
        let mut sources = self.0.lock();
        if let Some(streams) = sources.get_mut(&owner) {
            streams.retain(|other| *other != stream);
            if streams.is_empty() {
                sources.remove(&owner);
            }
        }
    }

    /// All owners are gone.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// The owner is gone.
    pub fn forget(&self, owner: OwnerId) {
        self.0.lock().remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_streams_are_told_until_one_of_them_empties_the_owner() {
        let sources = Sources::default();
        let (owner, a, b) = (OwnerId(3), StreamId(1), StreamId(2));
        assert!(!sources.claim(owner, a));
        assert!(!sources.claim(owner, a), "one stream twice is one source");
        assert!(sources.claim(owner, b));
        assert!(sources.claim(owner, a));
        sources.reset(owner, a);
        assert!(!sources.claim(owner, a));
        assert!(sources.claim(owner, b), "the other one goes on");
        sources.forget(owner);
        assert!(!sources.claim(owner, b));
    }
}
