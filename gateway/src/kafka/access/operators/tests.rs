use std::sync::Arc;

use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{AclCreation, CreateAclsRequest, MeridianAdminRequest};
use serde_json::{Value, json};

use super::*;
use crate::config::FrontConfig;
use crate::kafka::Front;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

fn front_with(broker: &Arc<FakeBroker>, super_users: &[&str]) -> Arc<Front> {
    let super_users = super_users.iter().map(|name| Principal::user(name)).collect();
    front_of(broker, FrontConfig { super_users, ..quick_config() })
}

async fn ask(
    client: &mut TestClient,
    method: &str,
    arguments: Value,
) -> Result<Value, (ErrorCode, String)> {
    let body = Bytes::from(arguments.to_string());
    let answer = client.call(0, MeridianAdminRequest { method: method.into(), body }).await;
    match answer.error_code {
        ErrorCode::None => Ok(serde_json::from_slice(&answer.body).expect("JSON")),
        code => Err((code, answer.error_message.unwrap_or_default().to_string())),
    }
}

async fn set(client: &mut TestClient, mode: &str) -> Result<Value, (ErrorCode, String)> {
    ask(client, "access.mode.set", json!({"mode": mode})).await
}

#[tokio::test]
async fn rules_are_enforced_when_somebody_can_change_them() {
    let broker = FakeBroker::single();
    let mut nobody = TestClient::connect(&front_with(&broker, &[]));
    let front = front_with(&broker, &["root"]);
    let mut root = TestClient::connect_as(&front, &Principal::user("root"));
    let (_, old) = set(&mut root, "report").await.expect_err("an old node");
    assert!(old.contains("node 1 does not know this yet"), "{old}");
    broker.register(1, FeatureLevel::LATEST).expect("newer");

    let report = |mode: &str, denied: u64, super_users: &[&str]| json!({"mode": mode, "rules": 0, "denied": denied, "super_users": super_users});
    let reported = ask(&mut nobody, "access.mode", json!({})).await.expect("off");
    assert_eq!(reported, report("off", 0, &[]));
    let (code, refused) = set(&mut nobody, "enforce").await.expect_err("for ever");
    assert_eq!(code, ErrorCode::PolicyViolation);
    assert!(refused.contains("no super users"), "{refused}");
    assert_eq!(set(&mut nobody, "report").await.expect("harmless"), report("report", 0, &[]));
    assert_eq!(broker.state().feature_level(), FeatureLevel::RULES);

    let enforced = set(&mut root, "enforce").await.expect("root can change rules");
    assert_eq!(enforced, report("enforce", 0, &["User:root"]));
    let mut alice = TestClient::connect_as(&front, &Principal::user("alice"));
    for (method, arguments) in [
        ("access.mode", json!({})),
        ("access.mode.set", json!({"mode": "off"})),
        ("access.check", json!({})),
    ] {
        let (code, denied) = ask(&mut alice, method, arguments).await.expect_err("no rule");
        assert_eq!(code, ErrorCode::ClusterAuthorizationFailed, "{method}");
        assert!(denied.contains("`meridian acl allow User:alice "), "{denied}");
    }
    assert_eq!(set(&mut root, "off").await.expect("root"), report("off", 3, &["User:root"]));
    for (method, arguments) in [
        ("access.mode.set", json!({"mode": "on"})),
        ("access.mode.set", json!({})),
        ("access.x", json!({})),
    ] {
        let (code, _) = ask(&mut root, method, arguments).await.expect_err("not so");
        assert_eq!(code, ErrorCode::InvalidRequest);
    }
}

#[tokio::test]
async fn a_check_names_the_rule_that_decides() {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("newer");
    let mut client = TestClient::connect(&front_with(&broker, &["root"]));
    let rule = |name: &str, pattern: i8, principal: &str, operation: i8, permission_type: i8| {
        AclCreation {
            resource_type: 2,
            resource_name: name.into(),
            resource_pattern_type: pattern,
            principal: principal.into(),
            host: "*".into(),
            operation,
            permission_type,
        }
    };
    let creations = vec![
        rule("shop.", 4, "User:alice", 4, 3),
        rule("shop.secret", 3, "User:*", 2, 2),
        AclCreation { host: "10.0.0.1".into(), ..rule("stock", 3, "User:bob", 3, 3) },
    ];
    let created = client.call(3, CreateAclsRequest { creations }).await.results;
    assert!(created.iter().all(|it| it.error_code == ErrorCode::None), "{created:?}");
    let allows = "ALLOW WRITE on TOPIC shop.* (prefix) to User:alice from host *";
    let denies = "DENY ALL on TOPIC shop.secret to User:* from host *";
    let reads = "ALLOW READ on TOPIC stock to User:bob from host 10.0.0.1";
    for (principal, host, operation, topic, expected) in [
        ("User:alice", "*", "write", "shop.orders", (true, "rule", Some(allows))),
        ("User:alice", "::1", "Describe", "shop.orders", (true, "rule", Some(allows))),
        ("User:alice", "*", "read", "shop.orders", (false, "nothing", None)),
        ("User:alice", "*", "WRITE", "shop.secret", (false, "rule", Some(denies))),
        ("User:bob", "10.0.0.1", "READ", "stock", (true, "rule", Some(reads))),
        ("User:bob", "*", "READ", "stock", (false, "nothing", None)),
        ("User:root", "*", "READ", "shop.secret", (true, "super-user", None)),
    ] {
        let arguments = json!({
            "principal": principal,
            "host": host,
            "operation": operation,
            "resource_type": "topic",
            "resource": topic,
        });
        let (allowed, decided_by, rule) = expected;
        let expected =
            json!({"allowed": allowed, "decided_by": decided_by, "rule": rule, "mode": "off"});
        let decided = ask(&mut client, "access.check", arguments).await;
        assert_eq!(decided, Ok(expected), "{principal} {operation} {topic}");
    }
    for (principal, operation, kind, said) in [
        ("alice", "READ", "topic", "User:alice"),
        ("Link:east", "READ", "topic", "link allowed"),
        ("User:alice", "fly", "topic", "no operation"),
        ("User:alice", "READ", "cluster", "no operation on a resource of type CLUSTER"),
        ("User:alice", "READ", "moon", "no type"),
    ] {
        let arguments = json!({
            "principal": principal,
            "host": "*",
            "operation": operation,
            "resource_type": kind,
            "resource": "x",
        });
        let (code, message) = ask(&mut client, "access.check", arguments).await.expect_err(said);
        assert_eq!(code, ErrorCode::InvalidRequest);
        assert!(message.contains(said), "{message}");
    }
}

#[tokio::test]
async fn credentials_are_given_to_nobody_over_a_connection_that_is_not_encrypted() {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("newer");
    let front = front_with(&broker, &["root"]);
    for user in ["root", "alice"] {
        let mut client = TestClient::connect_as(&front, &Principal::user(user));
        let refused = ask(&mut client, "access.credentials", json!({})).await;
        let (code, said) = refused.expect_err("somebody may listen");
        assert_eq!(code, ErrorCode::PolicyViolation);
        assert!(said.contains("over encrypted connections alone"), "{said}");
    }
}
