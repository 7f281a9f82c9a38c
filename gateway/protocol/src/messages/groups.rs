//! Listing, describing and deleting groups.

use bytes::Bytes;

use super::AUTHORIZED_OPERATIONS_OMITTED;
use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for the groups of a broker.
    pub struct ListGroupsRequest {
        states_filter: Vec<Str> [4..],
        types_filter: Vec<Str> [5..],
    }

    /// The groups of a broker.
    pub struct ListGroupsResponse {
        throttle_time_ms: i32 [1..],
        error_code: ErrorCode [0..],
        groups: Vec<ListedGroup> [0..],
    }

    /// One group.
    pub struct ListedGroup {
        group_id: Str [0..],
        protocol_type: Str [0..],
        group_state: Str [4..],
        group_type: Str [5..],
    }

    /// Asks for the members of groups.
    pub struct DescribeGroupsRequest {
        groups: Vec<Str> [0..],
        include_authorized_operations: bool [3..],
    }

    /// The members of groups.
    pub struct DescribeGroupsResponse {
        throttle_time_ms: i32 [1..],
        groups: Vec<DescribedGroup> [0..],
    }

    /// One group.
    pub struct DescribedGroup {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [6..],
        group_id: Str [0..],
        group_state: Str [0..],
        protocol_type: Str [0..],
        protocol_data: Str [0..],
        members: Vec<DescribedGroupMember> [0..],
        authorized_operations: i32 [3..] = AUTHORIZED_OPERATIONS_OMITTED,
    }

    /// One member and what it consumes.
    pub struct DescribedGroupMember {
        member_id: Str [0..],
        group_instance_id: Option<Str> [4..],
        client_id: Str [0..],
        client_host: Str [0..],
        member_metadata: Bytes [0..],
        member_assignment: Bytes [0..],
    }

    /// Deletes groups.
    pub struct DeleteGroupsRequest {
        groups_names: Vec<Str> [0..],
    }

    /// Which groups were deleted.
    pub struct DeleteGroupsResponse {
        throttle_time_ms: i32 [0..],
        results: Vec<DeletedGroup> [0..],
    }

    /// Whether one group was deleted.
    pub struct DeletedGroup {
        group_id: Str [0..],
        error_code: ErrorCode [0..],
    }
}
