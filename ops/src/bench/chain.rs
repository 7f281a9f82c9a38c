//! `meridian bench chain`: services in a row, each of which reads a topic and writes what it read to the next one.
//!
//! All of them, with the one that writes the first records and the one that reads the last, share one thread: it is the
//! server that is measured. A record is late from the time at which it was due, whatever the server does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use meridian_protocol::records::BatchBuilder;
use serde::Serialize;
use tokio::task::JoinSet;

use super::batch::{self, STAMP_BYTES};
use super::consume::{BATCH_SIZE_BYTES_MAX, LATEST};
use super::meter::{self, Meter};
use super::report::Latency;
use super::schedule::Schedule;
use crate::client::consumer::{Consumer, Read, ReadOptions};
use crate::client::producer::{
    IDEMPOTENT_IN_FLIGHT_MAX, PartitionWriter, ProducerIdentity, WriteOptions,
};
use crate::client::{Client, ClientError, Lane, admin, clock};
use crate::failure::Failure;
use crate::sys::Alarm;
use crate::topic::AcksArg;

/// A week.
const SECONDS_MAX: u64 = 7 * 24 * 3600;
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a reader that has nothing to read lets the broker wait.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Time for the last records to come through.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(30);
/// The size of a record's value: when it was due, and how many services it went through.
const EVENT_SIZE_BYTES: usize = STAMP_BYTES + size_of::<u32>();
/// The one partition of each topic.
const PARTITION: i32 = 0;

/// What the chains are like.
#[derive(Debug, Clone, Args)]
pub(super) struct Chain {
    /// Chains side by side, each with topics of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    instances: u32,
    /// Services of each chain
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    services: u32,
    /// Records a second that each chain is given
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Seconds that count
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    duration: u64,
    /// Seconds at the start that do not count
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=SECONDS_MAX))]
    warmup: u64,
    /// How long a batch waits for more records
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    linger_ms: u64,
    /// When a record counts as written
    #[arg(long, value_enum, default_value = "all")]
    acks: AcksArg,
    /// What the names of the topics begin with; topics of an earlier run are used again
    #[arg(long, default_value = "chain")]
    prefix: String,
    /// A chain holds if 99.9 % of its records take no longer
    #[arg(long, default_value_t = 100, value_name = "MS")]
    bar_ms: u64,
}

/// What the chains came to.
#[derive(Debug, Serialize)]
pub(super) struct ChainReport {
    instances: u32,
    services: u32,
    rate: u64,
    linger_ms: u64,
    bar_ms: u64,
    /// Records that were read at an end, and those that were not in time.
    records: u64,
    missing: u64,
    /// Over all chains, from the time that a record was due until it was read at the end.
    latency_ms: Option<Latency>,
    /// 99.9th percentile of the slowest chain.
    worst_p999_ms: f64,
    /// Whether nothing is missing, and the slowest chain is within the bar.
    holds: bool,
}

impl ChainReport {
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    pub(super) fn render(&self) -> String {
        let latency = self.latency_ms.as_ref().map_or_else(String::new, Latency::render);
        format!(
            "{} chains of {} services, {} records/s each: {} records, {} missing\n{latency}  slowest \
             chain: p99.9 {:.2} ms, {} {} ms\n",
            self.instances,
            self.services,
            self.rate,
            self.records,
            self.missing,
            self.worst_p999_ms,
            if self.holds { "within the bar of" } else { "not within the bar of" },
            self.bar_ms
        )
    }
}

/// Runs it.
pub(super) async fn run(
    client: &Client,
    config: Chain,
) -> Result<(ChainReport, Option<ClientError>), Failure> {
    let identity = match config.acks {
        AcksArg::All => ProducerIdentity::acquire(client).await?,
        _ => ProducerIdentity::NONE,
    };
    for instance in 0..config.instances {
        for hop in 0..=config.services {
            admin::ensure_topic(client, &config.topic(instance, hop), Some(1)).await?;
        }
    }
    let start = clock::now();
    let warm = start + Duration::from_secs(config.warmup);
    let all = Arc::new(Meter::new("chain", warm));
    let mut chains = Vec::new();
    let mut services = JoinSet::new();
    for instance in 0..config.instances {
        let meter = Arc::new(Meter::new("chain", warm));
        let place = Place { client: client.clone(), config: config.clone(), instance, start };
        let end = place.reader(config.services).await?;
        let meters = [Arc::clone(&meter), Arc::clone(&all)];
        services.spawn(read_end(end, place.topic(config.services), start, meters));
        for hop in 0..config.services {
            let reader = place.reader(hop).await?;
            let writer = place.writer(hop + 1, identity);
            let alarm = Alarm::new().map_err(Failure::system("a timer"))?;
            services.spawn(serve(reader, writer, place.topic(hop), alarm));
        }
        chains.push((meter, place));
    }
    let progress = meter::show_progress(start, vec![Arc::clone(&all)]);
    let mut sources = JoinSet::new();
    for (_, place) in &chains {
        let alarm = Alarm::new().map_err(Failure::system("a timer"))?;
        sources.spawn(feed(place.writer(0, identity), place.schedule(warm), alarm));
    }
    let mut written_count = 0;
    let mut failed = None;
    while let Some(ended) = sources.join_next().await {
        match ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            Ok(count) => written_count += count,
            Err(error) => failed = Some(error),
        }
    }
    let ended =
        tokio::time::timeout(CATCH_UP_TIMEOUT, all_read(&all, written_count, &mut services));
    failed = failed.or(ended.await.ok().flatten());
    progress.abort();
    let meters: Vec<_> = chains.into_iter().map(|(meter, _)| meter).collect();
    Ok((config.report(&all, &meters, written_count), failed))
}

