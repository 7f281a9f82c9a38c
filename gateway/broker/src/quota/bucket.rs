//! A bucket that fills at a rate, and may be overdrawn once. Pure.

use std::time::Duration;

use meridian_base::env::Instant;

/// What a full bucket holds, as time at its rate: after a pause somebody may be faster for this long.
pub const BURST: Duration = Duration::from_secs(1);
/// No debt is longer than this at the whole rate of the quota.
pub const DEBT_MAX: Duration = Duration::from_secs(3600);

/// A bucket. Its rate may change; what it owes does not change with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Less than nothing while it is overdrawn.
    units: f64,
    at: Instant,
    per_second: f64,
    /// All that was ever taken.
    taken: u64,
}

/// How far a bucket must be paid for whoever has taken from it to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position(u64);

impl Bucket {
    /// A full one.
    pub fn new(now: Instant, per_second: f64) -> Self {
        Self { units: capacity(per_second), at: now, per_second, taken: 0 }
    }

    /// Fills it until now; from now on it has this rate. Between two rates the lower one counts.
    pub fn fill(&mut self, now: Instant, per_second: f64) {
        let elapsed = now.since(self.at).as_secs_f64();
        let filled = self.units + elapsed * self.per_second.min(per_second);
        self.units = filled.min(capacity(per_second));
        self.at = self.at.max(now);
        self.per_second = per_second;
    }

    /// Takes `amount` under a quota of `limit_per_second`, of which the bucket may have a share. Fill it before.
    pub fn take(&mut self, amount: u64, limit_per_second: f64) -> Position {
        self.taken = self.taken.wrapping_add(amount);
        self.units = (self.units - amount as f64).max(-limit_per_second * DEBT_MAX.as_secs_f64());
        Position(self.taken)
    }

    /// Where it is now, with nothing taken.
    pub fn position(&self) -> Position {
        Position(self.taken)
    }

    /// What is still to be paid of all that was taken up to a position.
    pub fn owed(&self, position: Position) -> f64 {
        // Of a bucket that was forgotten, hence was full, nothing is owed.
        let later = self.taken.checked_sub(position.0);
        later.map_or(0.0, |later| (-self.units - later as f64).max(0.0))
    }

    /// What is to be paid in all.
    pub fn debt(&self) -> f64 {
        (-self.units).max(0.0)
    }

    /// Forgives all debt: what no rule allows, for tests that show that it is missed.
    pub(super) fn forgive(&mut self) {
        self.units = self.units.max(0.0);
    }

    /// Whether it is full, hence like a new one.
    pub fn is_full(&self) -> bool {
        self.units >= capacity(self.per_second)
    }
}

/// The time in which a rate pays this much.
pub fn time_to_pay(units: f64, per_second: f64) -> Duration {
    let seconds = if units > 0.0 { units / per_second } else { 0.0 };
    Duration::try_from_secs_f64(seconds).unwrap_or(DEBT_MAX).min(DEBT_MAX)
}

/// What may be taken at once from a full bucket.
pub fn capacity(per_second: f64) -> f64 {
    per_second * BURST.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Instant = Instant::from_micros(1_000_000_000);

    /// Takes from a bucket; how long to wait until that is paid.
    fn take(bucket: &mut Bucket, now: Instant, amount: u64, per_second: f64) -> Duration {
        bucket.fill(now, per_second);
        let position = bucket.take(amount, per_second);
        time_to_pay(bucket.owed(position), per_second)
    }

    #[test]
    fn a_burst_is_free_and_then_the_rate_holds() {
        let mut bucket = Bucket::new(START, 1000.0);
        assert_eq!(take(&mut bucket, START, 1000, 1000.0), Duration::ZERO);
        assert_eq!(take(&mut bucket, START, 500, 1000.0), Duration::from_millis(500));
        let later = START + Duration::from_millis(500);
        assert_eq!(take(&mut bucket, later, 0, 1000.0), Duration::ZERO);
        assert!(!bucket.is_full());
        bucket.fill(later + BURST, 1000.0);
        assert!(bucket.is_full());
        assert_eq!(take(&mut bucket, START, u64::MAX, 0.001), DEBT_MAX);
    }

    #[test]
    fn each_waits_for_what_was_taken_up_to_its_turn() {
        let mut bucket = Bucket::new(START, 1000.0);
        let first = bucket.take(2000, 1000.0);
        let second = bucket.take(1000, 1000.0);
        assert_eq!((bucket.owed(first), bucket.owed(second)), (1000.0, 2000.0));
        bucket.fill(START + Duration::from_secs(1), 1000.0);
        assert_eq!((bucket.owed(first), bucket.owed(second)), (0.0, 1000.0));
        let forgotten = Bucket::new(START, 1000.0);
        assert_eq!(forgotten.owed(second), 0.0);
    }

    #[test]
    fn a_debt_is_paid_at_the_rate_of_the_day_and_a_smaller_bucket_holds_less() {
        let mut bucket = Bucket::new(START, 1000.0);
        let position = bucket.take(2000, 1000.0);
        bucket.fill(START, 100.0);
        assert_eq!(bucket.owed(position), 1000.0, "what is owed is no time");
        bucket.fill(START + Duration::from_secs(10), 100.0);
        assert_eq!(bucket.debt(), 0.0);
        let mut full = Bucket::new(START, 1000.0);
        full.fill(START, 100.0);
        full.fill(START, 1000.0);
        let position = full.take(150, 1000.0);
        assert_eq!(full.owed(position), 50.0, "what did not fit is gone");
    }

    proptest! {
        /// Whoever waits has had no more than the burst and what the rate allows.
        #[test]
        fn who_waits_keeps_the_rate(
            amounts in prop::collection::vec(1u64..5_000, 1..50),
            per_second in 100.0f64..10_000.0,
        ) {
            let mut bucket = Bucket::new(START, per_second);
            let mut now = START;
            let mut before = 0u64;
            for amount in amounts {
                let elapsed = now.since(START).as_secs_f64();
                prop_assert!(before as f64 <= per_second * (elapsed + BURST.as_secs_f64()) * 1.001);
                now = now + take(&mut bucket, now, amount, per_second);
                before += amount;
            }
        }

        /// Over rates that change, no more is taken than they allow together with one burst.
        #[test]
        fn who_waits_keeps_to_changing_rates(
            steps in prop::collection::vec((1u64..1_000, 1.0f64..1_000.0), 1..100),
        ) {
            let mut bucket = Bucket::new(START, 0.0);
            let (mut now, mut taken, mut allowed) = (START, 0.0, 0.0f64);
            for (elapsed_ms, per_second) in steps {
                now = now + Duration::from_millis(elapsed_ms);
                allowed += per_second * elapsed_ms as f64 / 1000.0;
                bucket.fill(now, per_second);
                if bucket.debt() == 0.0 {
                    bucket.take(500, 1_000.0);
                    taken += 500.0;
                }
                prop_assert!(taken <= allowed + 500.0 + 0.01);
            }
        }
    }
}
