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

/// What Kafka's ProducerStateManagerTest and ProducerAppendInfo say, and rule P1: for a producer
/// that wrote ten batches of ten records with epoch 3, to sequence 99.
#[test]
fn batches_are_judged_as_kafka_does() {
    let mut producers = Producers::default();
    for n in 0..10 {
        producers.apply(&batch(3, n * 10, 10), Offset::new(i64::from(n) * 10));
    }
    let duplicate = |offset| Ok(Verdict::Duplicate { base_offset: Offset::new(offset) });
    let out_of_order = |found, last| Err(SequenceError::OutOfOrder { found, last });
    for (what, epoch, base_sequence, record_count, expected) in [
        ("the next", 3, 100, 1, Ok(Verdict::New)),
        ("the last again", 3, 90, 10, duplicate(90)),
        ("the fifth last again", 3, 50, 10, duplicate(50)),
        ("the sixth last again", 3, 40, 10, out_of_order(40, 99)),
        ("part of the last", 3, 90, 5, out_of_order(90, 99)),
        ("two of the last as one", 3, 80, 20, out_of_order(80, 99)),
        ("the last and more", 3, 90, 11, out_of_order(90, 99)),
        ("a gap", 3, 101, 1, out_of_order(101, 99)),
        ("from the start", 3, 0, 10, out_of_order(0, 99)),
        ("a new epoch", 4, 0, 10, Ok(Verdict::New)),
        ("an epoch left out", 9, 0, 10, Ok(Verdict::New)),
        ("a new epoch that goes on", 4, 100, 10, out_of_order(100, -1)),
        ("an old epoch", 2, 100, 1, Err(SequenceError::OldEpoch { epoch: 2, current: 3 })),
        ("an old epoch's start", 2, 0, 1, Err(SequenceError::OldEpoch { epoch: 2, current: 3 })),
    ] {
        assert_eq!(producers.check(&batch(epoch, base_sequence, record_count)), expected, "{what}");
    }
    let other = |base_sequence| Sequenced { producer_id: 8, ..batch(0, base_sequence, 1) };
    assert_eq!(producers.check(&other(0)), Ok(Verdict::New));
    let unknown = SequenceError::UnknownProducer { producer_id: 8 };
    assert_eq!(producers.check(&other(1)), Err(unknown));
}

#[test]
fn a_batch_that_wraps_is_known_again() {
    let mut producers = Producers::default();
    producers.apply(&batch(0, i32::MAX - 4, 10), Offset::new(7));
    let base_offset = Offset::new(7);
    let again = producers.check(&batch(0, i32::MAX - 4, 10));
    assert_eq!(again, Ok(Verdict::Duplicate { base_offset }));
    producers.apply(&batch(0, 5, 1), Offset::new(17));
    let decoded = Producers::decode(producers.encode());
    assert_eq!(decoded, Ok(producers));
}

/// A marker bumps the epoch (KIP-890): what follows begins at 0, what came before is fenced.
#[test]
fn after_a_marker_with_a_new_epoch_sequences_begin_anew() {
    let mut producers = with(&[batch(0, 0, 10)]);
    producers.note_epoch(7, 1, 200);
    assert_eq!(producers.check(&batch(1, 0, 1)), Ok(Verdict::New));
    let error = SequenceError::OutOfOrder { found: 10, last: -1 };
    assert_eq!(producers.check(&batch(1, 10, 1)), Err(error));
    let error = SequenceError::OldEpoch { epoch: 0, current: 1 };
    assert_eq!(producers.check(&batch(0, 0, 10)), Err(error));
}

/// `n` producers, with ids from 0, each seen a millisecond after the one before.
fn many(n: i64) -> Producers {
    let mut producers = Producers::default();
    for producer_id in 0..n {
        producers.set_time(1_700_000_000_000 + producer_id);
        for base_sequence in (0..50).step_by(10) {
            let batch = Sequenced {
                producer_id,
                max_timestamp_ms: 1_700_000_000_000,
                ..batch(0, base_sequence, 10)
            };
            let offset = i64::from(base_sequence) * n + producer_id * 10;
            producers.apply(&batch, Offset::new(offset));
        }
    }
    producers
}

#[test]
fn the_silent_expire_by_the_leaders_clock() {
    let mut producers = many(10);
    producers.expire(1_700_000_000_000, |_| false);
    assert_eq!(producers.count(), 10, "the times of their records are older");
    producers.expire(1_700_000_000_004, |id| id == 2);
    let left: Vec<i64> = producers.describe().map(|it| it.producer_id).collect();
    assert_eq!(left, [2, 4, 5, 6, 7, 8, 9], "2 has a transaction open");
    producers.set_time(1_700_000_000_100);
    producers.note_epoch(4, 0, 0);
    producers.expire(1_700_000_000_100, |_| false);
    assert_eq!(producers.count(), 1);
}

#[test]
fn who_was_seen_before_the_time_was_known_or_by_a_clock_ahead_was_seen_now() {
    for ahead_ms in [i64::MAX, 4_000_000_000_000] {
        let mut producers = Producers::default();
        producers.set_time(ahead_ms);
        producers.apply(&batch(0, 0, 10), Offset::new(0));
        producers.set_time(1_700_000_000_000);
        producers.see_no_later();
        producers.expire(1_700_000_000_000, |_| false);
        assert_eq!(producers.count(), 1);
        producers.expire(1_700_000_000_001, |_| false);
        assert_eq!(producers.count(), 0, "not remembered for years");
    }
}

#[test]
fn of_too_many_the_longest_silent_go() {
    let count = PRODUCER_COUNT_MAX as i64;
    let mut producers = many(count + 1000);
    producers.expire(0, |id| id == 5);
    let left: Vec<i64> = producers.describe().map(|it| it.producer_id).collect();
    assert_eq!(left.len(), PRODUCER_COUNT_MAX + 1);
    assert_eq!(left[..2], [5, 1000]);
}

#[test]
fn a_hundred_thousand_fit() {
    assert!(size_of::<Producer>() <= 104, "{}", size_of::<Producer>());
    let producers = many(100_000);
    let encoded = producers.encode();
    assert!(encoded.len() <= 50 * 100_000, "{}", encoded.len());
    let decoded = Producers::decode(encoded).map(|decoded| decoded.by_id);
    assert_eq!(decoded, Ok(producers.by_id));
}
