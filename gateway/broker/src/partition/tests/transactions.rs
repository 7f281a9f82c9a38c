//! Transactions as a partition's leader sees them: verification, markers, the last stable offset.

use super::*;

fn transaction(producer_epoch: i16, version: TransactionVersion) -> InTransaction {
    let transactional_id = "payments".into();
    InTransaction { transactional_id, producer_id: 9, producer_epoch, version }
}

/// A batch of one record, in producer 9's transaction.
fn transactional(producer_epoch: i16, base_sequence: i32) -> RecordBatch {
    let mut builder =
        BatchBuilder::new().producer(9, producer_epoch, base_sequence).transactional();
    builder.append(1000, None, Some(&[0; 10]), &[]);
    let sequenced = Sequenced {
        producer_id: 9,
        epoch: producer_epoch,
        base_sequence,
        record_count: 1,
        max_timestamp_ms: 1000,
    };
    RecordBatch {
        bytes: builder.build(),
        record_count: 1,
        max_timestamp_ms: 1000,
        sequenced: Some(sequenced),
        sourced: None,
        transaction: Some(transaction(producer_epoch, TransactionVersion::V2)),
    }
}

fn marker(producer_epoch: i16, coordinator_epoch: i32, commit: bool) -> Marker {
    let version = TransactionVersion::V2;
    Marker { producer_id: 9, producer_epoch, coordinator_epoch, commit, version, number: 0 }
}

impl Bench {
    /// Asks the coordinator whatever is to be asked, and gives this answer.
    pub(super) fn verify_all(&mut self, result: Result<(), VerifyError>) -> usize {
        let mut count = 0;
        while let Some((ticket, _)) = self.verifications.pop_front() {
            count += 1;
            let mut out = Vec::new();
            self.partition.on_verified(Instant::ZERO, &self.health, ticket, result, &mut out);
            self.take(out);
        }
        count
    }

    fn write(&mut self, waiter: u32, marker: Marker) {
        let mut out = Vec::new();
        let (now, health) = (Instant::ZERO, &self.health);
        self.partition.write_marker(now, health, &marker, 2000, waiter, &mut out);
        self.take(out);
    }

    fn stable(&self) -> i64 {
        self.partition.last_stable_offset().get()
    }
}

fn refused(error: impl Into<TransactionError>) -> Result<i64, ProduceError> {
    Err(ProduceError::Transaction(error.into()))
}

#[test]
fn the_first_batch_of_a_transaction_waits_for_the_coordinator_and_later_ones_behind_it() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.produce(2, transactional(0, 1));
    assert!(bench.puts.is_empty());
    assert_eq!(bench.verifications.len(), 1);
    let asked = &bench.verifications[0].1;
    assert_eq!(asked.transaction, transaction(0, TransactionVersion::V2));
    assert_eq!(asked.partition, PartitionId::new(1));
    assert_eq!(bench.verify_all(Ok(())), 1);
    bench.produce(3, transactional(0, 2));
    assert_eq!(bench.verify_all(Ok(())), 0, "the transaction is open here now");
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(1)), (3, Ok(2))]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(3));
    assert_eq!(bench.stable(), 0);
}

#[test]
fn what_the_coordinator_does_not_vouch_for_is_refused_in_order_and_leaves_no_trace() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.produce(2, transactional(0, 1));
    bench.verify_all(Err(VerifyError::NotInTransaction));
    let refused = refused(VerifyError::NotInTransaction);
    assert_eq!(bench.answers(), [(1, refused), (2, refused)]);
    assert!(bench.puts.is_empty());
    bench.produce(3, transactional(0, 0));
    assert_eq!(bench.verify_all(Ok(())), 1, "it is asked anew");
}

#[test]
fn a_marker_voids_the_verification_under_way() {
    let mut bench = Bench::new();
    let mut late = transactional(0, 0);
    late.transaction = Some(transaction(0, TransactionVersion::V1));
    bench.produce(1, late);
    // The epoch stays the same in version 1: nothing else would refuse the batch.
    bench.write(2, Marker { version: TransactionVersion::V1, ..marker(0, 0, false) });
    bench.verify_all(Ok(()));
    bench.store_all();
    let not_ongoing = refused(TransactionError::NotOngoing { producer_id: 9 });
    assert_eq!(bench.answers(), [(1, not_ongoing), (2, Ok(0))]);
    assert_eq!(bench.stable(), 1, "no transaction hangs");
}

