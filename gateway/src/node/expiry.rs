//! Forgets producers and sources that have been silent for long.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::Metadata;

use super::Node;
use crate::background::{Turns, ticks};
use crate::topic_config::{DEDUP_RETENTION_MS, DEDUP_RETENTION_MS_DEFAULT};

/// How often partitions are told the time, and look for what has been silent for too long.
const EXPIRY_EVERY: Duration = Duration::from_secs(60);
/// Kafka's default of `producer.id.expiration.ms`: a day.
const PRODUCER_EXPIRATION_MS: i64 = 24 * 3600 * 1000;

/// Lets partitions forget producers and sources.
pub(super) async fn run_expiry(node: Arc<Node>) {
    let mut ticks = ticks(EXPIRY_EVERY);
    let mut turns = Turns::default();
    loop {
        ticks.tick().await;
        let Some(now_ms) = node.time.agreed_ms() else { continue };
        // All of them: what is appended to a partition that was idle has to be seen at the time of now.
        for log in node.logs.owned_logs() {
            turns.next().await;
            let source_retention_ms = {
                let metadata = node.meta.metadata();
                let topic = metadata.partition(log.ownership().partition).map(|found| found.topic);
                topic.and_then(|topic| source_retention_ms(&metadata, topic))
            };
            log.track_sources(source_retention_ms.is_some(), now_ms);
            log.set_time(now_ms);
            let sources_ms = now_ms.saturating_sub(source_retention_ms.unwrap_or(i64::MAX));
            log.expire(now_ms.saturating_sub(PRODUCER_EXPIRATION_MS), sources_ms);
        }
    }
}

/// How long a topic's sources are remembered; `None` if it remembers none.
fn source_retention_ms(metadata: &Metadata, topic: TopicId) -> Option<i64> {
    if !crate::meta::dedups_sources(metadata, topic) {
        return None;
    }
    let set = metadata.config(&ConfigResource::Topic(topic), DEDUP_RETENTION_MS);
    let retention_ms = set.and_then(|value| value.parse().ok());
    match retention_ms.unwrap_or(DEDUP_RETENTION_MS_DEFAULT) {
        ..0 => Some(i64::MAX),
        retention_ms => Some(retention_ms),
    }
}
