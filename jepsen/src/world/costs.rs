//! What the world spends, told to who keeps the account.

use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_storage::journal::DiskOp;
use meridian_storage::message::{PutResult, StorageMessage};

use super::World;
use crate::broker::Shown;
use crate::check::Verdict;
use crate::cost::Chore;
use crate::desk::Ask;
use crate::net::Endpoint;
use crate::node::Packet;
use crate::sourced;
use crate::workload::ClientRequest;

/// Bytes that a decision of a coordinator takes, about.
const DECISION_SIZE_BYTES: usize = 150;

impl World {
    /// A client's request is on its way.
    pub(super) fn count_request(&mut self, packet: &Packet) {
        let size_bytes = match packet {
            Packet::Request { request: ClientRequest::Produce(batch), .. } => {
                batch.to_record_batch().bytes.len()
            }
            Packet::Request { request: ClientRequest::ProduceSourced(batch, session), .. } => {
                sourced::to_record_batch(*batch, *session).bytes.len()
            }
            Packet::Ask { ask, .. } => match &**ask {
                Ask::Append(_, batch) => batch.to_record_batch().bytes.len(),
                Ask::Heartbeat(..) | Ask::Positions(_) => 0,
                _ => DECISION_SIZE_BYTES,
            },
            _ => 0,
        };
        self.cost.client(size_bytes);
    }

    /// A node sends something.
    pub(super) fn count_sent(&mut self, node: usize, to: Endpoint, packet: &Packet) -> Verdict {
        match packet {
            Packet::Storage(StorageMessage::Put(put)) => {
                let is_well = self.reaches_well(node, to.0) && self.is_good(to.0);
                let size_bytes = put.blob.payload.size_bytes();
                self.cost.put(put.blob.key, size_bytes, to, is_well)
            }
            Packet::Storage(StorageMessage::PutReplies(replies)) => {
                let here = self.nodes[node].endpoint();
                for reply in replies.iter().filter(|it| it.result == PutResult::Stored) {
                    self.cost.is_stored(reply.key, here);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A leader shows how far its own work is.
    pub(super) fn count_chore(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        shown: &Shown,
    ) -> Verdict {
        match shown {
            Shown::Stored(from, end) => self.cost.packed(partition, generation, (*from, *end)),
            Shown::Refused(chore) => self.cost.refused(self.now, partition, generation, *chore),
            Shown::Begun(chore) => {
                self.cost.begun(*chore);
                Ok(())
            }
            Shown::Compacted => {
                self.counters.pass_count += 1;
                self.cost.done(Chore::Compaction);
                Ok(())
            }
            Shown::Packed => {
                self.counters.packed_count += 1;
                self.cost.done(Chore::Packing);
                Ok(())
            }
            Shown::Shortened => {
                self.counters.shortened_count += 1;
                self.cost.done(Chore::Shortening);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A node writes something.
    pub(super) fn count_written(&mut self, op: &DiskOp) {
        if let DiskOp::Write { parts, .. } | DiskOp::Replace { parts, .. } = op {
            self.cost.written(parts.iter().map(bytes::Bytes::len).sum());
        }
    }

    /// Has leaders do chores from now on, or not.
    pub(crate) fn set_chores(&mut self, are_done: bool) {
        self.nodes.iter_mut().for_each(|node| node.set_chores(are_done));
    }

    /// Looks at queues, and at what was spent of late.
    pub(crate) fn look_at_costs(&mut self) -> Verdict {
        for node in 0..self.nodes.len() {
            let count = self.nodes[node].disk.waiting_count();
            self.cost.waits_for_disk(node, count)?;
            for (partition, broker) in self.nodes[node].brokers() {
                let (read_count, doubt_bytes) = broker.waiting();
                self.cost.waits_for_slots(partition, read_count, doubt_bytes)?;
            }
        }
        self.cost.look(self.now)
    }
}
