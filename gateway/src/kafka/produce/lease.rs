//! The writer's lease, as producers meet it.

use std::sync::Arc;

use meridian_protocol::ErrorCode;

use crate::kafka::error::ApiError;
use crate::log::PartitionLog;

/// A batch that was let in under a lease.
pub(super) struct Leased(Arc<PartitionLog>);

fn refused(code: ErrorCode) -> ApiError {
    let message = "the cluster of this topic's mirror has not said lately that it is not promoted (state \
                   lease-missing); retry; `meridian mirror status` at this cluster says who is to";
    ApiError::new(code, message)
}

/// Lets a batch in, or refuses it for now.
pub(super) fn admit(log: &Arc<PartitionLog>) -> Result<Leased, ApiError> {
    match log.lease().is_held() {
        true => Ok(Leased(Arc::clone(log))),
        false => Err(refused(ErrorCode::NotEnoughReplicas)),
    }
}

impl Leased {
    /// Whether the batch, which is in the log, may be acknowledged: the lease may have ended while it was
    /// on its way. A producer that retries is told where it is as soon as there is one again.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        match self.0.lease().is_held() {
            true => Ok(()),
            false => Err(refused(ErrorCode::NotEnoughReplicasAfterAppend)),
        }
    }
}
