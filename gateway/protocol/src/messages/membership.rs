//! JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the classic group protocol.

use bytes::Bytes;

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Joins a group, or rejoins it.
    pub struct JoinGroupRequest {
        group_id: Str [0..],
        session_timeout_ms: i32 [0..],
        rebalance_timeout_ms: i32 [1..] = -1,
        member_id: Str [0..],
        group_instance_id: Option<Str> [5..],
        protocol_type: Str [0..],
        protocols: Vec<JoinGroupProtocol> [0..],
        reason: Option<Str> [8..],
    }

    /// A way of assigning partitions that the member can take part in.
    pub struct JoinGroupProtocol {
        name: Str [0..],
        metadata: Bytes [0..],
    }

    /// The generation joined. The members are for the leader only.
    pub struct JoinGroupResponse {
        throttle_time_ms: i32 [2..],
        error_code: ErrorCode [0..],
        generation_id: i32 [0..] = -1,
        protocol_type: Option<Str> [7..],
        protocol_name: Option<Str> [0.., null 7..],
        leader: Str [0..],
        skip_assignment: bool [9..],
        member_id: Str [0..],
        members: Vec<JoinGroupMember> [0..],
    }

    /// A member, as its leader sees it.
    pub struct JoinGroupMember {
        member_id: Str [0..],
        group_instance_id: Option<Str> [5..],
        metadata: Bytes [0..],
    }

    /// Asks for the own assignment; the leader brings all of them.
    pub struct SyncGroupRequest {
        group_id: Str [0..],
        generation_id: i32 [0..],
        member_id: Str [0..],
        group_instance_id: Option<Str> [3..],
        protocol_type: Option<Str> [5..],
        protocol_name: Option<Str> [5..],
        assignments: Vec<SyncGroupAssignment> [0..],
    }

    /// What one member is to consume.
    pub struct SyncGroupAssignment {
        member_id: Str [0..],
        assignment: Bytes [0..],
    }

    /// The own assignment.
    pub struct SyncGroupResponse {
        throttle_time_ms: i32 [1..],
        error_code: ErrorCode [0..],
        protocol_type: Option<Str> [5..],
        protocol_name: Option<Str> [5..],
        assignment: Bytes [0..],
    }

    /// Says that a member is alive.
    pub struct HeartbeatRequest {
        group_id: Str [0..],
        generation_id: i32 [0..],
        member_id: Str [0..],
        group_instance_id: Option<Str> [3..],
    }

    /// Whether the member is still one, and whether it must rejoin.
    pub struct HeartbeatResponse {
        throttle_time_ms: i32 [1..],
        error_code: ErrorCode [0..],
    }

    /// Removes members from a group: one up to version 2, several from 3 (KIP-345).
    pub struct LeaveGroupRequest {
        group_id: Str [0..],
        member_id: Str [..=2],
        members: Vec<LeavingMember> [3..],
    }

    /// A member to remove.
    pub struct LeavingMember {
        member_id: Str [3..],
        group_instance_id: Option<Str> [3..],
        reason: Option<Str> [5..],
    }

    /// Which members were removed.
    pub struct LeaveGroupResponse {
        throttle_time_ms: i32 [1..],
        error_code: ErrorCode [0..],
        members: Vec<LeavingMemberResponse> [3..],
    }

    /// Whether one member was removed.
    pub struct LeavingMemberResponse {
        member_id: Str [3..],
        group_instance_id: Option<Str> [3..],
        error_code: ErrorCode [3..],
    }
}
