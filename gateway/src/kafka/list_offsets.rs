//! ListOffsets and OffsetForLeaderEpoch: finding offsets.

use std::sync::Arc;

use meridian_access::Operation;
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
use super::opening::{self, Patience};
use super::pace::Pace;
use super::repeated::repeated;
use crate::linked_topics;
use crate::log::{FetchError, Isolation, PartitionLog};
use crate::partition::BatchSlice;

/// A timestamp and the offset that has it; -1 for none.
pub(super) type Found = (i64, Offset);

/// The isolation level `read_committed`; 0 is `read_uncommitted`.
const READ_COMMITTED: i8 = 1;

/// Records of one batch are not decompressed any further.
const BATCH_SIZE_BYTES_MAX: usize = 64 << 20;

/// Runs of a log, of some 8 MiB, in which its latest record is looked for.
const RUN_COUNT_MAX: usize = 16;

const NOTHING: Found = (-1, Offset::UNKNOWN);

/// Finds offsets by time.
pub(super) async fn list_offsets(call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let isolation = isolation(request.isolation_level);
    let asks_for_end = request.topics.iter().flat_map(|topic| &topic.partitions).any(is_of_end);
    // A leader that was replaced and does not know it yet must not tell the end of long ago.
    let current = if asks_for_end { call.front.broker.catch_up().await } else { Ok(()) };
    let repeated = repeated(request.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| (topic.name.clone(), partition.partition_index))
    }));
    let patience = Patience::begin();
    let mut pace = Pace::default();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let key = TopicKey::Name(topic.name.clone());
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            pace.step().await;
            let found = match current {
                _ if repeated.contains(&(topic.name.clone(), wanted.partition_index)) => {
                    Err(ErrorCode::InvalidRequest)
                }
                Err(_) if is_of_end(&wanted) => Err(ErrorCode::NotLeaderOrFollower),
                _ => find(&call, &key, &wanted, isolation, patience).await,
            };
            partitions.push(answer(&call, wanted.partition_index, found));
        }
        topics.push(ListOffsetsTopicResponse { name: topic.name, partitions });
    }
    ListOffsetsResponse { topics, ..Default::default() }
}

/// Whether the question is for the end of a log, which only its leader of now can tell.
fn is_of_end(wanted: &ListOffsetsPartition) -> bool {
    wanted.timestamp == ListOffsetsPartition::TIMESTAMP_LATEST
}

async fn find(
    call: &Call,
    key: &TopicKey,
    wanted: &ListOffsetsPartition,
    isolation: Isolation,
    patience: Patience,
) -> Result<(Found, LeaderEpoch), ErrorCode> {
    check_timestamp(wanted.timestamp, call.version)?;
    let (index, epoch) = (wanted.partition_index, wanted.current_leader_epoch);
    let log = led(call, key, index, epoch, patience).await?;
    let found = find_by_time(&log, wanted.timestamp, isolation).await?;
    Ok((found, log.leader_epoch()))
}

/// Whether this version of the request knows a time that stands for something else.
fn check_timestamp(timestamp: i64, version: i16) -> Result<(), ErrorCode> {
    let from_version = match timestamp {
        0.. | ListOffsetsPartition::TIMESTAMP_EARLIEST | ListOffsetsPartition::TIMESTAMP_LATEST => {
            0
        }
        ListOffsetsPartition::TIMESTAMP_MAX => 7,
        ListOffsetsPartition::TIMESTAMP_EARLIEST_LOCAL => 8,
        ListOffsetsPartition::TIMESTAMP_LATEST_TIERED => 9,
        ListOffsetsPartition::TIMESTAMP_EARLIEST_PENDING_UPLOAD => 11,
        _ => i16::MAX,
    };
    if version >= from_version { Ok(()) } else { Err(ErrorCode::UnsupportedVersion) }
}

