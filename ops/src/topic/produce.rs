//! `meridian topic produce`: lines become records.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use meridian_broker::partition::source::{PRODUCER_ID_HEADER, SEQNO_HEADER};
use meridian_protocol::records::{BatchBuilder, Compression};
use serde::Serialize;
use tokio::sync::mpsc;

use super::waiting::explained;
use crate::client::partitioner::Partitioner;
use crate::client::producer::{
    Acked, Acks, IDEMPOTENT_IN_FLIGHT_MAX, PartitionWriter, ProducerIdentity, WriteOptions,
};
use crate::client::{Client, ClientError, Lane, clock, sources};
use crate::failure::Failure;
use crate::output::{self, Format, Table};
use crate::producer::parse_name;

/// Lines read ahead.
const LINES_COUNT_MAX: usize = 1024;
/// A batch waits this long for the next line.
const LINGER: Duration = Duration::from_millis(5);
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Most bytes of a batch; topics take about a megabyte unless told otherwise.
const BATCH_SIZE_BYTES: usize = 128 << 10;

/// Write lines of standard input, or of a file, as records
///
/// Each record is written once, in order, even if brokers fail meanwhile. With --producer-id that
/// holds even if this command is killed and run again with the same input, from its first line: the
/// number of each line goes with it, and lines that are in the topic are passed over. The topic needs
/// the config meridian.dedup=source, and must keep its number of partitions meanwhile.
///
/// Example: echo 'user-7:signed in' | meridian topic produce events --key-separator :
#[derive(Debug, clap::Args)]
pub(super) struct Produce {
    /// The topic
    name: String,
    /// A file to read instead of standard input
    #[arg(long, short)]
    file: Option<PathBuf>,
    /// What separates key and value in a line; without it records have no key
    #[arg(long, short, value_name = "TEXT")]
    key_separator: Option<String>,
    /// The partition; by default chosen by key, or in turns
    #[arg(long, short)]
    partition: Option<u32>,
    /// When a record counts as written
    #[arg(long, value_enum, default_value = "all")]
    acks: AcksArg,
    /// How batches are compressed
    #[arg(long, value_enum, default_value = "none")]
    compression: CompressionArg,
    /// The lasting name of this input, to resume it by line number after a crash
    #[arg(long, value_name = "NAME", conflicts_with = "acks", value_parser = parse_name)]
    producer_id: Option<String>,
}

/// When a produce request is answered.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum AcksArg {
    /// Never
    #[value(name = "0")]
    None,
    /// When the leader has it
    #[value(name = "1")]
    Leader,
    /// When it is durable
    All,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompressionArg {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Debug, Serialize)]
struct Written {
    topic: String,
    records: u64,
    /// Lines that were in the topic already.
    #[serde(skip_serializing_if = "Option::is_none")]
    passed_over: Option<u64>,
    partitions: Vec<PartitionWritten>,
}

#[derive(Debug, Clone, Serialize)]
struct PartitionWritten {
    partition: i32,
    records: u64,
    first_offset: i64,
    last_offset: i64,
}

/// One partition: the batch being filled, and those on their way.
struct OpenPartition {
    identity: ProducerIdentity,
    sequence: i32,
    batch: BatchBuilder,
    writer: PartitionWriter<i32>,
    written: PartitionWritten,
    /// The last line of this input that the partition has.
    last_line: Option<u64>,
}

impl From<AcksArg> for Acks {
    fn from(acks: AcksArg) -> Self {
        match acks {
            AcksArg::None => Self::None,
            AcksArg::Leader => Self::Leader,
            AcksArg::All => Self::All,
        }
    }
}

impl From<CompressionArg> for Compression {
    fn from(compression: CompressionArg) -> Self {
        match compression {
            CompressionArg::None => Self::None,
            CompressionArg::Gzip => Self::Gzip,
            CompressionArg::Snappy => Self::Snappy,
            CompressionArg::Lz4 => Self::Lz4,
            CompressionArg::Zstd => Self::Zstd,
        }
    }
}

