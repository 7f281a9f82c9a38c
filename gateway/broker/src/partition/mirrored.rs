//! Appending what a mirror's source has: at the source's own offsets and byte for byte, or not at
//! all (rules F2, F3).
//!
//! ```text
//! own log  ... 41 |  blob: offsets 42..58, batches at 45..49 and 52..57  | 58
//!                    ^ a gap that the source explained belongs to the blob after it
//! ```
//!
//! To the quorum log a gap is nothing special: a blob's `record_count` is the number of offsets it
//! spans, and each batch says itself where it begins.

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::partition::{BatchId, SourceBatch};
use meridian_protocol::records::{Batch, BatchHeader, NO_TIMESTAMP};
use meridian_storage::blob::{BlobKind, Payload};
use meridian_storage::leader::Draft;
use meridian_storage::placement::SlotHealth;

use super::{
    BatchSlice, Marker, OpenBlob, Partition, PartitionOutput, ProduceError, ReplayError,
    TransactionError, TransactionVersion,
};

/// Blobs that may stand for the offsets before a mirror's first record.
const BEGIN_BLOB_COUNT_MAX: u32 = 4096;
/// The last offset that a mirror can begin at.
const BEGIN_MAX: i64 = BEGIN_BLOB_COUNT_MAX as i64 * u32::MAX as i64;

/// Why batches of a source were not appended; nothing was then, from the one that was refused on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// The log does not take anything now.
    #[error(transparent)]
    Refused(#[from] ProduceError),
    /// Somebody else has written, or the batches are not the next ones.
    #[error("the log ends at {end}, not at {expected}")]
    NotAtEnd {
        /// Where it should have ended, or where the next batch begins.
        expected: Offset,
        /// Where it ends.
        end: Offset,
    },
    /// More offsets are missing than one blob can span.
    #[error("{offsets} offsets in one gap: at most {} are possible", u32::MAX)]
    GapTooLarge {
        /// From the end of the log to the end of the batch.
        offsets: i64,
    },
    /// The source begins further on than a log is made to begin.
    #[error("the source begins at offset {at}: a mirror can begin up to {}", BEGIN_MAX)]
    BeginsTooFar {
        /// Where it begins.
        at: Offset,
    },
    /// No blob holds it.
    #[error(
        "the source has a batch of {size_bytes} bytes at offset {offset}, and a log here takes none above \
         {size_bytes_max}; lower max.message.bytes at the source and delete the records up to there"
    )]
    BatchTooLarge {
        /// Its first offset.
        offset: Offset,
        /// Its size.
        size_bytes: usize,
        /// The limit.
        size_bytes_max: usize,
    },
    /// There is no room to remember one more transaction as aborted.
    #[error(transparent)]
    NoRoom(TransactionError),
    /// A control batch can't be read.
    #[error("the source sent a batch that can't be replayed: {0}")]
    Replay(#[from] ReplayError),
}

impl<T> Partition<T> {
    /// Offset after the last record put, committed or not: where the next batch must begin.
    pub fn end_offset(&self) -> Offset {
        self.open.next_offset()
    }

