//! Idempotent producers of one partition: which batches are new, which are repeats.
//!
//! The state is a function of the log (rules T9, 44): it changes only when a batch is appended, and
//! a new leader rebuilds it from a checkpoint and the batches after it. As Kafka does, it remembers
//! the last five batches of each producer (KIP-98, KIP-360).
//!
//! | | Apache Kafka 4 | here |
//! | --- | --- | --- |
//! | same epoch, one of the last five batches | duplicate | duplicate |
//! | same epoch, follows the last | appended | appended |
//! | same epoch, anything else | `OUT_OF_ORDER_SEQUENCE_NUMBER` | the same |
//! | newer epoch, sequence 0 / other | appended / `OUT_OF_ORDER_SEQUENCE_NUMBER` | the same |
//! | older epoch | `INVALID_PRODUCER_EPOCH` | the same |
//! | unknown producer, sequence 0 | appended | appended |
//! | unknown producer, other sequence | appended, whatever it is | appended where nothing of it can be missing or forgotten, else `UNKNOWN_PRODUCER_ID` (rule P1) |
//! | silent for `producer.id.expiration.ms`, a day | forgotten, by the times of its records | forgotten, by the leader's clock |
//!
//! Kafka takes whatever an unknown producer sends, and so may append a batch twice, or after a gap,
//! when state was lost. Clients recover from `UNKNOWN_PRODUCER_ID` by a new epoch, or end
//! (librdkafka). [`Partition`](crate::partition::Partition) knows where nothing was. The clock is
//! the leader's because record times are the client's: whoever copies records of last week must not
//! be forgotten between two batches. Only the time is not a function of the log; replay takes its
//! own.

mod codec;

use std::collections::BTreeMap;

use meridian_base::position::Offset;

/// Batches remembered per producer: as many as a Kafka client may have in flight.
const BATCH_COUNT_MAX: usize = 5;
/// The coordinator epoch of a producer that never ended a transaction here.
const NO_COORDINATOR: i32 = -1;
/// Producers kept when some must go: what they take in a checkpoint fits in a frame with the rest.
const PRODUCER_COUNT_MAX: usize = 120_000;

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
    /// Nothing is known of the producer, so its order can't be judged (rule P1).
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

impl Batch {
    const NONE: Self = Self { base_sequence: 0, last_sequence: 0, base_offset: Offset::UNKNOWN };
}

/// 104 bytes, in one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    /// How many of `batches` there are.
    batch_count: u8,
    /// Of the coordinator that ended its last transaction here.
    coordinator_epoch: i32,
    last_timestamp_ms: i64,
    /// When the leader heard of it last.
    last_seen_ms: i64,
    /// The last ones with this epoch, the oldest first.
    batches: [Batch; BATCH_COUNT_MAX],
}

impl Producer {
    fn batches(&self) -> &[Batch] {
        self.batches.get(..usize::from(self.batch_count)).unwrap_or_default()
    }

    fn last_sequence(&self) -> i32 {
        self.batches().last().map_or(-1, |last| last.last_sequence)
    }

    fn push(&mut self, batch: Batch) {
        if usize::from(self.batch_count) == BATCH_COUNT_MAX {
            self.batches.rotate_left(1);
            self.batch_count -= 1;
        }
        if let Some(place) = self.batches.get_mut(usize::from(self.batch_count)) {
            *place = batch;
            self.batch_count += 1;
        }
    }

    fn forget_batches(&mut self) {
        self.batch_count = 0;
        self.batches = [Batch::NONE; BATCH_COUNT_MAX];
    }
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

/// All producers of one partition: about 150 bytes of memory each, and 50 in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    /// Boxed, as the nodes of the tree are half empty.
    by_id: BTreeMap<i64, Box<Producer>>,
    /// The leader's wall clock, as it was told last.
    now_ms: i64,
}

