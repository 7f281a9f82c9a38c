//! Keyed batches: real records with keys, which passes of compaction leave the last of.
//!
//! A value says by itself which key it has, so that whoever has seen all values knows the last of each.

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::partition::RecordBatch;
use meridian_broker::producer::Sequenced;
use meridian_protocol::records::{self, BatchBuilder, BatchHeader};

use crate::topics::{GROUPS, KEYED_MIN};
use crate::value::{Batch, Kind, PlacedBatch, Value};

/// How many keys there are: few, so that most values are soon superseded.
const KEY_COUNT: u32 = 12;
/// A value's producer, epoch and sequence.
const VALUE_SIZE_BYTES: usize = 10;

/// The keyed partition with this number.
pub fn partition(number: u64) -> PartitionId {
    PartitionId::new(KEYED_MIN + number)
}

/// Whether a partition's values have keys, and only the last of each stays.
pub fn is_keyed(partition: PartitionId) -> bool {
    (KEYED_MIN..GROUPS.get()).contains(&partition.get())
}

/// The key of a value.
pub fn key_of(value: Value) -> u32 {
    value.sequence % KEY_COUNT
}

/// The batch as a producer sends it.
pub fn to_record_batch(batch: Batch) -> RecordBatch {
    let Value { producer, epoch, sequence } = batch.first;
    let (producer_id, producer_epoch) = (i64::from(producer), epoch as i16);
    let mut builder = BatchBuilder::new().producer(producer_id, producer_epoch, sequence as i32);
    for value in batch.values() {
        let mut bytes = [0; VALUE_SIZE_BYTES];
        bytes[..4].copy_from_slice(&value.producer.to_be_bytes());
        bytes[4..6].copy_from_slice(&value.epoch.to_be_bytes());
        bytes[6..].copy_from_slice(&value.sequence.to_be_bytes());
        builder.append(0, Some(&key_of(value).to_be_bytes()), Some(&bytes), &[]);
    }
    RecordBatch {
        bytes: builder.build(),
        record_count: batch.count,
        max_timestamp_ms: 0,
        sequenced: Some(Sequenced {
            producer_id,
            epoch: producer_epoch,
            base_sequence: sequence as i32,
            record_count: batch.count,
            max_timestamp_ms: 0,
        }),
        transaction: None,
        sourced: None,
    }
}

/// Takes a keyed batch off the front of what a leader serves; `None` if another is there.
pub fn split_off(bytes: &mut Bytes) -> Option<PlacedBatch> {
    let header = BatchHeader::parse(bytes).ok()?;
    if header.size_bytes == BatchHeader::SIZE_BYTES || header.attributes.is_control() {
        return None;
    }
    let count = u32::try_from(header.last_offset_delta + 1).ok().filter(|count| *count < 64)?;
    let read = records::batches(bytes.clone()).next()?.ok()?;
    let mut first = None;
    let mut holes = (1u64 << count) - 1;
    for record in read.records(1 << 16).ok()? {
        let record = record.ok()?;
        let delta = u32::try_from(record.offset - header.base_offset).ok()?;
        let value: [u8; VALUE_SIZE_BYTES] = record.value?[..].try_into().ok()?;
        let value = Value {
            producer: u32::from_be_bytes(*value.first_chunk()?),
            epoch: u16::from_be_bytes([value[4], value[5]]),
            sequence: u32::from_be_bytes(*value.last_chunk()?),
        };
        first = Some(Value { sequence: value.sequence.checked_sub(delta)?, ..value });
        holes &= !(1 << delta);
    }
    let batch = Batch { first: first?, count, kind: Kind::Keyed };
    let _served = bytes.split_to(header.size_bytes);
    Some(PlacedBatch { base_offset: Offset::new(header.base_offset), batch, holes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_back_with_its_holes() {
        let first = Value { producer: 70_000, epoch: 300, sequence: 5 };
        let batch = Batch { first, count: 3, kind: Kind::Keyed };
        let sent = batch.to_record_batch().bytes;
        let whole = PlacedBatch::whole(Offset::ZERO, batch);
        assert_eq!(PlacedBatch::read_all(sent.clone()), Some(vec![whole]));
        let read = records::batches(sent).next().unwrap().unwrap();
        let left = read.raw_records(1000).unwrap().filtered(|index| index == 2).unwrap();
        let read = PlacedBatch::read_all(left).unwrap();
        assert_eq!(read, [PlacedBatch { holes: 0b011, ..whole }]);
    }
}
