//! Producers in a checkpoint. Numbers are variable-length, and relative to what is before them, so
//! that a producer takes about 50 bytes and not 103.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::codec::{DecodeError, Source};

use super::{BATCH_COUNT_MAX, Batch, NO_COORDINATOR, Producer, Producers};
use crate::compact::{number, put_number, put_signed, signed};

const FORMAT: u8 = 3;
/// Formats of fixed width: before there were transactions, and after.
const FORMAT_WITHOUT_COORDINATOR: u8 = 1;
const FORMAT_FIXED: u8 = 2;
/// Encoded size of a producer without batches, at least; of fixed width, and not.
const FIXED_SIZE_BYTES_MIN: usize = 8 + 2 + 8 + 1;
const SIZE_BYTES_MIN: usize = 6;

impl Producers {
    /// The state as a section of a checkpoint.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(5 + self.by_id.len() * 56);
        out.put_u8(FORMAT);
        out.put_u32(self.by_id.len() as u32);
        let mut last_id = 0;
        for (id, producer) in &self.by_id {
            put_number(&mut out, id.wrapping_sub(last_id).cast_unsigned());
            last_id = *id;
            put_number(&mut out, u64::from(producer.epoch.cast_unsigned()));
            put_signed(&mut out, i64::from(producer.coordinator_epoch));
            put_signed(&mut out, producer.last_timestamp_ms);
            put_signed(&mut out, producer.last_seen_ms.wrapping_sub(producer.last_timestamp_ms));
            out.put_u8(producer.batch_count);
            let mut before = Batch { last_sequence: -1, ..Batch::NONE };
            for batch in producer.batches() {
                put_batch(&mut out, batch, &before);
                before = *batch;
            }
        }
        out.freeze()
    }

    /// Reads a section of a checkpoint.
    pub fn decode(section: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(section, "producers in a checkpoint");
        let mut last_id = 0i64;
        let producers = match source.u8()? {
            FORMAT => source.list(SIZE_BYTES_MIN, |source| {
                last_id = last_id.wrapping_add(number(source)?.cast_signed());
                Ok((last_id, Box::new(producer(source)?)))
            })?,
            format @ (FORMAT_WITHOUT_COORDINATOR | FORMAT_FIXED) => source
                .list(FIXED_SIZE_BYTES_MIN, |source| {
                    Ok((source.i64()?, Box::new(fixed_producer(source, format)?)))
                })?,
            unknown => return Err(source.invalid("format", u64::from(unknown))),
        };
        source.finish()?;
        Ok(Self { by_id: producers.into_iter().collect(), now_ms: 0 })
    }
}

/// Mostly three bytes: the next sequence is the expected one, and the offset is not far.
fn put_batch(out: &mut BytesMut, batch: &Batch, before: &Batch) {
    let expected = before.last_sequence.wrapping_add(1);
    put_number(out, sequence_distance(expected, batch.base_sequence));
    put_number(out, sequence_distance(batch.base_sequence, batch.last_sequence));
    put_signed(out, batch.base_offset.get().wrapping_sub(before.base_offset.get()));
}

/// Sequences wrap from 2^31 - 1 to 0.
fn sequence_distance(from: i32, to: i32) -> u64 {
    (i64::from(to.wrapping_sub(from)) & i64::from(i32::MAX)).cast_unsigned()
}

fn sequence_after(source: &mut Source, from: i32) -> Result<i32, DecodeError> {
    let distance = number(source)?;
    match i32::try_from(distance) {
        Ok(distance) => Ok(from.wrapping_add(distance) & i32::MAX),
        Err(_) => Err(source.invalid("sequence", distance)),
    }
}

fn producer(source: &mut Source) -> Result<Producer, DecodeError> {
    let epoch = number(source)?;
    let epoch = u16::try_from(epoch).map_err(|_| source.invalid("epoch", epoch))?;
    let coordinator_epoch = signed(source)?;
    let coordinator_epoch = i32::try_from(coordinator_epoch)
        .map_err(|_| source.invalid("coordinator epoch", coordinator_epoch.cast_unsigned()))?;
    let last_timestamp_ms = signed(source)?;
    let last_seen_ms = last_timestamp_ms.wrapping_add(signed(source)?);
    let mut producer = Producer {
        epoch: epoch.cast_signed(),
        batch_count: 0,
        coordinator_epoch,
        last_timestamp_ms,
        last_seen_ms,
        batches: [Batch::NONE; BATCH_COUNT_MAX],
    };
    let mut before = Batch { last_sequence: -1, ..Batch::NONE };
    for _ in 0..batch_count(source)? {
        let base_sequence = sequence_after(source, before.last_sequence.wrapping_add(1))?;
        let last_sequence = sequence_after(source, base_sequence)?;
        let base_offset = before.base_offset.get().wrapping_add(signed(source)?);
        before = Batch { base_sequence, last_sequence, base_offset: Offset::new(base_offset) };
        producer.push(before);
    }
    Ok(producer)
}

fn fixed_producer(source: &mut Source, format: u8) -> Result<Producer, DecodeError> {
    let epoch = source.u16()?.cast_signed();
    let has_coordinator = format != FORMAT_WITHOUT_COORDINATOR;
    let coordinator_epoch = if has_coordinator { source.i32()? } else { NO_COORDINATOR };
    let last_timestamp_ms = source.i64()?;
    let mut producer = Producer {
        epoch,
        batch_count: 0,
        coordinator_epoch,
        last_timestamp_ms,
        last_seen_ms: last_timestamp_ms,
        batches: [Batch::NONE; BATCH_COUNT_MAX],
    };
    for _ in 0..batch_count(source)? {
        producer.push(Batch {
            base_sequence: source.i32()?,
            last_sequence: source.i32()?,
            base_offset: Offset::new(source.i64()?),
        });
    }
    Ok(producer)
}

fn batch_count(source: &mut Source) -> Result<u8, DecodeError> {
    let count = source.u8()?;
    if usize::from(count) > BATCH_COUNT_MAX {
        return Err(source.invalid("batch count", u64::from(count)));
    }
    Ok(count)
}
