//! What partitions that are no more have left: each node frees what its disk has of them, and the node that leads
//! the metadata deletes their objects. It needs no memory of what was deleted, so all of a topic goes whoever was down
//! when it was.

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_consensus::state::Metadata;
use meridian_storage::deleted::is_deleted;
use meridian_storage::mutation::Mutations;

use super::Node;
use super::object_owner::{ClaimError, claim};
use crate::background::ticks;
use crate::broker::Broker;
use crate::log::ObjectsUnusable;

/// How often the object store is asked which partitions it has objects of.
const SWEEP_OBJECTS_EVERY: Duration = Duration::from_secs(30);

/// How often the disk is looked through. Each node frees a topic as it hears that it was deleted; what is found here is
/// of one that died before that was on its disk, that has heard of it by a snapshot, or whose peers sent it more.
const SWEEP_DISK_EVERY: Duration = Duration::from_secs(300);

/// Frees what the node's disk has of partitions that are no more, until the node goes down.
pub(super) async fn run_disk_sweep(node: Arc<Node>) {
    let mut ticks = ticks(SWEEP_DISK_EVERY);
    loop {
        ticks.tick().await;
        let found = deleted(node.logs.stored_partitions(), &node.meta.metadata());
        for partition in found {
            tracing::info!(?partition, "what a deleted topic has left here is freed");
            node.logs.forget(partition);
        }
    }
}

/// Deletes objects of partitions that are no more, until the node goes down.
pub(super) async fn run_object_sweep(node: Arc<Node>) {
    if node.logs.objects().is_err() {
        return;
    }
    let mut ticks = ticks(SWEEP_OBJECTS_EVERY);
    loop {
        ticks.tick().await;
        if node.metadata_leader() != Some(node.config.node) {
            continue;
        }
        // A sweep deletes what this cluster does not know: the store must be its own now, not when it was looked last.
        let swept = async {
            claim(&*node.context, node.logs.objects()?).await?;
            Ok::<(), ClaimError>(sweep(&node).await?)
        };
        if let Err(error) = swept.await {
            tracing::warn!(%error, "objects of deleted topics stay for now");
        }
    }
}

async fn sweep(node: &Node) -> Result<(), ObjectsUnusable> {
    let objects = node.logs.objects()?;
    let found = node.logs.note_object_error(objects.partitions().await)?;
    let deleted = deleted(found, &node.meta.metadata());
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

/// The partitions that are no more.
fn deleted(found: impl IntoIterator<Item = PartitionId>, metadata: &Metadata) -> Vec<PartitionId> {
    let (given_out, _) = metadata.topics_version();
    let is_there = |id: PartitionId| metadata.partition(id).is_some();
    let is_no_more = |id: &PartitionId| is_deleted(*id, given_out, is_there(*id), Mutations::NONE);
    found.into_iter().filter(is_no_more).collect()
}

#[cfg(test)]
mod tests {
    use meridian_base::id::TopicId;
    use meridian_consensus::command::Command;

    use super::*;
    use crate::kafka::testing::FakeBroker;

    #[tokio::test]
    async fn only_partitions_that_were_and_are_no_more_are_swept() {
        let broker = FakeBroker::three_datacenters();
        for (topic, name) in [(1, "gone"), (2, "there")] {
            broker.decide(Command::CreateTopic {
                topic: TopicId::new(topic),
                name: name.to_owned(),
                leaders: vec![broker.node()],
                configs: Vec::new(),
                internal: false,
            });
        }
        broker.decide(Command::DeleteTopic { topic: TopicId::new(1) });
        let found = [1, 2, 3].map(PartitionId::new);
        let swept = deleted(found, &broker.state());
        assert_eq!(swept, [PartitionId::new(1)], "3 may be new elsewhere");
    }
}
