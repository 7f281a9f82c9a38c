//! Share groups (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge, and the offsets of
//! such groups.

use super::{AUTHORIZED_OPERATIONS_OMITTED, LeaderIdAndEpoch, NodeEndpoint};
use crate::ErrorCode;
use crate::wire::{Records, Str, Uuid, message};

message! {
    /// Joins, stays in or leaves a group. Null: unchanged since the last heartbeat.
    pub struct ShareGroupHeartbeatRequest {
        group_id: Str [0..],
        member_id: Str [0..],
        member_epoch: i32 [0..],
        rack_id: Option<Str> [0..],
        subscribed_topic_names: Option<Vec<Str>> [0..],
    }

    /// The member's epoch, and its assignment if that changed.
    pub struct ShareGroupHeartbeatResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        member_id: Option<Str> [0..],
        member_epoch: i32 [0..],
        heartbeat_interval_ms: i32 [0..],
        assignment: Option<ShareGroupAssignment> [0..],
    }

    /// What a member is to fetch from.
    pub struct ShareGroupAssignment {
        topic_partitions: Vec<ShareGroupTopic> [0..],
    }

    /// Partitions of one topic.
    pub struct ShareGroupTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }

    /// Asks for the members of groups.
    pub struct ShareGroupDescribeRequest {
        group_ids: Vec<Str> [0..],
        include_authorized_operations: bool [0..],
    }

    /// The members of groups.
    pub struct ShareGroupDescribeResponse {
        throttle_time_ms: i32 [0..],
        groups: Vec<DescribedShareGroup> [0..],
    }

    /// One group.
    pub struct DescribedShareGroup {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        group_id: Str [0..],
        group_state: Str [0..],
        group_epoch: i32 [0..],
        assignment_epoch: i32 [0..],
        assignor_name: Str [0..],
        members: Vec<DescribedShareGroupMember> [0..],
        authorized_operations: i32 [0..] = AUTHORIZED_OPERATIONS_OMITTED,
    }

    /// One member.
    pub struct DescribedShareGroupMember {
        member_id: Str [0..],
        rack_id: Option<Str> [0..],
        member_epoch: i32 [0..],
        client_id: Str [0..],
        client_host: Str [0..],
        subscribed_topic_names: Vec<Str> [0..],
        assignment: DescribedShareGroupAssignment [0..],
    }

    /// Partitions of a member.
    pub struct DescribedShareGroupAssignment {
        topic_partitions: Vec<DescribedShareGroupTopic> [0..],
    }

    /// Partitions of one topic.
    pub struct DescribedShareGroupTopic {
        topic_id: Uuid [0..],
        topic_name: Str [0..],
        partitions: Vec<i32> [0..],
    }

    /// Acknowledges records, and asks for more.
    pub struct ShareFetchRequest {
        group_id: Option<Str> [0..],
        member_id: Option<Str> [0..],
        share_session_epoch: i32 [0..],
        max_wait_ms: i32 [0..],
        min_bytes: i32 [0..],
        max_bytes: i32 [0..] = i32::MAX,
        max_records: i32 [1..],
        batch_size: i32 [1..],
        share_acquire_mode: i8 [2..],
        is_renew_ack: bool [2..],
        topics: Vec<ShareFetchTopic> [0..],
        forgotten_topics_data: Vec<ShareForgottenTopic> [0..],
    }

    /// Partitions of one topic.
    pub struct ShareFetchTopic {
        topic_id: Uuid [0..],
        partitions: Vec<ShareFetchPartition> [0..],
    }

    /// One partition.
    pub struct ShareFetchPartition {
        partition_index: i32 [0..],
        acknowledgement_batches: Vec<AcknowledgementBatch> [0..],
    }

    /// What is said of records that follow each other: one type of all, or one of each.
    pub struct AcknowledgementBatch {
        first_offset: i64 [0..],
        last_offset: i64 [0..],
        acknowledge_types: Vec<i8> [0..],
    }

    /// Partitions to leave out of the session from now on.
    pub struct ShareForgottenTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }

    /// The records that the member has been given.
    pub struct ShareFetchResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        acquisition_lock_timeout_ms: i32 [1..],
        responses: Vec<ShareFetchTopicResponse> [0..],
        node_endpoints: Vec<NodeEndpoint> [0..],
    }

    /// The records of one topic.
    pub struct ShareFetchTopicResponse {
        topic_id: Uuid [0..],
        partitions: Vec<ShareFetchPartitionResponse> [0..],
    }

    /// The records of one partition: whole batches, of which only some records may be the member's.
    pub struct ShareFetchPartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        acknowledge_error_code: ErrorCode [0..],
        acknowledge_error_message: Option<Str> [0..],
        current_leader: LeaderIdAndEpoch [0..],
        records: Option<Records> [0..] = Some(Records::default()),
        acquired_records: Vec<AcquiredRecords> [0..],
    }

    /// Records that the member has been given.
    pub struct AcquiredRecords {
        first_offset: i64 [0..],
        last_offset: i64 [0..],
        delivery_count: i16 [0..],
    }

    /// Acknowledges records.
    pub struct ShareAcknowledgeRequest {
        group_id: Option<Str> [0..],
        member_id: Option<Str> [0..],
        share_session_epoch: i32 [0..],
        is_renew_ack: bool [2..],
        topics: Vec<ShareAcknowledgeTopic> [0..],
    }

    /// Partitions of one topic.
    pub struct ShareAcknowledgeTopic {
        topic_id: Uuid [0..],
        partitions: Vec<ShareAcknowledgePartition> [0..],
    }

    /// One partition.
    pub struct ShareAcknowledgePartition {
        partition_index: i32 [0..],
        acknowledgement_batches: Vec<AcknowledgementBatch> [0..],
    }

    /// What became of acknowledgements.
    pub struct ShareAcknowledgeResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        acquisition_lock_timeout_ms: i32 [2..],
        responses: Vec<ShareAcknowledgeTopicResponse> [0..],
        node_endpoints: Vec<NodeEndpoint> [0..],
    }

    /// Those of one topic.
    pub struct ShareAcknowledgeTopicResponse {
        topic_id: Uuid [0..],
        partitions: Vec<ShareAcknowledgePartitionResponse> [0..],
    }

    /// Those of one partition.
    pub struct ShareAcknowledgePartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        current_leader: LeaderIdAndEpoch [0..],
    }

    /// Asks where groups are in partitions; null for all that they share.
    pub struct DescribeShareGroupOffsetsRequest {
        groups: Vec<DescribeShareGroupOffsetsGroup> [0..],
    }

    /// One group.
    pub struct DescribeShareGroupOffsetsGroup {
        group_id: Str [0..],
        topics: Option<Vec<DescribeShareGroupOffsetsTopic>> [0..],
    }

    /// Partitions of one topic.
    pub struct DescribeShareGroupOffsetsTopic {
        topic_name: Str [0..],
        partitions: Vec<i32> [0..],
    }

    /// Where groups are.
    pub struct DescribeShareGroupOffsetsResponse {
        throttle_time_ms: i32 [0..],
        groups: Vec<DescribedShareGroupOffsets> [0..],
    }

    /// One group.
    pub struct DescribedShareGroupOffsets {
        group_id: Str [0..],
        topics: Vec<DescribedShareGroupOffsetsTopic> [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// One topic.
    pub struct DescribedShareGroupOffsetsTopic {
        topic_name: Str [0..],
        topic_id: Uuid [0..],
        partitions: Vec<DescribedShareGroupOffset> [0..],
    }

    /// One partition: its first record that is not decided, and how many are not from there on.
    pub struct DescribedShareGroupOffset {
        partition_index: i32 [0..],
        start_offset: i64 [0..],
        leader_epoch: i32 [0..],
        lag: i64 [1..] = -1,
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Sets where a group without members goes on.
    pub struct AlterShareGroupOffsetsRequest {
        group_id: Str [0..],
        topics: Vec<AlterShareGroupOffsetsTopic> [0..],
    }

    /// Partitions of one topic.
    pub struct AlterShareGroupOffsetsTopic {
        topic_name: Str [0..],
        partitions: Vec<AlterShareGroupOffsetsPartition> [0..],
    }

    /// One partition.
    pub struct AlterShareGroupOffsetsPartition {
        partition_index: i32 [0..],
        start_offset: i64 [0..],
    }

    /// What was set.
    pub struct AlterShareGroupOffsetsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        responses: Vec<AlterShareGroupOffsetsTopicResponse> [0..],
    }

    /// One topic.
    pub struct AlterShareGroupOffsetsTopicResponse {
        topic_name: Str [0..],
        topic_id: Uuid [0..],
        partitions: Vec<AlterShareGroupOffsetsPartitionResponse> [0..],
    }

    /// One partition.
    pub struct AlterShareGroupOffsetsPartitionResponse {
        partition_index: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Has a group without members forget topics.
    pub struct DeleteShareGroupOffsetsRequest {
        group_id: Str [0..],
        topics: Vec<DeleteShareGroupOffsetsTopic> [0..],
    }

    /// One topic.
    pub struct DeleteShareGroupOffsetsTopic {
        topic_name: Str [0..],
    }

    /// What was forgotten.
    pub struct DeleteShareGroupOffsetsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        responses: Vec<DeleteShareGroupOffsetsTopicResponse> [0..],
    }

    /// One topic.
    pub struct DeleteShareGroupOffsetsTopicResponse {
        topic_name: Str [0..],
        topic_id: Uuid [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }
}
