//! Why a partition did not append something.

use meridian_base::position::Offset;
use meridian_storage::leader::PutError;

use super::VerifyError;
use super::source::SourceError;
use crate::producer::SequenceError;

/// Why a batch or a marker does not fit the producer's transactions; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The producer's transaction ended before the batch came.
    #[error("the transaction of producer {producer_id} has ended; abort it and begin anew")]
    NotOngoing {
        /// The producer.
        producer_id: i64,
    },
    /// The producer has a transaction open, and the batch is not of it.
    #[error("producer {producer_id} has a transaction open; only batches of it can be written")]
    NotTransactional {
        /// The producer.
        producer_id: i64,
    },
    /// The coordinator does not vouch for the batch.
    #[error(transparent)]
    Unverified(#[from] VerifyError),
    /// If it was aborted, it would have to be remembered, and there is no room for that.
    #[error(
        "this partition remembers {aborted_count} aborted transactions, and there is no room for more; shorten the \
         topic's retention, delete old records, or use more partitions"
    )]
    NoRoom {
        /// Aborted transactions that the log still holds records of.
        aborted_count: u64,
    },
    /// A marker of a coordinator that has been replaced.
    #[error("coordinator epoch {found} is older than {current}; another coordinator took over")]
    CoordinatorFenced {
        /// The marker's.
        found: i32,
        /// The epoch in force.
        current: i32,
    },
    /// A marker of a transaction that is not the open one: it came late, or twice.
    #[error(
        "the marker's producer epoch {found} does not follow the open transaction's, {current}"
    )]
    LateMarker {
        /// The marker's.
        found: i16,
        /// The open transaction's.
        current: i16,
    },
}

/// Why a produce request was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// Nothing was written.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The producer's order does not allow it; nothing was written.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The order of a record's source does not allow it; nothing was written.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The producer's transactions do not allow it; nothing was written.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// Leadership was lost before the records were committed. They may be in the log or not: the
    /// same request to the next leader settles it.
    #[error("leadership moved before the records were committed; retry at the new leader")]
    InDoubt,
    /// An offset asked for is not in the log.
    #[error("offset {0} is not in the log")]
    OutOfRange(Offset),
}
