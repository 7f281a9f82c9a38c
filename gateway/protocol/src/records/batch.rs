//! A batch as bytes, and its way into a log.

use bytes::Bytes;

use super::{BatchError, BatchHeader, RecordIter};
use crate::wire::Records;

/// A whole batch: its header, and the bytes it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    header: BatchHeader,
    bytes: Bytes,
}

/// What a leader writes into a batch when it appends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The offset of the first record.
    pub base_offset: i64,
    /// The epoch of the leader.
    pub partition_leader_epoch: i32,
    /// With `message.timestamp.type=LogAppendTime` the time of the append. It costs a new checksum;
    /// the other fields lie outside of it.
    pub log_append_time_ms: Option<i64>,
}

/// The batches that follow each other in `bytes`. Stops after the first error.
pub fn batches(bytes: Bytes) -> Batches {
    Batches { rest: bytes }
}

/// See [`batches`].
#[derive(Debug, Clone)]
pub struct Batches {
    rest: Bytes,
}

impl Iterator for Batches {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = Batch::split_off(&mut self.rest);
        if batch.is_err() {
            self.rest.clear();
        }
        Some(batch)
    }
}

impl Batch {
    /// The one batch that a produce request may have for a partition. `bytes` are its records.
    pub fn produced(bytes: Option<Bytes>) -> Result<Self, BatchError> {
        let mut rest = bytes.unwrap_or_default();
        if rest.is_empty() {
            return Err(BatchError::Empty);
        }
        let batch = Self::split_off(&mut rest)?;
        if !rest.is_empty() {
            return Err(BatchError::MoreThanOne);
        }
        batch.check_produced()?;
        Ok(batch)
    }

    fn split_off(bytes: &mut Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(bytes)?;
        if header.size_bytes > bytes.len() {
            let (needed, remaining) = (header.size_bytes, bytes.len());
            return Err(BatchError::Truncated { needed, remaining });
        }
        Ok(Self { header, bytes: bytes.split_to(header.size_bytes) })
    }

    /// The header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What follows the header, compressed as the header says.
    pub fn record_bytes(&self) -> Bytes {
        self.bytes.slice(BatchHeader::SIZE_BYTES..)
    }

    /// Whether the bytes are those that the producer sent.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let (_, covered) = self.bytes.split_at(BatchHeader::CRC_COVERS_FROM);
        let (stated, computed) = (self.header.crc, crc32c::crc32c(covered));
        if stated == computed { Ok(()) } else { Err(BatchError::Checksum { stated, computed }) }
    }

    /// Whether a client may have written this batch, and it arrived undamaged.
    pub fn check_produced(&self) -> Result<(), BatchError> {
        self.header.check_produced()?;
        self.check_crc()
    }

    /// The batch at its place in the log. Only the header is copied.
    pub fn stamped(&self, stamp: &Stamp) -> Records {
        let records = self.record_bytes();
        let header = self.header.stamped(stamp, &records);
        [Bytes::copy_from_slice(&header.to_bytes()), records].into_iter().collect()
    }

    /// The records. They may take `size_bytes_max` bytes once decompressed.
    pub fn records(&self, size_bytes_max: usize) -> Result<RecordIter, BatchError> {
        RecordIter::new(&self.header, self.record_bytes(), size_bytes_max)
    }
}

/// Stamps the one batch that `batch` is, in place.
pub fn stamp(batch: &mut [u8], stamp: &Stamp) -> Result<(), BatchError> {
    let header = BatchHeader::parse(batch)?;
    let (needed, remaining) = (header.size_bytes, batch.len());
    match batch.split_first_chunk_mut() {
        Some((header_bytes, records)) if needed == remaining => {
            *header_bytes = header.stamped(stamp, records).to_bytes();
            Ok(())
        }
        _ if needed < remaining => Err(BatchError::LeftOver(remaining - needed)),
        _ => Err(BatchError::Truncated { needed, remaining }),
    }
}

