//! What a blob holds, and what becomes of what does not fit (rules Z1 to Z3).

use super::*;

const BLOB_SIZE_BYTES_MAX: usize = SizeLimits::SMALL.blob_size_bytes_max;
const TEN_MINUTES_MS: i64 = 10 * 60 * 1000;

/// A batch of one record with a value of this size.
fn plain(value_size_bytes: usize, timestamp_ms: i64) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    builder.append(timestamp_ms, None, Some(&vec![7; value_size_bytes]), &[]);
    RecordBatch {
        bytes: builder.build(),
        record_count: 1,
        max_timestamp_ms: timestamp_ms,
        sequenced: None,
        transaction: None,
        sourced: None,
    }
}

/// A batch of one record of this producer, in a transaction of its own.
fn transactional(producer_id: i64) -> RecordBatch {
    let mut builder = BatchBuilder::new().producer(producer_id, 0, 0).transactional();
    builder.append(1000, None, Some(&[0; 10]), &[]);
    let (epoch, base_sequence, record_count, max_timestamp_ms) = (0, 0, 1, 1000);
    let version = TransactionVersion::V1;
    let transactional_id = "payments".into();
    let producer_epoch = epoch;
    RecordBatch {
        bytes: builder.build(),
        record_count,
        max_timestamp_ms,
        sequenced: Some(Sequenced {
            producer_id,
            epoch,
            base_sequence,
            record_count,
            max_timestamp_ms,
        }),
        transaction: Some(InTransaction { transactional_id, producer_id, producer_epoch, version }),
        sourced: None,
    }
}

impl Bench {
    /// One with a broken rule, if this build can break any.
    pub(super) fn broken(mutation: Mutation) -> Option<Self> {
        let mutations = Mutations(Some(mutation));
        mutation.active(mutations).then(|| Self::with(SizeLimits::SMALL, mutations))
    }

    fn produce_all(&mut self, waiter: u32, batches: Vec<RecordBatch>) {
        let mut out = Vec::new();
        self.partition.produce(Instant::ZERO, &self.health, batches, waiter, &mut out);
        self.take(out);
    }

    /// Stores what is put; the largest payload of it.
    fn store_and_measure(&mut self) -> usize {
        let mut largest = 0;
        while let Some(put) = self.puts.front() {
            largest = largest.max(put.blob.payload.size_bytes());
            self.store_one();
        }
        largest
    }

    /// Opens a transaction and aborts it.
    fn abort(&mut self, producer_id: i64) -> Result<i64, ProduceError> {
        self.produce(1, transactional(producer_id));
        self.verify_all(Ok(()));
        self.store_and_measure();
        let (_, opened) = self.answers().pop().expect("an answer");
        opened?;
        let marker = Marker {
            producer_id,
            producer_epoch: 0,
            coordinator_epoch: 1,
            commit: false,
            version: TransactionVersion::V1,
            number: 0,
        };
        let mut out = Vec::new();
        self.partition.write_marker(Instant::ZERO, &self.health, &marker, 2000, 2, &mut out);
        self.take(out);
        self.store_and_measure();
        let (_, aborted) = self.answers().pop().expect("an answer");
        aborted
    }

    fn trim(&mut self, before: i64) -> Result<(), ProduceError> {
        let before = Offset::new(before);
        let mut out = Vec::new();
        let trimmed = self.partition.trim(Instant::ZERO, &self.health, before, &mut out);
        self.take(out);
        trimmed
    }
}

#[test]
fn a_request_that_no_blob_holds_becomes_several() {
    let request = || (0..40).map(|n| plain(1000, n)).collect::<Vec<_>>();
    let mut bench = Bench::new();
    bench.produce_all(1, request());
    let (count, largest) = (bench.puts.len(), bench.store_and_measure());
    assert!(count >= 3 && largest <= BLOB_SIZE_BYTES_MAX, "{count} blobs, the largest {largest}");
    assert_eq!(bench.answers(), [(1, Ok(0))]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(40));
    bench.produce(2, plain(10, 50));
    bench.store_all();
    assert_eq!(bench.answers(), [(2, Ok(40))]);

    if let Some(mut broken) = Bench::broken(Mutation::BatchesUnsplit) {
        broken.produce_all(1, request());
        assert!(broken.store_and_measure() > BLOB_SIZE_BYTES_MAX, "the test would see it");
    }
}

