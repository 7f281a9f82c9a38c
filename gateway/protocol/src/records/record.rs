//! The records inside a batch.

use bytes::Bytes;

use super::{Attributes, BatchError, BatchHeader, Compression};
use crate::wire::{DecodeError, Reader, Str};

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the partition.
    pub offset: i64,
    /// When the producer created it, or the leader appended it.
    pub timestamp_ms: i64,
    /// What it is about.
    pub key: Option<Bytes>,
    /// What it says; in a compacted topic `None` deletes the key.
    pub value: Option<Bytes>,
    /// What else was attached.
    pub headers: Vec<RecordHeader>,
}

/// A header of a record. Several may have the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its name.
    pub key: Str,
    /// Its value.
    pub value: Option<Bytes>,
}

/// The records of one batch. Stops after the first error.
#[derive(Debug)]
pub struct RecordIter {
    reader: Reader,
    left_count: i32,
    base_offset: i64,
    base_timestamp_ms: i64,
    log_append_time_ms: Option<i64>,
}

impl RecordIter {
    pub(super) fn new(
        header: &BatchHeader,
        records: Bytes,
        size_bytes_max: usize,
    ) -> Result<Self, BatchError> {
        Ok(Self {
            reader: Reader::new(decompressed(header, records, size_bytes_max)?),
            left_count: header.records_count,
            base_offset: header.base_offset,
            base_timestamp_ms: header.base_timestamp_ms,
            log_append_time_ms: log_append_time_ms(header.attributes, header.max_timestamp_ms),
        })
    }

    fn read(&mut self) -> Result<Record, BatchError> {
        let reader = &mut self.reader;
        reader.at("Record.length");
        let length = required(reader.varint_length()?, "Record.length")?;
        let end = reader.remaining() - length;
        reader.at("Record.attributes");
        reader.skip(1)?;
        reader.at("Record.timestamp_delta");
        let timestamp_ms = self.base_timestamp_ms.saturating_add(reader.varlong()?);
        reader.at("Record.offset_delta");
        let offset = self.base_offset.saturating_add(i64::from(reader.varint()?));
        let key = nullable_bytes(reader, "Record.key")?;
        let value = nullable_bytes(reader, "Record.value")?;
        reader.at("Record.headers");
        let headers_count = required(reader.varint_length()?, "Record.headers")?;
        let mut headers = reader.vec_for(headers_count)?;
        for _ in 0..headers_count {
            headers.push(read_header(reader)?);
        }
        if reader.remaining() != end {
            return Err(BatchError::LeftOver(reader.remaining().abs_diff(end)));
        }
        let timestamp_ms = self.log_append_time_ms.unwrap_or(timestamp_ms);
        Ok(Record { offset, timestamp_ms, key, value, headers })
    }
}

impl Iterator for RecordIter {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left_count <= 0 {
            return match self.reader.remaining() {
                0 => None,
                left_over => {
                    self.reader = Reader::new(Bytes::new());
                    Some(Err(BatchError::LeftOver(left_over)))
                }
            };
        }
        self.left_count -= 1;
        let record = self.read();
        if record.is_err() {
            self.left_count = 0;
            self.reader = Reader::new(Bytes::new());
        }
        Some(record)
    }
}

/// What follows the header, decompressed to at most `size_bytes_max` bytes.
pub(super) fn decompressed(
    header: &BatchHeader,
    records: Bytes,
    size_bytes_max: usize,
) -> Result<Bytes, BatchError> {
    match header.attributes.compression()? {
        Compression::None if records.len() > size_bytes_max => {
            Err(BatchError::TooLarge { size_bytes_max })
        }
        Compression::None => Ok(records),
        #[cfg(feature = "compression")]
        compression => super::compression::decompress(compression, &records, size_bytes_max),
        #[cfg(not(feature = "compression"))]
        compression => Err(BatchError::CompressionUnsupported(compression)),
    }
}

fn log_append_time_ms(attributes: Attributes, max_timestamp_ms: i64) -> Option<i64> {
    attributes.is_log_append_time().then_some(max_timestamp_ms)
}

fn read_header(reader: &mut Reader) -> Result<RecordHeader, BatchError> {
    let field = "RecordHeader.key";
    reader.at(field);
    let length = required(reader.varint_length()?, field)?;
    let key = Str::try_from(reader.bytes(length)?).map_err(|_| DecodeError::Utf8 { field })?;
    Ok(RecordHeader { key, value: nullable_bytes(reader, "RecordHeader.value")? })
}

fn nullable_bytes(reader: &mut Reader, field: &'static str) -> Result<Option<Bytes>, DecodeError> {
    reader.at(field);
    match reader.varint_length()? {
        Some(length) => reader.bytes(length).map(Some),
        None => Ok(None),
    }
}

fn required(length: Option<usize>, field: &'static str) -> Result<usize, DecodeError> {
    length.ok_or(DecodeError::Null { field })
}