impl Produce {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let count = client.topic(&self.name).await?.partitions.len();
        if let Some(partition) = self.partition.filter(|&chosen| chosen as usize >= count) {
            let (topic, partition) = (self.name, i32::try_from(partition).unwrap_or(i32::MAX));
            return Err(ClientError::UnknownPartition { topic, partition, count }.into());
        }
        let mut lanes = explained(client, self.lanes(client, count)).await?;
        if let Some(producer_id) = &self.producer_id {
            let found = sources::list(client, &self.name, Some(producer_id)).await?;
            let last_lines = crate::producer::last_seqnos(&found, producer_id);
            for lane in &mut lanes {
                lane.last_line = last_lines.get(&lane.written.partition).copied().flatten();
            }
        }
        let mut lines = read_lines(self.file.clone())?;
        let mut passed_over = 0;
        let result = self.write_lines(client, &mut lines, &mut lanes, &mut passed_over).await;
        let written = Written {
            topic: self.name,
            passed_over: self.producer_id.is_some().then_some(passed_over),
            records: lanes.iter().map(|lane| lane.written.records).sum(),
            partitions: lanes.into_iter().map(|lane| lane.written).collect(),
        };
        if result.is_err() {
            eprintln!("{} records were written before this failed", written.records);
        }
        result?;
        output::print(format, &written, render)
    }

    async fn lanes(
        &self,
        client: &Client,
        count: usize,
    ) -> Result<Vec<OpenPartition>, ClientError> {
        let acks = self.acks.into();
        let identity = match acks {
            Acks::All => ProducerIdentity::acquire(client).await?,
            Acks::None | Acks::Leader => ProducerIdentity::NONE,
        };
        let options = WriteOptions {
            acks,
            in_flight_max: IDEMPOTENT_IN_FLIGHT_MAX,
            delivery_timeout: DELIVERY_TIMEOUT,
            lane: Lane::CONTROL,
        };
        let lane = |partition| OpenPartition {
            identity,
            sequence: identity.first_sequence(),
            batch: empty_batch(identity, identity.first_sequence()),
            writer: PartitionWriter::new(client.clone(), &self.name, partition, options),
            written: PartitionWritten { partition, records: 0, first_offset: -1, last_offset: -1 },
            last_line: None,
        };
        Ok((0..).take(count).map(lane).collect())
    }

    async fn write_lines(
        &self,
        client: &Client,
        lines: &mut mpsc::Receiver<io::Result<Vec<u8>>>,
        lanes: &mut [OpenPartition],
        passed_over: &mut u64,
    ) -> Result<(), Failure> {
        let mut partitioner = Partitioner::new(lanes.len());
        // The keyless go round from the first line on, so that each has its partition in every run.
        for number in 1u64.. {
            let line = match tokio::time::timeout(LINGER, lines.recv()).await {
                Ok(line) => line,
                Err(_idle) => {
                    explained(client, self.flush(lanes)).await?;
                    lines.recv().await
                }
            };
            let Some(line) = line else { return Ok(explained(client, self.flush(lanes)).await?) };
            let line = line.map_err(Failure::Stdio)?;
            let (key, value) = split_key(&line, self.key_separator.as_deref())?;
            let chosen = self.partition.map(|partition| partition as usize);
            let partition = chosen.unwrap_or_else(|| partitioner.partition(key));
            let Some(lane) = lanes.get_mut(partition) else { continue };
            if lane.last_line.is_some_and(|last| number <= last) {
                *passed_over += 1;
                continue;
            }
            let size_bytes = key.map_or(0, <[u8]>::len) + value.len();
            if lane.batch.size_bytes() + size_bytes > BATCH_SIZE_BYTES {
                explained(client, lane.send(self.compression.into())).await?;
            }
            self.append(lane, number, key, value);
        }
        Ok(())
    }

    fn append(&self, lane: &mut OpenPartition, number: u64, key: Option<&[u8]>, value: &[u8]) {
        let number = number.to_string();
        let headers = self.producer_id.as_ref().map(|producer_id| {
            [
                (PRODUCER_ID_HEADER, Some(producer_id.as_bytes())),
                (SEQNO_HEADER, Some(number.as_bytes())),
            ]
        });
        let headers = headers.as_ref().map_or(&[][..], |headers| headers);
        lane.batch.append(clock::wall_time_ms(), key, Some(value), headers);
    }

    async fn flush(&self, lanes: &mut [OpenPartition]) -> Result<(), ClientError> {
        for lane in lanes.iter_mut() {
            lane.send(self.compression.into()).await?;
        }
        for lane in lanes {
            while lane.take_answer().await? {}
        }
        Ok(())
    }
}

fn empty_batch(identity: ProducerIdentity, sequence: i32) -> BatchBuilder {
    BatchBuilder::new().producer(identity.id, identity.epoch, sequence)
}

