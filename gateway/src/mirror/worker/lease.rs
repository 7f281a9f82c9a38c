//! Grants the leases that the link's sources write under (`lease.ms`), as long as this node knows that
//! their mirrors are not promoted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_consensus::command::RowKind;
use meridian_mirror::lease::{Grantor, Stamp};
use meridian_mirror::rows::MirrorTopic;
use tokio::task::JoinHandle;

use super::{Event, LinkWorker, Mirrored};
use crate::mirror::lease::{Granted, Leased, Told};
use crate::mirror::plan;
use crate::mirror::switchover::millis;

/// What is known of the own metadata, and of those that write under leases.
#[derive(Default)]
pub(super) struct Leases {
    grantor: Grantor,
    /// The last answer of each leader at the source.
    stamps: BTreeMap<i32, Stamp>,
    /// By topic of the source, whose lease it needs.
    needs: BTreeMap<TopicId, String>,
    reading: Option<JoinHandle<()>>,
}

impl Drop for Leases {
    fn drop(&mut self) {
        if let Some(task) = &self.reading {
            task.abort();
        }
    }
}

impl Leases {
    /// The metadata was read.
    pub(super) fn on_read(&mut self, begun: Instant) {
        self.grantor.on_read(begun);
    }

    /// Leaders at the source have answered.
    pub(super) fn on_told(&mut self, answers: Vec<(i32, Told)>) {
        for (leader, Told { stamp, needs }) in answers {
            self.needs.extend(needs.into_iter().map(|need| (need.topic_id.0, need.of)));
            self.stamps.extend(stamp.map(|stamp| (leader, stamp)));
        }
    }
}

impl LinkWorker {
    /// How long leases of this link last, if it has any.
    pub(super) fn lease(&self) -> Option<Duration> {
        self.plan.source.options.lease()
    }

    /// Reads the metadata, if it is time: what it says then is new enough to be vouched for.
    pub(super) fn read_metadata(&mut self) {
        let Some(length) = self.lease() else { return };
        let now = self.clock.now();
        let is_reading = self.leases.reading.as_ref().is_some_and(|task| !task.is_finished());
        if is_reading || self.leases.grantor.read_at(length) > now {
            return;
        }
        let (node, events) = (Arc::clone(&self.node), self.events.clone());
        self.leases.reading = Some(tokio::spawn(async move {
            match node.meta.catch_up().await {
                Ok(()) => drop(events.send(Event::MetadataRead { begun: now }).await),
                Err(error) => tracing::debug!(%error, "no lease can be granted now"),
            }
        }));
    }

    /// What is granted to a leader at the source, for these partitions, which it leads.
    pub(super) fn granted(&self, to: i32, of: &[&Mirrored]) -> Option<Granted> {
        let (length, now) = (self.lease()?, self.clock.now());
        let mut partitions = Vec::new();
        let metadata = self.node.meta.metadata();
        // An operator may have ended it, which the plan does not say yet.
        let options = plan::options(&metadata, &self.name);
        if options.lease() != Some(length) {
            return None;
        }
        for mirrored in of {
            let key = MirrorTopic::key(mirrored.target.topic);
            let row = metadata.extra_row(RowKind::MirrorTopic, &key);
            let Some(mirror) = row.and_then(|row| MirrorTopic::decode(&row.value).ok()) else {
                continue;
            };
            if self.leases.grantor.may_grant(now, mirror.stage, length, None) {
                let topic_id = mirror.source_topic.into();
                partitions.push(Leased { topic_id, partition: mirrored.target.index });
            }
        }
        let stamp = self.leases.stamps.get(&to).copied();
        Some(Granted { partitions, length_ms: millis(length), stamp })
    }

    /// How the lease of a mirror's source is, for operators.
    pub(super) fn lease_of(&self, mirrored: &Mirrored) -> Option<String> {
        self.lease()?;
        let own = self.node.meta.metadata().cluster_id().map(ToString::to_string);
        Some(match self.leases.needs.get(&mirrored.target.mirror.source_topic) {
            None => "not-needed-yet".to_owned(),
            Some(of) if Some(of) == own.as_ref() => "granted".to_owned(),
            Some(of) => format!("granted-by {of}"),
        })
    }
}
