//! A topic that is deleted, and created anew under its name, while everything else goes on.

use meridian_base::id::PartitionId;
use meridian_storage::mutation::Mutations;

use super::World;
use crate::check::{Promise, Verdict, Violation};
use crate::metadata::is_recreated;

impl World {
    /// Whether the topic can be deleted and created anew.
    pub(crate) fn is_recreatable(&self) -> bool {
        self.metadata.latest().recreated.1 < self.recreation_count
    }

    /// Deletes the topic, and creates it anew. Its clients of before give up, and others begin.
    pub(crate) fn recreate(&mut self) {
        if let (Some(partition), _) = self.metadata.latest().recreated {
            self.trace.event(self.now, format_args!("metadata: {partition:?} is deleted"));
            self.metadata.delete(partition);
            self.partitions.retain(|it| *it != partition);
            self.clients
                .iter_mut()
                .filter(|client| client.partition == partition)
                .for_each(crate::workload::Client::give_up);
        }
        self.counters.recreation_count += 1;
        self.create();
    }

    pub(super) fn create(&mut self) {
        let partition = self.metadata.create();
        self.trace.event(self.now, format_args!("metadata: {partition:?} is created"));
        self.partitions.push(partition);
        self.clients
            .iter_mut()
            .filter(|client| client.partition == partition)
            .for_each(crate::workload::Client::begin);
        let class = self.chance.pick(self.classes);
        if let Some(class) = class {
            self.convert(partition, class);
        }
    }

    /// Whether the topic of a partition was deleted.
    pub(crate) fn is_deleted(&self, partition: PartitionId) -> bool {
        self.metadata.latest().is_deleted(partition.hot(), Mutations::NONE)
    }

    /// All that was read of the topic was written since it was created.
    pub(crate) fn nothing_old_is_seen(&self) -> Verdict {
        let readers = self.clients.iter().filter(|client| is_recreated(client.partition));
        for reader in readers {
            let Some((_, log)) = reader.final_log() else { continue };
            for placed in log {
                let writer = placed.batch.first.producer;
                let is_of_it = |client: &&crate::workload::Client| {
                    client.id() == Some(writer) && client.partition == reader.partition
                };
                if !self.clients.iter().any(|client| is_of_it(&client)) {
                    let detail = format!("{:?}: {placed:?} is of another", reader.partition);
                    return Err(Violation { promise: Promise::DeletedForEver, detail });
                }
            }
        }
        Ok(())
    }

    /// What is left of topics that were deleted, or of objects that nobody needs, or is not there though it is needed;
    /// `None` if nothing is.
    pub(crate) fn left_behind(&self) -> Option<String> {
        let object = self.objects.partitions().into_iter().find(|it| self.is_deleted(*it));
        if let Some(partition) = object {
            return Some(format!("{partition:?} was deleted, and has objects"));
        }
        for node in &self.nodes {
            let held = node.seat.as_ref().map(crate::seat::Seat::partitions).unwrap_or_default();
            if let Some(partition) = held.into_iter().find(|it| self.is_deleted(*it)) {
                return Some(format!("{:?} has something of {partition:?}, deleted", node.id));
            }
        }
        self.unsettled_objects()
    }
}
