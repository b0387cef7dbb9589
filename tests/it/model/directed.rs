//! Rules whose exact moment a random history would rarely meet, each as one small story told to the index (and to the
//! model where the model has an opinion).

use kvindexer::event::{Batch, CacheKind, GroupInfo, SkipReason};
use kvindexer::ids::{BlockSize, DuplicatePolicy, EngineHash, GroupId, LocalHash, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Clear, Limits, OwnerId, OwnerSpec, PrefixIndex, StopReason};
use kvindexer::trust::Reason;

use super::Model;
use super::batches::{Letter, Said, batch, token_bytes};
use super::check::compare;

const LIMITS: Limits =
    Limits { recent_hashes_max: 65_536, pending_blocks_max: 65_536, removals_remembered_max: 4, held_blocks_max: 0 };

/// One owner told the same things twice: to the index and to the model.
struct Story {
    owner: Owner,
    id: OwnerId,
    index: PrefixIndex,
    model: Model,
    seq: u64,
}

impl Story {
    fn new(spec: OwnerSpec) -> Self {
        let owner = Owner::new(1, 0);
        let mut index = PrefixIndex::new(BlockSize::new(1).expect("one"), LIMITS);
        let mut model = Model::new(1, LIMITS);
        model.register(&owner, spec);
        let id = index.register(&owner, spec, 0);
        Self { owner, id, index, model, seq: 0 }
    }

    fn plain() -> Self {
        Self::new(OwnerSpec::default())
    }

    /// Tells both.
    fn say(&mut self, said: &[Said]) {
        let batch = batch(said, 1);
        self.model.apply(&self.owner, &batch);
        self.tell_index(&batch);
        self.agree();
    }

    /// Tells the index only.
    fn tell_index(&mut self, batch: &Batch) {
        self.seq += 1;
        self.index.apply(self.id, batch, ApplyContext { seq: Seq(self.seq), now_ms: self.seq });
    }

    #[track_caller]
    fn agree(&self) {
        let queries: Vec<Vec<LocalHash>> = (0..=8).map(query).collect();
        compare(&self.model, &self.index, &queries).unwrap_or_else(|difference| panic!("{difference}"));
    }

    /// Device, host and disk blocks of the prompt 1, 2, .. `len`.
    fn matched(&self, len: u32) -> [u32; 3] {
        let answer = self.index.find(&query(len));
        let row = answer.owners().find(|row| *row.owner == self.owner).expect("registered");
        [row.device, row.host_pinned, row.disk]
    }

    fn has(&self, reason: Reason) -> bool {
        self.index.trust(self.id).has(reason)
    }
}

fn letters(from: u32, to: u32) -> Vec<Letter> {
    (from..=to).map(|token| Letter { token, image: None }).collect()
}

/// The prompt 1, 2, .. `len`.
fn query(len: u32) -> Vec<LocalHash> {
    let seed = Namespace::default().seed();
    letters(1, len).into_iter().map(|l| kvindexer::hash::local_hash(&token_bytes(l, 1), [], seed)).collect()
}

/// Blocks `from..=to` of the prompt, with hashes equal to their tokens.
fn store(from: u32, to: u32, tier: Tier) -> Said {
    store_in(GroupInfo::default(), (from, to), (from..=to).map(u64::from).collect(), tier)
}

fn store_in(group: GroupInfo, (from, to): (u32, u32), hashes: Vec<u64>, tier: Tier) -> Said {
    let parent = (from > 1).then(|| u64::from(from) - 1);
    Said::Stored {
        hashes,
        parent,
        letters: letters(from, to),
        block_tokens: 1,
        named: Namespace::default(),
        tier,
        group,
    }
}

fn remove(hashes: &[u64], tier: Tier) -> Said {
    remove_in(GroupInfo::default(), hashes, tier)
}

fn remove_in(group: GroupInfo, hashes: &[u64], tier: Tier) -> Said {
    Said::Removed { hashes: hashes.to_vec(), tier, group, remaining: None }
}

