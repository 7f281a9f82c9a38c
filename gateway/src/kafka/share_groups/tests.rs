use meridian_protocol::messages::{
    AlterShareGroupOffsetsPartition, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsTopic,
    ConsumerGroupHeartbeatRequest, DeleteGroupsRequest, DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsTopic, DescribeShareGroupOffsetsGroup, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsTopic, DescribedShareGroupOffsets, FindCoordinatorRequest,
    ListGroupsRequest, OffsetCommitRequest, OffsetCommitTopic,
};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

async fn served() -> TestClient {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let front = front_of(&broker, quick_config());
    front.serve_peers();
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
    client
}

fn beat(member_id: &str, member_epoch: i32) -> ShareGroupHeartbeatRequest {
    let names = (member_epoch == JOIN_EPOCH).then(|| vec!["t".into()]);
    ShareGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: member_id.into(),
        member_epoch,
        subscribed_topic_names: names,
        ..Default::default()
    }
}

async fn described(client: &mut TestClient) -> DescribedShareGroup {
    let request = ShareGroupDescribeRequest { group_ids: vec!["g".into()], ..Default::default() };
    client.call(1, request).await.groups[0].clone()
}

async fn offsets(
    client: &mut TestClient,
    topics: Option<Vec<DescribeShareGroupOffsetsTopic>>,
) -> DescribedShareGroupOffsets {
    let group = DescribeShareGroupOffsetsGroup { group_id: "g".into(), topics };
    let request = DescribeShareGroupOffsetsRequest { groups: vec![group] };
    client.call(1, request).await.groups[0].clone()
}

async fn seek(client: &mut TestClient, topic: &str, index: i32, start: i64) -> [ErrorCode; 2] {
    let partition = AlterShareGroupOffsetsPartition { partition_index: index, start_offset: start };
    let topic =
        AlterShareGroupOffsetsTopic { topic_name: topic.into(), partitions: vec![partition] };
    let request = AlterShareGroupOffsetsRequest { group_id: "g".into(), topics: vec![topic] };
    let told = client.call(0, request).await;
    let partition = told.responses.first().map(|topic| topic.partitions[0].error_code);
    [told.error_code, partition.unwrap_or_default()]
}

async fn delete_offsets(client: &mut TestClient, topic: &str) -> [ErrorCode; 2] {
    let topic = DeleteShareGroupOffsetsTopic { topic_name: topic.into() };
    let request = DeleteShareGroupOffsetsRequest { group_id: "g".into(), topics: vec![topic] };
    let told = client.call(0, request).await;
    [told.error_code, told.responses.first().map(|topic| topic.error_code).unwrap_or_default()]
}

