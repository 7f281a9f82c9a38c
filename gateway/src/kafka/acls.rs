//! DescribeAcls, CreateAcls and DeleteAcls, as Kafka answers them without an authorizer: MirrorMaker and the
//! tools take that for "there are none" and go on.

use meridian_access::{Operation, Resource};
use meridian_protocol::messages::{
    AclCreationResult, CreateAclsRequest, CreateAclsResponse, DeleteAclsFilterResult,
    DeleteAclsRequest, DeleteAclsResponse, DescribeAclsRequest, DescribeAclsResponse,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;

/// In Kafka's words: clients show them.
const NO_AUTHORIZER: &str = "No Authorizer is configured on the broker";

/// The answer to a client that would see (DESCRIBE) or change (ALTER) rules.
fn refusal(call: &Call, operation: Operation) -> (ErrorCode, Option<Str>) {
    match call.check(operation, Resource::CLUSTER) {
        Ok(()) => (ErrorCode::SecurityDisabled, Some(NO_AUTHORIZER.into())),
        Err(code) => (code, None),
    }
}

/// Answers DescribeAcls.
pub(super) fn describe(call: &Call, _: &DescribeAclsRequest) -> DescribeAclsResponse {
    let (error_code, error_message) = refusal(call, Operation::Describe);
    DescribeAclsResponse { error_code, error_message, ..Default::default() }
}

/// Answers CreateAcls.
pub(super) fn create(call: &Call, request: &CreateAclsRequest) -> CreateAclsResponse {
    let (error_code, error_message) = refusal(call, Operation::Alter);
    let refused = |_| AclCreationResult { error_code, error_message: error_message.clone() };
    let results = request.creations.iter().map(refused).collect();
    CreateAclsResponse { results, ..Default::default() }
}

/// Answers DeleteAcls.
pub(super) fn delete(call: &Call, request: &DeleteAclsRequest) -> DeleteAclsResponse {
    let (error_code, error_message) = refusal(call, Operation::Alter);
    let refused = |_| DeleteAclsFilterResult {
        error_code,
        error_message: error_message.clone(),
        ..Default::default()
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
