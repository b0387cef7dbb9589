//! An owner's whole state as plain values, and back: what another replica, a file or a comparison needs.

use super::api::{ApplyContext, OwnerDigest, OwnerId};
use super::index::PrefixIndex;
use crate::ids::{EngineHash, LocalHash, Tier};
use crate::image::Image;

/// Why an image cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Numbers in it do not fit together.
    #[error("image is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl PrefixIndex {
    /// An empty index of the same block size and bounds whose owner ids never equal those of `self`.
    #[must_use]
    pub fn successor(&self) -> Self {
        todo!("index")
    }

    /// Everything that decides later answers of these owners. Owners that are gone are left out.
    #[must_use]
    pub fn export(&self, _owners: &[OwnerId]) -> Image {
        todo!("index")
    }

    /// Takes the owners of an image, which replace owners of the same name; an owner that was registered here stays so.
    /// All or nothing.
    ///
    /// # Errors
    /// The image is inconsistent; nothing was changed.
    pub fn import(&mut self, _image: &Image, _now_ms: u64) -> Result<(), ImportError> {
        todo!("index")
    }

    /// Holds a chain of blocks of which only hashes are known (`/dump`). A parent that is unknown makes them wait.
    pub fn load(
        &mut self,
        _owner: OwnerId,
        _tier: Tier,
        _chain: (Option<EngineHash>, &[(EngineHash, LocalHash)]),
        _context: ApplyContext,
    ) {
        todo!("index")
    }

    /// Order-free digest of what an owner holds.
    #[must_use]
    pub fn digest(&self, _owner: OwnerId) -> OwnerDigest {
        todo!("index")
    }
}
