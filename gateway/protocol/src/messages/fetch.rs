//! Fetch: reading record batches.
//!
//! Tags from 10,000 on are ours. Who does not know them passes over them (KIP-482), so a link may ask
//! whoever it has for source.

use super::{LeaderIdAndEpoch, NodeEndpoint};
use crate::ErrorCode;
use crate::wire::{Records, Str, Uuid, message};

message! {
    /// Reads batches from partitions. Topics have a name up to version 12, an id from 13.
    pub struct FetchRequest {
        replica_id: i32 [..=14] = -1,
        max_wait_ms: i32 [4..],
        min_bytes: i32 [4..],
        max_bytes: i32 [4..] = i32::MAX,
        isolation_level: i8 [4..],
        session_id: i32 [7..],
        session_epoch: i32 [7..] = -1,
        topics: Vec<FetchTopic> [4..],
        forgotten_topics_data: Vec<ForgottenTopic> [7..],
        rack_id: Str [11..],
    } tagged {
        0: cluster_id: Option<Str> [12..],
        1: replica_state: ReplicaState [15..],
        10_000: packing: i8 [12..],
    }

    /// Who fetches, if it is a replica.
    pub struct ReplicaState {
        replica_id: i32 [15..] = -1,
        replica_epoch: i64 [15..] = -1,
    }

    /// The partitions of one topic to read.
    pub struct FetchTopic {
        topic: Str [..=12],
        topic_id: Uuid [13..],
        partitions: Vec<FetchPartition> [4..],
    }

    /// Where to read one partition.
    pub struct FetchPartition {
        partition: i32 [4..],
        current_leader_epoch: i32 [9..] = -1,
        fetch_offset: i64 [4..],
        last_fetched_epoch: i32 [12..] = -1,
        log_start_offset: i64 [5..] = -1,
        partition_max_bytes: i32 [4..],
    } tagged {
        0: replica_directory_id: Uuid [17..],
        1: high_watermark: i64 [18..] = i64::MAX,
        10_000: run: i8 [12..],
    }

    /// Partitions to leave out of the session from now on.
    pub struct ForgottenTopic {
        topic: Str [..=12],
        topic_id: Uuid [13..],
        partitions: Vec<i32> [7..],
    }

    /// The batches read.
    pub struct FetchResponse {
        throttle_time_ms: i32 [4..],
        error_code: ErrorCode [7..],
        session_id: i32 [7..],
        responses: Vec<FetchTopicResponse> [4..],
    } tagged {
        0: node_endpoints: Vec<NodeEndpoint> [16..],
    }

    /// The batches of one topic.
    pub struct FetchTopicResponse {
        topic: Str [..=12],
        topic_id: Uuid [13..],
        partitions: Vec<FetchPartitionResponse> [4..],
    }

    /// The batches of one partition: sent without a copy.
    pub struct FetchPartitionResponse {
        partition_index: i32 [4..],
        error_code: ErrorCode [4..],
        high_watermark: i64 [4..],
        last_stable_offset: i64 [4..] = -1,
        log_start_offset: i64 [5..] = -1,
        aborted_transactions: Option<Vec<AbortedTransaction>> [4..],
        preferred_read_replica: i32 [11..] = -1,
        // Empty rather than null, which some clients do not expect.
        records: Option<Records> [4..] = Some(Records::default()),
    } tagged {
        0: diverging_epoch: DivergingEpoch [12..],
        1: current_leader: LeaderIdAndEpoch [12..],
        2: snapshot_id: SnapshotId [12..],
        10_000: packing: i8 [12..],
        10_001: read_from: i64 [12..] = -1,
    }

    /// The end of the largest epoch that is common to fetcher and leader.
    pub struct DivergingEpoch {
        epoch: i32 [12..] = -1,
        end_offset: i64 [12..] = -1,
    }

    /// A snapshot to fetch instead. Only for Kafka's own metadata log.
    pub struct SnapshotId {
        end_offset: i64 [4..] = -1,
        epoch: i32 [4..] = -1,
    }

    /// A transaction whose records in this response a `read_committed` consumer leaves out.
    pub struct AbortedTransaction {
        producer_id: i64 [4..],
        first_offset: i64 [4..],
    }
}

/// How the records of an answer are packed: that they may be, and that they are.
pub const PACKING_ZSTD: i8 = 1;

/// A partition of a run of fetches over one connection: from the offset given on, and how far its answer got is
/// remembered. The answer says from where it was read ([`FetchPartitionResponse::read_from`]).
pub const RUN_BEGINS: i8 = 1;
/// The next of the run: from where the answer before it ended, which whoever asks need not know yet.
pub const RUN_GOES_ON: i8 = 2;
