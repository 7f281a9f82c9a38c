//! Has committed offsets that nobody has come back to forgotten (`offsets.retention.minutes`), and
//! groups without members and offsets. What expires is decided in `coordination/group_state/expiry.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::Front;

/// `offsets.retention.check.interval.ms`.
const CHECK_EVERY: Duration = Duration::from_secs(600);

impl Front {
    /// Looks for expired positions now and then; never returns.
    pub(super) async fn expire_offsets(self: Arc<Self>) {
        let mut interval = crate::background::ticks(CHECK_EVERY);
        loop {
            interval.tick().await;
            let Some(now_ms) = self.broker.agreed_time_ms() else { continue };
            // Those that are not loaded yet load by being asked for, and have their turn next time.
            for coordinator in self.coordinators_here().unwrap_or_default() {
                // In this order everywhere: the metadata, then groups.
                let metadata = self.broker.metadata();
                let name = |topic| metadata.topic(topic).map(|topic| topic.name.clone());
                let Ok(mut groups) = coordinator.state() else { continue };
                let count = groups.expire(now_ms, self.retention_ms(), name);
                if count > 0 {
                    tracing::info!(count, "committed offsets of groups expired");
                }
            }
        }
    }

    fn retention_ms(&self) -> i64 {
        i64::try_from(self.config.group.offsets_retention.as_millis()).unwrap_or(i64::MAX)
    }
}
