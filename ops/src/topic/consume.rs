//! `meridian topic consume`: records become lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use meridian_protocol::messages::ListOffsetsPartition;
use meridian_protocol::records::Record;
use serde::Serialize;

use crate::client::consumer::{self, Read, ReadOptions};
use crate::client::{Client, ClientError, admin};
use crate::failure::Failure;
use crate::output::{self, Format};

/// Most bytes the records of one batch may take once decompressed.
const BATCH_SIZE_BYTES_MAX: usize = 256 << 20;

/// Print the records of a topic
///
/// Stops at the end that the topic had when it began, unless told to follow. Starts at the
/// beginning; when following, at the end.
///
/// Example: meridian topic consume events --offset 120 --partition 0 -o json
#[derive(Debug, clap::Args)]
pub(super) struct Consume {
    /// The topic
    name: String,
    /// Only this partition; may be repeated
    #[arg(long, short)]
    partition: Vec<i32>,
    /// Start at the first record there is
    #[arg(long, conflicts_with = "offset")]
    from_beginning: bool,
    /// Start at this offset of each partition
    #[arg(long)]
    offset: Option<i64>,
    /// Go on with records as they are written
    #[arg(long, short)]
    follow: bool,
    /// Stop after so many records
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Print keys too, with this text after them
    #[arg(long, short, value_name = "TEXT")]
    key_separator: Option<String>,
}

/// A record as a line of JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    partition: i32,
    offset: i64,
    timestamp_ms: i64,
    key: Option<Text<'a>>,
    value: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(&'a str, Option<Text<'a>>)>,
}

/// Bytes for JSON: as text if they are text.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Utf8(&'a str),
    Other { hex: String },
}

impl Consume {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let partitions = self.partitions(client).await?;
        let ends =
            self.offsets(client, &partitions, ListOffsetsPartition::TIMESTAMP_LATEST).await?;
        let mut starts = match self.offset {
            Some(offset) => partitions.iter().map(|&partition| (partition, offset)).collect(),
            None if self.follow && !self.from_beginning => ends.clone(),
            None => {
                let earliest = ListOffsetsPartition::TIMESTAMP_EARLIEST;
                self.offsets(client, &partitions, earliest).await?
            }
        };
        if !self.follow {
            starts.retain(|partition, start| ends.get(partition).is_some_and(|end| *start < *end));
        }
        let options = ReadOptions::default();
        let mut consumer = consumer::Consumer::new(client.clone(), &self.name, starts, options);
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 && !consumer.is_empty() {
            let mut text = String::new();
            for read in consumer.poll().await? {
                let end =
                    ends.get(&read.partition).copied().filter(|_| !self.follow).unwrap_or(i64::MAX);
                self.render(&read, end, format, &mut left, &mut text)?;
                if read.batches.last().is_some_and(|last| last.header().last_offset() + 1 >= end) {
                    consumer.unassign(read.partition);
                }
            }
            output::text(&text)?;
        }
        Ok(())
    }

    async fn partitions(&self, client: &Client) -> Result<Vec<i32>, ClientError> {
        let count = client.topic(&self.name).await?.partitions.len();
        let all = (0..).take(count);
        if self.partition.is_empty() {
            return Ok(all.collect());
        }
        match self.partition.iter().find(|&&wanted| !all.clone().any(|index| index == wanted)) {
            None => Ok(self.partition.clone()),
            Some(&partition) => {
                Err(ClientError::UnknownPartition { topic: self.name.clone(), partition, count })
            }
        }
    }

    async fn offsets(
        &self,
        client: &Client,
        partitions: &[i32],
        timestamp: i64,
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        admin::offsets(client, &self.name, partitions, timestamp).await
    }

    fn render(
        &self,
        read: &Read,
        end: i64,
        format: Format,
        left: &mut u64,
        text: &mut String,
    ) -> Result<(), Failure> {
        let data = read.batches.iter().filter(|batch| !batch.header().attributes.is_control());
        for batch in data {
            let broken = |source| ClientError::Batch {
                topic: self.name.clone(),
                partition: read.partition,
                source,
            };
            for record in batch.records(BATCH_SIZE_BYTES_MAX).map_err(broken)? {
                let record = record.map_err(broken)?;
                if record.offset < read.from || record.offset >= end {
                    continue;
                }
                if *left == 0 {
                    return Ok(());
                }
                *left -= 1;
                match format {
                    Format::Json => text.push_str(&output::json(&line(read.partition, &record))?),
                    Format::Table => self.render_plain(&record, text),
                }
                text.push('\n');
            }
        }
        Ok(())
    }

    fn render_plain(&self, record: &Record, text: &mut String) {
        if let Some(separator) = &self.key_separator {
            text.push_str(&String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()));
            text.push_str(separator);
        }
        text.push_str(&String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()));
    }
}

fn line(partition: i32, record: &Record) -> Line<'_> {
    Line {
        partition,
        offset: record.offset,
        timestamp_ms: record.timestamp_ms,
        key: record.key.as_deref().map(Text::from),
        value: record.value.as_deref().map(Text::from),
        headers: record
            .headers
            .iter()
            .map(|header| (&header.key[..], header.value.as_deref().map(Text::from)))
            .collect(),
    }
}

impl<'a> From<&'a [u8]> for Text<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(_) => {
                let mut hex = String::with_capacity(2 * bytes.len());
                for byte in bytes {
                    let _infallible = write!(hex, "{byte:02x}");
                }
                Self::Other { hex }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use meridian_protocol::records::RecordHeader;

    use super::*;

    #[test]
    fn a_record_is_one_line_of_json() {
        let record = Record {
            offset: 7,
            timestamp_ms: 5,
            key: None,
            value: Some(Bytes::from_static(b"say \"hi\"\n")),
            headers: vec![RecordHeader {
                key: "h".into(),
                value: Some(Bytes::from_static(&[0xff, 0x01])),
            }],
        };
        assert_eq!(
            output::json(&line(3, &record)).unwrap(),
            r#"{"partition":3,"offset":7,"timestamp_ms":5,"key":null,"value":"say \"hi\"\n","headers":[["h",{"hex":"ff01"}]]}"#
        );
    }
}
