//! What the clients of a simulation write: numbered values, each recognisable for ever.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_gateway::partition::RecordBatch;
use meridian_gateway::producer::Sequenced;

use crate::sourced;

/// One record's value: the producer, its epoch, and the record's sequence number. No two records
/// may ever carry the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    /// The producer's id.
    pub producer: u32,
    /// Its epoch: grows when the producer loses its memory. [`Value::SOURCED`] if the producer is a
    /// persistent source, which never loses it.
    pub epoch: u16,
    /// Number of the record, dense from 0 in each epoch.
    pub sequence: u32,
}

impl Value {
    /// The epoch of values that a persistent source numbers.
    pub const SOURCED: u16 = u16::MAX;

    /// Whether a persistent source numbers it.
    pub fn is_sourced(self) -> bool {
        self.epoch == Self::SOURCED
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}/{}#{}", self.producer, self.epoch, self.sequence)
    }
}

/// A record batch: consecutive values of one producer, appended whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The first value.
    pub first: Value,
    /// How many values.
    pub count: u32,
}

/// Size of a Kafka record batch without records: all that is needed to number values.
const BATCH_SIZE_BYTES: usize = 61;
const MAGIC: u8 = 2;

impl Batch {
    /// The values, in order.
    pub fn values(self) -> impl Iterator<Item = Value> {
        (0..self.count)
            .map(move |index| Value { sequence: self.first.sequence + index, ..self.first })
    }

    /// Sequence number after the last value.
    pub fn next_sequence(self) -> u32 {
        self.first.sequence + self.count
    }

    /// The batch as a producer sends it: the header of a Kafka record batch, without its records.
    pub fn to_record_batch(self) -> RecordBatch {
        let mut out = BytesMut::with_capacity(BATCH_SIZE_BYTES);
        out.put_i64(0); // base offset, given by the leader
        out.put_i32(BATCH_SIZE_BYTES as i32 - 12);
        out.put_i32(-1); // leader epoch, given by the leader
        out.put_u8(MAGIC);
        out.put_u32(0); // checksum: the front checks it, the log does not
        out.put_i16(0);
        out.put_i32(self.count as i32 - 1);
        out.put_i64(0);
        out.put_i64(0);
        out.put_i64(i64::from(self.first.producer));
        out.put_i16(self.first.epoch as i16);
        out.put_i32(self.first.sequence as i32);
        out.put_i32(self.count as i32);
        RecordBatch {
            bytes: out.freeze(),
            record_count: self.count,
            max_timestamp_ms: 0,
            sequenced: Some(Sequenced {
                producer_id: i64::from(self.first.producer),
                epoch: self.first.epoch as i16,
                base_sequence: self.first.sequence as i32,
                record_count: self.count,
                max_timestamp_ms: 0,
            }),
            transaction: None,
            sourced: None,
        }
    }
}

/// A batch at its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBatch {
    /// Offset of its first value.
    pub base_offset: Offset,
    /// The batch as its producer sent it.
    pub batch: Batch,
    /// Which of its values are not here, as they are elsewhere in the log: a bit for each.
    pub holes: u64,
}

impl PlacedBatch {
    /// A batch with all its values.
    pub fn whole(base_offset: Offset, batch: Batch) -> Self {
        Self { base_offset, batch, holes: 0 }
    }

    /// The values with their offsets.
    pub fn values(self) -> impl Iterator<Item = (Offset, Value)> {
        let values = (0..self.batch.count).zip(self.batch.values());
        let here = values.filter(move |(index, _)| self.holes >> index & 1 == 0);
        here.map(move |(index, value)| (self.base_offset.advance(index), value))
    }

    /// The offset after the last value.
    pub fn next_offset(self) -> Offset {
        self.base_offset.advance(self.batch.count)
    }

    /// Reads batches as a leader serves them; `None` if the bytes are something else.
    pub fn read_all(mut bytes: Bytes) -> Option<Vec<Self>> {
        let mut batches = Vec::new();
        while !bytes.is_empty() {
            if bytes.remaining() < BATCH_SIZE_BYTES {
                return None;
            }
            if let Some(placed) = sourced::split_off(&mut bytes) {
                batches.push(placed);
                continue;
            }
            let base_offset = Offset::new(bytes.get_i64());
            let size_bytes = bytes.get_i32();
            bytes.advance(4);
            let magic = bytes.get_u8();
            bytes.advance(6);
            let count = bytes.get_i32() + 1;
            bytes.advance(16);
            let producer = bytes.get_i64() as u32;
            let epoch = bytes.get_i16() as u16;
            let sequence = bytes.get_i32() as u32;
            let record_count = bytes.get_i32();
            if size_bytes != BATCH_SIZE_BYTES as i32 - 12 || magic != MAGIC || count != record_count
            {
                return None;
            }
            let first = Value { producer, epoch, sequence };
            batches.push(Self::whole(base_offset, Batch { first, count: count as u32 }));
        }
        Some(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Value = Value { producer: 70_000, epoch: 300, sequence: 5 };

    #[test]
    fn a_batch_is_read_back_with_the_offset_the_leader_gave() {
        let batch = Batch { first: FIRST, count: 3 };
        let mut bytes = BytesMut::from(&batch.to_record_batch().bytes[..]);
        bytes[..8].copy_from_slice(&40i64.to_be_bytes());
        let placed = PlacedBatch::whole(Offset::new(40), batch);
        assert_eq!(PlacedBatch::read_all(bytes.clone().freeze()), Some(vec![placed]));
        assert_eq!(PlacedBatch::read_all(bytes.freeze().slice(1..)), None);
    }

    #[test]
    fn a_placed_batch_numbers_its_values() {
        let placed = PlacedBatch::whole(Offset::new(40), Batch { first: FIRST, count: 2 });
        let seen: Vec<(i64, u32)> =
            placed.values().map(|(offset, value)| (offset.get(), value.sequence)).collect();
        assert_eq!(seen, [(40, 5), (41, 6)]);
        assert_eq!(placed.next_offset(), Offset::new(42));
    }
}
