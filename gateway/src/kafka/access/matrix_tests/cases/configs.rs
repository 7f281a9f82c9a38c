//! Configs, quotas, users and rules.

use meridian_access::Operation::{self, Alter, AlterConfigs, Describe, DescribeConfigs};
use meridian_access::Resource;
use meridian_protocol::ErrorCode::{
    ClusterAuthorizationFailed, DelegationTokenAuthorizationFailed, GroupAuthorizationFailed,
    TopicAuthorizationFailed,
};
use meridian_protocol::messages::{
    AclCreation, AlterClientQuotasRequest, AlterConfigsRequest, AlterConfigsResource,
    AlterUserScramCredentialsRequest, CreateAclsRequest, CreateDelegationTokenRequest,
    DeleteAclsFilter, DeleteAclsRequest, DescribeAclsRequest, DescribeClientQuotasRequest,
    DescribeConfigsRequest, DescribeConfigsResource, DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource, ListConfigResourcesRequest, QuotaAlteration, QuotaEntityPart,
    ScramCredentialDeletion,
};

use super::super::{BOB, Case, GROUP, ON_BOB, ON_CLUSTER, ON_GROUP, ON_TOPIC, Refused, TOPIC};

/// What has configs, by its type and name, and where the right is on it.
const OWNERS: [(&str, i8, &str, Resource<'_>, Refused); 6] = [
    ("topic", 2, TOPIC, ON_TOPIC, Refused::With(TopicAuthorizationFailed)),
    ("broker", 4, "1", ON_CLUSTER, Refused::With(ClusterAuthorizationFailed)),
    ("all brokers", 4, "", ON_CLUSTER, Refused::With(ClusterAuthorizationFailed)),
    ("logger", 8, "1", ON_CLUSTER, Refused::With(ClusterAuthorizationFailed)),
    ("metrics", 16, "m", ON_CLUSTER, Refused::With(ClusterAuthorizationFailed)),
    ("group", 32, GROUP, ON_GROUP, Refused::With(GroupAuthorizationFailed)),
];

fn of_configs() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, resource_type, name, owner, refused) in OWNERS {
        cases.push(Case::new(what, &[(DescribeConfigs, owner)], refused, move |_| {
            let resource_name = name.into();
            let resource =
                DescribeConfigsResource { resource_type, resource_name, ..Default::default() };
            DescribeConfigsRequest { resources: vec![resource], ..Default::default() }
        }));
        cases.push(Case::new(what, &[(AlterConfigs, owner)], refused, move |_| {
            let (resource_name, configs) = (name.into(), Vec::new());
            let resource = AlterConfigsResource { resource_type, resource_name, configs };
            AlterConfigsRequest { resources: vec![resource], validate_only: true }
        }));
        cases.push(Case::new(what, &[(AlterConfigs, owner)], refused, move |_| {
            let (resource_name, configs) = (name.into(), Vec::new());
            let resource =
                IncrementalAlterConfigsResource { resource_type, resource_name, configs };
            IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: true }
        }));
    }
    cases
}

pub(super) fn cases() -> Vec<Case> {
    let denied = Refused::With(ClusterAuthorizationFailed);
    let on = |operation: Operation| [(operation, ON_CLUSTER)];
    let mut cases = of_configs();
    cases.extend([
        Case::new("", &on(DescribeConfigs), denied, |_| ListConfigResourcesRequest::default()),
        Case::of_version(0, "of old", &on(DescribeConfigs), denied, |_| {
            ListConfigResourcesRequest::default()
        }),
        Case::new("", &on(DescribeConfigs), denied, |_| DescribeClientQuotasRequest::default()),
        Case::new("", &on(AlterConfigs), denied, |_| {
            let entity_name = Some("bob".into());
            let user = QuotaEntityPart { entity_type: "user".into(), entity_name };
            let entry = QuotaAlteration { entity: vec![user], ops: Vec::new() };
            AlterClientQuotasRequest { entries: vec![entry], validate_only: true }
        }),
        Case::new("", &on(Describe), denied, |_| DescribeUserScramCredentialsRequest::default()),
        Case::new("", &on(Alter), denied, |_| {
            let deletion = ScramCredentialDeletion { name: "bob".into(), mechanism: 1 };
            AlterUserScramCredentialsRequest { deletions: vec![deletion], ..Default::default() }
        }),
        Case::new("", &on(Describe), denied, |_| DescribeAclsRequest::default()),
        Case::new(
            "of another user",
            &[(Operation::DescribeTokens, ON_BOB)],
            Refused::Hides(BOB),
            |_| DescribeDelegationTokenRequest::default(),
        ),
        Case::new(
            "for another user",
            &[(Operation::CreateTokens, ON_BOB)],
            Refused::With(DelegationTokenAuthorizationFailed),
            |_| CreateDelegationTokenRequest {
                owner_principal_type: Some("User".into()),
                owner_principal_name: Some(BOB.into()),
                ..Default::default()
            },
        ),
        Case::new("", &on(Alter), denied, |_| CreateAclsRequest {
            creations: vec![AclCreation::default()],
        }),
        Case::new("", &on(Alter), denied, |_| DeleteAclsRequest {
            filters: vec![DeleteAclsFilter::default()],
        }),
    ]);
    cases
}
