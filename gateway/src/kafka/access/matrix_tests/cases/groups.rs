//! Groups and what they have committed.

use meridian_access::Operation::{ClusterAction, Delete, Describe, Read};
use meridian_protocol::ErrorCode;
use meridian_protocol::Uuid;
use meridian_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, DeleteGroupsRequest,
    DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest, JoinGroupProtocol,
    JoinGroupRequest, LeaveGroupRequest, ListGroupsRequest, OffsetCommitPartition,
    OffsetCommitRequest, OffsetCommitTopic, OffsetDeletePartition, OffsetDeleteRequest,
    OffsetDeleteTopic, OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic, SyncGroupRequest,
};

use super::super::{
    Case, GROUP, ON_CLUSTER, ON_GROUP, ON_TOPIC, ON_TRANSACTION, ON_WORKERS, Refused, TOPIC,
    TRANSACTION, WORKERS,
};

const DENIED: Refused = Refused::With(ErrorCode::GroupAuthorizationFailed);

fn commit(topic_id: Uuid) -> OffsetCommitRequest {
    let partitions = vec![OffsetCommitPartition::default()];
    let topic = OffsetCommitTopic { name: TOPIC.into(), topic_id, partitions };
    OffsetCommitRequest { group_id: GROUP.into(), topics: vec![topic], ..Default::default() }
}

fn committed(topics: Option<Vec<OffsetFetchTopic>>) -> OffsetFetchRequest {
    let group = OffsetFetchGroup { group_id: GROUP.into(), topics, ..Default::default() };
    OffsetFetchRequest { groups: vec![group], ..Default::default() }
}

fn find(key_type: i8, key: &str) -> FindCoordinatorRequest {
    FindCoordinatorRequest { key_type, coordinator_keys: vec![key.into()], ..Default::default() }
}

fn beat(names: Option<&str>) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: WORKERS.into(),
        member_id: "alice".into(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: names.map(|name| vec![name.into()]),
        subscribed_topic_regex: names.is_none().then(|| "o.*".into()),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

fn of_members() -> Vec<Case> {
    let reads = [(Read, ON_GROUP)];
    let reads_topic = [(Read, ON_WORKERS), (Describe, ON_TOPIC)];
    vec![
        Case::new("", &reads, DENIED, |_| {
            let protocol = JoinGroupProtocol { name: "range".into(), ..Default::default() };
            JoinGroupRequest {
                group_id: GROUP.into(),
                session_timeout_ms: 10_000,
                protocol_type: "consumer".into(),
                protocols: vec![protocol],
                ..Default::default()
            }
        }),
        Case::new("", &reads, DENIED, |_| SyncGroupRequest {
            group_id: GROUP.into(),
            protocol_type: Some("consumer".into()),
            protocol_name: Some("range".into()),
            ..Default::default()
        }),
        Case::new("", &reads, DENIED, |_| HeartbeatRequest {
            group_id: GROUP.into(),
            ..Default::default()
        }),
        Case::new("", &reads, DENIED, |_| LeaveGroupRequest {
            group_id: GROUP.into(),
            ..Default::default()
        }),
        Case::new("of a name", &reads_topic, DENIED, |_| beat(Some(TOPIC))),
        Case::new("of a pattern", &[(Read, ON_WORKERS)], DENIED, |_| beat(None)),
    ]
}

fn of_positions() -> Vec<Case> {
    let reads = [(Read, ON_GROUP), (Read, ON_TOPIC)];
    let looks = [(Describe, ON_GROUP), (Describe, ON_TOPIC)];
    let deletes = [(Delete, ON_GROUP), (Read, ON_TOPIC)];
    vec![
        Case::new("by id", &reads, DENIED, commit),
        Case::of_version(9, "by name", &reads, DENIED, commit),
        Case::of_version(9, "by name", &looks, DENIED, |_| {
            let partition_indexes = vec![0];
            let topic =
                OffsetFetchTopic { name: TOPIC.into(), partition_indexes, ..Default::default() };
            committed(Some(vec![topic]))
        }),
        Case::new("by id", &looks, DENIED, |topic_id| {
            let partition_indexes = vec![0];
            let topic = OffsetFetchTopic { topic_id, partition_indexes, ..Default::default() };
            committed(Some(vec![topic]))
        }),
        Case::of_version(9, "of all", &[(Describe, ON_GROUP)], DENIED, |_| committed(None)),
        Case::new("", &deletes, DENIED, |_| {
            let partitions = vec![OffsetDeletePartition { partition_index: 0 }];
            let topics = vec![OffsetDeleteTopic { name: TOPIC.into(), partitions }];
            OffsetDeleteRequest { group_id: GROUP.into(), topics }
        }),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let of_transaction = Refused::With(ErrorCode::TransactionalIdAuthorizationFailed);
    let of_cluster = Refused::With(ErrorCode::ClusterAuthorizationFailed);
    let workers = [(Describe, ON_WORKERS), (Describe, ON_TOPIC)];
    let list = |_| ListGroupsRequest::default();
    let mut cases = of_members();
    cases.extend(of_positions());
    cases.extend([
        Case::new("group", &[(Describe, ON_GROUP)], DENIED, |_| find(0, GROUP)),
        Case::new("id", &[(Describe, ON_TRANSACTION)], of_transaction, |_| find(1, TRANSACTION)),
        Case::new("share", &[(ClusterAction, ON_CLUSTER)], of_cluster, |_| find(2, GROUP)),
        Case::of_version(3, "of old", &[(Describe, ON_GROUP)], DENIED, |_| {
            FindCoordinatorRequest { key: GROUP.into(), ..Default::default() }
        }),
        Case::new("", &[(Describe, ON_GROUP)], DENIED, |_| DescribeGroupsRequest {
            groups: vec![GROUP.into()],
            include_authorized_operations: true,
        }),
        Case::new("", &workers, DENIED, |_| ConsumerGroupDescribeRequest {
            group_ids: vec![WORKERS.into()],
            include_authorized_operations: true,
        }),
        Case::new("by group", &[(Describe, ON_GROUP)], Refused::Hides(GROUP), list),
        Case::new("by cluster", &[(Describe, ON_CLUSTER)], Refused::Hides(GROUP), list),
        Case::new("", &[(Delete, ON_GROUP)], DENIED, |_| DeleteGroupsRequest {
            groups_names: vec![GROUP.into()],
        }),
    ]);
    cases
}
