//! Comparing an owner with what its publisher's whole replay makes of it.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{EngineHash, IndexKey, LocalHash, Owner, Tier};
use crate::index::DumpBlock;
use crate::ingest::{self, Handle, RebuildSpec};
use crate::registry::core::Core;
use crate::registry::state::StreamEntry;
use crate::registry::{Error, Verification, WorkerSpec};
use crate::zmtp::Endpoint;

/// Differing blocks that are named.
const BLOCKS_NAMED: usize = 10;

/// What makes two blocks the same.
type Identity = (Tier, Option<EngineHash>, EngineHash, LocalHash);

/// A worker that can be asked.
struct Asked {
    spec: WorkerSpec,
    replay_endpoint: Endpoint,
    handle: Handle,
    turn: Arc<tokio::sync::Semaphore>,
    index: Arc<crate::index::SharedIndex>,
}

impl Core {
    pub(super) async fn verify(&self, key: &IndexKey, owner: &Owner, idle: Duration) -> Result<Verification, Error> {
        let Asked { spec, replay_endpoint, handle, turn, index } = self.asked(key, owner)?;
        let (position, live) = {
            let index = index.read();
            let blocks = index.owner_id(owner).map(|id| index.dump(id)).unwrap_or_default();
            (handle.applied().position, blocks)
        };
        let Some(upto) = position.mark else {
            let live_blocks = live.len() as u64;
            return Ok(Verification {
                owner: owner.clone(),
                at: None,
                replayed_from: None,
                complete: false,
                rebuilt_blocks: 0,
                live_blocks,
                missing: (0, Vec::new()),
                surplus: named(live),
            });
        };
        let rebuilt = ingest::rebuild(
            Arc::clone(&self.shared),
            RebuildSpec {
                owner: owner.clone(),
                owner_spec: spec.owner_spec,
                block_size: spec.block_size,
                limits: self.index_limits,
                default_lora: spec.default_lora,
                replay_endpoint,
                turn,
                upto,
                counts_from_one: position.counts_from_one,
                idle,
            },
        )
        .await;
        if !rebuilt.answered {
            return Err(Error::NoAnswer { instance: owner.instance.clone(), rank: owner.rank });
        }
        let blocks = rebuilt.index.dump(rebuilt.owner);
        let (rebuilt_blocks, live_blocks) = (blocks.len() as u64, live.len() as u64);
        let (missing, surplus) = differences(blocks, live).await;
        Ok(Verification {
            owner: owner.clone(),
            at: Some(upto.seq),
            replayed_from: rebuilt.from,
            complete: rebuilt.complete,
            rebuilt_blocks,
            live_blocks,
            missing,
            surplus,
        })
    }

    fn asked(&self, key: &IndexKey, owner: &Owner) -> Result<Asked, Error> {
        let (instance, rank) = (owner.instance.clone(), owner.rank);
        let state = self.state.read();
        let entry = state.indexes.get(key);
        let entry = entry.and_then(|entry| Some((entry, entry.instances.get(&owner.instance)?)));
        let Some((index, entry)) = entry else {
            return Err(Error::UnknownInstance(instance));
        };
        let Some(worker) = entry.ranks.get(&owner.rank) else {
            return Err(Error::UnknownRank { instance, rank });
        };
        let handle = state.stream(&worker.spec).and_then(StreamEntry::handle);
        let replay_endpoint = worker.spec.replay_endpoint.clone();
        let (Some(handle), Some(replay_endpoint)) = (handle, replay_endpoint) else {
            return Err(Error::NoReplayEndpoint { instance, rank });
        };
        let (turn, index) = (Arc::clone(&entry.turn), Arc::clone(&index.to.index));
        Ok(Asked { spec: worker.spec.clone(), replay_endpoint, handle, turn, index })
    }
}

/// Blocks of the first that the second lacks, and the other way round. Sorting millions is no work for a task that
/// shares its thread.
async fn differences(rebuilt: Vec<DumpBlock>, live: Vec<DumpBlock>) -> (Named, Named) {
    let work = tokio::task::spawn_blocking(move || {
        let (rebuilt, live) = (sorted(rebuilt), sorted(live));
        (named(without(&rebuilt, &live)), named(without(&live, &rebuilt)))
    });
    match work.await {
        Ok(differences) => differences,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => std::future::pending().await, // Only when the runtime is being dropped, and we with it.
    }
}

/// How many, and the first ones.
type Named = (u64, Vec<DumpBlock>);

fn named(mut blocks: Vec<DumpBlock>) -> Named {
    let count = blocks.len() as u64;
    blocks.truncate(BLOCKS_NAMED);
    (count, blocks)
}

fn identity(block: &DumpBlock) -> Identity {
    (block.tier, block.parent, block.hash, block.local)
}

fn sorted(mut blocks: Vec<DumpBlock>) -> Vec<DumpBlock> {
    blocks.sort_unstable_by_key(identity);
    blocks
}

/// Those of `these` that are not in `others`; both sorted.
fn without(these: &[DumpBlock], others: &[DumpBlock]) -> Vec<DumpBlock> {
    let has = |block: &&DumpBlock| others.binary_search_by_key(&identity(block), identity).is_err();
    these.iter().filter(has).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(hash: u64, parent: Option<u64>) -> DumpBlock {
        let (hash, parent) = (EngineHash(hash), parent.map(EngineHash));
        DumpBlock { tier: Tier::Device, parent, hash, local: LocalHash(7), pending: false }
    }

    #[tokio::test]
    async fn blocks_that_only_one_state_has_are_counted_and_the_first_named() {
        let rebuilt = (0..30).map(|hash| block(hash, None)).collect();
        let live = vec![block(3, None), block(4, Some(3)), block(40, None)];
        let (missing, surplus) = differences(rebuilt, live).await;
        assert_eq!((missing.0, missing.1.len(), &missing.1[3]), (29, BLOCKS_NAMED, &block(4, None)));
        assert_eq!(surplus, (2, vec![block(40, None), block(4, Some(3))]));
    }
}
