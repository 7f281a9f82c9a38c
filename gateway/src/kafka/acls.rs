//! DescribeAcls, CreateAcls and DeleteAcls, as Kafka answers them without an authorizer: MirrorMaker and the
//! tools take that for "there are none" and go on.

use meridian_protocol::messages::{
    AclCreationResult, CreateAclsRequest, CreateAclsResponse, DeleteAclsFilterResult,
    DeleteAclsRequest, DeleteAclsResponse, DescribeAclsRequest, DescribeAclsResponse,
};
use meridian_protocol::{ErrorCode, Str};

/// In Kafka's words: clients show them.
const NO_AUTHORIZER: &str = "No Authorizer is configured on the broker";

fn refusal() -> (ErrorCode, Option<Str>) {
    (ErrorCode::SecurityDisabled, Some(NO_AUTHORIZER.into()))
}

/// Answers DescribeAcls.
pub(super) fn describe(_: &DescribeAclsRequest) -> DescribeAclsResponse {
    let (error_code, error_message) = refusal();
    DescribeAclsResponse { error_code, error_message, ..Default::default() }
}

/// Answers CreateAcls.
pub(super) fn create(request: &CreateAclsRequest) -> CreateAclsResponse {
    let refused = |_| {
        let (error_code, error_message) = refusal();
        AclCreationResult { error_code, error_message }
    };
    let results = request.creations.iter().map(refused).collect();
    CreateAclsResponse { results, ..Default::default() }
}

/// Answers DeleteAcls.
pub(super) fn delete(request: &DeleteAclsRequest) -> DeleteAclsResponse {
    let refused = |_| {
        let (error_code, error_message) = refusal();
        DeleteAclsFilterResult { error_code, error_message, ..Default::default() }
    };
    let filter_results = request.filters.iter().map(refused).collect();
    DeleteAclsResponse { filter_results, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::{AclCreation, DeleteAclsFilter};

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    #[tokio::test]
    async fn everybody_is_told_that_there_is_no_authorizer() {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        for version in 1..=3 {
            let described = client.call(version, DescribeAclsRequest::default()).await;
            assert_eq!(described.error_code, ErrorCode::SecurityDisabled);
            assert_eq!(described.error_message.as_deref(), Some(NO_AUTHORIZER));
            let creations = vec![AclCreation::default(); 2];
            let created = client.call(version, CreateAclsRequest { creations }).await.results;
            let codes: Vec<ErrorCode> = created.iter().map(|it| it.error_code).collect();
            assert_eq!(codes, [ErrorCode::SecurityDisabled; 2]);
            let filters = vec![DeleteAclsFilter::default()];
            let deleted = client.call(version, DeleteAclsRequest { filters }).await.filter_results;
            let codes: Vec<ErrorCode> = deleted.iter().map(|it| it.error_code).collect();
            assert_eq!(codes, [ErrorCode::SecurityDisabled]);
        }
    }
}
