//! Idempotent producers of one partition: which batches are new, which are repeats.
//!
//! The state is a function of the log (rules T9, 44): it changes only when a batch is appended, and
//! a new leader rebuilds it from a checkpoint and the batches after it. As Kafka does, it remembers
//! the last five batches of each producer (KIP-98, KIP-360).

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::codec::{DecodeError, Source};

/// Batches remembered per producer: as many as a Kafka client may have in flight.
const BATCH_COUNT_MAX: usize = 5;
const CHECKPOINT_FORMAT: u8 = 2;
/// The format before there were transactions.
const CHECKPOINT_FORMAT_WITHOUT_COORDINATOR: u8 = 1;
/// The coordinator epoch of a producer that never ended a transaction here.
const NO_COORDINATOR: i32 = -1;
/// Encoded size of a producer without batches, at least, and of a batch.
const PRODUCER_SIZE_BYTES: usize = 8 + 2 + 8 + 1;
const COORDINATOR_EPOCH_SIZE_BYTES: usize = 4;
const BATCH_SIZE_BYTES: usize = 4 + 4 + 8;

/// Who wrote a batch, and where it stands in that producer's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequenced {
    /// The producer id.
    pub producer_id: i64,
    /// The producer's epoch.
    pub epoch: i16,
    /// Sequence number of the first record.
    pub base_sequence: i32,
    /// Number of records.
    pub record_count: u32,
    /// Largest timestamp of the batch, for expiry by log time.
    pub max_timestamp_ms: i64,
}

impl Sequenced {
    fn last_sequence(&self) -> i32 {
        let last = i64::from(self.base_sequence) + i64::from(self.record_count.max(1)) - 1;
        (last & i64::from(i32::MAX)) as i32
    }
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Append it.
    New,
    /// It is in the log already, from this offset on; acknowledge when that is committed (rule 45).
    Duplicate {
        /// Offset of its first record.
        base_offset: Offset,
    },
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// A newer instance of the producer has written here.
    #[error("producer epoch {epoch} is older than {current}; another instance took over")]
    OldEpoch {
        /// The batch's epoch.
        epoch: i16,
        /// The epoch in force.
        current: i16,
    },
    /// The batch does not follow the producer's last one.
    #[error("sequence {found} does not follow {last}; a batch before it is missing")]
    OutOfOrder {
        /// The batch's first sequence.
        found: i32,
        /// The last one in the log.
        last: i32,
    },
    /// Nothing is known of the producer, so its order can't be judged (rule 46).
    #[error("producer {producer_id} is not known here; it must begin again with a new epoch")]
    UnknownProducer {
        /// The producer.
        producer_id: i64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    base_sequence: i32,
    last_sequence: i32,
    base_offset: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    /// Of the coordinator that ended its last transaction here.
    coordinator_epoch: i32,
    last_timestamp_ms: i64,
    batches: VecDeque<Batch>,
}

/// One producer, as it is described to operators (KIP-664).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerDescription {
    /// Its id.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The coordinator epoch of its last marker; -1 if it has none.
    pub coordinator_epoch: i32,
    /// Sequence number of its last record; -1 if it wrote none with this epoch.
    pub last_sequence: i32,
    /// Largest timestamp of its batches and markers.
    pub last_timestamp_ms: i64,
}

/// All producers of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    by_id: BTreeMap<i64, Producer>,
}

impl Producers {
    /// Judges a batch; changes nothing.
    pub fn check(&self, batch: &Sequenced) -> Result<Verdict, SequenceError> {
        let Some(producer) = self.by_id.get(&batch.producer_id) else {
            return if batch.base_sequence == 0 {
                Ok(Verdict::New)
            } else {
                Err(SequenceError::UnknownProducer { producer_id: batch.producer_id })
            };
        };
        self.check_epoch(batch.producer_id, batch.epoch)?;
        let last = producer.batches.back().map_or(-1, |last| last.last_sequence);
        if batch.epoch > producer.epoch {
            return if batch.base_sequence == 0 {
                Ok(Verdict::New)
            } else {
                Err(SequenceError::OutOfOrder { found: batch.base_sequence, last: -1 })
            };
        }
        let repeated = producer.batches.iter().find(|known| {
            known.base_sequence == batch.base_sequence
                && known.last_sequence == batch.last_sequence()
        });
        if let Some(repeated) = repeated {
            return Ok(Verdict::Duplicate { base_offset: repeated.base_offset });
        }
        // Sequences wrap from 2^31 - 1 to 0.
        let follows = if last == i32::MAX { 0 } else { last + 1 };
        if batch.base_sequence == follows {
            Ok(Verdict::New)
        } else {
            Err(SequenceError::OutOfOrder { found: batch.base_sequence, last })
        }
    }

    /// Refuses an epoch that is older than the one in force.
    pub fn check_epoch(&self, producer_id: i64, epoch: i16) -> Result<(), SequenceError> {
        match self.by_id.get(&producer_id).map(|producer| producer.epoch) {
            Some(current) if epoch < current => Err(SequenceError::OldEpoch { epoch, current }),
            Some(_) | None => Ok(()),
        }
    }

