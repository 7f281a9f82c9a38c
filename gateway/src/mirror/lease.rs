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

use meridian_base::id::{ClusterId, PartitionId, TopicId};
use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::{Metadata, Topic};
use meridian_mirror::lease::{Need, Stamp, Standing, wait_before_promotion};
use meridian_mirror::options::LinkOptions;
use meridian_mirror::rows::MirrorTopic;
use serde::{Deserialize, Serialize};

use super::succession::put;
use super::switchover::millis;
use super::wire::TopicKey;
use super::{plan, refuses_clients};
use crate::node::Node;
use crate::runtime::clock::Clock;

/// What a mirror's node grants to a leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Granted {
    pub(super) partitions: Vec<Leased>,
    pub(super) length_ms: u64,
    /// What that leader answered last; `None` if nothing is granted now, and a stamp is asked for.
    pub(super) stamp: Option<Stamp>,
}

/// A partition, as the writer knows it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Leased {
    pub(super) topic_id: TopicKey,
    pub(super) partition: u32,
}

/// What the leader answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    pub(super) stamp: Option<Stamp>,
    /// The topics asked for that are written to under a lease only.
    #[serde(default)]
    pub(super) needs: Vec<Needed>,
}

/// A topic that needs a lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Needed {
    pub(super) topic_id: TopicKey,
    /// The cluster that grants it.
    pub(super) of: String,
}

/// How the lease of a partition is.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseReport {
    topic: String,
    partition: u32,
    /// The cluster that grants it.
    cluster: String,
    /// `lease-held` or `lease-missing`.
    state: &'static str,
    /// For how long it is held still.
    left_ms: Option<u64>,
    /// For how long it has been missing, unless this leader never had one.
    missing_ms: Option<u64>,
}

/// Whose lease a topic needs.
pub(super) fn need(metadata: &Metadata, topic: TopicId) -> Option<Need> {
    let row = metadata.extra_row(RowKind::WriterLease, &Need::key(topic))?;
    Need::decode(&row.value).ok()
}

/// Whether a topic is written to under a lease only. A row that can't be read is a need as well.
pub(crate) fn needs_lease(metadata: &Metadata, topic: TopicId) -> bool {
    metadata.extra_row(RowKind::WriterLease, &Need::key(topic)).is_some()
}

/// The change after which a topic needs no lease.
pub(super) fn end(topic: TopicId) -> RowChange {
    let (kind, key) = (RowKind::WriterLease, Need::key(topic).to_vec());
    RowChange { kind, key, value: None, expected: ExpectedVersion::Any }
}

/// How long a promotion over a link waits; `None` if its sources need no lease.
pub(super) fn wait(options: &LinkOptions) -> Option<Duration> {
    options.lease().map(|length| wait_before_promotion(length, None))
}

/// Waits until the source of a mirror has no lease any more, for which no more was granted since
/// `detached` was started.
pub(super) async fn wait_out(node: &Node, mirror: &MirrorTopic, detached: &Clock) {
    let wait = wait(&plan::options(&node.meta.metadata(), &mirror.link)).unwrap_or_default();
    let over = meridian_base::env::Instant::ZERO + wait;
    if detached.now() < over {
        tracing::info!(topic = %mirror.name, ?wait, "waits for the lease of the source to end");
    }
    while detached.now() < over {
        tokio::time::sleep(over.since(detached.now())).await;
    }
}

/// Takes what a mirror grants. From the first grant on a topic needs it.
pub(super) fn take(node: &Arc<Node>, by: &ClusterId, granted: &Granted) -> Told {
    let (Some(life), now) = (node.mirrors.life(), node.logs.now()) else { return Told::default() };
    let length = Duration::from_millis(granted.length_ms);
    let (mut needs, mut new, mut led) = (Vec::new(), BTreeSet::new(), Vec::new());
    {
        let metadata = node.meta.metadata();
        for Leased { topic_id, partition } in &granted.partitions {
            let Some(topic) = metadata.topic(topic_id.0) else { continue };
            let need = need(&metadata, topic.id);
            if need.as_ref().is_none_or(|need| need.of == *by) {
                led.extend(topic.partitions.get(*partition as usize));
            }
            match need {
                Some(need) => needs.push(Needed { topic_id: *topic_id, of: need.of.to_string() }),
                None if refuses_clients(&metadata, topic.id).is_none() => {
                    new.insert(topic.id.get());
                }
                None => {}
            }
        }
    }
    if let Some(stamp) = granted.stamp {
        for log in led.into_iter().filter_map(|partition| node.logs.led(partition)) {
            log.on_lease(life, stamp, length);
        }
        if !new.is_empty() {
            tokio::spawn(begin(Arc::clone(node), by.clone(), new));
        }
    }
    needs.dedup_by_key(|need| need.topic_id.0);
    Told { stamp: Some(Stamp::new(life, now)), needs }
}

/// Has topics need the lease of a cluster, if they need none yet.
async fn begin(node: Arc<Node>, of: ClusterId, topics: BTreeSet<u128>) {
    for topic in topics.into_iter().map(TopicId::new) {
        let (kind, key) = (RowKind::WriterLease, Need::key(topic).to_vec());
        let value = Some(Need { of: of.clone() }.encode());
        let change = RowChange { kind, key, value, expected: ExpectedVersion::Absent };
        match put(&node, vec![change]).await {
            Ok(()) => tracing::info!(%topic, cluster = %of, "takes records under a lease only"),
            // Somebody else was faster, or the next grant does it.
            Err(error) => tracing::debug!(%topic, %error, "needs no lease yet"),
        }
    }
}

/// How it stands with the partitions that this node leads.
pub(super) fn reports(node: &Node) -> Vec<LeaseReport> {
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
                state: standing.name(),
                left_ms: left.map(millis),
                missing_ms: missing.map(millis),
            });
        }
    }
    reports
}
