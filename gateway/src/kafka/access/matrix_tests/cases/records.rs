//! Writing and reading records, and describing where they are.

use meridian_access::Operation::{Alter, Create, Describe, Read, Write};
use meridian_protocol::ErrorCode::TopicAuthorizationFailed;
use meridian_protocol::messages::{
    DescribeProducersRequest, DescribeProducersTopic, DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic, FetchPartition, FetchRequest, FetchTopic, ListOffsetsPartition,
    ListOffsetsRequest, ListOffsetsTopic, MetadataRequest, MetadataRequestTopic,
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic, ProducePartition,
    ProduceRequest, ProduceTopic,
};
use meridian_protocol::{ErrorCode, Uuid};

use super::super::{
    Case, MISSING, ON_CLUSTER, ON_TOPIC, ON_TRANSACTION, Refused, TOPIC, TRANSACTION,
};
use crate::kafka::testing::batch_of;
use meridian_access::Resource;

fn produce(topic_id: Uuid, transactional_id: Option<&str>) -> ProduceRequest {
    let data = ProducePartition { index: 0, records: Some(batch_of(&["a"])) };
    let topic = ProduceTopic { name: TOPIC.into(), topic_id, partition_data: vec![data] };
    ProduceRequest {
        transactional_id: transactional_id.map(Into::into),
        acks: -1,
        timeout_ms: 5000,
        topic_data: vec![topic],
    }
}

fn fetch(topic_id: Uuid) -> FetchRequest {
    let partition = FetchPartition { partition_max_bytes: 1024, ..Default::default() };
    let topic = FetchTopic { topic: TOPIC.into(), topic_id, partitions: vec![partition] };
    FetchRequest { topics: vec![topic], ..Default::default() }
}

fn named(name: &str, topic_id: Uuid) -> MetadataRequest {
    let name = topic_id.is_zero().then(|| name.into());
    let topic = MetadataRequestTopic { topic_id, name };
    MetadataRequest { topics: Some(vec![topic]), ..Default::default() }
}

fn metadata_cases(denied: Refused) -> Vec<Case> {
    let missing = Resource::topic(MISSING);
    let bits = |_| MetadataRequest {
        topics: Some(Vec::new()),
        include_cluster_authorized_operations: true,
        ..Default::default()
    };
    vec![
        Case::new("of all topics", &[(Describe, ON_TOPIC)], Refused::Hides(TOPIC), |_| {
            MetadataRequest { topics: None, ..Default::default() }
        }),
        Case::new("by name", &[(Describe, ON_TOPIC)], denied, |_| named(TOPIC, Uuid::ZERO)),
        Case::new("by id", &[(Describe, ON_TOPIC)], denied, |id| named(TOPIC, id)),
        Case::new("by right to read", &[(Read, ON_TOPIC)], denied, |id| named(TOPIC, id)),
        Case::new("creates", &[(Describe, missing), (Create, missing)], denied, |_| {
            named(MISSING, Uuid::ZERO)
        }),
        Case::of_version(
            10,
            "of the cluster",
            &[(Describe, ON_CLUSTER)],
            Refused::Says("cluster_authorized_operations: 0,"),
            bits,
        ),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let denied = Refused::With(TopicAuthorizationFailed);
    let of_transaction = Refused::With(ErrorCode::TransactionalIdAuthorizationFailed);
    let both = [(Write, ON_TRANSACTION), (Write, ON_TOPIC)];
    let mut cases = metadata_cases(denied);
    cases.extend([
        Case::new("by id", &[(Write, ON_TOPIC)], denied, |id| produce(id, None)),
        Case::of_version(12, "by name", &[(Write, ON_TOPIC)], denied, |id| produce(id, None)),
        Case::new("in a transaction", &both, of_transaction, |id| produce(id, Some(TRANSACTION))),
        Case::new("by id", &[(Read, ON_TOPIC)], denied, fetch),
        Case::of_version(12, "by name", &[(Read, ON_TOPIC)], denied, fetch),
        Case::new("", &[(Describe, ON_TOPIC)], denied, |_| {
            let partitions = vec![ListOffsetsPartition { timestamp: -2, ..Default::default() }];
            let topics = vec![ListOffsetsTopic { name: TOPIC.into(), partitions }];
            ListOffsetsRequest { topics, ..Default::default() }
        }),
        Case::new("", &[(Describe, ON_TOPIC)], denied, |_| {
            let partitions = vec![OffsetForLeaderPartition::default()];
            let topics = vec![OffsetForLeaderTopic { topic: TOPIC.into(), partitions }];
            OffsetForLeaderEpochRequest { topics, ..Default::default() }
        }),
        Case::new("", &[(Read, ON_TOPIC)], denied, |_| DescribeProducersRequest {
            topics: vec![DescribeProducersTopic { name: TOPIC.into(), partition_indexes: vec![0] }],
        }),
        Case::new("by name", &[(Alter, ON_TOPIC)], denied, |_| DescribeTopicPartitionsRequest {
            topics: vec![DescribeTopicPartitionsTopic { name: TOPIC.into() }],
            ..Default::default()
        }),
        Case::new("of all", &[(Describe, ON_TOPIC)], Refused::Hides(TOPIC), |_| {
            DescribeTopicPartitionsRequest::default()
        }),
    ]);
    cases
}
