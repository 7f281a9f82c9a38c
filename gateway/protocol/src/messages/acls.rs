//! DescribeAcls, CreateAcls and DeleteAcls: who may do what.

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for the rules that match all of these; null matches anything.
    pub struct DescribeAclsRequest {
        resource_type_filter: i8 [0..],
        resource_name_filter: Option<Str> [0..],
        pattern_type_filter: i8 [1..] = 3,
        principal_filter: Option<Str> [0..],
        host_filter: Option<Str> [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// The rules, by resource.
    pub struct DescribeAclsResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        resources: Vec<DescribeAclsResource> [0..],
    }

    /// A resource and its rules.
    pub struct DescribeAclsResource {
        resource_type: i8 [0..],
        resource_name: Str [0..],
        pattern_type: i8 [1..] = 3,
        acls: Vec<AclDescription> [0..],
    }

    /// A rule.
    pub struct AclDescription {
        principal: Str [0..],
        host: Str [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// Adds rules.
    pub struct CreateAclsRequest {
        creations: Vec<AclCreation> [0..],
    }

    /// A rule to add.
    pub struct AclCreation {
        resource_type: i8 [0..],
        resource_name: Str [0..],
        resource_pattern_type: i8 [1..] = 3,
        principal: Str [0..],
        host: Str [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// How that went, in the order of the request.
    pub struct CreateAclsResponse {
        throttle_time_ms: i32 [0..],
        results: Vec<AclCreationResult> [0..],
    }

    /// How adding one rule went.
    pub struct AclCreationResult {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
    }

    /// Removes the rules that match.
    pub struct DeleteAclsRequest {
        filters: Vec<DeleteAclsFilter> [0..],
    }

    /// Which rules to remove; null matches anything.
    pub struct DeleteAclsFilter {
        resource_type_filter: i8 [0..],
        resource_name_filter: Option<Str> [0..],
        pattern_type_filter: i8 [1..] = 3,
        principal_filter: Option<Str> [0..],
        host_filter: Option<Str> [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }

    /// What was removed, in the order of the request.
    pub struct DeleteAclsResponse {
        throttle_time_ms: i32 [0..],
        filter_results: Vec<DeleteAclsFilterResult> [0..],
    }

    /// What one filter removed.
    pub struct DeleteAclsFilterResult {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        matching_acls: Vec<DeleteAclsMatchingAcl> [0..],
    }

    /// A rule that matched.
    pub struct DeleteAclsMatchingAcl {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        resource_type: i8 [0..],
        resource_name: Str [0..],
        pattern_type: i8 [1..] = 3,
        principal: Str [0..],
        host: Str [0..],
        operation: i8 [0..],
        permission_type: i8 [0..],
    }
}
