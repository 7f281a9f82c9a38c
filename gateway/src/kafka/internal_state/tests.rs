//! Logs of coordinators are shortened to what holds.

use meridian_base::id::TopicId;

use super::*;
use crate::kafka::coordinator::{GroupCoordinator, OFFSETS_TOPIC, partition_index};
use crate::kafka::offset_record::{self, Committed, OffsetKey};
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

const GROUP: &str = "g";

/// Commits by one group, of two partitions in turn: what holds are the last two.
async fn fill(log: &Arc<PartitionLog>, topic: TopicId) {
    let per_batch: i64 = 1000;
    for batch in 0..RECORD_COUNT_MIN / per_batch {
        let position = |offset: i64| {
            let index = u32::try_from(offset % 2).unwrap();
            (OffsetKey { topic, index }, offset)
        };
        write_batch(log, (batch * per_batch..(batch + 1) * per_batch).map(position)).await;
    }
}

/// A server whose log of committed offsets is due for compaction, but not loaded yet.
async fn filled() -> (Arc<FakeBroker>, Arc<Front>, Arc<PartitionLog>) {
    let broker = FakeBroker::single();
    let front = front_of(&broker, quick_config());
    TestClient::connect(&front).create_topic("t", 2).await;
    let topics = topics::create_internal(&front, OFFSETS_TOPIC, 2, Vec::new());
    topics.await.unwrap();
    let (topic, log) = {
        let metadata = broker.state();
        let offsets = metadata.topic_named(OFFSETS_TOPIC).unwrap().id;
        let id = metadata.partition_at(offsets, partition_index(GROUP, 2)).unwrap().0;
        (metadata.topic_named("t").unwrap().id, front.broker.led(id).unwrap())
    };
    fill(&log, topic).await;
    (broker, front, log)
}

async fn write_batch(
    log: &Arc<PartitionLog>,
    positions: impl IntoIterator<Item = (OffsetKey, i64)>,
) {
    let record = |(key, offset)| {
        let metadata = String::new();
        let committed = Committed { offset, leader_epoch: -1, metadata, committed_at_ms: 0 };
        let key = offset_record::encode_key(GROUP, key);
        (key, Some(offset_record::encode_value(&committed)))
    };
    let batches = batches(0, positions.into_iter().map(record));
    log.produce(batches).await.unwrap().unwrap();
}

async fn loaded(front: &Arc<Front>) -> Arc<GroupCoordinator> {
    let load = async {
        loop {
            match front.coordinator_of(GROUP) {
                Ok(coordinator) => return coordinator,
                Err(ErrorCode::CoordinatorLoadInProgress) => tokio::task::yield_now().await,
                Err(code) => panic!("{code}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, load).await.expect("loads in time")
}

#[tokio::test]
async fn a_log_of_old_positions_is_shortened_to_those_that_hold() {
    let (broker, front, log) = filled().await;
    let deleted = TopicId::new(12345);
    write_batch(&log, [(OffsetKey { topic: deleted, index: 0 }, 1)]).await;

    loaded(&front).await;
    let shortened = async {
        while log.log_start_offset().get() < RECORD_COUNT_MIN {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shortened).await.expect("the start moves");
    assert_eq!(log.high_watermark().get(), RECORD_COUNT_MIN + 1 + 2);

    let next = front_of(&broker, quick_config());
    let coordinator = loaded(&next).await;
    let groups = coordinator.state().expect("it serves");
    let held: Vec<i64> = groups.by_id[GROUP].offsets().map(|(_, it)| it.offset).collect();
    assert_eq!(held, [RECORD_COUNT_MIN - 2, RECORD_COUNT_MIN - 1]);
}

#[tokio::test]
async fn a_log_that_refuses_is_not_made_longer_again_and_again() {
    let (broker, front, log) = filled().await;
    broker.set_away(true);
    let coordinator = loaded(&front).await;
    let count = || front.chores().count(Chore::OffsetCompaction);
    let refused = async {
        while count().refused == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("it is tried");
    for _ in 0..10 {
        coordinator.bell.notify_one();
        tokio::task::yield_now().await;
    }
    assert_eq!(count().refused, 1, "not before it has rested");
    broker.set_away(false);
    let shortened = async {
        while log.log_start_offset().get() < RECORD_COUNT_MIN {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shortened).await.expect("the start moves");
    assert!(count().refused < 9, "{:?}", count());
}
