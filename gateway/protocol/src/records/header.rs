//! The 61 bytes in front of the records.

use bytes::{Buf, BufMut};

use super::{BatchError, NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE};

/// The format of record batches that this module reads and writes.
const MAGIC: i8 = 2;
/// Where the format stands, in this format and in both older ones.
const MAGIC_AT: usize = 16;
/// The part of a batch that its length field does not count: base offset and length.
const LENGTH_OVERHEAD_BYTES: usize = 12;

/// How the records of a batch are compressed. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(i16)]
pub enum Compression {
    /// Not at all.
    #[default]
    None = 0,
    /// As a gzip file.
    Gzip = 1,
    /// Snappy blocks, with or without the framing of the Java library.
    Snappy = 2,
    /// As an LZ4 frame.
    Lz4 = 3,
    /// As a Zstandard frame.
    Zstd = 4,
}

/// The flags of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(pub i16);

impl Attributes {
    const COMPRESSION: i16 = 0b111;
    const LOG_APPEND_TIME: i16 = 1 << 3;
    const TRANSACTIONAL: i16 = 1 << 4;
    const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;

    /// How the records are compressed.
    pub fn compression(self) -> Result<Compression, BatchError> {
        match self.0 & Self::COMPRESSION {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Gzip),
            2 => Ok(Compression::Snappy),
            3 => Ok(Compression::Lz4),
            4 => Ok(Compression::Zstd),
            unknown => Err(BatchError::UnknownCompression(unknown)),
        }
    }

    /// Whether all records have the time at which the leader appended them.
    pub fn is_log_append_time(self) -> bool {
        self.0 & Self::LOG_APPEND_TIME != 0
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the records are for the machinery, not for consumers.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp is the time from which tombstones may be removed (KIP-534).
    pub fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    pub(super) fn with_compression(self, compression: Compression) -> Self {
        Self(self.0 & !Self::COMPRESSION | compression as i16)
    }

    pub(super) fn with_log_append_time(self) -> Self {
        Self(self.0 | Self::LOG_APPEND_TIME)
    }

    fn without_log_append_time(self) -> Self {
        Self(self.0 & !Self::LOG_APPEND_TIME)
    }

    /// Those of a batch that compaction writes anew: compressed by its builder, with a delete
    /// horizon or without.
    pub(super) fn cleaned(self, has_delete_horizon: bool) -> Self {
        let rest = self.0 & !Self::COMPRESSION & !Self::DELETE_HORIZON;
        Self(if has_delete_horizon { rest | Self::DELETE_HORIZON } else { rest })
    }

    pub(super) fn with_transactional(self) -> Self {
        Self(self.0 | Self::TRANSACTIONAL)
    }

    pub(super) fn with_control(self) -> Self {
        Self(self.0 | Self::CONTROL)
    }
}

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// The offset of the first record that the batch was written with.
    pub base_offset: i64,
    /// The size of the whole batch, header included.
    pub size_bytes: usize,
    /// The epoch of the leader that appended it.
    pub partition_leader_epoch: i32,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Flags.
    pub attributes: Attributes,
    /// The difference between the last and the first offset. Compaction keeps it.
    pub last_offset_delta: i32,
    /// The timestamp that those of the records are relative to.
    pub base_timestamp_ms: i64,
    /// The largest timestamp, or that of the append.
    pub max_timestamp_ms: i64,
    /// The producer, or [`NO_PRODUCER_ID`].
    pub producer_id: i64,
    /// The producer's epoch, or [`NO_PRODUCER_EPOCH`].
    pub producer_epoch: i16,
    /// The sequence of the first record, or [`NO_SEQUENCE`].
    pub base_sequence: i32,
    /// The number of records.
    pub records_count: i32,
}

impl BatchHeader {
    /// The size of a header.
    pub const SIZE_BYTES: usize = 61;
    /// Where the part that the checksum covers starts.
    pub(super) const CRC_COVERS_FROM: usize = 21;

