//! Keeping partitions of `__consumer_offsets` short, so that the next coordinator loads quickly.
//!
//! A coordinator knows all that its log says. When most of the log is out of date, it writes what
//! holds once more and then moves the log's start to there. It does so while no batch is on its way:
//! everything before the new records is then in memory, hence in the new records. Offsets that a
//! transaction is about to change stay where they are, and the log starts no later. Those in topics
//! that were deleted are left out.

use std::sync::Arc;

use meridian_base::position::Offset;
use tokio::sync::oneshot;

use super::Front;
use super::coordinator::Coordinator;
use super::group_state::Snapshot;
use crate::coordination;
use crate::partition::{Appended, ProduceError};

/// Shorter logs are left alone.
pub(super) const RECORD_COUNT_MIN: i64 = 100_000;

type Answers = Vec<oneshot::Receiver<Result<Appended, ProduceError>>>;

impl Front {
    /// Shortens the log of a coordinator if most of it is out of date.
    pub(super) fn compact_offsets(self: &Arc<Self>, coordinator: &Arc<Coordinator>) {
        let log = &coordinator.log;
        let record_count = log.high_watermark().get() - log.log_start_offset().get();
        if record_count < RECORD_COUNT_MIN {
            return;
        }
        let (start, answers) = {
            // In this order everywhere: the metadata, then groups.
            let metadata = self.broker.metadata();
            let mut groups = coordinator.groups();
            // Read under the lock: with nothing on its way, all before it is in memory.
            let (log_start, high_watermark) = (log.log_start_offset(), log.high_watermark());
            let is_gone = |topic| metadata.topic(topic).is_none();
            let snapshot = groups.begin_compaction(log_start, high_watermark, is_gone);
            let Some(Snapshot { records, start }) = snapshot else { return };
            let batches = coordination::batches(self.broker.wall_time_ms(), records);
            // Under the lock, so that no write comes between what was read and this.
            (start, batches.into_iter().map(|batch| log.produce(vec![batch])).collect())
        };
        let coordinator = Arc::clone(coordinator);
        tokio::spawn(async move {
            match finish(&coordinator, start, answers).await {
                Ok(start) => tracing::info!(%start, record_count, "group offsets compacted"),
                Err(error) => tracing::warn!(%error, "group offsets not compacted; tried again"),
            }
            coordinator.groups().end_compaction();
        });
    }
}

/// Once all records are committed, has the log start there.
async fn finish(
    coordinator: &Coordinator,
    start: Offset,
    answers: Answers,
) -> Result<Offset, ProduceError> {
    for answer in answers {
        answer.await.unwrap_or(Err(ProduceError::InDoubt))?;
    }
    coordinator.log.delete_records(start).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meridian_base::id::TopicId;
    use meridian_protocol::ErrorCode;

    use super::*;
    use crate::kafka::coordinator::{OFFSETS_TOPIC, partition_index};
    use crate::kafka::offset_record::{self, Committed, OffsetKey};
    use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};
    use crate::log::PartitionLog;

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
        let batches = coordination::batches(0, positions.into_iter().map(record));
        log.produce(batches).await.unwrap().unwrap();
    }

    async fn loaded(front: &Arc<Front>) -> Arc<Coordinator> {
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
        let broker = FakeBroker::single();
        let front = front_of(&broker, quick_config());
        TestClient::connect(&front).create_topic("t", 2).await;
        let topics = crate::kafka::topics::create_internal(&front, OFFSETS_TOPIC, 2, Vec::new());
        topics.await.unwrap();
        let (topic, log) = {
            let metadata = broker.state();
            let offsets = metadata.topic_named(OFFSETS_TOPIC).unwrap().id;
            let id = metadata.partition_at(offsets, partition_index(GROUP, 2)).unwrap().0;
            (metadata.topic_named("t").unwrap().id, front.broker.led(id).unwrap())
        };
        fill(&log, topic).await;
        let deleted = TopicId::new(12345);
        write_batch(&log, [(OffsetKey { topic: deleted, index: 0 }, 1)]).await;

        let coordinator = loaded(&front).await;
        let shortened = async {
            front.compact_offsets(&coordinator);
            while log.log_start_offset().get() < RECORD_COUNT_MIN {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, shortened).await.expect("the start moves");
        assert_eq!(log.high_watermark().get(), RECORD_COUNT_MIN + 1 + 2);

        let next = front_of(&broker, quick_config());
        let coordinator = loaded(&next).await;
        let groups = coordinator.groups();
        let held: Vec<i64> = groups.by_id[GROUP].offsets().map(|(_, it)| it.offset).collect();
        assert_eq!(held, [RECORD_COUNT_MIN - 2, RECORD_COUNT_MIN - 1]);
    }
}
