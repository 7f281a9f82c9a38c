//! Positions that nobody has come back to are forgotten (`offsets.retention.minutes`).
//!
//! | group | a position expires |
//! | --- | --- |
//! | without members | when it was stored, and the last member left, that long ago |
//! | that never had members | when it was stored that long ago |
//! | with members | when it was stored that long ago in a topic that none of them reads |

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;

use super::Front;
use super::coordinator::{GroupEntry, Groups};
use super::group_state::Changes;
use super::offset_record::OffsetKey;

/// `offsets.retention.check.interval.ms`.
const CHECK_EVERY: Duration = Duration::from_secs(600);

impl Front {
    /// Looks for expired positions now and then; never returns.
    pub(super) async fn expire_offsets(self: Arc<Self>) {
        let mut interval = tokio::time::interval(CHECK_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let Some(now_ms) = self.broker.agreed_time_ms() else { continue };
            // Those that are not loaded yet load by being asked for, and have their turn next time.
            for coordinator in self.coordinators_here().unwrap_or_default() {
                // In this order everywhere: the metadata, then groups.
                let metadata = self.broker.metadata();
                let name = |topic| metadata.topic(topic).map(|topic| topic.name.clone());
                let count = coordinator.groups().expire(now_ms, self.retention_ms(), name);
                if count > 0 {
                    tracing::info!(count, "positions of groups expired");
                }
            }
        }
    }

    fn retention_ms(&self) -> i64 {
        i64::try_from(self.config.group.offsets_retention.as_millis()).unwrap_or(i64::MAX)
    }
}

impl Groups {
    /// Deletes expired positions; returns how many.
    pub(super) fn expire(
        &mut self,
        now_ms: i64,
        retention_ms: i64,
        topic_name: impl Fn(TopicId) -> Option<String>,
    ) -> usize {
        let expired: Vec<(String, Vec<OffsetKey>)> = self
            .by_id
            .iter()
            .filter(|(id, _)| self.is_settled(id))
            .map(|(id, it)| (id.clone(), it.expired(now_ms, retention_ms, &topic_name)))
            .filter(|(_, keys)| !keys.is_empty())
            .collect();
        let mut count = 0;
        for (id, keys) in expired {
            count += keys.len();
            let changes: Changes = keys.into_iter().map(|key| (key, None)).collect();
            self.write_offsets(&id, changes, None);
            self.watch(id);
        }
        count
    }
}

impl GroupEntry {
    fn expired(
        &self,
        now_ms: i64,
        retention_ms: i64,
        topic_name: impl Fn(TopicId) -> Option<String>,
    ) -> Vec<OffsetKey> {
        let is_old = |at_ms: i64| now_ms.saturating_sub(at_ms) >= retention_ms;
        let is_empty = self.group.is_empty();
        if is_empty && !is_old(self.recorded_at_ms) {
            return Vec::new();
        }
        let is_read = |topic: TopicId| {
            let names = topic_name(topic).into_iter();
            !is_empty && !self.group.subscribed(names).is_empty()
        };
        let old = self.offsets().filter(|(_, committed)| is_old(committed.committed_at_ms));
        old.map(|(key, _)| key).filter(|key| !is_read(key.topic)).collect()
    }
}
