//! Describing the cluster, partitions, log directories and producers.

use super::AUTHORIZED_OPERATIONS_OMITTED;
use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Asks for the brokers.
    pub struct DescribeClusterRequest {
        include_cluster_authorized_operations: bool [0..],
        // Brokers 1, controllers 2.
        endpoint_type: i8 [1..] = 1,
        include_fenced_brokers: bool [2..],
    }

    /// The brokers.
    pub struct DescribeClusterResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        endpoint_type: i8 [1..] = 1,
        cluster_id: Str [0..],
        controller_id: i32 [0..] = -1,
        brokers: Vec<DescribedBroker> [0..],
        cluster_authorized_operations: i32 [0..] = AUTHORIZED_OPERATIONS_OMITTED,
    }

    /// Where one broker can be reached.
    pub struct DescribedBroker {
        broker_id: i32 [0..],
        host: Str [0..],
        port: i32 [0..],
        rack: Option<Str> [0..],
        is_fenced: bool [2..],
    }

    /// Asks for partitions of topics, page by page (KIP-966).
    pub struct DescribeTopicPartitionsRequest {
        topics: Vec<DescribeTopicPartitionsTopic> [0..],
        response_partition_limit: i32 [0..] = 2000,
        cursor: Option<TopicPartitionCursor> [0..],
    }

    /// A topic asked for.
    pub struct DescribeTopicPartitionsTopic {
        name: Str [0..],
    }

    /// Where a page starts.
    pub struct TopicPartitionCursor {
        topic_name: Str [0..],
        partition_index: i32 [0..],
    }

    /// A page of partitions.
    pub struct DescribeTopicPartitionsResponse {
        throttle_time_ms: i32 [0..],
        topics: Vec<DescribedTopic> [0..],
        next_cursor: Option<TopicPartitionCursor> [0..],
    }

    /// The partitions of one topic.
    pub struct DescribedTopic {
        error_code: ErrorCode [0..],
        name: Option<Str> [0..],
        topic_id: Uuid [0..],
        is_internal: bool [0..],
        partitions: Vec<DescribedTopicPartition> [0..],
        topic_authorized_operations: i32 [0..] = AUTHORIZED_OPERATIONS_OMITTED,
    }

    /// One partition.
    pub struct DescribedTopicPartition {
        error_code: ErrorCode [0..],
        partition_index: i32 [0..],
        leader_id: i32 [0..],
        leader_epoch: i32 [0..] = -1,
        replica_nodes: Vec<i32> [0..],
        isr_nodes: Vec<i32> [0..],
        eligible_leader_replicas: Option<Vec<i32>> [0..],
        last_known_elr: Option<Vec<i32>> [0..],
        offline_replicas: Vec<i32> [0..],
    }

    /// Asks for the sizes of partitions on disk.
    pub struct DescribeLogDirsRequest {
        // Null asks for all topics.
        topics: Option<Vec<DescribeLogDirsTopic>> [1..],
    }

    /// The partitions of one topic asked for.
    pub struct DescribeLogDirsTopic {
        topic: Str [1..],
        partitions: Vec<i32> [1..],
    }

    /// What is on a broker's disks.
    pub struct DescribeLogDirsResponse {
        throttle_time_ms: i32 [1..],
        error_code: ErrorCode [3..],
        results: Vec<DescribedLogDir> [1..],
    }

    /// What is on one disk.
    pub struct DescribedLogDir {
        error_code: ErrorCode [1..],
        log_dir: Str [1..],
        topics: Vec<DescribedLogDirTopic> [1..],
        total_bytes: i64 [4..] = -1,
        usable_bytes: i64 [4..] = -1,
        // Whether it takes no new partitions (KIP-1066).
        is_cordoned: bool [5..],
    }

    /// What one topic has on one disk.
    pub struct DescribedLogDirTopic {
        name: Str [1..],
        partitions: Vec<DescribedLogDirPartition> [1..],
    }

    /// What one partition has on one disk.
    pub struct DescribedLogDirPartition {
        partition_index: i32 [1..],
        partition_size: i64 [1..],
        offset_lag: i64 [1..],
        is_future_key: bool [1..],
    }

    /// Asks for the producers that write to partitions (KIP-664).
    pub struct DescribeProducersRequest {
        topics: Vec<DescribeProducersTopic> [0..],
    }

    /// The partitions of one topic asked for.
    pub struct DescribeProducersTopic {
        name: Str [0..],
        partition_indexes: Vec<i32> [0..],
    }

    /// The producers.
    pub struct DescribeProducersResponse {
        throttle_time_ms: i32 [0..],
        topics: Vec<DescribedProducersTopic> [0..],
    }

    /// The producers of one topic.
    pub struct DescribedProducersTopic {
        name: Str [0..],
        partitions: Vec<DescribedProducersPartition> [0..],
    }

    /// The producers of one partition.
    pub struct DescribedProducersPartition {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        active_producers: Vec<ProducerState> [0..],
    }

    /// The state of one producer in one partition.
    pub struct ProducerState {
        producer_id: i64 [0..],
        producer_epoch: i32 [0..],
        last_sequence: i32 [0..] = -1,
        last_timestamp: i64 [0..] = -1,
        coordinator_epoch: i32 [0..],
        current_txn_start_offset: i64 [0..] = -1,
    }
}
