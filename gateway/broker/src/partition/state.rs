//! What a partition's batches amount to: its producers and their transactions, and how bytes and
//! time lie along the log.
//!
//! A function of the log alone (rule T9): a checkpoint blob holds it as of its own step, and a new
//! leader brings it up to date by applying the blobs after it.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_protocol::records::{self, BatchHeader, EndTxnMarker, NO_TIMESTAMP};
use meridian_storage::blob::{BlobHeader, BlobKind};
use meridian_storage::codec::{DecodeError, Source};
use meridian_storage::manifest::{Manifest, PIECE_SIZE_BYTES_MAX};

use super::BatchSlice;
use super::source::Sources;
use super::transactions::{Ended, Marker, TransactionVersion, Transactions};
use crate::producer::{Producers, Sequenced};

/// A run of the log this large gets a line in the chunk list.
pub(super) const CHUNK_SIZE_BYTES: u64 = 8 << 20;
/// So does a run that spans this much time, so that low traffic can expire too.
const CHUNK_SPAN_MS: i64 = 10 * 60 * 1000;
const CHUNK_ENCODED_SIZE_BYTES: usize = 32;
const CHECKPOINT_FORMAT: u8 = 2;
/// The format before there were transactions.
const CHECKPOINT_FORMAT_WITHOUT_TRANSACTIONS: u8 = 1;
/// Largest control record: more than any marker takes.
const CONTROL_RECORD_SIZE_BYTES_MAX: usize = 1 << 10;
/// What a checkpoint holds besides, if there is any: sections of a tag (stable), a length and bytes.
const SECTION_SOURCES: u8 = 1;
const SECTION_MANIFEST: u8 = 2;
const SECTION_HEAD_SIZE_BYTES: usize = 1 + 4;
/// Heads of a checkpoint, of its sections and of what is in them.
pub(super) const HEAD_SIZE_BYTES_MAX: usize = 64;

/// Why the state could not be rebuilt: stored bytes that the leader itself had checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A checkpoint or batch does not decode.
    #[error("replay: {0}")]
    Decode(#[from] DecodeError),
    /// A record batch is not one.
    #[error("replay: no record batch at offset {0}")]
    NotABatch(Offset),
}

/// A run of the log: where it begins, how large it is and how late its last record. Records without
/// a time count as of their append; what was stored before that was so may have [`NO_TIMESTAMP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) base_offset: Offset,
    pub(super) size_bytes: u64,
    /// If no record has a time of its own, the complement of the append of the first, which is
    /// negative.
    pub(super) first_timestamp_ms: i64,
    pub(super) max_timestamp_ms: i64,
}

impl Chunk {
    /// When its first record is from: by its own time, or by its append if none has one.
    pub(super) fn since_ms(&self) -> i64 {
        if self.is_untimed() { !self.first_timestamp_ms } else { self.first_timestamp_ms }
    }

    /// Whether none of its records has a time of its own: no lookup by time finds them.
    fn is_untimed(&self) -> bool {
        self.first_timestamp_ms < 0
    }

    /// Whether all of it is older than `timestamp_ms`; `None` if nobody knows.
    fn is_before(&self, timestamp_ms: i64) -> Option<bool> {
        (self.max_timestamp_ms >= 0).then_some(self.max_timestamp_ms < timestamp_ms)
    }
}

/// The time of a run's latest record, and where the run begins; of equal times the first is the later.
pub type RunTime = (i64, Reverse<Offset>);

/// Which times the records of a log have, for batches that do not say it themselves.
#[derive(Clone, Debug, Default)]
pub struct LogTimes {
    /// Where runs of the log begin, and the time of the latest record of each.
    runs: Vec<(Offset, i64)>,
}

impl LogTimes {
    /// The time of the latest record of the batch at `base_offset`, whose header says
    /// `max_timestamp_ms`; [`NO_TIMESTAMP`] if nobody knows.
    pub fn of_batch(&self, base_offset: Offset, max_timestamp_ms: i64) -> i64 {
        if max_timestamp_ms >= 0 {
            return max_timestamp_ms;
        }
        let after = self.runs.partition_point(|(begin, _)| *begin <= base_offset);
        let run = after.checked_sub(1).and_then(|index| self.runs.get(index));
        run.map_or(NO_TIMESTAMP, |(_, timestamp_ms)| *timestamp_ms)
    }
}

