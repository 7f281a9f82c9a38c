//! Appending batches whose records name their sources: what is in the log already is left out.
//!
//! A batch of new records is appended as it came. One that mixes new and old is rewritten without the
//! old ones, which leaves holes: the others keep the offsets that the client computes from the
//! answer, and the batch the sequence numbers that its producer goes on from. A batch of old records
//! only is not appended, unless its producer is idempotent: then an empty one takes its sequence
//! numbers (`docs/decisions/0007-drop-duplicates-of-sources.md`).

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::{BatchError, BatchHeader, batches};

use super::source::{SourceError, SourceVerdict, SourcedBatch};
use super::{Partition, ProduceError, RecordBatch};

impl<T> Partition<T> {
    /// Appends what was judged to be new: the offset of the first record and an offset above all.
    pub(super) fn append_new(
        &mut self,
        mut batches: Vec<RecordBatch>,
    ) -> Result<(Offset, Offset), ProduceError> {
        // A request has one batch, where sources are named.
        if let [batch] = batches.as_mut_slice()
            && let Some(sourced) = batch.sourced.take()
            && let Some(batch) = batches.pop()
        {
            return self.append_sourced(batch, sourced);
        }
        let base_offset = self.open.next_offset();
        batches.into_iter().for_each(|batch| self.append(batch));
        Ok((base_offset, self.open.next_offset()))
    }

    /// Appends what is new of a batch. Its sequence numbers have been judged. Returns the offset of
    /// its first record and an offset above all its records, both possibly of earlier appends.
    fn append_sourced(
        &mut self,
        mut batch: RecordBatch,
        sourced: SourcedBatch,
    ) -> Result<(Offset, Offset), ProduceError> {
        let room_bytes = self.room_bytes();
        let sources = self.state.sources.get_or_insert_default();
        let verdict = sources.check(&sourced)?;
        sources.check_room(&sourced, room_bytes)?;
        let mut base_offset = self.open.next_offset();
        match verdict {
            SourceVerdict::New => batch.sourced = Some(sourced),
            SourceVerdict::Mixed { duplicates } => batch.leave_out(sourced, &duplicates)?,
            SourceVerdict::Duplicate { base_offset: original, end_offset } => {
                base_offset = original.unwrap_or(Offset::UNKNOWN);
                if batch.sequenced.is_none() {
                    return Ok((base_offset, end_offset));
                }
                let all: Vec<usize> = (0..sourced.record_count()).collect();
                batch.leave_out(sourced, &all)?;
            }
        }
        self.append(batch);
        Ok((base_offset, self.open.next_offset()))
    }

    /// Where the first record of a repeated batch is, if its source is remembered.
    pub(super) fn original_offset(&self, batch: &RecordBatch) -> Option<Offset> {
        self.state.sources.as_ref()?.first_offset(batch.sourced.as_ref()?)
    }

    /// Remembers the sources of a batch that is being appended.
    pub(super) fn note_sources(&mut self, sourced: Option<&SourcedBatch>, bytes: &Bytes) {
        let Some(sources) = &mut self.state.sources else { return };
        let base_offset = self.open.next_offset();
        match sourced {
            Some(sourced) => sources.apply(sourced, base_offset),
            None => sources.replay(bytes, base_offset),
        }
    }

    /// Takes the topic's configuration: whether sources are remembered.
    pub fn track_sources(&mut self, track: bool, now_ms: i64) {
        if track != self.state.sources.is_some() {
            self.state.track_sources(track, now_ms);
        }
    }

    /// Tells the wall-clock time: what is appended from now on was seen then.
    pub fn set_time(&mut self, now_ms: i64) {
        self.state.set_time(now_ms);
    }

    /// Forgets producers and sources that were last seen before these times.
    pub fn expire(&mut self, producers_ms: i64, sources_ms: i64) {
        if self.state.expire(producers_ms, sources_ms) {
            self.note_forgotten();
        }
    }
}

impl RecordBatch {
    /// Rewrites the batch without the records at `dropped`.
    fn leave_out(&mut self, sourced: SourcedBatch, dropped: &[usize]) -> Result<(), SourceError> {
        let (bytes, max_timestamp_ms) =
            without(self, dropped).map_err(|_| SourceError::NotRewritten)?;
        self.bytes = bytes;
        if max_timestamp_ms >= 0 {
            self.max_timestamp_ms = max_timestamp_ms;
        }
        if let Some(sequenced) = &mut self.sequenced {
            // What replay will read.
            sequenced.max_timestamp_ms = max_timestamp_ms;
        }
        self.sourced = Some(sourced.without(dropped));
        Ok(())
    }
}

fn without(batch: &RecordBatch, dropped: &[usize]) -> Result<(Bytes, i64), BatchError> {
    let batch = batches(batch.bytes.clone()).next().ok_or(BatchError::Empty)??;
    let records = batch.raw_records(super::source::BATCH_SIZE_BYTES_MAX)?;
    let bytes = records.filtered(|index| dropped.binary_search(&index).is_err())?;
    let max_timestamp_ms = BatchHeader::parse(&bytes)?.max_timestamp_ms;
    Ok((bytes, max_timestamp_ms))
}
