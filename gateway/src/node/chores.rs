//! What a node does in the background.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_consensus::state::Metadata;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Node;
use crate::meta::MetaEvent;
use crate::partition::Retention;

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
        let now_ms = node.time.agreed_ms();
        for log in node.logs.owned_logs() {
            let retention = {
                let metadata = node.meta.metadata();
                let partition = metadata.partition(log.ownership().partition);
                partition.and_then(|found| retention_of(&metadata, found.topic, now_ms))
            };
            if let Some(retention) = retention {
                log.retain(&retention);
            }
        }
    }
}

/// What a topic keeps; `None` if it deletes nothing by age or size. While nobody knows the time,
/// nothing is too old.
fn retention_of(metadata: &Metadata, topic: TopicId, now_ms: Option<i64>) -> Option<Retention> {
    let policy = metadata.topic_config(topic, "cleanup.policy").unwrap_or("delete");
    if !policy.split(',').any(|policy| policy.trim() == "delete")
        || metadata.topic(topic).is_some_and(|topic| topic.internal)
    {
        return None;
    }
    let number = |name| metadata.topic_config(topic, name).and_then(|value| value.parse().ok());
    let retention_ms = number("retention.ms").unwrap_or(RETENTION_MS_DEFAULT);
    let retention_bytes: i64 = number("retention.bytes").unwrap_or(-1);
    Some(Retention {
        size_bytes_max: u64::try_from(retention_bytes).ok(),
        timestamp_ms_min: now_ms
            .filter(|_| retention_ms >= 0)
            .map(|now_ms| now_ms.saturating_sub(retention_ms)),
    })
}
