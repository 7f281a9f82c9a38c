//! A topic that is deleted, and created anew under its name, while everything else goes on.

use meridian_base::id::PartitionId;
use meridian_consensus::command::Command;
use meridian_storage::mutation::Mutations;

use super::World;
use crate::check::{Promise, Verdict, Violation};
use crate::topics::{RECREATED_MIN, is_deleted, is_recreated, topic_of};

impl World {
    /// Whether the topic can be deleted and created anew.
    pub(crate) fn is_recreatable(&self) -> bool {
        let lives = RECREATED_MIN..RECREATED_MIN + self.recreation_count;
        lives.contains(&self.next_recreated())
    }

    /// The id that its next partition has.
    fn next_recreated(&self) -> u64 {
        self.decisions.latest().topics_version().0 + 1
    }

    /// The partition of the topic, if it is there.
    pub(crate) fn recreated(&self) -> Option<PartitionId> {
        self.partitions.iter().copied().find(|partition| is_recreated(*partition))
    }

    /// Deletes the topic, and creates it anew. Its clients of before give up, and others begin.
    pub(crate) fn recreate(&mut self) {
        if let Some(partition) = self.recreated() {
            let result = self.decide(Command::DeleteTopic { topic: topic_of(partition) });
            self.trace
                .event(self.now, format_args!("metadata: {partition:?} is deleted: {result:?}"));
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
        let partition = PartitionId::new(self.next_recreated());
        let class = self.chance.pick(self.classes);
        self.create_topic(partition, class);
        self.announce_metadata();
        self.trace.event(self.now, format_args!("metadata: {partition:?} is created: {class:?}"));
        self.partitions.push(partition);
        self.clients
            .iter_mut()
            .filter(|client| client.partition == partition)
            .for_each(crate::workload::Client::begin);
    }

    /// Whether the topic of a partition was deleted.
    pub(crate) fn is_deleted(&self, partition: PartitionId) -> bool {
        is_deleted(self.decisions.latest(), partition.hot(), Mutations::NONE)
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