fn answer(
    call: &Call,
    partition_index: i32,
    found: Result<(Found, LeaderEpoch), ErrorCode>,
) -> ListOffsetsPartitionResponse {
    match found {
        Ok(((timestamp, offset), leader_epoch)) => ListOffsetsPartitionResponse {
            partition_index,
            old_style_offsets: vec![offset.get()],
            timestamp,
            offset: offset.get(),
            leader_epoch: leader_epoch.get(),
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
            first_record(log, timestamp).await.map(|found| found.map_or(NOTHING, visible))
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

/// The first record at or after `timestamp`.
pub(super) async fn first_record(
    log: &PartitionLog,
    timestamp: i64,
) -> Result<Option<Found>, ErrorCode> {
    let start = log.log_start_offset();
    let mut from = start;
    while let Some(batch) = log.batch_for_timestamp(timestamp, from).await.map_err(of_fetch)? {
        let found = first_at(&batch, timestamp, start);
        if found.is_some() {
            return Ok(found);
        }
        // The record that made the batch look right was deleted.
        from = batch.last_offset.advance(1);
    }
    Ok(None)
}

/// The first record of `slice` at or after `timestamp`, from `start` on. Where the records can't be
/// read, the start of the batch: nothing at or after the timestamp is before it.
fn first_at(slice: &BatchSlice, timestamp: i64, start: Offset) -> Option<Found> {
    let unreadable = Some((slice.max_timestamp_ms, slice.base_offset.max(start)));
    let Some(Ok(batch)) = records::batches(slice.bytes()).next() else { return unreadable };
    let Ok(records) = batch.records(BATCH_SIZE_BYTES_MAX) else { return unreadable };
    for record in records {
        let Ok(record) = record else { return unreadable };
        let offset = Offset::new(record.offset);
        if record.timestamp_ms >= timestamp && offset >= start {
            return Some((record.timestamp_ms, offset));
        }
    }
    None
}

/// The first record with the largest timestamp. The log knows in which run it is; runs whose time is
/// that of records without one, or of records that were deleted, take a further look.
async fn find_max(log: &PartitionLog) -> Result<Found, ErrorCode> {
    let start = log.log_start_offset();
    let (mut best, mut before) = (NOTHING, None);
    for _ in 0..RUN_COUNT_MAX {
        let Some((time, latest)) = log.latest_batch(before).await.map_err(of_fetch)? else { break };
        before = Some(time);
        let found = latest.and_then(|batch| latest_in(&batch, start));
        best = found.filter(|found| found.0 > best.0).unwrap_or(best);
        if best.0 >= time.0 {
            break;
        }
    }
    Ok(best)
}

/// The first of the records of `slice` with the largest time, from `start` on.
fn latest_in(slice: &BatchSlice, start: Offset) -> Option<Found> {
    let unreadable = Some((slice.max_timestamp_ms, slice.base_offset.max(start)));
    let Some(Ok(batch)) = records::batches(slice.bytes()).next() else { return unreadable };
    let Ok(records) = batch.records(BATCH_SIZE_BYTES_MAX) else { return unreadable };
    let mut latest: Option<Found> = None;
    for record in records {
        let Ok(record) = record else { return unreadable };
        let is_later = latest.is_none_or(|(time_ms, _)| record.timestamp_ms > time_ms);
        if record.offset >= start.get() && is_later {
            latest = Some((record.timestamp_ms, Offset::new(record.offset)));
        }
    }
    latest
}

/// Finds where leader epochs end.
pub(super) async fn epoch_ends(
    call: Call,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    let patience = Patience::begin();
    let mut pace = Pace::default();
    for topic in request.topics {
        let key = TopicKey::Name(topic.topic.clone());
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in &topic.partitions {
            pace.step().await;
            partitions.push(epoch_end(&call, &key, wanted, patience).await);
        }
        response.topics.push(OffsetForLeaderTopicResponse { topic: topic.topic, partitions });
    }
    response
}

async fn epoch_end(
    call: &Call,
    key: &TopicKey,
    wanted: &OffsetForLeaderPartition,
    patience: Patience,
) -> EpochEndOffset {
    let partition = wanted.partition;
    match led(call, key, partition, wanted.current_leader_epoch, patience).await {
        Ok(log) => {
            let unknown = (LeaderEpoch::UNKNOWN, Offset::UNKNOWN);
            let epoch = LeaderEpoch::new(wanted.leader_epoch);
            let mirrored = {
                let metadata = call.front.broker.metadata();
                let topic = key.find(&metadata).ok();
                topic.and_then(|topic| linked_topics::epoch_end(&metadata, topic.id, &log, epoch))
            };
            // As in Kafka, nothing is said of an epoch that is still to come.
            let is_known = epoch <= log.leader_epoch();
            let own = || is_known.then(|| log.end_of_epoch(epoch)).flatten();
            let end = mirrored.unwrap_or_else(own);
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
async fn led(
    call: &Call,
    key: &TopicKey,
    index: i32,
    client_epoch: i32,
    patience: Patience,
) -> Result<Arc<PartitionLog>, ErrorCode> {
    let broker = &call.front.broker;
    let partition = {
        let metadata = broker.metadata();
        let topic = call.find(&metadata, key, Operation::Describe)?;
        lookup::partition(&metadata, topic, index)?.0
    };
    let log = opening::led(&**broker, partition, patience).await?;
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

#[cfg(test)]
mod bad_input;