/// Waits until all that was written has come to the end; why a service failed, if one did.
async fn all_read(
    meter: &Meter,
    written_count: u64,
    services: &mut JoinSet<Result<(), ClientError>>,
) -> Option<ClientError> {
    while meter.total_count() < written_count {
        tokio::select! {
            Some(Ok(Err(error))) = services.join_next() => return Some(error),
            () = clock::sleep(Duration::from_millis(20)) => {}
        }
    }
    None
}

impl Chain {
    fn topic(&self, instance: u32, hop: u32) -> String {
        format!("{}-{instance}-{hop}", self.prefix)
    }

    fn report(&self, all: &Meter, chains: &[Arc<Meter>], written_count: u64) -> ChainReport {
        let missing = written_count.saturating_sub(all.total_count());
        let (counts, _) = all.result();
        let worst_us =
            chains.iter().map(|meter| meter.result().0.latency_us.value_at_quantile(0.999));
        let worst_p999_ms = meter::ms(worst_us.max().unwrap_or_default());
        let bar_ms = meter::ms(self.bar_ms.saturating_mul(1000));
        ChainReport {
            instances: self.instances,
            services: self.services,
            rate: self.rate,
            linger_ms: self.linger_ms,
            bar_ms: self.bar_ms,
            records: counts.records,
            missing,
            latency_ms: Latency::of(&counts.latency_us),
            worst_p999_ms,
            holds: missing == 0 && counts.records > 0 && worst_p999_ms < bar_ms,
        }
    }
}

/// One chain.
struct Place {
    client: Client,
    config: Chain,
    instance: u32,
    start: Instant,
}

impl Place {
    fn topic(&self, hop: u32) -> String {
        self.config.topic(self.instance, hop)
    }

    /// No service waits behind another one's long poll.
    fn lane(&self, number: u32) -> Lane {
        Lane(1 + self.instance * 2 * (self.config.services + 1) + number)
    }

    async fn reader(&self, hop: u32) -> Result<Consumer, ClientError> {
        let topic = self.topic(hop);
        let starts: BTreeMap<i32, i64> =
            admin::offsets(&self.client, &topic, &[PARTITION], LATEST).await?;
        let options =
            ReadOptions { max_wait: MAX_WAIT, lane: self.lane(2 * hop), ..ReadOptions::default() };
        Ok(Consumer::new(self.client.clone(), &topic, starts, options))
    }

    fn writer(&self, hop: u32, identity: ProducerIdentity) -> Writer {
        let options = WriteOptions {
            acks: self.config.acks.into(),
            in_flight_max: IDEMPOTENT_IN_FLIGHT_MAX,
            delivery_timeout: DELIVERY_TIMEOUT,
            lane: self.lane(2 * hop + 1),
        };
        Writer {
            partition: PartitionWriter::new(
                self.client.clone(),
                &self.topic(hop),
                PARTITION,
                options,
            ),
            identity,
            sequence: identity.first_sequence(),
            linger: Duration::from_millis(self.config.linger_ms),
            start: self.start,
        }
    }

    fn schedule(&self, warm: Instant) -> Schedule {
        let end = warm + Duration::from_secs(self.config.duration);
        // Chains are out of step with each other.
        let rate = self.config.rate * u64::from(self.config.instances);
        Schedule::new(self.start, Some(end), rate, self.config.instances, self.instance)
    }
}

/// What goes from service to service: when it was due, and how many services it went through.
#[derive(Debug, Clone, Copy)]
struct Event {
    due: Instant,
    hops: u32,
}

impl Event {
    fn to_value(self, start: Instant) -> [u8; EVENT_SIZE_BYTES] {
        let mut value = [0; EVENT_SIZE_BYTES];
        let (stamp, hops) = value.split_at_mut(STAMP_BYTES);
        stamp.copy_from_slice(&batch::stamp(start, self.due));
        hops.copy_from_slice(&self.hops.to_be_bytes());
        value
    }

    /// None of a record that is not of this run.
    fn of_value(start: Instant, value: &[u8]) -> Option<Self> {
        let hops = value.get(STAMP_BYTES..)?.try_into().ok()?;
        Some(Self { due: batch::due(start, value)?, hops: u32::from_be_bytes(hops) })
    }
}

