//! What a node does in the background.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_consensus::state::Metadata;

use super::Node;
use crate::background::{Backoff, Chore};
use crate::log::Rounds;
use crate::meta::Events;
use crate::partition::Retention;

/// How often logs that have changed are looked at for records to let go.
const RETENTION_EVERY: Duration = Duration::from_secs(5);
/// How often those are at least that let go of records by age.
const RETENTION_REST_MAX: Duration = Duration::from_secs(60);
/// A log that refuses to let go of records is left alone for no longer than this.
const REFUSED_REST_MAX: Duration = Duration::from_secs(300);
/// Kafka's default of `retention.ms`: a week.
const RETENTION_MS_DEFAULT: i64 = 7 * 24 * 3600 * 1000;

/// Does what applied entries ask for, in order.
pub(crate) async fn run_events(node: Arc<Node>, events: Arc<Events>) {
    while let Some(event) = events.next().await {
        node.on_event(event);
    }
}

/// Lets go of records that their topics no longer keep.
pub(super) async fn run_retention(node: Arc<Node>) {
    let backoff = Backoff::new(RETENTION_EVERY, REFUSED_REST_MAX);
    let mut rounds = Rounds::new(Chore::Retention, RETENTION_EVERY, backoff);
    let logs = &node.logs;
    loop {
        rounds.begin(logs).await;
        while let Some(log) = rounds.next(logs).await {
            let partition = log.ownership().partition;
            let now_ms = node.time.agreed_ms();
            let retention = {
                let metadata = node.meta.metadata();
                let found = metadata.partition(partition);
                found.and_then(|found| retention_of(&metadata, found.topic, now_ms))
            };
            let Some(retention) = retention.filter(|_| log.is_serving()) else { continue };
            match log.retain(&retention) {
                Ok(true) => rounds.on_done(logs, partition),
                Ok(false) => {}
                Err(error) => {
                    tracing::info!(?partition, %error, "retention waits");
                    rounds.on_refused(logs, partition);
                    continue;
                }
            }
            // What goes by size goes when more is written, which is a change.
            let is_by_age = retention.timestamp_ms_min.is_some() || now_ms.is_none();
            if is_by_age && let Some(oldest_ms) = log.oldest_timestamp_ms() {
                rounds.again_in(logs, partition, rest(&retention, oldest_ms));
            }
        }
    }
}

/// How long nothing is old enough to go.
fn rest(retention: &Retention, oldest_ms: i64) -> Duration {
    let young_ms = oldest_ms.saturating_sub(retention.timestamp_ms_min.unwrap_or(i64::MAX));
    let young = Duration::from_millis(u64::try_from(young_ms).unwrap_or(0));
    young.clamp(RETENTION_EVERY, RETENTION_REST_MAX)
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
