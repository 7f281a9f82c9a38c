//! What the records of a batch say of their sources, read from their headers.

use std::collections::BTreeMap;

use meridian_protocol::records::{Batch, BatchError, RawRecord};

use super::Seqno;

/// The header that names a record's source: 1 to 256 bytes of UTF-8.
pub const PRODUCER_ID_HEADER: &str = "meridian-producer-id";
/// The header with a record's number in the order of its source: decimal text or 8 bytes, big-endian.
pub const SEQNO_HEADER: &str = "meridian-seqno";

const NAME_SIZE_BYTES_MAX: usize = 256;
/// Decimal digits of [`Seqno::MAX`].
const DIGIT_COUNT_MAX: usize = 19;
/// Records of one batch are not decompressed any further. Not a setting: a replay must be able to
/// read what a leader could.
pub(crate) const BATCH_SIZE_BYTES_MAX: usize = 32 << 20;

/// Why a batch cannot be told apart from a repeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The records cannot be read.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A record's headers do not say where it belongs.
    #[error("record {index}: {cause}")]
    Record {
        /// Number of the record in its batch, from 0.
        index: u32,
        /// What is wrong with it.
        cause: RecordError,
    },
}

/// What is wrong with a record's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A header is absent or null.
    #[error(
        "no header {0}: with meridian.dedup=source each record needs meridian-producer-id (text \
         that names its source for good) and meridian-seqno (its number there, ascending)"
    )]
    Missing(&'static str),
    /// The source has no proper name.
    #[error("meridian-producer-id must be 1 to 256 bytes of UTF-8")]
    Name,
    /// The number is not one.
    #[error("meridian-seqno must be decimal text or 8 bytes big-endian, from 0 to 2^61 - 1")]
    Seqno,
    /// Offsets in a new batch must follow each other.
    #[error("its offset delta is {0}, it must be its number in the batch")]
    OffsetDelta(i32),
}

/// A record's place in the order of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourcedRecord {
    /// Index in [`SourcedBatch::names`].
    pub(super) source: u32,
    /// Distance from the batch's base offset.
    pub(super) offset_delta: u32,
    pub(super) seqno: Seqno,
}

/// The sources of a batch's records. 16 bytes for each record, and the names once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcedBatch {
    pub(super) names: Vec<Box<str>>,
    pub(super) records: Vec<SourcedRecord>,
    /// When the leader got it, in milliseconds since 1970.
    pub(super) append_time_ms: i64,
}

impl SourcedBatch {
    /// Reads a batch that a client sent: each record must name its source.
    pub fn produced(batch: &Batch, append_time_ms: i64) -> Result<Self, HeaderError> {
        let mut reading = Reading::default();
        let records = batch.raw_records(BATCH_SIZE_BYTES_MAX)?;
        reading.records.reserve(records.count_max());
        for (index, record) in (0u32..).zip(records.iter()) {
            let record = record?;
            let number = i32::try_from(index).unwrap_or(i32::MAX);
            let dense = record.offset_delta == number;
            let added = if dense {
                reading.add(index, &record)
            } else {
                Err(RecordError::OffsetDelta(record.offset_delta))
            };
            added.map_err(|cause| HeaderError::Record { index, cause })?;
        }
        Ok(reading.finish(append_time_ms))
    }

    /// Reads a batch that is in the log already: what does not name its source is passed over, as
    /// it may have been appended before the topic asked for it.
    pub fn appended(batch: &Batch, append_time_ms: i64) -> Self {
        let mut reading = Reading::default();
        if let Ok(records) = batch.raw_records(BATCH_SIZE_BYTES_MAX) {
            for record in records.iter().map_while(Result::ok) {
                let offset_delta = u32::try_from(record.offset_delta).unwrap_or(u32::MAX);
                let _passed_over = reading.add(offset_delta, &record);
            }
        }
        reading.finish(append_time_ms)
    }

    /// Number of records.
    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// The batch without the records at `dropped`: indexes of records, ascending.
    pub(in crate::partition) fn without(mut self, dropped: &[usize]) -> Self {
        let mut index = 0;
        self.records.retain(|_| {
            let keep = dropped.binary_search(&index).is_err();
            index += 1;
            keep
        });
        self
    }
}

#[derive(Default)]
struct Reading {
    numbers: BTreeMap<Box<str>, u32>,
    names: Vec<Box<str>>,
    records: Vec<SourcedRecord>,
}

impl Reading {
    fn add(&mut self, offset_delta: u32, record: &RawRecord<'_>) -> Result<(), RecordError> {
        let (mut name, mut seqno) = (None, None);
        for (key, value) in record.headers() {
            if key == PRODUCER_ID_HEADER.as_bytes() {
                name = value;
            } else if key == SEQNO_HEADER.as_bytes() {
                seqno = value;
            }
        }
        let name = name.ok_or(RecordError::Missing(PRODUCER_ID_HEADER))?;
        let seqno = seqno.ok_or(RecordError::Missing(SEQNO_HEADER))?;
        let seqno = parse_seqno(seqno).ok_or(RecordError::Seqno)?;
        let source = self.source(name)?;
        self.records.push(SourcedRecord { source, offset_delta, seqno });
        Ok(())
    }

