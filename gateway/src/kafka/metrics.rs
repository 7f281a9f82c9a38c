//! What the front counts. No label is ever chosen by a client.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use meridian_access::TokenError;
use meridian_protocol::{ApiKey, ErrorCode};

use super::connection::Close;
use super::durations::{DurationSample, Durations};

/// One value to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name, unit included.
    pub name: &'static str,
    /// What tells it from others of that name, as (key, value).
    pub label: Option<(&'static str, &'static str)>,
    /// The value.
    pub value: i64,
}

/// Counters of the front.
#[derive(Debug)]
pub struct Metrics {
    requests: Box<[AtomicU64]>,
    errors: Box<[AtomicU64]>,
    closes: Box<[AtomicU64]>,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    produced_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    telemetry_pushes: AtomicU64,
    telemetry_bytes: AtomicU64,
    throttled_requests: AtomicU64,
    throttled_us: AtomicU64,
    connections: AtomicI64,
    connection_limit: AtomicI64,
    refused_connections: AtomicU64,
    logins: AtomicU64,
    failed_logins: AtomicU64,
    refused_tokens: Box<[AtomicU64]>,
    durations: Durations,
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: zeros(ApiKey::ALL.len()),
            errors: zeros(ErrorCode::ALL.len()),
            closes: zeros(Close::REASONS.len()),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            produced_bytes: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            telemetry_pushes: AtomicU64::new(0),
            telemetry_bytes: AtomicU64::new(0),
            throttled_requests: AtomicU64::new(0),
            throttled_us: AtomicU64::new(0),
            connections: AtomicI64::new(0),
            connection_limit: AtomicI64::new(0),
            refused_connections: AtomicU64::new(0),
            logins: AtomicU64::new(0),
            failed_logins: AtomicU64::new(0),
            refused_tokens: zeros(TokenError::ALL.len()),
            durations: Durations::default(),
        }
    }
}