/// The events of what was read of a topic.
fn events(read: &Read, topic: &str, start: Instant) -> Result<Vec<Event>, ClientError> {
    let broken =
        |source| ClientError::Batch { topic: topic.to_owned(), partition: read.partition, source };
    let mut events = Vec::new();
    for batch in &read.batches {
        for record in batch.records(BATCH_SIZE_BYTES_MAX).map_err(broken)? {
            let record = record.map_err(broken)?;
            events.extend(Event::of_value(start, &record.value.unwrap_or_default()));
        }
    }
    Ok(events)
}

/// Writes events to a topic.
struct Writer {
    partition: PartitionWriter<()>,
    identity: ProducerIdentity,
    sequence: i32,
    linger: Duration,
    start: Instant,
}

impl Writer {
    async fn send(&mut self, events: impl Iterator<Item = Event>) -> Result<(), ClientError> {
        let mut builder =
            BatchBuilder::new().producer(self.identity.id, self.identity.epoch, self.sequence);
        let now_ms = clock::wall_time_ms();
        let mut count = 0;
        for event in events {
            builder.append(now_ms, None, Some(&event.to_value(self.start)), &[]);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        while self.partition.is_full() || self.partition.is_ready() {
            self.take_answer().await?;
        }
        self.sequence = self.identity.advance(self.sequence, count);
        self.partition.send(builder.build(), ()).await;
        Ok(())
    }

    /// Whether there was an answer to wait for.
    async fn take_answer(&mut self) -> Result<bool, ClientError> {
        self.partition.next().await.transpose().map(|answer| answer.is_some())
    }
}

/// Writes the records that a chain is given, when they are due; how many they were.
async fn feed(
    mut writer: Writer,
    mut schedule: Schedule,
    mut alarm: Alarm,
) -> Result<u64, ClientError> {
    let mut count = 0;
    while let Some(next) = schedule.next() {
        let (now, at) = (clock::now(), next + writer.linger);
        if now < at {
            alarm.after(at - now).await;
            continue;
        }
        let due_count = schedule.due_count(now);
        writer.send(schedule.take(due_count).map(|due| Event { due, hops: 0 })).await?;
        count += due_count;
    }
    while writer.take_answer().await? {}
    Ok(count)
}

/// One service: what it reads goes on, one hop further.
async fn serve(
    mut reader: Consumer,
    mut writer: Writer,
    topic: String,
    mut alarm: Alarm,
) -> Result<(), ClientError> {
    loop {
        let mut reads = reader.poll().await?;
        if !writer.linger.is_zero() {
            alarm.after(writer.linger).await;
            reads.extend(reader.poll_now().await?);
        }
        let mut passed_on = Vec::new();
        for read in &reads {
            passed_on.extend(events(read, &topic, writer.start)?);
        }
        let onward = |event: Event| Event { hops: event.hops + 1, ..event };
        writer.send(passed_on.into_iter().map(onward)).await?;
    }
}

/// Counts the events that come to the end of a chain.
async fn read_end(
    mut reader: Consumer,
    topic: String,
    start: Instant,
    meters: [Arc<Meter>; 2],
) -> Result<(), ClientError> {
    loop {
        for read in reader.poll().await? {
            let times: Vec<Instant> =
                events(&read, &topic, start)?.into_iter().map(|event| event.due).collect();
            for meter in &meters {
                let size_bytes = (times.len() * EVENT_SIZE_BYTES) as u64;
                meter.count(read.at, times.len() as u64, size_bytes, times.iter().copied());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written_and_other_records_are_none() {
        let start = clock::now();
        let event = Event { due: start + Duration::from_micros(1234), hops: 3 };
        let value = event.to_value(start);
        let read = Event::of_value(start, &value).unwrap();
        assert_eq!((read.due, read.hops), (event.due, event.hops));
        assert!(Event::of_value(start, &value[..STAMP_BYTES]).is_none());
        assert!(Event::of_value(start, b"").is_none());
    }

    #[test]
    fn a_chain_holds_if_nothing_is_missing_and_the_slowest_is_within_the_bar() {
        let config = Chain {
            instances: 2,
            services: 5,
            rate: 1000,
            duration: 1,
            warmup: 0,
            linger_ms: 0,
            acks: AcksArg::All,
            prefix: "chain".to_owned(),
            bar_ms: 100,
        };
        let start = clock::now();
        let report = |late_ms, written_count| {
            let [all, quick, slow] = [(); 3].map(|()| Arc::new(Meter::new("chain", start)));
            for (meter, took_ms) in [(&quick, 1), (&slow, late_ms)] {
                let at = start + Duration::from_millis(took_ms);
                meter.count(at, 1, 0, std::iter::once(start));
                all.count(at, 1, 0, std::iter::once(start));
            }
            config.report(&all, &[quick, slow], written_count)
        };
        let holds = report(90, 2);
        assert!(holds.holds() && holds.worst_p999_ms >= 89.0);
        assert!(!report(200, 2).holds());
        let missing = report(90, 3);
        assert_eq!((missing.holds(), missing.missing), (false, 1));
    }
}