/// How much of a log to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Largest size, if there is a bound (`retention.bytes`).
    pub size_bytes_max: Option<u64>,
    /// Records older than this time go, if there is a bound (now minus `retention.ms`).
    pub timestamp_ms_min: Option<i64>,
}

/// What a partition's batches amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// The idempotent producers.
    pub producers: Producers,
    /// Their transactions.
    pub transactions: Transactions,
    /// The sources, if the topic asks for it (`meridian.dedup=source`).
    pub sources: Option<Sources>,
    /// First offset that can be read, as the last `Trim` says.
    pub log_start_offset: Offset,
    /// Where the log below its end lies, if that is no longer in the blobs that were put first.
    pub manifest: Option<Arc<Manifest>>,
    pub(super) chunks: VecDeque<Chunk>,
}

impl PartitionState {
    /// Notes an appended batch. Its header says `stated_ms`; its latest record is as old as `time_ms`.
    pub fn note(&mut self, base_offset: Offset, size_bytes: u64, stated_ms: i64, time_ms: i64) {
        let (is_untimed, max_timestamp_ms) = (stated_ms < 0, time_ms);
        let fits = self.chunks.back().is_some_and(|chunk| {
            chunk.size_bytes < CHUNK_SIZE_BYTES
                && (is_untimed || !chunk.is_untimed())
                && time_ms.saturating_sub(chunk.since_ms()) < CHUNK_SPAN_MS
        });
        if !fits {
            let first_timestamp_ms = if is_untimed { !time_ms.max(0) } else { time_ms };
            self.chunks.push_back(Chunk {
                base_offset,
                size_bytes: 0,
                first_timestamp_ms,
                max_timestamp_ms,
            });
            self.forget_chunks();
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.size_bytes += size_bytes;
            chunk.max_timestamp_ms = chunk.max_timestamp_ms.max(max_timestamp_ms);
        }
    }

    /// Applies a batch of records. `transaction` is the producer and its epoch if the batch is
    /// transactional.
    pub fn apply_batch(
        &mut self,
        base_offset: Offset,
        max_timestamp_ms: i64,
        sequenced: Option<&Sequenced>,
        transaction: Option<(i64, i16)>,
    ) {
        if let Some(sequenced) = sequenced {
            self.producers.apply(sequenced, base_offset);
        }
        if let Some((producer_id, epoch)) = transaction {
            if sequenced.is_none() {
                self.producers.note_epoch(producer_id, epoch, max_timestamp_ms);
            }
            self.transactions.on_batch(producer_id, epoch, base_offset, max_timestamp_ms);
        }
    }

    /// Applies a marker; gives the transaction that it ended, if one was open.
    pub fn apply_marker(
        &mut self,
        offset: Offset,
        marker: &Marker,
        timestamp_ms: i64,
    ) -> Option<Ended> {
        let Marker { producer_id, producer_epoch, coordinator_epoch, commit, .. } = *marker;
        self.producers.note_epoch(producer_id, producer_epoch, timestamp_ms);
        self.producers.note_coordinator(producer_id, coordinator_epoch);
        self.transactions.on_marker(producer_id, commit, offset)
    }

    /// Applies a committed blob, on replay.
    pub fn apply_blob(&mut self, header: &BlobHeader, payload: Bytes) -> Result<(), ReplayError> {
        match header.kind {
            BlobKind::Records => {
                for mut slice in batches_in(header.base_offset, payload)? {
                    if slice.max_timestamp_ms < 0 {
                        // The leader put the time of the append there.
                        slice.max_timestamp_ms = header.max_timestamp_ms;
                    }
                    self.replay(&slice)?;
                }
            }
            BlobKind::Trim => self.trim(header.base_offset),
            BlobKind::Manifest => self.apply_manifest(Arc::new(Manifest::decode(payload)?)),
            // What a clean blob holds was in the log before, and was noted then.
            BlobKind::Start | BlobKind::Checkpoint | BlobKind::Clean | BlobKind::Part => {}
        }
        Ok(())
    }

