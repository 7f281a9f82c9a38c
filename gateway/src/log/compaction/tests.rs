//! Passes over partitions of a real log on a real disk, read as consumers read.

use super::*;
use crate::kafka::testing::PATIENCE;
use crate::log::testing::{Bench, rules};

#[tokio::test]
async fn readers_see_the_last_record_of_every_key_here_and_at_the_next_leader() {
    let mut bench = Bench::new().await;
    for round in 0..20 {
        bench.write(0..50, round).await;
    }
    bench.write(50..51, 20).await;
    assert!(bench.log.is_dirty(&rules(), 0));
    let size_bytes = bench.log.size_bytes();
    let compacted = bench.log.compact(&rules(), 0).await.unwrap().expect("there was much to do");
    assert_eq!(compacted.end, Offset::new(1000));
    let expected: Vec<(i64, u32, u32)> =
        (0..50).map(|key| (950 + i64::from(key), key, 19)).chain([(1000, 50, 20)]).collect();
    assert_eq!(bench.read_all().await, expected);
    assert!(bench.log.size_bytes() < size_bytes / 10);
    assert!(!bench.log.is_dirty(&rules(), 0));

    bench.take_over().await;
    assert_eq!(bench.read_all().await, expected);
    assert_eq!(bench.log.high_watermark(), Offset::new(1001));
    bench.write(0..25, 21).await;
    bench.write(0..25, 22).await;
    bench.write(51..52, 23).await;
    bench.log.compact(&rules(), 0).await.unwrap().expect("another generation's run is replaced");
    let after = bench.read_all().await;
    assert_eq!(after.len(), 52);
    assert_eq!(after[0], (975, 25, 19));
    assert_eq!(after[25], (1000, 50, 20));
    assert_eq!(after[26], (1026, 0, 22));
}

#[tokio::test]
async fn records_are_found_by_time_where_others_are_gone() {
    let bench = Bench::new().await;
    for round in 0..10 {
        bench.write(0..10, round).await;
    }
    bench.write(10..11, 10).await;
    bench.log.compact(&rules(), 0).await.unwrap().expect("there was much to do");
    let found = |timestamp_ms| {
        let log = Arc::clone(&bench.log);
        async move {
            let batch = log.batch_for_timestamp(timestamp_ms, Offset::ZERO).await.unwrap();
            batch.map(|batch| (batch.base_offset.get(), batch.max_timestamp_ms))
        }
    };
    assert_eq!(found(0).await, Some((90, 9)), "what is left is later");
    assert_eq!(found(9).await, Some((90, 9)));
    assert_eq!(found(10).await, Some((100, 10)));
    assert_eq!(found(11).await, None);
}

#[tokio::test]
async fn what_was_replaced_leaves_the_disk() {
    let bench = Bench::new().await;
    for round in 0..200 {
        bench.write(0..200, round).await;
    }
    bench.write(200..201, 200).await;
    let live_bytes = || bench.broker.store().usage().live_bytes;
    let before = live_bytes();
    assert!(before > 8_000_000, "{before}");
    bench.log.compact(&rules(), 0).await.unwrap().expect("there was much to do");
    let freed = async {
        while live_bytes() > before / 50 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("freed in time");
    assert_eq!(bench.read_all().await.len(), 201);
}

#[tokio::test]
async fn a_log_in_which_nothing_is_to_be_judged_is_left_alone() {
    let bench = Bench::new().await;
    assert!(!bench.log.is_dirty(&rules(), 0));
    bench.write(0..5, 0).await;
    assert!(bench.log.is_dirty(&rules(), 0));
    assert_eq!(bench.log.compact(&rules(), 0).await.unwrap(), None, "one batch is the last");
    assert_eq!(bench.read_all().await.len(), 5);
}

#[tokio::test]
async fn a_deleted_topic_gives_its_space_back_to_the_file_system() {
    let bench = Bench::new().await;
    for round in 0..1000 {
        bench.write(0..200, round).await;
    }
    let store = bench.broker.store();
    let before = bench.broker.disk_size_bytes();
    assert!(before > 40_000_000, "{before}");
    let partition = bench.log.ownership().partition;
    bench.log.stop();
    bench.broker.forget(partition);
    let freed = async {
        while bench.broker.disk_size_bytes() > before / 2 || store.usage().live_bytes > 1_000_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("freed in time");
}

#[tokio::test]
async fn a_log_that_takes_nothing_holds_up_no_other() {
    let bench = Bench::new().await;
    for round in 0..5 {
        bench.write(0..50, round).await;
    }
    bench.set_away(true);
    let refused = bench.log.compact(&rules(), 0).await.expect_err("nothing is taken");
    assert!(matches!(refused, CompactError::Manifest(ManifestError::Refused(_))), "{refused:?}");
    let mark = bench.log.with(None, |partition| partition.leader().mark()).expect("it is served");
    let later = LogPoint::new(mark.point.generation, mark.point.step.next());
    tokio::time::pause();
    let committed = tokio::time::timeout(PATIENCE, bench.log.committed(later)).await;
    assert_eq!(committed, Ok(Err(ProduceError::InDoubt)), "it is not waited for without end");
}
