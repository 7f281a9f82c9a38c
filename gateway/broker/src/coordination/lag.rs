//! How long ago records came that a group has not read: by how far logs were at earlier looks.
//!
//! A log end that is seen every few seconds tells when an offset was reached, to within two looks. Older looks are
//! thinned out, so that a partition takes a bounded number of them however far a group is behind.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;

/// Looks that are remembered of a partition.
const LOOK_COUNT_MAX: usize = 32;

/// How far a log was at a moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    end: Offset,
}

/// When the ends of logs were where.
#[derive(Debug, Default)]
pub struct LagClock(BTreeMap<PartitionId, VecDeque<Look>>);

impl LagClock {
    /// A log ends there now.
    pub fn note(&mut self, now: Instant, partition: PartitionId, end: Offset) {
        let looks = self.0.entry(partition).or_default();
        // A log that was cut, or made anew, says nothing of what was before.
        if looks.back().is_some_and(|last| end < last.end) {
            looks.clear();
        }
        // While nothing comes, the first and the last look at an end are enough.
        let is_still = looks.iter().rev().take(2).filter(|look| look.end == end).count() == 2;
        if is_still {
            looks.pop_back();
        }
        looks.push_back(Look { at: now, end });
        if looks.len() > LOOK_COUNT_MAX {
            thin_out(looks);
        }
    }

    /// For how long the record at `next` has been in the log; nothing if it is not there yet. One that was there at
    /// the first look has been so for that long at least.
    pub fn age(&self, now: Instant, partition: PartitionId, next: Offset) -> Duration {
        let Some(looks) = self.0.get(&partition) else { return Duration::ZERO };
        let after = looks.partition_point(|look| look.end <= next);
        let Some(after_it) = looks.get(after) else { return Duration::ZERO };
        let Some(before) = after.checked_sub(1).and_then(|index| looks.get(index)) else {
            return now.since(after_it.at);
        };
        let between = after_it.at.since(before.at).as_secs_f64();
        let offsets = |from: Offset, to: Offset| to.get().abs_diff(from.get()) as f64;
        let share = offsets(before.end, next) / offsets(before.end, after_it.end).max(1.0);
        let came_at = before.at + Duration::from_secs_f64(between * share);
        now.since(came_at)
    }

    /// Forgets all partitions but these.
    pub fn retain(&mut self, mut stays: impl FnMut(PartitionId) -> bool) {
        self.0.retain(|partition, _| stays(*partition));
    }
}

/// Takes out every other look of the older half.
fn thin_out(looks: &mut VecDeque<Look>) {
    let half = looks.len() / 2;
    let mut index = 0;
    looks.retain(|_| {
        index += 1;
        // The first look stays: it bounds the age of all that was there before.
        index > half || index % 2 == 1
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const P: PartitionId = PartitionId::new(7);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn clock(looks: &[(u64, i64)]) -> LagClock {
        let mut clock = LagClock::default();
        for (seconds, end) in looks {
            clock.note(at(*seconds), P, Offset::new(*end));
        }
        clock
    }

    fn age(clock: &LagClock, now: u64, next: i64) -> f64 {
        clock.age(at(now), P, Offset::new(next)).as_secs_f64()
    }

    #[test]
    fn a_record_is_as_old_as_the_look_that_first_saw_it() {
        let clock = clock(&[(10, 100), (20, 200), (30, 300)]);
        for (next, expected) in [(300, 0.0), (299, 0.1), (200, 10.0), (150, 15.0), (100, 20.0)] {
            assert!((age(&clock, 30, next) - expected).abs() < 1e-6, "{next}");
        }
        assert!((age(&clock, 30, 40) - 20.0).abs() < 1e-6, "at least since the first look");
        assert!((clock.age(at(30), PartitionId::new(8), Offset::ZERO).as_secs_f64()).abs() < 1e-9);
    }

    #[test]
    fn a_record_after_a_pause_did_not_come_at_its_begin() {
        let clock = clock(&[(0, 100), (10, 100), (1000, 100), (1010, 101)]);
        assert!((age(&clock, 1010, 100) - 10.0).abs() < 1e-6);
    }

    #[test]
    fn a_log_that_was_cut_begins_anew() {
        let clock = clock(&[(0, 100), (10, 200), (20, 50)]);
        assert!((age(&clock, 30, 10) - 10.0).abs() < 1e-6);
        assert!(age(&clock, 30, 50).abs() < 1e-9);
    }

    #[test]
    fn only_what_is_asked_for_is_remembered() {
        let mut clock = clock(&[(0, 100), (10, 200)]);
        clock.retain(|partition| partition != P);
        assert!(age(&clock, 30, 10).abs() < 1e-9);
        assert!(clock.0.is_empty());
    }

    proptest! {
        /// Few looks are remembered, and however old a record is, its age is not too small by more than a few looks
        /// at that age.
        #[test]
        fn looks_are_bounded_and_ages_good(count in 40u64..3000, back in 1u64..3000) {
            let mut clock = LagClock::default();
            for step in 0..=count {
                clock.note(at(step * 10), P, Offset::new(step as i64 * 10));
            }
            prop_assert!(clock.0[&P].len() <= LOOK_COUNT_MAX);
            let back = back.min(count);
            let found = age(&clock, count * 10, (count - back) as i64 * 10);
            prop_assert!((found - (back * 10) as f64).abs() < 1.0, "{found} for {}", back * 10);
        }
    }
}
