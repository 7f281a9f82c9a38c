//! What clients are shown of their own rights, and what a list hides.

use meridian_access::Operation::{self, Alter, Delete, Describe, DescribeConfigs, Read, Write};
use meridian_access::Resource;
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
    DescribeClusterRequest, DescribeGroupsRequest, DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest, FindCoordinatorRequest, MetadataRequest, OffsetFetchGroup,
    OffsetFetchRequest,
};
use meridian_protocol::{ApiKey, ErrorCode, Uuid};

use super::world::World;
use super::{
    GROUP, ON_CLUSTER, ON_GROUP, ON_TOPIC, ON_TRANSACTION, ON_WORKERS, OTHER, TOPIC, TRANSACTION,
    WORKERS,
};
use crate::kafka::testing::{PATIENCE, TestClient};

fn bits(operations: &[Operation]) -> i32 {
    operations.iter().map(|operation| 1 << operation.code()).sum()
}

#[tokio::test]
async fn clients_are_shown_what_the_rules_allow_them() {
    let mut world = World::start().await;
    world.prepare(ApiKey::Metadata).await;
    world.prepare(ApiKey::ConsumerGroupDescribe).await;
    world.allow(&[
        (Write, ON_TOPIC),
        (DescribeConfigs, ON_TOPIC),
        (Delete, ON_GROUP),
        (Describe, ON_GROUP),
        (Describe, ON_WORKERS),
        (Alter, ON_CLUSTER),
    ]);
    let alice = &mut world.alice;
    let (of_topic, of_cluster) =
        (bits(&[Write, Describe, DescribeConfigs]), bits(&[Alter, Describe]));
    let request = MetadataRequest {
        include_cluster_authorized_operations: true,
        include_topic_authorized_operations: true,
        ..Default::default()
    };
    let told = alice.call(10, request).await;
    assert_eq!(told.cluster_authorized_operations, of_cluster);
    assert_eq!(told.topics.len(), 1);
    assert_eq!(told.topics[0].topic_authorized_operations, of_topic);
    let told = alice.call(10, MetadataRequest::default()).await;
    assert_eq!(told.topics[0].topic_authorized_operations, AUTHORIZED_OPERATIONS_OMITTED);
    let told = alice.call(0, DescribeTopicPartitionsRequest::default()).await;
    assert_eq!(told.topics[0].topic_authorized_operations, of_topic);
    let request = DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        ..Default::default()
    };
    assert_eq!(alice.call(2, request).await.cluster_authorized_operations, of_cluster);
    let request =
        DescribeGroupsRequest { groups: vec![GROUP.into()], include_authorized_operations: true };
    let told = alice.call(6, request).await.groups;
    assert_eq!(told[0].authorized_operations, bits(&[Delete, Describe]));
    let request = ConsumerGroupDescribeRequest {
        group_ids: vec![WORKERS.into()],
        include_authorized_operations: true,
    };
    let told = alice.call(1, request).await.groups;
    assert_eq!((told[0].error_code, told[0].members.len()), (ErrorCode::None, 1));
    assert_eq!(told[0].authorized_operations, bits(&[Describe]));
}

#[tokio::test]
async fn a_client_that_may_know_of_no_coordinator_makes_no_topic() {
    let mut world = World::new(None);
    for key_type in [0, 1, 2] {
        let coordinator_keys = vec![GROUP.into()];
        let request = FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() };
        world.alice.call(4, request).await;
        assert_eq!(world.broker.state().topics().count(), 0);
    }
}

/// Heartbeats until the member's partitions are of these topics.
async fn reads(alice: &mut TestClient, mut epoch: i32, topics: &[Uuid]) -> i32 {
    let mut read = Vec::new();
    let reconciled = async {
        loop {
            let request = ConsumerGroupHeartbeatRequest {
                group_id: WORKERS.into(),
                member_id: "alice".into(),
                member_epoch: epoch,
                rebalance_timeout_ms: 60_000,
                subscribed_topic_regex: (epoch == 0).then(|| ".*".into()),
                topic_partitions: Some(read.clone()),
                ..Default::default()
            };
            let told = alice.call(1, request).await;
            assert_eq!(told.error_code, ErrorCode::None);
            epoch = told.member_epoch;
            read = told.assignment.map_or(read, |it| it.topic_partitions);
            if read.iter().map(|it| it.topic_id).eq(topics.iter().copied()) {
                return epoch;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reconciled).await.expect("in time")
}

#[tokio::test]
async fn a_member_reads_the_topics_of_its_pattern_that_it_may_describe_and_no_longer() {
    let mut world = World::start().await;
    world.prepare(ApiKey::ConsumerGroupHeartbeat).await;
    let member = (Read, ON_WORKERS);
    let (topic, other) = (world.broker.topic_uuid(TOPIC), world.broker.topic_uuid(OTHER));
    let on_other = Resource::topic(OTHER);
    world.allow(&[member, (Describe, ON_TOPIC)]);
    let epoch = reads(&mut world.alice, 0, &[topic]).await;
    world.allow(&[member, (Describe, on_other)]);
    let epoch = reads(&mut world.alice, epoch, &[other]).await;
    world.allow(&[member]);
    reads(&mut world.alice, epoch, &[]).await;
}

#[tokio::test]
async fn partitions_of_hidden_topics_are_left_out_of_what_a_client_may_see() {
    let mut world = World::start().await;
    world.prepare(ApiKey::OffsetFetch).await;
    world.prepare(ApiKey::DescribeTransactions).await;
    for (is_seen, rights) in
        [(false, vec![]), (true, vec![(Read, ON_TOPIC)]), (true, vec![(Describe, ON_TOPIC)])]
    {
        let own = [(Describe, ON_TRANSACTION), (Describe, ON_GROUP)];
        world.allow(&[&own[..], &rights].concat());
        let transactional_ids = vec![TRANSACTION.into()];
        let told = world.alice.call(0, DescribeTransactionsRequest { transactional_ids }).await;
        let told = &told.transaction_states[0];
        assert_eq!((told.error_code, !told.topics.is_empty()), (ErrorCode::None, is_seen));
        let group = OffsetFetchGroup { group_id: GROUP.into(), ..Default::default() };
        let request = OffsetFetchRequest {
            groups: vec![OffsetFetchGroup { topics: None, ..group }],
            ..Default::default()
        };
        let told = &world.alice.call(9, request).await.groups[0];
        assert_eq!((told.error_code, !told.topics.is_empty()), (ErrorCode::None, is_seen));
    }
}
