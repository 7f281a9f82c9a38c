//! Batches of persistent sources: real records, whose headers number them for good.
//!
//! The values of a batch are dense. What the log holds of it may have holes, or be nothing at all.

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_broker::partition::RecordBatch;
use meridian_broker::partition::source::{PRODUCER_ID_HEADER, SEQNO_HEADER, SourcedBatch};
use meridian_broker::producer::Sequenced;
use meridian_protocol::records::{self, BatchBuilder, BatchHeader};

use crate::value::{Batch, Kind, PlacedBatch, Value};

/// An idempotent producer in one life of a source's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its producer id, which no other life has.
    pub producer_id: i64,
    /// Sequence number of the batch's first record.
    pub base_sequence: i32,
}

/// The batch as a client sends it. Without a session it is not idempotent.
///
/// # Panics
///
/// If the batch has no values.
pub fn to_record_batch(batch: Batch, session: Option<Session>) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    if let Some(Session { producer_id, base_sequence }) = session {
        builder = builder.producer(producer_id, 0, base_sequence);
    }
    let source = batch.first.producer.to_string();
    for value in batch.values() {
        let seqno = value.sequence.to_string();
        let headers =
            [(PRODUCER_ID_HEADER, Some(source.as_bytes())), (SEQNO_HEADER, Some(seqno.as_bytes()))];
        builder.append(0, Some(&value.producer.to_be_bytes()), None, &headers);
    }
    let bytes = builder.build();
    let read = records::Batch::produced(Some(bytes.clone())).expect("a batch of ours");
    let sequenced = session.map(|session| Sequenced {
        producer_id: session.producer_id,
        epoch: 0,
        base_sequence: session.base_sequence,
        record_count: batch.count,
        max_timestamp_ms: 0,
    });
    RecordBatch {
        bytes,
        record_count: batch.count,
        max_timestamp_ms: 0,
        sequenced,
        transaction: None,
        sourced: Some(SourcedBatch::produced(&read, 0).expect("records of ours")),
    }
}

/// Takes a source's batch off the front of what a leader serves; `None` if another is there.
pub fn split_off(bytes: &mut Bytes) -> Option<PlacedBatch> {
    let header = BatchHeader::parse(bytes).ok()?;
    let dense = header.records_count == header.last_offset_delta + 1;
    let is_bare = header.size_bytes == BatchHeader::SIZE_BYTES && dense;
    if is_bare || header.attributes.is_control() {
        return None;
    }
    let count = u32::try_from(header.last_offset_delta + 1).ok().filter(|count| *count < 64)?;
    let read = records::batches(bytes.clone()).next()?.ok()?;
    let mut first = Value { producer: 0, epoch: Value::SOURCED, sequence: 0 };
    let mut holes = (1u64 << count) - 1;
    for record in read.records(1 << 16).ok()? {
        let record = record.ok()?;
        let delta = u32::try_from(record.offset - header.base_offset).ok()?;
        let seqno =
            record.headers.get(1)?.value.as_deref().and_then(|it| std::str::from_utf8(it).ok())?;
        first.producer = u32::from_be_bytes(record.key?[..].try_into().ok()?);
        first.sequence = seqno.parse::<u32>().ok()?.checked_sub(delta)?;
        holes &= !(1 << delta);
    }
    let _served = bytes.split_to(header.size_bytes);
    let base_offset = Offset::new(header.base_offset);
    Some(PlacedBatch { base_offset, batch: Batch { first, count, kind: Kind::Plain }, holes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Value = Value { producer: 70_000, epoch: Value::SOURCED, sequence: 5 };

    #[test]
    fn a_batch_is_read_back_with_its_holes() {
        let batch = Batch { first: FIRST, count: 3, kind: Kind::Plain };
        let session = Session { producer_id: 9, base_sequence: 2 };
        let sent = to_record_batch(batch, Some(session)).bytes;
        let whole = PlacedBatch::whole(Offset::ZERO, batch);
        assert_eq!(PlacedBatch::read_all(sent.clone()), Some(vec![whole]));
        let read = records::batches(sent.clone()).next().unwrap().unwrap();
        let left = read.raw_records(1000).unwrap().filtered(|index| index != 1).unwrap();
        let holed = PlacedBatch { holes: 0b010, ..whole };
        let both = Bytes::from([&left[..], &sent[..]].concat());
        assert_eq!(PlacedBatch::read_all(both), Some(vec![holed, whole]));
        let seen: Vec<(i64, u32)> =
            holed.values().map(|(offset, value)| (offset.get(), value.sequence)).collect();
        assert_eq!(seen, [(0, 5), (2, 7)]);
        let empty = read.raw_records(1000).unwrap().filtered(|_| false).unwrap();
        let empty = PlacedBatch::read_all(empty).unwrap();
        assert_eq!((empty[0].values().count(), empty[0].next_offset()), (0, Offset::new(3)));
    }
}
