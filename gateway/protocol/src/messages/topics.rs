//! Creating, growing, trimming and deleting topics.

use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Creates topics.
    pub struct CreateTopicsRequest {
        topics: Vec<CreatableTopic> [0..],
        timeout_ms: i32 [0..] = 60_000,
        validate_only: bool [1..],
    }

    /// A topic to create. From version 4, -1 asks for the server's default number.
    pub struct CreatableTopic {
        name: Str [0..],
        num_partitions: i32 [0..],
        replication_factor: i16 [0..],
        assignments: Vec<CreatableReplicaAssignment> [0..],
        configs: Vec<CreatableTopicConfig> [0..],
    }

    /// The brokers one partition is to have.
    pub struct CreatableReplicaAssignment {
        partition_index: i32 [0..],
        broker_ids: Vec<i32> [0..],
    }

    /// A configuration the topic is to have.
    pub struct CreatableTopicConfig {
        name: Str [0..],
        value: Option<Str> [0..],
    }

    /// The topics created, and those that were not.
    pub struct CreateTopicsResponse {
        throttle_time_ms: i32 [2..],
        topics: Vec<CreatableTopicResult> [0..],
    }

    /// How the creation of one topic went.
    pub struct CreatableTopicResult {
        name: Str [0..],
        topic_id: Uuid [7..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [1..],
        num_partitions: i32 [5..] = -1,
        replication_factor: i16 [5..] = -1,
        configs: Option<Vec<CreatedTopicConfig>> [5..],
    } tagged {
        0: topic_config_error_code: ErrorCode [5..],
    }

    /// A configuration the new topic has.
    pub struct CreatedTopicConfig {
        name: Str [5..],
        value: Option<Str> [5..],
        read_only: bool [5..],
        config_source: i8 [5..] = -1,
        is_sensitive: bool [5..],
    }

    /// Adds partitions to topics.
    pub struct CreatePartitionsRequest {
        topics: Vec<CreatePartitionsTopic> [0..],
        timeout_ms: i32 [0..],
        validate_only: bool [0..],
    }

    /// The number of partitions one topic is to have.
    pub struct CreatePartitionsTopic {
        name: Str [0..],
        count: i32 [0..],
        // Null leaves the choice to the server.
        assignments: Option<Vec<CreatePartitionsAssignment>> [0..],
    }

    /// The brokers one new partition is to have.
    pub struct CreatePartitionsAssignment {
        broker_ids: Vec<i32> [0..],
    }

    /// Which topics grew.
    pub struct CreatePartitionsResponse {
        throttle_time_ms: i32 [0..],
        results: Vec<CreatePartitionsTopicResult> [0..],
    }

    /// Whether one topic grew.
    pub struct CreatePartitionsTopicResult {
        name: Str [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Deletes topics: by name up to version 5, by name or id from 6.
    pub struct DeleteTopicsRequest {
        topics: Vec<DeleteTopicState> [6..],
        topic_names: Vec<Str> [..=5],
        timeout_ms: i32 [0..],
    }

    /// A topic to delete.
    pub struct DeleteTopicState {
        name: Option<Str> [6..],
        topic_id: Uuid [6..],
    }

    /// Which topics were deleted.
    pub struct DeleteTopicsResponse {
        throttle_time_ms: i32 [1..],
        responses: Vec<DeletableTopicResult> [0..],
    }

    /// Whether one topic was deleted.
    pub struct DeletableTopicResult {
        name: Option<Str> [0.., null 6..],
        topic_id: Uuid [6..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [5..],
    }

    /// Moves the log start of partitions forward.
    pub struct DeleteRecordsRequest {
        topics: Vec<DeleteRecordsTopic> [0..],
        timeout_ms: i32 [0..],
    }

    /// The partitions of one topic.
    pub struct DeleteRecordsTopic {
        name: Str [0..],
        partitions: Vec<DeleteRecordsPartition> [0..],
    }

    /// The offset one log is to start at, -1 for the high watermark.
    pub struct DeleteRecordsPartition {
        partition_index: i32 [0..],
        offset: i64 [0..],
    }

    /// Where the logs start now.
    pub struct DeleteRecordsResponse {
        throttle_time_ms: i32 [0..],
        topics: Vec<DeleteRecordsTopicResult> [0..],
    }

    /// Where the logs of one topic start now.
    pub struct DeleteRecordsTopicResult {
        name: Str [0..],
        partitions: Vec<DeleteRecordsPartitionResult> [0..],
    }

    /// Where the log of one partition starts now.
    pub struct DeleteRecordsPartitionResult {
        partition_index: i32 [0..],
        low_watermark: i64 [0..],
        error_code: ErrorCode [0..],
    }
}
