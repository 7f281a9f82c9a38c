use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResource, AlterableConfig, CreatableReplicaAssignment,
    CreatePartitionsAssignment, DescribeClusterRequest, DescribeConfigsRequest,
    DescribeConfigsResource, DescribeTopicPartitionsRequest, DescribedConfig,
    DescribedTopicPartition, FindCoordinatorRequest, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource, IncrementalAlterableConfig, InitProducerIdRequest,
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, MetadataRequest,
    MetadataRequestTopic,
};
use proptest::prelude::*;

use super::*;
use crate::kafka::lock;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
use crate::meta::ProposeError;

fn topic(name: &str) -> CreatableTopic {
    CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    }
}

fn config(name: &str, value: Option<&str>) -> CreatableTopicConfig {
    CreatableTopicConfig { name: name.into(), value: value.map(Str::from) }
}

fn three() -> (std::sync::Arc<FakeBroker>, TestClient) {
    let broker = FakeBroker::three_datacenters();
    let client = TestClient::connect(&front_of(&broker, quick_config()));
    (broker, client)
}

#[tokio::test]
async fn topics_are_created_with_ids_and_leaders_everywhere() {
    let (broker, mut client) = three();
    for version in 0..=7 {
        let name = format!("topic-{version}");
        let topic = CreatableTopic { num_partitions: 3, replication_factor: 3, ..topic(&name) };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let response = client.call(version, request).await;
        assert_eq!(response.topics[0].error_code, ErrorCode::None, "version {version}");
        if version == 7 {
            assert_eq!(response.topics[0].topic_id, broker.topic_uuid(&name));
            assert_eq!(response.topics[0].replication_factor, 3);
        }
    }
    for version in 0..=13 {
        let all = MetadataRequest {
            topics: if version == 0 { Some(Vec::new()) } else { None },
            ..Default::default()
        };
        let response = client.call(version, all).await;
        assert_eq!((response.brokers.len(), response.topics.len()), (3, 8), "version {version}");
        let partitions = &response.topics[0].partitions;
        let mut leaders: Vec<i32> = partitions.iter().map(|it| it.leader_id).collect();
        leaders.sort_unstable();
        assert_eq!(leaders, [1, 2, 3]);
        assert!(partitions.iter().all(|it| it.replica_nodes.len() == 3));
        if version > 0 {
            assert_eq!(response.brokers[1].rack.as_deref(), Some("dc-b"));
        }
    }
}

#[tokio::test]
async fn what_cannot_be_created_is_refused_by_its_own_code() {
    let (_broker, mut client) = three();
    client.create_topic("taken.name", 1).await;
    let assignment = |partition_index, broker: i32| CreatableReplicaAssignment {
        partition_index,
        broker_ids: vec![broker],
    };
    let assigned = |assignments| CreatableTopic { num_partitions: -1, assignments, ..topic("new") };
    let cases = [
        (topic(""), ErrorCode::InvalidTopicException),
        (topic("."), ErrorCode::InvalidTopicException),
        (topic(".."), ErrorCode::InvalidTopicException),
        (topic("../etc"), ErrorCode::InvalidTopicException),
        (topic("nul\0"), ErrorCode::InvalidTopicException),
        (topic("\u{430}bc"), ErrorCode::InvalidTopicException),
        (topic(&"x".repeat(250)), ErrorCode::InvalidTopicException),
        (topic("__consumer_offsets"), ErrorCode::InvalidTopicException),
        (topic("__transaction_state"), ErrorCode::InvalidTopicException),
        (topic("__cluster_metadata"), ErrorCode::InvalidTopicException),
        (topic("__seed.1"), ErrorCode::InvalidTopicException),
        (topic("taken_name"), ErrorCode::InvalidTopicException),
        (topic("taken.name"), ErrorCode::TopicAlreadyExists),
        (CreatableTopic { num_partitions: 0, ..topic("new") }, ErrorCode::InvalidPartitions),
        (CreatableTopic { num_partitions: -7, ..topic("new") }, ErrorCode::InvalidPartitions),
        (CreatableTopic { num_partitions: i32::MAX, ..topic("new") }, ErrorCode::InvalidPartitions),
        (
            CreatableTopic { replication_factor: 4, ..topic("new") },
            ErrorCode::InvalidReplicationFactor,
        ),
        (
            CreatableTopic { configs: vec![config("no.such", Some("1"))], ..topic("new") },
            ErrorCode::InvalidConfig,
        ),
        (
            CreatableTopic { configs: vec![config("retention.ms", None)], ..topic("new") },
            ErrorCode::InvalidConfig,
        ),
        (assigned(vec![assignment(1, 1)]), ErrorCode::InvalidReplicaAssignment),
        (assigned(vec![assignment(0, 9)]), ErrorCode::InvalidReplicaAssignment),
        (assigned(vec![assignment(0, 1), assignment(0, 1)]), ErrorCode::InvalidReplicaAssignment),
    ];
    for (topic, code) in cases {
        let name = topic.name.clone();
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let told = client.call(7, request).await.topics[0].clone();
        assert_eq!(told.error_code, code, "{name:?}");
        assert!(told.error_message.is_some(), "{name:?} is explained");
    }
    // Kafka reserves no more than its own names.
    client.create_topic("__debezium-heartbeat.server", 1).await;
    let twice = CreateTopicsRequest { topics: vec![topic("x"), topic("x")], ..Default::default() };
    let told = client.call(7, twice).await.topics;
    assert!(told.iter().all(|topic| topic.error_code == ErrorCode::InvalidRequest));
    let request = CreateTopicsRequest {
        topics: vec![assigned(vec![assignment(0, 2)])],
        ..Default::default()
    };
    assert_eq!(client.call(7, request).await.topics[0].error_code, ErrorCode::None);
}

