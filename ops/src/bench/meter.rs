//! Counts records and the time they took.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinHandle;

use crate::client::clock;

/// Longer times count as this one.
const LATENCY_US_MAX: u64 = 600_000_000;
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// What one side of a run has done. Shared by all its tasks.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) name: &'static str,
    /// Nothing before counts.
    warm: Instant,
    counts: Mutex<Counts>,
}

/// What a meter has counted.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    pub(super) records: u64,
    pub(super) payload_bytes: u64,
    pub(super) latency_us: Histogram<u64>,
    pub(super) retries: u64,
    pub(super) errors: u64,
    /// When the last record came.
    pub(super) last: Instant,
    /// Also before it was warm.
    total_records: u64,
    /// Since the last line of progress.
    window: Window,
}

#[derive(Debug, Clone)]
struct Window {
    records: u64,
    payload_bytes: u64,
    latency_us: Histogram<u64>,
}

impl Meter {
    /// A meter that counts from `warm` on.
    pub(super) fn new(name: &'static str, warm: Instant) -> Self {
        let window = Window { records: 0, payload_bytes: 0, latency_us: histogram() };
        let counts = Counts {
            records: 0,
            payload_bytes: 0,
            latency_us: histogram(),
            retries: 0,
            errors: 0,
            last: warm,
            total_records: 0,
            window,
        };
        Self { name, warm, counts: Mutex::new(counts) }
    }

    /// Counts records that came at `at`, each with the time it was due, if that is known.
    pub(super) fn count(
        &self,
        at: Instant,
        records: u64,
        payload_bytes: u64,
        due: impl Iterator<Item = Instant>,
    ) {
        let mut counts = self.lock();
        counts.total_records += records;
        if at < self.warm {
            return;
        }
        counts.records += records;
        counts.payload_bytes += payload_bytes;
        counts.last = counts.last.max(at);
        counts.window.records += records;
        counts.window.payload_bytes += payload_bytes;
        for due in due {
            let latency = at.saturating_duration_since(due).as_micros();
            let latency_us = u64::try_from(latency).unwrap_or(u64::MAX);
            counts.latency_us.saturating_record(latency_us);
            counts.window.latency_us.saturating_record(latency_us);
        }
    }

    /// Counts a batch whose records were all due at the same time.
    pub(super) fn count_batch(&self, at: Instant, records: u64, payload_bytes: u64, due: Instant) {
        self.count(at, records, payload_bytes, std::iter::once(due));
    }

    /// Counts what went wrong.
    pub(super) fn count_trouble(&self, retries: u64, errors: u64) {
        let mut counts = self.lock();
        counts.retries += retries;
        counts.errors += errors;
    }

    /// Records since the start, warm or not.
    pub(super) fn total_count(&self) -> u64 {
        self.lock().total_records
    }

    /// What was counted, and over what time.
    pub(super) fn result(&self) -> (Counts, Duration) {
        let counts = self.lock().clone();
        let elapsed = counts.last.saturating_duration_since(self.warm);
        (counts, elapsed)
    }

    fn progress(&self, elapsed: Duration) -> String {
        let mut counts = self.lock();
        let window = &mut counts.window;
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let mut text = format!(
            "{} {:>8.1} MB/s {:>9.0} records/s",
            self.name,
            mega(window.payload_bytes) / seconds,
            count(window.records) / seconds
        );
        if !window.latency_us.is_empty() {
            let [p50, p99] = [0.5, 0.99].map(|q| ms(window.latency_us.value_at_quantile(q)));
            text.push_str(&format!("  p50 {p50:.2} ms  p99 {p99:.2} ms"));
        }
        window.records = 0;
        window.payload_bytes = 0;
        window.latency_us.reset();
        if counts.errors > 0 {
            text.push_str(&format!("  {} errors", counts.errors));
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints a line each second to standard error, until aborted.
pub(super) fn show_progress(start: Instant, meters: Vec<Arc<Meter>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut last = start;
        loop {
            clock::sleep(PROGRESS_EVERY).await;
            let now = clock::now();
            let parts: Vec<String> =
                meters.iter().map(|meter| meter.progress(now - last)).collect();
            eprintln!("{:>4.0} s  {}", (now - start).as_secs_f64(), parts.join("  |  "));
            last = now;
        }
    })
}

fn histogram() -> Histogram<u64> {
    let bounds = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
    assert!(bounds.is_ok(), "constant bounds are valid");
    bounds.unwrap_or_else(|_| unreachable!("asserted above"))
}

/// Millions.
#[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
pub(super) fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A count to divide.
#[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
pub(super) fn count(count: u64) -> f64 {
    count as f64
}

/// Milliseconds.
#[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_it_is_warm_does_not_count() {
        let start = clock::now();
        let warm = start + Duration::from_secs(1);
        let meter = Meter::new("test", warm);
        meter.count_batch(start, 10, 100, start);
        let late = warm + Duration::from_millis(500);
        meter.count(late, 2, 20, [warm, late].into_iter());
        let (counts, elapsed) = meter.result();
        assert_eq!((counts.records, counts.payload_bytes), (2, 20));
        assert_eq!(elapsed, Duration::from_millis(500));
        assert_eq!(meter.total_count(), 12);
        assert_eq!(counts.latency_us.len(), 2);
        assert!(counts.latency_us.max() >= 499_000);
    }
}
