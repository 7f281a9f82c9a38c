//! The transactions of partitions led here, in the real world: coordinators are asked, markers are
//! written.

use std::sync::Arc;
use std::time::Duration;

use meridian_storage::leader::PutError;
use tokio::sync::oneshot;

use super::{Logs, PartitionLog};
use crate::broker::TransactionVerifier;
use crate::partition::{Appended, Marker, ProduceError, Ticket, Verification, VerifyError};
use crate::runtime::clock;

/// A coordinator that has not answered by then can't be reached. Batches wait for it, and the
/// answers of a connection keep its order.
const VERIFY_WITHIN: Duration = Duration::from_secs(3);

impl Logs {
    /// Names who is asked about transactions. Until then none can be written, and a second call
    /// changes nothing.
    pub fn set_verifier(&self, verifier: Arc<dyn TransactionVerifier>) {
        let _named_already = self.verifier.set(verifier);
    }

    async fn ask_coordinator(&self, verification: Verification) -> Result<(), VerifyError> {
        let verifier = self.verifier.get().ok_or(VerifyError::Unavailable)?;
        let answer = tokio::time::timeout(VERIFY_WITHIN, verifier.verify(verification)).await;
        answer.unwrap_or(Err(VerifyError::Unavailable))
    }
}

impl PartitionLog {
    /// Ends a producer's transaction in this partition. The receiver is answered when the marker
    /// is committed, or at once if it is refused; if it is dropped unanswered, or answered with
    /// [`ProduceError::InDoubt`], the same marker may be written again, here or at the next leader.
    pub fn write_marker(
        self: &Arc<Self>,
        marker: Marker,
    ) -> oneshot::Receiver<Result<Appended, ProduceError>> {
        let (waiter, answer) = oneshot::channel();
        let mut waiter = Some(waiter);
        let timestamp_ms = clock::wall_time_ms();
        self.act(|partition, now, health, out| {
            if let Some(waiter) = waiter.take() {
                partition.write_marker(now, health, &marker, timestamp_ms, waiter, out);
            }
        });
        if let Some(waiter) = waiter {
            let _coordinator_is_gone = waiter.send(Err(PutError::Lost.into()));
        }
        answer
    }

    /// Asks the coordinator, and gives its answer to the partition.
    pub(super) fn verify(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        ticket: Ticket,
        verification: Verification,
    ) {
        let (log, asking) = (Arc::clone(self), Arc::clone(logs));
        logs.spawn(async move {
            let result = asking.ask_coordinator(verification).await;
            log.act(|partition, now, health, out| {
                partition.on_verified(now, health, ticket, result, out);
            });
        });
    }
}
