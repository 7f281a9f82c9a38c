//! A link's bandwidth cap: a token bucket that may be overdrawn by one answer.

use std::time::Duration;

use meridian_base::env::Instant;

/// What an answer takes that says where a partition ends.
const GLANCE_SIZE_BYTES: f64 = 40.0;
/// Times between two such questions.
const GLANCE_EVERY_MIN: Duration = Duration::from_millis(50);
const GLANCE_EVERY_MAX: Duration = Duration::from_secs(1);

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

    /// How often the source may be asked where so many partitions end while nothing is fetched: for a
    /// tenth of the rate at most.
    pub fn glance_every(&self, partition_count: usize) -> Duration {
        let bytes = partition_count as f64 * GLANCE_SIZE_BYTES;
        let rate = self.bytes_per_second.map_or(f64::INFINITY, |rate| rate as f64 / 10.0);
        let every = Duration::try_from_secs_f64(bytes / rate).unwrap_or(GLANCE_EVERY_MAX);
        every.clamp(GLANCE_EVERY_MIN, GLANCE_EVERY_MAX)
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

    #[test]
    fn looking_where_the_source_ends_takes_a_tenth_of_the_rate() {
        let throttle = Throttle::new(Some(100_000));
        assert_eq!(throttle.glance_every(1), GLANCE_EVERY_MIN);
        assert_eq!(throttle.glance_every(100), Duration::from_millis(400));
        assert_eq!(throttle.glance_every(100_000), GLANCE_EVERY_MAX);
        assert_eq!(Throttle::new(Some(0)).glance_every(1), GLANCE_EVERY_MAX);
        assert_eq!(Throttle::new(None).glance_every(100_000), GLANCE_EVERY_MIN);
    }
}