#[tokio::test]
async fn validating_creates_nothing() {
    let (broker, mut client) = three();
    let request =
        CreateTopicsRequest { topics: vec![topic("t")], validate_only: true, ..Default::default() };
    assert_eq!(client.call(7, request).await.topics[0].error_code, ErrorCode::None);
    assert!(broker.state().topic_named("t").is_none());
}

#[tokio::test]
async fn asking_for_a_topic_creates_it_if_it_may() {
    let (broker, mut client) = three();
    let ask = |name: &str, allow_auto_topic_creation| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { name: Some(name.into()), ..Default::default() }]),
        allow_auto_topic_creation,
        ..Default::default()
    };
    for (name, allow, code) in [
        ("new", false, ErrorCode::UnknownTopicOrPartition),
        ("new", true, ErrorCode::None),
        ("bad name", true, ErrorCode::InvalidTopicException),
        ("__mine", true, ErrorCode::None),
        ("__transaction_state", true, ErrorCode::UnknownTopicOrPartition),
    ] {
        let response = client.call(12, ask(name, allow)).await;
        assert_eq!(response.topics[0].error_code, code, "{name}");
    }
    // Java's consumers leave the name empty, not null.
    for name in [None, Some("".into())] {
        let by_id = |topic_id| MetadataRequest {
            topics: Some(vec![MetadataRequestTopic { topic_id, name: name.clone() }]),
            ..Default::default()
        };
        let response = client.call(12, by_id(broker.topic_uuid("new"))).await;
        assert_eq!(response.topics[0].name.as_deref(), Some("new"));
        let response = client.call(12, by_id(Uuid([7; 16]))).await;
        assert_eq!(response.topics[0].error_code, ErrorCode::UnknownTopicId);
    }
}

#[tokio::test]
async fn topics_grow_and_are_deleted() {
    let (broker, mut client) = three();
    client.create_topic("t", 2).await;
    let grow = |count| CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic { name: "t".into(), count, assignments: None }],
        ..Default::default()
    };
    assert_eq!(client.call(3, grow(5)).await.results[0].error_code, ErrorCode::None);
    assert_eq!(broker.state().topic_named("t").unwrap().partitions.len(), 5);
    let assignments = Some(vec![CreatePartitionsAssignment { broker_ids: vec![3] }]);
    let topics = vec![CreatePartitionsTopic { name: "t".into(), count: 6, assignments }];
    let request = CreatePartitionsRequest { topics, ..Default::default() };
    assert_eq!(client.call(3, request).await.results[0].error_code, ErrorCode::None);
    {
        let metadata = broker.state();
        let topic = metadata.topic_named("t").unwrap();
        let last = metadata.partition_at(topic.id, 5).unwrap().1;
        assert_eq!(last.leader, NodeId::new(3));
    }

    let delete = |topic_id| DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name: None, topic_id }],
        ..Default::default()
    };
    let id = broker.topic_uuid("t");
    let by_id = client.call(6, delete(id)).await;
    assert_eq!(by_id.responses[0].error_code, ErrorCode::None);
    assert_eq!(by_id.responses[0].name.as_deref(), Some("t"));
    let again = client.call(6, delete(id)).await;
    assert_eq!(again.responses[0].error_code, ErrorCode::UnknownTopicId);
    let by_name = DeleteTopicsRequest { topic_names: vec!["t".into()], ..Default::default() };
    let again = client.call(3, by_name).await;
    assert_eq!(again.responses[0].error_code, ErrorCode::UnknownTopicOrPartition);
}