    /// Reads the header at the start of `bytes`, which need not hold the rest of the batch.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        match bytes.get(MAGIC_AT).map(|magic| magic.cast_signed()) {
            Some(MAGIC) | None => {}
            Some(magic @ 0..MAGIC) => return Err(BatchError::OldFormat { magic }),
            Some(magic) => return Err(BatchError::UnknownFormat { magic }),
        }
        let Some(header) = bytes.first_chunk::<{ Self::SIZE_BYTES }>() else {
            let (needed, remaining) = (Self::SIZE_BYTES, bytes.len());
            return Err(BatchError::Truncated { needed, remaining });
        };
        let mut header = &header[..];
        let base_offset = header.get_i64();
        let length = header.get_i32();
        let size_bytes = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_add(LENGTH_OVERHEAD_BYTES))
            .filter(|&size_bytes| size_bytes >= Self::SIZE_BYTES)
            .ok_or(BatchError::Length { length })?;
        let partition_leader_epoch = header.get_i32();
        header.advance(size_of_val(&MAGIC));
        Ok(Self {
            base_offset,
            size_bytes,
            partition_leader_epoch,
            crc: header.get_u32(),
            attributes: Attributes(header.get_i16()),
            last_offset_delta: header.get_i32(),
            base_timestamp_ms: header.get_i64(),
            max_timestamp_ms: header.get_i64(),
            producer_id: header.get_i64(),
            producer_epoch: header.get_i16(),
            base_sequence: header.get_i32(),
            records_count: header.get_i32(),
        })
    }

    /// The bytes of the header, as [`BatchHeader::parse`] reads them.
    ///
    /// # Panics
    ///
    /// If `size_bytes` is less than a header or more than the format can say, 2 GiB.
    pub fn to_bytes(&self) -> [u8; Self::SIZE_BYTES] {
        let mut bytes = [0; Self::SIZE_BYTES];
        let mut header = &mut bytes[..];
        assert!(self.size_bytes >= Self::SIZE_BYTES, "batch smaller than its header");
        let length = i32::try_from(self.size_bytes - LENGTH_OVERHEAD_BYTES);
        assert!(length.is_ok(), "batch too large for its length field");
        header.put_i64(self.base_offset);
        header.put_i32(length.unwrap_or(0));
        header.put_i32(self.partition_leader_epoch);
        header.put_i8(MAGIC);
        header.put_u32(self.crc);
        header.put_i16(self.attributes.0);
        header.put_i32(self.last_offset_delta);
        header.put_i64(self.base_timestamp_ms);
        header.put_i64(self.max_timestamp_ms);
        header.put_i64(self.producer_id);
        header.put_i16(self.producer_epoch);
        header.put_i32(self.base_sequence);
        header.put_i32(self.records_count);
        bytes
    }

    /// The checksum that the batch should have, given what follows the header.
    pub fn compute_crc(&self, records: &[u8]) -> u32 {
        let header = self.to_bytes();
        let (_, covered) = header.split_at(Self::CRC_COVERS_FROM);
        crc32c::crc32c_append(crc32c::crc32c(covered), records)
    }

    /// This header for records that have times of their own, of which this is the largest. `None` if
    /// it says so already; otherwise the checksum is computed anew over the records.
    pub fn with_create_time(mut self, max_timestamp_ms: i64, records: &[u8]) -> Option<Self> {
        let attributes = self.attributes.without_log_append_time();
        if attributes == self.attributes && max_timestamp_ms == self.max_timestamp_ms {
            return None;
        }
        (self.attributes, self.max_timestamp_ms) = (attributes, max_timestamp_ms);
        self.crc = self.compute_crc(records);
        Some(self)
    }

    /// This header for records that all have the time of their append.
    pub fn with_log_append_time(mut self, time_ms: i64, records: &[u8]) -> Self {
        self.attributes = self.attributes.with_log_append_time();
        self.max_timestamp_ms = time_ms;
        self.crc = self.compute_crc(records);
        self
    }

    /// The offset of the last record that the batch was written with.
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta))
    }

    /// Whether the producer numbers its records.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id != NO_PRODUCER_ID
    }

    /// The sequence of the last record. Sequences wrap from `i32::MAX` to 0.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence == NO_SEQUENCE {
            return NO_SEQUENCE;
        }
        self.base_sequence.wrapping_add(self.last_offset_delta) & i32::MAX
    }

    /// Whether a client may have written this: what does not need the records, which are the
    /// business of the one who reads them.
    pub fn check_produced(&self) -> Result<(), BatchError> {
        self.attributes.compression()?;
        if self.attributes.is_control() {
            return Err(BatchError::Control);
        }
        if self.attributes.has_delete_horizon() {
            return Err(BatchError::DeleteHorizon);
        }
        let (records_count, last_offset_delta) = (self.records_count, self.last_offset_delta);
        if records_count < 1 || last_offset_delta != records_count - 1 {
            return Err(BatchError::Count { records_count, last_offset_delta });
        }
        let numbered = self.producer_id >= 0 && self.producer_epoch >= 0 && self.base_sequence >= 0;
        let anonymous = self.producer_id == NO_PRODUCER_ID && !self.attributes.is_transactional();
        if !numbered && !anonymous {
            return Err(BatchError::Producer {
                producer_id: self.producer_id,
                producer_epoch: self.producer_epoch,
                base_sequence: self.base_sequence,
            });
        }
        Ok(())
    }
}

