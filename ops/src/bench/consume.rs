//! Consumers: each reads its share of the partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use meridian_protocol::messages::ListOffsetsPartition;
use meridian_protocol::records::Batch;
use tokio::task::JoinSet;

use super::Consume;
use super::batch::due;
use super::meter::Meter;
use crate::client::consumer::{Consumer, Read, ReadOptions};
use crate::client::{Client, ClientError, Lane, clock};

pub(super) const EARLIEST: i64 = ListOffsetsPartition::TIMESTAMP_EARLIEST;
pub(super) const LATEST: i64 = ListOffsetsPartition::TIMESTAMP_LATEST;
/// Lanes of consumers, out of the way of those of producers.
const FIRST_LANE: u32 = 1 << 16;
/// Most bytes the records of one batch may take.
pub(super) const BATCH_SIZE_BYTES_MAX: usize = 256 << 20;

/// What to read.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) starts: BTreeMap<i32, i64>,
    /// `None` never ends.
    pub(super) ends: Option<BTreeMap<i32, i64>>,
    /// When the run began that wrote the records; with it, each record tells when it was due.
    pub(super) end_to_end: Option<Instant>,
}

struct Reading {
    consumer: Consumer,
    ends: Option<BTreeMap<i32, i64>>,
    end_to_end: Option<Instant>,
    until: Option<Instant>,
    /// Records that may still be read, by all.
    budget: Arc<AtomicU64>,
    meter: Arc<Meter>,
    topic: String,
}

/// Starts all consumers.
pub(super) fn start(
    client: &Client,
    consume: &Consume,
    plan: Plan,
    until: Option<Instant>,
    meter: &Arc<Meter>,
) -> JoinSet<Result<(), ClientError>> {
    // In a run that also writes, it is the writing that is bounded.
    let records = consume.records.filter(|_| plan.ends.is_some());
    let budget = Arc::new(AtomicU64::new(records.unwrap_or(u64::MAX)));
    let mut readers = JoinSet::new();
    for index in 0..consume.connections {
        let mut starts = plan.starts.clone();
        starts.retain(|partition, start| {
            let is_ours = partition.unsigned_abs() % consume.connections == index;
            let end = plan.ends.as_ref().and_then(|ends| ends.get(partition));
            is_ours && end.is_none_or(|end| *start < *end)
        });
        if starts.is_empty() {
            continue;
        }
        let options = ReadOptions { lane: Lane(FIRST_LANE + index), ..ReadOptions::default() };
        let reading = Reading {
            consumer: Consumer::new(client.clone(), &consume.topic, starts, options),
            ends: plan.ends.clone(),
            end_to_end: plan.end_to_end,
            until,
            budget: Arc::clone(&budget),
            meter: Arc::clone(meter),
            topic: consume.topic.clone(),
        };
        readers.spawn(reading.run());
    }
    readers
}

impl Reading {
    async fn run(mut self) -> Result<(), ClientError> {
        while !self.consumer.is_empty() && self.until.is_none_or(|until| clock::now() < until) {
            for read in self.consumer.poll().await? {
                for batch in &read.batches {
                    self.count(&read, batch)?;
                }
                let end = self.ends.as_ref().and_then(|ends| ends.get(&read.partition));
                let last = read.batches.last().map(|batch| batch.header().last_offset());
                if let (Some(&end), Some(last)) = (end, last)
                    && last + 1 >= end
                {
                    self.consumer.unassign(read.partition);
                }
            }
            if self.budget.load(Ordering::Relaxed) == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn count(&self, read: &Read, batch: &Batch) -> Result<(), ClientError> {
        let records = u64::from(batch.header().records_count.unsigned_abs());
        let take = |left: u64| Some(left.saturating_sub(records));
        // The closure always gives a new value.
        let _before = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let Some(epoch) = self.end_to_end else {
            let bytes = batch.bytes().len() as u64;
            self.meter.count(read.at, records, bytes, std::iter::empty());
            return Ok(());
        };
        let broken = |source| ClientError::Batch {
            topic: self.topic.clone(),
            partition: read.partition,
            source,
        };
        let mut payload_bytes = 0;
        let mut times = Vec::with_capacity(batch.header().records_count.unsigned_abs() as usize);
        for record in batch.records(BATCH_SIZE_BYTES_MAX).map_err(broken)? {
            let record = record.map_err(broken)?;
            let value = record.value.unwrap_or_default();
            payload_bytes += value.len() as u64;
            times.extend(due(epoch, &value));
        }
        self.meter.count(read.at, records, payload_bytes, times.into_iter());
        Ok(())
    }
}
