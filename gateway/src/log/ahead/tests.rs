use super::super::Isolation;
use super::super::testing::Bench;
use super::*;

/// Batches, of one record each, that fill the leader's memory several times.
const BATCH_COUNT: u32 = 40;
/// What is left in memory.
const KEPT_COUNT: usize = 1;

/// A partition most of which only the slot has.
async fn bench() -> Bench {
    let bench = Bench::new().await;
    for round in 0..BATCH_COUNT {
        bench.write(0..1, round).await;
    }
    while bench.log.shrink_tail() {}
    for round in 0..KEPT_COUNT as u32 {
        bench.write(0..1, BATCH_COUNT + round).await;
    }
    bench
}

/// Reads one batch from `from` on.
async fn read(bench: &Bench, from: i64) -> Option<i64> {
    let fetched = bench.log.fetch(Offset::new(from), 1).await.expect("the slot is there");
    fetched.end_offset.map(Offset::get)
}

fn counts(bench: &Bench) -> AheadCounts {
    bench.log.logs().expect("the node runs").ahead_counts()
}

#[tokio::test]
async fn who_reads_in_order_finds_what_was_read_ahead() {
    let bench = bench().await;
    for from in 0..i64::from(BATCH_COUNT) {
        assert_eq!(read(&bench, from).await, Some(from + 1));
    }
    let counts = counts(&bench);
    assert_eq!(counts.misses, 2, "the first two, which were not in order yet: {counts:?}");
    assert!(counts.hits + counts.waits >= u64::from(BATCH_COUNT) - 2, "{counts:?}");
    assert_eq!(bench.read_all().await.len(), BATCH_COUNT as usize + KEPT_COUNT);
}

#[tokio::test]
async fn partitions_of_a_fetch_that_come_later_are_read_at_once() {
    let bench = bench().await;
    assert!(bench.log.is_on_slots(Offset::ZERO));
    assert!(!bench.log.is_on_slots(Offset::new(i64::from(BATCH_COUNT))), "it is in memory");
    assert!(!bench.log.is_on_slots(bench.log.high_watermark()), "there is nothing");
    for _ in 0..2 {
        bench.log.begin_fetch(Isolation::ReadUncommitted, Offset::ZERO, 1);
    }
    assert_eq!(read(&bench, 0).await, Some(1));
    let counts = counts(&bench);
    assert_eq!((counts.hits + counts.waits, counts.misses), (1, 0), "{counts:?}");
}

#[tokio::test]
async fn what_was_read_ahead_is_not_shown_once_the_log_begins_after_it() {
    let bench = bench().await;
    for from in 0..4 {
        read(&bench, from).await;
    }
    assert!(counts(&bench).held_bytes > 0, "{:?}", counts(&bench));
    bench.log.delete_records(Offset::new(20)).await.expect("it leads");
    let refused = bench.log.fetch(Offset::new(4), 1).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(read(&bench, 20).await, Some(21));
}

#[tokio::test]
async fn what_was_read_ahead_is_judged_by_the_log_of_the_next_leader() {
    let mut bench = bench().await;
    for from in 0..4 {
        read(&bench, from).await;
    }
    bench.take_over().await;
    // What the leader before has put counts as far as the lineage says: to its end.
    assert_eq!(read(&bench, 4).await, Some(5));
    assert_eq!(bench.read_all().await.len(), BATCH_COUNT as usize + KEPT_COUNT);
}