/// An empty batch of nobody.
impl Default for BatchHeader {
    fn default() -> Self {
        Self {
            base_offset: 0,
            size_bytes: Self::SIZE_BYTES,
            partition_leader_epoch: NO_LEADER_EPOCH,
            crc: 0,
            attributes: Attributes::default(),
            last_offset_delta: -1,
            base_timestamp_ms: 0,
            max_timestamp_ms: 0,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            base_sequence: NO_SEQUENCE,
            records_count: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn old_formats_and_unknown_ones_are_told_apart() {
        let mut bytes = BatchHeader::default().to_bytes();
        for magic in [0, 1] {
            bytes[MAGIC_AT] = magic;
            let magic = magic.cast_signed();
            assert_eq!(BatchHeader::parse(&bytes[..30]), Err(BatchError::OldFormat { magic }));
        }
        for magic in [3, 0xff] {
            bytes[MAGIC_AT] = magic;
            let magic = magic.cast_signed();
            assert_eq!(BatchHeader::parse(&bytes), Err(BatchError::UnknownFormat { magic }));
        }
    }

    #[test]
    fn a_length_shorter_than_the_header_is_refused() {
        let mut bytes = BatchHeader::default().to_bytes();
        for length in [i32::MIN, -1, 0, 48] {
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            assert_eq!(BatchHeader::parse(&bytes), Err(BatchError::Length { length }));
        }
        bytes[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
        assert!(BatchHeader::parse(&bytes).is_ok());
    }

    #[test]
    fn sequences_wrap() {
        let header = |base_sequence, last_offset_delta| BatchHeader {
            base_sequence,
            last_offset_delta,
            ..Default::default()
        };
        assert_eq!(header(5, 3).last_sequence(), 8);
        assert_eq!(header(i32::MAX, 0).last_sequence(), i32::MAX);
        assert_eq!(header(i32::MAX, 1).last_sequence(), 0);
        assert_eq!(header(NO_SEQUENCE, 7).last_sequence(), NO_SEQUENCE);
    }

    #[test]
    fn what_a_client_must_not_write_is_refused() {
        let good = BatchHeader { last_offset_delta: 1, records_count: 2, ..Default::default() };
        assert_eq!(good.check_produced(), Ok(()));
        let numbered = BatchHeader { producer_id: 7, producer_epoch: 0, base_sequence: 0, ..good };
        assert_eq!(numbered.check_produced(), Ok(()));
        let transactional = Attributes::default().with_transactional();
        assert_eq!(BatchHeader { attributes: transactional, ..numbered }.check_produced(), Ok(()));

        let control = Attributes::default().with_control();
        for bad in [
            BatchHeader { records_count: 3, ..good },
            BatchHeader { records_count: 0, last_offset_delta: -1, ..good },
            BatchHeader { records_count: i32::MIN, ..good },
            BatchHeader { attributes: control, ..good },
            BatchHeader { attributes: transactional, ..good },
            BatchHeader { attributes: Attributes(7), ..good },
            BatchHeader { attributes: Attributes::default().cleaned(true), ..good },
            BatchHeader { base_sequence: NO_SEQUENCE, ..numbered },
            BatchHeader { producer_epoch: -1, ..numbered },
            BatchHeader { producer_id: -2, ..numbered },
        ] {
            assert!(bad.check_produced().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_header_or_an_error(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some(magic) = bytes.get_mut(MAGIC_AT) {
                *magic = 2;
            }
            if let Ok(header) = BatchHeader::parse(&bytes) {
                prop_assert_eq!(&header.to_bytes()[..], &bytes[..BatchHeader::SIZE_BYTES]);
                let _ = (header.check_produced(), header.last_offset(), header.last_sequence());
            }
        }
    }
}
