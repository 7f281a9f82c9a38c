//! ConsumerGroupHeartbeat and ConsumerGroupDescribe: the group protocol of KIP-848.

use super::AUTHORIZED_OPERATIONS_OMITTED;
use crate::ErrorCode;
use crate::wire::{Str, Uuid, message};

message! {
    /// Joins, stays in or leaves a group. Null and -1: unchanged since the last heartbeat.
    pub struct ConsumerGroupHeartbeatRequest {
        group_id: Str [0..],
        member_id: Str [0..],
        member_epoch: i32 [0..],
        instance_id: Option<Str> [0..],
        rack_id: Option<Str> [0..],
        rebalance_timeout_ms: i32 [0..] = -1,
        subscribed_topic_names: Option<Vec<Str>> [0..],
        subscribed_topic_regex: Option<Str> [1..],
        server_assignor: Option<Str> [0..],
        topic_partitions: Option<Vec<ConsumerGroupTopic>> [0..],
    }

    /// Partitions of one topic.
    pub struct ConsumerGroupTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }

    /// The member's epoch, and its assignment if that changed.
    pub struct ConsumerGroupHeartbeatResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        member_id: Option<Str> [0..],
        member_epoch: i32 [0..],
        heartbeat_interval_ms: i32 [0..],
        assignment: Option<ConsumerGroupAssignment> [0..],
    }

    /// What a member is to consume.
    pub struct ConsumerGroupAssignment {
        topic_partitions: Vec<ConsumerGroupTopic> [0..],
    }

    /// Asks for the members of groups.
    pub struct ConsumerGroupDescribeRequest {
        group_ids: Vec<Str> [0..],
        include_authorized_operations: bool [0..],
    }

    /// The members of groups.
    pub struct ConsumerGroupDescribeResponse {
        throttle_time_ms: i32 [0..],
        groups: Vec<DescribedConsumerGroup> [0..],
    }

    /// One group.
    pub struct DescribedConsumerGroup {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        group_id: Str [0..],
        group_state: Str [0..],
        group_epoch: i32 [0..],
        assignment_epoch: i32 [0..],
        assignor_name: Str [0..],
        members: Vec<DescribedConsumerGroupMember> [0..],
        authorized_operations: i32 [0..] = AUTHORIZED_OPERATIONS_OMITTED,
    }

    /// One member: what it consumes, and what it is meant to.
    pub struct DescribedConsumerGroupMember {
        member_id: Str [0..],
        instance_id: Option<Str> [0..],
        rack_id: Option<Str> [0..],
        member_epoch: i32 [0..],
        client_id: Str [0..],
        client_host: Str [0..],
        subscribed_topic_names: Vec<Str> [0..],
        subscribed_topic_regex: Option<Str> [0..],
        assignment: DescribedConsumerGroupAssignment [0..],
        target_assignment: DescribedConsumerGroupAssignment [0..],
        member_type: i8 [1..] = -1,
    }

    /// Partitions of a member.
    pub struct DescribedConsumerGroupAssignment {
        topic_partitions: Vec<DescribedConsumerGroupTopic> [0..],
    }

    /// Partitions of one topic.
    pub struct DescribedConsumerGroupTopic {
        topic_id: Uuid [0..],
        topic_name: Str [0..],
        partitions: Vec<i32> [0..],
    }
}