    /// The epoch of the coordinator that ended the producer's last transaction here, or -1.
    pub fn coordinator_epoch(&self, producer_id: i64) -> i32 {
        self.by_id.get(&producer_id).map_or(NO_COORDINATOR, |producer| producer.coordinator_epoch)
    }

    /// All producers, by id.
    pub fn describe(&self) -> impl Iterator<Item = ProducerDescription> {
        self.by_id.iter().map(|(producer_id, producer)| ProducerDescription {
            producer_id: *producer_id,
            epoch: producer.epoch,
            coordinator_epoch: producer.coordinator_epoch,
            last_sequence: producer.batches.back().map_or(-1, |last| last.last_sequence),
            last_timestamp_ms: producer.last_timestamp_ms,
        })
    }

    /// Records an epoch that came without a numbered batch: in a marker, or in a batch of a group
    /// coordinator. A new one begins at sequence 0.
    pub fn note_epoch(&mut self, producer_id: i64, epoch: i16, timestamp_ms: i64) {
        let producer = self.entry(producer_id, epoch, timestamp_ms);
        producer.last_timestamp_ms = producer.last_timestamp_ms.max(timestamp_ms);
    }

    /// Records who ended the producer's transaction.
    pub fn note_coordinator(&mut self, producer_id: i64, coordinator_epoch: i32) {
        if let Some(producer) = self.by_id.get_mut(&producer_id) {
            producer.coordinator_epoch = producer.coordinator_epoch.max(coordinator_epoch);
        }
    }

    /// The producer, in this epoch.
    fn entry(&mut self, producer_id: i64, epoch: i16, timestamp_ms: i64) -> &mut Producer {
        let producer = self.by_id.entry(producer_id).or_insert_with(|| Producer {
            epoch,
            coordinator_epoch: NO_COORDINATOR,
            last_timestamp_ms: timestamp_ms,
            batches: VecDeque::new(),
        });
        if epoch != producer.epoch {
            producer.epoch = epoch;
            producer.batches.clear();
        }
        producer
    }

    /// Records an appended batch: by the leader that checked it, on replay, and on a mirror.
    pub fn apply(&mut self, batch: &Sequenced, base_offset: Offset) {
        let producer = self.entry(batch.producer_id, batch.epoch, batch.max_timestamp_ms);
        if producer.batches.len() == BATCH_COUNT_MAX {
            producer.batches.pop_front();
        } else if producer.batches.is_empty() {
            producer.batches.reserve_exact(BATCH_COUNT_MAX);
        }
        producer.batches.push_back(Batch {
            base_sequence: batch.base_sequence,
            last_sequence: batch.last_sequence(),
            base_offset,
        });
        producer.last_timestamp_ms = producer.last_timestamp_ms.max(batch.max_timestamp_ms);
    }

    /// A copy that knows only the producer of `batch`.
    pub fn only(&self, batch: &Sequenced) -> Self {
        let own = self.by_id.get(&batch.producer_id);
        Self { by_id: own.map(|own| (batch.producer_id, own.clone())).into_iter().collect() }
    }

    /// Forgets producers whose last batch is older than `timestamp_ms`.
    pub fn expire(&mut self, timestamp_ms: i64) {
        self.by_id.retain(|_, producer| producer.last_timestamp_ms >= timestamp_ms);
    }

    /// Number of producers known.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// The state as the payload of a checkpoint blob.
    pub fn encode(&self) -> Bytes {
        let batch_count: usize = self.by_id.values().map(|producer| producer.batches.len()).sum();
        let producer_size_bytes = PRODUCER_SIZE_BYTES + COORDINATOR_EPOCH_SIZE_BYTES;
        let size_bytes =
            5 + self.by_id.len() * producer_size_bytes + batch_count * BATCH_SIZE_BYTES;
        let mut out = BytesMut::with_capacity(size_bytes);
        out.put_u8(CHECKPOINT_FORMAT);
        out.put_u32(self.by_id.len() as u32);
        for (producer_id, producer) in &self.by_id {
            out.put_i64(*producer_id);
            out.put_i16(producer.epoch);
            out.put_i32(producer.coordinator_epoch);
            out.put_i64(producer.last_timestamp_ms);
            out.put_u8(producer.batches.len() as u8);
            for batch in &producer.batches {
                out.put_i32(batch.base_sequence);
                out.put_i32(batch.last_sequence);
                out.put_i64(batch.base_offset.get());
            }
        }
        out.freeze()
    }

