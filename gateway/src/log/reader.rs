//! Reads blobs from the slots, nearest first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset};
use meridian_base::topology::{SLOT_COUNT_MAX, Slot};
use meridian_broker::replica::read::{BlobRead, BlobReadOutput, NotGiven, blobs_of};
use meridian_broker::replica::view::{NoLeader, OutOfRange, ReadView, Source};
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::hot::Given;
use meridian_storage::message::{Read, ReadReply, StorageMessage};
use tokio::sync::{mpsc, oneshot};

use super::group::{Group, Homes};
use super::partition_log::{FetchError, Fetched};
use super::read_failed::NotServed;
use super::{Logs, lock};
use crate::partition::{AbortedTransaction, BatchSlice, Taken, batches_in};

/// A slot that has not answered a read of a part by then is passed over.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A takeover that had no answer by then has asked anew.
const TAKEOVER_ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Why records could not be read now.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ReadFailed {
    #[error(transparent)]
    NotGiven(#[from] Box<NotServed>),
    #[error("this node does not know the storage group of generation {0} yet")]
    UnknownGroup(Generation),
    #[error(transparent)]
    NoLeader(#[from] NoLeader),
    #[error("too few parts of stripe {0} can be read")]
    Stripe(LogPoint),
    #[error("the object store does not give object {0}")]
    Object(LogPoint),
    /// The log says more, where that was found.
    #[error("{0} does not hold what was put")]
    Damaged(&'static str),
}

impl ReadFailed {
    /// Whether a slot that comes back may be able to give the records.
    pub(super) fn is_of_slots(&self) -> bool {
        matches!(self, Self::NotGiven(_) | Self::Stripe(_))
    }
}

/// What a partition's readers get of what was taken for them.
pub(super) fn fetched(view: &ReadView, taken: Taken, aborted: Vec<AbortedTransaction>) -> Fetched {
    Fetched {
        records: taken.pieces,
        end_offset: taken.end_offset,
        aborted,
        high_watermark: view.mark.high_watermark,
        last_stable_offset: view.last_stable_offset,
        log_start_offset: view.log_start_offset,
    }
}

/// Refuses an offset that is not in the log.
pub(super) fn check(view: &ReadView, offset: Offset) -> Result<(), FetchError> {
    let OutOfRange { log_start_offset, high_watermark } = match view.check(offset) {
        Ok(()) => return Ok(()),
        Err(out_of_range) => out_of_range,
    };
    Err(FetchError::OutOfRange { offset, log_start_offset, high_watermark })
}

/// What a slot answered to one of a read's questions.
type Answer = (Slot, ReadReply);

enum Asker {
    Future(oneshot::Sender<ReadReply>),
    Read(Slot, mpsc::Sender<Answer>),
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
            Asker::Future(_) | Asker::Read(..) => true,
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

    /// Reads the batches that lie in one place.
    pub(super) async fn read_source(
        self: &Arc<Self>,
        homes: &Homes,
        partition: PartitionId,
        source: Source,
        last_slot: &AtomicU8,
    ) -> Result<Arc<Vec<BatchSlice>>, ReadFailed> {
        let request = match source {
            Source::Log(read) | Source::Clean { read, .. } => read,
            Source::Cold { piece, .. } => {
                if let Some(stripe) = piece.stripe() {
                    let home = homes.of(stripe.point.generation)?;
                    return self.read_stripe(home, partition, stripe, piece.base_offset).await;
                }
                let object = piece.object().ok_or(ReadFailed::Damaged("a manifest"))?;
                return self.read_object(partition, object, piece.base_offset).await;
            }
        };
        Ok(Arc::new(self.read_batches(homes, request, source.kind(), last_slot).await?))
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
        let home = homes.of(request.generation)?;
        let (slot, blobs) = self.read_blobs(home, request, first).await?;
        last_slot.store(slot.index() as u8, Ordering::Relaxed);
        let mut batches = Vec::new();
        for blob in blobs.into_iter().filter(|blob| blob.header.kind == kind) {
            let payload = blob.payload.to_contiguous();
            batches.extend(batches_in(blob.header.base_offset, payload).map_err(|error| {
                tracing::error!(key = ?blob.key, %error, "a stored blob does not hold batches");
                ReadFailed::Damaged("a blob")
            })?);
        }
        Ok(batches)
    }

    /// Reads a run of blobs from the slots of a group ([`BlobRead`]), `first` before others as near. Returns them
    /// whole, with the slot that gave them.
    pub(super) async fn read_blobs(
        self: &Arc<Self>,
        group: &Group,
        request: Read,
        first: Option<Slot>,
    ) -> Result<(Slot, Vec<Blob>), ReadFailed> {
        let (slot, given) = self.ask_slots(group, request, first).await?;
        let blobs = match given {
            Given::Whole(blobs) => return Ok((slot, blobs)),
            // Decoding takes a while for each blob: not on the threads that serve.
            given => tokio::task::spawn_blocking(|| blobs_of(given)).await,
        };
        let blobs =
            blobs.map_err(|_| ReadFailed::Damaged("a blob in parts"))?.map_err(|error| {
                tracing::error!(?request, %error, "parts were read that do not fit");
                ReadFailed::Damaged("a blob in parts")
            })?;
        Ok((slot, blobs))
    }

    /// Carries out a [`BlobRead`].
    async fn ask_slots(
        self: &Arc<Self>,
        group: &Group,
        request: Read,
        first: Option<Slot>,
    ) -> Result<(Slot, Given), ReadFailed> {
        let now = self.now();
        let (order, slow) = group.reading_order(now, first);
        // A slot is asked once.
        let (sender, mut answers) = mpsc::channel(SLOT_COUNT_MAX);
        let mut questions = Vec::new();
        let mut out = Vec::new();
        let mut read = BlobRead::begin(request, order, slow, now, &mut out);
        loop {
            for output in std::mem::take(&mut out) {
                match output {
                    BlobReadOutput::Ask(slot, request) => {
                        match self.ask_slot(group, slot, request, &sender) {
                            Some(question) => questions.push(question),
                            None => {
                                let why = NotGiven::NotConnected;
                                read.on_nothing(self.now(), slot, why, &mut out);
                            }
                        }
                    }
                    BlobReadOutput::Late(slot) => group.on_late_read(self.now(), slot),
                    BlobReadOutput::Given(slot, given) => return Ok((slot, given)),
                    BlobReadOutput::Failed(failed) => {
                        let node_of = |slot| group.node_of(slot);
                        return Err(Box::new(NotServed::new(failed, node_of)).into());
                    }
                }
            }
            if !out.is_empty() {
                continue;
            }
            let within = read.deadline().since(self.now());
            match tokio::time::timeout(within, answers.recv()).await {
                Ok(Some((slot, reply))) => {
                    group.on_read_answer(slot);
                    if reply == ReadReply::Unreadable {
                        tracing::warn!(?slot, ?request, "a blob is unreadable; asking others");
                    }
                    read.on_reply(self.now(), slot, reply, &mut out);
                }
                Ok(None) | Err(_) => read.tick(self.now(), &mut out),
            }
        }
    }

    /// `None` if there is no connection to the slot's node.
    fn ask_slot<'a>(
        self: &'a Arc<Self>,
        group: &Group,
        slot: Slot,
        request: Read,
        answers: &mpsc::Sender<Answer>,
    ) -> Option<Asked<'a>> {
        let node = group.node_of(slot)?;
        let tag = self.pending.register(Asker::Read(slot, answers.clone()));
        let question = Asked { pending: &self.pending, tag };
        self.deliver(node, StorageMessage::Read { tag, request }).then_some(question)
    }

    /// Asks one node's slot for a part; `None` if it does not answer in time.
    pub(super) async fn ask(self: &Arc<Self>, node: NodeId, request: Read) -> Option<ReadReply> {
        let (sender, answer) = oneshot::channel();
        let tag = self.pending.register(Asker::Future(sender));
        let _forgotten = Asked { pending: &self.pending, tag };
        if !self.deliver(node, StorageMessage::Read { tag, request }) {
            return None;
        }
        tokio::time::timeout(ANSWER_WITHIN, answer).await.ok()?.ok()
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
            Some(Asker::Read(slot, answers)) => {
                let _reader_has_it = answers.try_send((slot, reply));
            }
            Some(Asker::Takeover { partition, slot, .. }) => {
                if let Some(log) = self.owned(partition) {
                    self.on_takeover_read(&log, slot, reply);
                }
            }
            None => {
                tracing::trace!(%from, tag, "late answer to a read");
                self.readable.ring();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
