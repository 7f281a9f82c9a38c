//! Metrics by names that clients choose: their number and length are bounded where they are counted.

use super::{Family, Kind, Sample, Snapshot, Source};

const fn named(name: &'static str, kind: Kind, help: &'static str) -> Family {
    Family { name, kind, help, source: Source::Named }
}

pub(super) const FAMILIES: &[Family] = &[
    named(
        "meridian_topic_produced_bytes_total",
        Kind::Counter,
        "Record bytes produced to a topic at this node.",
    ),
    named("meridian_topic_produced_records_total", Kind::Counter, "Records in them."),
    named(
        "meridian_topic_fetched_bytes_total",
        Kind::Counter,
        "Record bytes fetched of a topic at this node.",
    ),
    named(
        "meridian_topic_fetched_records_total",
        Kind::Counter,
        "Records in them, by their offsets: those that compaction took away count too.",
    ),
    named(
        "meridian_topic_refused_total",
        Kind::Counter,
        "Partitions of produce and fetch requests that were answered with an error.",
    ),
    named("meridian_client_requests_total", Kind::Counter, "Requests of a client."),
    named("meridian_client_received_bytes_total", Kind::Counter, "Bytes of them."),
    named("meridian_client_sent_bytes_total", Kind::Counter, "Bytes of their answers."),
    named(
        "meridian_client_throttled_seconds_total",
        Kind::Counter,
        "How long the client was to wait because it was over a quota.",
    ),
    named(
        "meridian_group_lag_records",
        Kind::Gauge,
        "Records that a group has not read yet, over all partitions; at its coordinator.",
    ),
    named(
        "meridian_group_lag_seconds",
        Kind::Gauge,
        "How long the oldest of them has been there; at its coordinator.",
    ),
];

pub(super) fn samples(snapshot: &Snapshot, name: &str) -> Vec<Sample> {
    let samples = snapshot.named.iter().filter(|sample| sample.name == name);
    samples.map(|it| Sample { labels: it.labels.clone(), value: it.value }).collect()
}
