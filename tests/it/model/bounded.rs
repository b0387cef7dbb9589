//! With a bound on held blocks every answer is a lower bound of the exact one, and owners that lost nothing stay exact.

use kvindexer::event::GroupInfo;
use kvindexer::hash;
use kvindexer::ids::{BlockSize, LocalHash, Namespace, Owner, Seq, Tier};
use kvindexer::index::{ApplyContext, Clear, Limits, OwnerSpec, PrefixIndex};
use kvindexer::trust::Reason;

use super::Model;
use super::batches::{Letter, Said, batch, token_bytes};

const OWNERS: u64 = 3;
const DEPTH: usize = 7;

/// A path of letters 1 to 3; its blocks are told apart by what stands above them.
fn path(rng: &mut fastrand::Rng) -> Vec<u32> {
    (0..rng.usize(1..=DEPTH)).map(|_| rng.u32(1..=3)).collect()
}

/// The engine hash of the last block of a path. The first two owners give equal ones.
fn engine(owner: u64, path: &[u32]) -> u64 {
    path.iter().fold(if owner == 2 { 7 } else { 1 }, |above, letter| above * 5 + u64::from(*letter))
}

/// One or two events of an owner.
fn said(rng: &mut fastrand::Rng, owner: u64) -> Vec<Said> {
    let one = |rng: &mut fastrand::Rng| {
        let path = path(rng);
        let from = rng.usize(..path.len());
        let hashes = |from: usize| (from..path.len()).map(|at| engine(owner, &path[..=at])).collect::<Vec<_>>();
        let tier = if rng.u32(..4) == 0 { Tier::HostPinned } else { Tier::Device };
        match rng.u32(..20) {
            0..=10 => Said::Stored {
                hashes: hashes(from),
                parent: (from > 0).then(|| engine(owner, &path[..from])),
                letters: path[from..].iter().map(|token| Letter { token: *token, image: None }).collect(),
                block_tokens: 1,
                named: Namespace::default(),
                tier,
                group: GroupInfo::default(),
            },
            11..=12 => Said::Bare { hashes: hashes(from), tier, group: GroupInfo::default() },
            13..=18 => Said::Removed {
                hashes: hashes(from).into_iter().rev().collect(),
                tier,
                group: GroupInfo::default(),
                remaining: None,
            },
            _ => Said::Cleared,
        }
    };
    (0..rng.usize(1..=2)).map(|_| one(rng)).collect()
}

fn query(path: &[u32]) -> Vec<LocalHash> {
    let seed = Namespace::default().seed();
    path.iter()
        .map(|token| hash::local_hash(&token_bytes(Letter { token: *token, image: None }, 1), [], seed))
        .collect()
}

/// Compares; returns how many rows were smaller.
fn compare(model: &Model, index: &PrefixIndex, lost: &[bool], query: &[LocalHash]) -> u64 {
    let (exact, answer) = (model.find(query), index.find(query));
    let mut smaller = 0;
    for row in &exact.rows {
        let found = answer.owners().find(|found| *found.owner == row.owner).expect("every owner is registered");
        let reach = [found.device, found.host_pinned, found.disk];
        assert!(reach.iter().zip(row.reach).all(|(found, exact)| *found <= exact), "{found:?} of {row:?}");
        let owner = (0..OWNERS).find(|owner| Owner::new(*owner, 0) == row.owner).expect("one of ours");
        assert!(lost[owner as usize] || reach == row.reach, "lost nothing, {found:?} of {row:?}");
        smaller += u64::from(reach != row.reach);
    }
    let counts: Vec<u32> = answer.frequencies.iter().collect();
    assert!(counts.len() <= exact.frequencies.len());
    assert!(counts.iter().zip(&exact.frequencies).all(|(found, exact)| found <= exact));
    smaller
}

#[test]
fn a_bound_on_held_blocks_makes_answers_lower_bounds_and_only_of_owners_that_lost_blocks() {
    let limits = Limits { recent_hashes_max: 65_536, pending_blocks_max: 65_536, ..Limits::default() };
    let (mut smaller, mut exact, mut clears) = (0, 0, 0);
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let max = rng.u64(1..90);
        let mut model = Model::new(1, limits);
        let limits = Limits { held_blocks_max: max, ..limits };
        let mut index = PrefixIndex::new(BlockSize::new(1).expect("one"), limits);
        let owners: Vec<Owner> = (0..OWNERS).map(|owner| Owner::new(owner, 0)).collect();
        let ids: Vec<_> = owners.iter().map(|owner| index.register(owner, OwnerSpec::default(), 0)).collect();
        owners.iter().for_each(|owner| model.register(owner, OwnerSpec::default()));
        let mut lost = vec![false; OWNERS as usize];
        for seq in 1..150 {
            let at = rng.usize(..owners.len());
            if rng.u32(..60) == 0 {
                model.clear(&owners[at], Clear::NewLife);
                index.clear(ids[at], Clear::NewLife, seq);
                lost[at] = false;
                clears += 1;
            } else {
                let before: Vec<u64> = ids.iter().map(|id| index.report(*id).evicted_blocks).collect();
                let said = said(&mut rng, at as u64);
                let batch = batch(&said, 1);
                model.apply(&owners[at], &batch);
                index.apply(ids[at], &batch, ApplyContext { seq: Seq(seq), now_ms: seq });
                lost[at] &= !said.iter().any(|event| matches!(event, Said::Cleared));
                for (at, before) in before.iter().enumerate() {
                    // Blocks that came behind a clear in one batch may be lost again.
                    let again = index.trust(ids[at]).has(Reason::Memory);
                    lost[at] |= index.report(ids[at]).evicted_blocks > *before && again;
                }
            }
            assert!(index.stats().held_blocks <= max, "seed {seed}: {:?} of {max}", index.stats());
            for (at, id) in ids.iter().enumerate() {
                assert_eq!(index.trust(*id).has(Reason::Memory), lost[at], "seed {seed}, owner {at}");
            }
            index.audit().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            for _ in 0..4 {
                smaller += compare(&model, &index, &lost, &query(&path(&mut rng)));
                exact += u64::from(lost.contains(&false));
            }
        }
    }
    assert!(smaller > 1_000 && exact > 1_000 && clears > 50, "{smaller} smaller, {exact} exact, {clears} clears");
}
