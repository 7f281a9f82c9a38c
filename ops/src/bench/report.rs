//! What a run says at its end.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::meter::{Meter, count, mega, ms};

/// The result of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    mode: &'static str,
    topic: String,
    partitions: usize,
    sides: Vec<Side>,
}

/// The result of its producers, or of its consumers.
#[derive(Debug, Serialize)]
struct Side {
    name: &'static str,
    elapsed_s: f64,
    records: u64,
    payload_bytes: u64,
    records_per_s: f64,
    mb_per_s: f64,
    retries: u64,
    errors: u64,
    latency_ms: Option<Latency>,
}

/// Milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Latency {
    /// None if nothing was timed.
    pub(super) fn of(latency_us: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| ms(latency_us.value_at_quantile(quantile));
        (!latency_us.is_empty()).then(|| Self {
            mean: latency_us.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: ms(latency_us.max()),
        })
    }

    /// A line for people.
    pub(super) fn render(&self) -> String {
        format!(
            "  latency ms: p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2}  mean {:.2}\n",
            self.p50, self.p90, self.p99, self.p999, self.max, self.mean
        )
    }
}

impl Report {
    /// An empty report.
    pub(super) fn new(mode: &'static str, topic: &str, partitions: usize) -> Self {
        Self { mode, topic: topic.to_owned(), partitions, sides: Vec::new() }
    }

    /// Adds what a meter counted.
    pub(super) fn with(mut self, meter: &Meter) -> Self {
        let (counts, elapsed) = meter.result();
        let seconds = elapsed.as_secs_f64();
        let per_second = |value: f64| if seconds > 0.0 { value / seconds } else { 0.0 };
        self.sides.push(Side {
            name: meter.name,
            elapsed_s: seconds,
            records: counts.records,
            payload_bytes: counts.payload_bytes,
            records_per_s: per_second(count(counts.records)),
            mb_per_s: per_second(mega(counts.payload_bytes)),
            retries: counts.retries,
            errors: counts.errors,
            latency_ms: Latency::of(&counts.latency_us),
        });
        self
    }

    /// The report for people.
    pub(super) fn render(&self) -> String {
        let mut text = format!("{} on {}, {} partitions\n", self.mode, self.topic, self.partitions);
        for side in &self.sides {
            text.push_str(&format!(
                "\n{}: {} records, {:.1} MB in {:.2} s\n  {:.1} MB/s, {:.0} records/s, {} retries, \
                 {} errors\n",
                side.name,
                side.records,
                mega(side.payload_bytes),
                side.elapsed_s,
                side.mb_per_s,
                side.records_per_s,
                side.retries,
                side.errors
            ));
            if let Some(latency) = &side.latency_ms {
                text.push_str(&latency.render());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::clock;

    #[test]
    fn rates_are_over_the_time_that_counted() {
        let start = clock::now();
        let meter = Meter::new("produce", start);
        meter.count_batch(start + Duration::from_secs(2), 1000, 4_000_000, start);
        let text = Report::new("produce", "t", 3).with(&meter).render();
        assert!(text.starts_with("produce on t, 3 partitions\n\nproduce: 1000 records, 4.0 MB"));
        assert!(text.contains("2.0 MB/s, 500 records/s, 0 retries, 0 errors"), "{text}");
        assert!(text.contains("latency ms: p50 2000"), "{text}");
    }
}
