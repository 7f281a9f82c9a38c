//! Legal requests of maximal size: each is answered long before another client would notice, and with no more
//! than it is worth. What took the square of a request's length takes hours here.

use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResource, CreatableTopic, CreatePartitionsRequest,
    CreatePartitionsTopic, CreateTopicsRequest, DescribeConfigsRequest, DescribeConfigsResource,
    DescribeLogDirsRequest, DescribeLogDirsTopic, FeatureUpdate, FetchPartition, FetchRequest,
    FetchTopic, FindCoordinatorRequest, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource, IncrementalAlterableConfig, JoinGroupProtocol,
    JoinGroupRequest, MetadataRequest, MetadataRequestTopic, UpdateFeaturesRequest,
};
use meridian_protocol::{ErrorCode, Str};

use super::testing::{FakeBroker, TestClient, front_of, quick_config};
use crate::config::FrontConfig;

const COUNT: usize = 100_000;
const TOPIC: i8 = 2;

fn client() -> TestClient {
    let config = FrontConfig { request_size_bytes_max: 32 << 20, ..quick_config() };
    TestClient::connect(&front_of(&FakeBroker::single(), config))
}

fn names() -> impl Iterator<Item = Str> {
    (0..COUNT).map(|number| Str::from(format!("t{number}")))
}

/// The one value of all.
fn same<T: PartialEq + Copy>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_are_created_or_grown() {
    let mut client = client();
    let topic = |name| CreatableTopic { name, num_partitions: 1, ..Default::default() };
    let topics = names().map(topic).collect();
    let told = client.call(5, CreateTopicsRequest { topics, ..Default::default() }).await.topics;
    assert_eq!(told.len(), COUNT);
    assert_eq!(same(told.iter().map(|it| it.error_code)), Some(ErrorCode::PolicyViolation));

    let topic = |name| CreatePartitionsTopic { name, count: 2, ..Default::default() };
    let topics = names().map(topic).collect();
    let request = CreatePartitionsRequest { topics, ..Default::default() };
    let told = client.call(3, request).await.results;
    assert_eq!(same(told.iter().map(|it| it.error_code)), Some(ErrorCode::PolicyViolation));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configs_that_are_altered() {
    let mut client = client();
    client.create_topic("t", 1).await;
    let configs = names().map(|name| IncrementalAlterableConfig {
        name,
        config_operation: 0,
        value: Some("1".into()),
    });
    let resource = IncrementalAlterConfigsResource {
        resource_type: TOPIC,
        resource_name: "t".into(),
        configs: configs.collect(),
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let told = client.call(1, request).await.responses;
    assert_eq!(told[0].error_code, ErrorCode::InvalidConfig);

    let resource = |resource_name| AlterConfigsResource {
        resource_type: TOPIC,
        resource_name,
        ..Default::default()
    };
    let request =
        AlterConfigsRequest { resources: names().map(resource).collect(), ..Default::default() };
    let told = client.call(2, request).await.responses;
    assert_eq!(same(told.iter().map(|it| it.error_code)), Some(ErrorCode::PolicyViolation));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn features_that_are_updated() {
    let update = |feature| FeatureUpdate { feature, max_version_level: 1, ..Default::default() };
    let request = UpdateFeaturesRequest {
        feature_updates: names().map(update).collect(),
        ..Default::default()
    };
    let told = client().call(1, request).await;
    assert_eq!(told.results.len(), COUNT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_are_described() {
    let broker = FakeBroker::three_datacenters();
    let config = FrontConfig { request_size_bytes_max: 32 << 20, ..quick_config() };
    let mut client = TestClient::connect(&front_of(&broker, config));
    client.create_topic("t", COUNT as i32).await;
    let topics = vec![DescribeLogDirsTopic {
        topic: "t".into(),
        partitions: (0..COUNT as i32).rev().collect(),
    }];
    let request = DescribeLogDirsRequest { topics: Some(topics) };
    let told = client.call(4, request).await.results;
    assert!(told[0].topics[0].partitions.len() > COUNT / 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ways_of_assignment_that_a_member_offers() {
    let mut client = client();
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    client.call(4, find).await;
    let protocol = |name| JoinGroupProtocol { name, ..Default::default() };
    for _ in 0..2 {
        let request = JoinGroupRequest {
            group_id: "g".into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 1,
            protocol_type: "consumer".into(),
            protocols: names().map(protocol).collect(),
            ..Default::default()
        };
        let told = client.call(3, request).await;
        assert_eq!(told.error_code, ErrorCode::InvalidRequest);
    }
}

/// Nothing is said twice: else a short request would ask for an answer of any size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_named_a_thousand_times_is_told_once() {
    let mut client = client();
    client.create_topic("t", 500).await;
    let named = MetadataRequestTopic { name: Some("t".into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![named; 1000]), ..Default::default() };
    let told = client.call(8, request).await.topics;
    assert_eq!(told.iter().map(|topic| topic.partitions.len()).collect::<Vec<_>>(), [500]);

    let named = DescribeConfigsResource {
        resource_type: TOPIC,
        resource_name: "t".into(),
        ..Default::default()
    };
    let request = DescribeConfigsRequest { resources: vec![named; 1000], ..Default::default() };
    assert_eq!(client.call(3, request).await.results.len(), 1);

    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic =
        FetchTopic { topic: "t".into(), partitions: vec![partition; 1000], ..Default::default() };
    let request = FetchRequest { topics: vec![topic], session_epoch: -1, ..Default::default() };
    let told = client.call(12, request).await.responses;
    assert_eq!(told.iter().map(|topic| topic.partitions.len()).collect::<Vec<_>>(), [1]);
}
