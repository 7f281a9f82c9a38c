//! A member of a consumer group that remembers what it has read and committed.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use crate::load::{Records, value};

const POLL_TIMEOUT: Duration = Duration::from_millis(200);
const READ_WITHIN: Duration = Duration::from_secs(90);
const COMMIT_WITHIN: Duration = Duration::from_secs(60);

/// The only member of a group: it is assigned all partitions.
pub(crate) struct Member {
    consumer: BaseConsumer,
    topic: String,
    /// What it has read, by partition.
    pub(crate) read: Vec<Records>,
}

impl Member {
    pub(crate) fn join(bootstrap: &str, group: &str, topic: &str, partition_count: i32) -> Self {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "500")
            .set("reconnect.backoff.max.ms", "500")
            .set("check.crcs", "true")
            .create()
            .unwrap();
        consumer.subscribe(&[topic]).unwrap();
        let read = vec![Records::new(); usize::try_from(partition_count).unwrap()];
        Self { consumer, topic: topic.to_owned(), read }
    }

    /// Reads until each partition is read up to and including these offsets.
    pub(crate) fn read_up_to(&mut self, last: &[i64]) {
        let deadline = Instant::now() + READ_WITHIN;
        let is_read = |read: &[Records]| {
            let at = |records: &Records| records.last_key_value().map_or(-1, |(offset, _)| *offset);
            read.iter().zip(last).all(|(records, last)| at(records) >= *last)
        };
        while !is_read(&self.read) {
            assert!(Instant::now() < deadline, "the group reads nothing for {READ_WITHIN:?}");
            self.poll();
        }
    }

    /// Commits all that is read; a coordinator that is new or away is tried again. The offsets to
    /// go on from, by partition.
    pub(crate) fn commit(&mut self) -> Vec<i64> {
        let deadline = Instant::now() + COMMIT_WITHIN;
        loop {
            let next: Vec<i64> = self
                .read
                .iter()
                .map(|records| records.last_key_value().map_or(0, |(offset, _)| offset + 1))
                .collect();
            let mut offsets = TopicPartitionList::new();
            for (partition, next) in (0..).zip(&next) {
                offsets
                    .add_partition_offset(&self.topic, partition, Offset::Offset(*next))
                    .unwrap();
            }
            match self.consumer.commit(&offsets, CommitMode::Sync) {
                Ok(()) => return next,
                Err(error) => assert!(Instant::now() < deadline, "no commit: {error}"),
            }
            // It may have to join again before.
            self.poll();
        }
    }

    fn poll(&mut self) {
        // Errors are of single requests or nodes; the client tries again.
        if let Some(Ok(message)) = self.consumer.poll(POLL_TIMEOUT) {
            let partition = usize::try_from(message.partition()).unwrap();
            let value = value(message.payload());
            // After it has joined again, it reads again what it has not committed.
            let before = self.read[partition].insert(message.offset(), value);
            assert!(before.is_none_or(|before| before == value), "another record at an offset");
        }
    }
}
