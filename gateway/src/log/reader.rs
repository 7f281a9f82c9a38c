//! Reads blobs from the slots, nearest first.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_base::topology::Slot;
use meridian_storage::blob::{Blob, BlobKey, BlobKind};
use meridian_storage::lineage::Lineage;
use meridian_storage::manifest::{Manifest, Piece, Place};
use meridian_storage::message::{CommitMark, Read, ReadFrom, ReadReply, StorageMessage};
use tokio::sync::oneshot;

use super::group::{Group, Homes};
use super::partition_log::{FetchError, Fetched};
use super::{Logs, lock};
use crate::partition::{AbortedTransaction, BatchSlice, Taken, batches_in, take_batches};

/// A slot that has not answered a read by then is passed over.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// No slot could give the blob, nor the object store the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no reachable slot could give the blob")]
pub(super) struct ReadFailed;

/// Which records a reader is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All that are committed in the log, whatever becomes of their transactions.
    ReadUncommitted,
    /// Those below the last stable offset, with the aborted transactions to leave out.
    ReadCommitted,
}

/// What may be read of a partition, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadView {
    pub(super) lineage: Lineage,
    /// Where what lies below its end is to be read instead.
    pub(super) manifest: Option<Arc<Manifest>>,
    pub(super) mark: CommitMark,
    pub(super) last_stable_offset: Offset,
    pub(super) log_start_offset: Offset,
    pub(super) leader_epoch: LeaderEpoch,
}

impl ReadView {
    pub(super) fn check(&self, offset: Offset) -> Result<(), FetchError> {
        let high_watermark = self.mark.high_watermark;
        if offset < self.log_start_offset || offset > high_watermark {
            let log_start_offset = self.log_start_offset;
            return Err(FetchError::OutOfRange { offset, log_start_offset, high_watermark });
        }
        Ok(())
    }

    /// What a reader is shown that asks for `from`.
    pub(super) fn range(&self, from: Offset, isolation: Isolation) -> Range<Offset> {
        match isolation {
            Isolation::ReadUncommitted => from..self.mark.high_watermark,
            Isolation::ReadCommitted => from..self.last_stable_offset,
        }
    }

    pub(super) fn fetched(&self, taken: Taken, aborted: Vec<AbortedTransaction>) -> Fetched {
        Fetched {
            records: taken.pieces,
            end_offset: taken.end_offset,
            aborted,
            high_watermark: self.mark.high_watermark,
            last_stable_offset: self.last_stable_offset,
            log_start_offset: self.log_start_offset,
        }
    }

    /// The piece of the manifest in which to look for `offset`, and where it ends.
    pub(super) fn piece_at(&self, offset: Offset) -> Option<(&Piece, Offset)> {
        self.manifest.as_ref()?.piece_at(offset)
    }

    /// The read that brings the blob which holds `offset`.
    fn request(
        &self,
        partition: PartitionId,
        offset: Offset,
        size_bytes_max: usize,
    ) -> Option<Read> {
        let holder = self.lineage.holder_of(offset)?;
        Some(Read {
            partition,
            generation: holder.generation,
            from: ReadFrom::Offset(offset),
            last_step: holder.last_step.unwrap_or(self.mark.point.step),
            // Not 0, which is for those who mend ([`Read::AS_FOUND`]).
            size_bytes_max: u32::try_from(size_bytes_max).unwrap_or(u32::MAX).max(1),
        })
    }
}

enum Asker {
    Future(oneshot::Sender<ReadReply>),
    Takeover(PartitionId, Slot),
}

/// Reads that wait for an answer, by tag.
#[derive(Default)]
pub(super) struct Pending {
    next_tag: AtomicU64,
    asked: Mutex<HashMap<u64, Asker>>,
}

impl Pending {
    fn register(&self, asker: Asker) -> u64 {
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        lock(&self.asked).insert(tag, asker);
        tag
    }
}

impl Logs {
    pub(super) fn next_tag(&self) -> u64 {
        self.pending.next_tag.fetch_add(1, Ordering::Relaxed)
    }

    /// Reads batches in `range`: those that one answer of a slot holds. Below a manifest's end there
    /// may be none in a piece, and then the next one is read: only where the range ends is nothing.
    pub(super) async fn read_records(
        self: &Arc<Self>,
        homes: &Homes,
        partition: PartitionId,
        view: &ReadView,
        range: Range<Offset>,
        size_bytes_max: usize,
        last_slot: &AtomicU8,
    ) -> Result<Taken, ReadFailed> {
        let mut from = range.start;
        while from < range.end {
            let piece = view.piece_at(from);
            if let Some((&Piece { size_bytes: 0, .. }, end)) = piece {
                from = end;
                continue;
            }
            let batches = match piece {
                Some((piece, _)) => self.read_piece(homes, partition, piece, last_slot).await?,
                None => {
                    let request = view.request(partition, from, size_bytes_max);
                    let (request, kind) = (request.ok_or(ReadFailed)?, BlobKind::Records);
                    Arc::new(self.read_batches(homes, request, kind, last_slot).await?)
                }
            };
            let taken = take_batches(batches.iter(), from..range.end, size_bytes_max);
            match piece {
                Some((_, end)) if taken.end_offset.is_none() => from = end,
                _ => return Ok(taken),
            }
        }
        Ok(Taken::default())
    }

