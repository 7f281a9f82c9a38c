use meridian_access::Principal;
use meridian_consensus::command::{RowChange, RowKind};

use super::*;
use crate::config::FrontConfig;
use crate::kafka::access::Authorization;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
use crate::meta::ProposeError;

const TOPIC: i8 = 2;
const GROUP: i8 = 3;
const CLUSTER: i8 = 4;
const UNKNOWN: i8 = 0;
const ANY: i8 = 1;
const MATCH: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;
const READ: i8 = 3;
const WRITE: i8 = 4;
const DESCRIBE: i8 = 8;
const DENY: i8 = 2;
const ALLOW: i8 = 3;

/// A cluster of one whose node knows rules.
fn knowing() -> Arc<FakeBroker> {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("newer");
    broker
}

fn rule(name: &str, pattern_type: i8, principal: &str, operation: i8) -> AclCreation {
    AclCreation {
        resource_type: TOPIC,
        resource_name: name.into(),
        resource_pattern_type: pattern_type,
        principal: principal.into(),
        host: "*".into(),
        operation,
        permission_type: ALLOW,
    }
}

/// A filter that means each rule.
fn each() -> DeleteAclsFilter {
    DeleteAclsFilter {
        resource_type_filter: ANY,
        pattern_type_filter: ANY,
        operation: ANY,
        permission_type: ANY,
        ..Default::default()
    }
}

fn describing(filter: DeleteAclsFilter) -> DescribeAclsRequest {
    DescribeAclsRequest {
        resource_type_filter: filter.resource_type_filter,
        resource_name_filter: filter.resource_name_filter,
        pattern_type_filter: filter.pattern_type_filter,
        principal_filter: filter.principal_filter,
        host_filter: filter.host_filter,
        operation: filter.operation,
        permission_type: filter.permission_type,
    }
}

async fn create(
    client: &mut TestClient,
    version: i16,
    creations: Vec<AclCreation>,
) -> Vec<AclCreationResult> {
    client.call(version, CreateAclsRequest { creations }).await.results
}

async fn made(client: &mut TestClient, creations: Vec<AclCreation>) {
    for result in create(client, 3, creations).await {
        assert_eq!(result.error_code, ErrorCode::None, "{:?}", result.error_message);
    }
}

async fn describe(
    client: &mut TestClient,
    version: i16,
    filter: DeleteAclsFilter,
) -> DescribeAclsResponse {
    client.call(version, describing(filter)).await
}

/// The names of the patterns that have rules which a filter means.
async fn names(client: &mut TestClient, filter: DeleteAclsFilter) -> Vec<String> {
    let described = describe(client, 3, filter).await;
    assert_eq!(described.error_code, ErrorCode::None, "{:?}", described.error_message);
    described.resources.iter().map(|it| it.resource_name.to_string()).collect()
}

async fn delete(
    client: &mut TestClient,
    version: i16,
    filters: Vec<DeleteAclsFilter>,
) -> Vec<DeleteAclsFilterResult> {
    client.call(version, DeleteAclsRequest { filters }).await.filter_results
}

#[tokio::test]
async fn an_old_node_has_clients_hear_that_there_is_no_authorizer() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    for version in 1..=3 {
        let described = describe(&mut client, version, each()).await;
        assert_eq!(described.error_code, ErrorCode::SecurityDisabled);
        assert_eq!(described.error_message.as_deref(), Some(NO_AUTHORIZER));
        let created = create(&mut client, version, vec![AclCreation::default(); 2]).await;
        let codes: Vec<ErrorCode> = created.iter().map(|it| it.error_code).collect();
        assert_eq!(codes, [ErrorCode::SecurityDisabled; 2]);
        let deleted = delete(&mut client, version, vec![each()]).await;
        let codes: Vec<ErrorCode> = deleted.iter().map(|it| it.error_code).collect();
        assert_eq!(codes, [ErrorCode::SecurityDisabled]);
    }
    broker.register(1, FeatureLevel::LATEST).expect("newer");
    assert!(names(&mut client, each()).await.is_empty());
    assert!(broker.state().feature_level() < FeatureLevel::RULES, "looking needs no agreement");
}

