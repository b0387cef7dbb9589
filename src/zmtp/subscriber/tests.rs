//! Pauses between attempts.

use super::*;

#[test]
fn pauses_grow_from_the_shortest_to_the_longest_and_never_leave_these_bounds() {
    let timing = Timing::default();
    for _ in 0..200 {
        let mut backoff = Backoff::new(timing);
        let mut ceiling = timing.backoff_min * 2;
        for _ in 0..10 {
            let pause = backoff.pause();
            assert!((timing.backoff_min..=ceiling).contains(&pause), "{pause:?} above {ceiling:?}");
            ceiling = (ceiling * 2).min(timing.backoff_max);
        }
        assert_eq!(backoff.ceiling, timing.backoff_max);
    }
}

#[test]
fn only_a_connection_that_lived_sets_the_pause_back() {
    let timing = Timing::default();
    let mut backoff = Backoff::new(timing);
    for _ in 0..10 {
        let _ = backoff.pause();
    }
    backoff.connection_lived(timing.stable_after - Duration::from_millis(1));
    assert_eq!(backoff.ceiling, timing.backoff_max);
    backoff.connection_lived(timing.stable_after);
    assert_eq!(backoff.ceiling, timing.backoff_min * 2);
}
