//! Reading the records of a produced batch once, before a leader appends it.
//!
//! A header is what a client claims. Whether there are as many records as it says, whether they can
//! be read at all, and which time the latest has, only the records tell. They are walked where they
//! lie; compressed ones are decompressed through a window and thrown away, so that neither costs a
//! copy of the batch.

use std::io::{BufRead, ErrorKind};
use std::ops::RangeInclusive;

use super::raw::RECORD_SIZE_BYTES_MIN;
use super::{Batch, BatchError, Compression, NO_TIMESTAMP};
use crate::wire::DecodeError;

/// Most bytes of a varint of 32 bits, as Java reads it, and of one of 64.
const VARINT_SIZE_BYTES_MAX: usize = 5;
const VARLONG_SIZE_BYTES_MAX: usize = 10;
/// Records that are refused by name (KIP-467); of more, the first ones are.
const REFUSED_COUNT_MAX: usize = 1000;

/// What a topic asks of each record.
#[derive(Clone, Debug, Default)]
pub struct RecordRules {
    /// Times that a record may have, if it has one.
    pub timestamps_ms: Option<RangeInclusive<i64>>,
    /// Whether each record needs a key.
    pub needs_key: bool,
}

/// Why a record is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no key.
    NoKey,
    /// Its time is out of range.
    Timestamp(i64),
}

/// What the records of a batch say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The largest time of a record; [`NO_TIMESTAMP`] if none has one.
    pub max_timestamp_ms: i64,
    /// The records that the topic does not take, by their number in the batch: the first 1000.
    pub refused: Vec<(i32, Refusal)>,
}

impl Batch {
    /// Reads all records. A batch that some reader could not read is an error, as is one that takes
    /// more than `size_bytes_max` bytes decompressed.
    pub fn examine(
        &self,
        rules: &RecordRules,
        size_bytes_max: usize,
    ) -> Result<Examined, BatchError> {
        let records = self.record_bytes();
        match self.header().attributes.compression()? {
            Compression::None => {
                // Uncompressed, so that the size of the batch bounds it already.
                let walk = Walk::new(&records[..], Compression::None, usize::MAX);
                walk.run(self, rules)
            }
            #[cfg(feature = "compression")]
            compression => {
                let reader = super::compression::reader(compression, &records, size_bytes_max)?;
                Walk::new(reader, compression, size_bytes_max).run(self, rules)
            }
            #[cfg(not(feature = "compression"))]
            compression => {
                let _ = size_bytes_max;
                Err(BatchError::CompressionUnsupported(compression))
            }
        }
    }
}

/// One record, as far as a leader needs it.
struct Seen {
    timestamp_delta_ms: i64,
    offset_delta: i32,
    has_key: bool,
}

/// Walks records as they are decompressed.
struct Walk<R> {
    reader: R,
    compression: Compression,
    taken_bytes: usize,
    size_bytes_max: usize,
    /// Where the record that is being read ends.
    record_end: usize,
    field: &'static str,
}

impl<R: BufRead> Walk<R> {
    fn new(reader: R, compression: Compression, size_bytes_max: usize) -> Self {
        let (taken_bytes, record_end, field) = (0, usize::MAX, "Record");
        Self { reader, compression, taken_bytes, size_bytes_max, record_end, field }
    }

    fn run(mut self, batch: &Batch, rules: &RecordRules) -> Result<Examined, BatchError> {
        let header = batch.header();
        let mut examined = Examined { max_timestamp_ms: NO_TIMESTAMP, refused: Vec::new() };
        for index in 0..header.records_count {
            let record = self.record()?;
            if record.offset_delta != index {
                return Err(BatchError::OffsetDelta { index, offset_delta: record.offset_delta });
            }
            let timestamp_ms = header.base_timestamp_ms.checked_add(record.timestamp_delta_ms);
            let timestamp_ms = timestamp_ms.ok_or(BatchError::Timestamp { index })?;
            examined.max_timestamp_ms = examined.max_timestamp_ms.max(timestamp_ms);
            let refusal = rules.judge(timestamp_ms, record.has_key);
            if let Some(refusal) = refusal.filter(|_| examined.refused.len() < REFUSED_COUNT_MAX) {
                examined.refused.push((index, refusal));
            }
        }
        self.end()?;
        Ok(examined)
    }

