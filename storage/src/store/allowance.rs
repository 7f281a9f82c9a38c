//! What background work may read or ask for now, of a bound per second.

use std::time::Duration;

use meridian_base::env::Instant;

/// Bytes earned with time, and spent.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// Bytes that may be spent now; below zero after a large read.
    bytes: i64,
    earned_at: Instant,
}

impl Allowance {
    /// Nothing yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { bytes: 0, earned_at: now }
    }

    /// Adds what was earned since the last time; what nothing was done with for long is not kept.
    pub(super) fn earn(&mut self, now: Instant, bytes_per_second: u64) {
        let rested_us = now.since(self.earned_at).as_micros().min(1_000_000) as u64;
        let earned_bytes = bytes_per_second.saturating_mul(rested_us) / 1_000_000;
        if earned_bytes > 0 {
            self.earned_at = now;
            let most_bytes = i64::try_from((bytes_per_second / 4).max(1)).unwrap_or(i64::MAX);
            self.bytes = self.bytes.saturating_add_unsigned(earned_bytes).min(most_bytes);
        }
    }

    /// Earns if there is a bound. Without one nothing is owed for what is spent: one that comes counts from then.
    pub(super) fn earn_if_bound(&mut self, now: Instant, bytes_per_second: Option<u64>) {
        match bytes_per_second {
            Some(bytes_per_second) => self.earn(now, bytes_per_second),
            None => *self = Self::new(now),
        }
    }

    pub(super) fn is_left(&self) -> bool {
        self.bytes > 0
    }

    /// When something is left again.
    pub(super) fn left_at(&self, now: Instant, bytes_per_second: u64) -> Instant {
        let missing_bytes = self.bytes.min(0).unsigned_abs() + 1;
        let after_us = missing_bytes.saturating_mul(1_000_000).div_ceil(bytes_per_second.max(1));
        now + Duration::from_micros(after_us)
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_when_something_is_left_again() {
        let at = |us: u64| Instant::from_micros(us);
        let mut allowance = Allowance::new(at(0));
        allowance.spend(70_000);
        let left_at = allowance.left_at(at(0), 1_000_000);
        allowance.earn(at(left_at.as_micros() - 1), 1_000_000);
        assert!(!allowance.is_left());
        allowance.earn(left_at, 1_000_000);
        assert!(allowance.is_left());
    }

    #[test]
    fn what_is_spent_without_a_bound_is_not_owed() {
        let at = |ms: u64| Instant::from_micros(ms * 1000);
        let mut allowance = Allowance::new(at(0));
        allowance.earn_if_bound(at(0), None);
        allowance.spend(1_000_000_000);
        allowance.earn_if_bound(at(1_000), None);
        assert!(!allowance.is_left(), "nor is what was not spent kept");
        allowance.earn_if_bound(at(1_001), Some(1_000_000));
        assert!(allowance.is_left());
    }

    #[test]
    fn no_more_is_spent_than_is_earned_whatever_the_size_of_what_is_read() {
        let at = |ms: u64| Instant::from_micros(ms * 1000);
        let mut allowance = Allowance::new(at(0));
        assert!(!allowance.is_left());
        let mut spent = 0;
        for ms in 1..=10_000 {
            allowance.earn(at(ms), 1_000_000);
            if allowance.is_left() {
                allowance.spend(70_000);
                spent += 70_000;
            }
        }
        assert!((9_900_000..=10_070_000).contains(&spent), "{spent}");
        allowance.earn(at(60_000), 1_000_000);
        let burst = (0..).take_while(|_| {
            let is_left = allowance.is_left();
            allowance.spend(50_000);
            is_left
        });
        assert!(burst.count() <= 5, "a rest is not made up for");
    }
}
