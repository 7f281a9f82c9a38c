//! What groups of the classic protocol say to requests that cannot be: the errors that Kafka gives.

use std::sync::Arc;

use meridian_protocol::messages::{
    DeleteGroupsRequest, OffsetDeletePartition, OffsetDeleteRequest, OffsetDeleteTopic,
};

use super::tests::{commit_request, join_alone, join_request, served};
use super::*;
use crate::kafka::testing::{TestClient, front_of, quick_config};

/// A static member by the name of `one`, alone in group `g`.
async fn joined_as_one(client: &mut TestClient) -> JoinGroupResponse {
    let request = JoinGroupRequest { group_instance_id: Some("one".into()), ..join_request("") };
    let joined = client.call(9, request).await;
    assert_eq!(joined.error_code, ErrorCode::None);
    let sync = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        group_instance_id: Some("one".into()),
        ..Default::default()
    };
    assert_eq!(client.call(3, sync).await.error_code, ErrorCode::None);
    joined
}

#[tokio::test]
async fn joins() {
    let (_broker, _front, mut client) = served().await;
    join_alone(&mut client).await;
    let good = || join_request("");
    let unknown_type = JoinGroupRequest { protocol_type: "connect".into(), ..good() };
    for (what, request, code) in [
        (
            "no group",
            JoinGroupRequest { group_id: Str::new(), ..good() },
            ErrorCode::InvalidGroupId,
        ),
        (
            "too short a session",
            JoinGroupRequest { session_timeout_ms: 0, ..good() },
            ErrorCode::InvalidSessionTimeout,
        ),
        (
            "too long a session",
            JoinGroupRequest { session_timeout_ms: i32::MAX, ..good() },
            ErrorCode::InvalidSessionTimeout,
        ),
        ("a stranger", join_request("nobody"), ErrorCode::UnknownMemberId),
        (
            "a stranger to a new group",
            JoinGroupRequest { group_id: "new".into(), ..join_request("nobody") },
            ErrorCode::UnknownMemberId,
        ),
        ("another type of protocol", unknown_type, ErrorCode::InconsistentGroupProtocol),
        (
            "no protocol in common",
            JoinGroupRequest {
                protocols: vec![meridian_protocol::messages::JoinGroupProtocol {
                    name: "sticky".into(),
                    ..Default::default()
                }],
                ..good()
            },
            ErrorCode::InconsistentGroupProtocol,
        ),
        (
            "no protocol at all",
            JoinGroupRequest { group_id: "new".into(), protocols: Vec::new(), ..good() },
            ErrorCode::InconsistentGroupProtocol,
        ),
        (
            "no type of protocol",
            JoinGroupRequest { group_id: "new".into(), protocol_type: Str::new(), ..good() },
            ErrorCode::InconsistentGroupProtocol,
        ),
        ("no member id yet", good(), ErrorCode::MemberIdRequired),
    ] {
        assert_eq!(client.call(9, request).await.error_code, code, "{what}");
    }
}

#[tokio::test]
async fn a_full_group_takes_nobody() {
    let mut config = quick_config();
    config.group.member_count_max = 1;
    let front = front_of(&crate::kafka::testing::FakeBroker::single(), config);
    tokio::spawn(Arc::clone(&front).tick_groups());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    let find = meridian_protocol::messages::FindCoordinatorRequest {
        coordinator_keys: vec!["g".into()],
        ..Default::default()
    };
    assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
    join_alone(&mut client).await;
    let told = client.call(9, join_request("")).await.error_code;
    assert_eq!(told, ErrorCode::GroupMaxSizeReached);
}

