//! Grants the leases that the link's sources write under (`lease.ms`), as long as this node knows that
//! their mirrors are not promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_admin_api::mirror::{Granted, Heard, Leased, SourceLease};
use meridian_base::env::Instant;
use meridian_base::id::{PartitionId, TopicId};
use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use meridian_mirror::lease::{Grantor, Stamp};
use meridian_mirror::rows::{MirrorTopic, Stage};
use tokio::task::JoinHandle;

use super::{Event, LinkWorker, Mirrored};
use crate::broker::Broker;
use crate::mirror::lease::{self, News};
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
    noting: Option<JoinHandle<()>>,
}

impl Drop for Leases {
    fn drop(&mut self) {
        for task in [&self.reading, &self.noting].into_iter().flatten() {
            task.abort();
        }
    }
}

impl Leases {
    /// The metadata was read.
    pub(super) fn on_read(&mut self, begun: Instant) {
        self.grantor.on_read(begun);
    }
}

/// The stages of all mirrors of a cluster, by their topic at the source. `None` if a row can't be read: it
/// may say that a mirror is promoted. One whose topic is deleted takes no records: whoever deleted it may have
/// left the row. Nor does one whose topic is yet to be created.
fn stages(metadata: &Metadata) -> Option<BTreeMap<TopicId, Vec<(TopicId, Stage)>>> {
    let mut stages: BTreeMap<TopicId, Vec<(TopicId, Stage)>> = BTreeMap::new();
    for (key, row) in metadata.extra_rows(RowKind::MirrorTopic) {
        let topic = MirrorTopic::topic_of(key)?;
        if metadata.topic(topic).is_none() {
            continue;
        }
        let mirror = MirrorTopic::decode(&row.value).ok()?;
        stages.entry(mirror.source_topic).or_default().push((topic, mirror.stage));
    }
    Some(stages)
}

