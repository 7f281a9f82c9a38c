//! Batches of incompressible records that cost little to make: a full one is made once, and from
//! then on only its keys, times, sequence and checksum are changed, in place.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use meridian_protocol::records::{Batch, BatchBuilder, BatchError, BatchHeader, Record};

use crate::client::clock;
use crate::client::producer::ProducerIdentity;
use crate::failure::Failure;

/// Values are cut from this much noise: more than any compression looks back.
const NOISE_BYTES: usize = 1 << 20;
/// Where the checksum begins to cover a batch.
const CHECKSUM_FROM: usize = 21;
/// The time a record was due, at the start of its value: nanoseconds since the run began.
pub(super) const STAMP_BYTES: usize = size_of::<u64>();
/// Bytes of a record besides its value, at most.
const RECORD_OVERHEAD_BYTES: usize = 20;

/// Digits of a key.
const KEY_BYTES: usize = 10;

/// The keys of one partition, one after another and again: of all keys each partition has its share.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    count: u32,
    partition: u32,
    partitions_count: u32,
    next: u32,
}

impl Keys {
    /// Those of `count` that are in the first partition; there are at least as many as partitions.
    pub(super) fn new(count: u32, partitions_count: u32) -> Self {
        Self { count, partition: 0, partitions_count, next: 0 }
    }

    fn take(&mut self) -> [u8; KEY_BYTES] {
        let key = self.next;
        let after = key.checked_add(self.partitions_count);
        self.next = after.filter(|after| *after < self.count).unwrap_or(self.partition);
        digits(key)
    }
}

/// With zeros in front, so that all keys are of one size.
fn digits(mut number: u32) -> [u8; KEY_BYTES] {
    let mut digits = [b'0'; KEY_BYTES];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// Where a record's key, if it has one, and its value are.
#[derive(Debug, Clone, Copy)]
struct Place {
    key: usize,
    value: usize,
}

/// Makes batches of records of one size.
#[derive(Debug, Clone)]
pub(super) struct BatchMaker {
    epoch: Instant,
    noise: Bytes,
    size_bytes: usize,
    keys: Option<Keys>,
    full_count: u64,
    template: Bytes,
    /// Where in the template each record's parts are.
    places: Vec<Place>,
    /// Batches that were written, whose memory can be used again.
    spare: Vec<BytesMut>,
}

impl BatchMaker {
    /// Records of `size_bytes`, in batches of at most `batch_bytes`; `epoch` is when the run began. They
    /// have these keys, or none.
    pub(super) fn new(
        epoch: Instant,
        size_bytes: usize,
        batch_bytes: usize,
        keys: Option<Keys>,
    ) -> Result<Self, Failure> {
        let room = batch_bytes.saturating_sub(BatchHeader::SIZE_BYTES);
        let key_bytes = if keys.is_some() { KEY_BYTES } else { 0 };
        let record_bytes = size_bytes + key_bytes + RECORD_OVERHEAD_BYTES;
        let full_count = (room / record_bytes).max(1) as u64;
        let mut maker = Self {
            epoch,
            noise: noise(u64::from_ne_bytes(half(crate::sys::entropy()?)), size_bytes),
            size_bytes,
            keys,
            full_count,
            template: Bytes::new(),
            places: Vec::new(),
            spare: Vec::new(),
        };
        let records = std::iter::repeat_n(epoch, usize::try_from(full_count).unwrap_or(1));
        maker.template = maker.build(ProducerIdentity::NONE, -1, records);
        maker.places = places(&maker.template)
            .map_err(|error| Failure::Invalid(format!("a batch of this size: {error}")))?;
        Ok(maker)
    }

    /// A batch for another partition, with the keys of that one.
    pub(super) fn for_partition(&self, partition: u32) -> Self {
        let keys = self.keys.clone();
        let keys = keys.map(|keys| Keys { partition, next: partition, ..keys });
        Self { keys, ..self.clone() }
    }

    /// Records of a full batch.
    pub(super) fn full_count(&self) -> u64 {
        self.full_count
    }

    /// A batch of records that were due at these times.
    pub(super) fn build(
        &mut self,
        identity: ProducerIdentity,
        sequence: i32,
        due: impl Iterator<Item = Instant>,
    ) -> Bytes {
        let mut builder = BatchBuilder::new().producer(identity.id, identity.epoch, sequence);
        let time_ms = clock::wall_time_ms();
        let mut value = vec![0; self.size_bytes];
        for (index, due) in due.enumerate() {
            let from = index * self.size_bytes % (self.noise.len() - self.size_bytes + 1);
            value.copy_from_slice(&self.noise[from..from + self.size_bytes]);
            if let Some(stamp) = value.first_chunk_mut() {
                *stamp = self.stamp(due);
            }
            let key = self.keys.as_mut().map(Keys::take);
            builder.append(time_ms, key.as_ref().map(|key| &key[..]), Some(&value), &[]);
        }
        builder.build()
    }

    /// A full batch of records that are all due now.
    pub(super) fn full(
        &mut self,
        identity: ProducerIdentity,
        sequence: i32,
        due: Instant,
    ) -> Bytes {
        let mut batch = self.spare.pop().unwrap_or_else(|| BytesMut::from(&self.template[..]));
        let stamp = self.stamp(due);
        for &Place { key, value } in &self.places {
            batch[value..value + STAMP_BYTES].copy_from_slice(&stamp);
            if let Some(keys) = &mut self.keys {
                batch[key..key + KEY_BYTES].copy_from_slice(&keys.take());
            }
        }
        let Ok(mut header) = BatchHeader::parse(&self.template) else {
            return self.template.clone();
        };
        let time_ms = clock::wall_time_ms();
        header.base_timestamp_ms = time_ms;
        header.max_timestamp_ms = time_ms;
        header.producer_id = identity.id;
        header.producer_epoch = identity.epoch;
        header.base_sequence = sequence;
        batch[..BatchHeader::SIZE_BYTES].copy_from_slice(&header.to_bytes());
        header.crc = crc32c::crc32c(&batch[CHECKSUM_FROM..]);
        batch[..BatchHeader::SIZE_BYTES].copy_from_slice(&header.to_bytes());
        batch.freeze()
    }

    /// Takes back a batch that was written.
    pub(super) fn recycle(&mut self, batch: Bytes) {
        if batch.len() == self.template.len()
            && let Ok(batch) = batch.try_into_mut()
        {
            self.spare.push(batch);
        }
    }

    fn stamp(&self, due: Instant) -> [u8; STAMP_BYTES] {
        stamp(self.epoch, due)
    }
}

/// How a value says when its record was due.
pub(super) fn stamp(epoch: Instant, due: Instant) -> [u8; STAMP_BYTES] {
    let since = due.saturating_duration_since(epoch).as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX).to_be_bytes()
}

