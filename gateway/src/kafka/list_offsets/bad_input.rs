//! What ListOffsets and OffsetForLeaderEpoch say to requests that cannot be: the errors that Kafka gives.

use meridian_protocol::messages::{
    ListOffsetsTopic, OffsetForLeaderEpochRequest, OffsetForLeaderTopic,
};

use super::*;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

/// A client of topic `t`, whose partition 0 has had two leaders, and the epoch of the second.
async fn served() -> (Arc<FakeBroker>, TestClient, i32) {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 2).await;
    broker.take_over("t", 0);
    let request = || {
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![at(0, -1, -1)] };
        ListOffsetsRequest { topics: vec![topic], ..Default::default() }
    };
    let epoch = async {
        loop {
            let told = client.call(11, request()).await.topics[0].partitions[0].clone();
            if told.error_code.is_none() {
                return told.leader_epoch;
            }
            tokio::task::yield_now().await;
        }
    };
    let epoch = tokio::time::timeout(PATIENCE, epoch).await.expect("taken over in time");
    (broker, client, epoch)
}

fn at(partition_index: i32, current_leader_epoch: i32, timestamp: i64) -> ListOffsetsPartition {
    ListOffsetsPartition { partition_index, current_leader_epoch, timestamp, ..Default::default() }
}

#[tokio::test]
async fn offsets_by_time() {
    let (_broker, mut client, epoch) = served().await;
    let unsupported = ErrorCode::UnsupportedVersion;
    for (what, version, topic, partition, code) in [
        ("well", 11, "t", at(0, epoch, -1), ErrorCode::None),
        ("no such topic", 11, "none", at(0, -1, -1), ErrorCode::UnknownTopicOrPartition),
        ("no such partition", 11, "t", at(2, -1, -1), ErrorCode::UnknownTopicOrPartition),
        ("a negative one", 11, "t", at(-1, -1, -1), ErrorCode::UnknownTopicOrPartition),
        ("of the former leader", 11, "t", at(0, epoch - 1, -1), ErrorCode::FencedLeaderEpoch),
        ("of a leader to come", 11, "t", at(0, epoch + 1, -1), ErrorCode::UnknownLeaderEpoch),
        ("an unknown time", 11, "t", at(0, -1, -7), unsupported),
        ("the largest time", 7, "t", at(0, -1, -3), ErrorCode::None),
        ("the largest time, too early", 6, "t", at(0, -1, -3), unsupported),
        ("the local start, too early", 7, "t", at(0, -1, -4), unsupported),
        ("the tiered end, too early", 8, "t", at(0, -1, -5), unsupported),
        ("the pending upload, too early", 10, "t", at(0, -1, -6), unsupported),
    ] {
        let topic = ListOffsetsTopic { name: topic.into(), partitions: vec![partition] };
        let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
        let told = client.call(version, request).await.topics[0].partitions[0].clone();
        assert_eq!(told.error_code, code, "{what}");
        assert!(
            code.is_none() || (told.offset, told.timestamp) == (-1, -1),
            "{what}: nothing else"
        );
    }
    let partitions = vec![at(0, -1, -1), at(0, -1, -2), at(1, -1, -1)];
    let topic = ListOffsetsTopic { name: "t".into(), partitions };
    let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
    let told = client.call(11, request).await.topics.remove(0).partitions;
    let codes: Vec<ErrorCode> = told.iter().map(|it| it.error_code).collect();
    let twice = ErrorCode::InvalidRequest;
    assert_eq!(codes, [twice, twice, ErrorCode::None], "a partition that is named twice");
}

#[tokio::test]
async fn ends_of_epochs() {
    let (_broker, mut client, epoch) = served().await;
    let none = ErrorCode::None;
    for (what, topic, partition, current, asked, expected) in [
        ("well", "t", 0, epoch, epoch, (none, epoch, 0)),
        ("an epoch to come", "t", 0, -1, epoch + 1, (none, -1, -1)),
        ("no epoch", "t", 0, -1, -1, (none, -1, -1)),
        ("no topic", "none", 0, -1, 0, (ErrorCode::UnknownTopicOrPartition, -1, -1)),
        ("no partition", "t", 2, -1, 0, (ErrorCode::UnknownTopicOrPartition, -1, -1)),
        ("the former leader", "t", 0, epoch - 1, 0, (ErrorCode::FencedLeaderEpoch, -1, -1)),
        ("a leader to come", "t", 0, epoch + 1, 0, (ErrorCode::UnknownLeaderEpoch, -1, -1)),
    ] {
        let wanted = OffsetForLeaderPartition {
            partition,
            current_leader_epoch: current,
            leader_epoch: asked,
        };
        let topic = OffsetForLeaderTopic { topic: topic.into(), partitions: vec![wanted] };
        let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
        let told = client.call(4, request).await.topics[0].partitions[0].clone();
        assert_eq!((told.error_code, told.leader_epoch, told.end_offset), expected, "{what}");
    }
}

/// The metadata says so first: what was led until then may be longer elsewhere by now.
#[tokio::test]
async fn who_was_replaced_and_does_not_know_it_tells_no_offset() {
    let (broker, mut client, _) = served().await;
    let held = broker.reassign("t", 0);
    assert!(crate::broker::Broker::led(&*broker, held.partition).is_some(), "serves still");
    for (timestamp, version) in [(-1, 1), (-1, 11), (-2, 11), (-3, 11), (-4, 11), (0, 11)] {
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![at(0, -1, timestamp)] };
        let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
        let told = client.call(version, request).await.topics[0].partitions[0].clone();
        let refused = (ErrorCode::NotLeaderOrFollower, -1);
        assert_eq!((told.error_code, told.offset), refused, "{timestamp}, version {version}");
    }
    let wanted =
        OffsetForLeaderPartition { partition: 0, current_leader_epoch: -1, leader_epoch: 0 };
    let topic = OffsetForLeaderTopic { topic: "t".into(), partitions: vec![wanted] };
    let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
    let told = client.call(4, request).await.topics[0].partitions[0].clone();
    assert_eq!((told.error_code, told.end_offset), (ErrorCode::NotLeaderOrFollower, -1));
}
