use std::sync::Arc;

use bytes::Bytes;
use meridian_consensus::command::FeatureLevel;
use meridian_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource, IncrementalAlterableConfig,
    JoinGroupProtocol, JoinGroupRequest, LeaveGroupRequest, LeavingMember, ListGroupsRequest,
    OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic, OffsetDeletePartition,
    OffsetDeleteRequest, OffsetDeleteTopic, OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic,
    SyncGroupAssignment, SyncGroupRequest,
};

use super::*;
use crate::kafka::Front;
use crate::kafka::testing::{
    FakeBroker, PATIENCE, TestClient, front_of, quick_config, versions_request,
};

type Response = ConsumerGroupHeartbeatResponse;

/// A front that coordinates all groups and a client of it; topic `t` has two partitions.
async fn served() -> (Arc<FakeBroker>, Arc<Front>, TestClient) {
    let broker = FakeBroker::single();
    let mut config = quick_config();
    config.group.member_count_max = 2;
    let front = front_of(&broker, config);
    tokio::spawn(Arc::clone(&front).tick_groups());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
    (broker, front, client)
}

/// Another node takes over.
async fn takeover(broker: &Arc<FakeBroker>) -> (Arc<Front>, TestClient) {
    let front = front_of(broker, quick_config());
    tokio::spawn(Arc::clone(&front).tick_groups());
    let mut client = TestClient::connect(&front);
    let load = async {
        while fetch(&mut client, None).await == Err(ErrorCode::CoordinatorLoadInProgress) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, load).await.expect("loads in time");
    (front, client)
}

fn join(member_id: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: member_id.into(),
        member_epoch: JOIN_EPOCH,
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec!["t".into()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

fn beat(member_id: &str, member_epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: member_id.into(),
        member_epoch,
        ..Default::default()
    }
}

/// The partitions of `t` in an answer.
fn assigned(response: &Response) -> Option<Vec<i32>> {
    let topics = &response.assignment.as_ref()?.topic_partitions;
    Some(topics.iter().flat_map(|topic| topic.partitions.clone()).collect())
}

async fn joined(client: &mut TestClient, member_id: &str) -> Response {
    let response = client.call(1, join(member_id)).await;
    assert_eq!(response.error_code, ErrorCode::None, "{:?}", response.error_message);
    response
}

async fn commit(client: &mut TestClient, version: i16, member_id: &str, epoch: i32) -> ErrorCode {
    let partition =
        OffsetCommitPartition { partition_index: 1, committed_offset: 7, ..Default::default() };
    let topic =
        OffsetCommitTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: epoch,
        member_id: member_id.into(),
        topics: vec![topic],
        ..Default::default()
    };
    client.call(version, request).await.topics[0].partitions[0].error_code
}

async fn fetch(client: &mut TestClient, member: Option<(&str, i32)>) -> Result<i64, ErrorCode> {
    let topic =
        OffsetFetchTopic { name: "t".into(), partition_indexes: vec![1], ..Default::default() };
    let group = OffsetFetchGroup {
        group_id: "g".into(),
        member_id: member.map(|(id, _)| id.into()),
        member_epoch: member.map_or(-1, |(_, epoch)| epoch),
        topics: Some(vec![topic]),
    };
    let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let group = client.call(9, request).await.groups[0].clone();
    if group.error_code.is_none() {
        Ok(group.topics[0].partitions[0].committed_offset)
    } else {
        Err(group.error_code)
    }
}

async fn described(client: &mut TestClient) -> DescribedConsumerGroup {
    let request =
        ConsumerGroupDescribeRequest { group_ids: vec!["g".into()], ..Default::default() };
    client.call(1, request).await.groups[0].clone()
}

fn classic_join(member_id: &str) -> JoinGroupRequest {
    let protocol = JoinGroupProtocol { name: "range".into(), metadata: Bytes::new() };
    JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        member_id: member_id.into(),
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    }
}

