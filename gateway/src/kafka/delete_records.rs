//! DeleteRecords: moving the start of logs forward.

use std::time::Duration;

use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest,
    DeleteRecordsResponse, DeleteRecordsTopicResult,
};

use super::dispatch::Call;
use super::error;
use super::lookup::{self, TopicKey};

/// Moves the start of logs.
pub(super) async fn delete_records(
    call: Call,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let limit = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let mut time_is_up = std::pin::pin!(tokio::time::sleep(limit));
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let key = TopicKey::Name(topic.name.clone());
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            let mut result = DeleteRecordsPartitionResult {
                partition_index: wanted.partition_index,
                low_watermark: -1,
                ..Default::default()
            };
            let deleted = tokio::select! {
                biased;
                deleted = delete_before(&call, &key, &wanted) => deleted,
                () = &mut time_is_up => Err(ErrorCode::RequestTimedOut),
            };
            match deleted {
                Ok(start) => result.low_watermark = start.get(),
                Err(code) => {
                    call.front.metrics.on_error(code);
                    result.error_code = code;
                }
            }
            partitions.push(result);
        }
        topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    DeleteRecordsResponse { topics, ..Default::default() }
}

async fn delete_before(
    call: &Call,
    key: &TopicKey,
    wanted: &DeleteRecordsPartition,
) -> Result<Offset, ErrorCode> {
    let partition = {
        let metadata = call.front.broker.metadata();
        let topic = key.find(&metadata)?;
        if topic.internal {
            return Err(ErrorCode::InvalidTopicException);
        }
        lookup::partition(&metadata, topic, wanted.partition_index)?.0
    };
    let log = call.front.broker.led(partition).ok_or(ErrorCode::NotLeaderOrFollower)?;
    let before = match wanted.offset {
        -1 => log.high_watermark(),
        offset if offset >= 0 => Offset::new(offset),
        _ => return Err(ErrorCode::OffsetOutOfRange),
    };
    log.delete_records(before).await.map_err(|cause| error::of_produce(&cause))
}
