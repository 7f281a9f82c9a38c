//! What a node does in the background.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::Metadata;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Node;
use crate::kafka::{DEDUP_RETENTION_MS, DEDUP_RETENTION_MS_DEFAULT};
use crate::meta::MetaEvent;
use crate::partition::Retention;
use crate::runtime::clock;

/// How often logs are looked at for records to let go.
const RETENTION_EVERY: Duration = Duration::from_secs(5);
/// Kafka's default of `retention.ms`: a week.
const RETENTION_MS_DEFAULT: i64 = 7 * 24 * 3600 * 1000;

/// Does what applied entries ask for, in order.
pub(super) async fn run_events(node: Arc<Node>, mut events: UnboundedReceiver<MetaEvent>) {
    while let Some(event) = events.recv().await {
        node.on_event(event).await;
    }
}

/// Lets go of records that their topics no longer keep.
pub(super) async fn run_retention(node: Arc<Node>) {
    let mut interval = tokio::time::interval(RETENTION_EVERY);
    loop {
        interval.tick().await;
        let now_ms = clock::wall_time_ms();
        for log in node.logs.owned_logs() {
            let (retention, dedup_retention_ms) = {
                let metadata = node.meta.metadata();
                let topic = metadata.partition(log.ownership().partition).map(|found| found.topic);
                (
                    topic.and_then(|topic| retention_of(&metadata, topic, now_ms)),
                    topic.and_then(|topic| dedup_retention_ms(&metadata, topic)),
                )
            };
            if let Some(retention) = retention {
                log.retain(&retention);
            }
            log.track_sources(dedup_retention_ms.is_some(), now_ms);
            if let Some(retention_ms) = dedup_retention_ms {
                log.expire_sources(now_ms, retention_ms);
            }
        }
    }
}

/// How long a topic's sources are remembered; `None` if it remembers none.
fn dedup_retention_ms(metadata: &Metadata, topic: TopicId) -> Option<i64> {
    let resource = ConfigResource::Topic(topic);
    crate::meta::dedups_sources(metadata, topic).then(|| {
        let set = metadata.config(&resource, DEDUP_RETENTION_MS);
        let retention_ms = set.and_then(|value| value.parse().ok());
        match retention_ms.unwrap_or(DEDUP_RETENTION_MS_DEFAULT) {
            ..0 => i64::MAX,
            retention_ms => retention_ms,
        }
    })
}

/// What a topic keeps; `None` if it deletes nothing by age or size.
fn retention_of(metadata: &Metadata, topic: TopicId, now_ms: i64) -> Option<Retention> {
    let resource = ConfigResource::Topic(topic);
    let policy = metadata.config(&resource, "cleanup.policy").unwrap_or("delete");
    if !policy.split(',').any(|policy| policy.trim() == "delete")
        || metadata.topic(topic).is_some_and(|topic| topic.internal)
    {
        return None;
    }
    let number = |name| metadata.config(&resource, name).and_then(|value| value.parse().ok());
    let retention_ms = number("retention.ms").unwrap_or(RETENTION_MS_DEFAULT);
    let retention_bytes: i64 = number("retention.bytes").unwrap_or(-1);
    Some(Retention {
        size_bytes_max: u64::try_from(retention_bytes).ok(),
        timestamp_ms_min: (retention_ms >= 0).then(|| now_ms.saturating_sub(retention_ms)),
    })
}
