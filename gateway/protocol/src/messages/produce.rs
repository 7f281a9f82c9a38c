//! Produce: appending record batches.

use bytes::Bytes;

use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Appends record batches to partitions. Topics have a name up to version 12, an id from 13.
    pub struct ProduceRequest {
        transactional_id: Option<Str> [3..],
        acks: i16 [3..],
        timeout_ms: i32 [3..],
        topic_data: Vec<ProduceTopic> [3..],
    }

    /// The batches for one topic.
    pub struct ProduceTopic {
        name: Str [..=12],
        topic_id: Uuid [13..],
        partition_data: Vec<ProducePartition> [3..],
    }

    /// The batches for one partition: a slice of the frame.
    pub struct ProducePartition {
        index: i32 [3..],
        records: Option<Bytes> [3..],
    }

    /// Where the batches were appended.
    pub struct ProduceResponse {
        responses: Vec<ProduceTopicResponse> [3..],
        throttle_time_ms: i32 [3..],
    } tagged {
        0: node_endpoints: Vec<NodeEndpoint> [10..],
    }

    /// Where the batches for one topic were appended.
    pub struct ProduceTopicResponse {
        name: Str [..=12],
        topic_id: Uuid [13..],
        partition_responses: Vec<ProducePartitionResponse> [3..],
    }

    /// Where the batches for one partition were appended, or why they were not.
    pub struct ProducePartitionResponse {
        index: i32 [3..],
        error_code: ErrorCode [3..],
        base_offset: i64 [3..],
        log_append_time_ms: i64 [3..] = -1,
        log_start_offset: i64 [5..] = -1,
        record_errors: Vec<RecordError> [8..],
        error_message: Option<Str> [8..],
    } tagged {
        0: current_leader: LeaderIdAndEpoch [10..],
    }

    /// A record that made its batch be refused.
    pub struct RecordError {
        batch_index: i32 [8..],
        batch_index_error_message: Option<Str> [8..],
    }

    /// The leader a client should turn to instead (KIP-951).
    pub struct LeaderIdAndEpoch {
        leader_id: i32 [0..] = -1,
        leader_epoch: i32 [0..] = -1,
    }

    /// Where a leader named in a response can be reached (KIP-951).
    pub struct NodeEndpoint {
        node_id: i32 [0..],
        host: Str [0..],
        port: i32 [0..],
        rack: Option<Str> [0..],
    }
}