    /// Applies one batch of the log, judged when it was written; gives the transaction that it
    /// ended, if any. `slice` says how late the batch is, its header what its records say.
    pub(super) fn replay(&mut self, slice: &BatchSlice) -> Result<Option<Ended>, ReplayError> {
        let offset = slice.base_offset;
        let header = BatchHeader::parse(&slice.head).map_err(|_| ReplayError::NotABatch(offset))?;
        let size_bytes = slice.size_bytes() as u64;
        self.note(offset, size_bytes, header.max_timestamp_ms, slice.max_timestamp_ms);
        let (producer_id, epoch) = (header.producer_id, header.producer_epoch);
        if header.attributes.is_control() {
            if let Some(EndTxnMarker { committed, coordinator_epoch }) = marker_of(slice)? {
                let marker = Marker {
                    producer_id,
                    producer_epoch: epoch,
                    coordinator_epoch,
                    commit: committed,
                    // What tells the versions apart was judged when the marker was written.
                    version: TransactionVersion::V1,
                    number: 0,
                };
                return Ok(self.apply_marker(offset, &marker, slice.max_timestamp_ms));
            }
            return Ok(None);
        }
        let is_numbered = producer_id >= 0 && header.base_sequence >= 0;
        let sequenced = is_numbered.then(|| Sequenced {
            producer_id,
            epoch,
            base_sequence: header.base_sequence,
            record_count: (slice.last_offset.get() - offset.get() + 1) as u32,
            max_timestamp_ms: header.max_timestamp_ms,
        });
        if let Some(sources) = &mut self.sources {
            sources.replay(&slice.head, offset);
        }
        let transaction = header.attributes.is_transactional().then_some((producer_id, epoch));
        self.apply_batch(offset, slice.max_timestamp_ms, sequenced.as_ref(), transaction);
        Ok(None)
    }

    /// Remembers sources from here on, or forgets them. What is replayed counts as seen at `now_ms`.
    pub fn track_sources(&mut self, track: bool, now_ms: i64) {
        self.sources = track.then(|| self.sources.take().unwrap_or_default());
        self.set_time(now_ms);
    }

    /// Tells the wall-clock time: what is applied from now on was seen then.
    pub fn set_time(&mut self, now_ms: i64) {
        self.producers.set_time(now_ms);
        self.producers.see_no_later();
        if let Some(sources) = &mut self.sources {
            sources.set_replay_time(now_ms);
        }
    }

    /// Forgets producers and sources that were last seen before these times; returns whether a
    /// producer was forgotten.
    pub fn expire(&mut self, producers_ms: i64, sources_ms: i64) -> bool {
        let transactions = &self.transactions;
        let producer_count = self.producers.count();
        self.producers.expire(producers_ms, |id| transactions.ongoing(id).is_some());
        if let Some(sources) = &mut self.sources {
            sources.expire(sources_ms);
        }
        self.producers.count() < producer_count
    }

    /// Whether nothing was ever appended or deleted.
    pub(super) fn is_untouched(&self) -> bool {
        self.producers.count() == 0
            && self.chunks.is_empty()
            && self.log_start_offset == Offset::ZERO
            && self.manifest.is_none()
    }

    /// Moves the log start and forgets chunks wholly below it.
    pub fn trim(&mut self, log_start_offset: Offset) {
        self.log_start_offset = self.log_start_offset.max(log_start_offset);
        self.forget_chunks();
        if self.clean_end() <= self.log_start_offset {
            self.manifest = None;
        }
        self.transactions.trim(self.log_start_offset);
    }

    /// Forgets chunks wholly below the log start.
    pub(super) fn forget_chunks(&mut self) {
        while self.chunks.get(1).is_some_and(|next| next.base_offset <= self.log_start_offset) {
            self.chunks.pop_front();
        }
    }

