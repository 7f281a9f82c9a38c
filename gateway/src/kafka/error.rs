//! The one place where our errors become Kafka's codes.

use meridian_base::id::TopicId;
use meridian_broker::share::{AckError, ShareError};
use meridian_consensus::error::Refusal;
use meridian_consensus::state::Metadata;
use meridian_protocol::records::BatchError;
use meridian_protocol::{ErrorCode, Str};
use meridian_storage::leader::PutError;

use crate::features::NotAgreed;
use crate::linked_topics::Closed;
use crate::log::FetchError;
use crate::meta::ProposeError;
use crate::partition::source::{HeaderError, SourceError};
use crate::partition::{ProduceError, TransactionError, VerifyError};
use crate::producer::SequenceError;
use crate::transaction::CoordinatorError;
pub(crate) use meridian_broker::error::{of_consumer_group, of_group};

/// An error as a client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) code: ErrorCode,
    pub(super) message: Option<String>,
}

impl ApiError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()) }
    }

    /// The message as a response holds it.
    pub(super) fn message(&self) -> Option<Str> {
        self.message.as_deref().map(Str::from)
    }
}

impl From<ErrorCode> for ApiError {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: None }
    }
}

impl From<ProposeError> for ApiError {
    fn from(error: ProposeError) -> Self {
        Self::new(of_propose(&error), error.to_string())
    }
}

impl From<NotAgreed> for ApiError {
    fn from(error: NotAgreed) -> Self {
        match error {
            NotAgreed::NotBy { .. } => Self::new(ErrorCode::InvalidRequest, error.to_string()),
            NotAgreed::Undecided(error) => error.into(),
        }
    }
}

/// What whoever would change a mirror is told. Of the codes that no client retries, the one that says
/// that the topic and not the request is at fault; while the topic moves to another cluster, one that
/// has clients ask again where it is.
pub(super) fn mirror(metadata: &Metadata, topic: TopicId) -> Result<(), ApiError> {
    match crate::linked_topics::refuses_clients(metadata, topic) {
        Some(Closed::Moves(message)) => Err(ApiError::new(ErrorCode::NotLeaderOrFollower, message)),
        Some(Closed::Mirror(message)) => Err(ApiError::new(ErrorCode::PolicyViolation, message)),
        None => Ok(()),
    }
}

/// Why a command was not decided.
pub(super) fn of_propose(error: &ProposeError) -> ErrorCode {
    match error {
        ProposeError::Refused(refusal) => of_refusal(refusal),
        ProposeError::TimedOut => ErrorCode::RequestTimedOut,
        ProposeError::ShuttingDown => ErrorCode::BrokerNotAvailable,
    }
}

fn of_refusal(refusal: &Refusal) -> ErrorCode {
    match refusal {
        Refusal::NotBootstrapped | Refusal::NotEnoughNodes | Refusal::GroupAtRisk => {
            ErrorCode::CoordinatorNotAvailable
        }
        Refusal::TopicExists | Refusal::AlreadyBootstrapped => ErrorCode::TopicAlreadyExists,
        Refusal::TopicCollides(_) | Refusal::InvalidTopicName => ErrorCode::InvalidTopicException,
        Refusal::UnknownTopic(_) => ErrorCode::UnknownTopicOrPartition,
        Refusal::InvalidPartitions { .. } | Refusal::StalePartitionCount { .. } => {
            ErrorCode::InvalidPartitions
        }
        Refusal::TooLarge { .. } => ErrorCode::PolicyViolation,
        Refusal::UnknownNode(_) | Refusal::MissingRole { .. } | Refusal::UnsuitableNode(_) => {
            ErrorCode::BrokerNotAvailable
        }
        Refusal::StaleRow { .. }
        | Refusal::StaleNode { .. }
        | Refusal::StaleSlot
        | Refusal::UnknownGroup(_)
        | Refusal::NodeInUse(_)
        | Refusal::UnsupportedFeatureLevel { .. }
        | Refusal::FeatureLevelSinks { .. }
        | Refusal::FeatureLevelTooLow { .. }
        | Refusal::StaleGroupCount { .. }
        | Refusal::NotTheGeometry => ErrorCode::InvalidRequest,
        Refusal::ProducerIdsExhausted => ErrorCode::UnknownServerError,
    }
}

