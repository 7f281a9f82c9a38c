//! What a link may ask of its source: its certificate is for mirroring, and makes nobody a client or an operator.

use meridian_protocol::{ApiKey, Request};

/// What a mirror asks: records and their lineage, configs, quotas and committed offsets, and, in a switchover, which
/// transactions are open and that their producers are fenced.
pub(super) const APIS: &[ApiKey] = &[
    ApiKey::Fetch,
    ApiKey::ListOffsets,
    ApiKey::Metadata,
    ApiKey::OffsetFetch,
    ApiKey::FindCoordinator,
    ApiKey::ListGroups,
    ApiKey::ApiVersions,
    ApiKey::InitProducerId,
    ApiKey::OffsetForLeaderEpoch,
    ApiKey::DescribeConfigs,
    ApiKey::DescribeClientQuotas,
    ApiKey::DescribeCluster,
    ApiKey::DescribeTransactions,
    ApiKey::ListTransactions,
    ApiKey::MeridianAdmin,
];

/// Methods of the private API that a mirror calls at its source.
const METHODS: &[&str] = &[
    "mirror.digest",
    "mirror.fence",
    "mirror.positions",
    "mirror.release",
    "mirror.reverse",
    "mirror.standing",
];

/// Whether a link may call the method.
pub(super) fn may_call(method: &str) -> bool {
    METHODS.contains(&method)
}

/// Takes out of a request what a link may not have done by it.
pub(super) fn narrowed(mut request: Request) -> Request {
    if let Request::Metadata(metadata) = &mut request {
        metadata.allow_auto_topic_creation = false;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_changes_no_topic_and_is_no_operator() {
        for api in [
            ApiKey::Produce,
            ApiKey::CreateTopics,
            ApiKey::DeleteTopics,
            ApiKey::DeleteRecords,
            ApiKey::AlterConfigs,
            ApiKey::IncrementalAlterConfigs,
            ApiKey::OffsetCommit,
            ApiKey::DeleteGroups,
            ApiKey::WriteTxnMarkers,
        ] {
            assert!(!APIS.contains(&api), "{api:?}");
        }
        assert!(may_call("mirror.positions"));
        for method in ["node.decommission", "mirror.promote", "link.create", "disk.scrub", ""] {
            assert!(!may_call(method), "{method}");
        }
    }
}
