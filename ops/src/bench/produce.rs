//! Producers: one task for each partition they write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::batch::BatchMaker;
use super::meter::Meter;
use super::schedule::Schedule;
use super::{Load, Window};
use crate::client::producer::{Acked, PartitionWriter, ProducerIdentity, WriteOptions};
use crate::client::{Client, ClientError, Lane, clock};
use crate::failure::Failure;
use crate::sys::Alarm;

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// When the records of a batch were due.
#[derive(Debug)]
enum Due {
    /// All at the same time.
    Full(Instant),
    /// One after the other.
    Each(Vec<Instant>),
}

/// One producer's way to one partition.
struct Writing {
    writer: PartitionWriter<Due>,
    identity: ProducerIdentity,
    sequence: i32,
    batches: BatchMaker,
    size_bytes: u64,
    linger: Duration,
    end: Option<Instant>,
    /// Records that may still be written, by all.
    budget: Arc<AtomicU64>,
    meter: Arc<Meter>,
}

/// Starts all producers.
pub(super) async fn start(
    client: &Client,
    load: &Load,
    partitions: &[i32],
    window: Window,
    meter: &Arc<Meter>,
) -> Result<JoinSet<Result<(), ClientError>>, Failure> {
    let producers_count = load.consume.connections;
    let mut identities = Vec::new();
    for _ in 0..producers_count {
        identities.push(match load.is_idempotent() {
            true => ProducerIdentity::acquire(client).await?,
            false => ProducerIdentity::NONE,
        });
    }
    let budget = Arc::new(AtomicU64::new(load.consume.records.unwrap_or(u64::MAX)));
    tokio::spawn(end_early(Arc::clone(&budget)));
    // Every producer has a partition, and every partition a producer.
    let partitions_count = u32::try_from(partitions.len()).unwrap_or(u32::MAX);
    let keys = load.keys_over(partitions_count)?;
    let batches = BatchMaker::new(window.start, load.size, load.batch_bytes, keys)?;
    let lanes_count = producers_count.max(partitions_count);
    let mut lanes = JoinSet::new();
    for index in 0..lanes_count {
        let producer = index % producers_count;
        let options = WriteOptions {
            acks: load.acks.into(),
            in_flight_max: usize::from(load.in_flight),
            delivery_timeout: DELIVERY_TIMEOUT,
            lane: Lane(producer + 1),
        };
        let number = index % partitions_count;
        let Some(&partition) = partitions.get(number as usize) else { break };
        let Some(&identity) = identities.get(producer as usize) else { break };
        let writing = Writing {
            writer: PartitionWriter::new(client.clone(), &load.consume.topic, partition, options),
            identity,
            sequence: identity.first_sequence(),
            batches: batches.for_partition(number),
            size_bytes: load.size as u64,
            linger: Duration::from_millis(load.linger_ms),
            end: window.end,
            budget: Arc::clone(&budget),
            meter: Arc::clone(meter),
        };
        if load.rate == 0 {
            lanes.spawn(writing.run_unbounded());
        } else {
            let schedule = Schedule::new(window.start, window.end, load.rate, lanes_count, index);
            let alarm = Alarm::new().map_err(Failure::system("a timer"))?;
            lanes.spawn(writing.run_paced(schedule, alarm));
        }
    }
    Ok(lanes)
}

/// The first Ctrl-C lets no more be written, so that what was is waited for and reported; the next one ends it all.
async fn end_early(budget: Arc<AtomicU64>) {
    if tokio::signal::ctrl_c().await.is_ok() {
        budget.store(0, Ordering::Relaxed);
    }
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(130);
    }
}

impl Writing {
    /// Writes as fast as answers come.
    async fn run_unbounded(mut self) -> Result<(), ClientError> {
        let full_count = self.batches.full_count();
        loop {
            while !self.writer.is_full() {
                let now = clock::now();
                if self.end.is_some_and(|end| now >= end) {
                    break;
                }
                match self.granted(full_count) {
                    0 => break,
                    count if count == full_count => {
                        let batch = self.batches.full(self.identity, self.sequence, now);
                        self.send(batch, count, Due::Full(now)).await;
                    }
                    count => self.send_each((0..count).map(|_| now).collect()).await,
                }
            }
            if !self.take_answer().await? {
                return Ok(());
            }
        }
    }

    /// Writes each record when it is due.
    async fn run_paced(
        mut self,
        mut schedule: Schedule,
        mut alarm: Alarm,
    ) -> Result<(), ClientError> {
        let full_count = self.batches.full_count();
        while let Some(next) = schedule.next() {
            let now = clock::now();
            let due_count = schedule.due_count(now);
            let wait_until = next + self.linger;
            let is_time = due_count > 0 && (now >= wait_until || due_count >= full_count);
            if is_time && !self.writer.is_full() {
                let count = self.granted(due_count.min(full_count));
                if count == 0 {
                    break;
                }
                self.send_each(schedule.take(count).collect()).await;
            } else if self.writer.is_full() || self.writer.is_ready() {
                self.take_answer().await?;
            } else {
                let full_at = next + self.linger;
                alarm.after(full_at.saturating_duration_since(now)).await;
            }
        }
        while self.take_answer().await? {}
        Ok(())
    }

    /// Takes up to `count` records from the budget of all.
    fn granted(&self, count: u64) -> u64 {
        let take = |left: u64| Some(left.saturating_sub(count));
        let before = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_default().min(count)
    }

    async fn send_each(&mut self, due: Vec<Instant>) {
        let batch = self.batches.build(self.identity, self.sequence, due.iter().copied());
        self.send(batch, due.len() as u64, Due::Each(due)).await;
    }

    async fn send(&mut self, batch: bytes::Bytes, count: u64, due: Due) {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        self.sequence = self.identity.advance(self.sequence, count);
        self.writer.send(batch, due).await;
    }

    /// Whether there was an answer to wait for.
    async fn take_answer(&mut self) -> Result<bool, ClientError> {
        let retries_before = self.writer.retry_count();
        let answer = self.writer.next().await;
        let retries = self.writer.retry_count() - retries_before;
        if retries > 0 {
            self.meter.count_trouble(retries, 0);
        }
        let Acked { tag, batch, at, .. } = match answer {
            None => return Ok(false),
            Some(Ok(acked)) => acked,
            Some(Err(error)) => {
                self.meter.count_trouble(0, 1);
                return Err(error);
            }
        };
        match tag {
            Due::Full(due) => {
                let count = self.batches.full_count();
                self.meter.count_batch(at, count, count * self.size_bytes, due);
            }
            Due::Each(due) => {
                let count = due.len() as u64;
                self.meter.count(at, count, count * self.size_bytes, due.into_iter());
            }
        }
        self.batches.recycle(batch);
        Ok(true)
    }
}