#[tokio::test]
async fn syncs_and_heartbeats() {
    let (_broker, _front, mut client) = served().await;
    let joined = joined_as_one(&mut client).await;
    let (group, one, member) = ("g", Some("one"), &*joined.member_id);
    let generation = joined.generation_id;
    for (what, group_id, member_id, instance, generation_id, code) in [
        ("well", group, member, one, generation, ErrorCode::None),
        ("no group", "", member, one, generation, ErrorCode::InvalidGroupId),
        ("an unknown group", "new", member, None, generation, ErrorCode::UnknownMemberId),
        ("a stranger", group, "nobody", None, generation, ErrorCode::UnknownMemberId),
        ("an old generation", group, member, one, generation - 1, ErrorCode::IllegalGeneration),
        ("a generation to come", group, member, one, generation + 1, ErrorCode::IllegalGeneration),
        ("a fenced instance", group, "former", one, generation, ErrorCode::FencedInstanceId),
        ("an unknown instance", group, member, Some("two"), generation, ErrorCode::UnknownMemberId),
    ] {
        let heartbeat = HeartbeatRequest {
            group_id: group_id.into(),
            generation_id,
            member_id: member_id.into(),
            group_instance_id: instance.map(Str::from),
        };
        assert_eq!(client.call(4, heartbeat).await.error_code, code, "heartbeat: {what}");
        let sync = SyncGroupRequest {
            group_id: group_id.into(),
            generation_id,
            member_id: member_id.into(),
            group_instance_id: instance.map(Str::from),
            ..Default::default()
        };
        assert_eq!(client.call(4, sync).await.error_code, code, "sync: {what}");
    }
    for (kind, name, code) in [
        (Some("consumer"), Some("range"), ErrorCode::None),
        (Some("connect"), Some("range"), ErrorCode::InconsistentGroupProtocol),
        (Some("consumer"), Some("sticky"), ErrorCode::InconsistentGroupProtocol),
        // From version 5 on both are mandatory (KIP-559).
        (None, Some("range"), ErrorCode::InconsistentGroupProtocol),
        (Some("consumer"), None, ErrorCode::InconsistentGroupProtocol),
    ] {
        let sync = SyncGroupRequest {
            group_id: "g".into(),
            generation_id: generation,
            member_id: joined.member_id.clone(),
            protocol_type: kind.map(Str::from),
            protocol_name: name.map(Str::from),
            ..Default::default()
        };
        assert_eq!(client.call(5, sync).await.error_code, code, "{kind:?} {name:?}");
    }
}

#[tokio::test]
async fn leaves() {
    let (_broker, _front, mut client) = served().await;
    let joined = joined_as_one(&mut client).await;
    let leave = |group: &str, member: &str, instance: Option<&str>| LeaveGroupRequest {
        group_id: group.into(),
        members: vec![LeavingMember {
            member_id: member.into(),
            group_instance_id: instance.map(Str::from),
            ..Default::default()
        }],
        ..Default::default()
    };
    for (what, request, code, of_member) in [
        ("no group", leave("", "m", None), ErrorCode::InvalidGroupId, None),
        (
            "an unknown group",
            leave("new", "m", None),
            ErrorCode::None,
            Some(ErrorCode::UnknownMemberId),
        ),
        (
            "a stranger",
            leave("g", "nobody", None),
            ErrorCode::None,
            Some(ErrorCode::UnknownMemberId),
        ),
        (
            "an unknown instance",
            leave("g", "", Some("two")),
            ErrorCode::None,
            Some(ErrorCode::UnknownMemberId),
        ),
        (
            "a fenced instance",
            leave("g", "former", Some("one")),
            ErrorCode::None,
            Some(ErrorCode::FencedInstanceId),
        ),
        (
            "well",
            leave("g", &joined.member_id, Some("one")),
            ErrorCode::None,
            Some(ErrorCode::None),
        ),
    ] {
        let told = client.call(5, request).await;
        let member = told.members.first().map(|member| member.error_code);
        assert_eq!((told.error_code, member), (code, of_member), "{what}");
    }
    // Before members could leave together, the answer was theirs.
    let alone =
        LeaveGroupRequest { group_id: "new".into(), member_id: "m".into(), ..Default::default() };
    assert_eq!(client.call(2, alone).await.error_code, ErrorCode::UnknownMemberId);
}

#[tokio::test]
async fn commits() {
    let (_broker, _front, mut client) = served().await;
    let joined = joined_as_one(&mut client).await;
    let good = commit_request(1, Some(&joined));
    let generation = joined.generation_id;
    for (what, version, group, member, instance, generation, code) in [
        ("well", 9, "g", &*joined.member_id, None, generation, ErrorCode::None),
        ("nobody in particular", 9, "g", "", None, -1, ErrorCode::UnknownMemberId),
        ("a stranger", 9, "g", "nobody", None, generation, ErrorCode::UnknownMemberId),
        ("an old one", 9, "g", &*joined.member_id, None, 0, ErrorCode::IllegalGeneration),
        ("fenced", 9, "g", "former", Some("one"), generation, ErrorCode::FencedInstanceId),
        ("a member of no group", 8, "new", "m", None, 3, ErrorCode::IllegalGeneration),
        ("a member of no group", 9, "new", "m", None, 3, ErrorCode::GroupIdNotFound),
        ("alone", 9, "alone", "", None, -1, ErrorCode::None),
        ("without a name, as old consumers", 9, "", "", None, -1, ErrorCode::None),
        ("named, but in no generation", 9, "alone", "m", None, -1, ErrorCode::None),
        ("in a group without members", 9, "alone", "m", None, 0, ErrorCode::UnknownMemberId),
    ] {
        let request = meridian_protocol::messages::OffsetCommitRequest {
            group_id: group.into(),
            member_id: member.into(),
            group_instance_id: instance.map(Str::from),
            generation_id_or_member_epoch: generation,
            ..good.clone()
        };
        let told = client.call(version, request).await.topics[0].partitions[0].error_code;
        assert_eq!(told, code, "{what}, version {version}");
    }
    let mut nowhere = good.clone();
    nowhere.member_id = "nobody".into();
    nowhere.topics[0].name = "none".into();
    let told = client.call(9, nowhere).await.topics[0].partitions[0].error_code;
    assert_eq!(told, ErrorCode::UnknownTopicOrPartition, "whoever asks");
}

