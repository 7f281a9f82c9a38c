//! Reads a topic back, and compares it with what was acknowledged.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use crate::load::{Records, value};
use crate::nodes::until;

const READ_WITHIN: Duration = Duration::from_secs(60);
const POLL_TIMEOUT: Duration = Duration::from_millis(200);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How what is read differs from what was acked. The producer numbers the records of each
/// partition from 0.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    acked_count: usize,
    lost_count: usize,
    duplicate_count: usize,
    /// Records that do not have the number after that of the record before them.
    misplaced_count: usize,
    /// Partitions whose offsets are not dense from 0.
    holed_count: usize,
    /// Where each partition that differs begins to.
    differences: Vec<String>,
}

impl Verdict {
    /// Compares partition by partition.
    pub(crate) fn of(acked: &[Records], read: &[Records]) -> Self {
        assert_eq!(acked.len(), read.len());
        let mut verdict = Self::default();
        for (partition, (acked, read)) in acked.iter().zip(read).enumerate() {
            verdict.add(partition, acked, read);
        }
        verdict
    }

    fn add(&mut self, partition: usize, acked: &Records, read: &Records) {
        let lost = acked.iter().filter(|(offset, value)| read.get(offset) != Some(value));
        let misplaced = (0..).zip(read).filter(|(number, (_, value))| number != *value);
        self.acked_count += acked.len();
        self.lost_count += lost.clone().count();
        self.duplicate_count += read.len() - read.values().collect::<BTreeSet<_>>().len();
        self.misplaced_count += misplaced.clone().count();
        self.holed_count +=
            usize::from(!(0..).zip(read.keys()).all(|(offset, key)| offset == *key));
        if let Some((offset, value)) = lost.clone().next() {
            let there = read.get(offset);
            let text = format!("partition {partition} at {offset}: acked {value}, read {there:?}");
            self.differences.push(text);
        }
        if let Some((number, (offset, value))) = misplaced.clone().next() {
            let text = format!("partition {partition} at {offset}: read {value}, not {number}");
            self.differences.push(text);
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        let Self { lost_count, duplicate_count, misplaced_count, holed_count, .. } = *self;
        [lost_count, duplicate_count, misplaced_count, holed_count] == [0; 4]
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "acked {}, lost {}, duplicates {}, misplaced {}, partitions with holes {}",
            self.acked_count,
            self.lost_count,
            self.duplicate_count,
            self.misplaced_count,
            self.holed_count
        )?;
        self.differences.iter().try_for_each(|text| write!(formatter, "; {text}"))
    }
}

/// All records of a topic from its beginning to what its leaders say is its end now, by partition.
pub(crate) fn read_all(bootstrap: &str, topic: &str, partition_count: i32) -> Vec<Records> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "check")
        .set("enable.auto.commit", "false")
        .set("check.crcs", "true")
        .set("reconnect.backoff.max.ms", "500")
        .create()
        .unwrap();
    let ends: Vec<i64> =
        (0..partition_count).map(|partition| end(&consumer, topic, partition)).collect();
    let mut all = TopicPartitionList::new();
    for partition in 0..partition_count {
        all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&all).unwrap();
    let mut read = vec![Records::new(); ends.len()];
    let deadline = Instant::now() + READ_WITHIN;
    let is_read = |records: &Records, end: i64| {
        end == 0 || records.last_key_value().is_some_and(|(offset, _)| *offset >= end - 1)
    };
    while !read.iter().zip(&ends).all(|(records, &end)| is_read(records, end)) {
        assert!(Instant::now() < deadline, "{topic} is not read to {ends:?} in {READ_WITHIN:?}");
        // Errors are of single requests or nodes; the client tries again.
        if let Some(Ok(message)) = consumer.poll(POLL_TIMEOUT) {
            let partition = usize::try_from(message.partition()).unwrap();
            let before = read[partition].insert(message.offset(), value(message.payload()));
            assert_eq!(before, None, "read offset {} twice", message.offset());
        }
    }
    read
}

/// What the leader of a partition says is its end.
fn end(consumer: &BaseConsumer, topic: &str, partition: i32) -> i64 {
    let mut end = None;
    until("the end of a partition is known", READ_WITHIN, || {
        end = consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT).ok().map(|it| it.1);
        end.is_some()
    });
    end.unwrap()
}

#[test]
fn every_kind_of_difference_is_counted() {
    let records = |pairs: &[(i64, u64)]| -> Records { pairs.iter().copied().collect() };
    let whole = records(&[(0, 0), (1, 1), (2, 2)]);
    let of = |acked: &Records, read: &[(i64, u64)]| {
        let verdict = Verdict::of(std::slice::from_ref(acked), &[records(read)]);
        assert_eq!(verdict.acked_count, acked.len());
        let Verdict { lost_count, duplicate_count, misplaced_count, holed_count, .. } = verdict;
        assert_eq!(
            verdict.is_clean(),
            (lost_count, duplicate_count, misplaced_count, holed_count) == (0, 0, 0, 0)
        );
        (lost_count, duplicate_count, misplaced_count, holed_count)
    };
    assert_eq!(of(&whole, &[(0, 0), (1, 1), (2, 2)]), (0, 0, 0, 0));
    // Not yet acked, or never: no loss.
    assert_eq!(of(&records(&[(0, 0)]), &[(0, 0), (1, 1)]), (0, 0, 0, 0));
    assert_eq!(of(&whole, &[(0, 0), (1, 1)]), (1, 0, 0, 0));
    assert_eq!(of(&whole, &[(0, 0), (1, 1), (2, 1)]), (1, 1, 1, 0));
    assert_eq!(of(&whole, &[(0, 0), (1, 2), (2, 1)]), (2, 0, 2, 0));
    assert_eq!(of(&records(&[]), &[(0, 0), (2, 1)]), (0, 0, 0, 1));
}
