//! Copies what only the old side of a failover has to `<topic>.diverged`.
//!
//! Each record names its old place as its source (`meridian.dedup=source`), so that an export that was
//! interrupted and is run again, or is run twice at once, writes every record once.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_admin_api::mirror::Divergent;
use meridian_broker::partition::source::{PRODUCER_ID_HEADER, SEQNO_HEADER};
use meridian_protocol::messages::ListOffsetsPartition;
use meridian_protocol::records::{Batch, BatchBuilder, Record};

use crate::client::consumer::{Consumer, ReadOptions};
use crate::client::producer::{Acks, PartitionWriter, ProducerIdentity, WriteOptions};
use crate::client::{Client, ClientError, Lane, admin, clock};
use crate::failure::Failure;

/// A batch of exported records is sent when it has reached this size.
const BATCH_SIZE_BYTES: usize = 256 << 10;
/// What a partition of exported records takes at most: with its headers a record is larger than it was.
const MESSAGE_SIZE_BYTES_MAX: &str = "8388608";
/// Records of one batch are not decompressed any further.
const DECOMPRESSED_SIZE_BYTES_MAX: usize = 64 << 20;
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Reading may bring nothing for so long.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// The topic that holds what only one side had.
pub(super) fn topic_of(topic: &str) -> String {
    format!("{topic}.diverged")
}

/// Copies these ranges; gives how many records they hold.
pub(super) async fn export(
    client: &Client,
    topic: &str,
    partitions: &[Divergent],
) -> Result<u64, Failure> {
    let indexes: Vec<i32> = partitions.iter().map(|it| it.partition).collect();
    let earliest = ListOffsetsPartition::TIMESTAMP_EARLIEST;
    let starts = admin::offsets(client, topic, &indexes, earliest).await?;
    let mut records = 0;
    for it in partitions {
        // What retention has let go of is nowhere.
        let start = starts.get(&it.partition).copied().unwrap_or_default();
        let from = it.from_offset.max(start);
        if from < it.end_offset {
            prepare(client, &topic_of(topic), partitions.len()).await?;
            records += export_partition(client, topic, from, it).await?;
        }
    }
    Ok(records)
}

/// Creates the topic of exported records unless it is there. It keeps them until they are deleted.
async fn prepare(client: &Client, to: &str, count: usize) -> Result<(), Failure> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if let Ok(found) = client.refresh(Some(&[to])).await?.topic(to) {
        if found.partitions.len() < count as usize {
            admin::add_partitions(client, to, count).await?;
        }
        return Ok(());
    }
    let configs = [
        ("meridian.dedup", "source"),
        ("meridian.dedup.retention.ms", "-1"),
        ("retention.ms", "-1"),
        ("max.message.bytes", MESSAGE_SIZE_BYTES_MAX),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ];
    let configs = configs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(admin::create_topic(client, to, Some(count), &configs).await?)
}

async fn export_partition(
    client: &Client,
    topic: &str,
    from: i64,
    divergent: &Divergent,
) -> Result<u64, Failure> {
    let &Divergent { partition, end_offset, ref source, .. } = divergent;
    let positions = BTreeMap::from([(partition, from)]);
    let mut consumer = Consumer::new(client.clone(), topic, positions, ReadOptions::default());
    let mut exporter = Exporter::start(client, &topic_of(topic), partition).await?;
    let (mut next, mut moved_at) = (from, clock::now());
    while next < end_offset {
        if moved_at.elapsed() >= STALLED_AFTER {
            return Err(Failure::Invalid(format!(
                "{topic}-{partition} gives nothing from offset {next} to {end_offset}; nothing was \
                 deleted: run this again when its disks are well (`meridian cluster status`)"
            )));
        }
        for batch in consumer.poll().await?.into_iter().flat_map(|read| read.batches) {
            let header = *batch.header();
            (next, moved_at) = (next.max(header.last_offset() + 1), clock::now());
            if header.attributes.is_control() {
                continue;
            }
            for record in records_of(&batch, topic, partition)? {
                let record = record?;
                if (from..end_offset).contains(&record.offset) {
                    exporter.append(&batch, &record, source).await?;
                }
            }
        }
    }
    exporter.flush().await?;
    Ok(exporter.record_count)
}

/// The records of a batch, each with its own failure.
fn records_of(
    batch: &Batch,
    topic: &str,
    partition: i32,
) -> Result<impl Iterator<Item = Result<Record, ClientError>>, ClientError> {
    let topic = topic.to_owned();
    let unreadable = move |source| ClientError::Batch { topic: topic.clone(), partition, source };
    let records = batch.records(DECOMPRESSED_SIZE_BYTES_MAX).map_err(unreadable.clone())?;
    Ok(records.map(move |record| record.map_err(unreadable.clone())))
}

/// Writes to one partition of the topic of exported records.
struct Exporter {
    identity: ProducerIdentity,
    sequence: i32,
    batch: BatchBuilder,
    writer: PartitionWriter<()>,
    record_count: u64,
}

impl Exporter {
    async fn start(client: &Client, topic: &str, partition: i32) -> Result<Self, ClientError> {
        let identity = ProducerIdentity::acquire(client).await?;
        let options = WriteOptions {
            acks: Acks::All,
            in_flight_max: 1,
            delivery_timeout: DELIVERY_TIMEOUT,
            lane: Lane::CONTROL,
        };
        let sequence = identity.first_sequence();
        Ok(Self {
            batch: BatchBuilder::new().producer(identity.id, identity.epoch, sequence),
            writer: PartitionWriter::new(client.clone(), topic, partition, options),
            identity,
            sequence,
            record_count: 0,
        })
    }

    /// Adds a record as it was, and where it was.
    async fn append(
        &mut self,
        batch: &Batch,
        record: &Record,
        source: &str,
    ) -> Result<(), ClientError> {
        let header = batch.header();
        let offset = record.offset.to_string();
        let places = [
            ("meridian-diverged-offset", offset.clone()),
            ("meridian-diverged-leader-epoch", header.partition_leader_epoch.to_string()),
            ("meridian-diverged-producer-id", header.producer_id.to_string()),
            ("meridian-diverged-producer-epoch", header.producer_epoch.to_string()),
            ("meridian-diverged-transactional", header.attributes.is_transactional().to_string()),
        ];
        let mut headers: Vec<(&str, Option<&[u8]>)> = vec![
            (PRODUCER_ID_HEADER, Some(source.as_bytes())),
            (SEQNO_HEADER, Some(offset.as_bytes())),
        ];
        headers.extend(places.iter().map(|(name, value)| (*name, Some(value.as_bytes()))));
        for own in &record.headers {
            headers.push((renamed(&own.key), own.value.as_deref()));
        }
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        self.batch.append(record.timestamp_ms, key, value, &headers);
        self.record_count += 1;
        if self.batch.size_bytes() >= BATCH_SIZE_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), ClientError> {
        let records_count = self.batch.records_count();
        if records_count == 0 {
            return Ok(());
        }
        self.sequence = self.identity.advance(self.sequence, records_count);
        let ProducerIdentity { id, epoch } = self.identity;
        let next = BatchBuilder::new().producer(id, epoch, self.sequence);
        let batch = std::mem::replace(&mut self.batch, next).build();
        self.writer.send(batch, ()).await;
        self.writer.next().await.transpose().map(drop)
    }
}

/// Two headers of its own would not let a record say where it was: they get other names.
fn renamed(name: &str) -> &str {
    match name {
        PRODUCER_ID_HEADER => "meridian-diverged-source",
        SEQNO_HEADER => "meridian-diverged-seqno",
        name => name,
    }
}
