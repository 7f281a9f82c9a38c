//! The records of a batch as they lie in it: reading their headers without an allocation for each,
//! and leaving some of them out.
//!
//! ```text
//! record = length | attributes | timestamp delta | offset delta | key | value | headers
//!          '------------------------ copied as it is, or left out -----------------------'
//! ```
//!
//! A batch with records left out is what log compaction makes: the others keep their offsets, and
//! header and sequence numbers stay as the producer wrote them. Every client reads such batches.

use bytes::Bytes;

use super::{Batch, BatchError, BatchHeader, Compression, NO_TIMESTAMP};
use crate::wire::DecodeError;

/// The smallest record: a length, and six fields of a byte each.
pub(super) const RECORD_SIZE_BYTES_MIN: usize = 7;

/// The records of a batch, decompressed.
#[derive(Clone, Debug)]
pub struct RawRecords {
    header: BatchHeader,
    bytes: Bytes,
}

/// One record. Nothing of it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// Its distance from the batch's base offset.
    pub offset_delta: i32,
    /// Its distance from the batch's base timestamp, in milliseconds.
    pub timestamp_delta_ms: i64,
    /// Whether it has a key, if only an empty one.
    pub has_key: bool,
    bytes: &'a [u8],
    headers: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Its headers, in order: name and value. They were checked when the record was read.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        let mut cursor = Cursor { rest: self.headers, field: "RecordHeader" };
        std::iter::from_fn(move || {
            if cursor.rest.is_empty() {
                return None;
            }
            Some((cursor.nullable().ok()??, cursor.nullable().ok()?))
        })
    }

    /// The value of its last header of this name, which is the one that counts (KIP-82).
    pub fn last_header(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.headers().filter(|(key, _)| *key == name).last().and_then(|(_, value)| value)
    }
}

impl Batch {
    /// The records as they lie in the batch. They may take `size_bytes_max` bytes once decompressed.
    pub fn raw_records(&self, size_bytes_max: usize) -> Result<RawRecords, BatchError> {
        let bytes =
            super::record::decompressed(self.header(), self.record_bytes(), size_bytes_max)?;
        Ok(RawRecords { header: *self.header(), bytes })
    }
}

impl RawRecords {
    /// At most so many records are there, whatever the header claims.
    pub fn count_max(&self) -> usize {
        let claimed = usize::try_from(self.header.records_count).unwrap_or(0);
        claimed.min(self.bytes.len() / RECORD_SIZE_BYTES_MIN)
    }

    /// The records in order; stops after the first error.
    pub fn iter(&self) -> impl Iterator<Item = Result<RawRecord<'_>, BatchError>> {
        let mut cursor = Cursor { rest: &self.bytes, field: "Record" };
        let mut left_count = self.header.records_count.max(0);
        std::iter::from_fn(move || {
            if left_count == 0 {
                let left_over = std::mem::take(&mut cursor.rest).len();
                return (left_over > 0).then_some(Err(BatchError::LeftOver(left_over)));
            }
            left_count -= 1;
            let record = read(&mut cursor);
            if record.is_err() {
                left_count = 0;
                cursor.rest = &[];
            }
            Some(record)
        })
    }

    /// The batch without the records that `keep` says no to, by their number in the batch; it may
    /// end up empty. Compressed as it was, if anything is left.
    pub fn filtered(&self, mut keep: impl FnMut(usize) -> bool) -> Result<Bytes, BatchError> {
        let mut header = self.header;
        let mut kept = Vec::with_capacity(self.bytes.len());
        let mut max_timestamp_ms = None;
        header.records_count = 0;
        for (index, record) in self.iter().enumerate() {
            let record = record?;
            if keep(index) {
                kept.extend_from_slice(record.bytes);
                header.records_count += 1;
                let timestamp_ms =
                    header.base_timestamp_ms.saturating_add(record.timestamp_delta_ms);
                max_timestamp_ms = max_timestamp_ms.max(Some(timestamp_ms));
            }
        }
        if !header.attributes.is_log_append_time() || header.records_count == 0 {
            header.max_timestamp_ms = max_timestamp_ms.unwrap_or(NO_TIMESTAMP);
        }
        if header.records_count == 0 {
            // As Kafka's own log cleaner writes them: some clients would decompress nothing.
            header.attributes = header.attributes.with_compression(Compression::None);
        }
        super::builder::finish_compressed(header, kept.into())
    }
}

fn read<'a>(cursor: &mut Cursor<'a>) -> Result<RawRecord<'a>, BatchError> {
    let start = cursor.rest;
    cursor.field = "Record.length";
    let length = cursor.length()?.ok_or(DecodeError::Null { field: cursor.field })?;
    let mut body = Cursor { rest: cursor.take(length)?, field: "Record.attributes" };
    let bytes = &start[..start.len() - cursor.rest.len()];
    body.take(1)?;
    body.field = "Record.timestamp_delta";
    let timestamp_delta_ms = body.varlong()?;
    body.field = "Record.offset_delta";
    let offset_delta = body.varint()?;
    body.field = "Record.key";
    let has_key = body.nullable()?.is_some();
    body.field = "Record.value";
    body.nullable()?;
    body.field = "Record.headers";
    let headers_count = body.length()?.ok_or(DecodeError::Null { field: body.field })?;
    let headers = body.rest;
    body.field = "RecordHeader";
    for _ in 0..headers_count {
        body.nullable()?.ok_or(DecodeError::Null { field: body.field })?;
        body.nullable()?;
    }
    if !body.rest.is_empty() {
        return Err(BatchError::LeftOver(body.rest.len()));
    }
    Ok(RawRecord { offset_delta, timestamp_delta_ms, has_key, bytes, headers })
}