/// Of a silent member nobody would know for 45 s otherwise.
#[tokio::test]
async fn a_group_goes_by_its_own_configs() {
    let (broker, _front, mut client) = served().await;
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let config = |name: &str, value: &str| IncrementalAlterableConfig {
        name: name.into(),
        value: Some(value.into()),
        ..Default::default()
    };
    let configs = vec![
        config("consumer.heartbeat.interval.ms", "100"),
        config("consumer.session.timeout.ms", "400"),
    ];
    let resource =
        IncrementalAlterConfigsResource { resource_type: 32, resource_name: "g".into(), configs };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let altered = client.call(1, request).await;
    assert_eq!(altered.responses[0].error_code, ErrorCode::None);
    assert_eq!(joined(&mut client, "m").await.heartbeat_interval_ms, 100);
    let is_gone = async {
        while !described(&mut client).await.members.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, is_gone).await.expect("its session is over");
}

#[tokio::test]
async fn two_members_share_a_topic_and_go_on_at_the_next_coordinator() {
    let (broker, _front, mut client) = served().await;
    let first = joined(&mut client, "a").await;
    assert_eq!((first.member_epoch, assigned(&first)), (1, Some(vec![0, 1])));
    assert_eq!(first.heartbeat_interval_ms, 5000);
    let second = joined(&mut client, "b").await;
    assert_eq!((second.member_epoch, assigned(&second)), (2, Some(vec![])));
    let told = client.call(1, beat("a", 1)).await;
    assert_eq!((told.member_epoch, assigned(&told)), (1, Some(vec![0])));

    // In the midst of it another coordinator takes over.
    let (_front, mut client) = takeover(&broker).await;
    let uuid = broker.topic_uuid("t");
    let owned = ConsumerGroupTopic { topic_id: uuid, partitions: vec![0] };
    let let_go =
        ConsumerGroupHeartbeatRequest { topic_partitions: Some(vec![owned]), ..beat("a", 1) };
    let told = client.call(1, let_go).await;
    assert_eq!((told.error_code, told.member_epoch), (ErrorCode::None, 2));
    let told = client.call(1, beat("b", 2)).await;
    assert_eq!((told.member_epoch, assigned(&told)), (2, Some(vec![1])));

    let group = described(&mut client).await;
    assert_eq!((&*group.group_state, group.group_epoch, group.assignment_epoch), ("Stable", 2, 2));
    assert_eq!((group.members.len(), &*group.assignor_name), (2, "uniform"));
    let topic = &group.members[0].assignment.topic_partitions[0];
    assert_eq!((&*topic.topic_name, topic.topic_id, &topic.partitions[..]), ("t", uuid, &[0][..]));
    assert_eq!(&*group.members[0].client_id, "test");

    // Positions: only with the epoch of the last heartbeat.
    for (version, member, epoch, expected) in [
        (9, "a", 2, ErrorCode::None),
        (9, "a", 1, ErrorCode::StaleMemberEpoch),
        (9, "a", 3, ErrorCode::StaleMemberEpoch),
        (9, "c", 2, ErrorCode::UnknownMemberId),
        (9, "", -1, ErrorCode::UnknownMemberId),
        (8, "a", 2, ErrorCode::UnsupportedVersion),
    ] {
        let told = commit(&mut client, version, member, epoch).await;
        assert_eq!(told, expected, "{version} {member} {epoch}");
    }
    for (member, expected) in [
        (None, Ok(7)),
        (Some(("a", 2)), Ok(7)),
        (Some(("a", 1)), Err(ErrorCode::StaleMemberEpoch)),
        (Some(("c", 2)), Err(ErrorCode::UnknownMemberId)),
    ] {
        assert_eq!(fetch(&mut client, member).await, expected, "{member:?}");
    }

    // All leave, and the one after knows.
    for member in ["a", "b"] {
        let left = client.call(1, beat(member, LEAVE_EPOCH)).await;
        assert_eq!((left.error_code, left.member_epoch), (ErrorCode::None, LEAVE_EPOCH));
    }
    let (_front, mut client) = takeover(&broker).await;
    assert_eq!(&*described(&mut client).await.group_state, "Empty");
    assert_eq!(client.call(1, beat("a", 2)).await.error_code, ErrorCode::UnknownMemberId);
    assert_eq!(joined(&mut client, "a").await.member_epoch, 5, "epochs only rise");
}