#[tokio::test]
async fn configs_are_described_and_altered() {
    let (_broker, mut client) = three();
    client.create_topic("t", 1).await;
    let alter = |name: &str, config_operation, value: Option<&str>| {
        let change = IncrementalAlterableConfig {
            name: name.into(),
            config_operation,
            value: value.map(Str::from),
        };
        let resource = IncrementalAlterConfigsResource {
            resource_type: 2,
            resource_name: "t".into(),
            configs: vec![change],
        };
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    for (name, operation, value, code) in [
        ("retention.ms", 0, Some("5000"), ErrorCode::None),
        ("cleanup.policy", 2, Some("compact"), ErrorCode::None),
        ("cleanup.policy", 3, Some("delete"), ErrorCode::None),
        ("retention.ms", 2, Some("1"), ErrorCode::InvalidConfig),
        ("retention.ms", 0, Some("soon"), ErrorCode::InvalidConfig),
        ("retention.ms", 0, None, ErrorCode::InvalidRequest),
        ("no.such", 0, Some("1"), ErrorCode::InvalidConfig),
        ("retention.ms", 9, Some("1"), ErrorCode::InvalidRequest),
    ] {
        let told = client.call(1, alter(name, operation, value)).await.responses[0].error_code;
        assert_eq!(told, code, "{name} {operation} {value:?}");
    }
    let describe = |resource_type, name: &str| DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type,
            resource_name: name.into(),
            configuration_keys: None,
        }],
        include_synonyms: true,
        ..Default::default()
    };
    let value_of = |configs: &[DescribedConfig], name: &str| {
        let found = configs.iter().find(|config| *config.name == *name).expect("described");
        (found.value.as_deref().unwrap_or_default().to_owned(), found.config_source)
    };
    let configs = client.call(4, describe(2, "t")).await.results[0].configs.clone();
    assert_eq!(value_of(&configs, "retention.ms"), ("5000".to_owned(), configs::SOURCE_TOPIC));
    assert_eq!(value_of(&configs, "cleanup.policy").0, "compact");
    assert_eq!(value_of(&configs, "segment.bytes").1, configs::SOURCE_DEFAULT);
    let synonyms =
        configs.iter().find(|it| &*it.name == "retention.ms").map(|it| it.synonyms.len());
    assert_eq!(synonyms, Some(2));

    // The old way replaces everything.
    let set = AlterableConfig { name: "max.message.bytes".into(), value: Some("100".into()) };
    let resource =
        AlterConfigsResource { resource_type: 2, resource_name: "t".into(), configs: vec![set] };
    let replace = AlterConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(client.call(2, replace).await.responses[0].error_code, ErrorCode::None);
    let configs = client.call(4, describe(2, "t")).await.results[0].configs.clone();
    assert_eq!(value_of(&configs, "max.message.bytes").0, "100");
    assert_eq!(value_of(&configs, "retention.ms").1, configs::SOURCE_DEFAULT);

    let node = client.call(4, describe(4, "1")).await.results[0].configs.clone();
    assert_eq!(value_of(&node, "num.partitions").0, "1");
}

#[tokio::test]
async fn only_what_there_is_has_configs() {
    let (_broker, mut client) = three();
    let describe = |resource_type, name: &str| DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type,
            resource_name: name.into(),
            configuration_keys: None,
        }],
        ..Default::default()
    };
    for (kind, name, code) in [
        (4, "2", ErrorCode::InvalidRequest),
        (2, "nope", ErrorCode::UnknownTopicOrPartition),
        (8, "x", ErrorCode::InvalidRequest),
    ] {
        let told = client.call(4, describe(kind, name)).await.results[0].error_code;
        assert_eq!(told, code, "{kind} {name}");
    }
}

#[tokio::test]
async fn partitions_are_described_page_by_page() {
    let (_broker, mut client) = three();
    client.create_topic("a", 3).await;
    client.create_topic("b", 2).await;
    let mut cursor = None;
    let mut seen = Vec::new();
    loop {
        let request = DescribeTopicPartitionsRequest {
            response_partition_limit: 2,
            cursor,
            ..Default::default()
        };
        let response = client.call(0, request).await;
        for topic in &response.topics {
            let name = topic.name.as_deref().unwrap_or_default();
            seen.extend(topic.partitions.iter().map(|it| format!("{name}-{}", it.partition_index)));
            // Java's admin client fails on null.
            let elrs = |it: &DescribedTopicPartition| {
                (it.eligible_leader_replicas.is_some(), it.last_known_elr.is_some())
            };
            assert!(topic.partitions.iter().map(elrs).all(|known| known == (true, true)));
        }
        cursor = response.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["a-0", "a-1", "a-2", "b-0", "b-1"]);
}

