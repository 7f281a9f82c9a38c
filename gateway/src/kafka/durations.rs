//! How long requests take, by API, as histograms that Prometheus can add up over nodes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meridian_protocol::ApiKey;

/// Upper bounds of the buckets, in seconds; above the last there is one more.
pub const BOUNDS_S: [f64; 13] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
const MICROS_PER_SECOND: f64 = 1e6;

#[derive(Debug, Default)]
struct Histogram {
    /// How many fell into each bucket and into none before it.
    buckets: [AtomicU64; BOUNDS_S.len() + 1],
    sum_micros: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct DurationSample {
    /// The API's name.
    pub api: &'static str,
    /// How many took at most the bound of the same index in [`BOUNDS_S`]; the last one counts all.
    pub cumulative: [u64; BOUNDS_S.len() + 1],
    /// Sum of all durations.
    pub sum_s: f64,
}

/// A histogram for each API.
#[derive(Debug)]
pub(super) struct Durations(Box<[Histogram]>);

impl Default for Durations {
    fn default() -> Self {
        Self(ApiKey::ALL.iter().map(|_| Histogram::default()).collect())
    }
}

impl Durations {
    /// Notes one request, from its last byte read to its answer made.
    pub(super) fn on_answered(&self, api: ApiKey, took: Duration) {
        let index = ApiKey::ALL.partition_point(|known| known.key() < api.key());
        let Some(histogram) = self.0.get(index) else { return };
        let took_s = took.as_secs_f64();
        let bucket = BOUNDS_S.partition_point(|bound| *bound < took_s);
        histogram.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        histogram.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The histograms of APIs that were called.
    pub(super) fn samples(&self) -> Vec<DurationSample> {
        let sample = |(api, histogram): (&ApiKey, &Histogram)| {
            let mut total = 0;
            let cumulative = histogram.buckets.each_ref().map(|bucket| {
                total += bucket.load(Ordering::Relaxed);
                total
            });
            let sum_s = histogram.sum_micros.load(Ordering::Relaxed) as f64 / MICROS_PER_SECOND;
            (total > 0).then(|| DurationSample { api: api.name(), cumulative, sum_s })
        };
        ApiKey::ALL.iter().zip(&self.0).filter_map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_first_bucket_that_holds_them() {
        let durations = Durations::default();
        for micros in [1, 500, 501, 5_000_000, 5_000_001] {
            durations.on_answered(ApiKey::Produce, Duration::from_micros(micros));
        }
        let samples = durations.samples();
        let [sample] = samples.as_slice() else { panic!("one API was called: {samples:?}") };
        assert_eq!(sample.api, "Produce");
        assert_eq!(sample.cumulative[..3], [2, 3, 3]);
        assert_eq!(sample.cumulative[12..], [4, 5]);
        assert!((sample.sum_s - 10.001_003).abs() < 1e-9);
    }
}
