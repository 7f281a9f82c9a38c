//! What a link's worker measures, for Prometheus: sums over the partitions that this node mirrors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::sync::lock;
use meridian_mirror::state::State;

use super::LinkWorker;
use crate::mirror::observed::Trouble;

/// How often the sums are made.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// One link on one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkMetrics {
    /// Partitions by state.
    pub(crate) partitions: BTreeMap<&'static str, u64>,
    pub(crate) lag_records: u64,
    pub(crate) lag_bytes: u64,
    /// Of the partition that is behind for longest.
    pub(crate) lag: Duration,
    /// Since the worker began.
    pub(crate) mirrored_offsets: u64,
    pub(crate) mirrored_bytes: u64,
    /// Of the batches that the source has sent, and of what these took on the way.
    pub(crate) fetched_bytes: u64,
    pub(crate) wire_bytes: u64,
    /// Partitions that do not get on, by state.
    pub(crate) troubles: BTreeMap<&'static str, Trouble>,
}

impl LinkMetrics {
    /// So many partitions more have logs that cannot be opened or read.
    pub(crate) fn add_unreadable(&mut self, count: usize) {
        if count > 0 {
            let state = State::Unreadable { detail: String::new() };
            *self.partitions.entry(state.name()).or_default() += count as u64;
        }
    }
}

/// Counts what is mirrored, and publishes the sums.
#[derive(Debug, Default)]
pub(super) struct Meter {
    published: Arc<Mutex<LinkMetrics>>,
    published_at: Instant,
    mirrored_offsets: u64,
    mirrored_bytes: u64,
    fetched_bytes: u64,
    wire_bytes: u64,
}

impl Meter {
    pub(super) fn new(published: Arc<Mutex<LinkMetrics>>) -> Self {
        Self { published, ..Self::default() }
    }

    /// Batches have come, in so many bytes.
    pub(super) fn on_fetched(&mut self, size_bytes: u64, wire_bytes: u64) {
        self.fetched_bytes += size_bytes;
        self.wire_bytes += wire_bytes;
    }

    /// Batches became durable.
    pub(super) fn on_committed(&mut self, offsets: i64, size_bytes: u64) {
        self.mirrored_offsets += u64::try_from(offsets).unwrap_or(0);
        self.mirrored_bytes += size_bytes;
    }
}

impl LinkWorker {
    /// Publishes the sums, if it is time.
    pub(super) fn publish(&mut self) {
        let now = self.clock.now();
        if now.since(self.meter.published_at) < PUBLISH_EVERY {
            return;
        }
        self.meter.published_at = now;
        let mut sums = LinkMetrics {
            mirrored_offsets: self.meter.mirrored_offsets,
            mirrored_bytes: self.meter.mirrored_bytes,
            fetched_bytes: self.meter.fetched_bytes,
            wire_bytes: self.meter.wire_bytes,
            ..LinkMetrics::default()
        };
        sums.add_unreadable(self.partitions.values().filter(|it| it.is_unreadable()).count());
        for mirrored in self.partitions.values() {
            let (topic, index) = (&mirrored.target.mirror.name, mirrored.target.index);
            let Some(machine) = &mirrored.machine else {
                if let Some(error) = &mirrored.unreadable {
                    let detail = error.to_string();
                    sums.note_state(topic, index, &State::Unreadable { detail });
                }
                continue;
            };
            let status = machine.status(now);
            sums.note_state(topic, index, &status.state);
            *sums.partitions.entry(status.state.name()).or_default() += 1;
            sums.lag_records += status.lag.records;
            sums.lag_bytes += status.lag.bytes;
            sums.lag = sums.lag.max(status.lag.time);
        }
        *lock(&self.meter.published) = sums;
    }
}
