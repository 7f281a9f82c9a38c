//! What clients are shown of their own rights, and what a list hides.

use meridian_access::Operation::{self, Alter, Delete, Describe, DescribeConfigs, Read, Write};
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, ConsumerGroupDescribeRequest, DescribeClusterRequest,
    DescribeGroupsRequest, DescribeTopicPartitionsRequest, DescribeTransactionsRequest,
    MetadataRequest, OffsetFetchGroup, OffsetFetchRequest,
};
use meridian_protocol::{ApiKey, ErrorCode};

use super::world::World;
use super::{
    GROUP, ON_CLUSTER, ON_GROUP, ON_TOPIC, ON_TRANSACTION, ON_WORKERS, TRANSACTION, WORKERS,
};

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
