//! The writer's lease in the real world, at both sides: what a source takes of its mirror's grants, and
//! how long a promotion waits (the rules: `meridian_mirror::lease`).
//!
//! ```text
//! mirror's worker --5 times a second--> "mirror.positions" {stamp of the last answer} -> PartitionLog
//!                 <------------------- {stamp of now, who grants which topic}
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{Granted, Heard, LeaseReport, Leased, Needed};
use meridian_base::id::{ClusterId, PartitionId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_consensus::command::{ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_consensus::state::{Metadata, Topic};
use meridian_mirror::lease::{
    self, Grant, LENGTH_MAX, Need, Stamp, Standing, wait_before_promotion,
};
use meridian_mirror::options::LinkOptions;
use meridian_mirror::rows::{MirrorTopic, RowError};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use super::succession::{latest_epoch, put, raise};
use super::switchover::millis;
use super::{Mirrors, leaders, plan};
use crate::admin_api::AdminError;
use crate::context::NodeContext;
use crate::features::agree;
use crate::linked_topics::refuses_clients;
use crate::peers::wire::PeerRequest;
use crate::runtime::clock::Clock;

/// Time for new leaders to take over; the next grant has them asked again.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(5);

/// Topics whose need is begun at the same time: each may wait for a leader that is silent.
const BEGUN_AT_ONCE: usize = 16;

/// Whose lease a topic needs.
pub(super) fn need(metadata: &Metadata, topic: TopicId) -> Option<Need> {
    read_need(metadata, topic).ok().flatten()
}

/// Whose lease a topic needs; an error if its row can't be read.
fn read_need(metadata: &Metadata, topic: TopicId) -> Result<Option<Need>, RowError> {
    let row = metadata.extra_row(RowKind::WriterLease, &Need::key(topic));
    row.map(|row| Need::decode(&row.value)).transpose()
}

/// The change after which a topic needs no lease.
pub(super) fn end(topic: TopicId) -> RowChange {
    let (kind, key) = (RowKind::WriterLease, Need::key(topic).to_vec());
    RowChange { kind, key, value: None, expected: ExpectedVersion::Any }
}

/// How long a promotion over a link waits at least; `None` if its sources need no lease.
pub(super) fn wait_over(options: &LinkOptions) -> Option<Duration> {
    options.lease().map(|length| wait_before_promotion(length, None))
}

/// What this cluster has granted of a topic of another one.
pub(super) fn grant(metadata: &Metadata, source_topic: TopicId) -> Result<Option<Grant>, RowError> {
    let row = metadata.extra_row(RowKind::LeaseGrant, &Grant::key(source_topic));
    row.map(|row| Grant::decode(&row.value)).transpose()
}

/// How long a promotion without the source waits. An error if its source may be somebody else's writer,
/// or if what was granted can't be read, unless it is forced.
pub(super) fn wait(
    metadata: &Metadata,
    mirror: &MirrorTopic,
    is_forced: bool,
) -> Result<Duration, AdminError> {
    let (name, link) = (&mirror.name, &mirror.link);
    let length = plan::read_options(metadata, link).map_err(|error| error.to_string());
    let length = length.and_then(|options| options.checked_lease());
    let grant = grant(metadata, mirror.source_topic).map_err(|error| error.to_string());
    match (length, grant) {
        (Ok(length), Ok(grant)) => lease::wait(grant, length, is_forced, None).map_err(|error| {
            AdminError::Failed(format!(
                "{name} is not promoted: link {link} has lease.ms, but {error}, and may take records \
                 afterwards. Wait until `meridian mirror status {name}` shows `granted`, or promote the \
                 mirror whose cluster grants it; if the source is gone for good, --force promotes all \
                 the same"
            ))
        }),
        (Err(_), _) | (_, Err(_)) if is_forced => Ok(wait_before_promotion(LENGTH_MAX, None)),
        (Err(error), _) | (_, Err(error)) => Err(AdminError::Failed(format!(
            "{name} is not promoted: whether its source has a lease of link {link} can't be read \
             ({error}). Promote it at a node with the newer binary, or mend lease.ms with `meridian link \
             alter {link} -c lease.ms=`; --force waits for the longest lease there is"
        ))),
    }
}

/// Waits until the source of a mirror has no lease any more, for which no more was granted since
/// `detached` was started.
pub(super) async fn wait_out(mirror: &MirrorTopic, wait: Duration, detached: &Clock) {
    let over = meridian_base::env::Instant::ZERO + wait;
    if detached.now() < over {
        tracing::info!(topic = %mirror.name, ?wait, "waits for the lease of the source to end");
    }
    while detached.now() < over {
        tokio::time::sleep(over.since(detached.now())).await;
    }
}

/// What the metadata says of topics that a mirror would grant.
#[derive(Debug, Default)]
struct Sorted {
    /// Partitions that its lease counts for.
    led: Vec<PartitionId>,
    /// Topics that need a lease, as every leader knows.
    needs: Vec<Needed>,
    /// Topics that take records of leaders that may know of no need.
    unfenced: BTreeSet<TopicId>,
}

fn sort(metadata: &Metadata, by: &ClusterId, partitions: &[Leased]) -> Sorted {
    let mut sorted = Sorted::default();
    for Leased { topic_id, partition } in partitions {
        let Some(topic) = metadata.topic(topic_id.0) else { continue };
        // Nobody's grants count for a need that can't be read: whose it is, a newer binary knows.
        let Ok(need) = read_need(metadata, topic.id) else { continue };
        let is_of = need.as_ref().is_none_or(|need| need.of == *by);
        if is_of {
            sorted.led.extend(topic.partitions.get(*partition as usize));
        }
        let epochs = topic.partitions.iter().filter_map(|id| metadata.partition(*id));
        let epochs = epochs.map(|partition| partition.leader_epoch);
        match need.filter(|need| need.is_in_force(epochs, None)) {
            Some(need) => {
                sorted.needs.push(Needed { topic_id: *topic_id, of: need.of.to_string() });
            }
            None if is_of && refuses_clients(metadata, topic.id).is_none() => {
                sorted.unfenced.insert(topic.id);
            }
            None => {}
        }
    }
    sorted.needs.dedup_by_key(|need| need.topic_id.0);
    sorted
}

/// Takes what a mirror grants. From the first grant on a topic needs it.
pub(super) fn take(mirrors: &Mirrors, by: &ClusterId, granted: &Granted) -> Heard {
    let node = &mirrors.node;
    let (Some(life), now) = (mirrors.life(), node.logs.now()) else { return Heard::default() };
    let length = Duration::from_millis(granted.length_ms);
    let Sorted { led, needs, unfenced } = sort(&node.meta.metadata(), by, &granted.partitions);
    if let Some(stamp) = granted.stamp {
        for log in led.into_iter().filter_map(|partition| node.logs.led(partition)) {
            log.on_lease(life, stamp, length);
        }
        if !unfenced.is_empty()
            && let Ok(alone) = Arc::clone(&mirrors.needs).try_lock_owned()
        {
            tokio::spawn(begin(Arc::clone(node), by.clone(), unfenced, alone));
        }
    }
    Heard { stamp: Some(Stamp::new(life, now)), needs }
}

/// Has topics need the lease of a cluster, if they need none yet. What fails is begun again by the next
/// grant.
async fn begin(
    node: Arc<NodeContext>,
    of: ClusterId,
    topics: BTreeSet<TopicId>,
    _alone: OwnedMutexGuard<()>,
) {
    let mut beginning = JoinSet::new();
    for topic in topics {
        if beginning.len() == BEGUN_AT_ONCE {
            beginning.join_next().await;
        }
        let (node, of) = (Arc::clone(&node), of.clone());
        beginning.spawn(async move {
            match have_needed(&node, &of, topic).await {
                Ok(()) => tracing::info!(%topic, cluster = %of, "takes records under a lease only"),
                Err(error) => tracing::debug!(%topic, %error, "needs no lease yet"),
            }
        });
    }
    while beginning.join_next().await.is_some() {}
}

/// A row first; then new generations, whose leaders have read it, and each of which says that it has taken
/// over: what was let in by one that knew nothing of the row, or may be, is fenced off.
async fn have_needed(node: &NodeContext, of: &ClusterId, topic: TopicId) -> Result<(), AdminError> {
    let read = || {
        let metadata = node.meta.metadata();
        let version = metadata.extra_row(RowKind::WriterLease, &Need::key(topic));
        (need(&metadata, topic), version.map(|row| row.version))
    };
    let change = |need: &Need, expected| RowChange {
        kind: RowKind::WriterLease,
        key: Need::key(topic).to_vec(),
        value: Some(need.encode()),
        expected,
    };
    if let (_, None) = read() {
        agree(node, FeatureLevel::LINK_OPTIONS).await?;
        put(node, vec![change(&Need::new(of.clone()), ExpectedVersion::Absent)]).await?;
    }
    let other = || AdminError::Unavailable("the need of a lease is another now".to_owned());
    let (Some(mut need), Some(version)) = read() else { return Err(other()) };
    if need.of != *of {
        return Err(other());
    }
    if need.epoch_floor == LeaderEpoch::UNKNOWN {
        need.epoch_floor = latest_epoch(&node.meta.metadata(), topic)?;
        put(node, vec![change(&need, ExpectedVersion::Exactly(version))]).await?;
    }
    let above = need.epoch_floor;
    raise(node, topic, above).await?;
    if need.is_fenced {
        return Ok(());
    }
    let request = |partitions| PeerRequest::Leads { above, partitions };
    leaders::ask_all(node, topic, TAKE_OVER_WITHIN, request).await.map_err(|count| {
        AdminError::Unavailable(format!("{count} partitions were not taken over since the need"))
    })?;
    match read() {
        (Some(found), Some(version)) if found == need => {
            need.is_fenced = true;
            put(node, vec![change(&need, ExpectedVersion::Exactly(version))]).await
        }
        _ => Err(other()),
    }
}

/// What the metadata here does not say yet of a topic of another cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// It is about to be granted a lease of this length.
    Length(Duration),
    /// It says whether it needs the lease of this cluster.
    IsNamed(bool),
}

/// Writes down what there is to be known of topics of another cluster. What fails is tried again when it is
/// found to be missing.
pub(super) async fn note(node: Arc<NodeContext>, news: Vec<(TopicId, News)>) {
    for (topic, news) in news {
        let Some(change) = noted(&node.meta.metadata(), topic, news) else { continue };
        let put = async {
            agree(&*node, FeatureLevel::LINK_OPTIONS).await?;
            put(&node, vec![change]).await
        };
        if let Err(error) = put.await {
            tracing::debug!(source_topic = %topic, ?news, %error, "not written down");
        }
    }
}

/// The change that writes something down; `None` if it is known, or what is known can't be read.
pub(super) fn noted(metadata: &Metadata, source_topic: TopicId, news: News) -> Option<RowChange> {
    let row = metadata.extra_row(RowKind::LeaseGrant, &Grant::key(source_topic));
    let known = row.map(|row| Grant::decode(&row.value)).transpose().ok()?;
    let mut grant = known.unwrap_or_default();
    match news {
        News::Length(length) => grant.longest_ms = grant.longest_ms.max(millis(length)),
        News::IsNamed(is_named) => grant.is_named = is_named,
    }
    (Some(grant) != known).then(|| RowChange {
        kind: RowKind::LeaseGrant,
        key: Grant::key(source_topic).to_vec(),
        value: Some(grant.encode()),
        expected: row.map_or(ExpectedVersion::Absent, |row| ExpectedVersion::Exactly(row.version)),
    })
}

/// How it stands with the partitions that this node leads.
pub(super) fn reports(node: &NodeContext) -> Vec<LeaseReport> {
    let needed: Vec<(String, Need, Vec<PartitionId>)> = {
        let metadata = node.meta.metadata();
        let of = |topic: &Topic| {
            let need = need(&metadata, topic.id)?;
            // Who takes no records anyway is not told that a lease is missing.
            refuses_clients(&metadata, topic.id).is_none().then_some(())?;
            Some((topic.name.clone(), need, topic.partitions.clone()))
        };
        metadata.topics().filter_map(of).collect()
    };
    let mut reports = Vec::new();
    for (topic, need, partitions) in needed {
        for (partition, id) in (0..).zip(partitions) {
            let Some(log) = node.logs.led(id) else { continue };
            let standing = log.lease();
            let (left, missing) = match standing {
                Standing::Held(left) => (Some(left), None),
                Standing::Missing(since) => (None, since),
            };
            reports.push(LeaseReport {
                topic: topic.clone(),
                partition,
                cluster: need.of.to_string(),
                state: standing.into(),
                left_ms: left.map(millis),
                missing_ms: missing.map(millis),
                besides: Besides::new(),
            });
        }
    }
    reports
}

#[cfg(test)]
mod tests;