    /// The log start that `retention` asks for, if it lies beyond the oldest chunk. The newest chunk
    /// goes only by age, and up to `end_offset`, where the log ends if nothing is being written. What
    /// nobody knows the age of is older than what comes after it, and no older than that.
    pub fn expired_before(
        &self,
        retention: &Retention,
        end_offset: Option<Offset>,
    ) -> Option<Offset> {
        let mut size_bytes: u64 = self.size_bytes();
        let mut keep_from = None;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let next = self.chunks.get(index + 1);
            let too_large = retention.size_bytes_max.is_some_and(|max| size_bytes > max);
            let too_old =
                retention.timestamp_ms_min.map_or(Some(false), |min| chunk.is_before(min));
            size_bytes -= chunk.size_bytes;
            match too_old {
                Some(true) => {}
                _ if too_large && next.is_some() => {}
                Some(false) => break,
                None => continue,
            }
            keep_from = next.map(|next| next.base_offset).or(end_offset).or(keep_from);
        }
        keep_from
    }

    /// The latest time of all batches, if any has one.
    pub fn max_timestamp_ms(&self) -> Option<i64> {
        self.chunks.iter().map(|chunk| chunk.max_timestamp_ms).max()
    }

    /// The latest time in the oldest run of records.
    pub fn oldest_timestamp_ms(&self) -> Option<i64> {
        self.chunks.front().map(|chunk| chunk.max_timestamp_ms)
    }

    /// Offset from which to look for the first record at or after `timestamp_ms`, from `from` on.
    pub fn seek_timestamp(&self, timestamp_ms: i64, from: Offset) -> Option<Offset> {
        let after = self.chunks.partition_point(|chunk| chunk.base_offset <= from);
        let mut chunks = self.chunks.iter().skip(after.saturating_sub(1));
        let found =
            chunks.find(|chunk| !chunk.is_untimed() && chunk.max_timestamp_ms >= timestamp_ms)?;
        Some(found.base_offset.max(from))
    }

    /// Of the runs that are not as late as `before`, the latest, and of those the first: the time of
    /// its latest record, and its offsets.
    pub fn latest_run(&self, before: Option<RunTime>) -> Option<(RunTime, Range<Offset>)> {
        let time = |chunk: &Chunk| (chunk.max_timestamp_ms, Reverse(chunk.base_offset));
        let timed = self.chunks.iter().enumerate().filter(|(_, chunk)| !chunk.is_untimed());
        let earlier = timed.filter(|(_, chunk)| before.is_none_or(|before| time(chunk) < before));
        let (index, latest) = earlier.max_by_key(|(_, chunk)| time(chunk))?;
        let end = self.chunks.get(index + 1).map_or(Offset::new(i64::MAX), |it| it.base_offset);
        Some((time(latest), latest.base_offset..end))
    }

    /// The times of all records.
    pub fn times(&self) -> LogTimes {
        let run = |chunk: &Chunk| (chunk.base_offset, chunk.max_timestamp_ms);
        LogTimes { runs: self.chunks.iter().map(run).collect() }
    }

    /// Bytes of all records in the log.
    pub fn size_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.size_bytes).sum()
    }

    /// Bytes of the runs that begin in a range of offsets.
    pub fn size_bytes_between(&self, from: Offset, until: Offset) -> u64 {
        let runs = self.chunks.iter().filter(|chunk| (from..until).contains(&chunk.base_offset));
        runs.map(|chunk| chunk.size_bytes).sum()
    }

    /// What transactions, sources and the manifest may take in a checkpoint.
    pub(super) fn kept_size_bytes(&self) -> usize {
        let sources = self.sources.as_ref().map_or(0, Sources::size_bytes_max);
        let pieces = self.manifest.as_ref().map_or(0, |manifest| manifest.pieces.len());
        self.transactions.kept_size_bytes() + sources + pieces * PIECE_SIZE_BYTES_MAX
    }

    pub(super) fn chunks_size_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ENCODED_SIZE_BYTES
    }

    /// Makes one line of two, all along but at the end of what a manifest covers; false if there is nothing to merge.
    pub(super) fn merge_chunks(&mut self) -> bool {
        let clean_end = self.clean_end();
        let count = self.chunks.len();
        let mut merged: VecDeque<Chunk> = VecDeque::with_capacity(count.div_ceil(2) + 1);
        let mut is_single = false;
        for chunk in self.chunks.drain(..) {
            let is_clean = chunk.base_offset < clean_end;
            let fits = |last: &&mut Chunk| is_single && is_clean == (last.base_offset < clean_end);
            match merged.back_mut().filter(fits) {
                Some(last) => {
                    last.size_bytes += chunk.size_bytes;
                    last.max_timestamp_ms = last.max_timestamp_ms.max(chunk.max_timestamp_ms);
                    is_single = false;
                }
                None => {
                    merged.push_back(chunk);
                    is_single = true;
                }
            }
        }
        self.chunks = merged;
        self.chunks.len() < count
    }

    /// The payload of a checkpoint blob.
    pub fn encode(&self) -> Bytes {
        self.encode_within(usize::MAX)
    }

    /// The payload of a checkpoint blob: more compact, which nodes of before do not read, if it would be larger than this.
    pub fn encode_within(&self, size_bytes_max: usize) -> Bytes {
        let producers = self.producers.encode();
        let others = self.kept_size_bytes() - self.transactions.kept_size_bytes()
            + self.chunks_size_bytes()
            + producers.len()
            + HEAD_SIZE_BYTES_MAX;
        let is_compact = others + self.transactions.encoded_size_bytes() > size_bytes_max;
        let sections = [producers, self.transactions.encode(is_compact)];
        let sections_size_bytes: usize = sections.iter().map(|section| 4 + section.len()).sum();
        let sources = self.sources.as_ref().map(|it| (SECTION_SOURCES, it.encode()));
        let manifest = self.manifest.as_ref().map(|it| (SECTION_MANIFEST, it.encode()));
        let extras = [sources, manifest].into_iter().flatten().collect::<Vec<_>>();
        let extras_size_bytes: usize =
            extras.iter().map(|(_, section)| SECTION_HEAD_SIZE_BYTES + section.len()).sum();
        let size_bytes = 13
            + self.chunks.len() * CHUNK_ENCODED_SIZE_BYTES
            + sections_size_bytes
            + extras_size_bytes;
        let mut out = BytesMut::with_capacity(size_bytes);
        out.put_u8(CHECKPOINT_FORMAT);
        out.put_i64(self.log_start_offset.get());
        out.put_u32(self.chunks.len() as u32);
        for chunk in &self.chunks {
            out.put_i64(chunk.base_offset.get());
            out.put_u64(chunk.size_bytes);
            out.put_i64(chunk.first_timestamp_ms);
            out.put_i64(chunk.max_timestamp_ms);
        }
        for section in sections {
            out.put_u32(section.len() as u32);
            out.put_slice(&section);
        }
        for (tag, section) in &extras {
            out.put_u8(*tag);
            out.put_u32(section.len() as u32);
            out.put_slice(section);
        }
        out.freeze()
    }

    /// Reads the payload of a checkpoint blob.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(payload, "partition checkpoint");
        let format = source.u8()?;
        if !(CHECKPOINT_FORMAT_WITHOUT_TRANSACTIONS..=CHECKPOINT_FORMAT).contains(&format) {
            return Err(source.invalid("format", u64::from(format)));
        }
        let log_start_offset = Offset::new(source.i64()?);
        let chunks = source.list(CHUNK_ENCODED_SIZE_BYTES, |source| {
            Ok(Chunk {
                base_offset: Offset::new(source.i64()?),
                size_bytes: source.u64()?,
                first_timestamp_ms: source.i64()?,
                max_timestamp_ms: source.i64()?,
            })
        })?;
        let producers = Producers::decode(source.sized()?)?;
        let transactions = if format == CHECKPOINT_FORMAT_WITHOUT_TRANSACTIONS {
            Transactions::default()
        } else {
            Transactions::decode(source.sized()?)?
        };
        let (mut sources, mut manifest) = (None, None);
        while source.left() > 0 {
            match (source.u8()?, source.sized()?) {
                (SECTION_SOURCES, section) => sources = Some(Sources::decode(section)?),
                (SECTION_MANIFEST, section) => {
                    manifest = Some(Arc::new(Manifest::decode(section)?));
                }
                (unknown, _) => return Err(source.invalid("section", u64::from(unknown))),
            }
        }
        let chunks = chunks.into();
        Ok(Self { producers, transactions, sources, log_start_offset, manifest, chunks })
    }
}

