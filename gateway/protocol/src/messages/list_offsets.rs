//! ListOffsets and OffsetForLeaderEpoch: finding offsets.

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for the offset at a time, or at an end of the log.
    pub struct ListOffsetsRequest {
        replica_id: i32 [0..] = -1,
        isolation_level: i8 [2..],
        topics: Vec<ListOffsetsTopic> [0..],
        timeout_ms: i32 [10..],
    }

    /// The partitions of one topic.
    pub struct ListOffsetsTopic {
        name: Str [0..],
        partitions: Vec<ListOffsetsPartition> [0..],
    }

    /// The time asked for in one partition, or one of the `TIMESTAMP_*` constants.
    pub struct ListOffsetsPartition {
        partition_index: i32 [0..],
        current_leader_epoch: i32 [4..] = -1,
        timestamp: i64 [0..],
        max_num_offsets: i32 [..=0] = 1,
    }

    /// The offsets found.
    pub struct ListOffsetsResponse {
        throttle_time_ms: i32 [2..],
        topics: Vec<ListOffsetsTopicResponse> [0..],
    }

    /// The offsets found in one topic.
    pub struct ListOffsetsTopicResponse {
        name: Str [0..],
        partitions: Vec<ListOffsetsPartitionResponse> [0..],
    }

    /// The offset found in one partition, -1 for none.
    pub struct ListOffsetsPartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        old_style_offsets: Vec<i64> [..=0],
        timestamp: i64 [1..] = -1,
        offset: i64 [1..] = -1,
        leader_epoch: i32 [4..] = -1,
    }

    /// Asks where epochs end.
    pub struct OffsetForLeaderEpochRequest {
        replica_id: i32 [3..] = -2,
        topics: Vec<OffsetForLeaderTopic> [2..],
    }

    /// The partitions of one topic.
    pub struct OffsetForLeaderTopic {
        topic: Str [2..],
        partitions: Vec<OffsetForLeaderPartition> [2..],
    }

    /// The epoch asked for in one partition.
    pub struct OffsetForLeaderPartition {
        partition: i32 [2..],
        current_leader_epoch: i32 [2..] = -1,
        leader_epoch: i32 [2..],
    }

    /// Where epochs end.
    pub struct OffsetForLeaderEpochResponse {
        throttle_time_ms: i32 [2..],
        topics: Vec<OffsetForLeaderTopicResponse> [2..],
    }

    /// Where epochs end in one topic.
    pub struct OffsetForLeaderTopicResponse {
        topic: Str [2..],
        partitions: Vec<EpochEndOffset> [2..],
    }

    /// Where the epoch, or the largest one below it, ends in one partition.
    pub struct EpochEndOffset {
        error_code: ErrorCode [2..],
        partition: i32 [2..],
        leader_epoch: i32 [2..] = -1,
        end_offset: i64 [2..] = -1,
    }
}

impl ListOffsetsPartition {
    /// Asks for the high watermark, or the last stable offset of a `read_committed` consumer.
    pub const TIMESTAMP_LATEST: i64 = -1;
    /// Asks for the log start offset.
    pub const TIMESTAMP_EARLIEST: i64 = -2;
    /// Asks for the record with the largest timestamp (KIP-734, from version 7).
    pub const TIMESTAMP_MAX: i64 = -3;
    /// Asks for the first offset on local storage (KIP-405, from version 8).
    pub const TIMESTAMP_EARLIEST_LOCAL: i64 = -4;
    /// Asks for the last offset on tiered storage (KIP-1005, from version 9).
    pub const TIMESTAMP_LATEST_TIERED: i64 = -5;
    /// Asks for the first offset not yet on tiered storage (KIP-1023, from version 11).
    pub const TIMESTAMP_EARLIEST_PENDING_UPLOAD: i64 = -6;
}
