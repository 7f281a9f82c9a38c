//! How long things take, as histograms that Prometheus can add up over nodes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds; above the last there is one more.
pub const BOUNDS_S: [f64; 13] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
const MICROS_PER_SECOND: f64 = 1e6;

/// Counts durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// How many fell into each bucket and into none before it.
    buckets: [AtomicU64; BOUNDS_S.len() + 1],
    sum_micros: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistogramSample {
    /// How many took at most the bound of the same index in [`BOUNDS_S`]; the last one counts all.
    pub cumulative: [u64; BOUNDS_S.len() + 1],
    /// Sum of all durations.
    pub sum_s: f64,
}

impl Histogram {
    /// Counts one.
    pub fn note(&self, took: Duration) {
        let took_s = took.as_secs_f64();
        let bucket = BOUNDS_S.partition_point(|bound| *bound < took_s);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn sample(&self) -> HistogramSample {
        let mut total = 0;
        let cumulative = self.buckets.each_ref().map(|bucket| {
            total += bucket.load(Ordering::Relaxed);
            total
        });
        let sum_s = self.sum_micros.load(Ordering::Relaxed) as f64 / MICROS_PER_SECOND;
        HistogramSample { cumulative, sum_s }
    }
}

impl HistogramSample {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.cumulative[BOUNDS_S.len()]
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |index| self.cumulative[index] + other.cumulative[index];
        Self { cumulative: std::array::from_fn(sum), sum_s: self.sum_s + other.sum_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_first_bucket_that_holds_them() {
        let histogram = Histogram::default();
        for micros in [1, 500, 501, 5_000_000, 5_000_001] {
            histogram.note(Duration::from_micros(micros));
        }
        let sample = histogram.sample();
        assert_eq!(sample.cumulative[..3], [2, 3, 3]);
        assert_eq!(sample.cumulative[12..], [4, 5]);
        assert!((sample.sum_s - 10.001_003).abs() < 1e-9);
        let twice = sample.plus(&sample);
        assert_eq!((twice.count(), twice.cumulative[0]), (10, 4));
        assert!((twice.sum_s - 20.002_006).abs() < 1e-9);
    }
}