#[test]
fn a_marker_that_is_repeated_does_not_void_the_next_verification() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.write(2, marker(1, 0, true));
    bench.produce(3, transactional(1, 0));
    bench.write(4, marker(1, 0, true));
    assert_eq!(bench.verify_all(Ok(())), 1);
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(1)), (4, Ok(2)), (3, Ok(3))]);
    assert_eq!(bench.stable(), 3);
}

#[test]
fn too_many_that_wait_are_refused_until_the_answer_comes() {
    let mut bench = Bench::new();
    for n in 0..20 {
        bench.produce(n as u32, transactional(0, n));
    }
    let busy: Vec<u32> = bench.answers().into_iter().map(|(waiter, _)| waiter).collect();
    assert_eq!(busy, [16, 17, 18, 19]);
    bench.verify_all(Ok(()));
    bench.store_all();
    assert_eq!(bench.answers().len(), 16);
}

#[test]
fn an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_committed() {
    let mut bench = Bench::new();
    bench.produce(1, batch_of(7, 0));
    bench.produce(2, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.produce(3, batch_of(7, 1));
    bench.store_all();
    assert_eq!((bench.partition.high_watermark().get(), bench.stable()), (3, 1));
    bench.write(4, marker(1, 0, false));
    assert_eq!(bench.stable(), 1, "the marker is not committed");
    bench.store_all();
    assert_eq!((bench.partition.high_watermark().get(), bench.stable()), (4, 4));
    let aborted = bench.partition.state().transactions.aborted();
    let expected = AbortedTransaction {
        producer_id: 9,
        first_offset: Offset::new(1),
        last_offset: Offset::new(3),
        last_stable_offset: Offset::new(4),
    };
    assert_eq!(aborted.between(Offset::ZERO, Offset::new(4)), Some(vec![expected]));
    assert_eq!(aborted.between(Offset::ZERO, Offset::new(1)), Some(vec![]));
}

#[test]
fn a_marker_fences_the_epoch_before_it() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.write(2, marker(1, 0, true));
    bench.produce(3, transactional(0, 1));
    bench.store_all();
    let old = SequenceError::OldEpoch { epoch: 0, current: 1 };
    let answers = bench.answers();
    assert_eq!(answers, [(3, Err(old.into())), (1, Ok(0)), (2, Ok(1))]);
    bench.produce(4, transactional(1, 0));
    assert_eq!(bench.verify_all(Ok(())), 1, "the next transaction is another one");
}

#[test]
fn a_late_marker_does_not_end_the_next_transaction() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.write(2, marker(1, 0, true));
    // The same marker again while nothing is open: written once more, as Kafka does.
    bench.write(3, marker(1, 0, true));
    bench.produce(4, transactional(1, 0));
    bench.verify_all(Ok(()));
    bench.write(5, marker(1, 0, true));
    bench.write(6, marker(0, 0, true));
    bench.store_all();
    let late = refused(TransactionError::LateMarker { found: 1, current: 1 });
    let old = SequenceError::OldEpoch { epoch: 0, current: 1 };
    let mut answers = bench.answers();
    answers.sort_by_key(|(waiter, _)| *waiter);
    let expected =
        [(1, Ok(0)), (2, Ok(1)), (3, Ok(2)), (4, Ok(3)), (5, late), (6, Err(old.into()))];
    assert_eq!(answers, expected);
    assert_eq!(bench.stable(), 3, "it is open");
}

#[test]
fn version_1_markers_have_the_epoch_of_their_transaction() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.write(2, Marker { version: TransactionVersion::V1, ..marker(0, 0, true) });
    bench.produce(3, transactional(0, 1));
    assert_eq!(bench.verify_all(Ok(())), 1);
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(1)), (3, Ok(2))]);
    assert_eq!(bench.stable(), 2);
}

#[test]
fn an_ending_that_is_committed_does_not_end_the_next_transaction() {
    let mut bench = Bench::new();
    let ending = |number| Marker { version: TransactionVersion::V1, number, ..marker(0, 0, true) };
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.write(2, ending(7));
    bench.write(3, ending(7));
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(1)), (3, Ok(2))], "asked twice, both durable");
    // The producer's next transaction has the same epoch: nothing but the number tells.
    bench.produce(4, transactional(0, 1));
    bench.write(5, ending(7));
    assert_eq!(bench.verify_all(Ok(())), 1);
    bench.write(6, ending(6));
    bench.store_all();
    let late = refused(TransactionError::LateMarker { found: 0, current: 0 });
    assert_eq!(bench.answers(), [(5, Ok(1)), (6, late), (4, Ok(3))]);
    assert_eq!(bench.stable(), 3, "it is open");
    bench.write(7, ending(8));
    bench.store_all();
    assert_eq!((bench.answers(), bench.stable()), (vec![(7, Ok(4))], 5));
}