/// Reads from a slice, by position alone.
struct Cursor<'a> {
    rest: &'a [u8],
    field: &'static str,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, size_bytes: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(size_bytes) else {
            let (field, remaining) = (self.field, self.rest.len());
            return Err(DecodeError::Truncated { field, needed: size_bytes, remaining });
        };
        self.rest = rest;
        Ok(taken)
    }

    fn nullable(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.length()? {
            Some(length) => self.take(length).map(Some),
            None => Ok(None),
        }
    }

    fn length(&mut self) -> Result<Option<usize>, DecodeError> {
        let length = self.varint()?;
        let (field, remaining) = (self.field, self.rest.len());
        match usize::try_from(length) {
            Ok(length) if length <= remaining => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            _ => Err(DecodeError::Length { field, length: length.into(), remaining }),
        }
    }

    fn varint(&mut self) -> Result<i32, DecodeError> {
        let value = self.varlong()?;
        i32::try_from(value).map_err(|_| DecodeError::Varint { field: self.field })
    }

    fn varlong(&mut self) -> Result<i64, DecodeError> {
        let too_long = DecodeError::Varint { field: self.field };
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let payload = u64::from(self.byte()?);
            let bits = payload & 0x7f;
            if bits << shift >> shift != bits {
                return Err(too_long);
            }
            value |= bits << shift;
            if payload & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(too_long)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.take(1).map(|taken| taken.first().copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{BatchBuilder, batches};
    use super::*;

    fn numbered(count: i32, compression: Compression) -> Batch {
        let mut builder = BatchBuilder::new().producer(7, 1, 40);
        for n in 0..count {
            let number = n.to_string();
            let headers =
                [("n", Some(b"other".as_slice())), ("n", Some(number.as_bytes())), ("null", None)];
            builder.append(1000 + i64::from(n), Some(b"key"), Some(&[n as u8; 100]), &headers);
        }
        Batch::produced(Some(builder.build_compressed(compression).unwrap())).unwrap()
    }

    const ALL: [Compression; 2] = [
        Compression::None,
        if cfg!(feature = "compression") { Compression::Zstd } else { Compression::None },
    ];

    #[test]
    fn headers_are_read_where_they_lie() {
        for compression in ALL {
            let records = numbered(3, compression).raw_records(10_000).unwrap();
            for (n, record) in records.iter().enumerate() {
                let record = record.unwrap();
                assert_eq!(record.offset_delta as usize, n);
                assert_eq!(record.timestamp_delta_ms as usize, n);
                assert_eq!(record.last_header(b"n"), Some(n.to_string().as_bytes()));
                assert_eq!(record.last_header(b"null"), None);
                assert_eq!(record.last_header(b"absent"), None);
                assert_eq!(record.headers().count(), 3);
            }
        }
    }

    #[test]
    fn what_is_left_out_leaves_a_hole() {
        for compression in ALL {
            let batch = numbered(6, compression);
            let records = batch.raw_records(10_000).unwrap();
            let odd = records.filtered(|index| index % 2 == 1 && index < 5).unwrap();
            let odd = batches(odd).next().unwrap().unwrap();
            assert_eq!(odd.check_crc(), Ok(()));
            let header = *odd.header();
            assert_eq!((header.records_count, header.last_offset_delta), (2, 5));
            assert_eq!((header.base_sequence, header.last_sequence()), (40, 45));
            assert_eq!(header.attributes, batch.header().attributes);
            assert_eq!(header.max_timestamp_ms, 1003, "of what is left");
            let kept: Vec<_> = odd.records(10_000).unwrap().map(Result::unwrap).collect();
            let all: Vec<_> = batch.records(10_000).unwrap().map(Result::unwrap).collect();
            assert_eq!(kept, [all[1].clone(), all[3].clone()]);
        }
    }

    #[test]
    fn a_batch_may_end_up_empty() {
        for compression in ALL {
            let batch = numbered(3, compression);
            let empty = batch.raw_records(10_000).unwrap().filtered(|_| false).unwrap();
            let empty = batches(empty).next().unwrap().unwrap();
            assert_eq!(empty.check_crc(), Ok(()));
            assert_eq!(empty.header().last_sequence(), batch.header().last_sequence());
            assert_eq!(empty.header().max_timestamp_ms, NO_TIMESTAMP);
            assert_eq!(empty.bytes().len(), BatchHeader::SIZE_BYTES);
            assert_eq!(empty.records(10_000).unwrap().count(), 0);
        }
    }

    #[test]
    fn more_than_allowed_is_not_decompressed() {
        for compression in ALL {
            let refused = numbered(6, compression).raw_records(300).map(|_| ());
            assert_eq!(refused, Err(BatchError::TooLarge { size_bytes_max: 300 }));
        }
    }

    proptest! {
        #[test]
        fn damage_is_an_error_and_both_readers_agree(
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let mut bytes = numbered(3, Compression::None).bytes().to_vec();
            let at = BatchHeader::SIZE_BYTES + at.index(bytes.len() - BatchHeader::SIZE_BYTES);
            bytes[at] = byte;
            let batch = batches(bytes.into()).next().unwrap().unwrap();
            let raw = batch.raw_records(10_000).unwrap();
            let readable = batch.records(10_000).unwrap().all(|record| record.is_ok());
            // Names of headers may be any bytes here.
            prop_assert!(!readable || raw.iter().all(|record| record.is_ok()));
            prop_assert!(raw.iter().count() <= raw.count_max() + 1);
        }
    }
}
