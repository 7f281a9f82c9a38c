//! Reads blobs from the slots, nearest first.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_base::topology::Slot;
use meridian_storage::blob::{Blob, BlobKey, BlobKind};
use meridian_storage::lineage::Lineage;
use meridian_storage::manifest::{Manifest, Piece, Place};
use meridian_storage::message::{CommitMark, Read, ReadFrom, ReadReply, StorageMessage};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::group::{Group, Homes};
use super::partition_log::{FetchError, Fetched};
use super::{Logs, lock};
use crate::partition::{AbortedTransaction, BatchSlice, Taken, batches_in, take_batches};

/// A slot that has not answered a read of a part by then is passed over.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// When a slot has not answered a read by then, the next one is asked beside it.
const LATE_AFTER: Duration = Duration::from_millis(500);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A takeover that had no answer by then has asked anew.
const TAKEOVER_ANSWER_WITHIN: Duration = Duration::from_secs(60);

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
    /// Its takeover asks anew if no answer comes; the old question is given up then.
    Takeover {
        partition: PartitionId,
        slot: Slot,
        asked_at: Instant,
    },
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

    fn forget(&self, tag: u64) {
        lock(&self.asked).remove(&tag);
    }

    /// Forgets what takeovers have asked for so long ago that they have asked anew many times.
    pub(super) fn forget_late(&self, now: Instant) {
        lock(&self.asked).retain(|_, asker| match asker {
            Asker::Future(_) => true,
            Asker::Takeover { asked_at, .. } => now.since(*asked_at) < TAKEOVER_ANSWER_WITHIN,
        });
    }
}

/// A question that is forgotten however it ends, also if whoever asked is gone.
struct Asked<'a> {
    pending: &'a Pending,
    tag: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.pending.forget(self.tag);
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
    /// those that follow it there. A slot that is late is not given up: on a busy machine all of them are late,
    /// and who asks anew makes them later.
    pub(super) async fn read_blobs(
        self: &Arc<Self>,
        group: &Group,
        request: Read,
        first: Option<Slot>,
    ) -> Result<(Slot, Vec<Blob>), ReadFailed> {
        let order = group.reading_order(self.now(), first);
        let ask = |(slot, node): (Slot, NodeId)| {
            let logs = Arc::clone(self);
            async move { (slot, node, logs.ask_within(node, request, PATIENCE).await) }
        };
        let has_blobs = |(slot, node, reply): (Slot, NodeId, Option<ReadReply>)| match reply {
            Some(ReadReply::Blobs(blobs)) if !blobs.is_empty() => Some((slot, blobs)),
            Some(ReadReply::Unreadable) => {
                tracing::warn!(?slot, %node, ?request, "a blob is unreadable; asking others");
                None
            }
            _ => None,
        };
        let (slot, blobs) = first_of(order, ask, has_blobs).await.ok_or(ReadFailed)?;
        Ok((slot, self.make_whole(group, slot, blobs).await?))
    }

    /// Asks one node's slot; `None` if it does not answer in time.
    pub(super) async fn ask(self: &Arc<Self>, node: NodeId, request: Read) -> Option<ReadReply> {
        self.ask_within(node, request, ANSWER_WITHIN).await
    }

    async fn ask_within(
        self: &Arc<Self>,
        node: NodeId,
        request: Read,
        limit: Duration,
    ) -> Option<ReadReply> {
        let (sender, answer) = oneshot::channel();
        let tag = self.pending.register(Asker::Future(sender));
        let _forgotten = Asked { pending: &self.pending, tag };
        if !self.deliver(node, StorageMessage::Read { tag, request }) {
            return None;
        }
        tokio::time::timeout(limit, answer).await.ok()?.ok()
    }

    /// Reads a part of an in-doubt tail for a takeover.
    pub(super) fn read_for_takeover(
        self: &Arc<Self>,
        partition: PartitionId,
        slot: Slot,
        node: NodeId,
        request: Read,
    ) {
        let asked_at = self.now();
        let tag = self.pending.register(Asker::Takeover { partition, slot, asked_at });
        if !self.deliver(node, StorageMessage::Read { tag, request }) {
            self.pending.forget(tag);
        }
    }

    pub(super) fn on_read_reply(self: &Arc<Self>, from: NodeId, tag: u64, reply: ReadReply) {
        let asker = lock(&self.pending.asked).remove(&tag);
        match asker {
            Some(Asker::Future(sender)) => {
                let _reader_gave_up = sender.send(reply);
            }
            Some(Asker::Takeover { partition, slot, .. }) => {
                if let Some(log) = self.owned(partition) {
                    self.on_takeover_read(&log, slot, reply);
                }
            }
            None => tracing::trace!(%from, tag, "late answer to a read"),
        }
    }
}

/// Asks one after another, the next one when the last is late or has nothing, and takes the first answer that is
/// one, whose ever it is.
async fn first_of<S, A, R, F>(
    order: impl IntoIterator<Item = S, IntoIter: ExactSizeIterator>,
    ask: impl Fn(S) -> F,
    take: impl Fn(A) -> Option<R>,
) -> Option<R>
where
    A: Send + 'static,
    F: Future<Output = A> + Send + 'static,
{
    let (mut untried, mut asked) = (order.into_iter(), JoinSet::new());
    loop {
        match untried.next() {
            Some(next) => drop(asked.spawn(ask(next))),
            None if asked.is_empty() => return None,
            None => {}
        }
        let limit = if untried.len() == 0 { PATIENCE } else { LATE_AFTER };
        let answer = tokio::time::timeout(limit, asked.join_next()).await;
        if let Ok(Some(Ok(answer))) = answer
            && let Some(found) = take(answer)
        {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks slots that take so long to answer, or have nothing; which one did, and how many were asked.
    async fn asked(answers: &'static [(u64, bool)]) -> (Option<usize>, usize) {
        let count = Arc::new(AtomicU64::new(0));
        let ask = |slot: usize| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                let (after_ms, has_it) = answers[slot];
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                has_it.then_some(slot)
            }
        };
        let found = first_of(0..answers.len(), ask, |answer: Option<usize>| answer).await;
        (found, count.load(Ordering::Relaxed) as usize)
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_counts() {
        assert_eq!(asked(&[(10, true), (10, true)]).await, (Some(0), 1));
        assert_eq!(asked(&[(10, false), (10, true)]).await, (Some(1), 2));
        assert_eq!(asked(&[(9_000, true), (10, true)]).await, (Some(1), 2), "hedged around");
        let all_late = &[(1_700, true), (1_900, true), (1_900, true)];
        assert_eq!(asked(all_late).await, (Some(0), 3), "none is asked twice");
        assert_eq!(asked(&[(10, false), (20, false)]).await, (None, 2));
        assert_eq!(asked(&[]).await, (None, 0));
    }

    #[tokio::test]
    async fn questions_are_forgotten_with_those_who_asked() {
        let pending = Pending::default();
        let (sender, _answer) = oneshot::channel();
        let tag = pending.register(Asker::Future(sender));
        drop(Asked { pending: &pending, tag });
        let (partition, slot, asked_at) = (PartitionId::new(1), Slot::new(0), Instant::ZERO);
        pending.register(Asker::Takeover { partition, slot, asked_at });
        pending.forget_late(asked_at + TAKEOVER_ANSWER_WITHIN / 2);
        assert_eq!(lock(&pending.asked).len(), 1);
        pending.forget_late(asked_at + TAKEOVER_ANSWER_WITHIN);
        assert!(lock(&pending.asked).is_empty());
    }
}
