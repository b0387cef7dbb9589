//! Whether a list of hashes names one of them twice, without allocating for lists of usual length.

use crate::ids::EngineHash;

/// Up to this many hashes, comparing each with each is the fastest.
const PAIRWISE_MAX: usize = 8;
/// Slots of the table on the stack: 16 KiB, a power of two.
const SLOTS: usize = 2048;
/// Half of the slots, so that probes stay short.
const TABLE_MAX: usize = SLOTS / 2;
/// Hashes chosen to collide could make probing quadratic; beyond this many probes per hash the list is sorted instead.
const PROBES_PER_HASH_MAX: usize = 16;

/// True when no hash occurs twice.
pub(super) fn all_distinct(hashes: &[EngineHash]) -> bool {
    if hashes.len() <= PAIRWISE_MAX {
        return hashes.iter().enumerate().all(|(i, hash)| !hashes[..i].contains(hash));
    }
    if hashes.len() <= TABLE_MAX
        && let Some(distinct) = distinct_by_table(hashes)
    {
        return distinct;
    }
    let mut sorted = hashes.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// None when probing takes too long. Zero marks a free slot, so the hash zero is counted apart.
fn distinct_by_table(hashes: &[EngineHash]) -> Option<bool> {
    let mut table = [0_u64; SLOTS];
    let mut zero_seen = false;
    let mut probes_left = hashes.len() * PROBES_PER_HASH_MAX;
    for &EngineHash(hash) in hashes {
        if hash == 0 {
            if zero_seen {
                return Some(false);
            }
            zero_seen = true;
            continue;
        }
        let mut slot = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize;
        while table[slot] != 0 {
            if table[slot] == hash {
                return Some(false);
            }
            probes_left = probes_left.checked_sub(1)?;
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = hash;
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_is_found_at_every_length_and_place() {
        for len in [2, 8, 9, 100, 1024, 1025, 3000] {
            let hashes: Vec<_> = (0..len).map(|i: u64| EngineHash(i.wrapping_mul(0x1234_5678_9abc_def1))).collect();
            assert!(all_distinct(&hashes), "{len}");
            for (from, to) in [(0, 1), (0, len - 1), (len / 2, len - 1)].map(|(a, b)| (a as usize, b as usize)) {
                if from == to {
                    continue;
                }
                let mut repeated = hashes.clone();
                repeated[to] = repeated[from];
                assert!(!all_distinct(&repeated), "{len} {from} {to}");
            }
        }
        assert!(all_distinct(&[]));
    }

    #[test]
    fn hashes_chosen_to_collide_are_still_judged_right() {
        // All of them fall into slot 0 of the table.
        let inverse =
            (0..5).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(x))));
        let inverse =
            (0..2).fold(inverse, |x, _| x.wrapping_mul(2_u64.wrapping_sub(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(x))));
        let mut hashes: Vec<_> = (1..=1000).map(|i: u64| EngineHash(i.wrapping_mul(inverse))).collect();
        assert!(hashes.iter().all(|hash| hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53 == 0));
        assert!(all_distinct(&hashes));
        hashes[999] = hashes[3];
        assert!(!all_distinct(&hashes));
    }
}
