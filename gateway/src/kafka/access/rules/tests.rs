use meridian_access::{Operation, Pattern, PatternType, Permission, Principal, ResourceType, Rule};
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::DescribeClientQuotasRequest;

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