/// Why a batch was not appended.
pub(super) fn of_produce(error: &ProduceError) -> ErrorCode {
    match error {
        ProduceError::Put(PutError::Lost | PutError::NotServing) | ProduceError::InDoubt => {
            ErrorCode::NotLeaderOrFollower
        }
        // A code that every client retries, and none takes for lost records.
        ProduceError::Put(PutError::Busy) => ErrorCode::RequestTimedOut,
        ProduceError::Put(PutError::NotEnoughDatacenters) => ErrorCode::NotEnoughReplicas,
        ProduceError::Put(PutError::TooLarge { .. }) => ErrorCode::MessageTooLarge,
        ProduceError::Sequence(SequenceError::OldEpoch { .. }) => ErrorCode::InvalidProducerEpoch,
        ProduceError::Sequence(SequenceError::OutOfOrder { .. }) => {
            ErrorCode::OutOfOrderSequenceNumber
        }
        ProduceError::Sequence(SequenceError::UnknownProducer { .. }) => {
            ErrorCode::UnknownProducerId
        }
        ProduceError::Transaction(error) => of_transaction(error),
        ProduceError::Source(SourceError::NeverWritten { .. }) => ErrorCode::InvalidRecord,
        ProduceError::Source(SourceError::TooMany { .. }) => ErrorCode::PolicyViolation,
        ProduceError::Source(SourceError::NotRewritten) => ErrorCode::KafkaStorageError,
        ProduceError::OutOfRange(_) => ErrorCode::OffsetOutOfRange,
    }
}

/// Why a batch or a marker does not fit the producer's transactions.
fn of_transaction(error: &TransactionError) -> ErrorCode {
    match error {
        TransactionError::NotOngoing { .. } | TransactionError::NotTransactional { .. } => {
            ErrorCode::InvalidTxnState
        }
        TransactionError::Unverified(error) => of_verify(*error, PRODUCE_BEFORE_ABORTABLE),
        TransactionError::CoordinatorFenced { .. } => ErrorCode::TransactionCoordinatorFenced,
        TransactionError::LateMarker { .. } => ErrorCode::InvalidProducerEpoch,
        TransactionError::NoRoom { .. } => ErrorCode::PolicyViolation,
    }
}

/// The last version of Produce whose clients do not know `TRANSACTION_ABORTABLE`.
const PRODUCE_BEFORE_ABORTABLE: i16 = 10;
/// The last version of Produce whose clients do not retry `CONCURRENT_TRANSACTIONS`.
const PRODUCE_BEFORE_CONCURRENT: i16 = 11;

/// Why a coordinator does not vouch for a batch, for a client that sent this version of Produce.
pub(super) fn of_verify(error: VerifyError, produce_version: i16) -> ErrorCode {
    match error {
        VerifyError::NotInTransaction if produce_version > PRODUCE_BEFORE_ABORTABLE => {
            ErrorCode::TransactionAbortable
        }
        VerifyError::NotInTransaction => ErrorCode::InvalidTxnState,
        VerifyError::UnknownProducer => ErrorCode::InvalidProducerIdMapping,
        VerifyError::Fenced => ErrorCode::InvalidProducerEpoch,
        VerifyError::Concurrent if produce_version > PRODUCE_BEFORE_CONCURRENT => {
            ErrorCode::ConcurrentTransactions
        }
        // A code that every client retries without looking for another leader.
        VerifyError::Concurrent | VerifyError::Unavailable => ErrorCode::NotEnoughReplicas,
    }
}

/// Why a transaction's coordinator refused; clients of older versions don't know `PRODUCER_FENCED`
/// (KIP-588).
pub(super) fn of_coordinator(error: &CoordinatorError, knows_fenced: bool) -> ErrorCode {
    match error {
        CoordinatorError::UnknownProducer => ErrorCode::InvalidProducerIdMapping,
        CoordinatorError::Fenced if knows_fenced => ErrorCode::ProducerFenced,
        CoordinatorError::Fenced => ErrorCode::InvalidProducerEpoch,
        CoordinatorError::Concurrent => ErrorCode::ConcurrentTransactions,
        CoordinatorError::InvalidState => ErrorCode::InvalidTxnState,
        CoordinatorError::NotInTransaction => ErrorCode::TransactionAbortable,
        CoordinatorError::TooMany => ErrorCode::PolicyViolation,
        CoordinatorError::NotCoordinator => ErrorCode::NotCoordinator,
        CoordinatorError::Loading => ErrorCode::CoordinatorLoadInProgress,
        CoordinatorError::Unavailable => ErrorCode::CoordinatorNotAvailable,
    }
}

/// The last version of TxnOffsetCommit whose clients do not know `TRANSACTION_ABORTABLE`.
const TXN_COMMIT_BEFORE_ABORTABLE: i16 = 3;

