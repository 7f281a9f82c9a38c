//! `meridian producer`: what producers that number their records for good have written.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use meridian_admin_api::topic::Source;
use serde::Serialize;

use crate::client::sources;
use crate::client::{Client, ClientError};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};
use crate::target::Target;

/// Show what persistent producers have written, and where they resume
///
/// For topics with the config meridian.dedup=source, whose records name their producer and their
/// number in the headers meridian-producer-id and meridian-seqno.
#[derive(Debug, Args)]
pub(crate) struct Producer {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the producers of a topic
    ///
    /// Example: meridian producer list orders
    List {
        /// The topic
        topic: String,
    },
    /// Show a producer's last number and offset in each partition
    ///
    /// Example: meridian producer describe orders --producer-id shop-7
    Describe {
        /// The topic
        topic: String,
        /// The producer; all of them if not given
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        producer_id: Option<String>,
    },
    /// Print the number to resume from: all below it are in the log
    ///
    /// A producer that writes to all partitions resumes above the smallest last number of any, and
    /// at 0 while a partition has none. What it sends again is dropped. One that writes to a single
    /// partition names it, and resumes right after its last record there.
    ///
    /// Example: meridian producer seqno orders --producer-id shop-7
    Seqno {
        /// The topic
        topic: String,
        /// The producer
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        producer_id: String,
        /// The only partition that it writes to
        #[arg(long, short)]
        partition: Option<i32>,
    },
}

/// Longest name of a producer.
const NAME_SIZE_BYTES_MAX: usize = 256;

/// The name of a producer that there can be: of any other it would be said that it begins at 0.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=NAME_SIZE_BYTES_MAX => Ok(text.to_owned()),
        size => Err(format!("a name has 1 to {NAME_SIZE_BYTES_MAX} bytes, and this has {size}")),
    }
}

/// A producer, over all partitions.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Summary {
    producer_id: String,
    /// In how many partitions it is known.
    partitions: usize,
    last_seqno: u64,
    /// Where to resume if it writes to all partitions.
    resume_from: u64,
    last_seen_ms: i64,
}

/// A producer in a partition.
#[derive(Debug, Serialize)]
struct Place {
    producer_id: String,
    partition: i32,
    last_seqno: u64,
    last_offset: i64,
    last_seen_ms: i64,
}

#[derive(Debug, Serialize)]
struct Resume {
    topic: String,
    producer_id: String,
    resume_from: u64,
    /// The last number in each partition.
    last_seqno: BTreeMap<i32, Option<u64>>,
}

/// The sources of each partition.
type ByPartition = BTreeMap<i32, Vec<Source>>;

/// Runs the command.
pub(crate) async fn run(producer: Producer) -> Result<Exit, Failure> {
    let Producer { target, command } = producer;
    let client = target.connect().await?;
    match command {
        Command::List { topic } => {
            let summaries = summaries(&sources::list(&client, &topic, None).await?);
            output::print(target.output, &summaries, |all| render_summaries(all))?;
        }
        Command::Describe { topic, producer_id } => {
            let found = sources::list(&client, &topic, producer_id.as_deref()).await?;
            output::print(target.output, &places(found), |all| render_places(all))?;
        }
        Command::Seqno { topic, producer_id, partition } => {
            seqno(&client, topic, producer_id, partition, target.output).await?;
        }
    }
    Ok(Exit::Ok)
}

async fn seqno(
    client: &Client,
    topic: String,
    producer_id: String,
    partition: Option<i32>,
    format: Format,
) -> Result<(), Failure> {
    let found = sources::list(client, &topic, Some(&producer_id)).await?;
    let mut last_seqno = last_seqnos(&found, &producer_id);
    if let Some(partition) = partition {
        let count = last_seqno.len();
        last_seqno.retain(|index, _| *index == partition);
        if last_seqno.is_empty() {
            return Err(ClientError::UnknownPartition { topic, partition, count }.into());
        }
    }
    let resume_from = resume_from(last_seqno.values().copied());
    let resume = Resume { topic, producer_id, resume_from, last_seqno };
    output::print(format, &resume, |resume| format!("{}\n", resume.resume_from))
}

/// The last number of a producer in each partition.
pub(crate) fn last_seqnos(found: &ByPartition, producer_id: &str) -> BTreeMap<i32, Option<u64>> {
    let last = |sources: &Vec<Source>| {
        sources.iter().find(|source| source.producer_id == producer_id).map(|it| it.last_seqno)
    };
    found.iter().map(|(partition, sources)| (*partition, last(sources))).collect()
}

