//! Objects of partitions that are no more: the node that leads the metadata deletes them. It needs no memory
//! of what was deleted, so a topic's objects go whoever was down when it was.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_consensus::state::Metadata;

use super::Node;
use crate::broker::Broker;
use crate::log::ObjectsUnusable;

/// How often the object store is asked which partitions it has objects of.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Sweeps, until the node goes down.
pub(super) async fn run_object_sweep(node: Arc<Node>) {
    if node.logs.objects().is_err() {
        return;
    }
    let mut interval = tokio::time::interval(SWEEP_EVERY);
    loop {
        interval.tick().await;
        if node.metadata_leader() != Some(node.config.node) {
            continue;
        }
        if let Err(error) = sweep(&node).await {
            tracing::warn!(%error, "objects of deleted topics stay for now");
        }
    }
}

async fn sweep(node: &Node) -> Result<(), ObjectsUnusable> {
    let objects = node.logs.objects()?;
    let found = node.logs.note_object_error(objects.partitions().await)?;
    let deleted = deleted(&found, &node.meta.metadata());
    for partition in deleted {
        let listed = node.logs.note_object_error(objects.list(partition).await)?;
        for object in &listed {
            let deleted = objects.delete(partition, object.point).await;
            node.logs.note_object_error(deleted)?;
        }
        node.logs.note_deleted_objects(listed.len() as u64);
        tracing::info!(?partition, count = listed.len(), "objects of a deleted topic deleted");
    }
    Ok(())
}

/// Partitions that were, and are no more. Ids are counted up and never used again: so one that was given out
/// as far as this node knows, and has no partition, never will have one. One that this node has not heard of
/// yet may be in use.
fn deleted(found: &[PartitionId], metadata: &Metadata) -> Vec<PartitionId> {
    let (given_out, _) = metadata.topics_version();
    let is_deleted =
        |id: &&PartitionId| id.get() <= given_out && metadata.partition(**id).is_none();
    found.iter().filter(is_deleted).copied().collect()
}

#[cfg(test)]
mod tests {
    use meridian_base::id::{ClusterId, NodeId, TopicId};
    use meridian_base::topology::{Datacenter, Geometry, Rack};
    use meridian_consensus::command::{
        Command, Endpoint, FeatureLevel, NodeRegistration, Proposal, RequestId, Roles,
    };

    use super::*;

    #[test]
    fn only_partitions_that_were_and_are_no_more_are_swept() {
        let mut metadata = Metadata::default();
        let mut index = 0;
        let mut apply = |metadata: &mut Metadata, command| {
            index += 1;
            let request_id = RequestId::new(index.into());
            metadata.apply(index, &Proposal { request_id, command }).result.expect("taken");
        };
        let cluster_id = ClusterId::from_entropy(5);
        apply(&mut metadata, Command::Bootstrap { cluster_id, geometry: Geometry::None });
        let (node, endpoint) = (NodeId::new(1), || Endpoint { host: "host".to_owned(), port: 1 });
        let registration = NodeRegistration {
            node,
            datacenter: Datacenter("A".to_owned()),
            rack: Rack("A1".to_owned()),
            roles: Roles::ALL,
            kafka: endpoint(),
            peer: endpoint(),
            admin: endpoint(),
            binary_version: "0".to_owned(),
            feature_level_min: FeatureLevel::FIRST,
            feature_level_max: FeatureLevel::LATEST,
        };
        apply(&mut metadata, Command::RegisterNode(registration));
        apply(
            &mut metadata,
            Command::MountDisk {
                node,
                incarnation: meridian_base::id::Incarnation::new(1),
                mount_epoch: meridian_consensus::command::MountEpoch::new(1),
                found_data: true,
            },
        );
        let topics = [TopicId::new(1), TopicId::new(2)];
        for (topic, name) in topics.iter().zip(["gone", "there"]) {
            let (name, leaders) = (name.to_owned(), vec![node]);
            let configs = Vec::new();
            let create =
                Command::CreateTopic { topic: *topic, name, leaders, configs, internal: false };
            apply(&mut metadata, create);
        }
        apply(&mut metadata, Command::DeleteTopic { topic: topics[0] });
        let found = [1, 2, 3].map(PartitionId::new);
        assert_eq!(deleted(&found, &metadata), [PartitionId::new(1)], "3 may be new elsewhere");
    }
}
