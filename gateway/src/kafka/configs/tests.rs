//! Configs as clients of Kafka look for them.

use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribedConfig,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource, IncrementalAlterableConfig,
    ListConfigResourcesRequest,
};

use super::alter::{OPERATION_APPEND, OPERATION_DELETE, OPERATION_SET, OPERATION_SUBTRACT};
use super::*;
use crate::kafka::access::Authorization;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

async fn client() -> TestClient {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
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
        ("advertised.listeners", "PLAINTEXT://host-1:9092"),
        ("allow.everyone.if.no.acl.found", "false"),
        ("authorizer.class.name", ""),
        ("auto.create.topics.enable", "true"),
        ("broker.rack", "dc-a"),
        ("default.replication.factor", "1"),
        ("delete.topic.enable", "true"),
        ("group.consumer.session.timeout.ms", "45000"),
        ("group.max.session.timeout.ms", "1800000"),
        ("group.min.session.timeout.ms", "1"),
        ("listeners", "PLAINTEXT://host-1:9092"),
        ("log.cleaner.enable", "true"),
        ("log.cleaner.threads", "1"),
        ("log.cleanup.policy", "delete"),
        ("log.dirs", "journal"),
        ("log.message.timestamp.type", "CreateTime"),
        ("log.retention.bytes", "-1"),
        ("log.retention.hours", "168"),
        ("log.retention.minutes", "10080"),
        ("log.retention.ms", "604800000"),
        ("log.segment.bytes", "1073741824"),
        ("message.max.bytes", "1048588"),
        ("num.partitions", "1"),
        ("offsets.retention.minutes", "10080"),
        ("offsets.topic.replication.factor", "1"),
        ("transaction.max.timeout.ms", "900000"),
    ] {
        assert_eq!(value(name), Some(expected), "{name}");
    }
    assert!(configs.iter().all(|config| config.read_only && config.documentation.is_some()));
}

/// As of Kafka, where nobody has set anything.
#[tokio::test]
async fn tools_see_whether_there_are_access_rules() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    for (mode, expected) in [
        (Authorization::Off, ""),
        (Authorization::Report, "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ] {
        let change = RowChange {
            kind: RowKind::Authorization,
            key: Authorization::KEY.to_vec(),
            value: Some(mode.encode()),
            expected: ExpectedVersion::Any,
        };
        broker.decide(Command::PutRows(vec![change]));
        let configs = described(&mut client, RESOURCE_BROKER, "1").await;
        let named = configs.iter().find(|it| *it.name == *"authorizer.class.name");
        assert_eq!(named.and_then(|it| it.value.as_deref()), Some(expected), "{mode:?}");
    }
}

