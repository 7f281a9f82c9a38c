use super::*;
use crate::value::{Batch, Value};

const PARTITION: PartitionId = PartitionId::new(1);
const FIRST: Generation = Generation::FIRST;

fn batch(offset: i64, producer: u32, epoch: u16) -> PlacedBatch {
    numbered(offset, (producer, epoch, 0))
}

fn numbered(offset: i64, (producer, epoch, number): TransactionId) -> PlacedBatch {
    // With version 1 the sequence goes on from one transaction to the next.
    let first = Value { producer, epoch, sequence: number };
    let batch = Batch { first, count: 1, kind: Kind::Transactional { number } };
    PlacedBatch::whole(Offset::new(offset), batch)
}

fn marker(offset: i64, producer: u32, epoch: u16, commit: bool) -> PlacedBatch {
    let batch = Batch::marker(producer, epoch, commit);
    PlacedBatch::whole(Offset::new(offset), batch)
}

fn read(batches: &[PlacedBatch], aborted: &[(u32, i64)]) -> CommittedRead {
    let aborted = aborted.iter().map(|(id, first)| (*id, Offset::new(*first))).collect();
    CommittedRead { batches: batches.to_vec(), aborted }
}

fn promise(verdict: Verdict) -> Option<Promise> {
    verdict.err().map(|violation| violation.promise)
}

const TORN: Option<Promise> = Some(Promise::AtomicTransactions);

#[test]
fn a_true_history_passes() {
    let mut checker = Checker::new();
    let log = [batch(0, 1, 0), batch(1, 2, 0), marker(2, 1, 1, true), marker(3, 2, 1, false)];
    checker.shown(PARTITION, FIRST, log[0]).unwrap();
    checker.stable(PARTITION, FIRST, Offset::ZERO, Offset::ZERO).unwrap();
    checker.decided((1, 0, 0), true);
    checker.decided((2, 0, 0), false);
    checker.stable(PARTITION, FIRST, Offset::ZERO, Offset::new(1)).unwrap();
    checker.stable(PARTITION, FIRST.next(), Offset::ZERO, Offset::new(4)).unwrap();
    checker.read_committed(PARTITION, FIRST, &read(&log, &[(2, 1)])).unwrap();
    checker.final_log(PARTITION, Offset::ZERO, &log).unwrap();
    assert_eq!(checker.transaction_count(), 1);
}

#[test]
fn a_last_stable_offset_that_passes_an_open_transaction_or_goes_back() {
    let mut checker = Checker::new();
    checker.shown(PARTITION, FIRST, batch(0, 1, 0)).unwrap();
    let stable = |checker: &mut Checker, generation, start, offset| {
        promise(checker.stable(PARTITION, generation, Offset::new(start), Offset::new(offset)))
    };
    assert_eq!(stable(&mut checker, FIRST, 0, 1), TORN);
    assert_eq!(stable(&mut checker, FIRST, 1, 1), None, "it was deleted");
    assert_eq!(stable(&mut checker, FIRST.next(), 0, 0), Some(Promise::VisibleForEver));
}

#[test]
fn readers_see_what_was_decided() {
    let mut checker = Checker::new();
    let committed = [batch(0, 1, 0), marker(1, 1, 1, true)];
    assert_eq!(promise(checker.read_committed(PARTITION, FIRST, &read(&committed, &[]))), TORN);
    checker.decided((1, 0, 0), true);
    checker.read_committed(PARTITION, FIRST, &read(&committed, &[])).unwrap();
    let lost = read(&committed, &[(1, 0)]);
    assert_eq!(promise(checker.read_committed(PARTITION, FIRST, &lost)), TORN);
    checker.decided((1, 1, 0), false);
    let aborted = [batch(2, 1, 1), marker(3, 1, 2, false)];
    assert_eq!(promise(checker.read_committed(PARTITION, FIRST, &read(&aborted, &[]))), TORN);
}

#[test]
fn logs_that_end_transactions_otherwise_than_decided() {
    let mut checker = Checker::new();
    checker.decided((1, 0, 0), true);
    checker.decided((1, 1, 0), true);
    for log in [
        vec![batch(0, 1, 0)],
        vec![batch(0, 1, 0), marker(1, 1, 1, false)],
        vec![batch(0, 1, 0), batch(1, 1, 1)],
        vec![batch(0, 1, 1), marker(1, 1, 1, true)],
        vec![marker(0, 1, 1, true), batch(1, 1, 0), marker(2, 1, 1, true)],
    ] {
        assert_eq!(promise(checker.transactions.final_log(PARTITION, &log)), TORN, "{log:?}");
    }
}

#[test]
fn with_version_1_transactions_of_one_epoch_are_told_apart() {
    let mut checker = Checker::new();
    checker.decided((1, 0, 1), true);
    checker.decided((1, 0, 2), false);
    let one = |offset| numbered(offset, (1, 0, 1));
    let two = |offset| numbered(offset, (1, 0, 2));
    let good = [
        vec![one(0), marker(1, 1, 0, true), two(2), marker(3, 1, 0, false)],
        vec![two(0), marker(1, 1, 1, false)],
    ];
    for log in good {
        checker.transactions.final_log(PARTITION, &log).unwrap();
    }
    for log in [
        vec![one(0), marker(1, 1, 0, false)],
        vec![one(0), two(1), marker(2, 1, 0, true)],
        vec![one(0), marker(1, 1, 0, true), one(2), marker(3, 1, 0, true)],
        vec![two(0), marker(1, 1, 0, false), one(2), marker(3, 1, 0, true)],
        vec![two(0), marker(1, 1, 0, true)],
    ] {
        assert_eq!(promise(checker.transactions.final_log(PARTITION, &log)), TORN, "{log:?}");
    }
    let log = [one(0), marker(1, 1, 0, true), two(2), marker(3, 1, 0, false)];
    checker.read_committed(PARTITION, FIRST, &read(&log, &[(1, 2)])).unwrap();
    assert_eq!(promise(checker.read_committed(PARTITION, FIRST, &read(&log, &[]))), TORN);
}
