//! The transactions of one partition: which are open, how far all are decided, which were aborted
//! (KIP-98, KIP-890).
//!
//! ```text
//!   offset   0    1    2    3    4    5
//!            a1   b1   a2   A!   b2   .       a, b: producers;  A!: marker, "a aborts"
//!
//!   ongoing: b since 1        last stable offset: 1        aborted: a, 0 to 3
//! ```
//!
//! A function of the log alone (rules T9, 51): data batches open a transaction, control batches end
//! it, and nobody else does. What is not committed yet counts too; [`Transactions`] therefore does
//! not know the last stable offset, which [`StableOffset`] keeps beside it for a leader.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::codec::{DecodeError, Source};

use super::aborted::{AbortedTransaction, AbortedTransactions};
use crate::producer::Producers;

const CHECKPOINT_FORMAT: u8 = 1;
/// With the aborted ones in their compact encoding. Written where the other has no room: nodes of before do not read it.
const CHECKPOINT_FORMAT_COMPACT: u8 = 2;
const ONGOING_SIZE_BYTES: usize = 8 + 2 + 8 + 8;

/// How a producer's transactions are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionVersion {
    /// Several transactions share an epoch. The producer adds each partition before it writes.
    V1,
    /// Every transaction has an epoch of its own, because its marker carries the next one; the
    /// first batch in a partition adds it (KIP-890).
    V2,
}

/// The end of one producer's transaction, as its coordinator decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The producer.
    pub producer_id: i64,
    /// The transaction's epoch, or with [`TransactionVersion::V2`] the one after it.
    pub producer_epoch: i16,
    /// The epoch of the coordinator: one that is older than another seen here is refused.
    pub coordinator_epoch: i32,
    /// Whether the records count.
    pub commit: bool,
    /// How the producer's transactions are told apart.
    pub version: TransactionVersion,
    /// Counts the endings of one coordinator epoch from 1. Whoever repeats a marker repeats its number;
    /// 0 is not told.
    pub number: u64,
}

/// A transaction that is open in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ongoing {
    /// The epoch it was last written with.
    pub producer_epoch: i16,
    /// Its first record.
    pub first_offset: Offset,
    /// Largest timestamp of its first batch.
    pub started_at_ms: i64,
}

/// A transaction that ended: its first record, and its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its first record.
    pub first_offset: Offset,
    /// Its marker.
    pub marker_offset: Offset,
}

/// The transactions that a partition's log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transactions {
    ongoing: BTreeMap<i64, Ongoing>,
    /// First records of the ongoing ones.
    first_offsets: BTreeSet<Offset>,
    aborted: AbortedTransactions,
}

impl Transactions {
    /// What an open transaction takes in a checkpoint at most, with its producer, which stays, and with what is
    /// remembered once it is aborted.
    pub(super) const OPEN_SIZE_BYTES_MAX: usize =
        ONGOING_SIZE_BYTES + Producers::SIZE_BYTES_MAX + AbortedTransaction::COMPACT_SIZE_BYTES_MAX;

    /// What they may take in a checkpoint without one being opened.
    pub(super) fn kept_size_bytes(&self) -> usize {
        1 + 4 + self.ongoing.len() * Self::OPEN_SIZE_BYTES_MAX + self.aborted.compact_size_bytes()
    }

    /// The open transaction of a producer.
    pub fn ongoing(&self, producer_id: i64) -> Option<&Ongoing> {
        self.ongoing.get(&producer_id)
    }

    /// All open transactions, by producer.
    pub fn all_ongoing(&self) -> impl Iterator<Item = (i64, &Ongoing)> {
        self.ongoing.iter().map(|(producer_id, ongoing)| (*producer_id, ongoing))
    }

    /// How many are open.
    pub fn ongoing_count(&self) -> usize {
        self.ongoing.len()
    }

    /// The first record of the oldest open one.
    pub fn first_ongoing_offset(&self) -> Option<Offset> {
        self.first_offsets.first().copied()
    }

    /// The aborted ones.
    pub fn aborted(&self) -> &AbortedTransactions {
        &self.aborted
    }

    /// Notes a batch of a transaction: the first one opens it.
    pub fn on_batch(
        &mut self,
        producer_id: i64,
        producer_epoch: i16,
        base_offset: Offset,
        max_timestamp_ms: i64,
    ) {
        match self.ongoing.entry(producer_id) {
            Entry::Occupied(mut ongoing) => ongoing.get_mut().producer_epoch = producer_epoch,
            Entry::Vacant(none) => {
                let (first_offset, started_at_ms) = (base_offset, max_timestamp_ms);
                none.insert(Ongoing { producer_epoch, first_offset, started_at_ms });
                self.first_offsets.insert(first_offset);
            }
        }
    }