/// Cuts a blob's payload into its batches, which say themselves where they begin: offsets may be
/// missing between those of a mirror. The leader checked each before it put the blob, and the store
/// checked the payload's CRC: only the lengths and the order are verified again.
pub fn batches_in(base_offset: Offset, payload: Bytes) -> Result<Vec<BatchSlice>, ReplayError> {
    let mut batches = Vec::new();
    let mut rest = payload;
    let mut next_offset = base_offset;
    while !rest.is_empty() {
        let error = ReplayError::NotABatch(next_offset);
        let header = BatchHeader::parse(&rest).map_err(|_| error)?;
        if header.size_bytes > rest.len() {
            return Err(error);
        }
        let last_delta = u32::try_from(header.last_offset_delta).map_err(|_| error)?;
        let base_offset = Offset::new(header.base_offset);
        let end = header.base_offset.checked_add(i64::from(last_delta) + 1).ok_or(error)?;
        if base_offset < next_offset {
            return Err(error);
        }
        next_offset = Offset::new(end);
        batches.push(BatchSlice {
            base_offset,
            last_offset: base_offset.advance(last_delta),
            max_timestamp_ms: header.max_timestamp_ms,
            head: rest.split_to(header.size_bytes),
            body: Bytes::new(),
        });
    }
    Ok(batches)
}