#[tokio::test]
async fn without_a_majority_of_voters_clients_are_told_to_try_again() {
    let (broker, mut client) = three();
    client.create_topic("t", 1).await;
    *lock(&broker.refusal) = Some(ProposeError::TimedOut);
    let request = CreateTopicsRequest { topics: vec![topic("new")], ..Default::default() };
    let told = client.call(7, request).await.topics[0].error_code;
    assert_eq!(told, ErrorCode::RequestTimedOut);
    let told = client.call(4, InitProducerIdRequest::default()).await.error_code;
    assert_eq!(told, ErrorCode::CoordinatorNotAvailable);
    let group = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    let told = client.call(4, group).await.coordinators[0].error_code;
    assert_eq!(told, ErrorCode::CoordinatorNotAvailable);
    assert!(!client.call(12, MetadataRequest::default()).await.topics.is_empty());
}

#[tokio::test]
async fn what_must_not_be_old_is_not_told_by_a_node_that_cannot_ask() {
    let (broker, mut client) = three();
    client.create_topic("t", 1).await;
    *lock(&broker.refusal) = Some(ProposeError::TimedOut);
    let resource = DescribeConfigsResource {
        resource_type: 2,
        resource_name: "t".into(),
        ..Default::default()
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let told = client.call(4, request).await.results[0].error_code;
    assert_eq!(told, ErrorCode::RequestTimedOut);
    let timestamp = ListOffsetsPartition::TIMESTAMP_LATEST;
    let partition = ListOffsetsPartition { timestamp, ..Default::default() };
    let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
    let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
    let told = client.call(9, request).await.topics[0].partitions[0].error_code;
    assert_eq!(told, ErrorCode::NotLeaderOrFollower);
}

#[tokio::test]
async fn topics_are_neither_there_nor_absent_for_a_node_that_cannot_ask() {
    let (broker, mut client) = three();
    client.create_topic("t", 1).await;
    *lock(&broker.refusal) = Some(ProposeError::TimedOut);
    let request = CreateTopicsRequest { topics: vec![topic("t")], ..Default::default() };
    let told = client.call(7, request).await.topics[0].error_code;
    assert_eq!(told, ErrorCode::RequestTimedOut, "another node may have deleted it");
    let names = vec!["none".into()];
    let request = DeleteTopicsRequest { topic_names: names, ..Default::default() };
    let told = client.call(5, request).await.responses[0].error_code;
    assert_eq!(told, ErrorCode::RequestTimedOut, "another node may have created it");
    let missing = CreatePartitionsTopic { name: "none".into(), count: 9, ..Default::default() };
    let request = CreatePartitionsRequest { topics: vec![missing], ..Default::default() };
    let told = client.call(3, request).await.results[0].error_code;
    assert_eq!(told, ErrorCode::RequestTimedOut, "another node may have created it");
}

#[tokio::test]
async fn producer_ids_are_never_given_twice() {
    let (_broker, mut client) = three();
    let mut ids = BTreeSet::new();
    for _ in 0..2500 {
        let told = client.call(4, InitProducerIdRequest::default()).await;
        assert_eq!((told.error_code, told.producer_epoch), (ErrorCode::None, 0));
        assert!(ids.insert(told.producer_id), "{} again", told.producer_id);
    }
}

#[tokio::test]
async fn the_cluster_is_described() {
    let (broker, mut client) = three();
    broker.mark(2, meridian_consensus::command::Liveness::Dead);
    let response =
        client.call(2, DescribeClusterRequest { endpoint_type: 1, ..Default::default() }).await;
    let ids: Vec<i32> = response.brokers.iter().map(|it| it.broker_id).collect();
    assert_eq!((ids, response.cluster_id.len()), (vec![1, 3], 22));
    let fenced = DescribeClusterRequest {
        endpoint_type: 1,
        include_fenced_brokers: true,
        ..Default::default()
    };
    assert_eq!(client.call(2, fenced).await.brokers.len(), 3);
}

#[tokio::test]
async fn offsets_are_found_by_time_and_end() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    let mut list = async |timestamp: i64| {
        let partition = ListOffsetsPartition { timestamp, ..Default::default() };
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
        let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
        let found = client.call(11, request).await.topics[0].partitions[0].clone();
        (found.error_code, found.timestamp, found.offset)
    };
    let ok = ErrorCode::None;
    for timestamp in [ListOffsetsPartition::TIMESTAMP_MAX, 0] {
        assert_eq!(list(timestamp).await, (ok, -1, -1), "nothing in an empty log");
    }
    {
        let id = {
            let metadata = front.broker.metadata();
            metadata.partition_at(metadata.topic_named("t").unwrap().id, 0).unwrap().0
        };
        let log = front.broker.led(id).unwrap();
        for start in [1000, 5000, 3000] {
            let mut builder = meridian_protocol::records::BatchBuilder::new();
            for delta in 0..3 {
                builder.append(start + delta, None, Some(b"x"), &[]);
            }
            let batch = crate::partition::RecordBatch {
                bytes: builder.build(),
                record_count: 3,
                max_timestamp_ms: start + 2,
                sequenced: None,
                transaction: None,
                sourced: None,
            };
            log.produce(vec![batch]).await.unwrap().unwrap();
        }
    }
    assert_eq!(list(ListOffsetsPartition::TIMESTAMP_LATEST).await, (ok, -1, 9));
    assert_eq!(list(ListOffsetsPartition::TIMESTAMP_EARLIEST).await, (ok, -1, 0));
    assert_eq!(list(ListOffsetsPartition::TIMESTAMP_EARLIEST_LOCAL).await, (ok, -1, 0));
    assert_eq!(list(ListOffsetsPartition::TIMESTAMP_LATEST_TIERED).await, (ok, -1, -1));
    assert_eq!(list(ListOffsetsPartition::TIMESTAMP_MAX).await, (ok, 5002, 5));
    assert_eq!(list(1001).await, (ok, 1001, 1));
    assert_eq!(list(1003).await, (ok, 5000, 3));
    assert_eq!(list(5003).await, (ok, -1, -1));
    // Of a batch whose first records were deleted, only the rest is found.
    {
        let id = {
            let metadata = front.broker.metadata();
            metadata.partition_at(metadata.topic_named("t").unwrap().id, 0).unwrap().0
        };
        let before = meridian_base::position::Offset::new(4);
        front.broker.led(id).unwrap().delete_records(before).await.unwrap();
    }
    assert_eq!(list(1001).await, (ok, 5001, 4));
    assert_eq!(list(5000).await, (ok, 5001, 4));
    assert_eq!(list(ListOffsetsPartition::TIMESTAMP_MAX).await, (ok, 5002, 5));
    assert_eq!(list(-77).await.0, ErrorCode::UnsupportedVersion);
}