fn group(id: u32, kind: Option<CacheKind>, window_tokens: Option<u32>) -> GroupInfo {
    GroupInfo { id: Some(GroupId(id)), kind, window_tokens }
}

#[test]
fn sixteen_twins_in_a_row_mean_an_unnamed_hybrid_until_a_store_stands_alone() {
    let mut story = Story::plain();
    for pair in 0..7_u32 {
        let twin = Said::Stored {
            hashes: vec![u64::from(pair) + 100],
            parent: None,
            letters: letters(pair + 100, pair + 100),
            block_tokens: 1,
            named: Namespace::default(),
            tier: Tier::Device,
            group: GroupInfo::default(),
        };
        story.tell_index(&batch(&[twin.clone(), twin], 1));
    }
    assert!(!story.has(Reason::AmbiguousGroups), "two copies now and then are no hybrid");
    for pair in 0..16_u32 {
        let twin = store_in(GroupInfo::default(), (pair + 1, pair + 1), vec![u64::from(pair) + 1], Tier::Device);
        story.tell_index(&batch(&[twin.clone(), twin], 1));
    }
    assert!(story.has(Reason::AmbiguousGroups));
    story.tell_index(&batch(&[store(1, 2, Tier::Device)], 1));
    assert!(!story.has(Reason::AmbiguousGroups));
}

#[test]
fn fewer_hashes_than_blocks_without_a_group_are_skipped_and_ambiguous_until_cleared() {
    let mut story = Story::plain();
    story.say(&[store_in(GroupInfo::default(), (1, 3), vec![3], Tier::Device)]);
    assert!(story.has(Reason::AmbiguousGroups));
    assert_eq!(story.matched(3), [0, 0, 0]);
    story.say(&[Said::Cleared]);
    assert!(!story.has(Reason::AmbiguousGroups));
}

#[test]
fn a_window_must_be_whole_where_the_prefix_ends() {
    let mut story = Story::plain();
    let (main, window) = (group(0, Some(CacheKind::Full), None), group(1, Some(CacheKind::SlidingWindow), Some(3)));
    let all: Vec<u64> = (1..=6).collect();
    story.say(&[
        store_in(main, (1, 6), all.clone(), Tier::Device),
        store_in(window, (1, 6), all, Tier::Device),
        remove_in(group(1, None, None), &[1, 2, 3], Tier::Device),
    ]);
    assert_eq!(story.matched(6)[0], 6);
    assert_eq!(story.matched(4)[0], 0, "blocks 3 and 4 are the window of a prompt of 4");
    assert_eq!(story.matched(5)[0], 5);
}

#[test]
fn a_mamba_state_counts_only_where_it_ends() {
    let mut story = Story::plain();
    let (mamba, main) = (group(0, Some(CacheKind::Mamba), None), group(3, Some(CacheKind::Full), None));
    story.say(&[store_in(mamba, (1, 3), vec![3], Tier::Device), store_in(main, (1, 3), vec![1, 2, 3], Tier::Device)]);
    assert_eq!([story.matched(3)[0], story.matched(2)[0]], [3, 0]);
    assert_eq!(story.index.trust(story.id).reasons().filter(|r| *r != Reason::NotConnected).count(), 0);
    story.say(&[store_in(main, (4, 5), vec![4, 5], Tier::Device)]);
    assert_eq!(story.matched(5)[0], 3);
}

#[test]
fn a_side_group_that_stores_nothing_counts_from_that_store_on() {
    let mut story = Story::plain();
    story.say(&[store_in(group(0, Some(CacheKind::Full), None), (1, 2), vec![1, 2], Tier::Device)]);
    assert_eq!(story.matched(2)[0], 2);
    story.say(&[store_in(group(1, Some(CacheKind::Mamba), None), (1, 2), vec![], Tier::Device)]);
    assert_eq!(story.matched(2)[0], 0);
}