#[tokio::test]
async fn bad_requests_get_the_errors_that_kafka_gives() {
    type Edit = fn(&mut ConsumerGroupHeartbeatRequest);
    let (_broker, _front, mut client) = served().await;
    let cases: [(&str, Edit, ErrorCode); 14] = [
        ("no group", |it| it.group_id = Str::new(), ErrorCode::InvalidGroupId),
        ("no member", |it| it.member_id = Str::new(), ErrorCode::InvalidRequest),
        ("empty instance", |it| it.instance_id = Some(Str::new()), ErrorCode::InvalidRequest),
        ("empty rack", |it| it.rack_id = Some(Str::new()), ErrorCode::InvalidRequest),
        ("no timeout", |it| it.rebalance_timeout_ms = -1, ErrorCode::InvalidRequest),
        ("no partitions", |it| it.topic_partitions = None, ErrorCode::InvalidRequest),
        (
            "owns some",
            |it| it.topic_partitions = Some(vec![ConsumerGroupTopic::default()]),
            ErrorCode::InvalidRequest,
        ),
        ("no topics", |it| it.subscribed_topic_names = None, ErrorCode::InvalidRequest),
        ("odd epoch", |it| it.member_epoch = -3, ErrorCode::InvalidRequest),
        ("not static", |it| it.member_epoch = LEAVE_STATIC_EPOCH, ErrorCode::InvalidRequest),
        ("assignor", |it| it.server_assignor = Some("x".into()), ErrorCode::UnsupportedAssignor),
        (
            "pattern",
            |it| it.subscribed_topic_regex = Some("(".into()),
            ErrorCode::InvalidRegularExpression,
        ),
        ("unknown", |it| it.member_epoch = 1, ErrorCode::UnknownMemberId),
        ("leaves", |it| it.member_epoch = LEAVE_EPOCH, ErrorCode::UnknownMemberId),
    ];
    for (what, edit, expected) in cases {
        let mut request = join("x");
        edit(&mut request);
        let told = client.call(1, request).await;
        assert_eq!(told.error_code, expected, "{what}");
    }

    // In version 0 the coordinator gives out ids.
    let given = client.call(0, join("")).await;
    let id = given.member_id.clone().unwrap_or_default();
    assert_eq!(given.error_code, ErrorCode::None);
    assert!(id.starts_with("test-"), "{id}");
    let fixed = ConsumerGroupHeartbeatRequest { instance_id: Some("i".into()), ..join("s") };
    assert_eq!(client.call(1, fixed.clone()).await.error_code, ErrorCode::None);
    let static_beat = |member_id: &str, epoch| ConsumerGroupHeartbeatRequest {
        instance_id: Some("i".into()),
        ..beat(member_id, epoch)
    };
    let cases = [
        (join("third"), ErrorCode::GroupMaxSizeReached),
        (beat(&id, 99), ErrorCode::FencedMemberEpoch),
        (
            ConsumerGroupHeartbeatRequest { member_id: "other".into(), ..fixed },
            ErrorCode::UnreleasedInstanceId,
        ),
        (static_beat("other", 2), ErrorCode::FencedInstanceId),
        (static_beat("s", 2), ErrorCode::None),
        (static_beat("s", LEAVE_STATIC_EPOCH), ErrorCode::None),
        (static_beat("s", 2), ErrorCode::FencedMemberEpoch),
    ];
    for (request, expected) in cases {
        let told = client.call(1, request.clone()).await;
        assert_eq!(told.error_code, expected, "{request:?}");
    }
}