    /// Records of a source mostly follow each other, so that its name is looked up once.
    fn source(&mut self, name: &[u8]) -> Result<u32, RecordError> {
        if let Some(last) = self.records.last()
            && self.names.get(last.source as usize).is_some_and(|known| known.as_bytes() == name)
        {
            return Ok(last.source);
        }
        let name = std::str::from_utf8(name).map_err(|_| RecordError::Name)?;
        if name.is_empty() || name.len() > NAME_SIZE_BYTES_MAX {
            return Err(RecordError::Name);
        }
        if let Some(source) = self.numbers.get(name) {
            return Ok(*source);
        }
        let source = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.into());
        self.numbers.insert(name.into(), source);
        Ok(source)
    }

    fn finish(self, append_time_ms: i64) -> SourcedBatch {
        SourcedBatch { names: self.names, records: self.records, append_time_ms }
    }
}

/// Digits are text; anything else of 8 bytes is a big-endian number. Numbers below 2^61 have no 8
/// bytes that are all digits, so the two can't be confused.
fn parse_seqno(value: &[u8]) -> Option<Seqno> {
    if !value.is_empty() && value.len() <= DIGIT_COUNT_MAX && value.iter().all(u8::is_ascii_digit) {
        let digit = |number, digit: &u8| number * 10 + u64::from(digit - b'0');
        return Seqno::new(value.iter().fold(0, digit));
    }
    Seqno::new(u64::from_be_bytes(value.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use meridian_protocol::records::{BatchBuilder, Compression};

    use super::*;

    /// The headers of a record.
    type Headers<'a> = &'a [(&'a str, Option<&'a [u8]>)];

    fn batch(headers: &[Headers<'_>], compression: Compression) -> Batch {
        let mut builder = BatchBuilder::new();
        for headers in headers {
            builder.append(1, None, Some(b"value"), headers);
        }
        Batch::produced(builder.build_compressed(compression).ok()).unwrap()
    }

    fn refused(headers: Headers<'_>) -> Option<RecordError> {
        match SourcedBatch::produced(&batch(&[headers], Compression::None), 5) {
            Err(HeaderError::Record { index: 0, cause }) => Some(cause),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    }

    #[test]
    fn a_seqno_is_text_or_eight_bytes() {
        let max = (1u64 << 61) - 1;
        for (value, seqno) in [
            (&b"0"[..], Some(0)),
            (b"007", Some(7)),
            (b"12345678", Some(12_345_678)),
            (max.to_string().as_bytes(), Some(max)),
            ((max + 1).to_string().as_bytes(), None),
            (b"9999999999999999999", None),
            (b"00000000000000000001", None),
            (&7u64.to_be_bytes(), Some(7)),
            (&max.to_be_bytes(), Some(max)),
            (&(max + 1).to_be_bytes(), None),
            (b"", None),
            (b"-1", None),
            (b"1 ", None),
            (&7u32.to_be_bytes(), None),
        ] {
            assert_eq!(parse_seqno(value).map(Seqno::get), seqno, "{value:?}");
        }
    }

    #[test]
    fn each_record_must_say_where_it_belongs() {
        let id: (&str, Option<&[u8]>) = (PRODUCER_ID_HEADER, Some(b"a"));
        let seqno: (&str, Option<&[u8]>) = (SEQNO_HEADER, Some(b"1"));
        assert_eq!(refused(&[id, seqno]), None);
        assert_eq!(refused(&[seqno, ("more", None), id]), None, "in any order");
        assert_eq!(refused(&[id]), Some(RecordError::Missing(SEQNO_HEADER)));
        assert_eq!(refused(&[seqno]), Some(RecordError::Missing(PRODUCER_ID_HEADER)));
        assert_eq!(refused(&[id, (SEQNO_HEADER, None)]), Some(RecordError::Missing(SEQNO_HEADER)));
        assert_eq!(refused(&[id, (SEQNO_HEADER, Some(b"x"))]), Some(RecordError::Seqno));
        let long = "n".repeat(257);
        for name in [&b""[..], &[0xff], long.as_bytes()] {
            assert_eq!(
                refused(&[(PRODUCER_ID_HEADER, Some(name)), seqno]),
                Some(RecordError::Name)
            );
        }
        assert_eq!(refused(&[(PRODUCER_ID_HEADER, Some(&long.as_bytes()[1..])), seqno]), None);
    }

    #[test]
    fn the_record_at_fault_is_named() {
        let good: Headers<'_> = &[(PRODUCER_ID_HEADER, Some(b"a")), (SEQNO_HEADER, Some(b"1"))];
        let bad = SourcedBatch::produced(&batch(&[good, good, &[]], Compression::Lz4), 5);
        let cause = RecordError::Missing(PRODUCER_ID_HEADER);
        assert_eq!(bad, Err(HeaderError::Record { index: 2, cause }));
        let kept = SourcedBatch::appended(&batch(&[good, good, &[]], Compression::Lz4), 5);
        assert_eq!(kept.record_count(), 2, "what is in the log is taken as it is");
    }

    #[test]
    fn a_bomb_is_refused() {
        let mut builder = BatchBuilder::new();
        builder.append(1, None, Some(&vec![0; BATCH_SIZE_BYTES_MAX]), &[]);
        let bomb = Batch::produced(builder.build_compressed(Compression::Zstd).ok()).unwrap();
        assert!(bomb.bytes().len() < 100_000);
        let size_bytes_max = BATCH_SIZE_BYTES_MAX;
        let error = HeaderError::Batch(BatchError::TooLarge { size_bytes_max });
        assert_eq!(SourcedBatch::produced(&bomb, 5), Err(error));
    }
}