#[tokio::test]
async fn groups_loggers_and_metrics_of_clients_are_described() {
    let mut client = client().await;
    for (kind, name, expected) in [
        (
            RESOURCE_GROUP,
            "any",
            vec![
                ("consumer.heartbeat.interval.ms", "5000", SOURCE_DEFAULT),
                ("consumer.session.timeout.ms", "45000", SOURCE_DEFAULT),
                ("share.auto.offset.reset", "latest", SOURCE_DEFAULT),
                ("share.delivery.count.limit", "5", SOURCE_DEFAULT),
                ("share.heartbeat.interval.ms", "5000", SOURCE_DEFAULT),
                ("share.isolation.level", "read_uncommitted", SOURCE_DEFAULT),
                ("share.partition.max.record.locks", "2000", SOURCE_DEFAULT),
                ("share.record.lock.duration.ms", "30000", SOURCE_DEFAULT),
                ("share.renew.acknowledge.enable", "true", SOURCE_DEFAULT),
                ("share.session.timeout.ms", "45000", SOURCE_DEFAULT),
            ],
        ),
        (
            RESOURCE_CLIENT_METRICS,
            "any",
            vec![
                ("interval.ms", "300000", SOURCE_DEFAULT),
                ("match", "", SOURCE_DEFAULT),
                ("metrics", "", SOURCE_DEFAULT),
            ],
        ),
    ] {
        let configs = described(&mut client, kind, name).await;
        let told: Vec<_> = configs
            .iter()
            .map(|it| (&*it.name, it.value.as_deref().unwrap_or_default(), it.config_source))
            .collect();
        assert_eq!(told, expected);
    }
    let loggers = described(&mut client, RESOURCE_BROKER_LOGGER, "1").await;
    assert_eq!(loggers.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["root"]);
    for (kind, name, operation, value, code) in [
        (RESOURCE_GROUP, "any", OPERATION_SET, Some("1"), ErrorCode::InvalidConfig),
        (RESOURCE_GROUP, "any", OPERATION_SET, Some("soon"), ErrorCode::InvalidConfig),
        (RESOURCE_GROUP, "any", OPERATION_DELETE, None, ErrorCode::None),
        (RESOURCE_GROUP, "", OPERATION_DELETE, None, ErrorCode::InvalidRequest),
        (RESOURCE_BROKER_LOGGER, "1", OPERATION_SET, Some("DEBUG"), ErrorCode::InvalidRequest),
        (RESOURCE_BROKER_LOGGER, "2", OPERATION_DELETE, None, ErrorCode::InvalidRequest),
        (RESOURCE_CLIENT_METRICS, "any", OPERATION_SET, Some("1"), ErrorCode::InvalidRequest),
    ] {
        let changes = vec![change("consumer.session.timeout.ms", operation, value)];
        let told = alter_all(&mut client, vec![resource(kind, name, changes)]).await;
        assert_eq!(told, [code], "{kind} {name} {operation}");
    }
}

#[tokio::test]
async fn a_group_has_configs_of_its_own() {
    let mut client = client().await;
    let set = |heartbeat: &str, session: &str| {
        let changes = vec![
            change("consumer.heartbeat.interval.ms", OPERATION_SET, Some(heartbeat)),
            change("consumer.session.timeout.ms", OPERATION_SET, Some(session)),
        ];
        vec![resource(RESOURCE_GROUP, "g", changes)]
    };
    let codes = alter_all(&mut client, set("3000", "3000")).await;
    assert_eq!(codes, [ErrorCode::InvalidConfig], "a member would never be in time");
    assert_eq!(alter_all(&mut client, set("300", "3000")).await, [ErrorCode::None]);
    let mut values = async |group: &str| {
        let configs = described(&mut client, RESOURCE_GROUP, group).await;
        let value = |it: DescribedConfig| (it.value.unwrap_or_default(), it.config_source);
        configs.into_iter().take(2).map(value).collect::<Vec<_>>()
    };
    let own = groups::SOURCE_GROUP;
    assert_eq!(values("g").await, [("300".into(), own), ("3000".into(), own)]);
    let default = SOURCE_DEFAULT;
    assert_eq!(values("h").await, [("5000".into(), default), ("45000".into(), default)]);
    let request = ListConfigResourcesRequest { resource_types: vec![RESOURCE_GROUP] };
    let listed = client.call(1, request).await.config_resources;
    assert_eq!(listed.iter().map(|it| &*it.resource_name).collect::<Vec<_>>(), ["g"]);

    let changes = vec![change("consumer.heartbeat.interval.ms", OPERATION_DELETE, None)];
    let codes = alter_all(&mut client, vec![resource(RESOURCE_GROUP, "g", changes)]).await;
    assert_eq!(codes, [ErrorCode::InvalidConfig], "that of all groups is longer");
    let changes = ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"];
    let changes = changes.map(|name| change(name, OPERATION_DELETE, None)).to_vec();
    let codes = alter_all(&mut client, vec![resource(RESOURCE_GROUP, "g", changes)]).await;
    assert_eq!(codes, [ErrorCode::None]);
    let listed = client.call(1, ListConfigResourcesRequest::default()).await.config_resources;
    assert!(listed.iter().all(|it| it.resource_type != RESOURCE_GROUP));
}

fn change(name: &str, operation: i8, value: Option<&str>) -> IncrementalAlterableConfig {
    IncrementalAlterableConfig {
        name: name.into(),
        config_operation: operation,
        value: value.map(Str::from),
    }
}