/// Whether a mirror may be said not to be promoted, given all of them.
fn may_grant(
    grantor: &Grantor,
    now: Instant,
    topic: TopicId,
    mirrors: &[(TopicId, Stage)],
    length: Duration,
) -> bool {
    let others = mirrors.iter().filter(|(other, _)| *other != topic).map(|(_, stage)| *stage);
    let others: Vec<Stage> = others.collect();
    let own = mirrors.iter().find(|(other, _)| *other == topic);
    own.is_some_and(|(_, stage)| grantor.may_grant(now, *stage, &others, length, None))
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
            match Broker::catch_up(&*node).await {
                Ok(()) => drop(events.send(Event::MetadataRead { begun: now }).await),
                Err(error) => tracing::debug!(%error, "no lease can be granted now"),
            }
        }));
    }

    /// Leaders at the source have answered.
    pub(super) fn on_told(&mut self, answers: Vec<(i32, Heard)>) {
        let own = self.node.meta.metadata().cluster_id().map(ToString::to_string);
        let mut news = Vec::new();
        for (leader, Heard { stamp, needs }) in answers {
            for need in needs {
                let is_named = Some(&need.of) == own.as_ref();
                news.push((need.topic_id.0, News::IsNamed(is_named)));
                self.leases.needs.insert(need.topic_id.0, need.of);
            }
            self.leases.stamps.extend(stamp.map(|stamp| (leader, stamp)));
        }
        self.note(news);
    }

    /// Writes down what is not known yet.
    fn note(&mut self, mut news: Vec<(TopicId, News)>) {
        {
            let metadata = self.node.meta.metadata();
            news.retain(|(topic, news)| lease::noted(&metadata, *topic, *news).is_some());
        }
        let is_noting = self.leases.noting.as_ref().is_some_and(|task| !task.is_finished());
        if !news.is_empty() && !is_noting {
            self.leases.noting = Some(tokio::spawn(lease::note(Arc::clone(&self.node), news)));
        }
    }

    /// What is granted to leaders at the source, for the partitions that each leads.
    pub(super) fn grants(
        &mut self,
        to: &BTreeMap<i32, Vec<PartitionId>>,
    ) -> BTreeMap<i32, Granted> {
        let Some(length) = self.lease() else { return BTreeMap::new() };
        let mut unwritten = BTreeSet::new();
        let granted = {
            let metadata = self.node.meta.metadata();
            // An operator may have ended it, which the plan does not say yet.
            let is_in_force = plan::options(&metadata, &self.name).lease() == Some(length);
            let Some(stages) = stages(&metadata).filter(|_| is_in_force) else {
                return BTreeMap::new();
            };
            let mut grant =
                |to, of: &[PartitionId]| self.granted(to, of, &metadata, &stages, &mut unwritten);
            to.iter().filter_map(|(to, of)| Some((*to, grant(*to, of)?))).collect()
        };
        self.note(unwritten.into_iter().map(|topic| (topic, News::Length(length))).collect());
        granted
    }

    /// What is granted to a leader at the source. A topic of which it is not written down yet that leases
    /// of this length are granted gets none, and is added to `unwritten`.
    fn granted(
        &self,
        to: i32,
        of: &[PartitionId],
        metadata: &Metadata,
        stages: &BTreeMap<TopicId, Vec<(TopicId, Stage)>>,
        unwritten: &mut BTreeSet<TopicId>,
    ) -> Option<Granted> {
        let (length, now) = (self.lease()?, self.clock.now());
        let mut partitions = Vec::new();
        for target in of.iter().filter_map(|id| self.partitions.get(id)).map(|it| &it.target) {
            let source_topic = target.mirror.source_topic;
            let Some(mirrors) = stages.get(&source_topic) else { continue };
            if !may_grant(&self.leases.grantor, now, target.topic, mirrors, length) {
                continue;
            }
            match lease::grant(metadata, source_topic) {
                Ok(Some(grant)) if grant.covers(length) => {
                    let topic_id = source_topic.into();
                    partitions.push(Leased { topic_id, partition: target.index });
                }
                Ok(_) => drop(unwritten.insert(source_topic)),
                Err(error) => tracing::warn!(%source_topic, %error, "no lease is granted"),
            }
        }
        let stamp = self.leases.stamps.get(&to).copied();
        Some(Granted { partitions, length_ms: millis(length), stamp })
    }

    /// How the lease of a mirror's source is, for operators.
    pub(super) fn lease_of(&self, mirrored: &Mirrored) -> Option<SourceLease> {
        self.lease()?;
        let metadata = self.node.meta.metadata();
        let own = metadata.cluster_id().map(ToString::to_string);
        let grant = lease::grant(&metadata, mirrored.target.mirror.source_topic);
        let is_named = grant.is_ok_and(|grant| grant.is_some_and(|grant| grant.is_named));
        Some(match self.leases.needs.get(&mirrored.target.mirror.source_topic) {
            None => SourceLease::NotNeededYet,
            // Only then the mirror may be promoted.
            Some(of) if Some(of) == own.as_ref() && is_named => SourceLease::Granted,
            Some(of) if Some(of) == own.as_ref() => SourceLease::NotNeededYet,
            Some(of) => SourceLease::GrantedBy(of.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::LeaderEpoch;
    use meridian_consensus::command::Command;

    use super::*;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::testing::{self, SOURCE, create, put_row};

    fn put(broker: &FakeBroker, topic: u128, value: Vec<u8>) {
        let key = MirrorTopic::key(TopicId::new(topic));
        put_row(broker, RowKind::MirrorTopic, &key, Some(value));
    }

    fn mirror(name: &str, stage: Stage) -> Vec<u8> {
        testing::mirror(name, stage).encode()
    }

    #[tokio::test]
    async fn nothing_is_granted_once_any_mirror_of_the_topic_is_being_promoted() {
        let broker = FakeBroker::three_datacenters();
        for (topic, name) in [(1, "a"), (2, "b")] {
            create(&broker, TopicId::new(topic), name, 1);
        }
        let length = Duration::from_secs(2);
        let mut grantor = Grantor::default();
        let now = Instant::from_micros(9);
        grantor.on_read(now);
        let may_grant = |topic| {
            let stages = stages(&broker.state())?;
            let topic = TopicId::new(topic);
            Some(may_grant(&grantor, now, topic, &stages[&SOURCE], length))
        };
        put(&broker, 1, mirror("a", Stage::Mirroring));
        put(&broker, 2, mirror("b", Stage::Mirroring));
        assert_eq!((may_grant(1), may_grant(2)), (Some(true), Some(true)));
        let epoch_floor = LeaderEpoch::new(1);
        for stage in
            [Stage::Promoting, Stage::Detached { epoch_floor }, Stage::Promoted { epoch_floor }]
        {
            put(&broker, 1, mirror("a", stage));
            assert_eq!((may_grant(1), may_grant(2)), (Some(false), Some(false)), "{stage:?}");
        }
        // What a newer binary wrote may be the same.
        put(&broker, 1, vec![99]);
        assert_eq!(may_grant(2), None);
        broker.decide(Command::DeleteTopic { topic: TopicId::new(1) });
        for left_over in [vec![99], mirror("a", Stage::Promoted { epoch_floor })] {
            put(&broker, 1, left_over);
            assert_eq!(may_grant(2), Some(true), "its topic is gone");
        }
    }
}
