//! Chains of which only hashes are known: what a dump of another service says.

use smallvec::SmallVec;

use super::super::api::{ApplyContext, OwnerId};
use super::super::index::PrefixIndex;
use super::super::pending::{PendingBlock, Stores};
use super::super::record::Writer;
use super::super::store::Run;
use crate::event::SkipReason;
use crate::ids::{EngineHash, LocalHash, Namespace, Tier};

impl PrefixIndex {
    /// Holds a chain of blocks of which only hashes are known (`/dump`). A parent that is unknown makes them wait; the
    /// namespace is the parent's, plain at the root. Holding a block again on the same tier is no second copy.
    pub fn load(
        &mut self,
        owner: OwnerId,
        tier: Tier,
        chain: (Option<EngineHash>, &[(EngineHash, LocalHash)]),
        context: ApplyContext,
    ) {
        let over_limit = self.over_limit();
        self.write(owner, context, |writer| {
            if over_limit {
                writer.me.skip(SkipReason::Memory, writer.now_ms);
                return;
            }
            writer.joining = true;
            writer.load(tier as usize, chain);
            writer.reclaim();
        });
        self.keep_bound(context.now_ms);
    }
}

impl Writer<'_> {
    fn load(&mut self, row: usize, (parent, blocks): (Option<EngineHash>, &[(EngineHash, LocalHash)])) {
        if blocks.is_empty() {
            return;
        }
        let parent = match parent {
            None => None,
            Some(hash) => match self.newest(hash.0) {
                Some(place) => Some((place, hash.0)),
                None => return self.load_waiting(row, hash.0, blocks),
            },
        };
        let namespace = self.namespace_below(parent, Namespace::default()).unwrap_or_default();
        let hashes: SmallVec<[u64; 64]> = blocks.iter().map(|(hash, _)| hash.0).collect();
        let locals: SmallVec<[u64; 64]> = blocks.iter().map(|(_, local)| local.0).collect();
        self.drop_conflicts(&hashes, namespace);
        self.store_run(Run { hashes: &hashes, locals: &locals, row, namespace, parent });
        self.join(&hashes);
    }

    fn load_waiting(&mut self, row: usize, parent: u64, blocks: &[(EngineHash, LocalHash)]) {
        let mut parent = parent;
        for (EngineHash(hash), LocalHash(local)) in blocks {
            self.me.pending.get_or_insert_default().insert(PendingBlock {
                hash: *hash,
                parent,
                token_bytes: Box::default(),
                extras: Box::default(),
                named: Namespace::default(),
                locals: Box::new([*local]),
                rows: 1 << row,
                stores: SmallVec::from_elem(Stores { group: None, row: row as u8, count: 1 }, 1),
            });
            parent = *hash;
        }
        self.trim_pending();
        self.me.judge_pending(self.now_ms);
    }
}