#[tokio::test]
async fn rules_come_are_seen_and_go() {
    let broker = knowing();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    for version in 1..=3 {
        let orders = rule("orders", LITERAL, "User:alice", READ);
        let more = AclCreation {
            host: "10.0.0.1".into(),
            permission_type: DENY,
            ..rule("orders", LITERAL, "User:bob", WRITE)
        };
        let prefix = rule("orders", PREFIXED, "User:*", DESCRIBE);
        let creations = vec![orders.clone(), more, prefix, orders.clone()];
        let created = create(&mut client, version, creations).await;
        assert_eq!(created, vec![AclCreationResult::default(); 4]);
        assert_eq!(broker.state().feature_level(), FeatureLevel::RULES);

        let applied_count = broker.applied_count();
        assert_eq!(
            create(&mut client, version, vec![orders]).await,
            [AclCreationResult::default()]
        );
        assert_eq!(broker.applied_count(), applied_count, "it is there already");

        let described = describe(&mut client, version, each()).await;
        assert_eq!(described.error_code, ErrorCode::None);
        let acl = |principal: &str, host: &str, operation, permission_type| AclDescription {
            principal: principal.into(),
            host: host.into(),
            operation,
            permission_type,
        };
        let resource = |pattern_type, acls| DescribeAclsResource {
            resource_type: TOPIC,
            resource_name: "orders".into(),
            pattern_type,
            acls,
        };
        let bob = acl("User:bob", "10.0.0.1", WRITE, DENY);
        let alice = acl("User:alice", "*", READ, ALLOW);
        let everybody = acl("User:*", "*", DESCRIBE, ALLOW);
        assert_eq!(
            described.resources,
            [resource(LITERAL, vec![alice, bob]), resource(PREFIXED, vec![everybody])]
        );

        let of_alice = DeleteAclsFilter { principal_filter: Some("User:alice".into()), ..each() };
        let nobody = DeleteAclsFilter { principal_filter: Some("User:eve".into()), ..each() };
        let deleted = delete(&mut client, version, vec![of_alice, nobody, each(), each()]).await;
        let counts: Vec<usize> = deleted.iter().map(|it| it.matching_acls.len()).collect();
        assert_eq!(counts, [1, 0, 3, 3], "each filter by what was there before");
        let gone = DeleteAclsMatchingAcl {
            resource_type: TOPIC,
            resource_name: "orders".into(),
            pattern_type: LITERAL,
            principal: "User:alice".into(),
            host: "*".into(),
            operation: READ,
            permission_type: ALLOW,
            ..Default::default()
        };
        assert_eq!(deleted[0].matching_acls, [gone]);
        assert_eq!(broker.applied_count(), applied_count + 1, "one entry");
        assert!(names(&mut client, each()).await.is_empty());
    }
}

#[tokio::test]
async fn bad_rules_are_refused_and_the_others_of_the_request_made() {
    let broker = knowing();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let good = rule("orders", LITERAL, "User:alice", READ);
    let long: Str = "x".repeat(2_100).into();
    for (bad, said) in [
        (AclCreation { resource_type: UNKNOWN, ..good.clone() }, "resource type 0"),
        (AclCreation { resource_type: ANY, ..good.clone() }, "resource type 1"),
        (AclCreation { resource_pattern_type: UNKNOWN, ..good.clone() }, "pattern type 0"),
        (AclCreation { resource_pattern_type: ANY, ..good.clone() }, "pattern type 1"),
        (AclCreation { resource_pattern_type: MATCH, ..good.clone() }, "pattern type 2"),
        (AclCreation { operation: UNKNOWN, ..good.clone() }, "operation 0"),
        (AclCreation { operation: ANY, ..good.clone() }, "operation 1"),
        (AclCreation { permission_type: UNKNOWN, ..good.clone() }, "permission type 0"),
        (AclCreation { permission_type: ANY, ..good.clone() }, "permission type 1"),
        (AclCreation { resource_name: "".into(), ..good.clone() }, "has a name"),
        (AclCreation { resource_type: CLUSTER, ..good.clone() }, "kafka-cluster"),
        (AclCreation { principal: "alice".into(), ..good.clone() }, "User:alice"),
        (AclCreation { principal: "Link:east".into(), ..good.clone() }, "about users"),
        (AclCreation { host: "".into(), ..good.clone() }, "host"),
        (AclCreation { resource_name: "y".repeat(5_000).into(), ..good.clone() }, "4096 bytes"),
        (
            AclCreation { resource_name: long.clone(), host: long.clone(), ..good.clone() },
            "takes 4221 bytes",
        ),
    ] {
        let created = create(&mut client, 3, vec![bad, good.clone()]).await;
        assert_eq!(created[0].error_code, ErrorCode::InvalidRequest, "{said}");
        let message = created[0].error_message.as_deref().unwrap_or_default();
        assert!(message.contains(said), "{message}");
        assert_eq!(created[1], AclCreationResult::default());
        assert_eq!(delete(&mut client, 3, vec![each()]).await[0].matching_acls.len(), 1);
    }
}

