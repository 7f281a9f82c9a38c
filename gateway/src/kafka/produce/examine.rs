//! Reading what a client sent for one partition, before any of it is appended.
//!
//! The header is judged first, then each record. Small batches are read at once; large ones on a
//! thread that may take its time, while the connection reads nothing further, so that its requests
//! take effect in order.

use std::sync::Arc;

use bytes::Bytes;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::RecordError;
use meridian_protocol::records::{Batch, BatchError, Compression, Examined, RecordRules, Refusal};
use tokio::sync::Semaphore;

use super::Rules;
use crate::kafka::error::{self, ApiError};
use crate::partition::source::SourcedBatch;

/// What is decompressed at once, at most.
const AT_ONCE_SIZE_BYTES_MAX: usize = 1 << 20;
/// A compressed batch above this size is likely to be more than that.
const AT_ONCE_COMPRESSED_SIZE_BYTES_MAX: usize = 256 << 10;
/// Records that are walked at once, at most.
const AT_ONCE_RECORD_COUNT_MAX: i32 = 50_000;
/// Most bytes that the records of a batch may take decompressed, as for all who read them here.
const DECOMPRESSED_SIZE_BYTES_MAX: usize = 64 << 20;

/// Batches that are read on threads at the same time: half of the processors are for everything else.
pub(in crate::kafka) fn examine_count_max() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2))
}

/// Why a batch is refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: ApiError,
    /// The records that are to blame, if not all of it (KIP-467).
    pub(super) records: Vec<RecordError>,
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self { error, records: Vec::new() }
    }
}

impl From<BatchError> for Refused {
    fn from(cause: BatchError) -> Self {
        ApiError::new(error::of_batch(&cause), cause.to_string()).into()
    }
}

/// A batch whose header may be appended.
pub(super) struct Candidate {
    pub(super) batch: Batch,
    rules: RecordRules,
    /// When it came, if its records are to name their sources.
    sourced_ms: Option<i64>,
    /// What its records say, once they have been read.
    read: Option<Read>,
}

/// What the records of a batch say.
struct Read {
    examined: Examined,
    sourced: Option<Result<SourcedBatch, ApiError>>,
}

/// What of a batch goes to the log with it.
pub(super) struct Stated {
    pub(super) max_timestamp_ms: i64,
    pub(super) sourced: Option<SourcedBatch>,
}

impl Candidate {
    /// Judges the header, and the records too unless there are many.
    pub(super) fn read(
        records: Option<Bytes>,
        rules: &Rules,
        now_ms: i64,
    ) -> Result<Self, Refused> {
        let batch = Batch::produced(records)?;
        let header = batch.header();
        if header.size_bytes > rules.batch_size_bytes_max {
            let (size, limit) = (header.size_bytes, rules.batch_size_bytes_max);
            let message = format!("a batch of {size} bytes is over max.message.bytes, {limit}");
            return Err(ApiError::new(ErrorCode::MessageTooLarge, message).into());
        }
        if rules.log_append_time && header.attributes.is_log_append_time() {
            let message = "the batch says that its records have the time of their append, which \
                           only the leader may say";
            return Err(ApiError::new(ErrorCode::InvalidTimestamp, message).into());
        }
        let sourced_ms = rules.dedups_sources.then_some(now_ms);
        let rules = rules.of_records(now_ms);
        let mut candidate = Self { rules, batch, sourced_ms, read: None };
        if candidate.is_small() {
            let Self { batch, rules, .. } = &candidate;
            match Read::of(batch, rules, sourced_ms, AT_ONCE_SIZE_BYTES_MAX) {
                Err(BatchError::TooLarge { .. }) => {}
                read => candidate.read = Some(read?),
            }
        }
        Ok(candidate)
    }

    fn is_small(&self) -> bool {
        let header = self.batch.header();
        header.records_count <= AT_ONCE_RECORD_COUNT_MAX
            && (header.attributes.compression() == Ok(Compression::None)
                || header.size_bytes <= AT_ONCE_COMPRESSED_SIZE_BYTES_MAX)
    }

