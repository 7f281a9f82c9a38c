use bytes::Bytes;
use meridian_protocol::messages::{
    FindCoordinatorRequest, OffsetCommitPartition, OffsetCommitTopic, OffsetDeletePartition,
    OffsetDeleteTopic,
};
use meridian_protocol::records;

use super::*;
use crate::kafka::coordinator::OFFSETS_TOPIC;
use crate::kafka::lock;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
use crate::meta::ProposeError;

/// A client of a front whose groups share one partition; topic `t` has one.
async fn served() -> (Arc<FakeBroker>, TestClient) {
    let broker = FakeBroker::single();
    let mut config = quick_config();
    config.offsets_partition_count = 1;
    let mut client = TestClient::connect(&front_of(&broker, config));
    client.create_topic("t", 1).await;
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
    // The coordinator is there from its first group on.
    assert_eq!(fetch(&mut client, "g").await, -1);
    (broker, client)
}

fn commit_of(group: &str, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitPartition { committed_offset: offset, ..Default::default() };
    let topic =
        OffsetCommitTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

fn fetch_of(group: &str) -> OffsetFetchRequest {
    let topic =
        OffsetFetchTopic { name: "t".into(), partition_indexes: vec![0], ..Default::default() };
    let group = OffsetFetchGroup {
        group_id: group.into(),
        topics: Some(vec![topic]),
        member_epoch: -1,
        ..Default::default()
    };
    OffsetFetchRequest { groups: vec![group], ..Default::default() }
}

async fn fetch(client: &mut TestClient, group: &str) -> i64 {
    client.call(9, fetch_of(group)).await.groups[0].topics[0].partitions[0].committed_offset
}

async fn expect_committed(client: &mut TestClient, id: i32) {
    let told = client.receive::<OffsetCommitRequest>(9, id).await;
    assert_eq!(told.topics[0].partitions[0].error_code, ErrorCode::None);
}

/// How many batches the log of the coordinator has.
async fn batch_count(broker: &FakeBroker) -> usize {
    let id = {
        let metadata = broker.state();
        let topic = metadata.topic_named(OFFSETS_TOPIC).expect("created by the first question");
        topic.partitions[0]
    };
    let log = crate::broker::Broker::led(broker, id).expect("led here");
    let fetched = log.fetch(log.log_start_offset(), 1 << 20).await.expect("readable");
    records::batches(Bytes::from(fetched.records.concat())).count()
}

#[tokio::test]
async fn commits_of_one_connection_share_batches() {
    let (broker, mut client) = served().await;
    // The first waits for its turn, and those behind it for it.
    let waiting = client.send(9, &fetch_of("g")).await;
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(client.send(9, &commit_of(&format!("group-{number}"), number)).await);
    }
    client.receive::<OffsetFetchRequest>(9, waiting).await;
    for id in ids {
        expect_committed(&mut client, id).await;
    }
    let count = batch_count(&broker).await;
    assert!(count <= 5, "50 commits took {count} batches");
    assert_eq!(fetch(&mut client, "group-49").await, 49);
}

#[tokio::test]
async fn what_a_connection_asks_for_takes_effect_in_order() {
    let (_broker, mut client) = served().await;
    for round in 1..=20 {
        let first = client.send(9, &commit_of("g", round)).await;
        let forget = OffsetDeleteRequest {
            group_id: "g".into(),
            topics: vec![OffsetDeleteTopic {
                name: "t".into(),
                partitions: vec![OffsetDeletePartition { partition_index: 0 }],
            }],
        };
        let forgotten = client.send(0, &forget).await;
        let none = client.send(9, &fetch_of("g")).await;
        let second = client.send(9, &commit_of("g", 100 + round)).await;
        let last = client.send(9, &fetch_of("g")).await;
        expect_committed(&mut client, first).await;
        let told = client.receive::<OffsetDeleteRequest>(0, forgotten).await;
        assert_eq!(told.topics[0].partitions[0].error_code, ErrorCode::None);
        for (id, expected) in [(none, -1), (last, 100 + round)] {
            if id == last {
                expect_committed(&mut client, second).await;
            }
            let told = client.receive::<OffsetFetchRequest>(9, id).await;
            assert_eq!(told.groups[0].topics[0].partitions[0].committed_offset, expected);
        }
    }
}

/// What a fetch of all versions says is wrong.
async fn refusals(client: &mut TestClient) -> [ErrorCode; 2] {
    let topic =
        OffsetFetchTopic { name: "t".into(), partition_indexes: vec![0], ..Default::default() };
    let topics = Some(vec![topic]);
    let old = OffsetFetchRequest { group_id: "g".into(), topics, ..Default::default() };
    let old = client.call(1, old).await.topics[0].partitions[0].error_code;
    [old, client.call(9, fetch_of("g")).await.groups[0].error_code]
}

#[tokio::test]
async fn what_a_link_commits_replaces_only_what_it_saw() {
    let (_broker, mut client) = served().await;
    let commit = |offset, expected_offset| {
        let mut request = commit_of("g", offset);
        request.topics[0].partitions[0].expected_offset = expected_offset;
        request
    };
    for (offset, expected, told, holds) in [
        (5, 3, ErrorCode::UnstableOffsetCommit, -1),
        (5, -1, ErrorCode::None, 5),
        (6, -1, ErrorCode::UnstableOffsetCommit, 5),
        (6, 4, ErrorCode::UnstableOffsetCommit, 5),
        (6, 5, ErrorCode::None, 6),
    ] {
        let response = client.call(9, commit(offset, expected)).await;
        assert_eq!(response.topics[0].partitions[0].error_code, told, "{offset} for {expected}");
        assert_eq!(fetch(&mut client, "g").await, holds);
    }
    // One that is on its way counts.
    let first = client.send(9, &commit_of("g", 9)).await;
    let second = client.send(9, &commit(7, 6)).await;
    expect_committed(&mut client, first).await;
    let told = client.receive::<OffsetCommitRequest>(9, second).await;
    assert_eq!(told.topics[0].partitions[0].error_code, ErrorCode::UnstableOffsetCommit);
    assert_eq!(fetch(&mut client, "g").await, 9);
}

#[tokio::test]
async fn a_coordinator_that_cannot_tell_whether_it_is_one_tells_no_position() {
    let (broker, mut client) = served().await;
    let id = client.send(9, &commit_of("g", 7)).await;
    expect_committed(&mut client, id).await;
    *lock(&broker.refusal) = Some(ProposeError::TimedOut);
    assert_eq!(refusals(&mut client).await, [ErrorCode::NotCoordinator; 2]);
    *lock(&broker.refusal) = None;
    assert_eq!(fetch(&mut client, "g").await, 7);
}

#[tokio::test]
async fn a_coordinator_tells_no_position_once_it_is_replaced_though_its_log_does_not_know() {
    let (broker, mut client) = served().await;
    let id = client.send(9, &commit_of("g", 7)).await;
    expect_committed(&mut client, id).await;
    let held = broker.reassign(OFFSETS_TOPIC, 0);
    assert!(crate::broker::Broker::led(&*broker, held.partition).is_some(), "serves still");
    assert_eq!(refusals(&mut client).await, [ErrorCode::CoordinatorLoadInProgress; 2]);
}
