//! Producers that are not known and begin in the midst of their sequence (rule P1).

use super::*;

const UNKNOWN: ProduceError =
    ProduceError::Sequence(SequenceError::UnknownProducer { producer_id: 9 });

#[test]
fn in_a_new_log_anybody_goes_on_with_the_number_he_has() {
    let mut bench = Bench::new();
    bench.produce(1, batch(7, 3));
    bench.produce(2, batch(10, 1));
    bench.produce(3, batch(7, 3));
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (3, Ok(0)), (2, Ok(3))]);
    bench.produce(4, batch(12, 1));
    let gap = SequenceError::OutOfOrder { found: 12, last: 10 };
    assert_eq!(bench.answers(), [(4, Err(gap.into()))], "from then on in order");
}

#[test]
fn whose_batch_was_refused_sends_that_first() {
    let mut bench = Bench::new();
    let mut large = batch(0, 1);
    large.bytes = Bytes::from(vec![0; SizeLimits::SMALL.blob_size_bytes_max + 1]);
    bench.produce(1, large);
    assert!(matches!(bench.answers()[..], [(1, Err(ProduceError::Put(_)))]));
    bench.produce(2, batch(1, 1));
    assert_eq!(bench.answers(), [(2, Err(UNKNOWN))]);
    // The others are not to blame.
    bench.produce(3, batch_of(8, 7));
    bench.produce(4, batch(0, 1));
    bench.produce(5, batch(1, 1));
    bench.store_all();
    assert_eq!(bench.answers(), [(3, Ok(0)), (4, Ok(1)), (5, Ok(2))]);

    let mut bench = Bench::new();
    bench.partition.note_refused_before(9);
    bench.produce(1, batch(1, 1));
    assert_eq!(bench.answers(), [(1, Err(UNKNOWN))]);
    let mut bench = Bench::new();
    bench.partition.note_all_refused();
    bench.produce(1, batch(1, 1));
    assert_eq!(bench.answers(), [(1, Err(UNKNOWN))]);
}

#[test]
fn who_refuses_very_many_takes_nobody_in_the_midst() {
    let mut bench = Bench::new();
    for producer_id in 100..=10_100 {
        bench.partition.note_refused_before(producer_id);
    }
    bench.produce(1, batch(1, 1));
    assert_eq!(bench.answers(), [(1, Err(UNKNOWN))]);
}

#[test]
fn a_log_that_has_forgotten_somebody_takes_nobody_in_the_midst() {
    let mut bench = Bench::new();
    bench.produce(1, batch_of(8, 0));
    bench.store_all();
    bench.answers();
    // Nobody is old enough yet.
    bench.partition.expire(-1, -1);
    bench.produce(2, batch(7, 1));
    bench.store_all();
    assert_eq!(bench.answers(), [(2, Ok(1))]);
    bench.partition.set_time(1);
    bench.partition.expire(1, -1);
    bench.produce(3, batch(7, 1));
    assert_eq!(bench.answers(), [(3, Err(UNKNOWN))], "it may be there already, as here");
}

/// What a leader before this one was sent, and what of it is void, nobody knows.
#[test]
fn only_the_first_leader_takes_somebody_in_the_midst() {
    let untouched = PartitionState::default();
    let mut written = PartitionState::default();
    written.note(Offset::ZERO, 1, 1, 1);
    for (generation, state, expected) in [
        (Generation::FIRST, &untouched, true),
        (Generation::FIRST, &written, false),
        (Generation::FIRST.next(), &untouched, false),
    ] {
        assert_eq!(Strangers::of(generation, state).may_begin_anywhere(9), expected);
    }
}

/// The broken rule: what was forgotten comes twice.
#[test]
fn who_accepts_though_somebody_was_forgotten_has_a_record_twice() {
    let Some(mut bench) = Bench::broken(Mutation::ForgottenProducerAccepted) else { return };
    bench.produce(1, batch(7, 1));
    bench.store_all();
    bench.partition.set_time(1);
    bench.partition.expire(1, -1);
    bench.produce(2, batch(7, 1));
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(1))]);
}
