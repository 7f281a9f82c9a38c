//! What the clients of a simulation write: numbered values, each recognisable for ever.

use std::fmt;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_broker::partition::{InTransaction, RecordBatch, TransactionVersion};
use meridian_broker::producer::Sequenced;
use meridian_protocol::records::{self, Attributes, BatchHeader, EndTxnMarker};

use crate::{keyed, sourced};

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

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Values.
    Plain,
    /// Values with keys.
    Keyed,
    /// Values of a transaction.
    Transactional {
        /// Which of those with this epoch, from 1 on; 0 if it has the epoch alone, as with
        /// version 2.
        number: u32,
    },
    /// The end of the transaction with the epoch before, or with version 1 of that with this one.
    Marker {
        /// Whether its values count.
        commit: bool,
    },
}

/// A record batch: consecutive values of one producer, appended whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The first value.
    pub first: Value,
    /// How many values.
    pub count: u32,
    /// What it is for.
    pub kind: Kind,
}

/// The flag of transactional batches in their attributes (Kafka protocol guide).
const TRANSACTIONAL: i16 = 1 << 4;
/// Stands in for the sequence of a marker that commits; one that aborts has the number below.
const COMMIT_SEQUENCE: u32 = u32::MAX;
/// Between two records of a producer, by what they say: so that a log has several lines of size and time.
const RECORD_SPAN_MS: i64 = 60 * 1000;
/// More than a marker takes.
const MARKER_SIZE_BYTES_MAX: usize = 1_000;

impl Kind {
    /// How a producer's transactions are told apart, if this is in one.
    fn version(self) -> Option<TransactionVersion> {
        match self {
            Self::Transactional { number: 0 } => Some(TransactionVersion::V2),
            Self::Transactional { .. } => Some(TransactionVersion::V1),
            Self::Plain | Self::Keyed | Self::Marker { .. } => None,
        }
    }
}

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

    /// The batch as a producer sends it: the header of a Kafka record batch, without its records unless
    /// they have keys.
    pub fn to_record_batch(self) -> RecordBatch {
        if self.kind == Kind::Keyed {
            return keyed::to_record_batch(self);
        }
        let number = if let Kind::Transactional { number } = self.kind { number } else { 0 };
        let version = self.kind.version();
        let max_timestamp_ms = i64::from(self.first.sequence) * RECORD_SPAN_MS;
        let mut header = BatchHeader {
            attributes: Attributes(if version.is_some() { TRANSACTIONAL } else { 0 }),
            // Nobody asks for these by time.
            base_timestamp_ms: i64::from(number),
            max_timestamp_ms,
            last_offset_delta: self.count as i32 - 1,
            producer_id: i64::from(self.first.producer),
            producer_epoch: self.first.epoch as i16,
            base_sequence: self.first.sequence as i32,
            records_count: self.count as i32,
            ..BatchHeader::default()
        };
        // The log does not check it; a mirror tells batches apart by it.
        header.crc = header.compute_crc(&[]);
        let (producer_id, producer_epoch) = (header.producer_id, header.producer_epoch);
        RecordBatch {
            bytes: Bytes::copy_from_slice(&header.to_bytes()),
            record_count: self.count,
            max_timestamp_ms,
            sequenced: Some(Sequenced {
                producer_id,
                epoch: producer_epoch,
                base_sequence: header.base_sequence,
                record_count: self.count,
                max_timestamp_ms,
            }),
            transaction: version.map(|version| InTransaction {
                transactional_id: "".into(),
                producer_id,
                producer_epoch,
                version,
            }),
            sourced: None,
        }
    }

    /// The marker that ends the transaction of the epoch before.
    pub fn marker(producer: u32, epoch: u16, commit: bool) -> Self {
        let sequence = if commit { COMMIT_SEQUENCE } else { COMMIT_SEQUENCE - 1 };
        let first = Value { producer, epoch, sequence };
        Self { first, count: 1, kind: Kind::Marker { commit } }
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
            let special = sourced::split_off(&mut bytes);
            batches.push(match special.or_else(|| keyed::split_off(&mut bytes)) {
                Some(placed) => placed,
                None => Self::split_off(&mut bytes)?,
            });
        }
        Some(batches)
    }

    fn split_off(bytes: &mut Bytes) -> Option<Self> {
        let batch = records::batches(bytes.clone()).next()?.ok()?;
        let header = batch.header();
        let (producer, epoch) = (header.producer_id as u32, header.producer_epoch as u16);
        let base_offset = Offset::new(header.base_offset);
        let _served = bytes.split_to(header.size_bytes);
        if header.attributes.is_control() {
            let record = batch.records(MARKER_SIZE_BYTES_MAX).ok()?.next()?.ok()?;
            let marker = EndTxnMarker::from_record(&record)?;
            let batch = Batch::marker(producer, epoch, marker.committed);
            return Some(Self::whole(base_offset, batch));
        }
        let is_dense = header.last_offset_delta + 1 == header.records_count;
        if header.size_bytes != BatchHeader::SIZE_BYTES || !is_dense {
            return None;
        }
        let first = Value { producer, epoch, sequence: header.base_sequence as u32 };
        let number = header.base_timestamp_ms as u32;
        let is_transactional = header.attributes.is_transactional();
        let kind = if is_transactional { Kind::Transactional { number } } else { Kind::Plain };
        let count = header.records_count as u32;
        Some(Self::whole(base_offset, Batch { first, count, kind }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Value = Value { producer: 70_000, epoch: 300, sequence: 5 };

    #[test]
    fn a_batch_is_read_back_with_the_offset_the_leader_gave() {
        let batch = Batch { first: FIRST, count: 3, kind: Kind::Transactional { number: 7 } };
        let mut bytes = batch.to_record_batch().bytes.to_vec();
        bytes[..8].copy_from_slice(&40i64.to_be_bytes());
        let placed = PlacedBatch::whole(Offset::new(40), batch);
        assert_eq!(PlacedBatch::read_all(bytes.clone().into()), Some(vec![placed]));
        assert_eq!(PlacedBatch::read_all(bytes.split_off(1).into()), None);
    }

    #[test]
    fn a_placed_batch_numbers_its_values() {
        let batch = Batch { first: FIRST, count: 2, kind: Kind::Plain };
        let placed = PlacedBatch::whole(Offset::new(40), batch);
        let seen: Vec<(i64, u32)> =
            placed.values().map(|(offset, value)| (offset.get(), value.sequence)).collect();
        assert_eq!(seen, [(40, 5), (41, 6)]);
        assert_eq!(placed.next_offset(), Offset::new(42));
    }
}