    /// Notes a marker; gives the transaction that it ended, if one was open.
    pub fn on_marker(
        &mut self,
        producer_id: i64,
        commit: bool,
        marker_offset: Offset,
    ) -> Option<Ended> {
        let Ongoing { first_offset, .. } = self.ongoing.remove(&producer_id)?;
        self.first_offsets.remove(&first_offset);
        if !commit {
            let decided = self.first_ongoing_offset().unwrap_or(marker_offset.advance(1));
            self.aborted.push(AbortedTransaction {
                producer_id,
                first_offset,
                last_offset: marker_offset,
                last_stable_offset: decided,
            });
        }
        Some(Ended { first_offset, marker_offset })
    }

    /// Forgets what lies wholly below the log start. Open transactions stay: only a marker ends one.
    pub fn trim(&mut self, log_start_offset: Offset) {
        self.aborted.forget_below(log_start_offset);
    }

    /// Forgets what was aborted, for tests of those who would be shown it.
    pub(super) fn forget_aborted(&mut self) {
        self.aborted = AbortedTransactions::default();
    }

    /// Size of the section of a checkpoint.
    pub(super) fn encoded_size_bytes(&self) -> usize {
        1 + 4 + self.ongoing.len() * ONGOING_SIZE_BYTES + self.aborted.encoded_size_bytes()
    }

    /// The section of a checkpoint; compact if there is no room for the other.
    pub fn encode(&self, is_compact: bool) -> Bytes {
        let mut out = BytesMut::with_capacity(if is_compact {
            self.kept_size_bytes()
        } else {
            self.encoded_size_bytes()
        });
        out.put_u8(if is_compact { CHECKPOINT_FORMAT_COMPACT } else { CHECKPOINT_FORMAT });
        out.put_u32(self.ongoing.len() as u32);
        for (producer_id, ongoing) in &self.ongoing {
            out.put_i64(*producer_id);
            out.put_i16(ongoing.producer_epoch);
            out.put_i64(ongoing.first_offset.get());
            out.put_i64(ongoing.started_at_ms);
        }
        if is_compact {
            self.aborted.encode_compact(&mut out);
        } else {
            self.aborted.encode(&mut out);
        }
        out.freeze()
    }

    /// Reads the section of a checkpoint.
    pub fn decode(section: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(section, "transactions checkpoint");
        let format = source.u8()?;
        if !matches!(format, CHECKPOINT_FORMAT | CHECKPOINT_FORMAT_COMPACT) {
            return Err(source.invalid("format", u64::from(format)));
        }
        let ongoing = source.list(ONGOING_SIZE_BYTES, |source| {
            let producer_id = source.i64()?;
            let producer_epoch = source.u16()?.cast_signed();
            let first_offset = Offset::new(source.i64()?);
            let started_at_ms = source.i64()?;
            Ok((producer_id, Ongoing { producer_epoch, first_offset, started_at_ms }))
        })?;
        let aborted = if format == CHECKPOINT_FORMAT_COMPACT {
            AbortedTransactions::decode_compact(&mut source)?
        } else {
            AbortedTransactions::decode(&mut source)?
        };
        source.finish()?;
        let first_offsets = ongoing.iter().map(|(_, ongoing)| ongoing.first_offset).collect();
        Ok(Self { ongoing: ongoing.into_iter().collect(), first_offsets, aborted })
    }
}

/// How far all transactions are decided, for a leader whose newest batches are not committed yet: a
/// transaction ends when its marker is committed, not when it is appended.
#[derive(Debug, Default)]
pub(super) struct StableOffset {
    /// Ended by markers that are not committed, in the order of those.
    undecided: VecDeque<Ended>,
}

impl StableOffset {
    /// Notes a transaction whose marker was appended just now.
    pub(super) fn on_ended(&mut self, ended: Ended) {
        self.undecided.push_back(ended);
    }

    /// Notes that everything below `high_watermark` is committed.
    pub(super) fn on_committed(&mut self, high_watermark: Offset) {
        while self.undecided.front().is_some_and(|ended| ended.marker_offset < high_watermark) {
            self.undecided.pop_front();
        }
    }

    /// The last stable offset: no record below it belongs to an undecided transaction. Never
    /// beyond the high watermark, never below the log start.
    pub(super) fn get(
        &self,
        transactions: &Transactions,
        log_start_offset: Offset,
        high_watermark: Offset,
    ) -> Offset {
        let undecided = self.undecided.iter().map(|ended| ended.first_offset);
        let open = undecided.chain(transactions.first_ongoing_offset());
        open.chain([high_watermark]).min().unwrap_or(high_watermark).max(log_start_offset)
    }

    /// Forgets everything: the leader is done.
    pub(super) fn clear(&mut self) {
        self.undecided.clear();
    }
}

#[cfg(test)]
mod tests;