    fn record(&mut self) -> Result<Seen, BatchError> {
        self.record_end = usize::MAX;
        self.field = "Record.length";
        let length = self.length()?.ok_or(DecodeError::Null { field: self.field })?;
        if length < RECORD_SIZE_BYTES_MIN - 1 {
            let remaining = length;
            return Err(DecodeError::Length {
                field: self.field,
                length: length as i64,
                remaining,
            }
            .into());
        }
        self.record_end = self.taken_bytes.saturating_add(length);
        self.field = "Record.attributes";
        self.skip(1)?;
        self.field = "Record.timestamp_delta";
        let timestamp_delta_ms = self.varlong(VARLONG_SIZE_BYTES_MAX)?;
        self.field = "Record.offset_delta";
        let offset_delta = self.varint()?;
        self.field = "Record.key";
        let has_key = self.nullable()?;
        self.field = "Record.value";
        self.nullable()?;
        self.headers()?;
        match self.record_end - self.taken_bytes {
            0 => Ok(Seen { timestamp_delta_ms, offset_delta, has_key }),
            left_over => Err(BatchError::LeftOver(left_over)),
        }
    }

    fn headers(&mut self) -> Result<(), BatchError> {
        self.field = "Record.headers";
        // Each takes two bytes at least, so that the record's length bounds this.
        let count = self.length()?.ok_or(DecodeError::Null { field: self.field })?;
        for _ in 0..count {
            self.field = "RecordHeader.key";
            if !self.nullable()? {
                return Err(DecodeError::Null { field: self.field }.into());
            }
            self.field = "RecordHeader.value";
            self.nullable()?;
        }
        Ok(())
    }

    /// Passes over a field; whether it is there.
    fn nullable(&mut self) -> Result<bool, BatchError> {
        match self.length()? {
            Some(length) => self.skip(length).map(|()| true),
            None => Ok(false),
        }
    }

    /// A length that the record has room for; -1 is none.
    fn length(&mut self) -> Result<Option<usize>, BatchError> {
        let (length, field) = (self.varint()?, self.field);
        let remaining = self.record_end - self.taken_bytes;
        match usize::try_from(length) {
            Ok(length) if length <= remaining => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            _ => Err(DecodeError::Length { field, length: length.into(), remaining }.into()),
        }
    }

    fn varint(&mut self) -> Result<i32, BatchError> {
        let value = self.varlong(VARINT_SIZE_BYTES_MAX)?;
        i32::try_from(value).map_err(|_| DecodeError::Varint { field: self.field }.into())
    }

    fn varlong(&mut self, size_bytes_max: usize) -> Result<i64, BatchError> {
        let mut value = 0u64;
        for index in 0..size_bytes_max {
            let byte = self.byte()?;
            let (bits, shift) = (u64::from(byte & 0x7f), index * 7);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(DecodeError::Varint { field: self.field }.into())
    }

    fn byte(&mut self) -> Result<u8, BatchError> {
        let byte = self.buffer()?.first().copied().ok_or_else(|| self.cut_off(1))?;
        self.consume(1)?;
        Ok(byte)
    }

    fn skip(&mut self, mut size_bytes: usize) -> Result<(), BatchError> {
        while size_bytes > 0 {
            let taken = self.buffer()?.len().min(size_bytes);
            if taken == 0 {
                return Err(self.cut_off(size_bytes));
            }
            self.consume(taken)?;
            size_bytes -= taken;
        }
        Ok(())
    }

    /// Whether nothing follows the last record.
    fn end(&mut self) -> Result<(), BatchError> {
        match self.buffer()?.len() {
            0 => Ok(()),
            left_over => Err(BatchError::LeftOver(left_over)),
        }
    }

    fn consume(&mut self, size_bytes: usize) -> Result<(), BatchError> {
        self.reader.consume(size_bytes);
        self.taken_bytes += size_bytes;
        if self.taken_bytes > self.size_bytes_max {
            return Err(BatchError::TooLarge { size_bytes_max: self.size_bytes_max });
        }
        if self.taken_bytes > self.record_end {
            return Err(self.cut_off(self.taken_bytes - self.record_end));
        }
        Ok(())
    }

    /// What is there of the records; empty at their end.
    fn buffer(&mut self) -> Result<&[u8], BatchError> {
        let (compression, size_bytes_max) = (self.compression, self.size_bytes_max);
        self.reader.fill_buf().map_err(|cause| match cause.kind() {
            ErrorKind::FileTooLarge => BatchError::TooLarge { size_bytes_max },
            _ => BatchError::Compressed { compression, reason: cause.to_string() },
        })
    }

    fn cut_off(&self, needed: usize) -> BatchError {
        DecodeError::Truncated { field: self.field, needed, remaining: 0 }.into()
    }
}

impl RecordRules {
    fn judge(&self, timestamp_ms: i64, has_key: bool) -> Option<Refusal> {
        if self.needs_key && !has_key {
            return Some(Refusal::NoKey);
        }
        let range = self.timestamps_ms.as_ref().filter(|_| timestamp_ms != NO_TIMESTAMP)?;
        (!range.contains(&timestamp_ms)).then_some(Refusal::Timestamp(timestamp_ms))
    }
}

#[cfg(test)]
#[cfg(feature = "compression")]
mod tests;