#[test]
fn copies_are_counted_from_the_first_store_also_before_the_model_is_known_to_be_hybrid() {
    let mut story = Story::plain();
    let main = group(0, Some(CacheKind::Full), None);
    story.say(&[store_in(main, (1, 2), vec![1, 2], Tier::Device)]);
    story.say(&[store_in(main, (1, 2), vec![1, 2], Tier::Device)]);
    story.say(&[store_in(group(1, Some(CacheKind::Mamba), None), (1, 2), vec![2], Tier::Device)]);
    story.say(&[remove_in(main, &[2], Tier::Device)]);
    assert_eq!(story.matched(2)[0], 2, "one copy is left");
    story.say(&[remove_in(main, &[2], Tier::Device)]);
    assert_eq!(story.matched(2)[0], 0);
}

#[test]
fn without_kinds_group_zero_is_the_prefix_until_it_proves_incomplete() {
    let mut story = Story::plain();
    story.say(&[store_in(group(0, None, None), (1, 3), vec![1, 2, 3], Tier::Device)]);
    assert_eq!(story.matched(3)[0], 3);
    assert!(story.has(Reason::UnknownGroup));
    story.say(&[store_in(group(1, None, None), (1, 3), vec![3], Tier::Device)]);
    assert_eq!([story.matched(3)[0], story.matched(2)[0]], [3, 0]);

    let mut story = Story::plain();
    story.say(&[
        store_in(group(0, None, None), (1, 3), vec![3], Tier::Device),
        store_in(group(1, None, None), (1, 3), vec![1, 2, 3], Tier::Device),
    ]);
    assert_eq!([story.matched(3)[0], story.matched(2)[0]], [3, 0], "group 1 is the prefix, group 0 holds the state");
}

#[test]
fn a_smaller_store_is_a_partial_tail_only_beside_whole_blocks() {
    for (whole_first, mismatch) in [(true, false), (false, true)] {
        let mut index = PrefixIndex::new(BlockSize::new(4).expect("four"), LIMITS);
        let id = index.register(&Owner::new(1, 0), OwnerSpec::default(), 0);
        let said = |tokens: u32| Said::Stored {
            hashes: vec![u64::from(tokens)],
            parent: None,
            letters: letters(1, 1),
            block_tokens: tokens,
            named: Namespace::default(),
            tier: Tier::Device,
            group: GroupInfo::default(),
        };
        if whole_first {
            index.apply(id, &batch(&[said(4)], 4), ApplyContext { seq: Seq(0), now_ms: 1 });
        }
        let mut partial = batch(&[said(2)], 4);
        let kvindexer::event::Event::Stored(stored) = &mut partial.events[0] else { panic!("a store") };
        stored.token_bytes.end -= 8;
        index.apply(id, &partial, ApplyContext { seq: Seq(1), now_ms: 2 });
        assert_eq!(index.trust(id).has(Reason::BlockSizeMismatch), mismatch, "whole first: {whole_first}");
        assert_eq!(index.report(id).announced_block_size, mismatch.then_some(2));
        assert_eq!(index.report(id).skipped[SkipReason::BlockSize as usize], u64::from(mismatch));
    }
}

#[test]
fn host_blocks_continue_the_device_prefix_by_content_and_only_with_their_own_chain() {
    let mut story = Story::plain();
    let own_chain = Said::Stored {
        hashes: vec![91, 92, 93, 94],
        parent: None,
        letters: letters(1, 4),
        block_tokens: 1,
        named: Namespace::default(),
        tier: Tier::HostPinned,
        group: GroupInfo::default(),
    };
    story.say(&[store(1, 2, Tier::Device), own_chain]);
    assert_eq!(story.matched(4), [2, 4, 4]);
    story.say(&[remove(&[92], Tier::HostPinned)]);
    assert_eq!(story.matched(4), [2, 2, 2], "block 93 hangs below 92, which is gone; 2 does not carry it");
    story.say(&[remove(&[1], Tier::Device)]);
    assert_eq!(story.matched(4), [0, 1, 1]);
}