#[tokio::test]
async fn deletions() {
    let (_broker, _front, mut client) = served().await;
    joined_as_one(&mut client).await;
    let worker = JoinGroupRequest {
        group_id: "workers".into(),
        protocol_type: "connect".into(),
        ..join_request("")
    };
    assert_eq!(client.call(3, worker).await.error_code, ErrorCode::None);
    for (group, code) in [
        ("", ErrorCode::GroupIdNotFound),
        ("new", ErrorCode::GroupIdNotFound),
        ("g", ErrorCode::NonEmptyGroup),
        ("workers", ErrorCode::NonEmptyGroup),
    ] {
        let request = DeleteGroupsRequest { groups_names: vec![group.into()] };
        assert_eq!(client.call(2, request).await.results[0].error_code, code, "group {group:?}");
    }
    for (group, code) in [
        ("", ErrorCode::InvalidGroupId),
        ("new", ErrorCode::GroupIdNotFound),
        ("g", ErrorCode::None),
        ("workers", ErrorCode::NonEmptyGroup),
    ] {
        let partitions = vec![OffsetDeletePartition { partition_index: 0 }];
        let topics = vec![OffsetDeleteTopic { name: "t".into(), partitions }];
        let request = OffsetDeleteRequest { group_id: group.into(), topics };
        assert_eq!(client.call(0, request).await.error_code, code, "positions of {group:?}");
    }
    let unknown = ErrorCode::UnknownTopicOrPartition;
    for (topic, partition_index, code) in [
        ("t", 0, ErrorCode::None),
        ("t", 9, unknown),
        ("t", -1, unknown),
        ("none", 0, unknown),
        ("", 0, unknown),
        ("a/b", 0, unknown),
    ] {
        let partitions = vec![OffsetDeletePartition { partition_index }];
        let topics = vec![OffsetDeleteTopic { name: topic.into(), partitions }];
        let request = OffsetDeleteRequest { group_id: "g".into(), topics };
        let told = client.call(0, request).await;
        assert_eq!(told.error_code, ErrorCode::None);
        let told = told.topics[0].partitions[0].error_code;
        assert_eq!(told, code, "the position at {topic:?} {partition_index}");
    }
}

#[tokio::test]
async fn descriptions_and_lists() {
    let (_broker, _front, mut client) = served().await;
    joined_as_one(&mut client).await;
    let none = ErrorCode::None;
    for (what, version, group, expected) in [
        ("well", 6, "g", (none, "Stable", 1)),
        ("no such group", 6, "new", (ErrorCode::GroupIdNotFound, "Dead", 0)),
        ("no such group, as it was told once", 5, "new", (none, "Dead", 0)),
        ("no name", 6, "", (ErrorCode::GroupIdNotFound, "Dead", 0)),
        ("no name, as it was told once", 5, "", (none, "Dead", 0)),
    ] {
        let request = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
        let told = client.call(version, request).await.groups.remove(0);
        let seen = (told.error_code, &*told.group_state, told.members.len());
        assert_eq!(seen, expected, "{what}");
    }
    for (what, states, types, count) in [
        ("all", vec![], vec![], 1),
        ("in whatever letters", vec!["sTABLE"], vec!["CLASSIC"], 1),
        ("no such state", vec!["Odd"], vec![], 0),
        ("no such type", vec![], vec!["odd"], 0),
        ("one of them", vec!["Odd", "Stable"], vec![], 1),
        ("a state of another type", vec!["Assigning"], vec![], 0),
    ] {
        let filter = |words: Vec<&str>| words.into_iter().map(Str::from).collect();
        let request =
            ListGroupsRequest { states_filter: filter(states), types_filter: filter(types) };
        let told = client.call(5, request).await;
        assert_eq!((told.error_code, told.groups.len()), (none, count), "{what}");
    }
}