#[tokio::test]
async fn filters_mean_what_they_mean_in_kafka() {
    let mut client = TestClient::connect(&front_of(&knowing(), quick_config()));
    let of_group = AclCreation { resource_type: GROUP, ..rule("g", LITERAL, "User:bob", READ) };
    let denying = AclCreation { permission_type: DENY, ..rule("d", LITERAL, "User:bob", WRITE) };
    let here = AclCreation { host: "10.0.0.1".into(), ..rule("h", LITERAL, "User:bob", WRITE) };
    let orders = rule("orders", LITERAL, "User:alice", READ);
    let prefix = rule("ord", PREFIXED, "User:alice", READ);
    let every = rule("*", LITERAL, "User:*", DESCRIBE);
    made(&mut client, vec![of_group, denying, here, orders, prefix, every]).await;
    let named = |pattern_type_filter, name: &str| DeleteAclsFilter {
        pattern_type_filter,
        resource_name_filter: Some(name.into()),
        ..each()
    };
    let user =
        |principal: &str| DeleteAclsFilter { principal_filter: Some(principal.into()), ..each() };
    for (filter, expected) in [
        (each(), &["*", "d", "h", "orders", "ord", "g"][..]),
        (named(LITERAL, "orders"), &["orders"]),
        (named(LITERAL, "ord"), &[]),
        (named(PREFIXED, "ord"), &["ord"]),
        (named(ANY, "ord"), &["ord"]),
        (named(MATCH, "orders"), &["*", "orders", "ord"]),
        (named(MATCH, "g"), &["*", "g"]),
        (DeleteAclsFilter { pattern_type_filter: PREFIXED, ..each() }, &["ord"]),
        (
            DeleteAclsFilter { pattern_type_filter: MATCH, ..each() },
            &["*", "d", "h", "orders", "ord", "g"],
        ),
        (DeleteAclsFilter { resource_type_filter: GROUP, ..each() }, &["g"]),
        (DeleteAclsFilter { resource_type_filter: CLUSTER, ..each() }, &[]),
        (user("User:alice"), &["orders", "ord"]),
        (user("User:*"), &["*"]),
        (user("alice"), &[]),
        (DeleteAclsFilter { host_filter: Some("10.0.0.1".into()), ..each() }, &["h"]),
        (DeleteAclsFilter { operation: DESCRIBE, ..each() }, &["*"]),
        (DeleteAclsFilter { permission_type: DENY, ..each() }, &["d"]),
    ] {
        assert_eq!(names(&mut client, filter.clone()).await, expected, "{filter:?}");
    }
    for unknown in [
        DeleteAclsFilter { resource_type_filter: UNKNOWN, ..each() },
        DeleteAclsFilter { pattern_type_filter: UNKNOWN, ..each() },
        DeleteAclsFilter { operation: 99, ..each() },
        DeleteAclsFilter { permission_type: -1, ..each() },
    ] {
        let described = describe(&mut client, 3, unknown.clone()).await;
        assert_eq!(described.error_code, ErrorCode::InvalidRequest);
        let prefixed = DeleteAclsFilter { pattern_type_filter: PREFIXED, ..each() };
        let deleted = delete(&mut client, 3, vec![unknown, prefixed.clone()]).await;
        assert_eq!(deleted[0].error_code, ErrorCode::InvalidRequest);
        assert_eq!(deleted[1].matching_acls.len(), 1, "the other filter is good");
        assert!(names(&mut client, prefixed).await.is_empty());
        made(&mut client, vec![rule("ord", PREFIXED, "User:alice", READ)]).await;
    }
}