    /// Reads a piece of a manifest.
    async fn read_piece(
        self: &Arc<Self>,
        homes: &Homes,
        partition: PartitionId,
        piece: &Piece,
        last_slot: &AtomicU8,
    ) -> Result<Arc<Vec<BatchSlice>>, ReadFailed> {
        let point = match piece.place {
            Place::Clean(point) => point,
            Place::Stripe { .. } => {
                let stripe = piece.stripe().ok_or(ReadFailed)?;
                let home = homes.of(stripe.point.generation).ok_or(ReadFailed)?;
                return self.read_stripe(home, partition, stripe, piece.base_offset).await;
            }
            Place::Object { .. } => {
                let object = piece.object().ok_or(ReadFailed)?;
                return self.read_object(partition, object, piece.base_offset).await;
            }
        };
        let request = Read::one(BlobKey { partition, point });
        Ok(Arc::new(self.read_batches(homes, request, BlobKind::Clean, last_slot).await?))
    }

    /// Asks for blobs and cuts those of this kind into their batches.
    async fn read_batches(
        self: &Arc<Self>,
        homes: &Homes,
        request: Read,
        kind: BlobKind,
        last_slot: &AtomicU8,
    ) -> Result<Vec<BatchSlice>, ReadFailed> {
        let first = Slot::checked(last_slot.load(Ordering::Relaxed));
        let home = homes.of(request.generation).ok_or(ReadFailed)?;
        let (slot, blobs) = self.read_blobs(home, request, first).await?;
        last_slot.store(slot.index() as u8, Ordering::Relaxed);
        let mut batches = Vec::new();
        for blob in blobs.into_iter().filter(|blob| blob.header.kind == kind) {
            let payload = blob.payload.to_contiguous();
            batches.extend(batches_in(blob.header.base_offset, payload).map_err(|error| {
                tracing::error!(key = ?blob.key, %error, "a stored blob does not hold batches");
                ReadFailed
            })?);
        }
        Ok(batches)
    }

    /// Asks slot after slot, nearest first, until one has the blob, or a part of it. Returns it whole, with
    /// those that follow it there.
    pub(super) async fn read_blobs(
        self: &Arc<Self>,
        group: &Group,
        request: Read,
        first: Option<Slot>,
    ) -> Result<(Slot, Vec<Blob>), ReadFailed> {
        for (slot, node) in group.reading_order(self.now(), first) {
            let reply = self.ask(node, request).await;
            match reply {
                Some(ReadReply::Blobs(blobs)) if !blobs.is_empty() => {
                    return Ok((slot, self.make_whole(group, slot, blobs).await?));
                }
                Some(ReadReply::Unreadable) => {
                    tracing::warn!(?slot, %node, ?request, "a blob is unreadable; asking others");
                }
                _ => {}
            }
        }
        Err(ReadFailed)
    }

    /// Asks one node's slot; `None` if it does not answer in time.
    pub(super) async fn ask(self: &Arc<Self>, node: NodeId, request: Read) -> Option<ReadReply> {
        let (sender, answer) = oneshot::channel();
        let tag = self.pending.register(Asker::Future(sender));
        let sent = self.deliver(node, StorageMessage::Read { tag, request });
        let reply = if sent {
            tokio::time::timeout(ANSWER_WITHIN, answer).await.ok().and_then(Result::ok)
        } else {
            None
        };
        lock(&self.pending.asked).remove(&tag);
        reply
    }

    /// Reads a part of an in-doubt tail for a takeover.
    pub(super) fn read_for_takeover(
        self: &Arc<Self>,
        partition: PartitionId,
        slot: Slot,
        node: NodeId,
        request: Read,
    ) {
        let tag = self.pending.register(Asker::Takeover(partition, slot));
        if !self.deliver(node, StorageMessage::Read { tag, request }) {
            lock(&self.pending.asked).remove(&tag);
        }
    }

    pub(super) fn on_read_reply(self: &Arc<Self>, from: NodeId, tag: u64, reply: ReadReply) {
        let asker = lock(&self.pending.asked).remove(&tag);
        match asker {
            Some(Asker::Future(sender)) => {
                let _reader_gave_up = sender.send(reply);
            }
            Some(Asker::Takeover(partition, slot)) => {
                if let Some(log) = self.owned(partition) {
                    self.on_takeover_read(&log, slot, reply);
                }
            }
            None => tracing::trace!(%from, tag, "late answer to a read"),
        }
    }
}
