//! Metadata: brokers, topics, leaders.
//!
//! Tags from 10,000 on are ours. Who does not know them passes over them (KIP-482), so a link may ask
//! whoever it has for source.

use super::AUTHORIZED_OPERATIONS_OMITTED;
use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Asks for brokers and topics. All topics: null; in version 0, which has no null, none. With the stamp
    /// of an answer (0 for none) it asks for another one: it is held for as long as all is as it was then, and
    /// has no topics if that is so to the end.
    pub struct MetadataRequest {
        topics: Option<Vec<MetadataRequestTopic>> [0.., null 1..],
        allow_auto_topic_creation: bool [4..] = true,
        include_cluster_authorized_operations: bool [8..=10],
        include_topic_authorized_operations: bool [8..],
    } tagged {
        10_000: seen_stamp: i64 [9..],
        10_001: hold_ms: i32 [9..],
    }

    /// A topic asked for, by id or by name.
    pub struct MetadataRequestTopic {
        topic_id: Uuid [10..],
        name: Option<Str> [0.., null 10..],
    }

    /// Brokers and topics.
    pub struct MetadataResponse {
        throttle_time_ms: i32 [3..],
        brokers: Vec<MetadataBroker> [0..],
        cluster_id: Option<Str> [2..],
        controller_id: i32 [1..] = -1,
        topics: Vec<MetadataTopic> [0..],
        cluster_authorized_operations: i32 [8..=10] = AUTHORIZED_OPERATIONS_OMITTED,
        error_code: ErrorCode [13..],
    } tagged {
        10_000: stamp: i64 [9..],
    }

    /// Where a broker can be reached.
    pub struct MetadataBroker {
        node_id: i32 [0..],
        host: Str [0..],
        port: i32 [0..],
        rack: Option<Str> [1..],
    }

    /// A topic and its partitions.
    pub struct MetadataTopic {
        error_code: ErrorCode [0..],
        name: Option<Str> [0.., null 12..],
        topic_id: Uuid [10..],
        is_internal: bool [1..],
        partitions: Vec<MetadataPartition> [0..],
        topic_authorized_operations: i32 [8..] = AUTHORIZED_OPERATIONS_OMITTED,
    }

    /// Who leads and replicates one partition.
    pub struct MetadataPartition {
        error_code: ErrorCode [0..],
        partition_index: i32 [0..],
        leader_id: i32 [0..],
        leader_epoch: i32 [7..] = -1,
        replica_nodes: Vec<i32> [0..],
        isr_nodes: Vec<i32> [0..],
        offline_replicas: Vec<i32> [5..],
    }
}
