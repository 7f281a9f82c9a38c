use std::sync::Arc;

use meridian_protocol::messages::{
    ConsumerGroupHeartbeatRequest, DeleteGroupsRequest, FindCoordinatorRequest, JoinGroupProtocol,
    OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic, OffsetDeletePartition,
    OffsetDeleteRequest, OffsetDeleteTopic, OffsetFetchGroup, OffsetFetchPartitionResponse,
    OffsetFetchRequest, OffsetFetchTopic, SyncGroupAssignment,
};

use super::*;
use crate::config::{FrontConfig, GroupConfig};
use crate::group::GroupState;
use crate::kafka::Front;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

/// A front that coordinates all groups and a client of it; topic `t` has two partitions.
pub(crate) async fn served() -> (Arc<FakeBroker>, Arc<Front>, TestClient) {
    let broker = FakeBroker::single();
    let front = front_of(&broker, quick_config());
    tokio::spawn(Arc::clone(&front).tick_groups());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    let found = client.call(4, find).await.coordinators[0].clone();
    assert_eq!((found.error_code, found.node_id), (ErrorCode::None, 1));
    (broker, front, client)
}

pub(super) fn join_request(member_id: &str) -> JoinGroupRequest {
    let protocol =
        JoinGroupProtocol { name: "range".into(), metadata: Bytes::from_static(b"topics") };
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

/// Joins as a modern client does, alone, and takes all the work.
pub(crate) async fn join_alone(client: &mut TestClient) -> JoinGroupResponse {
    let told = client.call(9, join_request("")).await;
    assert_eq!(told.error_code, ErrorCode::MemberIdRequired);
    let joined = client.call(9, join_request(&told.member_id)).await;
    assert_eq!((joined.error_code, &joined.leader), (ErrorCode::None, &joined.member_id));
    let assignment = SyncGroupAssignment {
        member_id: joined.member_id.clone(),
        assignment: Bytes::from_static(b"all"),
    };
    let sync = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        assignments: vec![assignment],
        ..Default::default()
    };
    let synced = client.call(3, sync).await;
    assert_eq!((synced.error_code, &synced.assignment[..]), (ErrorCode::None, &b"all"[..]));
    joined
}

pub(crate) fn commit_request(
    offset: i64,
    member: Option<&JoinGroupResponse>,
) -> OffsetCommitRequest {
    let partition = OffsetCommitPartition {
        partition_index: 1,
        committed_offset: offset,
        committed_leader_epoch: 0,
        committed_metadata: Some("note".into()),
        ..Default::default()
    };
    let topic =
        OffsetCommitTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
    OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: member.map_or(-1, |joined| joined.generation_id),
        member_id: member.map(|joined| joined.member_id.clone()).unwrap_or_default(),
        topics: vec![topic],
        ..Default::default()
    }
}

async fn commit(
    client: &mut TestClient,
    offset: i64,
    member: Option<&JoinGroupResponse>,
) -> ErrorCode {
    let response = client.call(9, commit_request(offset, member)).await;
    response.topics[0].partitions[0].error_code
}

async fn position(client: &mut TestClient) -> Result<OffsetFetchPartitionResponse, ErrorCode> {
    let topic =
        OffsetFetchTopic { name: "t".into(), partition_indexes: vec![1], ..Default::default() };
    let group =
        OffsetFetchGroup { group_id: "g".into(), topics: Some(vec![topic]), ..Default::default() };
    let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let group = client.call(9, request).await.groups[0].clone();
    if group.error_code.is_none() {
        Ok(group.topics[0].partitions[0].clone())
    } else {
        Err(group.error_code)
    }
}

