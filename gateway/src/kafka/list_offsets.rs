//! ListOffsets and OffsetForLeaderEpoch: finding offsets.

use std::sync::Arc;

use bytes::Bytes;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_protocol::messages::{
    EpochEndOffset, ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest,
    ListOffsetsResponse, ListOffsetsTopicResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse, OffsetForLeaderPartition, OffsetForLeaderTopicResponse,
};
use meridian_protocol::{ErrorCode, records};

use super::dispatch::Call;
use super::error;
use super::lookup::{self, TopicKey};
use crate::log::{FetchError, Isolation, PartitionLog};
use crate::partition::BatchSlice;

/// A timestamp and the offset that has it; -1 for none.
type Found = (i64, Offset);

/// The isolation level `read_committed`; 0 is `read_uncommitted`.
const READ_COMMITTED: i8 = 1;

/// Records of one batch are not decompressed any further.
const BATCH_SIZE_BYTES_MAX: usize = 64 << 20;

const NOTHING: Found = (-1, Offset::UNKNOWN);

/// Finds offsets by time.
pub(super) async fn list_offsets(call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let isolation = isolation(request.isolation_level);
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let key = TopicKey::Name(topic.name.clone());
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            partitions.push(find(&call, &key, &wanted, isolation).await);
        }
        topics.push(ListOffsetsTopicResponse { name: topic.name, partitions });
    }
    ListOffsetsResponse { topics, ..Default::default() }
}

async fn find(
    call: &Call,
    key: &TopicKey,
    wanted: &ListOffsetsPartition,
    isolation: Isolation,
) -> ListOffsetsPartitionResponse {
    let partition_index = wanted.partition_index;
    let found = match led(call, key, partition_index, wanted.current_leader_epoch) {
        Ok(log) => find_by_time(&log, wanted.timestamp, isolation).await.map(|found| (found, log)),
        Err(code) => Err(code),
    };
    match found {
        Ok(((timestamp, offset), log)) => ListOffsetsPartitionResponse {
            partition_index,
            old_style_offsets: vec![offset.get()],
            timestamp,
            offset: offset.get(),
            leader_epoch: log.leader_epoch().get(),
            ..Default::default()
        },
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            ListOffsetsPartitionResponse { partition_index, error_code, ..Default::default() }
        }
    }
}

async fn find_by_time(
    log: &PartitionLog,
    timestamp: i64,
    isolation: Isolation,
) -> Result<Found, ErrorCode> {
    let visible_end = || match isolation {
        Isolation::ReadUncommitted => log.high_watermark(),
        Isolation::ReadCommitted => log.last_stable_offset(),
    };
    let visible = |found: Found| if found.1 < visible_end() { found } else { NOTHING };
    match timestamp {
        ListOffsetsPartition::TIMESTAMP_LATEST => still_led(log, visible_end()),
        // All of the log is local as far as clients can tell.
        ListOffsetsPartition::TIMESTAMP_EARLIEST
        | ListOffsetsPartition::TIMESTAMP_EARLIEST_LOCAL => still_led(log, log.log_start_offset()),
        ListOffsetsPartition::TIMESTAMP_LATEST_TIERED
        | ListOffsetsPartition::TIMESTAMP_EARLIEST_PENDING_UPLOAD => Ok(NOTHING),
        ListOffsetsPartition::TIMESTAMP_MAX => find_max(log).await.map(visible),
        timestamp if timestamp >= 0 => {
            let batch = log.batch_for_timestamp(timestamp).await.map_err(of_fetch)?;
            Ok(batch.map_or(NOTHING, |batch| visible(first_at(&batch, timestamp))))
        }
        _ => Err(ErrorCode::UnsupportedVersion),
    }
}

/// The isolation level as clients write it.
pub(super) fn isolation(level: i8) -> Isolation {
    if level == READ_COMMITTED { Isolation::ReadCommitted } else { Isolation::ReadUncommitted }
}