    /// Reads the payload of a checkpoint blob.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(payload, "producer checkpoint");
        let format = source.u8()?;
        if !(CHECKPOINT_FORMAT_WITHOUT_COORDINATOR..=CHECKPOINT_FORMAT).contains(&format) {
            return Err(source.invalid("format", u64::from(format)));
        }
        let producers = source.list(PRODUCER_SIZE_BYTES, |source| {
            let producer_id = source.i64()?;
            let epoch = source.u16()? as i16;
            let coordinator_epoch = if format == CHECKPOINT_FORMAT_WITHOUT_COORDINATOR {
                NO_COORDINATOR
            } else {
                source.i32()?
            };
            let last_timestamp_ms = source.i64()?;
            let batch_count = usize::from(source.u8()?);
            if batch_count > BATCH_COUNT_MAX {
                return Err(source.invalid("batch count", batch_count as u64));
            }
            let mut batches = VecDeque::with_capacity(batch_count);
            for _ in 0..batch_count {
                batches.push_back(Batch {
                    base_sequence: source.i32()?,
                    last_sequence: source.i32()?,
                    base_offset: Offset::new(source.i64()?),
                });
            }
            let producer = Producer { epoch, coordinator_epoch, last_timestamp_ms, batches };
            Ok((producer_id, producer))
        })?;
        source.finish()?;
        Ok(Self { by_id: producers.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn batch(epoch: i16, base_sequence: i32, record_count: u32) -> Sequenced {
        Sequenced { producer_id: 7, epoch, base_sequence, record_count, max_timestamp_ms: 100 }
    }

    fn with(batches: &[Sequenced]) -> Producers {
        let mut producers = Producers::default();
        let mut offset = Offset::ZERO;
        for batch in batches {
            assert_eq!(producers.check(batch), Ok(Verdict::New));
            producers.apply(batch, offset);
            offset = offset.advance(batch.record_count);
        }
        producers
    }

    #[test]
    fn a_repeat_of_the_last_five_gets_its_own_offset() {
        let batches: Vec<Sequenced> = (0..6).map(|n| batch(0, n * 10, 10)).collect();
        let producers = with(&batches);
        for (n, batch) in batches.iter().enumerate().skip(1) {
            let base_offset = Offset::new(n as i64 * 10);
            assert_eq!(producers.check(batch), Ok(Verdict::Duplicate { base_offset }));
        }
        let forgotten = producers.check(&batches[0]);
        assert_eq!(forgotten, Err(SequenceError::OutOfOrder { found: 0, last: 59 }));
    }

    #[test]
    fn a_gap_is_out_of_order() {
        let producers = with(&[batch(0, 0, 10)]);
        let error = SequenceError::OutOfOrder { found: 11, last: 9 };
        assert_eq!(producers.check(&batch(0, 11, 1)), Err(error));
    }

    #[test]
    fn an_unknown_producer_must_begin_at_zero() {
        let producers = Producers::default();
        let error = SequenceError::UnknownProducer { producer_id: 7 };
        assert_eq!(producers.check(&batch(0, 5, 1)), Err(error));
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_fences_the_old() {
        let mut producers = with(&[batch(0, 0, 10)]);
        assert!(matches!(producers.check(&batch(1, 10, 1)), Err(SequenceError::OutOfOrder { .. })));
        assert_eq!(producers.check(&batch(1, 0, 1)), Ok(Verdict::New));
        producers.apply(&batch(1, 0, 1), Offset::new(10));
        let error = SequenceError::OldEpoch { epoch: 0, current: 1 };
        assert_eq!(producers.check(&batch(0, 10, 1)), Err(error));
    }

    #[test]
    fn sequences_wrap_to_zero() {
        let mut producers = Producers::default();
        producers.apply(&batch(0, i32::MAX - 9, 10), Offset::ZERO);
        assert_eq!(producers.check(&batch(0, 0, 3)), Ok(Verdict::New));
        let mut over = Producers::default();
        over.apply(&batch(0, i32::MAX - 4, 10), Offset::ZERO);
        assert_eq!(over.check(&batch(0, 5, 1)), Ok(Verdict::New));
    }

    proptest! {
        #[test]
        fn a_checkpoint_plus_replay_is_the_state(
            history in prop::collection::vec((0i64..4, 0i16..3, 1u32..5), 0..60),
            cut in 0usize..60,
        ) {
            let mut direct = Producers::default();
            let mut next = BTreeMap::new();
            let mut resumed = Producers::default();
            for (index, (producer_id, epoch, record_count)) in history.iter().enumerate() {
                if index == cut {
                    resumed = Producers::decode(direct.encode()).expect("own encoding");
                }
                let base_sequence = *next.get(&(*producer_id, *epoch)).unwrap_or(&0);
                let batch = Sequenced {
                    producer_id: *producer_id,
                    epoch: *epoch,
                    base_sequence,
                    record_count: *record_count,
                    max_timestamp_ms: index as i64,
                };
                if direct.check(&batch) != Ok(Verdict::New) {
                    continue;
                }
                next.insert((*producer_id, *epoch), base_sequence + *record_count as i32);
                let offset = Offset::new(index as i64 * 10);
                direct.apply(&batch, offset);
                if index >= cut {
                    resumed.apply(&batch, offset);
                }
            }
            if cut < history.len() {
                prop_assert_eq!(direct, resumed);
            }
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _outcome = Producers::decode(bytes.into());
        }
    }
}
