//! Spaces the writes of a disk under load, so that each fsync serves many puts.
//!
//! A sync costs the disk and the processor about the same for 4 KiB as for 256 KiB. While batches
//! are small (a quiet cluster, where latency is what counts) or the disk has rested, a batch goes
//! out at once. Once they grow, the disk rests after each sync for twice the time that syncs take
//! lately, and what arrives meanwhile goes out together.

use std::time::Duration;

use meridian_base::env::Instant;

/// Batches smaller than this on average are never held back.
const SMALL_BATCH_SIZE_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Pace {
    rest_max: Duration,
    full_size_bytes: usize,
    started_at: Instant,
    ended_at: Instant,
    /// Moving averages over about eight batches.
    took: Duration,
    size_bytes: usize,
}

impl Pace {
    pub(super) fn new(rest_max: Duration, full_size_bytes: usize) -> Self {
        Self {
            rest_max,
            full_size_bytes,
            started_at: Instant::ZERO,
            ended_at: Instant::ZERO,
            took: Duration::ZERO,
            size_bytes: 0,
        }
    }

    pub(super) fn on_started(&mut self, now: Instant, size_bytes: usize) {
        self.started_at = now;
        self.size_bytes = (self.size_bytes * 7 + size_bytes) / 8;
    }

    pub(super) fn on_ended(&mut self, now: Instant) {
        self.ended_at = now;
        self.took = (self.took * 7 + now.since(self.started_at)) / 8;
    }

    /// When a batch of `size_bytes` may go out; now or earlier if it need not wait.
    pub(super) fn due_at(&self, size_bytes: usize) -> Instant {
        if self.size_bytes < SMALL_BATCH_SIZE_BYTES || size_bytes >= self.full_size_bytes {
            return Instant::ZERO;
        }
        self.ended_at + (self.took * 2).min(self.rest_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    /// A disk that has written many batches of this size, each in 1 ms, the last until `at(1000)`.
    fn busy(size_bytes: usize) -> Pace {
        let mut pace = Pace::new(Duration::from_millis(5), 256 << 10);
        for _ in 0..100 {
            pace.on_started(at(0), size_bytes);
            pace.on_ended(at(1000));
        }
        pace
    }

    #[test]
    fn small_batches_go_at_once() {
        assert_eq!(busy(4096).due_at(100), Instant::ZERO);
    }

    #[test]
    fn large_ones_let_the_disk_rest_unless_one_is_full() {
        let pace = busy(64 << 10);
        let due_us = pace.due_at(1000).as_micros();
        assert!((2900..=3000).contains(&due_us), "{due_us}");
        assert_eq!(pace.due_at(256 << 10), Instant::ZERO);
    }

    #[test]
    fn the_rest_is_bounded() {
        let mut pace = busy(64 << 10);
        for _ in 0..100 {
            pace.on_started(at(0), 64 << 10);
            pace.on_ended(at(100_000));
        }
        assert_eq!(pace.due_at(1000), at(105_000));
    }
}