#[tokio::test]
async fn a_group_works_from_join_to_leave() {
    let (_broker, _front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    let heartbeat = HeartbeatRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        ..Default::default()
    };
    assert_eq!(client.call(4, heartbeat.clone()).await.error_code, ErrorCode::None);
    let stale = HeartbeatRequest { generation_id: 99, ..heartbeat.clone() };
    assert_eq!(client.call(4, stale).await.error_code, ErrorCode::IllegalGeneration);

    let listed = client.call(5, ListGroupsRequest::default()).await;
    assert_eq!((listed.groups.len(), &*listed.groups[0].group_state), (1, "Stable"));
    let describe = DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
    let described = client.call(6, describe).await.groups[0].clone();
    assert_eq!(described.members[0].member_id, joined.member_id);
    assert_eq!(&described.members[0].member_assignment[..], b"all");

    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![LeavingMember { member_id: joined.member_id, ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(client.call(5, leave.clone()).await.members[0].error_code, ErrorCode::None);
    let again = client.call(5, leave).await.members[0].error_code;
    assert_eq!(again, ErrorCode::UnknownMemberId);
    assert_eq!(client.call(4, heartbeat).await.error_code, ErrorCode::UnknownMemberId);
}

#[tokio::test]
async fn a_group_that_became_empty_is_there_until_it_is_deleted() {
    let (_broker, front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![LeavingMember { member_id: joined.member_id, ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(client.call(5, leave).await.members[0].error_code, ErrorCode::None);
    let coordinator = front.coordinator_of("g").expect("here");
    coordinator.state().expect("it serves").tick(front.now(), front.broker.wall_time_ms());
    let listed = client.call(5, ListGroupsRequest::default()).await;
    assert_eq!((listed.groups.len(), &*listed.groups[0].group_state), (1, "Empty"));
    let delete = DeleteGroupsRequest { groups_names: vec!["g".into()] };
    let told = client.call(2, delete.clone()).await.results[0].error_code;
    assert_eq!(told, ErrorCode::None);
    assert_eq!(client.call(2, delete).await.results[0].error_code, ErrorCode::GroupIdNotFound);
}

#[tokio::test]
async fn an_empty_group_without_offsets_goes_when_offsets_expire() {
    let (_broker, front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    let coordinator = front.coordinator_of("g").expect("here");
    let expire =
        || coordinator.state().expect("it serves").expire(0, 1000, |_| Some("t".to_owned()));
    expire();
    assert!(coordinator.state().expect("it serves").existing("g").is_some());
    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![LeavingMember { member_id: joined.member_id, ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(client.call(5, leave).await.members[0].error_code, ErrorCode::None);
    expire();
    assert!(coordinator.state().expect("it serves").existing("g").is_none());
}

#[tokio::test]
async fn an_offset_does_not_expire_and_is_not_deleted_while_its_group_is_being_joined() {
    let (_broker, front, mut client) = served().await;
    assert_eq!(commit(&mut client, 7, None).await, ErrorCode::None);
    join_alone(&mut client).await;
    let now = front.now();
    let coordinator = front.coordinator_of("g").expect("here");
    let mut groups = coordinator.state().expect("it serves");
    let group = groups.entry("g").and_then(|entry| entry.classic(now)).expect("a classic group");
    let (waiter, _answer) = oneshot::channel();
    let join = Join {
        member_id: None,
        new_member_id: "m".to_owned(),
        requires_member_id: false,
        instance_id: None,
        client_id: String::new(),
        client_host: String::new(),
        session_timeout: Duration::from_secs(10),
        rebalance_timeout: Duration::from_secs(10),
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), Bytes::new())],
        can_skip_assignment: false,
    };
    group.join(now, join, waiter, &mut Vec::new());
    assert_eq!(group.state(), GroupState::PreparingRebalance, "the first has to join again");
    let late = front.broker.wall_time_ms() + 5000;
    assert_eq!(groups.expire(late, 1000, |_| Some("t".to_owned())), 0);
    let read = groups.by_id["g"].group.subscribed(["t".to_owned()].into_iter());
    assert!(read.contains("t"), "OffsetDelete says GROUP_SUBSCRIBED_TO_TOPIC");
}

#[tokio::test]
async fn one_question_for_all_groups_makes_all_partitions_load() {
    let (broker, _front, mut client) = served().await;
    for number in 0..10 {
        let group_id = format!("g{number}").into();
        let request = OffsetCommitRequest { group_id, ..commit_request(1, None) };
        let committed = client.call(9, request).await.topics[0].partitions[0].error_code;
        assert_eq!(committed, ErrorCode::None);
    }
    // One that has loaded nothing yet, as after a takeover.
    let next = front_of(&broker, quick_config());
    let told = TestClient::connect(&next).call(5, ListGroupsRequest::default()).await;
    assert_eq!((told.error_code, told.groups.len()), (ErrorCode::None, 10), "it waits for them");
    let partitions = broker.state().topic_named("__consumer_offsets").unwrap().partitions.clone();
    let waiting = partitions.iter().filter(|id| next.coordinators.known(**id).is_none()).count();
    assert_eq!(waiting, 0, "of {} partitions", partitions.len());
}

/// However many groups clients make, their members make a node hold no more than it allows.
#[tokio::test]
async fn members_of_all_groups_share_a_bound() {
    const LIMIT_BYTES: usize = 64 << 10;
    let group = GroupConfig { memory_size_bytes_max: LIMIT_BYTES, ..quick_config().group };
    let front = front_of(&FakeBroker::single(), FrontConfig { group, ..quick_config() });
    tokio::spawn(Arc::clone(&front).tick_groups());
    let mut client = TestClient::connect(&front);
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    client.call(4, find).await;
    let join = |number: usize| {
        let metadata = Bytes::from(vec![7; 8 << 10]);
        let protocols = vec![JoinGroupProtocol { name: "range".into(), metadata }];
        JoinGroupRequest { group_id: format!("g{number}").into(), protocols, ..join_request("") }
    };
    let mut taken = Vec::new();
    let refused = loop {
        // Version 3: a member is given its id with its first join.
        let told = client.call(3, join(taken.len())).await;
        if !told.error_code.is_none() {
            break told.error_code;
        }
        taken.push(told.member_id);
    };
    assert_eq!((refused, taken.len()), (ErrorCode::GroupMaxSizeReached, 7));
    let used = || {
        let samples = front.samples();
        let mut found = samples.iter().filter(|it| it.label == Some(("kind", "group-members")));
        found.find(|it| it.name == "meridian_kafka_memory_bytes").map(|it| it.value)
    };
    assert!(used().is_some_and(|bytes| (7 << 13..=8 << 13).contains(&bytes)), "{:?}", used());
    let beat = ConsumerGroupHeartbeatRequest {
        group_id: "other".into(),
        member_id: "m".into(),
        rebalance_timeout_ms: 1000,
        subscribed_topic_names: Some((0..40).map(|it| format!("{it:0249}").into()).collect()),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let told = client.call(1, beat).await;
    assert_eq!(told.error_code, ErrorCode::GroupMaxSizeReached, "of both protocols");

    let member_id = taken.remove(0);
    let leave = LeaveGroupRequest { group_id: "g0".into(), member_id, ..Default::default() };
    assert_eq!(client.call(1, leave).await.error_code, ErrorCode::None);
    let has_room = async {
        while client.call(3, join(7)).await.error_code != ErrorCode::None {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, has_room).await.expect("room for another");
}

#[tokio::test]
async fn partitions_that_members_are_assigned_count_at_once() {
    let group = GroupConfig { memory_size_bytes_max: 64 << 10, ..quick_config().group };
    let front = front_of(&FakeBroker::single(), FrontConfig { group, ..quick_config() });
    let mut client = TestClient::connect(&front);
    client.create_topic("wide", 100).await;
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    client.call(4, find).await;
    let mut taken_count = 0;
    loop {
        let beat = ConsumerGroupHeartbeatRequest {
            group_id: format!("g{taken_count}").into(),
            member_id: "m".into(),
            rebalance_timeout_ms: 1000,
            subscribed_topic_names: Some(vec!["wide".into()]),
            topic_partitions: Some(Vec::new()),
            ..Default::default()
        };
        match client.call(1, beat).await.error_code {
            ErrorCode::None => taken_count += 1,
            refused => break assert_eq!(refused, ErrorCode::GroupMaxSizeReached),
        }
    }
    assert_eq!(taken_count, 2, "32 KB each");
}

#[tokio::test]
async fn two_members_rebalance_and_a_silent_one_is_dropped() {
    let (_broker, front, mut first) = served().await;
    let quick =
        |member_id: &str| JoinGroupRequest { session_timeout_ms: 300, ..join_request(member_id) };
    // Version 3: a member is given its id with its first join.
    let joined = first.call(3, quick("")).await;
    assert_eq!(joined.error_code, ErrorCode::None);
    let mut second = TestClient::connect(&front);
    let id = second.send(3, &quick("")).await;
    // The first never comes back: the second is served as soon as that is clear.
    let alone = second.receive::<JoinGroupRequest>(3, id).await;
    assert_eq!((alone.error_code, alone.members.len()), (ErrorCode::None, 1));
    assert!(alone.generation_id > joined.generation_id);
}

#[tokio::test]
async fn offsets_are_kept_by_the_log_and_read_back_by_the_next_coordinator() {
    let (broker, front, mut client) = served().await;
    assert_eq!(position(&mut client).await.map(|it| it.committed_offset), Ok(-1));
    assert_eq!(commit(&mut client, 41, None).await, ErrorCode::None);
    assert_eq!(commit(&mut client, 42, None).await, ErrorCode::None);
    let found = position(&mut client).await.unwrap();
    assert_eq!((found.committed_offset, found.metadata.as_deref()), (42, Some("note")));
    drop(front);

    // A front that knows nothing reads it from the log before it answers.
    let next = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&next);
    assert_eq!(position(&mut client).await, Err(ErrorCode::CoordinatorLoadInProgress));
    let found = loop {
        match position(&mut client).await {
            Err(ErrorCode::CoordinatorLoadInProgress) => tokio::task::yield_now().await,
            found => break found.unwrap(),
        }
    };
    assert_eq!((found.committed_offset, found.metadata.as_deref()), (42, Some("note")));
}

/// Asks the next coordinator until it has read the log.
async fn loaded(client: &mut TestClient) {
    let load = async {
        while position(client).await == Err(ErrorCode::CoordinatorLoadInProgress) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, load).await.expect("loads in time");
}

#[tokio::test]
async fn members_go_on_in_their_generation_at_the_next_coordinator() {
    let (broker, _front, mut client) = served().await;
    let joined = join_alone(&mut client).await;

    let next = front_of(&broker, quick_config());
    tokio::spawn(Arc::clone(&next).tick_groups());
    let mut client = TestClient::connect(&next);
    loaded(&mut client).await;
    let heartbeat = HeartbeatRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        ..Default::default()
    };
    assert_eq!(client.call(4, heartbeat.clone()).await.error_code, ErrorCode::None);
    assert_eq!(commit(&mut client, 7, Some(&joined)).await, ErrorCode::None);
    let stale = JoinGroupResponse { generation_id: joined.generation_id - 1, ..joined.clone() };
    assert_eq!(commit(&mut client, 8, Some(&stale)).await, ErrorCode::IllegalGeneration);
    let sync = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        ..Default::default()
    };
    let synced = client.call(3, sync).await;
    assert_eq!((synced.error_code, &synced.assignment[..]), (ErrorCode::None, &b"all"[..]));

    // Once it has left, the one after knows: the generation is over.
    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![LeavingMember { member_id: joined.member_id, ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(client.call(5, leave).await.error_code, ErrorCode::None);
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let early = client.call(4, heartbeat.clone()).await.error_code;
    assert_eq!(early, ErrorCode::None, "while it loads nobody is unknown");
    loaded(&mut client).await;
    assert_eq!(client.call(4, heartbeat).await.error_code, ErrorCode::UnknownMemberId);
    assert_eq!(position(&mut client).await.map(|it| it.committed_offset), Ok(7));
}

#[tokio::test]
async fn a_group_that_is_deleted_stays_so_at_the_next_coordinator() {
    let (broker, _front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    assert_eq!(commit(&mut client, 5, Some(&joined)).await, ErrorCode::None);
    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        member_id: joined.member_id,
        ..Default::default()
    };
    assert_eq!(client.call(2, leave).await.error_code, ErrorCode::None);
    let delete = || DeleteGroupsRequest { groups_names: vec!["g".into()] };
    assert_eq!(client.call(2, delete()).await.results[0].error_code, ErrorCode::None);

    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    loaded(&mut client).await;
    let told = client.call(2, delete()).await.results[0].error_code;
    assert_eq!(told, ErrorCode::GroupIdNotFound);
}

#[tokio::test]
async fn only_members_commit_while_there_are_any() {
    let (_broker, _front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    assert_eq!(commit(&mut client, 1, None).await, ErrorCode::UnknownMemberId);
    let stale = JoinGroupResponse { generation_id: 77, ..joined.clone() };
    assert_eq!(commit(&mut client, 1, Some(&stale)).await, ErrorCode::IllegalGeneration);
    assert_eq!(commit(&mut client, 1, Some(&joined)).await, ErrorCode::None);

    let mut bad = commit_request(1, Some(&joined));
    bad.topics[0].partitions[0].partition_index = 7;
    let told = client.call(9, bad).await.topics[0].partitions[0].error_code;
    assert_eq!(told, ErrorCode::UnknownTopicOrPartition);
    let mut long = commit_request(1, Some(&joined));
    long.topics[0].partitions[0].committed_metadata = Some("x".repeat(5000).into());
    let told = client.call(9, long).await.topics[0].partitions[0].error_code;
    assert_eq!(told, ErrorCode::OffsetMetadataTooLarge);
}

#[tokio::test]
async fn groups_and_offsets_are_deleted() {
    let (_broker, _front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    assert_eq!(commit(&mut client, 5, Some(&joined)).await, ErrorCode::None);
    let delete = || DeleteGroupsRequest { groups_names: vec!["g".into()] };
    let told = client.call(2, delete()).await.results[0].error_code;
    assert_eq!(told, ErrorCode::NonEmptyGroup);

    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        member_id: joined.member_id,
        ..Default::default()
    };
    assert_eq!(client.call(2, leave).await.error_code, ErrorCode::None);
    let forget = OffsetDeleteRequest {
        group_id: "g".into(),
        topics: vec![OffsetDeleteTopic {
            name: "t".into(),
            partitions: vec![OffsetDeletePartition { partition_index: 1 }],
        }],
    };
    let told = client.call(0, forget).await;
    assert_eq!(told.topics[0].partitions[0].error_code, ErrorCode::None);
    assert_eq!(position(&mut client).await.map(|it| it.committed_offset), Ok(-1));

    assert_eq!(commit(&mut client, 6, None).await, ErrorCode::None);
    let told = client.call(2, delete()).await.results[0].error_code;
    assert_eq!(told, ErrorCode::None);
    assert_eq!(position(&mut client).await.map(|it| it.committed_offset), Ok(-1));
    let told = client.call(2, delete()).await.results[0].error_code;
    assert_eq!(told, ErrorCode::GroupIdNotFound);
}

#[tokio::test]
async fn the_wrong_coordinator_says_so() {
    let broker = FakeBroker::three_datacenters();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let told = client.call(9, join_request("")).await.error_code;
    assert_eq!(told, ErrorCode::NotCoordinator, "there is no internal topic yet");
    let nameless = JoinGroupRequest { group_id: Str::new(), ..join_request("") };
    assert_eq!(client.call(9, nameless).await.error_code, ErrorCode::InvalidGroupId);
    let hasty = JoinGroupRequest { session_timeout_ms: 0, ..join_request("") };
    assert_eq!(client.call(9, hasty).await.error_code, ErrorCode::InvalidSessionTimeout);
    let groups: Vec<Str> = (0..20).map(|n| format!("group-{n}").into()).collect();
    let find = FindCoordinatorRequest { coordinator_keys: groups.clone(), ..Default::default() };
    let found = client.call(4, find).await.coordinators;
    let elsewhere = found.iter().find(|it| it.node_id != 1).expect("20 groups, 2 partitions");
    let join = JoinGroupRequest { group_id: elsewhere.key.clone(), ..join_request("") };
    assert_eq!(client.call(9, join).await.error_code, ErrorCode::NotCoordinator);
    // Led here, but not served yet: worth asking again.
    if let Some(here) = found.iter().find(|it| it.node_id == 1) {
        let join = JoinGroupRequest { group_id: here.key.clone(), ..join_request("") };
        let told = client.call(9, join).await.error_code;
        assert_eq!(told, ErrorCode::CoordinatorLoadInProgress);
    }
}

#[tokio::test]
async fn the_metadata_log_sees_nothing_of_groups() {
    let (broker, _front, mut client) = served().await;
    let before = broker.applied_count();
    let joined = join_alone(&mut client).await;
    for offset in 0..200 {
        assert_eq!(commit(&mut client, offset, Some(&joined)).await, ErrorCode::None);
    }
    assert_eq!(broker.applied_count(), before);
}
