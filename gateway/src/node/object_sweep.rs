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
        let swept = deleted(&found, &broker.state());
        assert_eq!(swept, [PartitionId::new(1)], "3 may be new elsewhere");
    }
}