impl OpenPartition {
    async fn send(&mut self, compression: Compression) -> Result<(), ClientError> {
        let records_count = self.batch.records_count();
        if records_count == 0 {
            return Ok(());
        }
        self.sequence = self.identity.advance(self.sequence, records_count);
        let next = empty_batch(self.identity, self.sequence);
        let batch = std::mem::replace(&mut self.batch, next);
        let batch: Bytes = batch.build_compressed(compression).map_err(|source| {
            ClientError::Batch { topic: String::new(), partition: self.written.partition, source }
        })?;
        if self.writer.is_full() {
            self.take_answer().await?;
        }
        self.writer.send(batch, records_count).await;
        Ok(())
    }

    /// Whether there was an answer to wait for.
    async fn take_answer(&mut self) -> Result<bool, ClientError> {
        let Some(acked) = self.writer.next().await.transpose()? else { return Ok(false) };
        let Acked { tag: records_count, base_offset, .. } = acked;
        let written = &mut self.written;
        written.records += u64::from(records_count.unsigned_abs());
        if base_offset >= 0 {
            written.last_offset = base_offset + i64::from(records_count) - 1;
            if written.first_offset < 0 {
                written.first_offset = base_offset;
            }
        }
        Ok(true)
    }
}

fn split_key<'a>(
    line: &'a [u8],
    separator: Option<&str>,
) -> Result<(Option<&'a [u8]>, &'a [u8]), Failure> {
    let Some(separator) = separator.filter(|separator| !separator.is_empty()) else {
        return Ok((None, line));
    };
    let at = line.windows(separator.len()).position(|window| window == separator.as_bytes());
    let Some((key, rest)) = at.and_then(|at| line.split_at_checked(at)) else {
        return Err(Failure::Invalid(format!(
            "this line has no separator {separator:?}: {}",
            String::from_utf8_lossy(line)
        )));
    };
    Ok((Some(key), rest.get(separator.len()..).unwrap_or_default()))
}

/// Reads lines in a thread of its own, as standard input can only be read by waiting.
fn read_lines(file: Option<PathBuf>) -> Result<mpsc::Receiver<io::Result<Vec<u8>>>, Failure> {
    let mut input: Box<dyn BufRead + Send> = match file {
        Some(path) => Box::new(BufReader::new(File::open(&path).map_err(Failure::file(&path))?)),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let (sender, lines) = mpsc::channel(LINES_COUNT_MAX);
    let read = move || {
        loop {
            let mut line = Vec::new();
            let line = match input.read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => Ok(without_line_end(line)),
                Err(error) => Err(error),
            };
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    };
    std::thread::Builder::new().spawn(read).map_err(Failure::system("a thread to read lines"))?;
    Ok(lines)
}

fn without_line_end(mut line: Vec<u8>) -> Vec<u8> {
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    line
}

fn render(written: &Written) -> String {
    let mut text = format!("wrote {} records to {}\n", written.records, written.topic);
    if let Some(passed_over @ 1..) = written.passed_over {
        text.push_str(&format!("{passed_over} lines were there already\n"));
    }
    if written.records > 0 {
        let mut table = Table::new(&["PARTITION", "RECORDS", "FIRST", "LAST"]);
        for partition in written.partitions.iter().filter(|partition| partition.records > 0) {
            table.row([
                partition.partition.to_string(),
                partition.records.to_string(),
                partition.first_offset.to_string(),
                partition.last_offset.to_string(),
            ]);
        }
        text.push_str(&table.render());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_split_at_the_first_separator() {
        let split = |line: &'static str, separator| {
            split_key(line.as_bytes(), separator).map_err(|error| error.to_string())
        };
        assert_eq!(split("a:b:c", Some(":")), Ok((Some(&b"a"[..]), &b"b:c"[..])));
        assert_eq!(split("a::b", Some("::")), Ok((Some(&b"a"[..]), &b"b"[..])));
        assert_eq!(split(":b", Some(":")), Ok((Some(&b""[..]), &b"b"[..])));
        assert_eq!(split("a:b", None), Ok((None, &b"a:b"[..])));
        assert!(split("ab", Some(":")).unwrap_err().contains("no separator"));
    }

    #[test]
    fn line_ends_are_no_part_of_a_record() {
        for (line, record) in [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("\n", ""), ("a\r", "a\r")]
        {
            assert_eq!(without_line_end(line.as_bytes().to_vec()), record.as_bytes());
        }
    }
}