#[tokio::test]
async fn only_groups_of_this_protocol_are_described() {
    let (_broker, _front, mut client) = served().await;
    let other = JoinGroupRequest { group_id: "classic".into(), ..classic_join("") };
    assert_eq!(client.call(3, other).await.error_code, ErrorCode::None);
    joined(&mut client, "a").await;
    for (group, code) in [
        ("", ErrorCode::InvalidGroupId),
        ("new", ErrorCode::GroupIdNotFound),
        ("classic", ErrorCode::GroupIdNotFound),
        ("g", ErrorCode::None),
    ] {
        let request =
            ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
        assert_eq!(client.call(1, request).await.groups[0].error_code, code, "{group:?}");
    }
}

#[tokio::test]
async fn each_protocol_turns_the_other_away_until_the_group_is_empty() {
    let (broker, _front, mut client) = served().await;
    joined(&mut client, "a").await;
    let told = client.call(3, classic_join("")).await.error_code;
    assert_eq!(told, ErrorCode::InconsistentGroupProtocol);
    let heartbeat = HeartbeatRequest {
        group_id: "g".into(),
        member_id: "a".into(),
        generation_id: 1,
        ..Default::default()
    };
    assert_eq!(client.call(4, heartbeat).await.error_code, ErrorCode::UnknownMemberId);
    let sync =
        SyncGroupRequest { group_id: "g".into(), member_id: "a".into(), ..Default::default() };
    assert_eq!(client.call(3, sync).await.error_code, ErrorCode::UnknownMemberId);
    let describe = || DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
    let told = client.call(6, describe()).await.groups[0].clone();
    assert_eq!((told.error_code, &*told.group_state), (ErrorCode::GroupIdNotFound, "Dead"));
    let delete = DeleteGroupsRequest { groups_names: vec!["g".into()] };
    assert_eq!(client.call(2, delete).await.results[0].error_code, ErrorCode::NonEmptyGroup);
    assert_eq!(commit(&mut client, 9, "a", 1).await, ErrorCode::None);

    // An operator removes the member; then the group may become a classic one.
    let leave = |member_id: &str| LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![LeavingMember { member_id: member_id.into(), ..Default::default() }],
        ..Default::default()
    };
    let left = client.call(5, leave("a")).await.members[0].error_code;
    assert_eq!(left, ErrorCode::None);
    let classic = client.call(3, classic_join("")).await;
    assert_eq!((classic.error_code, classic.generation_id), (ErrorCode::None, 3));
    let assignment =
        SyncGroupAssignment { member_id: classic.member_id.clone(), assignment: Bytes::new() };
    let sync = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: 3,
        member_id: classic.member_id.clone(),
        assignments: vec![assignment],
        ..Default::default()
    };
    assert_eq!(client.call(3, sync).await.error_code, ErrorCode::None);
    let told = client.call(1, join("b")).await;
    assert_eq!(told.error_code, ErrorCode::GroupIdNotFound, "{:?}", told.error_message);
    assert_eq!(described(&mut client).await.error_code, ErrorCode::GroupIdNotFound);
    assert_eq!(&*client.call(6, describe()).await.groups[0].group_state, "Stable");

    // And back, with the positions, and the next coordinator knows which it is.
    let left = client.call(5, leave(&classic.member_id)).await.members[0].error_code;
    assert_eq!(left, ErrorCode::None);
    let again = joined(&mut client, "b").await;
    assert_eq!(again.member_epoch, 5, "it rises above the generations");
    let (_front, mut client) = takeover(&broker).await;
    assert_eq!(&*described(&mut client).await.group_state, "Stable");
    assert_eq!(fetch(&mut client, Some(("b", 5))).await, Ok(7));
}