/// The offset, if the log was led while it was read.
fn still_led(log: &PartitionLog, offset: Offset) -> Result<Found, ErrorCode> {
    if log.is_serving() { Ok((-1, offset)) } else { Err(ErrorCode::NotLeaderOrFollower) }
}

fn of_fetch(cause: FetchError) -> ErrorCode {
    error::of_fetch(&cause)
}

/// The first record of `slice` at or after `timestamp`. Where the records can't be read, the start
/// of the batch: nothing at or after the timestamp is before it.
fn first_at(slice: &BatchSlice, timestamp: i64) -> Found {
    let start = (slice.max_timestamp_ms, slice.base_offset);
    let bytes: Bytes = [&slice.head[..], &slice.body[..]].concat().into();
    let Some(Ok(batch)) = records::batches(bytes).next() else { return start };
    let Ok(mut records) = batch.records(BATCH_SIZE_BYTES_MAX) else { return start };
    let found = records.find(|record| match record {
        Ok(record) => record.timestamp_ms >= timestamp,
        Err(_) => true,
    });
    match found {
        Some(Ok(record)) => (record.timestamp_ms, Offset::new(record.offset)),
        _ => start,
    }
}

/// The first record with the largest timestamp: the largest time at or after which there is one,
/// found by bisection.
async fn find_max(log: &PartitionLog) -> Result<Found, ErrorCode> {
    let mut best: Option<BatchSlice> = None;
    let (mut some_before, mut none_from) = (0, i64::MAX);
    while some_before < none_from {
        let middle = some_before + (none_from - some_before) / 2;
        match log.batch_for_timestamp(middle).await.map_err(of_fetch)? {
            Some(found) => {
                some_before = found.max_timestamp_ms.saturating_add(1);
                best = Some(found);
            }
            None => none_from = middle,
        }
    }
    Ok(best.map_or(NOTHING, |batch| first_at(&batch, some_before - 1)))
}

/// Finds where leader epochs end.
pub(super) async fn epoch_ends(
    call: Call,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in request.topics {
        let key = TopicKey::Name(topic.topic.clone());
        let partitions = topic.partitions.iter().map(|wanted| epoch_end(&call, &key, wanted));
        let partitions = partitions.collect();
        response.topics.push(OffsetForLeaderTopicResponse { topic: topic.topic, partitions });
    }
    response
}

fn epoch_end(call: &Call, key: &TopicKey, wanted: &OffsetForLeaderPartition) -> EpochEndOffset {
    let partition = wanted.partition;
    match led(call, key, partition, wanted.current_leader_epoch) {
        Ok(log) => {
            let unknown = (LeaderEpoch::UNKNOWN, Offset::UNKNOWN);
            let end = log.end_of_epoch(LeaderEpoch::new(wanted.leader_epoch));
            let (leader_epoch, end_offset) = end.unwrap_or(unknown);
            EpochEndOffset {
                partition,
                leader_epoch: leader_epoch.get(),
                end_offset: end_offset.get(),
                ..Default::default()
            }
        }
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            EpochEndOffset { partition, error_code, ..Default::default() }
        }
    }
}

/// The log of a partition led here, if the client knows the right epoch of it.
fn led(
    call: &Call,
    key: &TopicKey,
    index: i32,
    client_epoch: i32,
) -> Result<Arc<PartitionLog>, ErrorCode> {
    let partition = {
        let metadata = call.front.broker.metadata();
        lookup::partition(&metadata, key.find(&metadata)?, index)?.0
    };
    let log = call.front.broker.led(partition).ok_or(ErrorCode::NotLeaderOrFollower)?;
    check_epoch(client_epoch, log.leader_epoch())?;
    Ok(log)
}

/// Whether a client's idea of the leader epoch is the right one; -1 is none.
pub(super) fn check_epoch(client_epoch: i32, current: LeaderEpoch) -> Result<(), ErrorCode> {
    match client_epoch {
        -1 => Ok(()),
        epoch if epoch < current.get() => Err(ErrorCode::FencedLeaderEpoch),
        epoch if epoch > current.get() => Err(ErrorCode::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}
