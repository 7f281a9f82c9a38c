//! The bound on how far mirrors may be behind (`mirror.max.lag.ms`), as producers meet it.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_consensus::state::Metadata;
use meridian_mirror::contract::Verdict;
use meridian_protocol::ErrorCode;

use crate::health::RefusedFor;
use crate::kafka::error::ApiError;
use crate::kafka::lookup;
use crate::log::PartitionLog;
use crate::topic_config;

/// A batch that was let in although its topic's mirrors are bound to be near.
pub(super) struct Bound {
    log: Arc<PartitionLog>,
    limit: Duration,
    /// How long its producer is to wait.
    pub(super) throttle: Duration,
}

/// How far the mirrors of a topic may be behind; `None` if they may be however far.
pub(crate) fn limit(metadata: &Metadata, topic: TopicId) -> Option<Duration> {
    let limit: i64 = lookup::topic_config(metadata, topic, topic_config::MIRROR_MAX_LAG_MS)?;
    u64::try_from(limit).ok().filter(|limit| *limit > 0).map(Duration::from_millis)
}

/// Lets a batch in, or refuses it for now.
pub(super) fn admit(log: &Arc<PartitionLog>, limit: Duration) -> Result<Bound, ApiError> {
    let throttle = match log.judge_lag(limit) {
        Verdict::Free => Duration::ZERO,
        Verdict::Throttled(throttle) => throttle,
        Verdict::Refused(lag) => {
            log.note_refusal(RefusedFor::MirrorsTooFarBehind);
            let message = format!(
                "no mirror has what was written {} ms ago, and mirror.max.lag.ms is {}; retry when a \
                 mirror has caught up, or raise it",
                lag.as_millis(),
                limit.as_millis()
            );
            return Err(ApiError::new(ErrorCode::NotEnoughReplicas, message));
        }
    };
    Ok(Bound { log: Arc::clone(log), limit, throttle })
}

impl Bound {
    /// The batch is in the log.
    pub(super) fn on_appended(&self) {
        self.log.sight_end(self.limit);
    }
}
