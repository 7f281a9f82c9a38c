//! The transactions of partitions led here, in the real world: coordinators are asked, markers are
//! written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use meridian_base::position::Offset;
use meridian_storage::leader::PutError;
use tokio::sync::oneshot;

use super::{FetchError, Logs, PartitionLog};
use crate::partition::{
    AbortedTransaction, Appended, Marker, ProduceError, Ticket, Verification, VerifyError,
};
use crate::peers::BoxFuture;
use crate::producer::ProducerDescription;

/// Asks the coordinator of a transaction, wherever it is, on behalf of a partition's leader
/// (KIP-890).
pub trait TransactionVerifier: Send + Sync + 'static {
    /// Whether the partition belongs to the producer's transaction, which it is added to first if
    /// the transaction is of version 2. Ends in bounded time: batches wait for it.
    fn verify(&self, verification: Verification) -> BoxFuture<'_, Result<(), VerifyError>>;
}

/// A coordinator that has not answered by then can't be reached. Batches wait for it, and the
/// answers of a connection keep its order.
const VERIFY_WITHIN: Duration = Duration::from_secs(3);

/// The open transactions of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OngoingCounts {
    /// All of them.
    pub ongoing: usize,
    /// Those that began before the time asked about: their coordinator should have ended them.
    pub hanging: usize,
}

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
    /// The next number of an ending that is decided by the leader of this partition, for
    /// [`Marker::number`]: ascends as long as the epoch lasts.
    pub fn next_ending(&self) -> u64 {
        self.ending_count.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends a producer's transaction in this partition. The receiver is answered when the marker
    /// is committed, or at once if it is refused; if it is dropped unanswered, or answered with
    /// [`ProduceError::InDoubt`], the same marker may be written again, here or at the next leader.
    /// It is stamped with the time that the cluster agrees on.
    pub fn write_marker(
        self: &Arc<Self>,
        marker: Marker,
        agreed_time_ms: Option<i64>,
    ) -> oneshot::Receiver<Result<Appended, ProduceError>> {
        let (waiter, answer) = oneshot::channel();
        let mut waiter = Some(waiter);
        let timestamp_ms = self.marker_time_ms(agreed_time_ms);
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

    /// What a marker is stamped with. Retention goes by it, so the host's clock has no part in it: while
    /// the agreed time is not known a marker is as old as the newest record.
    pub(super) fn marker_time_ms(&self, agreed_time_ms: Option<i64>) -> i64 {
        let newest = || self.with(None, |partition| partition.state().max_timestamp_ms());
        agreed_time_ms.or_else(newest).unwrap_or(-1)
    }

    /// The producers remembered here, each with the first record of its open transaction; `None` if
    /// the partition is not served.
    pub fn producers(&self) -> Option<Vec<(ProducerDescription, Option<Offset>)>> {
        self.with(None, |partition| {
            let state = partition.state();
            let open = |id| state.transactions.ongoing(id).map(|ongoing| ongoing.first_offset);
            let describe = |producer: ProducerDescription| (producer, open(producer.producer_id));
            partition.is_serving().then(|| state.producers.describe().map(describe).collect())
        })
    }

    /// How many transactions are open, and how many of them began before `hanging_before_ms`.
    pub fn ongoing_counts(&self, hanging_before_ms: i64) -> OngoingCounts {
        self.with(OngoingCounts::default(), |partition| {
            let transactions = &partition.state().transactions;
            let began = |began_at_ms: i64| began_at_ms < hanging_before_ms;
            let all = transactions.all_ongoing();
            OngoingCounts {
                ongoing: transactions.ongoing_count(),
                hanging: all.filter(|(_, ongoing)| began(ongoing.started_at_ms)).count(),
            }
        })
    }

    /// The aborted transactions with records in `from..until`, which lies below the last stable
    /// offset. Not available while a log start above `from` is on its way.
    pub(super) fn aborted_between(
        &self,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<AbortedTransaction>, FetchError> {
        self.with(Err(FetchError::NotLeader), |partition| {
            // A partition that has stopped has forgotten them, and an empty list would be a lie.
            if !partition.is_serving() {
                return Err(FetchError::NotLeader);
            }
            let aborted = partition.state().transactions.aborted();
            aborted.between(from, until).ok_or(FetchError::Unavailable)
        })
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
