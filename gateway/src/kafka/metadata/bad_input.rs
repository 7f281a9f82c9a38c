//! What Metadata and DescribeTopicPartitions say to requests that cannot be: the errors that Kafka gives.

use meridian_protocol::messages::{DeleteTopicsRequest, DescribeTopicPartitionsTopic};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

#[tokio::test]
async fn topics() {
    let broker = FakeBroker::three_datacenters();
    let mut config = quick_config();
    config.auto_create_topics = true;
    let mut client = TestClient::connect(&front_of(&broker, config));
    client.create_topic("t", 2).await;
    let (id, none) = (broker.topic_uuid("t"), ErrorCode::None);
    let long = "x".repeat(250);
    for (what, version, name, topic_id, code) in [
        ("well", 13, Some("t"), Uuid::ZERO, none),
        ("by its id", 12, None, id, none),
        ("by its id, with an empty name", 12, Some(""), id, none),
        ("by its id, too early", 11, None, id, ErrorCode::InvalidRequest),
        ("by its id and its name, too early", 10, Some("t"), id, ErrorCode::InvalidRequest),
        ("without name and id, too early", 11, None, Uuid::ZERO, ErrorCode::InvalidRequest),
        ("no such id", 12, None, Uuid([9; 16]), ErrorCode::UnknownTopicId),
        ("no name and no id", 12, None, Uuid::ZERO, ErrorCode::UnknownTopicId),
        ("no such topic", 13, Some("none"), Uuid::ZERO, ErrorCode::UnknownTopicOrPartition),
        ("no name", 9, Some(""), Uuid::ZERO, ErrorCode::InvalidTopicException),
        ("an illegal name", 13, Some("a/b"), Uuid::ZERO, ErrorCode::InvalidTopicException),
        ("a dot", 13, Some("."), Uuid::ZERO, ErrorCode::InvalidTopicException),
        ("too long a name", 13, Some(&*long), Uuid::ZERO, ErrorCode::InvalidTopicException),
    ] {
        let topic = MetadataRequestTopic { name: name.map(Str::from), topic_id };
        let request = MetadataRequest {
            topics: Some(vec![topic]),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let told = client.call(version, request).await.topics.remove(0);
        assert_eq!(told.error_code, code, "{what}");
        assert_eq!(told.partitions.len(), if code == none { 2 } else { 0 }, "{what}");
    }
    let named =
        |name: Option<&str>, topic_id| MetadataRequestTopic { name: name.map(Str::from), topic_id };
    let request = MetadataRequest {
        topics: Some(vec![named(Some("new"), Uuid::ZERO), named(None, id)]),
        allow_auto_topic_creation: true,
        ..Default::default()
    };
    let told = client.call(11, request).await.topics;
    let spoilt = told.iter().all(|topic| topic.error_code == ErrorCode::InvalidRequest);
    assert!(spoilt && told.len() == 2, "one that comes too early spoils the others");
    assert!(broker.state().topic_named("new").is_none(), "and none is created");
}

#[tokio::test]
async fn a_topic_that_was_just_deleted_is_not_created_by_a_question_for_it() {
    let broker = FakeBroker::three_datacenters();
    let mut config = quick_config();
    config.auto_create_topics = true;
    let mut client = TestClient::connect(&front_of(&broker, config));
    client.create_topic("t", 2).await;
    let topic_names = vec!["t".into()];
    client.call(5, DeleteTopicsRequest { topic_names, ..Default::default() }).await;
    for (name, code) in [("t", ErrorCode::UnknownTopicOrPartition), ("new", ErrorCode::None)] {
        let topic = MetadataRequestTopic { name: Some(name.into()), topic_id: Uuid::ZERO };
        let request = MetadataRequest {
            topics: Some(vec![topic]),
            allow_auto_topic_creation: true,
            ..Default::default()
        };
        let told = client.call(9, request).await.topics.remove(0);
        assert_eq!(told.error_code, code, "{name}");
    }
    assert!(broker.state().topic_named("t").is_none());
    client.create_topic("t", 3).await;
}

#[tokio::test]
async fn pages() {
    let broker = FakeBroker::three_datacenters();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 3).await;
    let none = ErrorCode::None;
    for (what, topic, cursor, limit, code, count) in [
        ("well", "t", None, 2000, none, 3),
        ("from amid it", "t", Some(("t", 2)), 2000, none, 1),
        ("from beyond its end", "t", Some(("t", 9)), 2000, none, 0),
        ("from a topic before it", "t", Some(("a", 2)), 2000, ErrorCode::InvalidRequest, 0),
        ("from a topic after it", "t", Some(("u", 0)), 2000, ErrorCode::InvalidRequest, 0),
        ("from no topic", "t", Some(("", 0)), 2000, ErrorCode::InvalidRequest, 0),
        ("from a negative partition", "t", Some(("t", -1)), 2000, ErrorCode::InvalidRequest, 0),
        ("nothing to a page", "t", None, 0, none, 1),
        ("less than nothing to a page", "t", None, -1, none, 1),
        ("no such topic", "none", None, 2000, ErrorCode::UnknownTopicOrPartition, 0),
        ("an illegal name", "a/b", None, 2000, ErrorCode::InvalidTopicException, 0),
        ("no name", "", None, 2000, ErrorCode::InvalidTopicException, 0),
    ] {
        let cursor = cursor.map(|(name, partition_index): (&str, i32)| TopicPartitionCursor {
            topic_name: name.into(),
            partition_index,
        });
        let request = DescribeTopicPartitionsRequest {
            topics: vec![DescribeTopicPartitionsTopic { name: topic.into() }],
            response_partition_limit: limit,
            cursor,
        };
        let told = client.call(0, request).await.topics.remove(0);
        assert_eq!((told.error_code, told.partitions.len()), (code, count), "{what}");
    }
    // Who asks for all goes on wherever the last page ended, if that topic is there still or not.
    for (cursor, count) in [("a", 1), ("t", 1), ("u", 0)] {
        let cursor = TopicPartitionCursor { topic_name: cursor.into(), partition_index: 0 };
        let request = DescribeTopicPartitionsRequest {
            response_partition_limit: 2000,
            cursor: Some(cursor.clone()),
            ..Default::default()
        };
        assert_eq!(client.call(0, request).await.topics.len(), count, "all, from {cursor:?}");
    }
}
