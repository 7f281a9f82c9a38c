//! Configs as clients of Kafka look for them.

use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribedConfig,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource, IncrementalAlterableConfig,
    ListConfigResourcesRequest,
};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

async fn client() -> TestClient {
    let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
    client.create_topic("t", 1).await;
    client
}

async fn described(client: &mut TestClient, kind: i8, name: &str) -> Vec<DescribedConfig> {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys: None,
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_documentation: true,
        ..Default::default()
    };
    client.call(4, request).await.results.remove(0).configs
}

#[tokio::test]
async fn a_node_tells_its_settings_under_kafkas_names() {
    let mut client = client().await;
    let configs = described(&mut client, RESOURCE_BROKER, "1").await;
    assert!(configs.is_sorted_by(|one, other| one.name < other.name), "each once");
    let value = |name: &str| {
        let found = configs.iter().find(|config| *config.name == *name);
        found.and_then(|config| config.value.as_deref())
    };
    for (name, expected) in [
        ("auto.create.topics.enable", "true"),
        ("default.replication.factor", "1"),
        ("group.consumer.session.timeout.ms", "45000"),
        ("group.max.session.timeout.ms", "1800000"),
        ("group.min.session.timeout.ms", "1"),
        ("log.cleanup.policy", "delete"),
        ("log.message.timestamp.type", "CreateTime"),
        ("log.retention.bytes", "-1"),
        ("log.retention.ms", "604800000"),
        ("message.max.bytes", "1048588"),
        ("offsets.retention.minutes", "10080"),
        ("transaction.max.timeout.ms", "900000"),
    ] {
        assert_eq!(value(name), Some(expected), "{name}");
    }
    assert!(configs.iter().all(|config| config.read_only && config.documentation.is_some()));
}

async fn alter(
    client: &mut TestClient,
    name: &str,
    operation: i8,
    value: Option<&str>,
) -> ErrorCode {
    let change = IncrementalAlterableConfig {
        name: name.into(),
        config_operation: operation,
        value: value.map(Str::from),
    };
    let resource = IncrementalAlterConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: "t".into(),
        configs: vec![change],
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    client.call(1, request).await.responses[0].error_code
}

#[tokio::test]
async fn changes_that_cannot_be_are_refused_as_kafka_refuses_them() {
    let mut client = client().await;
    for (name, operation, value, code) in [
        ("retention.ms", OPERATION_SET, Some("1"), ErrorCode::None),
        ("retention.ms", OPERATION_DELETE, None, ErrorCode::None),
        ("remote.storage.enable", OPERATION_SET, Some("true"), ErrorCode::InvalidConfig),
        // MirrorMaker clears what only its source has.
        ("remote.storage.enable", OPERATION_DELETE, None, ErrorCode::None),
        ("retention.ms", OPERATION_SET, None, ErrorCode::InvalidConfig),
        ("retention.ms", OPERATION_SET, Some("x"), ErrorCode::InvalidConfig),
        ("retention.ms", OPERATION_APPEND, Some("1"), ErrorCode::InvalidConfig),
        ("cleanup.policy", OPERATION_APPEND, Some("compact"), ErrorCode::None),
        ("cleanup.policy", OPERATION_SUBTRACT, Some("delete"), ErrorCode::None),
        ("cleanup.policy", 4, Some("delete"), ErrorCode::InvalidRequest),
    ] {
        let told = alter(&mut client, name, operation, value).await;
        assert_eq!(told, code, "{name} {operation} {value:?}");
    }
}

#[tokio::test]
async fn what_has_configs_is_listed() {
    let mut client = client().await;
    for (version, kinds, expected) in [
        (0, vec![], vec![]),
        (1, vec![], vec![(RESOURCE_TOPIC, "t"), (RESOURCE_BROKER, "1")]),
        (1, vec![RESOURCE_BROKER], vec![(RESOURCE_BROKER, "1")]),
        (1, vec![RESOURCE_CLIENT_METRICS, RESOURCE_GROUP], vec![]),
    ] {
        let request = ListConfigResourcesRequest { resource_types: kinds };
        let told = client.call(version, request).await;
        let listed: Vec<(i8, &str)> =
            told.config_resources.iter().map(|it| (it.resource_type, &*it.resource_name)).collect();
        assert_eq!((told.error_code, listed), (ErrorCode::None, expected));
    }
    let request = ListConfigResourcesRequest { resource_types: vec![99] };
    assert_eq!(client.call(1, request).await.error_code, ErrorCode::UnsupportedVersion);
}
