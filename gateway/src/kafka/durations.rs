//! How long requests take, by API.

use std::time::Duration;

use meridian_protocol::ApiKey;

use crate::runtime::histogram::{Histogram, HistogramSample};

/// How long the requests of an API took.
#[derive(Clone, Debug, PartialEq)]
pub struct DurationSample {
    /// The API's name.
    pub api: &'static str,
    /// From a request's last byte read to its answer made.
    pub took: HistogramSample,
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
        if let Some(histogram) = self.0.get(index) {
            histogram.note(took);
        }
    }

    /// The histograms of APIs that were called.
    pub(super) fn samples(&self) -> Vec<DurationSample> {
        let sample = |(api, histogram): (&ApiKey, &Histogram)| {
            let took = histogram.sample();
            (took.count() > 0).then(|| DurationSample { api: api.name(), took })
        };
        ApiKey::ALL.iter().zip(&self.0).filter_map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apis_that_were_called_are_counted() {
        let durations = Durations::default();
        durations.on_answered(ApiKey::Produce, Duration::from_micros(1));
        let samples = durations.samples();
        let [sample] = samples.as_slice() else { panic!("one API was called: {samples:?}") };
        assert_eq!((sample.api, sample.took.count()), ("Produce", 1));
    }
}
