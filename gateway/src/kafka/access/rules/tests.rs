use meridian_access::{Operation, Pattern, PatternType, Permission, Principal, ResourceType, Rule};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DescribeClientQuotasRequest, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource,
    IncrementalAlterableConfig,
};

use super::Authorization;
use crate::config::FrontConfig;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

fn put(broker: &FakeBroker, kind: RowKind, key: &[u8], value: Option<Vec<u8>>) {
    let key = key.to_vec();
    let change = RowChange { kind, key, value, expected: ExpectedVersion::Any };
    broker.decide(Command::PutRows(vec![change]));
}

fn may_describe_configs() -> Rule {
    Rule {
        pattern: Pattern {
            kind: ResourceType::Cluster,
            pattern_type: PatternType::Literal,
            name: "kafka-cluster".to_owned(),
        },
        principal: Principal::user("alice"),
        host: "127.0.0.1".to_owned(),
        operation: Operation::DescribeConfigs,
        permission: Permission::Allow,
    }
}

async fn tried(client: &mut TestClient) -> ErrorCode {
    client.call(1, DescribeClientQuotasRequest::default()).await.error_code
}

#[tokio::test]
async fn rules_hold_as_soon_as_they_are_decided_and_no_longer() {
    let broker = FakeBroker::single();
    let config = FrontConfig { super_users: vec![Principal::user("root")], ..quick_config() };
    let front = front_of(&broker, config);
    let connect = |name| TestClient::connect_as(&front, &Principal::user(name));
    let (mut alice, mut bob, mut root) = (connect("alice"), connect("bob"), connect("root"));
    let (rule, denied) = (may_describe_configs(), ErrorCode::ClusterAuthorizationFailed);
    let mode = |mode: Authorization| {
        put(&broker, RowKind::Authorization, Authorization::KEY, Some(mode.encode()));
    };

    assert_eq!(tried(&mut alice).await, ErrorCode::None, "off");
    mode(Authorization::Report);
    assert_eq!(tried(&mut alice).await, ErrorCode::None);
    assert_eq!(front.access_rules.denied_count(), 1, "reported");
    mode(Authorization::Enforce);
    assert_eq!(tried(&mut alice).await, denied);
    assert_eq!(tried(&mut root).await, ErrorCode::None);

    put(&broker, RowKind::Acl, &rule.encode(), Some(Vec::new()));
    assert_eq!(tried(&mut alice).await, ErrorCode::None);
    assert_eq!(tried(&mut bob).await, denied);
    assert_eq!(front.access_rules.count(), 1);
    put(&broker, RowKind::Acl, &rule.encode(), None);
    assert_eq!(tried(&mut alice).await, denied);
    assert_eq!(front.access_rules.count(), 0);

    put(&broker, RowKind::Authorization, Authorization::KEY, Some(b"later".to_vec()));
    assert_eq!(tried(&mut alice).await, denied, "what can't be read is enforced");
    put(&broker, RowKind::Authorization, Authorization::KEY, None);
    assert_eq!(tried(&mut alice).await, ErrorCode::None);
}

async fn altered(client: &mut TestClient, value: &str) -> ErrorCode {
    let config = IncrementalAlterableConfig {
        name: "allow.everyone.if.no.acl.found".into(),
        config_operation: 0,
        value: Some(value.into()),
    };
    let resource = IncrementalAlterConfigsResource {
        resource_type: 4,
        resource_name: "".into(),
        configs: vec![config],
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    client.call(1, request).await.responses[0].error_code
}

#[tokio::test]
async fn what_no_rule_is_about_can_be_opened_to_everybody() {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let config = FrontConfig { super_users: vec![Principal::user("root")], ..quick_config() };
    let front = front_of(&broker, config);
    let connect = |name| TestClient::connect_as(&front, &Principal::user(name));
    let (mut alice, mut bob, mut root) = (connect("alice"), connect("bob"), connect("root"));
    let denied = ErrorCode::ClusterAuthorizationFailed;
    let enforce = Some(Authorization::Enforce.encode());
    put(&broker, RowKind::Authorization, Authorization::KEY, enforce);
    assert_eq!(tried(&mut bob).await, denied);
    assert_eq!(altered(&mut root, "maybe").await, ErrorCode::InvalidRequest);
    assert_eq!(altered(&mut root, "true").await, ErrorCode::None);
    assert_eq!(broker.state().feature_level(), FeatureLevel::OPEN_RESOURCES);
    assert_eq!(tried(&mut bob).await, ErrorCode::None);
    assert_eq!(tried(&mut alice).await, ErrorCode::None);

    // One rule for alice closes the cluster to all others.
    put(&broker, RowKind::Acl, &may_describe_configs().encode(), Some(Vec::new()));
    assert_eq!(tried(&mut bob).await, denied);
    assert_eq!(tried(&mut alice).await, ErrorCode::None);

    // Who may alter configs alone does not say what everybody may do.
    let rule = Rule { operation: Operation::AlterConfigs, ..may_describe_configs() };
    put(&broker, RowKind::Acl, &rule.encode(), Some(Vec::new()));
    assert_eq!(altered(&mut alice, "false").await, denied);
    let rule = Rule { operation: Operation::Alter, ..rule };
    put(&broker, RowKind::Acl, &rule.encode(), Some(Vec::new()));
    assert_eq!(altered(&mut alice, "false").await, ErrorCode::None);

    for operation in [Operation::AlterConfigs, Operation::Alter, Operation::DescribeConfigs] {
        let rule = Rule { operation, ..may_describe_configs() };
        put(&broker, RowKind::Acl, &rule.encode(), None);
    }
    assert_eq!(tried(&mut bob).await, denied, "it is closed again, and no rule is left");
}
