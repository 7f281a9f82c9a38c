//! Keeping partitions of `__consumer_offsets` short, so that the next coordinator loads quickly.
//!
//! A coordinator knows all that its log says. When most of the log is out of date, it writes what
//! holds once more and then moves the log's start to there. It does so while no batch is on its way:
//! everything before the new records is then in memory, hence in the new records. Offsets that a
//! transaction is about to change stay where they are, and the log starts no later: transactions go on
//! meanwhile, and there may always be one. Those in topics that were deleted are left out.
//!
//! One batch is on its way at a time, as with all that a coordinator writes, and nothing else is written between.
//! What is refused is tried again after a pause that grows: each attempt makes the log longer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_storage::leader::PutError;
use meridian_storage::mutation::Mutations;

use super::coordinator::{BATCH_SIZE_BYTES, BUSY_RETRY_AFTER, BUSY_TIMEOUT, Coordinator};
use super::group_state::Snapshot;
use super::journal::Entry;
use super::{Front, lock};
use crate::background::Chore;
use crate::coordination::{self, shortening};
use crate::partition::ProduceError;

/// Shorter logs are left alone.
pub(super) const RECORD_COUNT_MIN: i64 = 100_000;
/// Pauses after an attempt that was refused.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Why a log was not shortened.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Log(#[from] ProduceError),
    #[error("open transactions stage offsets that only the oldest records of the log hold")]
    Held,
}

/// When a log may be looked at again.
pub(super) struct CompactionRest(Mutex<shortening::Rest>);

impl Default for CompactionRest {
    fn default() -> Self {
        Self(Mutex::new(shortening::Rest::new(PAUSE_MIN, PAUSE_MAX, Mutations::NONE)))
    }
}

impl CompactionRest {
    fn lasts(&self, now: Instant) -> bool {
        lock(&self.0).lasts(now)
    }

    fn on_refused(&self, now: Instant) -> Duration {
        lock(&self.0).on_refused(now)
    }

    fn on_done(&self) {
        lock(&self.0).on_done();
    }
}

impl Coordinator {
    fn record_count(&self) -> i64 {
        self.log.high_watermark().get() - self.log.log_start_offset().get()
    }

    /// Whether the log is long enough for a look.
    pub(super) fn is_long(&self, front: &Front) -> bool {
        self.record_count() >= RECORD_COUNT_MIN && !self.rest.lasts(front.now())
    }

    /// Shortens the log if most of it is out of date. Nothing is written meanwhile.
    pub(super) async fn compact(self: &Arc<Self>, front: &Arc<Front>) {
        if !self.is_long(front) {
            return;
        }
        let record_count = self.record_count();
        let Some(Snapshot { records, start }) = self.snapshot(front) else { return };
        // Before anything else is written: memory holds all that the log says.
        let written = self.write_once_more(front, records).await.and_then(|()| {
            let start = self.groups().start_of(start);
            if start > self.log.log_start_offset() { Ok(start) } else { Err(Refused::Held) }
        });
        let (coordinator, front) = (Arc::clone(self), Arc::clone(front));
        tokio::spawn(async move {
            let shortened = match written {
                Ok(start) => coordinator.log.delete_records(start).await.map_err(Refused::from),
                Err(error) => Err(error),
            };
            match shortened {
                Ok(start) => {
                    tracing::info!(%start, record_count, "group offsets compacted");
                    front.chores().on_done(Chore::OffsetCompaction);
                    coordinator.rest.on_done();
                }
                Err(error) => {
                    let pause = coordinator.rest.on_refused(front.now());
                    tracing::warn!(%error, ?pause, "group offsets not compacted; trying again");
                    front.chores().on_refused(Chore::OffsetCompaction);
                }
            }
            coordinator.groups().end_compaction();
        });
    }

    /// All that holds, if the log is worth shortening to that.
    fn snapshot(&self, front: &Front) -> Option<Snapshot> {
        let ends = || (self.log.log_start_offset(), self.log.high_watermark());
        let topics = {
            let (groups, (log_start, high_watermark)) = (self.groups(), ends());
            if !groups.is_compaction_due(log_start, high_watermark) {
                return None;
            }
            groups.topics()
        };
        let gone: BTreeSet<TopicId> = {
            let metadata = front.broker.metadata();
            topics.into_iter().filter(|topic| metadata.topic(*topic).is_none()).collect()
        };
        let mut groups = self.groups();
        // Read under the lock: with nothing on its way, all before it is in memory.
        let (log_start, high_watermark) = ends();
        groups.begin_compaction(log_start, high_watermark, |topic| gone.contains(&topic))
    }

    async fn write_once_more(&self, front: &Front, records: Vec<Entry>) -> Result<(), Refused> {
        for records in shortening::pieces(records, BATCH_SIZE_BYTES) {
            let deadline = front.now() + BUSY_TIMEOUT;
            loop {
                let (records, answer) = {
                    // Under the lock, so that no transaction stages anything between this look and the write.
                    let groups = self.groups();
                    let records = groups.still_holding(&records);
                    if records.is_empty() {
                        break;
                    }
                    let batches =
                        coordination::batches(front.broker.wall_time_ms(), records.clone());
                    (records, self.log.produce(batches))
                };
                match answer.await.unwrap_or(Err(ProduceError::InDoubt)) {
                    Ok(appended) => {
                        self.groups().on_piece_written(appended.base_offset, &records);
                        break;
                    }
                    // Nothing was written.
                    Err(ProduceError::Put(PutError::Busy)) if front.now() < deadline => {
                        tokio::time::sleep(BUSY_RETRY_AFTER).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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

    /// A server whose log of committed offsets is due for compaction, but not loaded yet.
    async fn filled() -> (Arc<FakeBroker>, Arc<Front>, Arc<PartitionLog>) {
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
        let groups = coordinator.groups();
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
            coordinator.compact(&front).await;
            // An attempt ends in a task of its own.
            tokio::task::yield_now().await;
        }
        assert_eq!(count().refused, 1, "not before it has rested");
        broker.set_away(false);
        let shortened = async {
            while log.log_start_offset().get() < RECORD_COUNT_MIN {
                tokio::time::sleep(Duration::from_millis(1)).await;
                coordinator.compact(&front).await;
            }
        };
        tokio::time::timeout(PATIENCE, shortened).await.expect("the start moves");
        assert!(count().refused < 9, "{:?}", count());
    }
}