impl BatchHeader {
    fn stamped(mut self, stamp: &Stamp, records: &[u8]) -> Self {
        self.base_offset = stamp.base_offset;
        self.partition_leader_epoch = stamp.partition_leader_epoch;
        if let Some(time_ms) = stamp.log_append_time_ms {
            return self.with_log_append_time(time_ms, records);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BatchBuilder;
    use super::*;

    fn batch(records_count: i32) -> Bytes {
        let mut builder = BatchBuilder::new();
        for i in 0..records_count {
            builder.append(1000 + i64::from(i), None, Some(b"value"), &[]);
        }
        builder.build()
    }

    fn concatenated(parts: &[Bytes]) -> Bytes {
        parts.concat().into()
    }

    #[test]
    fn concatenated_batches_come_apart() {
        let bytes = concatenated(&[batch(1), batch(3)]);
        let counts: Vec<_> =
            batches(bytes.clone()).map(|batch| batch.unwrap().header().records_count).collect();
        assert_eq!(counts, [1, 3]);

        let cut = bytes.slice(..bytes.len() - 1);
        let mut iter = batches(cut);
        assert!(iter.next().unwrap().is_ok());
        assert!(matches!(iter.next(), Some(Err(BatchError::Truncated { .. }))));
        assert!(iter.next().is_none());
    }

    #[test]
    fn a_produce_request_has_one_undamaged_batch() {
        assert!(Batch::produced(Some(batch(2))).is_ok());
        assert_eq!(Batch::produced(None), Err(BatchError::Empty));
        assert_eq!(Batch::produced(Some(Bytes::new())), Err(BatchError::Empty));
        let two = concatenated(&[batch(1), batch(1)]);
        assert_eq!(Batch::produced(Some(two)), Err(BatchError::MoreThanOne));

        let good = batch(2);
        for at in BatchHeader::CRC_COVERS_FROM..good.len() {
            let mut damaged = good.to_vec();
            damaged[at] ^= 0x40;
            assert!(Batch::produced(Some(damaged.into())).is_err(), "byte {at}");
        }
    }

    #[test]
    fn stamping_keeps_the_checksum_unless_the_time_changes() {
        let original = Batch::produced(Some(batch(3))).unwrap();
        let mut stamp_values =
            Stamp { base_offset: 500, partition_leader_epoch: 9, log_append_time_ms: None };
        for log_append_time_ms in [None, Some(77)] {
            stamp_values.log_append_time_ms = log_append_time_ms;
            let records = original.stamped(&stamp_values);
            let payload = records.pieces().nth(1).unwrap();
            assert_eq!(payload.as_ptr(), original.record_bytes().as_ptr(), "copied");

            let mut in_place = original.bytes().to_vec();
            stamp(&mut in_place, &stamp_values).unwrap();
            assert_eq!(records.into_bytes(), in_place);

            let stamped = Batch::produced(Some(in_place.into())).unwrap();
            assert_eq!(stamped.header().base_offset, 500);
            assert_eq!(stamped.header().last_offset(), 502);
            assert_eq!(stamped.header().partition_leader_epoch, 9);
            assert_eq!(stamped.header().max_timestamp_ms, log_append_time_ms.unwrap_or(1002));
            let same_crc = stamped.header().crc == original.header().crc;
            assert_eq!(same_crc, log_append_time_ms.is_none());
        }
    }

    #[test]
    fn only_one_whole_batch_is_stamped_in_place() {
        let values = Stamp { base_offset: 1, partition_leader_epoch: 1, log_append_time_ms: None };
        let mut two = concatenated(&[batch(1), batch(1)]).to_vec();
        assert!(matches!(stamp(&mut two, &values), Err(BatchError::LeftOver(_))));
        let end = two.len() / 2 - 1;
        assert!(matches!(stamp(&mut two[..end], &values), Err(BatchError::Truncated { .. })));
    }

    proptest! {
        #[test]
        fn damaged_batches_never_panic(
            at in any::<prop::sample::Index>(),
            byte: u8,
            garbage in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = concatenated(&[batch(2), batch(2)]).to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.extend_from_slice(&garbage);
            for batch in batches(bytes.into()).flatten() {
                let _ = batch.check_produced();
                for record in batch.records(1 << 16).into_iter().flatten() {
                    let _ = record;
                }
            }
        }
    }
}
