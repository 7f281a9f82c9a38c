//! The cluster and its nodes.

use bytes::Bytes;
use meridian_access::Operation::{self, Alter, Describe};
use meridian_protocol::ErrorCode::ClusterAuthorizationFailed;
use meridian_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterReplicaLogDir, AlterReplicaLogDirTopic,
    AlterReplicaLogDirsRequest, DescribeClusterRequest, DescribeLogDirsRequest,
    DescribeQuorumRequest, ElectLeadersRequest, ElectLeadersTopic, FeatureUpdate,
    ListPartitionReassignmentsRequest, MeridianAdminRequest, ReassignablePartition,
    ReassignableTopic, UnregisterBrokerRequest, UpdateFeaturesRequest,
};

use super::super::{Case, ON_CLUSTER, Refused, TOPIC};

fn elect() -> ElectLeadersRequest {
    let topic = ElectLeadersTopic { topic: TOPIC.into(), partitions: vec![0] };
    ElectLeadersRequest { topic_partitions: Some(vec![topic]), ..Default::default() }
}

fn update() -> UpdateFeaturesRequest {
    let feature = "group.version".into();
    let update = FeatureUpdate { feature, max_version_level: 1, ..Default::default() };
    UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() }
}

pub(super) fn cases() -> Vec<Case> {
    let denied = Refused::With(ClusterAuthorizationFailed);
    let on = |operation: Operation| [(operation, ON_CLUSTER)];
    let no_bits = Refused::Says("cluster_authorized_operations: 0 ");
    vec![
        Case::new("", &on(Describe), no_bits, |_| DescribeClusterRequest {
            include_cluster_authorized_operations: true,
            ..Default::default()
        }),
        Case::new("", &on(Describe), denied, |_| DescribeLogDirsRequest::default()),
        Case::new("", &on(Describe), denied, |_| DescribeQuorumRequest::default()),
        Case::new("", &on(Describe), denied, |_| ListPartitionReassignmentsRequest::default()),
        Case::new("", &on(Alter), denied, |_| {
            let topics = vec![AlterReplicaLogDirTopic { name: TOPIC.into(), partitions: vec![0] }];
            let dir = AlterReplicaLogDir { path: "journal".into(), topics };
            AlterReplicaLogDirsRequest { dirs: vec![dir] }
        }),
        Case::new("", &on(Alter), denied, |_| elect()),
        Case::of_version(0, "of old", &on(Alter), denied, |_| elect()),
        Case::new("", &on(Alter), denied, |_| {
            let partition = ReassignablePartition { partition_index: 0, replicas: None };
            let topic = ReassignableTopic { name: TOPIC.into(), partitions: vec![partition] };
            AlterPartitionReassignmentsRequest { topics: vec![topic], ..Default::default() }
        }),
        Case::new("", &on(Alter), denied, |_| update()),
        Case::of_version(1, "of old", &on(Alter), denied, |_| update()),
        Case::new("", &on(Alter), denied, |_| UnregisterBrokerRequest { broker_id: 9 }),
        Case::new("looks", &on(Describe), denied, |_| MeridianAdminRequest {
            method: "cluster.status".into(),
            body: Bytes::from_static(b"{}"),
        }),
    ]
}