/// The marker in a control batch, unless it holds another control record, or none any more.
fn marker_of(slice: &BatchSlice) -> Result<Option<EndTxnMarker>, ReplayError> {
    let error = ReplayError::NotABatch(slice.base_offset);
    let batch = records::batches(slice.head.clone()).next();
    let batch = batch.and_then(Result::ok).ok_or(error)?;
    let mut control = batch.records(CONTROL_RECORD_SIZE_BYTES_MAX).map_err(|_| error)?;
    let record = control.next().transpose().map_err(|_| error)?;
    Ok(record.as_ref().and_then(EndTxnMarker::from_record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(chunk_count: i64) -> PartitionState {
        let mut state = PartitionState::default();
        for n in 0..chunk_count {
            state.note(Offset::new(n * 100), CHUNK_SIZE_BYTES, n * 1000, n * 1000);
        }
        state
    }

    #[test]
    fn retention_by_size_keeps_whole_chunks() {
        let state = state(10);
        let keep = |chunks: u64| Retention {
            size_bytes_max: Some(chunks * CHUNK_SIZE_BYTES),
            timestamp_ms_min: None,
        };
        let end = Some(Offset::new(1000));
        assert_eq!(state.expired_before(&keep(20), end), None);
        assert_eq!(state.expired_before(&keep(4), end), Some(Offset::new(600)));
        assert_eq!(state.expired_before(&keep(0), end), Some(Offset::new(900)), "the newest stays");
    }

    #[test]
    fn retention_by_time_looks_at_the_latest_record_of_a_chunk() {
        let retention = Retention { size_bytes_max: None, timestamp_ms_min: Some(3_000) };
        let end = Some(Offset::new(1000));
        assert_eq!(state(10).expired_before(&retention, end), Some(Offset::new(300)));
        // A log that nobody writes to any more runs empty; one that is being written waits.
        let all = Retention { size_bytes_max: None, timestamp_ms_min: Some(9_001) };
        assert_eq!(state(10).expired_before(&all, end), end);
        assert_eq!(state(10).expired_before(&all, None), Some(Offset::new(900)));
        let mut emptied = state(10);
        emptied.trim(Offset::new(1000));
        emptied.note(Offset::new(1000), 77, 20_000_000, 20_000_000);
        assert_eq!(emptied.size_bytes(), 77, "what was emptied is forgotten with the next record");
    }

    #[test]
    fn what_nobody_knows_the_age_of_goes_with_what_came_after_it() {
        // As sarama's batches were stored once, and before it and after it others.
        let mut state = PartitionState::default();
        for (n, timestamp_ms) in (0..).zip([1_000, NO_TIMESTAMP, NO_TIMESTAMP, 2_000, NO_TIMESTAMP])
        {
            state.note(Offset::new(n * 100), CHUNK_SIZE_BYTES, timestamp_ms, timestamp_ms);
        }
        let state = PartitionState::decode(state.encode()).unwrap();
        let expired = |size_bytes_max, timestamp_ms_min| {
            let retention = Retention { size_bytes_max, timestamp_ms_min };
            state.expired_before(&retention, Some(Offset::new(500))).map(Offset::get)
        };
        assert_eq!(expired(None, Some(500)), None);
        assert_eq!(expired(None, Some(1_500)), Some(100), "not those without a time");
        assert_eq!(expired(None, Some(i64::MAX)), Some(400), "nor the last ones, ever");
        assert_eq!(expired(Some(3 * CHUNK_SIZE_BYTES), Some(500)), Some(200), "size counts them");
        assert_eq!(expired(Some(0), Some(500)), Some(400));
    }

    #[test]
    fn lookups_by_time_pass_over_what_has_none() {
        let mut state = PartitionState::default();
        let minute_ms = 60_000;
        for (n, is_untimed) in (0..).zip([true, true, false, true, false]) {
            let time_ms = n * minute_ms;
            let stated_ms = if is_untimed { NO_TIMESTAMP } else { time_ms };
            state.note(Offset::new(n * 100), 77, stated_ms, time_ms);
        }
        // Two without a time together; one behind those with a time belongs to them.
        assert_eq!(state.chunks.len(), 2);
        let seek = |timestamp_ms, from| {
            state.seek_timestamp(timestamp_ms, Offset::new(from)).map(Offset::get)
        };
        assert_eq!(
            (seek(0, 0), seek(0, 250), seek(5 * minute_ms, 0)),
            (Some(200), Some(250), None)
        );
        let run = (4 * minute_ms, Reverse(Offset::new(200)));
        let range = Offset::new(200)..Offset::new(i64::MAX);
        assert_eq!(state.latest_run(None), Some((run, range)));
        assert_eq!(state.latest_run(Some(run)), None);
        // A long silence ends a run, timed or not.
        let hour_ms = 60 * minute_ms;
        for n in [1, 2] {
            state.note(Offset::new(500 + n), 77, NO_TIMESTAMP, n * hour_ms);
        }
        assert_eq!(state.chunks.len(), 4);
        assert_eq!(PartitionState::decode(state.encode()), Ok(state));
    }

    #[test]
    fn the_latest_run_comes_first() {
        let mut state = PartitionState::default();
        for (n, timestamp_ms) in (0..).zip([5, 9, 7, 9]) {
            state.note(Offset::new(n), CHUNK_SIZE_BYTES, timestamp_ms, timestamp_ms);
        }
        let (mut before, mut begins) = (None, Vec::new());
        while let Some((time, range)) = state.latest_run(before) {
            begins.push(range.start.get());
            before = Some(time);
        }
        assert_eq!(begins, [1, 3, 2, 0]);
    }

    #[test]
    fn batches_without_a_time_have_that_of_their_run() {
        let times = state(3).times();
        let of = |offset, stated_ms| times.of_batch(Offset::new(offset), stated_ms);
        assert_eq!((of(0, -1), of(99, -1), of(100, -1), of(999, -1)), (0, 0, 1_000, 2_000));
        assert_eq!(of(100, 77), 77);
        assert_eq!(LogTimes::default().of_batch(Offset::ZERO, -1), NO_TIMESTAMP);
    }

    #[test]
    fn a_checkpoint_round_trips() {
        let state = state(3);
        assert_eq!(PartitionState::decode(state.encode()), Ok(state));
    }

    #[test]
    fn trimming_forgets_what_lies_below() {
        let mut state = state(10);
        state.trim(Offset::new(450));
        assert_eq!(state.size_bytes(), 6 * CHUNK_SIZE_BYTES);
        assert_eq!(state.seek_timestamp(0, Offset::ZERO), Some(Offset::new(400)));
    }

    #[test]
    fn garbage_is_not_a_batch() {
        let error = batches_in(Offset::new(5), Bytes::from_static(&[0; 70])).err();
        assert_eq!(error, Some(ReplayError::NotABatch(Offset::new(5))));
    }
}