fn resource(
    kind: i8,
    name: &str,
    configs: Vec<IncrementalAlterableConfig>,
) -> IncrementalAlterConfigsResource {
    IncrementalAlterConfigsResource { resource_type: kind, resource_name: name.into(), configs }
}

async fn alter_all(
    client: &mut TestClient,
    resources: Vec<IncrementalAlterConfigsResource>,
) -> Vec<ErrorCode> {
    let request = IncrementalAlterConfigsRequest { resources, ..Default::default() };
    let told = client.call(1, request).await.responses;
    told.iter().map(|it| it.error_code).collect()
}

async fn alter(
    client: &mut TestClient,
    name: &str,
    operation: i8,
    value: Option<&str>,
) -> ErrorCode {
    let change = change(name, operation, value);
    alter_all(client, vec![resource(RESOURCE_TOPIC, "t", vec![change])]).await[0]
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
        ("retention.ms", OPERATION_SET, None, ErrorCode::InvalidRequest),
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
async fn requests_that_cannot_be_are_refused_as_kafka_refuses_them() {
    let mut client = client().await;
    let set = |name: &str| change(name, OPERATION_SET, Some("1000"));
    let good = || vec![set("retention.ms")];
    for (what, kind, name, changes, code) in [
        ("well", RESOURCE_TOPIC, "t", good(), ErrorCode::None),
        ("no topic", RESOURCE_TOPIC, "none", good(), ErrorCode::UnknownTopicOrPartition),
        ("no kind", 99, "t", good(), ErrorCode::InvalidRequest),
        (
            "one node",
            RESOURCE_BROKER,
            "1",
            vec![set("log.retention.ms")],
            ErrorCode::InvalidRequest,
        ),
        (
            "no node",
            RESOURCE_BROKER,
            "one",
            vec![set("log.retention.ms")],
            ErrorCode::InvalidRequest,
        ),
        ("by a topic's name", RESOURCE_BROKER, "", good(), ErrorCode::InvalidRequest),
        ("fixed", RESOURCE_BROKER, "", vec![set("num.partitions")], ErrorCode::InvalidRequest),
        (
            "a bad default",
            RESOURCE_BROKER,
            "",
            vec![change("log.retention.ms", OPERATION_SET, Some("soon"))],
            ErrorCode::InvalidRequest,
        ),
        ("twice", RESOURCE_TOPIC, "t", [good(), good()].concat(), ErrorCode::InvalidRequest),
    ] {
        let told = alter_all(&mut client, vec![resource(kind, name, changes)]).await;
        assert_eq!(told, [code], "{what}");
    }
    let twice = vec![resource(RESOURCE_TOPIC, "t", good()), resource(RESOURCE_TOPIC, "t", good())];
    assert_eq!(alter_all(&mut client, twice).await, [ErrorCode::InvalidRequest; 2]);
}

#[tokio::test]
async fn what_topics_have_by_default_is_set_for_all_of_them() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    client.create_topic("own", 1).await;
    let own = vec![change("retention.ms", OPERATION_SET, Some("7"))];
    let all = vec![
        change("log.retention.ms", OPERATION_SET, Some("5000")),
        change("log.cleanup.policy", OPERATION_APPEND, Some("compact")),
    ];
    let resources = vec![resource(RESOURCE_TOPIC, "own", own), resource(RESOURCE_BROKER, "", all)];
    assert_eq!(alter_all(&mut client, resources).await, [ErrorCode::None; 2]);

    let mut found = async |kind, name: &str, config: &str| {
        let configs = described(&mut client, kind, name).await;
        let config = configs.into_iter().find(|it| *it.name == *config)?;
        Some((config.value?.to_string(), config.config_source))
    };
    let told = |value: &str, source| Some((value.to_owned(), source));
    for (kind, name, config, expected) in [
        (RESOURCE_TOPIC, "t", "retention.ms", told("5000", defaults::SOURCE_CLUSTER)),
        (RESOURCE_TOPIC, "t", "cleanup.policy", told("delete,compact", defaults::SOURCE_CLUSTER)),
        (RESOURCE_TOPIC, "own", "retention.ms", told("7", SOURCE_TOPIC)),
        (RESOURCE_TOPIC, "t", "retention.bytes", told("-1", SOURCE_DEFAULT)),
        (RESOURCE_BROKER, "1", "log.retention.ms", told("5000", defaults::SOURCE_CLUSTER)),
        (RESOURCE_BROKER, "", "log.retention.ms", told("5000", defaults::SOURCE_CLUSTER)),
        // Only what is set is told of the cluster as a whole.
        (RESOURCE_BROKER, "", "log.retention.bytes", None),
    ] {
        assert_eq!(found(kind, name, config).await, expected, "{kind} {name} {config}");
    }
    {
        let metadata = broker.state();
        let topic = |name| metadata.topic_named(name).unwrap().id;
        assert_eq!(metadata.topic_config(topic("t"), "retention.ms"), Some("5000"));
        assert_eq!(metadata.topic_config(topic("own"), "retention.ms"), Some("7"));
        assert!(crate::meta::is_compacted(&metadata, topic("t")));
    }

    let unset = vec![change("log.retention.ms", OPERATION_DELETE, None)];
    let told = alter_all(&mut client, vec![resource(RESOURCE_BROKER, "", unset)]).await;
    assert_eq!(told, [ErrorCode::None]);
    let metadata = broker.state();
    let topic = metadata.topic_named("t").unwrap().id;
    assert_eq!(metadata.topic_config(topic, "retention.ms"), None);
}

