//! What the checker is told of.

use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_storage::blob::BlobKey;
use meridian_storage::message::{FenceResult, PutResult, StorageMessage};

use super::World;
use crate::broker::Shown;
use crate::check::{Promise, Verdict, Violation};
use crate::describe::Words;
use crate::net::Endpoint;
use crate::node::Packet;

/// Of what a message says, so much is shown.
const WORDS_MAX: usize = 200;

impl World {
    pub(super) fn check(
        &mut self,
        node: usize,
        partition: PartitionId,
        generation: Generation,
        shown: Shown,
    ) -> Verdict {
        self.trace.event(self.now, format_args!("N{node} {partition:?} {generation} {shown:?}"));
        // What becomes of a topic that was deleted is nobody's business, but that it goes.
        if self.is_deleted(partition) {
            return Ok(());
        }
        match shown {
            Shown::Serving(high_watermark) => {
                self.counters.takeover_count += 1;
                self.checker.serving(partition, generation, high_watermark)
            }
            Shown::HighWatermark(high_watermark) => {
                self.checker.high_watermark(partition, generation, high_watermark)
            }
            Shown::Stable { log_start_offset, last_stable_offset } => {
                let (start, stable) = (log_start_offset, last_stable_offset);
                self.checker.stable(partition, generation, start, stable)
            }
            Shown::Committed(read) => self.checker.read_committed(partition, generation, &read),
            Shown::LogStart(log_start_offset) => {
                self.checker.deleted(partition, log_start_offset);
                Ok(())
            }
            Shown::Log(piece) => self.checker.log(partition, &piece),
            Shown::ObjectDeleted => {
                self.counters.object_deletion_count += 1;
                Ok(())
            }
            Shown::Mended(count) => {
                self.counters.mended_count += count;
                Ok(())
            }
            Shown::Decoded(count) => {
                self.counters.decoded_count += count;
                Ok(())
            }
            Shown::Stored(..)
            | Shown::Begun(_)
            | Shown::Refused(_)
            | Shown::Compacted
            | Shown::Packed
            | Shown::Shortened => self.count_chore(partition, generation, &shown),
            Shown::Raw(raw) => {
                self.abroad.raw.push((partition, raw));
                Ok(())
            }
            Shown::Mirroring(_) => {
                self.abroad.mirroring.push((node, partition, generation));
                Ok(())
            }
            Shown::AbortedOpen(above) => {
                self.abroad.aborted.push((partition, generation, above));
                Ok(())
            }
            Shown::Batch(placed) => self.checker.shown(partition, generation, placed),
            Shown::Acknowledged(placed) => self.checker.acknowledged(partition, generation, placed),
            Shown::Told(base_offset, batch) => self.checker.told(partition, base_offset, batch),
            Shown::Broken(detail) => Err(Violation { promise: Promise::Invariant, detail }),
        }
    }

    pub(super) fn note_refusals(&mut self, node: usize, packet: &Packet) {
        let Packet::Storage(StorageMessage::PutReplies(replies)) = packet else { return };
        for reply in replies {
            if let PutResult::Fenced { .. } = reply.result {
                let BlobKey { partition, point } = reply.key;
                self.checker.refused(self.nodes[node].id, partition, point.generation);
            }
        }
    }

    /// The transport takes no longer message than a frame holds: what waits for one would wait for ever (rules Z1 to Z6).
    pub(super) fn check_size(&self, node: usize, to: Endpoint, packet: &Packet) -> Verdict {
        let Packet::Storage(message) = packet else { return Ok(()) };
        let size_bytes_max = self.sizes.message_size_bytes_max;
        if to == self.nodes[node].endpoint() || message.size_bytes() <= size_bytes_max {
            return Ok(());
        }
        let size_bytes = message.size_bytes();
        let what: String = Words(packet).to_string().chars().take(WORDS_MAX).collect();
        let detail = format!(
            "N{node} sends {size_bytes} bytes to {}, and a frame holds {size_bytes_max}: {what}",
            to.0,
        );
        Err(Violation { promise: Promise::FitsAFrame, detail })
    }

    /// What a node sends is checked too: a slot that answers a fence has it, and a leader that was
    /// refused puts nothing more (rule L3).
    pub(super) fn check_sent(&mut self, node: usize, packet: &Packet) -> Verdict {
        let reply = match packet {
            Packet::Storage(StorageMessage::FenceReadReply { reply, .. }) => reply,
            Packet::Storage(StorageMessage::Put(put)) => {
                let BlobKey { partition, point } = put.blob.key;
                return self.checker.put(self.nodes[node].id, partition, point.generation);
            }
            _ => return Ok(()),
        };
        let node = self.nodes[node].id;
        let is_certain = |result: &FenceResult| {
            matches!(result, FenceResult::Certain(_) | FenceResult::Piece(_))
        };
        let certain = reply.answers.iter().filter(|answer| is_certain(&answer.result));
        for answer in certain {
            let (partition, fence) = (answer.partition, answer.generation);
            if self.is_deleted(partition) {
                continue;
            }
            self.checker.fenced(node, reply.incarnation, partition, fence)?;
        }
        Ok(())
    }
}