#[test]
fn a_hash_only_store_finds_its_place_after_a_clear_but_not_after_a_new_life() {
    for (clear, found) in [(Clear::AllBlocksCleared, 2), (Clear::NewLife, 0)] {
        let mut story = Story::plain();
        story.say(&[store(1, 2, Tier::Device)]);
        story.model.clear(&story.owner, clear);
        story.index.clear(story.id, clear, 9);
        story.say(&[Said::Bare { hashes: vec![1, 2], tier: Tier::HostPinned, group: GroupInfo::default() }]);
        assert_eq!(story.matched(2), [0, found, found], "{clear:?}");
        assert_eq!(story.has(Reason::Skipped), found == 0, "{clear:?}");
    }
}

#[test]
fn over_the_memory_limit_stores_are_skipped_and_removals_go_on() {
    let mut story = Story::plain();
    story.say(&[store(1, 2, Tier::Device)]);
    story.model.over_memory = true;
    story.index.set_memory_pressure(true, 5);
    story.say(&[store(3, 3, Tier::Device), remove(&[2], Tier::Device)]);
    assert_eq!(story.matched(3)[0], 1);
    assert!(story.has(Reason::Memory));
    assert_eq!(story.index.report(story.id).skipped[SkipReason::Memory as usize], 1);
}

#[test]
fn lower_tiers_age_by_batch_time_and_the_device_does_not() {
    let mut story = Story::new(OwnerSpec { lower_tier_ttl_ms: Some(1000), ..OwnerSpec::default() });
    let at = |time: u64, said: &[Said]| Batch { timestamp_ms: Some(time), ..batch(said, 1) };
    story.tell_index(&at(10_000, &[store(1, 1, Tier::Device), store(2, 2, Tier::HostPinned)]));
    story.tell_index(&at(10_900, &[store(3, 3, Tier::HostPinned)]));
    assert_eq!(story.matched(3), [1, 3, 3]);
    story.tell_index(&at(11_500, &[]));
    assert_eq!(story.matched(3), [1, 1, 1], "block 2 is older than a second, block 3 hangs below it");
    assert_eq!(story.index.report(story.id).blocks, [1, 1, 0, 0]);
    story.tell_index(&at(99_000, &[]));
    assert_eq!(story.index.report(story.id).blocks, [1, 0, 0, 0]);
}

#[test]
fn policies_differ_in_what_one_removal_of_two_copies_leaves() {
    for (policy, left) in [(DuplicatePolicy::Auto, 0), (DuplicatePolicy::Set, 0), (DuplicatePolicy::Copies, 1)] {
        let mut story = Story::new(OwnerSpec { policy, ..OwnerSpec::default() });
        story.say(&[store(1, 1, Tier::Device), store(1, 1, Tier::Device), remove(&[1], Tier::Device)]);
        assert_eq!(story.matched(1)[0], left, "{policy:?}");
    }
}

#[test]
fn explain_names_the_removal_while_it_is_remembered() {
    let mut story = Story::plain();
    story.say(&[store(1, 3, Tier::Device)]);
    story.say(&[remove(&[2], Tier::Device)]);
    let reason = |story: &Story| story.index.explain(&query(3))[0].device_end.reason.clone();
    assert_eq!(reason(&story), StopReason::Removed { hash: EngineHash(2), seq: Seq(2), at_ms: 2 });
    assert_eq!(story.index.explain(&query(1))[0].device_end.reason, StopReason::WholeQuery);
    for other in 0..5_u64 {
        story.say(&[store_in(GroupInfo::default(), (1, 1), vec![1000 + other], Tier::Disk)]);
        story.say(&[remove(&[1000 + other], Tier::Disk)]);
    }
    assert_eq!(reason(&story), StopReason::RemovedOrNeverStored, "four removals are remembered");
}
