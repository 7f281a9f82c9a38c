//! ApiVersions: what the server speaks (KIP-35, KIP-511, KIP-584).

use crate::ErrorCode;
use crate::api::ApiKey;
use crate::wire::{Str, message};

message! {
    /// Asks which APIs and versions the server has.
    pub struct ApiVersionsRequest {
        client_software_name: Str [3..],
        client_software_version: Str [3..],
    }

    /// Which APIs, versions and features the server has.
    pub struct ApiVersionsResponse {
        error_code: ErrorCode [0..],
        api_keys: Vec<ApiVersion> [0..],
        throttle_time_ms: i32 [1..],
    } tagged {
        0: supported_features: Vec<SupportedFeature> [3..],
        1: finalized_features_epoch: i64 [3..] = -1,
        2: finalized_features: Vec<FinalizedFeature> [3..],
        3: zk_migration_ready: bool [3..],
    }

    /// The versions of one API.
    pub struct ApiVersion {
        api_key: i16 [0..],
        min_version: i16 [0..],
        max_version: i16 [0..],
    }

    /// The levels of a feature that the server could switch to.
    pub struct SupportedFeature {
        name: Str [3..],
        min_version: i16 [3..],
        max_version: i16 [3..],
    }

    /// The levels of a feature that the whole cluster has switched to.
    pub struct FinalizedFeature {
        name: Str [3..],
        max_version_level: i16 [3..],
        min_version_level: i16 [3..],
    }
}

impl ApiVersion {
    /// What to announce for these APIs. The private one is left out.
    pub fn advertise(apis: &[ApiKey]) -> Vec<Self> {
        let version = |api: &ApiKey| {
            let (min_version, max_version) = api.advertised_versions()?.into_inner();
            Some(Self { api_key: api.key(), min_version, max_version })
        };
        apis.iter().filter_map(version).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_apis_are_advertised() {
        let advertised = ApiVersion::advertise(ApiKey::ALL);
        assert_eq!(advertised.len(), ApiKey::ALL.len() - 1);
        assert_eq!(advertised[0], ApiVersion { api_key: 0, min_version: 0, max_version: 13 });
    }
}