#[test]
fn a_replaced_coordinator_is_fenced() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.write(2, marker(1, 5, true));
    bench.write(3, marker(2, 4, false));
    bench.write(4, marker(2, 5, false));
    bench.store_all();
    let fenced = refused(TransactionError::CoordinatorFenced { found: 4, current: 5 });
    assert_eq!(bench.answers(), [(3, fenced), (1, Ok(0)), (2, Ok(1)), (4, Ok(2))]);
}

#[test]
fn a_producer_writes_nothing_beside_its_open_transaction() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    bench.verify_all(Ok(()));
    bench.produce(2, batch(1, 1));
    let error = refused(TransactionError::NotTransactional { producer_id: 9 });
    assert_eq!(bench.answers(), [(2, error)]);
}

#[test]
fn a_batch_without_a_sequence_is_fenced_by_its_epoch() {
    let mut bench = Bench::new();
    let unsequenced = |epoch| RecordBatch { sequenced: None, ..transactional(epoch, 0) };
    bench.produce(1, unsequenced(3));
    bench.verify_all(Ok(()));
    bench.produce(2, unsequenced(2));
    let old = SequenceError::OldEpoch { epoch: 2, current: 3 };
    assert_eq!(bench.answers(), [(2, Err(old.into()))]);
    bench.store_all();
    assert_eq!(bench.stable(), 0);
}

#[test]
fn losing_the_partition_refuses_what_was_never_appended() {
    let mut bench = Bench::new();
    bench.produce(1, transactional(0, 0));
    let mut out = Vec::new();
    bench.partition.stop(&mut out);
    bench.take(out);
    assert_eq!(bench.answers(), [(1, Err(PutError::Lost.into()))]);
    assert_eq!(bench.verify_all(Ok(())), 1, "an answer that comes later changes nothing");
    assert_eq!(bench.answers(), []);
}

#[test]
fn a_takeover_finds_transactions_as_the_log_has_them() {
    let mut bench = Bench::new();
    let mut replayed = PartitionState::default();
    let mut follow = |bench: &mut Bench| {
        while let Some(put) = bench.puts.front().cloned() {
            let payload = put.blob.payload.to_contiguous();
            assert_eq!(replayed.apply_blob(&put.blob.header, payload), Ok(()));
            bench.store_one();
        }
        assert_eq!(&replayed, bench.partition.state());
        assert_eq!(PartitionState::decode(replayed.encode()), Ok(replayed.clone()));
    };
    for round in 0..5i16 {
        bench.produce(1, transactional(round, 0));
        bench.verify_all(Ok(()));
        bench.produce(2, transactional(round, 1));
        bench.produce(3, batch_of(7, i32::from(round)));
        follow(&mut bench);
        bench.write(4, marker(round + 1, i32::from(round), round % 2 == 0));
        follow(&mut bench);
    }
    bench.produce(1, transactional(5, 0));
    bench.verify_all(Ok(()));
    follow(&mut bench);
    let state = replayed;
    assert!(state.transactions.ongoing(9).is_some(), "nobody but its coordinator ends it");
    assert_eq!(state.transactions.aborted().count(), 2);
    assert_eq!(state.producers.coordinator_epoch(9), 4);
}

#[test]
fn a_checkpoint_from_before_transactions_still_decodes() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 5));
    let state = bench.partition.state();
    // Format 1 had no transactions, neither here nor in the producers' section.
    let mut old = BytesMut::new();
    old.put_u8(1);
    old.put_i64(0);
    old.put_u32(0);
    let mut producers = BytesMut::new();
    producers.put_u8(1);
    producers.put_u32(1);
    producers.put_i64(9);
    producers.put_i16(0);
    producers.put_i64(1004);
    producers.put_u8(1);
    producers.put_i32(0);
    producers.put_i32(4);
    producers.put_i64(0);
    old.put_u32(producers.len() as u32);
    old.put_slice(&producers);
    let decoded = PartitionState::decode(old.freeze()).unwrap_or_default();
    let described = |state: &PartitionState| state.producers.describe().collect::<Vec<_>>();
    assert_eq!(described(&decoded), described(state));
    assert_eq!(decoded.transactions, Transactions::default());
}