/// When a record was due, by its value.
pub(super) fn due(epoch: Instant, value: &[u8]) -> Option<Instant> {
    let stamp = value.first_chunk().copied().map(u64::from_be_bytes)?;
    epoch.checked_add(Duration::from_nanos(stamp))
}

fn places(batch: &Bytes) -> Result<Vec<Place>, BatchError> {
    let whole = Batch::produced(Some(batch.clone()))?;
    // Keys and values are slices of the batch itself.
    let at =
        |part: Option<Bytes>| part.map_or(0, |part| part.as_ptr().addr() - batch.as_ptr().addr());
    let place_of = |record: Record| Place { key: at(record.key), value: at(record.value) };
    whole.records(batch.len())?.map(|record| record.map(place_of)).collect()
}

fn half([a, b, c, d, e, f, g, h, ..]: [u8; 16]) -> [u8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// Bytes that no compression makes smaller.
fn noise(seed: u64, size_bytes: usize) -> Bytes {
    let mut state = seed | 1;
    let words = (NOISE_BYTES.max(size_bytes * 2) / size_of::<u64>()).max(1);
    let mut noise = BytesMut::with_capacity(words * size_of::<u64>());
    for _ in 0..words {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        noise.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    noise.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_batch_is_one_that_a_server_accepts() {
        let epoch = clock::now();
        let mut maker = BatchMaker::new(epoch, 100, 16 << 10, None).unwrap();
        let identity = ProducerIdentity { id: 9, epoch: 2 };
        let time = epoch + Duration::from_micros(1234);
        for sequence in [0, 500] {
            let bytes = maker.full(identity, sequence, time);
            assert!(bytes.len() <= 16 << 10);
            let batch = Batch::produced(Some(bytes.clone())).unwrap();
            let header = batch.header();
            assert_eq!((header.producer_id, header.producer_epoch), (9, 2));
            assert_eq!(header.base_sequence, sequence);
            assert_eq!(u64::from(header.records_count.unsigned_abs()), maker.full_count());
            for record in batch.records(1 << 20).unwrap() {
                let record = record.unwrap();
                let value = record.value.unwrap();
                assert_eq!((record.key, value.len()), (None, 100));
                assert_eq!(due(epoch, &value), Some(time));
            }
            drop(batch);
            maker.recycle(bytes);
            assert_eq!(maker.spare.len(), 1);
        }
    }

    #[test]
    fn every_record_of_a_built_batch_has_its_own_time() {
        let epoch = clock::now();
        let mut maker = BatchMaker::new(epoch, 8, 1 << 10, None).unwrap();
        let times = [epoch, epoch + Duration::from_nanos(7)];
        let bytes = maker.build(ProducerIdentity::NONE, -1, times.into_iter());
        let batch = Batch::produced(Some(bytes)).unwrap();
        let read: Vec<_> = batch
            .records(1 << 10)
            .unwrap()
            .map(|record| due(epoch, &record.unwrap().value.unwrap()).unwrap())
            .collect();
        assert_eq!(read, times);
    }

    #[test]
    fn keys_take_turns_through_batches_of_both_kinds() {
        let epoch = clock::now();
        // Of seven keys the second of three partitions has 1 and 4.
        let first = BatchMaker::new(epoch, 100, 500, Some(Keys::new(7, 3))).unwrap();
        let mut maker = first.for_partition(1);
        let keys_of = |bytes: &Bytes| -> Vec<String> {
            let batch = Batch::produced(Some(bytes.clone())).unwrap();
            let keys = batch.records(1 << 10).unwrap().map(|record| record.unwrap().key.unwrap());
            keys.map(|key| String::from_utf8(key.to_vec()).unwrap()).collect()
        };
        let (odd, even) = ("0000000001", "0000000004");
        assert_eq!(maker.full_count(), 3);
        let full = maker.full(ProducerIdentity::NONE, -1, epoch);
        assert!(full.len() <= 500);
        assert_eq!(keys_of(&full), [odd, even, odd]);
        maker.recycle(full);
        let two = [epoch; 2].into_iter();
        assert_eq!(keys_of(&maker.build(ProducerIdentity::NONE, -1, two)), [even, odd]);
        let again = maker.full(ProducerIdentity::NONE, -1, epoch);
        assert_eq!(keys_of(&again), [even, odd, even]);
        let last = Keys { next: u32::MAX - 1, ..Keys::new(u32::MAX, 3) }.take();
        assert_eq!(&last, b"4294967294");
    }
}
