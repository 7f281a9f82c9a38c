//! OffsetCommit, OffsetFetch and OffsetDelete: the positions of consumer groups.

use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Stores positions of a group. Topics have a name up to version 9, an id from 10.
    pub struct OffsetCommitRequest {
        group_id: Str [2..],
        generation_id_or_member_epoch: i32 [2..] = -1,
        member_id: Str [2..],
        group_instance_id: Option<Str> [7..],
        retention_time_ms: i64 [..=4] = -1,
        topics: Vec<OffsetCommitTopic> [2..],
    }

    /// The positions in one topic.
    pub struct OffsetCommitTopic {
        name: Str [..=9],
        topic_id: Uuid [10..],
        partitions: Vec<OffsetCommitPartition> [2..],
    }

    /// The position in one partition.
    pub struct OffsetCommitPartition {
        partition_index: i32 [2..],
        committed_offset: i64 [2..],
        committed_leader_epoch: i32 [6..] = -1,
        committed_metadata: Option<Str> [2..],
    } tagged {
        // Of ours: what must be committed now, -1 for nothing; without it anything may be.
        10_000: expected_offset: i64 [8..] = -2,
    }

    /// Which positions were stored.
    pub struct OffsetCommitResponse {
        throttle_time_ms: i32 [3..],
        topics: Vec<OffsetCommitTopicResponse> [2..],
    }

    /// Which positions in one topic were stored.
    pub struct OffsetCommitTopicResponse {
        name: Str [..=9],
        topic_id: Uuid [10..],
        partitions: Vec<OffsetCommitPartitionResponse> [2..],
    }

    /// Whether the position in one partition was stored.
    pub struct OffsetCommitPartitionResponse {
        partition_index: i32 [2..],
        error_code: ErrorCode [2..],
    }

    /// Asks for positions: of one group up to version 7, of several from 8 (KIP-709).
    pub struct OffsetFetchRequest {
        group_id: Str [..=7],
        // Null asks for all topics.
        topics: Option<Vec<OffsetFetchTopic>> [..=7, null 2..],
        groups: Vec<OffsetFetchGroup> [8..],
        require_stable: bool [7..],
    }

    /// The positions asked for of one group.
    pub struct OffsetFetchGroup {
        group_id: Str [8..],
        member_id: Option<Str> [9..],
        member_epoch: i32 [9..] = -1,
        // Null asks for all topics.
        topics: Option<Vec<OffsetFetchTopic>> [8..],
    }

    /// The partitions asked for of one topic: by name up to version 9, by id from 10.
    pub struct OffsetFetchTopic {
        name: Str [..=9],
        topic_id: Uuid [10..],
        partition_indexes: Vec<i32> [1..],
    }

    /// The positions stored.
    pub struct OffsetFetchResponse {
        throttle_time_ms: i32 [3..],
        topics: Vec<OffsetFetchTopicResponse> [..=7],
        error_code: ErrorCode [2..=7],
        groups: Vec<OffsetFetchGroupResponse> [8..],
    }

    /// The positions of one group.
    pub struct OffsetFetchGroupResponse {
        group_id: Str [8..],
        topics: Vec<OffsetFetchTopicResponse> [8..],
        error_code: ErrorCode [8..],
    }

    /// The positions in one topic.
    pub struct OffsetFetchTopicResponse {
        name: Str [..=9],
        topic_id: Uuid [10..],
        partitions: Vec<OffsetFetchPartitionResponse> [1..],
    }

    /// The position in one partition, -1 for none.
    pub struct OffsetFetchPartitionResponse {
        partition_index: i32 [1..],
        committed_offset: i64 [1..],
        committed_leader_epoch: i32 [5..] = -1,
        metadata: Option<Str> [1..],
        error_code: ErrorCode [1..],
    }

    /// Forgets positions of a group.
    pub struct OffsetDeleteRequest {
        group_id: Str [0..],
        topics: Vec<OffsetDeleteTopic> [0..],
    }

    /// The positions to forget in one topic.
    pub struct OffsetDeleteTopic {
        name: Str [0..],
        partitions: Vec<OffsetDeletePartition> [0..],
    }

    /// A partition whose position to forget.
    pub struct OffsetDeletePartition {
        partition_index: i32 [0..],
    }

    /// Which positions were forgotten.
    pub struct OffsetDeleteResponse {
        error_code: ErrorCode [0..],
        throttle_time_ms: i32 [0..],
        topics: Vec<OffsetDeleteTopicResponse> [0..],
    }

    /// Which positions in one topic were forgotten.
    pub struct OffsetDeleteTopicResponse {
        name: Str [0..],
        partitions: Vec<OffsetDeletePartitionResponse> [0..],
    }

    /// Whether the position in one partition was forgotten.
    pub struct OffsetDeletePartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
    }
}
