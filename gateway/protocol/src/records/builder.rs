//! Building batches: for clients, internal topics and markers.

use bytes::{BufMut, Bytes, BytesMut};

use super::{BatchError, BatchHeader, Compression};
use crate::wire::Writer;

/// The attributes of a record: none are defined.
const ATTRIBUTES: [u8; 1] = [0];

/// Collects records into a batch.
#[derive(Debug, Clone, Default)]
pub struct BatchBuilder {
    /// Sizes and checksum are filled in at the end.
    header: BatchHeader,
    records: Writer,
}

impl BatchBuilder {
    /// A builder of an uncompressed batch at offset 0, whose producer is not idempotent.
    pub fn new() -> Self {
        Self::default()
    }

    /// A builder of what compaction leaves of a batch, at the same place, by the same producer.
    /// Timestamps become relative to `delete_horizon_ms`, the time from which tombstones may be
    /// removed, if there is one (KIP-534).
    pub fn cleaned(batch: &BatchHeader, delete_horizon_ms: Option<i64>) -> Self {
        let header = BatchHeader {
            attributes: batch.attributes.cleaned(delete_horizon_ms.is_some()),
            base_timestamp_ms: delete_horizon_ms.unwrap_or(batch.base_timestamp_ms),
            last_offset_delta: -1,
            records_count: 0,
            ..*batch
        };
        Self { header, records: Writer::default() }
    }

    /// Sets the offset of the first record. A leader sets it anew when it appends the batch.
    pub fn base_offset(mut self, base_offset: i64) -> Self {
        self.header.base_offset = base_offset;
        self
    }

    /// Sets the epoch of the leader.
    pub fn partition_leader_epoch(mut self, epoch: i32) -> Self {
        self.header.partition_leader_epoch = epoch;
        self
    }

    /// Sets the idempotent producer, and the sequence of the first record.
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        self.header.producer_id = id;
        self.header.producer_epoch = epoch;
        self.header.base_sequence = base_sequence;
        self
    }

    /// Makes the batch part of its producer's transaction.
    pub fn transactional(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_transactional();
        self
    }

    /// Makes the records control records, which consumers do not see.
    pub fn control(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_control();
        self
    }

    /// The number of records so far.
    pub fn records_count(&self) -> i32 {
        self.header.records_count
    }

    /// The size of the batch so far, before compression.
    pub fn size_bytes(&self) -> usize {
        BatchHeader::SIZE_BYTES + self.records.len()
    }

    /// The largest timestamp of the records so far, -1 without any.
    pub fn max_timestamp_ms(&self) -> i64 {
        self.header.max_timestamp_ms
    }

    /// Adds a record at the next offset.
    pub fn append(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        self.append_at(self.header.last_offset_delta + 1, timestamp_ms, key, value, headers);
    }

    /// Adds a record at this distance from the base offset: compaction leaves gaps.
    ///
    /// # Panics
    ///
    /// If the distance is not larger than that of the record before, or a part of the record is
    /// larger than 2 GiB.
    pub fn append_at(
        &mut self,
        offset_delta: i32,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        assert!(offset_delta > self.header.last_offset_delta, "offsets in a batch must ascend");
        if self.header.records_count == 0 {
            if !self.header.attributes.has_delete_horizon() {
                self.header.base_timestamp_ms = timestamp_ms;
            }
            self.header.max_timestamp_ms = timestamp_ms;
        }
        self.header.records_count += 1;
        self.header.last_offset_delta = offset_delta;
        self.header.max_timestamp_ms = self.header.max_timestamp_ms.max(timestamp_ms);

        let timestamp_delta = timestamp_ms.wrapping_sub(self.header.base_timestamp_ms);
        let headers_size_bytes: usize = headers
            .iter()
            .map(|(key, value)| nullable_size(Some(key.as_bytes())) + nullable_size(*value))
            .sum();
        let size_bytes = ATTRIBUTES.len()
            + varint_size(timestamp_delta)
            + varint_size(offset_delta.into())
            + nullable_size(key)
            + nullable_size(value)
            + varint_size(length(headers.len()).into())
            + headers_size_bytes;

        let records = &mut self.records;
        records.varint(length(size_bytes));
        records.slice(&ATTRIBUTES);
        records.varlong(timestamp_delta);
        records.varint(offset_delta);
        put_nullable(records, key);
        put_nullable(records, value);
        records.varint(length(headers.len()));
        for (key, value) in headers {
            put_nullable(records, Some(key.as_bytes()));
            put_nullable(records, *value);
        }
    }

    /// Keeps the offsets up to this distance from the base offset in use, though their records are
    /// gone. Compaction keeps the last offset, so that the producer's sequence stays known.
    pub fn keep_offsets_to(&mut self, offset_delta: i32) {
        self.header.last_offset_delta = self.header.last_offset_delta.max(offset_delta);
    }

    /// The batch, uncompressed.
    pub fn build(self) -> Bytes {
        let records = self.records.into_segments().into_bytes();
        finish(self.header, &records)
    }

    /// The batch with its records compressed.
    #[cfg(feature = "compression")]
    pub fn build_compressed(mut self, compression: Compression) -> Result<Bytes, BatchError> {
        self.header.attributes = self.header.attributes.with_compression(compression);
        finish_compressed(self.header, self.records.into_segments().into_bytes())
    }

    /// The batch with its records compressed: an error, as this build has no compression.
    #[cfg(not(feature = "compression"))]
    pub fn build_compressed(self, compression: Compression) -> Result<Bytes, BatchError> {
        match compression {
            Compression::None => Ok(self.build()),
            compression => Err(BatchError::CompressionUnsupported(compression)),
        }
    }
}

/// The batch of this header and these records, compressed as the header says.
#[cfg(feature = "compression")]
pub(super) fn finish_compressed(header: BatchHeader, records: Bytes) -> Result<Bytes, BatchError> {
    let compression = header.attributes.compression()?;
    Ok(finish(header, &super::compression::compress(compression, &records)?))
}

/// The batch of this header and these records: this build has no compression.
#[cfg(not(feature = "compression"))]
pub(super) fn finish_compressed(header: BatchHeader, records: Bytes) -> Result<Bytes, BatchError> {
    match header.attributes.compression()? {
        Compression::None => Ok(finish(header, &records)),
        compression => Err(BatchError::CompressionUnsupported(compression)),
    }
}

fn finish(mut header: BatchHeader, records: &[u8]) -> Bytes {
    header.size_bytes = BatchHeader::SIZE_BYTES + records.len();
    header.crc = header.compute_crc(records);
    let mut batch = BytesMut::with_capacity(header.size_bytes);
    batch.put_slice(&header.to_bytes());
    batch.put_slice(records);
    batch.freeze()
}

/// The size of a zigzag variable-length integer: seven bits in each byte.
fn varint_size(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)).cast_unsigned();
    let mut size_bytes = 1;
    let mut rest = zigzag >> 7;
    while rest > 0 {
        size_bytes += 1;
        rest >>= 7;
    }
    size_bytes
}

fn nullable_size(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(varint_size(-1), |bytes| varint_size(length(bytes.len()).into()) + bytes.len())
}

fn put_nullable(writer: &mut Writer, bytes: Option<&[u8]>) {
    let Some(bytes) = bytes else { return writer.varint(-1) };
    writer.varint(length(bytes.len()));
    writer.slice(bytes);
}

fn length(length: usize) -> i32 {
    let length = i32::try_from(length);
    assert!(length.is_ok(), "record too large for its length field");
    length.unwrap_or(i32::MAX)
}