    /// Appends whole batches of a source at the offsets they have there; `waiter` is answered when
    /// they are committed. Producers and their transactions are updated, not checked.
    pub fn append_mirrored(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        expected: Offset,
        batches: Vec<BatchSlice>,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<(), MirrorError> {
        self.admit(health)?;
        let end = self.end_offset();
        if end != expected {
            return Err(MirrorError::NotAtEnd { expected, end });
        }
        // The source may have forgotten, or deleted, what some of its producers wrote.
        self.strangers.on_forgotten();
        for mut batch in batches {
            if batch.max_timestamp_ms < 0 {
                // To its source, too, it is as old as its append.
                batch.max_timestamp_ms = self.state.producers.now_ms();
            }
            self.push_mirrored(now, health, batch, out)?;
        }
        self.wait_for(waiter, expected, self.end_offset());
        self.flush(now, health, true, out);
        self.answer_committed(out);
        Ok(())
    }

    fn push_mirrored(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        batch: BatchSlice,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<(), MirrorError> {
        let (expected, end) = (batch.base_offset, self.end_offset());
        if expected < end {
            return Err(MirrorError::NotAtEnd { expected, end });
        }
        let size_bytes = batch.size_bytes();
        self.check_mirrored(&batch)?;
        self.seal_before(size_bytes);
        let mut record_count = span(self.open.base_offset, &batch);
        if record_count.is_none() || self.open.size_bytes >= self.limits.blob_size_bytes {
            self.flush(now, health, true, out);
            record_count = span(self.open.base_offset, &batch);
        }
        let offsets = batch.last_offset.get() - end.get();
        let record_count = record_count.ok_or(MirrorError::GapTooLarge { offsets })?;
        let ended = self.state.replay(&batch)?;
        ended.into_iter().for_each(|ended| self.stable.on_ended(ended));
        self.bytes_since_checkpoint += size_bytes as u64;
        self.open.record_count = record_count;
        self.open.size_bytes += size_bytes;
        self.open.max_timestamp_ms = self.open.max_timestamp_ms.max(batch.max_timestamp_ms);
        self.open.parts.push(batch.head.clone());
        if !batch.body.is_empty() {
            self.open.parts.push(batch.body.clone());
        }
        self.open.batches.push(batch);
        Ok(())
    }

    /// Refuses what no blob, and what no checkpoint, would hold (rules Z1 and Z3).
    fn check_mirrored(&self, batch: &BatchSlice) -> Result<(), MirrorError> {
        let (offset, size_bytes) = (batch.base_offset, batch.size_bytes());
        let size_bytes_max = self.leader.blob_size_bytes_max();
        if size_bytes > size_bytes_max {
            return Err(MirrorError::BatchTooLarge { offset, size_bytes, size_bytes_max });
        }
        let header = BatchHeader::parse(&batch.head).map_err(|_| ReplayError::NotABatch(offset))?;
        let opens = header.attributes.is_transactional()
            && !header.attributes.is_control()
            && self.state.transactions.ongoing(header.producer_id).is_none();
        if opens {
            self.check_transaction_room(1).map_err(MirrorError::NoRoom)?;
        }
        Ok(())
    }

    /// Aborts every open transaction: their coordinators are at the source, and nobody else would
    /// ever end them here (rules F6, 63). `waiter` is answered when all markers are committed.
    pub fn abort_open_transactions(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        timestamp_ms: i64,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        if let Err(error) = self.admit(health) {
            out.push(PartitionOutput::Answer { waiter, result: Err(error) });
            return;
        }
        let open = self.state.transactions.all_ongoing();
        let open: Vec<(i64, i16)> = open.map(|(id, it)| (id, it.producer_epoch)).collect();
        let base_offset = self.end_offset();
        for (producer_id, producer_epoch) in open {
            let coordinator_epoch = self.state.producers.coordinator_epoch(producer_id).max(0);
            let marker = Marker {
                producer_id,
                producer_epoch,
                coordinator_epoch,
                commit: false,
                version: TransactionVersion::V1,
                number: 0,
            };
            self.append_marker(&marker, timestamp_ms);
        }
        self.wait_for(waiter, base_offset, self.end_offset());
        self.flush(now, health, true, out);
        self.answer_committed(out);
    }

    /// Makes a log without records end at `at`, so that a mirror begins where its source does. `waiter`
    /// is answered when that is committed.
    pub fn begin_at(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        at: Offset,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<(), MirrorError> {
        self.admit(health)?;
        let end = self.end_offset();
        if self.state.size_bytes() > 0 || at < end {
            return Err(MirrorError::NotAtEnd { expected: at, end });
        }
        // What the source had before is not here.
        self.strangers.on_forgotten();
        if at.get() > BEGIN_MAX {
            return Err(MirrorError::BeginsTooFar { at });
        }
        self.wait_for(waiter, end, at);
        while self.leader.next_offset() < at {
            let base_offset = self.leader.next_offset();
            let missing = at.get() - base_offset.get();
            let draft = Draft {
                kind: BlobKind::Records,
                base_offset,
                record_count: u32::try_from(missing).unwrap_or(u32::MAX),
                max_timestamp_ms: -1,
                payload: Payload::default(),
            };
            self.leader
                .put(now, health, draft, &mut self.leader_out)
                .map_err(ProduceError::from)?;
        }
        self.open = OpenBlob::at(at);
        self.drain_leader(now, health, out);
        self.answer_committed(out);
        Ok(())
    }
}

/// What identifies a batch.
pub fn batch_id(batch: &Batch) -> BatchId {
    let header = batch.header();
    BatchId {
        base_offset: Offset::new(header.base_offset),
        last_offset: Offset::new(header.last_offset()),
        leader_epoch: LeaderEpoch::new(header.partition_leader_epoch),
        crc: header.crc,
    }
}

impl From<SourceBatch> for BatchSlice {
    fn from(batch: SourceBatch) -> Self {
        let header = BatchHeader::parse(&batch.bytes);
        Self {
            base_offset: batch.id.base_offset,
            last_offset: batch.id.last_offset,
            max_timestamp_ms: header.map_or(NO_TIMESTAMP, |header| header.max_timestamp_ms),
            head: batch.bytes,
            body: Bytes::new(),
        }
    }
}

/// The offsets from `base_offset` to the end of a batch, if a blob can span them.
fn span(base_offset: Offset, batch: &BatchSlice) -> Option<u32> {
    u32::try_from(batch.last_offset.get() + 1 - base_offset.get()).ok()
}