#[tokio::test]
async fn bad_heartbeats_get_the_errors_that_kafka_gives() {
    let mut client = served().await;
    let good = || beat("m", JOIN_EPOCH);
    for (what, request, code) in [
        (
            "no group",
            ShareGroupHeartbeatRequest { group_id: "".into(), ..good() },
            ErrorCode::InvalidGroupId,
        ),
        (
            "no member",
            ShareGroupHeartbeatRequest { member_id: "".into(), ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "an empty rack",
            ShareGroupHeartbeatRequest { rack_id: Some("".into()), ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "no topics",
            ShareGroupHeartbeatRequest { subscribed_topic_names: None, ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "none of them",
            ShareGroupHeartbeatRequest { subscribed_topic_names: Some(vec![]), ..good() },
            ErrorCode::InvalidRequest,
        ),
        ("no such epoch", beat("m", -2), ErrorCode::InvalidRequest),
        ("no member of a group that is not there", beat("m", 1), ErrorCode::UnknownMemberId),
        ("one that leaves it", beat("m", LEAVE_EPOCH), ErrorCode::UnknownMemberId),
        ("a good one", good(), ErrorCode::None),
        ("no member", beat("n", 1), ErrorCode::UnknownMemberId),
        ("another epoch", beat("m", 7), ErrorCode::FencedMemberEpoch),
    ] {
        assert_eq!(client.call(1, request).await.error_code, code, "{what}");
    }
}

#[tokio::test]
async fn members_are_described_and_groups_listed_and_deleted() {
    let mut client = served().await;
    assert_eq!(described(&mut client).await.error_code, ErrorCode::GroupIdNotFound);
    let joined = client.call(1, beat("m", JOIN_EPOCH)).await;
    assert_eq!((joined.error_code, joined.heartbeat_interval_ms), (ErrorCode::None, 5000));
    let group = described(&mut client).await;
    assert_eq!((&*group.group_state, &*group.assignor_name), ("Stable", "simple"));
    assert_eq!(group.group_epoch, joined.member_epoch);
    let member = &group.members[0];
    assert_eq!((&*member.member_id, &*member.client_id), ("m", "test"));
    assert_eq!(member.assignment.topic_partitions[0].partitions, [0, 1]);

    let list = ListGroupsRequest { types_filter: vec!["Share".into()], ..Default::default() };
    let listed = client.call(5, list).await.groups;
    let told = (&*listed[0].group_id, &*listed[0].group_type, &*listed[0].protocol_type);
    assert_eq!((listed.len(), told), (1, ("g", "share", "share")));

    // It is no group of another kind.
    let request = ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: "c".into(),
        rebalance_timeout_ms: 1000,
        subscribed_topic_names: Some(vec!["t".into()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    assert_eq!(client.call(1, request).await.error_code, ErrorCode::GroupIdNotFound);
    let topic = OffsetCommitTopic {
        name: "t".into(),
        partitions: vec![Default::default()],
        ..Default::default()
    };
    let request =
        OffsetCommitRequest { group_id: "g".into(), topics: vec![topic], ..Default::default() };
    let told = client.call(8, request).await.topics[0].partitions[0].error_code;
    assert_eq!(told, ErrorCode::GroupIdNotFound);

    let delete = || DeleteGroupsRequest { groups_names: vec!["g".into()] };
    assert_eq!(client.call(2, delete()).await.results[0].error_code, ErrorCode::NonEmptyGroup);
    assert_eq!(client.call(1, beat("m", LEAVE_EPOCH)).await.error_code, ErrorCode::None);
    assert_eq!(described(&mut client).await.group_state, "Empty");
    assert_eq!(client.call(2, delete()).await.results[0].error_code, ErrorCode::None);
    assert_eq!(described(&mut client).await.error_code, ErrorCode::GroupIdNotFound);
}

#[tokio::test]
async fn a_group_without_members_is_set_anew_and_forgets_topics() {
    let mut client = served().await;
    let none = [ErrorCode::None; 2];
    assert_eq!(offsets(&mut client, None).await.error_code, ErrorCode::GroupIdNotFound);
    assert_eq!(delete_offsets(&mut client, "t").await[0], ErrorCode::GroupIdNotFound);
    client.call(1, beat("m", JOIN_EPOCH)).await;
    assert_eq!(seek(&mut client, "t", 0, 5).await[0], ErrorCode::NonEmptyGroup);
    assert_eq!(delete_offsets(&mut client, "t").await[0], ErrorCode::NonEmptyGroup);
    client.call(1, beat("m", LEAVE_EPOCH)).await;
    assert_eq!(seek(&mut client, "t", 0, 5).await, none);
    let unknown = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(seek(&mut client, "t", 9, 5).await[1], unknown);
    assert_eq!(seek(&mut client, "u", 0, 5).await[1], unknown);
    assert_eq!(seek(&mut client, "t", 0, -1).await[1], ErrorCode::InvalidRequest);
    let told = offsets(&mut client, None).await;
    let partition = &told.topics[0].partitions[0];
    assert_eq!((&*told.topics[0].topic_name, partition.start_offset, partition.lag), ("t", 5, 0));
    let topic = |name: &str, partitions| DescribeShareGroupOffsetsTopic {
        topic_name: name.into(),
        partitions,
    };
    let topics = vec![topic("t", vec![0, 1, 7]), topic("u", vec![0])];
    let told = offsets(&mut client, Some(topics)).await;
    let told = told.topics.iter().flat_map(|topic| &topic.partitions);
    let told: Vec<_> = told.map(|it| (it.start_offset, it.error_code)).collect();
    let none_yet = (-1, ErrorCode::None);
    assert_eq!(told, [(5, ErrorCode::None), none_yet, (-1, unknown), (-1, unknown)]);
    assert_eq!(delete_offsets(&mut client, "u").await[1], unknown);
    assert_eq!(delete_offsets(&mut client, "t").await, none);
    assert_eq!(offsets(&mut client, None).await.topics, []);
    // Before its first member comes, it may be said where it begins.
    let delete = DeleteGroupsRequest { groups_names: vec!["g".into()] };
    assert_eq!(client.call(2, delete).await.results[0].error_code, ErrorCode::None);
    assert_eq!(seek(&mut client, "t", 1, 3).await, none);
    assert_eq!(offsets(&mut client, None).await.topics[0].partitions[0].start_offset, 3);
}
