//! Sums of batches, read from a log of this node or asked of a source.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::Method;
use meridian_admin_api::methods::MirrorDigest;
use meridian_admin_api::mirror::{DigestStretch, StretchDigest};
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_mirror::digest::BatchSum;
use meridian_protocol::messages::{FetchPartition, FetchRequest, FetchTopic, MeridianAdminRequest};
use meridian_protocol::{ErrorCode, records};

use super::AuditError;
use crate::client::{ClientError, Connection};
use crate::log::PartitionLog;
use crate::mirror::question::uuid;

/// Bytes read at once.
const READ_SIZE_BYTES: usize = 2 << 20;
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Fetch requests name topics by id from this version on.
const FETCH_VERSION_WITH_IDS: i16 = 13;
const CONSUMER: i32 = -1;

/// Batches of a stretch, up to where reading stopped.
pub(in crate::mirror) struct Stretch {
    pub(in crate::mirror) sums: Vec<BatchSum>,
    /// Offset after the last batch that was read.
    pub(in crate::mirror) end: Offset,
}

impl Stretch {
    fn new(from: Offset) -> Self {
        Self { sums: Vec::new(), end: from }
    }

    fn size_bytes(&self) -> u64 {
        self.sums.iter().map(|sum| sum.size_bytes).sum()
    }

    /// Takes batches in that begin in `from..to`; false if there is nothing more to read.
    fn take(&mut self, bytes: Bytes, from: Offset, to: Offset) -> bool {
        let before = self.end;
        for batch in records::batches(bytes) {
            // The last one may be cut off; reading it again gives all of it.
            let Ok(batch) = batch else { break };
            let header = batch.header();
            let base_offset = Offset::new(header.base_offset);
            if base_offset >= to {
                return false;
            }
            let last_offset = Offset::new(header.last_offset());
            if base_offset >= from {
                self.sums.push(BatchSum::of(base_offset, last_offset, batch.bytes()));
            }
            self.end = self.end.max(last_offset.advance(1));
        }
        self.end > before && self.end < to
    }
}

/// Reads batches of a log that begin in `from..to`, but no more once `size_bytes_max` are exceeded.
pub(in crate::mirror) async fn of_log(
    log: &PartitionLog,
    from: Offset,
    to: Offset,
    size_bytes_max: u64,
) -> Result<Stretch, AuditError> {
    let mut stretch = Stretch::new(from);
    while stretch.end < to && stretch.size_bytes() < size_bytes_max {
        let fetched = log.fetch(stretch.end, READ_SIZE_BYTES).await?;
        if !stretch.take(fetched.records.concat().into(), from, to) {
            break;
        }
    }
    Ok(stretch)
}

/// Where the batch begins that holds an offset: stretches have whole batches.
pub(in crate::mirror) async fn batch_base(
    log: &PartitionLog,
    offset: Offset,
) -> Result<Offset, AuditError> {
    let fetched = log.fetch(offset, 1).await?;
    let first = records::batches(fetched.records.concat().into()).next();
    let base = first.and_then(Result::ok).map(|batch| Offset::new(batch.header().base_offset));
    Ok(base.map_or(offset, |base| base.min(offset)))
}

/// Where a source's partition is to be found.
#[derive(Clone)]
pub(in crate::mirror) struct At {
    pub(in crate::mirror) connection: Arc<Connection>,
    pub(in crate::mirror) topic: TopicId,
    pub(in crate::mirror) partition: u32,
}

impl At {
    /// Has a meridian cluster digest a stretch.
    pub(in crate::mirror) async fn digest(
        &self,
        from: Offset,
        to: Offset,
        has_sums: bool,
    ) -> Result<StretchDigest, AuditError> {
        let (topic, partition) = (self.topic, self.partition);
        let arguments = DigestStretch { topic, partition, from, to, has_sums };
        let body = serde_json::to_vec(&arguments)
            .map_err(|error| AuditError::Malformed(error.to_string()))?;
        let request = MeridianAdminRequest { method: MirrorDigest::NAME.into(), body: body.into() };
        let response = self.connection.call(&request, ANSWER_WITHIN).await?;
        let what = || "a digest of the source".to_owned();
        ClientError::check(what, response.error_code, response.error_message.as_deref())?;
        serde_json::from_slice(&response.body)
            .map_err(|error| AuditError::Malformed(error.to_string()))
    }

    /// Fetches a stretch from a source that has no digests, and sums it up.
    pub(in crate::mirror) async fn fetch(
        &self,
        from: Offset,
        to: Offset,
    ) -> Result<Stretch, AuditError> {
        let mut stretch = Stretch::new(from);
        loop {
            let partition = FetchPartition {
                partition: i32::try_from(self.partition).unwrap_or(i32::MAX),
                fetch_offset: stretch.end.get(),
                partition_max_bytes: READ_SIZE_BYTES as i32,
                ..Default::default()
            };
            let topic = FetchTopic {
                topic_id: uuid(self.topic),
                partitions: vec![partition],
                ..Default::default()
            };
            let request = FetchRequest {
                replica_id: CONSUMER,
                max_bytes: READ_SIZE_BYTES as i32,
                topics: vec![topic],
                ..Default::default()
            };
            let called = self.connection.call_from(FETCH_VERSION_WITH_IDS, &request, ANSWER_WITHIN);
            let response = called.await?;
            let what = || "records of the source".to_owned();
            ClientError::check(what, response.error_code, None)?;
            let mut found = response.responses.into_iter().flat_map(|topic| topic.partitions);
            let Some(found) = found.next() else { return Ok(stretch) };
            if found.error_code == ErrorCode::OffsetOutOfRange {
                return Err(AuditError::Gone { start: Offset::new(found.log_start_offset.max(0)) });
            }
            ClientError::check(what, found.error_code, None)?;
            let records = found.records.map(|records| records.into_bytes()).unwrap_or_default();
            if !stretch.take(records, from, to) {
                return Ok(stretch);
            }
        }
    }
}
