//! Creating, growing and deleting topics.

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
}
