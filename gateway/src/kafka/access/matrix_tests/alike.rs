//! A client without rights can't tell the topics that there are from those that there are not.

use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResource, CreatePartitionsRequest, CreatePartitionsTopic,
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic, DeleteTopicState,
    DeleteTopicsRequest, DescribeConfigsRequest, DescribeConfigsResource, DescribeProducersRequest,
    DescribeProducersTopic, DescribeTopicPartitionsRequest, DescribeTopicPartitionsTopic,
    FetchPartition, FetchRequest, FetchTopic, ListOffsetsPartition, ListOffsetsRequest,
    ListOffsetsTopic, MeridianAdminRequest, MetadataRequest, MetadataRequestTopic,
    ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::{ApiKey, RequestMessage, Uuid};
use tokio::io::AsyncReadExt;

use super::TOPIC;
use super::world::World;
use crate::kafka::testing::{TestClient, batch_of};

/// As long as the name of a topic that there is.
const ABSENT: &str = "nobody";

/// The answer, without the number of its request.
async fn answer<R: RequestMessage>(alice: &mut TestClient, version: i16, request: R) -> Vec<u8> {
    alice.send(version, &request).await;
    let size = alice.stream.read_i32().await.unwrap();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    alice.stream.read_exact(&mut bytes).await.unwrap();
    bytes.split_off(4)
}

/// Asks about a topic that there is and about one that there is not.
async fn check<R: RequestMessage>(world: &mut World, version: i16, of: impl Fn(&str) -> R) {
    let there = answer(&mut world.alice, version, of(TOPIC)).await;
    let absent = answer(&mut world.alice, version, of(ABSENT)).await;
    let mut renamed = absent;
    for start in 0..renamed.len().saturating_sub(ABSENT.len() - 1) {
        if renamed[start..].starts_with(ABSENT.as_bytes()) {
            renamed[start..start + TOPIC.len()].copy_from_slice(TOPIC.as_bytes());
        }
    }
    assert_eq!(there, renamed, "{:?} {version}", R::API);
}

fn produce(name: &str) -> ProduceRequest {
    let data = ProducePartition { index: 0, records: Some(batch_of(&["a"])) };
    let name = name.into();
    let topic = ProduceTopic { name, partition_data: vec![data], ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], ..Default::default() }
}

fn metadata(name: &str) -> MetadataRequest {
    let topic = MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
    MetadataRequest { topics: Some(vec![topic]), ..Default::default() }
}

fn fetch(name: &str) -> FetchRequest {
    let partition = FetchPartition { partition_max_bytes: 1024, ..Default::default() };
    let partitions = vec![partition];
    let topic = FetchTopic { topic: name.into(), partitions, ..Default::default() };
    FetchRequest { topics: vec![topic], ..Default::default() }
}

fn delete(name: &str) -> DeleteTopicsRequest {
    let topic = DeleteTopicState { name: Some(name.into()), topic_id: Uuid::ZERO };
    DeleteTopicsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() }
}

fn grow(name: &str) -> CreatePartitionsRequest {
    let topic = CreatePartitionsTopic { name: name.into(), count: 2, ..Default::default() };
    CreatePartitionsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() }
}

#[tokio::test]
async fn requests_about_what_is_there_and_what_is_not_are_answered_alike() {
    let mut world = World::start().await;
    world.prepare(ApiKey::Metadata).await;
    let world = &mut world;
    for version in [1, 9, 12, 13] {
        check(world, version, metadata).await;
    }
    for version in [3, 9, 12] {
        check(world, version, produce).await;
    }
    for version in [4, 12] {
        check(world, version, fetch).await;
    }
    for version in [1, 6] {
        check(world, version, |name| match version {
            6 => delete(name),
            _ => DeleteTopicsRequest { topic_names: vec![name.into()], ..Default::default() },
        })
        .await;
    }
    check(world, 3, grow).await;
    check(world, 8, |name| {
        let partitions = vec![ListOffsetsPartition { timestamp: -2, ..Default::default() }];
        let topics = vec![ListOffsetsTopic { name: name.into(), partitions }];
        ListOffsetsRequest { topics, ..Default::default() }
    })
    .await;
    check(world, 4, |name| {
        let (resource_type, resource_name) = (2, name.into());
        let resource =
            DescribeConfigsResource { resource_type, resource_name, ..Default::default() };
        DescribeConfigsRequest { resources: vec![resource], ..Default::default() }
    })
    .await;
    check(world, 2, |name| {
        let (resource_type, resource_name, configs) = (2, name.into(), Vec::new());
        let resource = AlterConfigsResource { resource_type, resource_name, configs };
        AlterConfigsRequest { resources: vec![resource], validate_only: false }
    })
    .await;
    check(world, 2, |name| {
        let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 0 }];
        let topics = vec![DeleteRecordsTopic { name: name.into(), partitions }];
        DeleteRecordsRequest { topics, timeout_ms: 5000 }
    })
    .await;
    check(world, 0, |name| DescribeProducersRequest {
        topics: vec![DescribeProducersTopic { name: name.into(), partition_indexes: vec![0] }],
    })
    .await;
    check(world, 0, |name| DescribeTopicPartitionsRequest {
        topics: vec![DescribeTopicPartitionsTopic { name: name.into() }],
        ..Default::default()
    })
    .await;
    for method in ["topic.storage", "mirror.promote", "source.list"] {
        check(world, 0, |name| MeridianAdminRequest {
            method: method.into(),
            body: format!(r#"{{"topic":"{name}","partition":0}}"#).into(),
        })
        .await;
    }
}