#[test]
fn a_batch_that_no_blob_holds_is_refused_before_it_has_an_offset() {
    let mut bench = Bench::new();
    let batch = plain(BLOB_SIZE_BYTES_MAX, 0);
    let (size_bytes, size_bytes_max) = (batch.bytes.len(), BLOB_SIZE_BYTES_MAX);
    bench.produce_all(1, vec![plain(10, 0), batch]);
    let error = PutError::TooLarge { size_bytes, size_bytes_max };
    assert_eq!(bench.answers(), [(1, Err(ProduceError::Put(error)))]);
    assert!(bench.puts.is_empty());
    bench.produce(2, plain(10, 0));
    bench.store_all();
    assert_eq!(bench.answers(), [(2, Ok(0))]);
}

/// Each batch gets a line of its own, as its time is far from that of the one before.
#[test]
fn a_log_of_many_times_has_checkpoints_of_one_blob() {
    let run = |mut bench: Bench| {
        for n in 0..1000 {
            bench.produce(1, plain(10, n * TEN_MINUTES_MS));
            bench.store_all();
        }
        let retention = Retention { size_bytes_max: None, timestamp_ms_min: Some(TEN_MINUTES_MS) };
        let size_bytes = bench.partition.state().size_bytes();
        let trimmed = bench.trim(500);
        let largest = bench.store_and_measure();
        let state = bench.partition.state();
        let decoded = PartitionState::decode(state.encode()).expect("its own encoding");
        assert_eq!(&decoded, state);
        let kept_from = state.expired_before(&retention, None);
        (trimmed, largest, size_bytes - state.size_bytes(), kept_from)
    };
    let (trimmed, largest, freed, kept_from) = run(Bench::new());
    assert_eq!(trimmed, Ok(()));
    assert!(largest <= BLOB_SIZE_BYTES_MAX, "{largest}");
    assert!(freed > 0 && kept_from.is_none_or(|from| from.get() < 600), "{freed} {kept_from:?}");
    if let Some(broken) = Bench::broken(Mutation::StateUnbounded) {
        let (_, largest, ..) = run(broken);
        assert!(largest > BLOB_SIZE_BYTES_MAX, "the test would see it");
    }
}

#[test]
fn aborted_transactions_are_remembered_while_there_is_room() {
    let mut bench = Bench::new();
    let count = (0..).find(|id| bench.abort(*id).is_err()).expect("there is an end");
    // In the encoding of before there would be room for 480.
    assert!((700..5000).contains(&count), "{count}");
    let aborted_count = count as u64;
    let error = TransactionError::NoRoom { aborted_count };
    assert_eq!(bench.abort(count), Err(ProduceError::Transaction(error)));
    bench.produce(1, plain(10, 0));
    bench.store_all();
    assert!(bench.answers().iter().all(|(_, answer)| answer.is_ok()), "all else is taken");
    assert_eq!(bench.trim(count), Ok(()), "and the log start moves, which makes room");
    assert!(bench.store_and_measure() <= BLOB_SIZE_BYTES_MAX);
    assert_eq!(bench.partition.oversize_checkpoint_bytes(), None);
    assert!(bench.abort(count).is_ok());
    let state = bench.partition.state();
    let encoded = state.encode_within(BLOB_SIZE_BYTES_MAX);
    assert_eq!(PartitionState::decode(encoded).as_ref(), Ok(state));
}

#[test]
fn of_too_many_producers_the_silent_ones_are_forgotten() {
    let mut bench = Bench::new();
    for id in 0..2000i64 {
        bench.partition.set_time(id);
        bench.produce(1, batch_of(id << 40, 0));
        bench.store_all();
    }
    assert_eq!(bench.trim(1), Ok(()));
    assert!(bench.store_and_measure() <= BLOB_SIZE_BYTES_MAX);
    let known = bench.partition.state().producers.count();
    assert!((200..2000).contains(&known), "{known}");
    bench.answers();
    bench.produce(1, batch_of(1999 << 40, 0));
    assert_eq!(bench.answers(), [(1, Ok(1999))], "the last one is known");
}
