//! DescribeQuorum, UpdateFeatures and UnregisterBroker: the cluster as a whole.

use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Asks for the state of the metadata log (KIP-595).
    pub struct DescribeQuorumRequest {
        topics: Vec<QuorumTopic> [0..],
    }

    /// The topic that the metadata log is called.
    pub struct QuorumTopic {
        topic_name: Str [0..],
        partitions: Vec<QuorumPartition> [0..],
    }

    /// One partition of it; there is but one.
    pub struct QuorumPartition {
        partition_index: i32 [0..],
    }

    /// The state of the metadata log.
    pub struct DescribeQuorumResponse {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [2..],
        topics: Vec<DescribedQuorumTopic> [0..],
        nodes: Vec<QuorumNode> [2..],
    }

    /// The state of one topic.
    pub struct DescribedQuorumTopic {
        topic_name: Str [0..],
        partitions: Vec<DescribedQuorumPartition> [0..],
    }

    /// The state of one partition.
    pub struct DescribedQuorumPartition {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [2..],
        leader_id: i32 [0..],
        leader_epoch: i32 [0..],
        high_watermark: i64 [0..],
        current_voters: Vec<QuorumReplica> [0..],
        observers: Vec<QuorumReplica> [0..],
    }

    /// How far one member's copy of the log goes. Times are -1 where they are not known.
    pub struct QuorumReplica {
        replica_id: i32 [0..],
        replica_directory_id: Uuid [2..],
        log_end_offset: i64 [0..],
        last_fetch_timestamp: i64 [1..] = -1,
        last_caught_up_timestamp: i64 [1..] = -1,
    }

    /// Where a voter can be reached.
    pub struct QuorumNode {
        node_id: i32 [2..],
        listeners: Vec<QuorumListener> [2..],
    }

    /// One address of a voter.
    pub struct QuorumListener {
        name: Str [2..],
        host: Str [2..],
        port: u16 [2..],
    }

    /// Changes the levels of features (KIP-584).
    pub struct UpdateFeaturesRequest {
        timeout_ms: i32 [0..] = 60_000,
        feature_updates: Vec<FeatureUpdate> [0..],
        validate_only: bool [1..],
    }

    /// The level a feature is to have; 0 is none. An upgrade is 1, a downgrade 2 if nothing is lost
    /// and 3 in any case.
    pub struct FeatureUpdate {
        feature: Str [0..],
        max_version_level: i16 [0..],
        allow_downgrade: bool [..=0],
        upgrade_type: i8 [1..] = 1,
    }

    /// Whether the levels were changed: all or none.
    pub struct UpdateFeaturesResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        results: Vec<UpdatedFeature> [..=1],
    }

    /// Whether one level was changed.
    pub struct UpdatedFeature {
        feature: Str [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Has a node forgotten.
    pub struct UnregisterBrokerRequest {
        broker_id: i32 [0..],
    }

    /// Whether it is.
    pub struct UnregisterBrokerResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }
}