fn add(counter: Option<&AtomicU64>, count: u64) {
    if let Some(counter) = counter {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(super) fn on_request(&self, api: ApiKey, size_bytes: usize) {
        let index = ApiKey::ALL.partition_point(|known| known.key() < api.key());
        add(self.requests.get(index), 1);
        add(Some(&self.received_bytes), size_bytes as u64);
    }

    /// Counts an answer that says something went wrong.
    pub(super) fn on_error(&self, code: ErrorCode) {
        let index = ErrorCode::ALL.partition_point(|known| known.code() < code.code());
        add(self.errors.get(index), 1);
    }

    pub(super) fn on_sent(&self, size_bytes: usize) {
        add(Some(&self.sent_bytes), size_bytes as u64);
    }

    pub(super) fn on_produced(&self, size_bytes: usize) {
        add(Some(&self.produced_bytes), size_bytes as u64);
    }

    pub(super) fn on_fetched(&self, size_bytes: usize) {
        add(Some(&self.fetched_bytes), size_bytes as u64);
    }

    /// Counts what a client pushed about itself.
    pub(super) fn on_telemetry(&self, size_bytes: usize) {
        add(Some(&self.telemetry_pushes), 1);
        add(Some(&self.telemetry_bytes), size_bytes as u64);
    }

    /// Counts a client that is to wait because it is over its quota.
    pub(super) fn on_throttled(&self, pause: Duration) {
        add(Some(&self.throttled_requests), 1);
        add(Some(&self.throttled_us), u64::try_from(pause.as_micros()).unwrap_or(u64::MAX));
    }

    /// Says how many connections there may be.
    pub(super) fn set_connection_limit(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.connection_limit.store(count, Ordering::Relaxed);
    }

    pub(super) fn on_connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn on_refused(&self) {
        add(Some(&self.refused_connections), 1);
    }

    pub(super) fn on_token_refused(&self, error: TokenError) {
        let index = TokenError::ALL.iter().position(|it| *it == error);
        add(index.and_then(|index| self.refused_tokens.get(index)), 1);
    }

    pub(super) fn on_login(&self, is_ok: bool) {
        add(Some(if is_ok { &self.logins } else { &self.failed_logins }), 1);
    }

    pub(super) fn on_closed(&self, close: &Close) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        let index = Close::REASONS.iter().position(|reason| *reason == close.reason());
        add(index.and_then(|index| self.closes.get(index)), 1);
    }

    pub(super) fn on_answered(&self, api: ApiKey, took: Duration) {
        self.durations.on_answered(api, took);
    }

    /// How long clients were to wait because they were over their quotas.
    pub(crate) fn throttled(&self) -> Duration {
        Duration::from_micros(self.throttled_us.load(Ordering::Relaxed))
    }

    /// How long requests took, by API.
    pub fn durations(&self) -> Vec<DurationSample> {
        self.durations.samples()
    }

    /// All values, in a fixed order; requests, errors and closes only if there were any.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = vec![
            Sample {
                name: "meridian_kafka_connections",
                label: None,
                value: self.connections.load(Ordering::Relaxed),
            },
            Sample {
                name: "meridian_kafka_connections_limit",
                label: None,
                value: self.connection_limit.load(Ordering::Relaxed),
            },
            total("meridian_kafka_connections_refused_total", &self.refused_connections),
            total("meridian_kafka_received_bytes_total", &self.received_bytes),
            total("meridian_kafka_sent_bytes_total", &self.sent_bytes),
            total("meridian_kafka_produced_bytes_total", &self.produced_bytes),
            total("meridian_kafka_fetched_bytes_total", &self.fetched_bytes),
            labelled("meridian_kafka_logins_total", ("result", "ok"), &self.logins),
            labelled("meridian_kafka_logins_total", ("result", "failed"), &self.failed_logins),
            total("meridian_kafka_telemetry_pushes_total", &self.telemetry_pushes),
            total("meridian_kafka_telemetry_bytes_total", &self.telemetry_bytes),
            total("meridian_kafka_throttled_requests_total", &self.throttled_requests),
        ];
        let apis = ApiKey::ALL.iter().map(|api| api.name()).zip(&self.requests);
        let codes = ErrorCode::ALL.iter().map(|code| code.name()).zip(&self.errors);
        let closes = Close::REASONS.iter().copied().zip(&self.closes);
        let tokens = TokenError::ALL.iter().map(|it| it.word()).zip(&self.refused_tokens);
        let tokens =
            tokens.map(|(why, n)| ("meridian_kafka_tokens_refused_total", ("reason", why), n));
        let all = apis
            .map(|(api, count)| ("meridian_kafka_requests_total", ("api", api), count))
            .chain(codes.map(|(code, n)| ("meridian_kafka_errors_total", ("code", code), n)))
            .chain(closes.map(|(why, n)| ("meridian_kafka_closes_total", ("reason", why), n)))
            .chain(tokens);
        samples.extend(all.filter_map(|(name, label, counter)| {
            let sample = labelled(name, label, counter);
            (sample.value > 0).then_some(sample)
        }));
        samples
    }
}

fn labelled(
    name: &'static str,
    label: (&'static str, &'static str),
    counter: &AtomicU64,
) -> Sample {
    Sample { label: Some(label), ..total(name, counter) }
}

fn total(name: &'static str, counter: &AtomicU64) -> Sample {
    let value = i64::try_from(counter.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
    Sample { name, label: None, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_under_fixed_labels() {
        let metrics = Metrics::default();
        metrics.on_request(ApiKey::Produce, 10);
        metrics.on_request(ApiKey::MeridianAdmin, 5);
        metrics.on_error(ErrorCode::UnknownServerError);
        metrics.on_error(ErrorCode::NotLeaderOrFollower);
        metrics.on_connected();
        metrics.on_closed(&Close::Idle);
        let samples = metrics.samples();
        let value = |name: &str, label: Option<(&str, &str)>| {
            samples.iter().find(|s| s.name == name && s.label == label).map(|s| s.value)
        };
        assert_eq!(value("meridian_kafka_requests_total", Some(("api", "Produce"))), Some(1));
        assert_eq!(value("meridian_kafka_requests_total", Some(("api", "MeridianAdmin"))), Some(1));
        assert_eq!(value("meridian_kafka_received_bytes_total", None), Some(15));
        for code in ["UNKNOWN_SERVER_ERROR", "NOT_LEADER_OR_FOLLOWER"] {
            assert_eq!(value("meridian_kafka_errors_total", Some(("code", code))), Some(1));
        }
        assert_eq!(value("meridian_kafka_closes_total", Some(("reason", "idle"))), Some(1));
        assert_eq!(value("meridian_kafka_connections", None), Some(0));
    }
}