#[tokio::test]
async fn who_may_not_look_at_the_cluster_sees_no_rules() {
    let broker = knowing();
    let config = FrontConfig { super_users: vec![Principal::user("root")], ..quick_config() };
    let front = front_of(&broker, config);
    let connect = |name| TestClient::connect_as(&front, &Principal::user(name));
    let (mut alice, mut root) = (connect("alice"), connect("root"));
    let value = Some(Authorization::Enforce.encode());
    let key = Authorization::KEY.to_vec();
    let (kind, expected) = (RowKind::Authorization, ExpectedVersion::Any);
    broker.decide(Command::PutRows(vec![RowChange { kind, key, value, expected }]));

    let denied = ErrorCode::ClusterAuthorizationFailed;
    let orders = rule("orders", LITERAL, "User:alice", READ);
    assert_eq!(describe(&mut alice, 3, each()).await.error_code, denied);
    assert_eq!(create(&mut alice, 3, vec![orders.clone()]).await[0].error_code, denied);
    assert_eq!(delete(&mut alice, 3, vec![each()]).await[0].error_code, denied);

    let looking = AclCreation {
        resource_type: CLUSTER,
        ..rule(Resource::CLUSTER_NAME, LITERAL, "User:alice", DESCRIBE)
    };
    made(&mut root, vec![looking]).await;
    assert_eq!(names(&mut alice, each()).await, [Resource::CLUSTER_NAME]);
    assert_eq!(create(&mut alice, 3, vec![orders]).await[0].error_code, denied);
}

#[tokio::test]
async fn what_is_not_decided_is_no_success() {
    let broker = knowing();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let orders = rule("orders", LITERAL, "User:alice", READ);
    made(&mut client, vec![orders.clone()]).await;
    *broker.refusal.lock().expect("no panic") = Some(ProposeError::TimedOut);
    let late = ErrorCode::RequestTimedOut;
    assert_eq!(create(&mut client, 3, vec![orders]).await[0].error_code, late);
    assert_eq!(delete(&mut client, 3, vec![each()]).await[0].error_code, late);
    assert_eq!(describe(&mut client, 3, each()).await.error_code, late);
    *broker.refusal.lock().expect("no panic") = None;
    assert_eq!(names(&mut client, each()).await, ["orders"]);
}

#[tokio::test]
async fn many_rules_are_written_in_several_entries_and_deleted_in_one() {
    let broker = knowing();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    made(&mut client, vec![rule("0", LITERAL, "User:alice", READ)]).await;
    let applied_count = broker.applied_count();
    let topics = (1..=BATCH_COUNT_MAX + 1).map(|index| index.to_string());
    let many = topics.map(|topic| rule(&topic, LITERAL, "User:alice", READ)).collect();
    made(&mut client, many).await;
    assert_eq!(broker.applied_count(), applied_count + 2);

    let refused = delete(&mut client, 3, vec![each()]).await;
    assert_eq!(refused[0].error_code, ErrorCode::InvalidRequest);
    let message = refused[0].error_message.as_deref().unwrap_or_default();
    assert!(message.contains("more than 10000 rules"), "{message}");
    let named = |name: &str| DeleteAclsFilter { resource_name_filter: Some(name.into()), ..each() };
    let deleted = delete(&mut client, 3, vec![named("0"), named("1")]).await;
    assert!(deleted.iter().all(|it| it.matching_acls.len() == 1), "{deleted:?}");
    assert_eq!(delete(&mut client, 3, vec![each()]).await[0].matching_acls.len(), BATCH_COUNT_MAX);
    assert!(names(&mut client, each()).await.is_empty());

    let long = (0..400).map(|index| format!("{index}-{}", "z".repeat(3_000)));
    made(&mut client, long.map(|name| rule(&name, LITERAL, "User:a", READ)).collect()).await;
    let refused = delete(&mut client, 3, vec![each()]).await;
    let message = refused[0].error_message.as_deref().unwrap_or_default();
    assert!(message.contains("bytes (at most 786432) of rules"), "{message}");
}