#[tokio::test]
async fn groups_are_listed_by_state_and_type() {
    let (_broker, _front, mut client) = served().await;
    joined(&mut client, "a").await;
    let list = |states: &[&'static str], types: &[&'static str]| ListGroupsRequest {
        states_filter: states.iter().map(|it| Str::from(*it)).collect(),
        types_filter: types.iter().map(|it| Str::from(*it)).collect(),
    };
    for (states, types, count) in [
        (&[][..], &[][..], 1),
        (&["Stable"], &["consumer"], 1),
        (&["stable"], &["Consumer"], 1),
        (&["Empty"], &[], 0),
        (&[], &["classic"], 0),
        (&["Empty", "Stable"], &["classic", "consumer"], 1),
    ] {
        let listed = client.call(5, list(states, types)).await.groups;
        assert_eq!(listed.len(), count, "{states:?} {types:?}");
        if let Some(group) = listed.first() {
            let told = (&*group.group_state, &*group.group_type, &*group.protocol_type);
            assert_eq!(told, ("Stable", "consumer", "consumer"));
        }
    }
}

#[tokio::test]
async fn positions_that_members_read_are_not_deleted() {
    let (_broker, _front, mut client) = served().await;
    client.create_topic("u", 1).await;
    joined(&mut client, "a").await;
    assert_eq!(commit(&mut client, 9, "a", 1).await, ErrorCode::None);
    let delete = |topic: &str| OffsetDeleteRequest {
        group_id: "g".into(),
        topics: vec![OffsetDeleteTopic {
            name: topic.into(),
            partitions: vec![OffsetDeletePartition { partition_index: 0 }],
        }],
    };
    for (topic, expected) in [("t", ErrorCode::GroupSubscribedToTopic), ("u", ErrorCode::None)] {
        let told = client.call(0, delete(topic)).await;
        assert_eq!(told.topics[0].partitions[0].error_code, expected, "{topic}");
    }
    assert_eq!(fetch(&mut client, None).await, Ok(7));
}

#[tokio::test]
async fn positions_expire_once_nobody_is_there_to_read_on() {
    const RETENTION_MS: i64 = 1000;
    let (_broker, front, mut client) = served().await;
    joined(&mut client, "a").await;
    assert_eq!(commit(&mut client, 9, "a", 1).await, ErrorCode::None);
    let now_ms = front.broker.wall_time_ms();
    let expire = |after_ms: i64| {
        let coordinator = front.coordinator_of("g").unwrap();
        let metadata = front.broker.metadata();
        let name = |topic| metadata.topic(topic).map(|topic| topic.name.clone());
        coordinator.state().expect("it serves").expire(now_ms + after_ms, RETENTION_MS, name)
    };
    assert_eq!(expire(10 * RETENTION_MS), 0, "a member reads the topic");
    client.call(1, beat("a", LEAVE_EPOCH)).await;
    assert_eq!(expire(RETENTION_MS - 1), 0, "it has just left");
    assert_eq!(expire(RETENTION_MS), 1);
    let forgotten = async {
        while fetch(&mut client, None).await != Ok(-1) {
            tokio::task::yield_now().await;
        }
        // An empty group without offsets goes by the next look.
        while described(&mut client).await.error_code != ErrorCode::GroupIdNotFound {
            assert_eq!(expire(RETENTION_MS), 0);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, forgotten).await.expect("and the group with it");
}

#[tokio::test]
async fn the_protocol_is_announced_as_a_feature() {
    let (_broker, _front, mut client) = served().await;
    let told = client.call(3, versions_request()).await;
    let feature = told.finalized_features.iter().find(|it| &*it.name == "group.version");
    assert_eq!(feature.map(|it| (it.min_version_level, it.max_version_level)), Some((1, 1)));
    assert!(told.supported_features.iter().any(|it| &*it.name == "group.version"));
    assert!(told.api_keys.iter().any(|it| it.api_key == 68 && it.max_version == 1));
}
