//! ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and AlterReplicaLogDirs:
//! who leads, and where copies are.

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Has leaders elected: of type 0 the preferred ones, of type 1 any. Null is for all partitions.
    pub struct ElectLeadersRequest {
        election_type: i8 [1..],
        topic_partitions: Option<Vec<ElectLeadersTopic>> [0..],
        timeout_ms: i32 [0..] = 60_000,
    }

    /// Partitions of a topic.
    pub struct ElectLeadersTopic {
        topic: Str [0..],
        partitions: Vec<i32> [0..],
    }

    /// How the elections went.
    pub struct ElectLeadersResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [1..],
        replica_election_results: Vec<ElectLeadersTopicResult> [0..],
    }

    /// How they went in a topic.
    pub struct ElectLeadersTopicResult {
        topic: Str [0..],
        partition_result: Vec<ElectLeadersPartitionResult> [0..],
    }

    /// How it went in a partition.
    pub struct ElectLeadersPartitionResult {
        partition_id: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Moves partitions.
    pub struct AlterPartitionReassignmentsRequest {
        timeout_ms: i32 [0..] = 60_000,
        // Whether partitions may have more or fewer replicas then (KIP-860).
        allow_replication_factor_change: bool [1..] = true,
        topics: Vec<ReassignableTopic> [0..],
    }

    /// Partitions of a topic to be moved.
    pub struct ReassignableTopic {
        name: Str [0..],
        partitions: Vec<ReassignablePartition> [0..],
    }

    /// Where a partition is to be; null cancels what is under way.
    pub struct ReassignablePartition {
        partition_index: i32 [0..],
        replicas: Option<Vec<i32>> [0..],
    }

    /// Whether they are being moved.
    pub struct AlterPartitionReassignmentsResponse {
        throttle_time_ms: i32 [0..],
        allow_replication_factor_change: bool [1..] = true,
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        responses: Vec<ReassignableTopicResponse> [0..],
    }

    /// Whether partitions of a topic are being moved.
    pub struct ReassignableTopicResponse {
        name: Str [0..],
        partitions: Vec<ReassignablePartitionResponse> [0..],
    }

    /// Whether a partition is being moved.
    pub struct ReassignablePartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Asks for the partitions that are being moved. Null asks for all.
    pub struct ListPartitionReassignmentsRequest {
        timeout_ms: i32 [0..] = 60_000,
        topics: Option<Vec<ListPartitionReassignmentsTopic>> [0..],
    }

    /// Partitions that are asked for.
    pub struct ListPartitionReassignmentsTopic {
        name: Str [0..],
        partition_indexes: Vec<i32> [0..],
    }

    /// The partitions that are being moved.
    pub struct ListPartitionReassignmentsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        topics: Vec<OngoingTopicReassignment> [0..],
    }

    /// Those of a topic.
    pub struct OngoingTopicReassignment {
        name: Str [0..],
        partitions: Vec<OngoingPartitionReassignment> [0..],
    }

    /// From where to where a partition is being moved.
    pub struct OngoingPartitionReassignment {
        partition_index: i32 [0..],
        replicas: Vec<i32> [0..],
        adding_replicas: Vec<i32> [0..],
        removing_replicas: Vec<i32> [0..],
    }

    /// Moves replicas between directories of a broker (KIP-113).
    pub struct AlterReplicaLogDirsRequest {
        dirs: Vec<AlterReplicaLogDir> [1..],
    }

    /// A directory, and what is to be in it.
    pub struct AlterReplicaLogDir {
        path: Str [1..],
        topics: Vec<AlterReplicaLogDirTopic> [1..],
    }

    /// Partitions of a topic that are to be there.
    pub struct AlterReplicaLogDirTopic {
        name: Str [1..],
        partitions: Vec<i32> [1..],
    }

    /// Which replicas are being moved.
    pub struct AlterReplicaLogDirsResponse {
        throttle_time_ms: i32 [1..],
        results: Vec<AlteredReplicaLogDirTopic> [1..],
    }

    /// Those of a topic.
    pub struct AlteredReplicaLogDirTopic {
        topic_name: Str [1..],
        partitions: Vec<AlteredReplicaLogDirPartition> [1..],
    }

    /// Whether a replica is being moved, or where it is to be.
    pub struct AlteredReplicaLogDirPartition {
        partition_index: i32 [1..],
        error_code: ErrorCode [1..],
    }
}
