//! Going on with owners whose content was replaced, and what of a feed others see while they hold a lock of the index.

use std::sync::Arc;

use crate::ids::DpRank;
use crate::image::Position;
use crate::index::OwnerId;
use crate::ingest::applied::{Adoption, Applied};
use crate::ingest::feed::{Fed, Feed};
use crate::trust::Reason;

impl Feed {
    /// Goes on with owners whose content was replaced, or with those that were there. `ranks`: those that the adopted
    /// state knows, registered or not. Returns registered ranks that need the history of this stream from elsewhere.
    pub(in crate::ingest) fn adopt(&mut self, adoption: Adoption, ranks: &[DpRank], now_ms: u64) -> Vec<DpRank> {
        self.blind = false;
        let shared = Arc::clone(&self.to.index);
        let mut index = shared.write();
        let mut known: Vec<Fed> = std::mem::take(&mut self.owners);
        for rank in ranks {
            if !known.iter().any(|fed| fed.rank == *rank) {
                known.push(Fed::new(*rank, OwnerId(u32::MAX), false));
            }
        }
        let mut without_history = Vec::new();
        for fed in known {
            self.to.sources.forget_stream(fed.id, self.to.stream);
            let taken = ranks.contains(&fed.rank);
            let stays = fed.registered || taken || adoption == Adoption::Keep;
            let Some(id) = index.owner_id(&self.owner(fed.rank)).filter(|_| stays) else {
                continue;
            };
            let trust = index.trust(id);
            let fed = match adoption {
                Adoption::Keep => Fed { id, ..fed },
                Adoption::Snapshot(position) if taken => Fed {
                    lost: position.holes && trust.has(Reason::Gap),
                    incomplete: position.holes && trust.has(Reason::ReplayIncomplete),
                    ..Fed::new(fed.rank, id, fed.registered)
                },
                Adoption::Snapshot(position) => {
                    without_history.extend(position.mark.map(|_| fed.rank));
                    Fed::new(fed.rank, id, fed.registered)
                }
                Adoption::Unplaced => {
                    for (reason, holds) in [(Reason::NoWatermark, true), (Reason::NothingHeard, false)] {
                        if taken {
                            index.set_reason(id, reason, holds, now_ms);
                        }
                    }
                    Fed::new(fed.rank, id, fed.registered)
                }
            };
            if !fed.foreign {
                self.to.sources.claim(id, self.to.stream);
            }
            self.owners.push(fed);
        }
        if let Adoption::Snapshot(position) = adoption {
            self.heard = position.heard;
        }
        if adoption != Adoption::Keep {
            self.catching_up = false;
        }
        self.owners.iter().for_each(|fed| self.show(&mut index, fed, now_ms));
        self.note_adoption(adoption);
        without_history
    }

    fn note_adoption(&self, adoption: Adoption) {
        let mut applied = self.to.applied.lock();
        match adoption {
            Adoption::Keep => {}
            Adoption::Snapshot(position) => applied.place(position),
            Adoption::Unplaced => applied.place(Position::default()),
        }
        self.note_flags(&mut applied);
        drop(applied);
        self.note_owners();
    }

    /// Shows in [`Applied`] whom this stream feeds. Under a lock of the index.
    pub(super) fn note_owners(&self) {
        let mut applied = self.to.applied.lock();
        applied.owners.clear();
        applied.owners.extend(self.owners.iter().filter(|fed| !fed.foreign).map(|fed| (fed.rank, fed.id)));
    }

    pub(super) fn note_flags(&self, applied: &mut Applied) {
        applied.position.connected = self.connected;
        applied.position.heard = self.heard;
        applied.position.unverified = self.owners.iter().any(|fed| fed.unverified);
        applied.position.holes = self.owners.iter().any(|fed| fed.lost || fed.incomplete || fed.joining);
    }
}
