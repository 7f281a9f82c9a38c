//! What a partition's batches amount to: its producers, and how bytes and time lie along the log.
//!
//! A function of the log alone (rule T9): a checkpoint blob holds it as of its own step, and a new
//! leader brings it up to date by applying the blobs after it.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::blob::{BlobHeader, BlobKind};
use meridian_storage::codec::{DecodeError, Source};

use super::{BatchSlice, RecordBatch};
use crate::producer::{Producers, Sequenced};

/// A run of the log this large gets a line in the chunk list.
const CHUNK_SIZE_BYTES: u64 = 8 << 20;
/// So does a run that spans this much time, so that low traffic can expire too.
const CHUNK_SPAN_MS: i64 = 10 * 60 * 1000;
const CHUNK_ENCODED_SIZE_BYTES: usize = 32;
const CHECKPOINT_FORMAT: u8 = 1;

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

/// A run of the log: where it begins, how large it is and how late its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    base_offset: Offset,
    size_bytes: u64,
    first_timestamp_ms: i64,
    max_timestamp_ms: i64,
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
    /// First offset that can be read, as the last `Trim` says.
    pub log_start_offset: Offset,
    chunks: VecDeque<Chunk>,
}

impl PartitionState {
    /// Notes an appended batch.
    pub fn note(&mut self, base_offset: Offset, size_bytes: u64, max_timestamp_ms: i64) {
        let fits = self.chunks.back().is_some_and(|chunk| {
            chunk.size_bytes < CHUNK_SIZE_BYTES
                && max_timestamp_ms.saturating_sub(chunk.first_timestamp_ms) < CHUNK_SPAN_MS
        });
        if !fits {
            self.chunks.push_back(Chunk {
                base_offset,
                size_bytes: 0,
                first_timestamp_ms: max_timestamp_ms,
                max_timestamp_ms,
            });
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.size_bytes += size_bytes;
            chunk.max_timestamp_ms = chunk.max_timestamp_ms.max(max_timestamp_ms);
        }
    }

    /// Applies a committed blob, on replay.
    pub fn apply_blob(&mut self, header: &BlobHeader, payload: Bytes) -> Result<(), ReplayError> {
        match header.kind {
            BlobKind::Records => {
                for slice in batches_in(header.base_offset, payload)? {
                    let batch = parse(&slice)?;
                    if let Some(sequenced) = &batch.sequenced {
                        self.producers.apply(sequenced, slice.base_offset);
                    }
                    let size_bytes = batch.bytes.len() as u64;
                    self.note(slice.base_offset, size_bytes, batch.max_timestamp_ms);
                }
            }
            BlobKind::Trim => self.trim(header.base_offset),
            BlobKind::Start | BlobKind::Checkpoint => {}
        }
        Ok(())
    }

    /// Moves the log start and forgets chunks wholly below it.
    pub fn trim(&mut self, log_start_offset: Offset) {
        self.log_start_offset = self.log_start_offset.max(log_start_offset);
        while self.chunks.get(1).is_some_and(|next| next.base_offset <= log_start_offset) {
            self.chunks.pop_front();
        }
    }

    /// The log start that `retention` asks for, if it lies beyond the oldest chunk. The chunk being
    /// written always stays.
    pub fn expired_before(&self, retention: &Retention) -> Option<Offset> {
        let mut size_bytes: u64 = self.size_bytes();
        let mut keep_from = None;
        for index in 0..self.chunks.len().saturating_sub(1) {
            let chunk = &self.chunks[index];
            let too_large = retention.size_bytes_max.is_some_and(|max| size_bytes > max);
            let too_old =
                retention.timestamp_ms_min.is_some_and(|min| chunk.max_timestamp_ms < min);
            if !too_large && !too_old {
                break;
            }
            size_bytes -= chunk.size_bytes;
            keep_from = Some(self.chunks[index + 1].base_offset);
        }
        keep_from
    }

    /// Offset from which to look for the first record at or after `timestamp_ms`.
    pub fn seek_timestamp(&self, timestamp_ms: i64) -> Option<Offset> {
        self.chunks
            .iter()
            .find(|chunk| chunk.max_timestamp_ms >= timestamp_ms)
            .map(|chunk| chunk.base_offset)
    }

    /// Bytes of all records in the log.
    pub fn size_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.size_bytes).sum()
    }

    /// The payload of a checkpoint blob.
    pub fn encode(&self) -> Bytes {
        let producers = self.producers.encode();
        let size_bytes = 17 + producers.len() + self.chunks.len() * CHUNK_ENCODED_SIZE_BYTES;
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
        out.put_u32(producers.len() as u32);
        out.put_slice(&producers);
        out.freeze()
    }

    /// Reads the payload of a checkpoint blob.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(payload, "partition checkpoint");
        let format = source.u8()?;
        if format != CHECKPOINT_FORMAT {
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
        source.finish()?;
        Ok(Self { producers, log_start_offset, chunks: chunks.into() })
    }
}

