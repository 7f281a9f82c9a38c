//! What a client may change of the cluster: `controller_mutation_rate`, in partitions that are
//! created or deleted.
//!
//! As in Kafka (KIP-599) who is over it is refused in newer versions of the requests, topic by
//! topic, and only slowed down in older ones, whose clients do not know that answer.

use meridian_broker::quota::node::Charged;
use meridian_protocol::{ApiKey, ErrorCode};

use super::{Limit, Traffic, limit, pause};
use crate::kafka::dispatch::Call;
use crate::kafka::error::ApiError;

/// The changes of one request.
pub(in crate::kafka) struct Mutations {
    limit: Option<Limit>,
    is_strict: bool,
    /// The last one, which waits for longest.
    charged: Option<Charged>,
}

impl Mutations {
    /// Those of a request of this API, none of them made yet.
    pub(in crate::kafka) fn of(call: &Call, api: ApiKey) -> Self {
        let strict_from_version = match api {
            ApiKey::CreateTopics => 6,
            ApiKey::DeleteTopics => 5,
            _ => 3,
        };
        let is_strict = call.version >= strict_from_version;
        Self { limit: limit(call, Traffic::Mutations), is_strict, charged: None }
    }

    /// Charges the change of so many partitions.
    pub(in crate::kafka) fn charge(&mut self, call: &Call, count: usize) -> Result<(), ApiError> {
        let Some(limit) = &self.limit else { return Ok(()) };
        let (now, throttles) = (call.front.now(), &call.front.throttles);
        if self.is_strict {
            let charged = throttles.charge(now, limit, 0);
            if !charged.told.is_zero() {
                self.charged = Some(charged);
                let message = "the quota of created and deleted partitions is exceeded";
                return Err(ApiError::new(ErrorCode::ThrottlingQuotaExceeded, message));
            }
        }
        self.charged = Some(throttles.charge(now, limit, count));
        Ok(())
    }

    /// Has the client wait; gives for how many milliseconds.
    pub(in crate::kafka) fn throttle(&self, call: &Call) -> i32 {
        self.charged.map_or(0, |charged| pause(call, charged))
    }
}
