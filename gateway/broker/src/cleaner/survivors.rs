//! What a round leaves of each batch.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::{
    Batch, BatchBuilder, BatchError, BatchHeader, Compression, Record,
};
use meridian_storage::mutation::{Mutation, Mutations};

use super::{Aborted, KeyOffsets};

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
    /// The transactions whose records do not count.
    pub aborted: &'a Aborted,
    /// Wall-clock time.
    pub now_ms: i64,
    /// How long tombstones stay after the round that first saw them (`delete.retention.ms`).
    pub delete_retention_ms: i64,
    /// Most bytes that a batch may decompress to.
    pub batch_size_bytes_max: usize,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

impl Round<'_> {
    /// Judges a batch below the round's end, each record by itself. Nothing is needed of a batch that
    /// was aborted. Control batches stay as they are; see [`Round::clean_marker`].
    pub fn clean(&self, batch: &Batch) -> Result<Cleaned, CleanError> {
        let header = batch.header();
        let unreadable = |error| CleanError::Unreadable { offset: header.base_offset, error };
        let flags = header.attributes;
        let judged = Offset::new(header.last_offset()) < self.keys.end();
        if !judged || flags.is_control() {
            return Ok(Cleaned::Same);
        }
        if self.aborted.holds(header) {
            return self.emptied(header);
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
        if kept.is_empty() {
            return self.emptied(header);
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

    /// Judges the marker of a transaction of which no record is left: it goes as a tombstone goes, in
    /// its own time, so that whoever has read the records before finds it.
    pub fn clean_marker(&self, batch: &Batch) -> Result<Cleaned, CleanError> {
        let header = batch.header();
        let unreadable = |error| CleanError::Unreadable { offset: header.base_offset, error };
        if Offset::new(header.last_offset()) >= self.keys.end() {
            return Ok(Cleaned::Same);
        }
        if header.attributes.has_delete_horizon() {
            let is_over = header.base_timestamp_ms <= self.now_ms;
            return Ok(if is_over { Cleaned::Gone } else { Cleaned::Same });
        }
        let records = batch.records(self.batch_size_bytes_max).map_err(unreadable)?;
        let records: Vec<Record> = records.collect::<Result<_, _>>().map_err(unreadable)?;
        let horizon_ms = self.now_ms.saturating_add(self.delete_retention_ms);
        rewrite(header, &records, Some(horizon_ms)).map(Cleaned::Smaller).map_err(unreadable)
    }

    /// What stays of a batch without records: its header, while its producer needs it.
    fn emptied(&self, header: &BatchHeader) -> Result<Cleaned, CleanError> {
        if !self.is_last_of_producer(header) {
            return Ok(Cleaned::Gone);
        }
        if header.records_count == 0 {
            return Ok(Cleaned::Same);
        }
        let unreadable = |error| CleanError::Unreadable { offset: header.base_offset, error };
        rewrite(header, &[], None).map(Cleaned::Smaller).map_err(unreadable)
    }

    fn keeps(&self, header: &BatchHeader, record: &Record) -> bool {
        let Some(key) = &record.key else { return true };
        let offset = Offset::new(record.offset);
        let drops_newest = Mutation::DropNewest.active(self.mutations);
        if self.keys.is_superseded(key, offset)
            || drops_newest && self.keys.last(key) == Some(offset)
        {
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
    // As Kafka's own cleaner does: some clients would decompress nothing.
    let compression =
        if records.is_empty() { Compression::None } else { header.attributes.compression()? };
    builder.build_compressed(compression)
}