/// Offsets of the fields of a v2 record batch that are read here (Kafka protocol guide).
mod field {
    pub(super) const LENGTH: usize = 8;
    pub(super) const LAST_OFFSET_DELTA: usize = 23;
    pub(super) const MAX_TIMESTAMP: usize = 35;
    pub(super) const PRODUCER_ID: usize = 43;
    pub(super) const PRODUCER_EPOCH: usize = 51;
    pub(super) const BASE_SEQUENCE: usize = 53;
    pub(super) const HEADER_SIZE: usize = 61;
}

fn read_i64(bytes: &Bytes, at: usize) -> i64 {
    (&bytes[at..]).get_i64()
}

fn read_i32(bytes: &Bytes, at: usize) -> i32 {
    (&bytes[at..]).get_i32()
}

/// Cuts a blob's payload into its batches. The leader checked each before it put the blob, and the
/// store checked the payload's CRC: only the lengths are verified again.
pub fn batches_in(base_offset: Offset, payload: Bytes) -> Result<Vec<BatchSlice>, ReplayError> {
    let mut batches = Vec::new();
    let mut rest = payload;
    let mut next_offset = base_offset;
    while !rest.is_empty() {
        let error = ReplayError::NotABatch(next_offset);
        if rest.len() < field::HEADER_SIZE {
            return Err(error);
        }
        let size_bytes = usize::try_from(read_i32(&rest, field::LENGTH)).ok();
        let size_bytes = size_bytes.map(|length| length + field::LENGTH + 4);
        let Some(size_bytes) = size_bytes.filter(|size| (61..=rest.len()).contains(size)) else {
            return Err(error);
        };
        let head = rest.split_to(size_bytes);
        let last_delta =
            u32::try_from(read_i32(&head, field::LAST_OFFSET_DELTA)).map_err(|_| error)?;
        let base_offset = next_offset;
        next_offset = base_offset.advance(last_delta).advance(1);
        batches.push(BatchSlice {
            base_offset,
            last_offset: base_offset.advance(last_delta),
            max_timestamp_ms: read_i64(&head, field::MAX_TIMESTAMP),
            head,
            body: Bytes::new(),
        });
    }
    Ok(batches)
}

fn parse(slice: &BatchSlice) -> Result<RecordBatch, ReplayError> {
    let bytes = slice.head.clone();
    if bytes.len() < field::HEADER_SIZE {
        return Err(ReplayError::NotABatch(slice.base_offset));
    }
    let record_count = (slice.last_offset.get() - slice.base_offset.get() + 1) as u32;
    let producer_id = read_i64(&bytes, field::PRODUCER_ID);
    let base_sequence = read_i32(&bytes, field::BASE_SEQUENCE);
    let sequenced = (producer_id >= 0 && base_sequence >= 0).then(|| Sequenced {
        producer_id,
        epoch: (&bytes[field::PRODUCER_EPOCH..]).get_i16(),
        base_sequence,
        record_count,
        max_timestamp_ms: slice.max_timestamp_ms,
    });
    Ok(RecordBatch { bytes, record_count, max_timestamp_ms: slice.max_timestamp_ms, sequenced })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(chunk_count: i64) -> PartitionState {
        let mut state = PartitionState::default();
        for n in 0..chunk_count {
            state.note(Offset::new(n * 100), CHUNK_SIZE_BYTES, n * 1000);
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
        assert_eq!(state.expired_before(&keep(20)), None);
        assert_eq!(state.expired_before(&keep(4)), Some(Offset::new(600)));
        assert_eq!(state.expired_before(&keep(0)), Some(Offset::new(900)));
    }

    #[test]
    fn retention_by_time_looks_at_the_latest_record_of_a_chunk() {
        let retention = Retention { size_bytes_max: None, timestamp_ms_min: Some(3_000) };
        assert_eq!(state(10).expired_before(&retention), Some(Offset::new(300)));
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
        assert_eq!(state.seek_timestamp(0), Some(Offset::new(400)));
    }

    #[test]
    fn garbage_is_not_a_batch() {
        let error = batches_in(Offset::new(5), Bytes::from_static(&[0; 70])).err();
        assert_eq!(error, Some(ReplayError::NotABatch(Offset::new(5))));
    }
}