#[tokio::test]
async fn the_clusters_own_topics_have_their_own_configs() {
    use meridian_protocol::messages::FindCoordinatorRequest;
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    client.call(4, find).await;
    let all = vec![change("log.retention.ms", OPERATION_SET, Some("5000"))];
    alter_all(&mut client, vec![resource(RESOURCE_BROKER, "", all)]).await;
    let configs = described(&mut client, RESOURCE_TOPIC, "__consumer_offsets").await;
    let config = configs.iter().find(|it| &*it.name == "retention.ms").unwrap();
    assert_eq!(
        (config.value.as_deref(), config.config_source),
        (Some("604800000"), SOURCE_DEFAULT)
    );
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

#[tokio::test]
async fn what_no_write_to_a_topic_in_parts_would_reach_is_refused() {
    let mut client = TestClient::connect(&front_of(&FakeBroker::eight_racks(), quick_config()));
    client.create_topic_with("parts", 1, &[("meridian.storage.class", "block-4-2")]).await;
    client.create_topic("t", 1).await;
    let set = |name: &str, value: &str| IncrementalAlterableConfig {
        name: name.into(),
        config_operation: OPERATION_SET,
        value: Some(value.into()),
    };
    let mut alter = async |kind: i8, name: &str, change| {
        let altered = IncrementalAlterConfigsResource {
            resource_type: kind,
            resource_name: name.into(),
            configs: vec![change],
        };
        let request =
            IncrementalAlterConfigsRequest { resources: vec![altered], validate_only: false };
        let told = client.call(1, request).await.responses.remove(0);
        told.error_message.map_or_else(String::new, |text| text.to_string())
    };
    let wide = || set("min.insync.datacenters", "2");
    let told = alter(RESOURCE_BROKER, "", wide()).await;
    assert!(told.starts_with("topic parts: ") && told.contains("set that to 1"), "{told}");
    let told = alter(RESOURCE_BROKER, "", set("log.cleanup.policy", "compact")).await;
    assert!(told.starts_with("topic parts: "), "{told}");
    // What a topic says itself goes before what all say.
    assert_eq!(alter(RESOURCE_TOPIC, "parts", set("min.insync.datacenters", "1")).await, "");
    assert_eq!(alter(RESOURCE_BROKER, "", wide()).await, "");
    let told = alter(RESOURCE_TOPIC, "t", set("meridian.storage.class", "block-4-2")).await;
    assert!(told.contains("set that to 1"), "{told}");
    let told = alter(RESOURCE_TOPIC, "parts", set("min.insync.datacenters", "3")).await;
    assert!(told.contains("set that to 1"), "{told}");
}