/// Why positions were not taken into a transaction, for a client that sent this version of
/// TxnOffsetCommit.
pub(super) fn of_txn_commit(error: &ProduceError, version: i16) -> ErrorCode {
    match error {
        ProduceError::Transaction(TransactionError::Unverified(error)) => match error {
            VerifyError::NotInTransaction if version > TXN_COMMIT_BEFORE_ABORTABLE => {
                ErrorCode::TransactionAbortable
            }
            VerifyError::NotInTransaction => ErrorCode::InvalidTxnState,
            VerifyError::UnknownProducer => ErrorCode::InvalidProducerIdMapping,
            VerifyError::Fenced => ErrorCode::InvalidProducerEpoch,
            // A code on which every client asks again.
            VerifyError::Concurrent | VerifyError::Unavailable => {
                ErrorCode::CoordinatorLoadInProgress
            }
        },
        ProduceError::Sequence(_) => of_produce(error),
        error => of_commit(error),
    }
}

/// Why nothing was read.
pub(super) fn of_fetch(error: &FetchError) -> ErrorCode {
    match error {
        FetchError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        FetchError::NotLeader => ErrorCode::NotLeaderOrFollower,
        FetchError::Unavailable => ErrorCode::KafkaStorageError,
    }
}

/// Why a produced batch cannot be taken.
pub(super) fn of_batch(error: &BatchError) -> ErrorCode {
    match error {
        BatchError::Truncated { .. }
        | BatchError::Length { .. }
        | BatchError::Checksum { .. }
        | BatchError::Compressed { .. } => ErrorCode::CorruptMessage,
        BatchError::OldFormat { .. } | BatchError::UnknownFormat { .. } => {
            ErrorCode::UnsupportedForMessageFormat
        }
        BatchError::UnknownCompression(_) | BatchError::CompressionUnsupported(_) => {
            ErrorCode::UnsupportedCompressionType
        }
        // The checksum is right: sent again it would be no better.
        BatchError::Count { .. }
        | BatchError::LeftOver(_)
        | BatchError::Record(_)
        | BatchError::OffsetDelta { .. }
        | BatchError::Control
        | BatchError::DeleteHorizon
        | BatchError::Producer { .. }
        | BatchError::Empty
        | BatchError::MoreThanOne => ErrorCode::InvalidRecord,
        BatchError::Timestamp { .. } => ErrorCode::InvalidTimestamp,
        BatchError::TooLarge { .. } => ErrorCode::MessageTooLarge,
    }
}

/// Why a batch cannot be told apart from a repeat.
pub(super) fn of_headers(error: &HeaderError) -> ErrorCode {
    match error {
        HeaderError::Batch(error) => of_batch(error),
        HeaderError::Record { .. } => ErrorCode::InvalidRecord,
    }
}

/// Why what a leader keeps for a share group is not kept. Clients of share groups know few codes: on this one they
/// look the leader up and fetch again.
pub(super) fn of_share(error: ShareError) -> ErrorCode {
    match error {
        ShareError::FencedLeader | ShareError::Unavailable => ErrorCode::NotLeaderOrFollower,
        ShareError::FencedState => ErrorCode::FencedStateEpoch,
        ShareError::UnknownGroup => ErrorCode::UnknownTopicOrPartition,
        ShareError::TooMany => ErrorCode::UnknownServerError,
    }
}

/// Why acknowledgements are refused.
pub(super) fn of_acknowledgement(error: AckError) -> ErrorCode {
    match error {
        AckError::Invalid => ErrorCode::InvalidRequest,
        AckError::NotHeld => ErrorCode::InvalidRecordState,
    }
}

/// Why the coordinator could not make a record of a group durable.
pub(super) fn of_commit(error: &ProduceError) -> ErrorCode {
    match error {
        ProduceError::Put(PutError::Lost | PutError::NotServing) | ProduceError::InDoubt => {
            ErrorCode::NotCoordinator
        }
        ProduceError::Put(PutError::Busy | PutError::NotEnoughDatacenters) => {
            ErrorCode::CoordinatorNotAvailable
        }
        ProduceError::Put(PutError::TooLarge { .. }) => ErrorCode::InvalidCommitOffsetSize,
        ProduceError::Transaction(error) => of_transaction(error),
        ProduceError::Sequence(_) | ProduceError::Source(_) | ProduceError::OutOfRange(_) => {
            ErrorCode::UnknownServerError
        }
    }
}
