//! A link's bandwidth cap: a token bucket that may be overdrawn by one answer.

use std::time::Duration;

use meridian_base::env::Instant;

/// Holds one node's share of a link to a rate.
#[derive(Clone, Debug)]
pub struct Throttle {
    bytes_per_second: Option<u64>,
    /// When what was taken so far is paid for.
    paid_at: Instant,
}

impl Throttle {
    /// Time for which unused rate may be saved up.
    const BURST: Duration = Duration::from_millis(250);

    /// Allows `bytes_per_second`, or everything.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, paid_at: Instant::ZERO }
    }

    /// Takes bytes that have come.
    pub fn take(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.bytes_per_second else { return };
        let micros = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
        let cost = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.paid_at = self.paid_at.max(now - Self::BURST) + cost;
    }

    /// How long to wait before asking for more.
    pub fn wait(&self, now: Instant) -> Duration {
        self.paid_at.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_time() {
        let mut throttle = Throttle::new(Some(1_000_000));
        let mut now = Instant::from_micros(5_000_000);
        let start = now;
        for _ in 0..100 {
            throttle.take(now, 100_000);
            now = now + throttle.wait(now);
        }
        let seconds = now.since(start).as_secs_f64();
        assert!((9.7..=10.0).contains(&seconds), "{seconds}");
        assert_eq!(Throttle::new(None).wait(now), Duration::ZERO);
    }
}