impl Producers {
    /// What one takes in a checkpoint at most.
    pub(crate) const SIZE_BYTES_MAX: usize = 142;

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
        let last = producer.last_sequence();
        if batch.epoch > producer.epoch {
            return if batch.base_sequence == 0 {
                Ok(Verdict::New)
            } else {
                Err(SequenceError::OutOfOrder { found: batch.base_sequence, last: -1 })
            };
        }
        let repeated = producer.batches().iter().find(|known| {
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
            last_sequence: producer.last_sequence(),
            last_timestamp_ms: producer.last_timestamp_ms,
        })
    }

    /// Base offset of each producer's last batch.
    pub fn last_batches(&self) -> impl Iterator<Item = (i64, Offset)> {
        let last = |producer: &Producer| producer.batches().last().map(|last| last.base_offset);
        self.by_id.iter().filter_map(move |(id, producer)| Some((*id, last(producer)?)))
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
        let now_ms = self.now_ms;
        let new = || Producer {
            epoch,
            batch_count: 0,
            coordinator_epoch: NO_COORDINATOR,
            last_timestamp_ms: timestamp_ms,
            last_seen_ms: now_ms,
            batches: [Batch::NONE; BATCH_COUNT_MAX],
        };
        let producer = self.by_id.entry(producer_id).or_insert_with(|| Box::new(new()));
        if epoch != producer.epoch {
            producer.epoch = epoch;
            producer.forget_batches();
        }
        producer.last_seen_ms = producer.last_seen_ms.max(now_ms);
        producer
    }

    /// Records an appended batch: by the leader that checked it, on replay, and on a mirror.
    pub fn apply(&mut self, batch: &Sequenced, base_offset: Offset) {
        let producer = self.entry(batch.producer_id, batch.epoch, batch.max_timestamp_ms);
        producer.push(Batch {
            base_sequence: batch.base_sequence,
            last_sequence: batch.last_sequence(),
            base_offset,
        });
        producer.last_timestamp_ms = producer.last_timestamp_ms.max(batch.max_timestamp_ms);
    }

    /// A copy that knows only the producer of `batch`.
    pub fn only(&self, batch: &Sequenced) -> Self {
        let own = self.by_id.get(&batch.producer_id);
        let by_id = own.map(|own| (batch.producer_id, own.clone())).into_iter().collect();
        Self { by_id, now_ms: self.now_ms }
    }

    /// Sets the time: what comes from now on was seen then.
    pub fn set_time(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    /// The time, as it was told last; -1 while it is not known.
    pub fn now_ms(&self) -> i64 {
        if self.now_ms == i64::MAX { -1 } else { self.now_ms }
    }

    /// What was seen later than now, by a clock that was ahead or before the time was known, was seen
    /// now.
    pub fn see_no_later(&mut self) {
        for producer in self.by_id.values_mut() {
            producer.last_seen_ms = producer.last_seen_ms.min(self.now_ms);
        }
    }

    /// Forgets producers that were last seen before `time_ms`, and the longest silent ones of too
    /// many; never those that `is_needed`, as they have a transaction open.
    pub fn expire(&mut self, time_ms: i64, is_needed: impl Fn(i64) -> bool) {
        self.keep(time_ms, PRODUCER_COUNT_MAX, is_needed);
    }

    /// Forgets those seen least lately until the others take no more than this in a checkpoint.
    pub fn shrink(&mut self, size_bytes_max: usize, is_needed: impl Fn(i64) -> bool) {
        while self.count() * Self::SIZE_BYTES_MAX > size_bytes_max {
            let size_bytes = self.encode().len();
            if size_bytes <= size_bytes_max {
                return;
            }
            let count = self.count();
            // At least one goes: those that stay may be the larger ones.
            let count_max = (count * size_bytes_max / size_bytes).min(count - 1);
            self.keep(i64::MIN, count_max, &is_needed);
            if self.count() == count {
                return;
            }
        }
    }

    fn keep(&mut self, time_ms: i64, count_max: usize, is_needed: impl Fn(i64) -> bool) {
        let mut before_ms = time_ms;
        if let Some(excess) = self.by_id.len().checked_sub(count_max).filter(|it| *it > 0) {
            let mut seen: Vec<i64> = self.by_id.values().map(|it| it.last_seen_ms).collect();
            let (_, youngest_ms, _) = seen.select_nth_unstable(excess - 1);
            before_ms = before_ms.max(youngest_ms.saturating_add(1));
        }
        self.by_id.retain(|id, producer| producer.last_seen_ms >= before_ms || is_needed(*id));
    }

    /// Whether there is state of this producer.
    pub fn knows(&self, producer_id: i64) -> bool {
        self.by_id.contains_key(&producer_id)
    }

    /// Number of producers known.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests;
