//! `__consumer_offsets` and `__transaction_state` as Kafka has them: monitors of lag and Kafka's
//! own formatters read them. Each record is translated as it is read, at its offset; what is about
//! topics that are no more is left out, as compaction leaves it out in Kafka.

use std::collections::HashMap;

use bytes::Bytes;
use meridian_base::id::{PartitionId, TopicId};
use meridian_consensus::state::Topic;
use meridian_protocol::Records;
use meridian_protocol::records::{Batch, BatchBuilder, Record, batches};

use crate::broker::Broker;
use crate::coordination::kafka_format::{self, KafkaRecord, Names};
use crate::kafka::coordinator::OFFSETS_TOPIC;
use crate::kafka::pace::Pace;
use crate::kafka::transactions::TRANSACTIONS_TOPIC;

/// Bytes that are read at once: what is translated takes time on a thread that serves everybody.
pub(super) const SIZE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a batch of a coordinator.
const BATCH_SIZE_BYTES_MAX: usize = 64 << 20;
/// What a record costs, as steps.
const STEP_COUNT: usize = 4;

/// What a partition of an internal topic keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Groups,
    Transactions,
}

impl Kept {
    /// `None` for topics of clients.
    pub(super) fn of(topic: &Topic) -> Option<Self> {
        if !topic.internal {
            return None;
        }
        match topic.name.as_str() {
            OFFSETS_TOPIC => Some(Self::Groups),
            TRANSACTIONS_TOPIC => Some(Self::Transactions),
            _ => None,
        }
    }

    /// These batches, with Kafka's records in them.
    pub(super) async fn translated(self, broker: &dyn Broker, records: Records) -> Records {
        let mut names = NamesNow { broker, topics: HashMap::new() };
        let mut pace = Pace::default();
        let mut translated = Vec::new();
        for batch in batches(records.into_bytes()) {
            // What can't be read is the end of what there is, for clients too.
            let Ok(batch) = batch else { break };
            let count = usize::try_from(batch.header().records_count).unwrap_or(0);
            pace.steps(count.saturating_mul(STEP_COUNT)).await;
            translated.push(self.translated_batch(batch, &mut names));
        }
        translated.into_iter().collect()
    }

    fn translated_batch(self, batch: Batch, names: &mut NamesNow<'_>) -> Bytes {
        let header = batch.header();
        if header.attributes.is_control() {
            return batch.bytes().clone();
        }
        let mut builder = BatchBuilder::cleaned(header, None);
        let records = batch.records(BATCH_SIZE_BYTES_MAX).into_iter().flatten().flatten();
        for record in records {
            let (offset, timestamp_ms) = (record.offset, record.timestamp_ms);
            let Some((key, value)) = self.translated_record(record, names) else { continue };
            let delta = i32::try_from(offset - header.base_offset).unwrap_or(i32::MAX);
            builder.append_at(delta, timestamp_ms, Some(&key), value.as_deref(), &[]);
        }
        builder.keep_offsets_to(header.last_offset_delta);
        builder.build()
    }

    fn translated_record(self, record: Record, names: &mut NamesNow<'_>) -> Option<KafkaRecord> {
        let Record { offset, key, value, .. } = record;
        let key = key.unwrap_or_default();
        let translated = match self {
            Self::Groups => kafka_format::group_record(key, value, names),
            Self::Transactions => kafka_format::transaction_record(key, value, names).map(Some),
        };
        translated.unwrap_or_else(|error| {
            tracing::error!(offset, %error, "a record of a coordinator cannot be read");
            None
        })
    }
}

/// Names by this node's metadata; each topic's is looked up once.
struct NamesNow<'b> {
    broker: &'b dyn Broker,
    topics: HashMap<TopicId, Option<String>>,
}

impl Names for NamesNow<'_> {
    fn topic(&mut self, topic: TopicId) -> Option<String> {
        let find = || Some(self.broker.metadata().topic(topic)?.name.clone());
        self.topics.entry(topic).or_insert_with(find).clone()
    }

    fn partition(&mut self, partition: PartitionId) -> Option<(String, i32)> {
        let (topic, index) = {
            let metadata = self.broker.metadata();
            let found = metadata.partition(partition)?;
            (found.topic, found.index)
        };
        Some((self.topic(topic)?, index.cast_signed()))
    }
}

#[cfg(test)]
mod tests;
