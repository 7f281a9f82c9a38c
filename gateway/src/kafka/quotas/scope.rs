//! Whether quotas hold at each node by itself, as in Kafka, or over all nodes together (ADR 0059).

use meridian_base::id::NodeId;
use meridian_consensus::command::{Command, ConfigChange, ConfigResource, FeatureLevel, Liveness};
use meridian_consensus::state::Metadata;

use super::entity;
use crate::broker::Broker;
use crate::features::{NotAgreed, agree, is_known_by_all};
use crate::topic_config::{Kind, TopicConfig, config};

const BROKER: &str = "broker";
const CLUSTER: &str = "cluster";

/// The config of the cluster that says so.
pub(crate) static QUOTA_SCOPE: TopicConfig = config(
    "quota.scope",
    Kind::OneOf(&[BROKER, CLUSTER]),
    BROKER,
    "Where quotas of bytes and of partitions hold: at each broker by itself, or over all of them together. A cluster \
     without quotas has cluster from its first one on.",
);

/// The value that holds.
pub(super) fn name(metadata: &Metadata) -> &str {
    metadata.config(&ConfigResource::Cluster, QUOTA_SCOPE.name).unwrap_or(QUOTA_SCOPE.default)
}

/// The nodes among which rates are divided; none if quotas hold at each node by itself.
pub(super) fn nodes(metadata: &Metadata) -> Vec<NodeId> {
    if name(metadata) != CLUSTER {
        return Vec::new();
    }
    let alive = metadata.nodes().filter(|(_, node)| node.liveness != Liveness::Dead);
    alive.map(|(id, _)| id).collect()
}

/// Call before a quota is set. The first one of a cluster has quotas hold for the cluster, if all nodes know that: there
/// is none yet that somebody has chosen for each node.
pub(crate) async fn begin(broker: &dyn Broker) -> Result<(), NotAgreed> {
    let is_first = {
        let metadata = broker.metadata();
        let is_unset = metadata.config(&ConfigResource::Cluster, QUOTA_SCOPE.name).is_none();
        let is_known = is_known_by_all(&metadata, FeatureLevel::QUOTA_SHARES);
        is_unset && is_known && !entity::are_any(&metadata)
    };
    if !is_first {
        return Ok(());
    }
    agree(broker, FeatureLevel::QUOTA_SHARES).await?;
    let change =
        ConfigChange { name: QUOTA_SCOPE.name.to_owned(), value: Some(CLUSTER.to_owned()) };
    let command = Command::SetConfigs { resource: ConfigResource::Cluster, changes: vec![change] };
    Ok(broker.propose(command).await.map(drop)?)
}