proptest! {
    #[test]
    fn legal_names_are_those_of_kafka(name in "[a-zA-Z0-9._-]{1,249}") {
        prop_assert_eq!(is_legal_name(&name), name != "." && name != "..");
    }

    #[test]
    fn one_bad_character_is_enough(name in "[a-z]{0,9}[^a-zA-Z0-9._-][a-z]{0,9}") {
        prop_assert!(!is_legal_name(&name));
    }
}

/// On a busy machine a node hears of decisions late: clients that wait for a minute take an early error for final.
#[tokio::test]
async fn a_change_of_topics_waits_as_long_as_the_client_does() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    *lock(&broker.catch_up_takes) = Duration::from_secs(30);
    for (timeout_ms, expected) in [
        (1000, ErrorCode::RequestTimedOut),
        (60_000, ErrorCode::None),
        (-1, ErrorCode::RequestTimedOut),
    ] {
        let name = Str::from(format!("t{timeout_ms}"));
        let topic = topic(&name);
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms, ..Default::default() };
        let created = client.call(7, request).await.topics.remove(0);
        assert_eq!(created.error_code, expected, "created with {timeout_ms} ms");
        let grown = CreatePartitionsTopic { name: "t60000".into(), count: 2, ..Default::default() };
        let request =
            CreatePartitionsRequest { topics: vec![grown], timeout_ms, validate_only: true };
        let grown = client.call(3, request).await.results.remove(0);
        assert_eq!(grown.error_code, expected, "grown with {timeout_ms} ms");
        let topic = DeleteTopicState { name: Some(name), ..Default::default() };
        let request = DeleteTopicsRequest { topics: vec![topic], timeout_ms, ..Default::default() };
        let deleted = client.call(6, request).await.responses.remove(0);
        assert_eq!(deleted.error_code, expected, "deleted with {timeout_ms} ms");
    }
}
