//! What a round leaves of each batch.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::{Batch, BatchBuilder, BatchError, BatchHeader, Record};

use super::KeyOffsets;

/// Why a batch could not be cleaned. It stays as it is, and the round leaves its offset out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CleanError {
    /// Its records do not decode; a client wrote nonsense behind a right checksum.
    #[error("the batch at offset {offset} cannot be read: {error}")]
    Unreadable {
        /// Its base offset.
        offset: i64,
        /// What is wrong.
        error: BatchError,
    },
    /// The offsets inside do not ascend within the batch.
    #[error("the records of the batch at offset {offset} are not at ascending offsets of it")]
    OutOfOrder {
        /// Its base offset.
        offset: i64,
    },
}

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// It stays, byte for byte.
    Same,
    /// It is written anew, at the same offsets.
    Smaller(Bytes),
    /// Nothing of it is needed.
    Gone,
}

/// One round: what it knows, and by which it judges.
#[derive(Debug)]
pub struct Round<'a> {
    /// The last offset of each key; the round ends where it does.
    pub keys: &'a KeyOffsets,
    /// Base offset of each living producer's last batch.
    pub last_batches: &'a BTreeMap<i64, Offset>,
    /// Wall-clock time.
    pub now_ms: i64,
    /// How long tombstones stay after the round that first saw them (`delete.retention.ms`).
    pub delete_retention_ms: i64,
    /// Most bytes that a batch may decompress to.
    pub batch_size_bytes_max: usize,
}

impl Round<'_> {
    /// Judges a batch below the round's end, each record by itself.
    ///
    /// Transactional and control batches stay as they are: which of their records count is known
    /// to the transaction's coordinator, not to the records.
    pub fn clean(&self, batch: &Batch) -> Result<Cleaned, CleanError> {
        let header = batch.header();
        let unreadable = |error| CleanError::Unreadable { offset: header.base_offset, error };
        let flags = header.attributes;
        let judged = Offset::new(header.last_offset()) < self.keys.end();
        if !judged || flags.is_transactional() || flags.is_control() {
            return Ok(Cleaned::Same);
        }
        let records = batch.records(self.batch_size_bytes_max).map_err(unreadable)?;
        let mut kept = Vec::with_capacity(usize::try_from(header.records_count).unwrap_or(0));
        let mut has_tombstone = false;
        let mut offsets = header.base_offset..=header.last_offset();
        for record in records {
            let record = record.map_err(unreadable)?;
            if !offsets.contains(&record.offset) {
                return Err(CleanError::OutOfOrder { offset: header.base_offset });
            }
            offsets = record.offset.saturating_add(1)..=header.last_offset();
            if self.keeps(header, &record) {
                has_tombstone |= record.key.is_some() && record.value.is_none();
                kept.push(record);
            }
        }
        if kept.is_empty() && !self.is_last_of_producer(header) {
            return Ok(Cleaned::Gone);
        }
        // From now on the tombstones' time runs (KIP-534).
        let horizon_is_new = has_tombstone && !flags.has_delete_horizon();
        if kept.len() == usize::try_from(header.records_count).unwrap_or(0) && !horizon_is_new {
            return Ok(Cleaned::Same);
        }
        let horizon_ms = match (flags.has_delete_horizon(), has_tombstone) {
            (_, false) => None,
            (true, true) => Some(header.base_timestamp_ms),
            (false, true) => Some(self.now_ms.saturating_add(self.delete_retention_ms)),
        };
        rewrite(header, &kept, horizon_ms).map(Cleaned::Smaller).map_err(unreadable)
    }

    fn keeps(&self, header: &BatchHeader, record: &Record) -> bool {
        let Some(key) = &record.key else { return true };
        if self.keys.is_superseded(key, Offset::new(record.offset)) {
            return false;
        }
        let expired =
            header.attributes.has_delete_horizon() && header.base_timestamp_ms <= self.now_ms;
        record.value.is_some() || !expired
    }

    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        let last = self.last_batches.get(&header.producer_id);
        header.is_idempotent() && last.is_some_and(|last| last.get() == header.base_offset)
    }
}

/// The batch with these records only. It keeps its offsets, producer and compression.
fn rewrite(
    header: &BatchHeader,
    records: &[Record],
    horizon_ms: Option<i64>,
) -> Result<Bytes, BatchError> {
    let mut builder = BatchBuilder::cleaned(header, horizon_ms);
    for record in records {
        // Within the batch, as was checked: a delta of its header's size.
        let delta = (record.offset - header.base_offset) as i32;
        let headers: Vec<(&str, Option<&[u8]>)> =
            record.headers.iter().map(|it| (&*it.key, it.value.as_deref())).collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        builder.append_at(delta, record.timestamp_ms, key, value, &headers);
    }
    builder.keep_offsets_to(header.last_offset_delta);
    builder.build_compressed(header.attributes.compression()?)
}
