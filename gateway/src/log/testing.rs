//! A partition of a real log on a real disk, written to and read from as clients do.

use std::sync::Arc;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_base::topology::Slot;
use meridian_protocol::records::{self, BatchBuilder};

use super::PartitionLog;
use super::compaction::CompactionRules;
use crate::cleaner::PassLimits;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};
use crate::partition::RecordBatch;

/// Bounds that make a pass quick.
pub(super) fn rules() -> CompactionRules {
    CompactionRules {
        dirty_ratio_min: 0.5,
        lag_ms_min: 0,
        lag_ms_max: i64::MAX,
        delete_retention_ms: 1000,
        limits: PassLimits { blob_size_bytes: 4 << 10, ..PassLimits::default() },
        bytes_per_second: u64::MAX,
    }
}

/// A cluster of one with a partition.
pub(super) struct Bench {
    pub(super) broker: Arc<FakeBroker>,
    pub(super) log: Arc<PartitionLog>,
}

impl Bench {
    pub(super) async fn new() -> Self {
        let broker = FakeBroker::single();
        let front = front_of(&broker, quick_config());
        TestClient::connect(&front).create_topic("t", 1).await;
        let log = Self::led(&broker).await;
        Self { broker, log }
    }

    async fn led(broker: &Arc<FakeBroker>) -> Arc<PartitionLog> {
        use crate::broker::Broker;
        let id = {
            let metadata = broker.state();
            let topic = metadata.topic_named("t").expect("created").id;
            metadata.partition_at(topic, 0).expect("created").0
        };
        let served = async {
            loop {
                match broker.led(id) {
                    Some(log) => return log,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, served).await.expect("served in time")
    }

    /// Another generation takes the partition over.
    pub(super) async fn take_over(&mut self) {
        self.broker.take_over("t", 0);
        self.log = Self::led(&self.broker).await;
    }

    /// One record of each key, with the round as its value.
    pub(super) fn batch(keys: std::ops::Range<u32>, round: u32) -> RecordBatch {
        let mut builder = BatchBuilder::new();
        for key in keys.clone() {
            let value = [&round.to_be_bytes()[..], &[7; 200]].concat();
            builder.append(i64::from(round), Some(&key.to_be_bytes()), Some(&value), &[]);
        }
        RecordBatch {
            bytes: builder.build(),
            record_count: keys.len() as u32,
            max_timestamp_ms: i64::from(round),
            sequenced: None,
            transaction: None,
            sourced: None,
        }
    }

    /// Writes one record of each key, with the round as its value.
    pub(super) async fn write(&self, keys: std::ops::Range<u32>, round: u32) {
        self.log.produce(vec![Self::batch(keys, round)]).await.unwrap().unwrap();
    }

    /// Whether the only slot is taken for dead: then the log takes nothing.
    pub(super) fn set_away(&self, is_away: bool) {
        let now = self.log.logs().expect("the node runs").now();
        self.log.group.on_peer(now, self.log.group.node_of(Slot::new(0)).expect("one"), !is_away);
    }

    /// Offset, key and round of all records, as a consumer reads them from the start.
    pub(super) async fn read_all(&self) -> Vec<(i64, u32, u32)> {
        let mut from = self.log.log_start_offset();
        let mut all = Vec::new();
        while from < self.log.high_watermark() {
            let fetched = self.log.fetch(from, 1 << 20).await.unwrap();
            let bytes = Bytes::from(fetched.records.concat());
            assert!(!bytes.is_empty(), "a reader at {from} gets stuck");
            for batch in records::batches(bytes).map(Result::unwrap) {
                for record in batch.records(1 << 20).unwrap().map(Result::unwrap) {
                    let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
                    let (key, value) = (record.key.unwrap(), record.value.unwrap());
                    if record.offset >= from.get() {
                        all.push((record.offset, number(&key), number(&value)));
                    }
                }
                from = Offset::new(batch.header().last_offset() + 1);
            }
        }
        all
    }
}
