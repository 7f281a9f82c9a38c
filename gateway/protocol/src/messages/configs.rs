//! DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

use crate::ErrorCode;
use crate::wire::{Str, message};

message! {
    /// Asks for configuration.
    pub struct DescribeConfigsRequest {
        resources: Vec<DescribeConfigsResource> [0..],
        include_synonyms: bool [1..],
        include_documentation: bool [3..],
    }

    /// The resource whose configuration is asked for.
    pub struct DescribeConfigsResource {
        resource_type: i8 [0..],
        resource_name: Str [0..],
        // Null asks for all of it.
        configuration_keys: Option<Vec<Str>> [0..],
    }

    /// The configuration.
    pub struct DescribeConfigsResponse {
        throttle_time_ms: i32 [0..],
        results: Vec<DescribeConfigsResult> [0..],
    }

    /// The configuration of one resource.
    pub struct DescribeConfigsResult {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        resource_type: i8 [0..],
        resource_name: Str [0..],
        configs: Vec<DescribedConfig> [0..],
    }

    /// One configuration value, and where it comes from.
    pub struct DescribedConfig {
        name: Str [0..],
        value: Option<Str> [0..],
        read_only: bool [0..],
        is_default: bool [..=0],
        config_source: i8 [1..] = -1,
        is_sensitive: bool [0..],
        synonyms: Vec<DescribedConfigSynonym> [1..],
        config_type: i8 [3..],
        documentation: Option<Str> [3..],
    }

    /// A place the value could come from, in order of precedence.
    pub struct DescribedConfigSynonym {
        name: Str [1..],
        value: Option<Str> [1..],
        source: i8 [1..],
    }

    /// Replaces all configuration of resources.
    pub struct AlterConfigsRequest {
        resources: Vec<AlterConfigsResource> [0..],
        validate_only: bool [0..],
    }

    /// The whole configuration one resource is to have.
    pub struct AlterConfigsResource {
        resource_type: i8 [0..],
        resource_name: Str [0..],
        configs: Vec<AlterableConfig> [0..],
    }

    /// One configuration value.
    pub struct AlterableConfig {
        name: Str [0..],
        value: Option<Str> [0..],
    }

    /// Which resources were altered.
    pub struct AlterConfigsResponse {
        throttle_time_ms: i32 [0..],
        responses: Vec<AlterConfigsResourceResponse> [0..],
    }

    /// Whether one resource was altered.
    pub struct AlterConfigsResourceResponse {
        error_code: ErrorCode [0..],
        error_message: Option<Str> [0..],
        resource_type: i8 [0..],
        resource_name: Str [0..],
    }

    /// Changes some configuration of resources.
    pub struct IncrementalAlterConfigsRequest {
        resources: Vec<IncrementalAlterConfigsResource> [0..],
        validate_only: bool [0..],
    }

    /// The changes to one resource.
    pub struct IncrementalAlterConfigsResource {
        resource_type: i8 [0..],
        resource_name: Str [0..],
        configs: Vec<IncrementalAlterableConfig> [0..],
    }

    /// One change: set 0, delete 1, append 2, subtract 3.
    pub struct IncrementalAlterableConfig {
        name: Str [0..],
        config_operation: i8 [0..],
        value: Option<Str> [0..],
    }

    /// Which resources were changed.
    pub struct IncrementalAlterConfigsResponse {
        throttle_time_ms: i32 [0..],
        responses: Vec<AlterConfigsResourceResponse> [0..],
    }

    /// Asks what has configs, of these kinds or of all.
    pub struct ListConfigResourcesRequest {
        resource_types: Vec<i8> [1..],
    }

    /// What has configs. Version 0 knows only client metrics.
    pub struct ListConfigResourcesResponse {
        throttle_time_ms: i32 [0..],
        error_code: ErrorCode [0..],
        config_resources: Vec<ListedConfigResource> [0..],
    }

    /// A thing that has configs.
    pub struct ListedConfigResource {
        resource_name: Str [0..],
        resource_type: i8 [1..] = 16,
    }
}
