//! How fast somebody may be: a bucket that fills at a rate, and may be overdrawn once. Pure.

use std::time::Duration;

use meridian_base::env::Instant;

/// What a bucket holds when it is full, as time at its rate: after a pause somebody may be faster for
/// this long.
pub(super) const BURST: Duration = Duration::from_secs(1);
/// No single debt is longer than this.
const DEBT_MAX: Duration = Duration::from_secs(3600);

/// A bucket; full when it is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes `amount` from a bucket that fills at `per_second`; says how long to wait until it is no
    /// longer overdrawn.
    pub(super) fn take(&mut self, now: Instant, amount: u64, per_second: f64) -> Duration {
        let cost = Duration::try_from_secs_f64(amount as f64 / per_second).unwrap_or(DEBT_MAX);
        let full_at = self.full_at.map_or(now, |full_at| full_at.max(now)) + cost.min(DEBT_MAX);
        self.full_at = Some(full_at);
        full_at.since(now).saturating_sub(BURST)
    }

    /// Whether it is full, hence like a new one.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

/// What may be taken at once from a full bucket.
pub(super) fn burst(per_second: f64) -> u64 {
    // Saturates: a quota of more bytes than there are numbers for is none.
    (per_second * BURST.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Instant = Instant::from_micros(1_000_000_000);

    #[test]
    fn a_burst_is_free_and_then_the_rate_holds() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(START, 1000, 1000.0), Duration::ZERO);
        assert_eq!(bucket.take(START, 500, 1000.0), Duration::from_millis(500));
        let later = START + Duration::from_millis(500);
        assert_eq!(bucket.take(later, 0, 1000.0), Duration::ZERO);
        assert!(!bucket.is_full(later));
        assert!(bucket.is_full(later + BURST));
        assert_eq!(bucket.take(START, u64::MAX, 0.001), DEBT_MAX + Duration::from_millis(500));
    }

    proptest! {
        /// Whoever waits as told has had no more than the burst and what the rate allows.
        #[test]
        fn who_waits_as_told_keeps_the_rate(
            amounts in prop::collection::vec(1u64..5_000, 1..50),
            per_second in 100.0f64..10_000.0,
        ) {
            let mut bucket = Bucket::default();
            let mut now = START;
            let mut before = 0u64;
            for amount in amounts {
                let elapsed = now.since(START).as_secs_f64();
                prop_assert!(before as f64 <= per_second * (elapsed + BURST.as_secs_f64()) * 1.001);
                now = now + bucket.take(now, amount, per_second);
                before += amount;
            }
        }
    }
}