/// The number below which all are in the log. A producer sends in order, so that in each partition
/// all its records up to the last one there are; a partition that has none may lack the first.
fn resume_from(last: impl IntoIterator<Item = Option<u64>>) -> u64 {
    last.into_iter().map(|last| last.map_or(0, |last| last + 1)).min().unwrap_or(0)
}

fn summaries(found: &ByPartition) -> Vec<Summary> {
    let mut by_name: BTreeMap<&str, Summary> = BTreeMap::new();
    for source in found.values().flatten() {
        let summary = by_name.entry(&source.producer_id).or_insert_with(|| Summary {
            producer_id: source.producer_id.clone(),
            partitions: 0,
            last_seqno: 0,
            resume_from: u64::MAX,
            last_seen_ms: 0,
        });
        summary.partitions += 1;
        summary.last_seqno = summary.last_seqno.max(source.last_seqno);
        summary.resume_from = summary.resume_from.min(source.last_seqno + 1);
        summary.last_seen_ms = summary.last_seen_ms.max(source.last_seen_ms);
    }
    let mut summaries: Vec<Summary> = by_name.into_values().collect();
    for summary in &mut summaries {
        if summary.partitions < found.len() {
            summary.resume_from = 0;
        }
    }
    summaries
}

fn places(found: ByPartition) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for (partition, sources) in found {
        places.extend(sources.into_iter().map(|source| Place {
            producer_id: source.producer_id,
            partition,
            last_seqno: source.last_seqno,
            last_offset: source.last_offset,
            last_seen_ms: source.last_seen_ms,
        }));
    }
    places.sort_by(|a, b| (&a.producer_id, a.partition).cmp(&(&b.producer_id, b.partition)));
    places
}

fn render_summaries(summaries: &[Summary]) -> String {
    let header = ["PRODUCER", "PARTITIONS", "LAST SEQNO", "RESUME FROM", "LAST SEEN MS"];
    let mut table = Table::new(&header);
    for summary in summaries {
        table.row([
            summary.producer_id.clone(),
            summary.partitions.to_string(),
            summary.last_seqno.to_string(),
            summary.resume_from.to_string(),
            summary.last_seen_ms.to_string(),
        ]);
    }
    table.render()
}

fn render_places(places: &[Place]) -> String {
    let header = ["PRODUCER", "PARTITION", "LAST SEQNO", "OFFSET", "LAST SEEN MS"];
    let mut table = Table::new(&header);
    for place in places {
        table.row([
            place.producer_id.clone(),
            place.partition.to_string(),
            place.last_seqno.to_string(),
            place.last_offset.to_string(),
            place.last_seen_ms.to_string(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(producer_id: &str, last_seqno: u64) -> Source {
        Source { producer_id: producer_id.to_owned(), last_seqno, last_offset: 1, last_seen_ms: 5 }
    }

    #[test]
    fn a_producer_resumes_above_what_every_partition_has() {
        assert_eq!(resume_from([Some(7), Some(4), Some(9)]), 5);
        assert_eq!(resume_from([Some(7), None]), 0, "the other partition may lack the first");
        assert_eq!(resume_from([None]), 0);
        assert_eq!(resume_from([Some(0)]), 1);
    }

    #[test]
    fn names_are_those_that_headers_can_have() {
        for (name, is_good) in
            [("shop", true), (&"x".repeat(256), true), (&"x".repeat(257), false), ("", false)]
        {
            assert_eq!(parse_name(name).is_ok(), is_good, "{name:?}");
        }
    }

    #[test]
    fn a_producer_is_summed_over_partitions() {
        let found: ByPartition =
            [(0, vec![source("a", 7), source("b", 3)]), (1, vec![source("a", 4)])].into();
        let summary = |producer_id: &str, partitions, last_seqno, resume_from| Summary {
            producer_id: producer_id.to_owned(),
            partitions,
            last_seqno,
            resume_from,
            last_seen_ms: 5,
        };
        assert_eq!(summaries(&found), [summary("a", 2, 7, 5), summary("b", 1, 3, 0)]);
        assert_eq!(last_seqnos(&found, "b"), [(0, Some(3)), (1, None)].into());
        let order: Vec<_> =
            places(found).into_iter().map(|it| (it.producer_id, it.partition)).collect();
        assert_eq!(order, [("a".to_owned(), 0), ("a".to_owned(), 1), ("b".to_owned(), 0)]);
    }
}
