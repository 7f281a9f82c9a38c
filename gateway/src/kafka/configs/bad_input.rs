//! What DescribeConfigs and AlterConfigs say to requests that cannot be: the errors that Kafka gives.
//! IncrementalAlterConfigs and ListConfigResources have theirs among their tests.

use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResource, AlterableConfig, DescribeConfigsRequest,
    DescribeConfigsResource,
};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

async fn client() -> TestClient {
    let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
    client.create_topic_with("t", 1, &[("retention.ms", "5000")]).await;
    client
}

#[tokio::test]
async fn descriptions() {
    let mut client = client().await;
    let (none, invalid) = (ErrorCode::None, ErrorCode::InvalidRequest);
    let long = "x".repeat(250);
    for (what, kind, name, keys, code, count) in [
        ("well", RESOURCE_TOPIC, "t", Some(vec!["retention.ms"]), none, Some(1)),
        ("all, as none is named", RESOURCE_TOPIC, "t", Some(vec![]), none, None),
        ("what there is not", RESOURCE_TOPIC, "t", Some(vec!["no.such"]), none, Some(0)),
        ("no topic", RESOURCE_TOPIC, "none", None, ErrorCode::UnknownTopicOrPartition, Some(0)),
        ("no name", RESOURCE_TOPIC, "", None, ErrorCode::InvalidTopicException, Some(0)),
        ("an illegal name", RESOURCE_TOPIC, "a/b", None, ErrorCode::InvalidTopicException, Some(0)),
        ("too long a name", RESOURCE_TOPIC, &long, None, ErrorCode::InvalidTopicException, Some(0)),
        ("the node", RESOURCE_BROKER, "1", None, none, None),
        ("another node", RESOURCE_BROKER, "2", None, invalid, Some(0)),
        ("no number", RESOURCE_BROKER, "one", None, invalid, Some(0)),
        ("a negative number", RESOURCE_BROKER, "-1", None, invalid, Some(0)),
        ("loggers of no node", RESOURCE_BROKER_LOGGER, "", None, invalid, Some(0)),
        ("metrics without a name", RESOURCE_CLIENT_METRICS, "", None, invalid, Some(0)),
        ("the group without a name", RESOURCE_GROUP, "", None, invalid, Some(0)),
        ("no kind", 0, "t", None, invalid, Some(0)),
        ("a kind to come", 64, "t", None, invalid, Some(0)),
        ("a negative kind", -1, "t", None, invalid, Some(0)),
    ] {
        let resource = DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.into(),
            configuration_keys: keys.map(|keys| keys.into_iter().map(Str::from).collect()),
        };
        for version in [1, 4] {
            let resources = vec![resource.clone()];
            let request = DescribeConfigsRequest { resources, ..Default::default() };
            let told = client.call(version, request).await.results.remove(0);
            assert_eq!(told.error_code, code, "{what}");
            match count {
                Some(count) => assert_eq!(told.configs.len(), count, "{what}"),
                None => assert!(told.configs.len() > 9, "{what}"),
            }
        }
    }
}

#[tokio::test]
async fn alterations() {
    let mut client = client().await;
    let invalid = ErrorCode::InvalidRequest;
    let good = || vec![("retention.ms", Some("6000"))];
    for (what, kind, name, configs, code) in [
        ("no topic", RESOURCE_TOPIC, "none", good(), ErrorCode::UnknownTopicOrPartition),
        ("no name", RESOURCE_TOPIC, "", good(), invalid),
        ("an illegal name", RESOURCE_TOPIC, "a/b", good(), ErrorCode::InvalidTopicException),
        ("no value", RESOURCE_TOPIC, "t", vec![("retention.ms", None)], invalid),
        ("twice", RESOURCE_TOPIC, "t", [good(), good()].concat(), invalid),
        (
            "no such config",
            RESOURCE_TOPIC,
            "t",
            vec![("no.such", Some("1"))],
            ErrorCode::InvalidConfig,
        ),
        (
            "no number",
            RESOURCE_TOPIC,
            "t",
            vec![("retention.ms", Some("soon"))],
            ErrorCode::InvalidConfig,
        ),
        (
            "too small a number",
            RESOURCE_TOPIC,
            "t",
            vec![("retention.ms", Some("-2"))],
            ErrorCode::InvalidConfig,
        ),
        (
            "one good, one bad",
            RESOURCE_TOPIC,
            "t",
            [good(), vec![("cleanup.policy", Some("burn"))]].concat(),
            ErrorCode::InvalidConfig,
        ),
        ("one node", RESOURCE_BROKER, "1", vec![("log.retention.ms", Some("1"))], invalid),
        ("another node", RESOURCE_BROKER, "2", good(), invalid),
        ("no number of a node", RESOURCE_BROKER, "one", good(), invalid),
        ("by a topic's name", RESOURCE_BROKER, "", good(), invalid),
        ("loggers, in the old way", RESOURCE_BROKER_LOGGER, "1", good(), invalid),
        ("no kind", 0, "t", good(), invalid),
        ("a kind to come", 64, "t", good(), invalid),
    ] {
        let config = |(name, value): (&str, Option<&str>)| AlterableConfig {
            name: name.into(),
            value: value.map(Str::from),
        };
        let resource = AlterConfigsResource {
            resource_type: kind,
            resource_name: name.into(),
            configs: configs.into_iter().map(config).collect(),
        };
        for resources in [vec![resource.clone()], vec![resource.clone(), resource]] {
            // Who is named twice is refused for that.
            let code = if resources.len() > 1 { invalid } else { code };
            let request = AlterConfigsRequest { resources, ..Default::default() };
            let told = client.call(2, request).await.responses;
            assert!(told.iter().all(|it| it.error_code == code), "{what}: {told:?}");
        }
    }
    assert_eq!(retention_ms(&mut client).await.as_deref(), Some("5000"), "nothing was changed");
}

/// What topic `t` has.
async fn retention_ms(client: &mut TestClient) -> Option<Str> {
    let resource = DescribeConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: "t".into(),
        configuration_keys: Some(vec!["retention.ms".into()]),
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    client.call(4, request).await.results.remove(0).configs.remove(0).value
}