    /// Whether its records are still to be read.
    pub(super) fn is_unread(&self) -> bool {
        self.read.is_none()
    }

    /// Reads them now, on a thread; as many at once as `permits` allows.
    pub(super) async fn examine(&mut self, permits: &Arc<Semaphore>) -> Result<(), Refused> {
        let stopping = || Refused::from(ApiError::from(ErrorCode::NotLeaderOrFollower));
        let permit = Arc::clone(permits).acquire_owned().await.map_err(|_| stopping())?;
        let (batch, rules, sourced_ms) = (self.batch.clone(), self.rules.clone(), self.sourced_ms);
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            Read::of(&batch, &rules, sourced_ms, DECOMPRESSED_SIZE_BYTES_MAX)
        });
        self.read = Some(reading.await.map_err(|_| stopping())??);
        Ok(())
    }

    /// What its records say, if the topic takes all of them.
    pub(super) fn stated(&mut self) -> Result<Stated, Refused> {
        let unread = || Refused::from(ApiError::from(ErrorCode::UnknownServerError));
        let Read { examined, sourced } = self.read.take().ok_or_else(unread)?;
        if !examined.refused.is_empty() {
            return Err(self.refused(&examined.refused));
        }
        Ok(Stated { max_timestamp_ms: examined.max_timestamp_ms, sourced: sourced.transpose()? })
    }

    /// As Kafka has it: the whole batch is refused, and the records that are to blame are named.
    fn refused(&self, refused: &[(i32, Refusal)]) -> Refused {
        let is_late = refused.iter().any(|(_, refusal)| matches!(refusal, Refusal::Timestamp(_)));
        let code = if is_late { ErrorCode::InvalidTimestamp } else { ErrorCode::InvalidRecord };
        let error = |(index, refusal): &(i32, Refusal)| RecordError {
            batch_index: *index,
            batch_index_error_message: Some(self.explain(*refusal).into()),
        };
        let records: Vec<RecordError> = refused.iter().map(error).collect();
        let first = records.first().and_then(|first| first.batch_index_error_message.as_deref());
        let message = format!(
            "{} of {} records are refused; record {}: {}",
            refused.len(),
            self.batch.header().records_count,
            refused.first().map_or(0, |(index, _)| *index),
            first.unwrap_or_default()
        );
        Refused { error: ApiError::new(code, message), records }
    }

    fn explain(&self, refusal: Refusal) -> String {
        match refusal {
            Refusal::NoKey => "it has no key, and the topic is compacted by key".to_owned(),
            Refusal::Timestamp(timestamp_ms) => {
                let range = self.rules.timestamps_ms.clone().unwrap_or(i64::MIN..=i64::MAX);
                let (earliest_ms, latest_ms) = range.into_inner();
                format!(
                    "timestamp {timestamp_ms} is out of range: it must be from {earliest_ms} to \
                     {latest_ms}, as message.timestamp.before.max.ms and \
                     message.timestamp.after.max.ms say"
                )
            }
        }
    }
}

impl Read {
    fn of(
        batch: &Batch,
        rules: &RecordRules,
        sourced_ms: Option<i64>,
        size_bytes_max: usize,
    ) -> Result<Self, BatchError> {
        let examined = batch.examine(rules, size_bytes_max)?;
        Ok(Self { examined, sourced: sourced_ms.map(|now_ms| sources_of(batch, now_ms)) })
    }
}

/// The sources of a batch's records. A record without one is refused rather than let through: in a
/// topic that promises each record once, nobody would notice that it is not covered.
fn sources_of(batch: &Batch, now_ms: i64) -> Result<SourcedBatch, ApiError> {
    if batch.header().attributes.is_transactional() {
        let message = "with meridian.dedup=source records are written without transactions: what \
                       is aborted would count as written";
        return Err(ApiError::new(ErrorCode::InvalidRecord, message));
    }
    SourcedBatch::produced(batch, now_ms)
        .map_err(|cause| ApiError::new(error::of_headers(&cause), cause.to_string()))
}
