//! What is promised of a topic that moves between two clusters, judged record by record.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Key, Offset, Polled, Value};

/// A log as it was read, from its beginning on.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) records: Polled,
    /// A sum of all bytes of each batch, by the offset of its first record.
    pub(super) batches: BTreeMap<Key, BTreeMap<Offset, u64>>,
    /// Offsets that are missing, from and up to.
    pub(super) gaps: Vec<(Key, Offset, Offset)>,
}

/// A record that a producer was told is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// How many failovers there were before the request was sent.
    pub(super) era: u32,
    pub(super) key: Key,
    pub(super) offset: Offset,
    pub(super) value: Value,
}

/// What was acknowledged and is still promised, and what a failover has cut off.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    standing: BTreeMap<Value, (Key, Offset)>,
    /// Acknowledged by a source, never mirrored, and not acknowledged again since.
    lost: BTreeSet<Value>,
    era: u32,
}

impl Ledger {
    /// Takes acknowledgements in the order in which they came; tells which contradict each other. Those
    /// of an era that is over are of records that the failover has not cut off, or say nothing.
    pub(super) fn take(&mut self, acks: &[Ack]) -> Vec<String> {
        let mut findings = Vec::new();
        for ack in acks.iter().filter(|ack| ack.era == self.era) {
            let place = (ack.key, ack.offset);
            match self.standing.insert(ack.value, place) {
                Some(known) if known != place => findings.push(format!(
                    "record {} was acknowledged at {known:?} and at {place:?}",
                    ack.value
                )),
                _ => {}
            }
            self.lost.remove(&ack.value);
        }
        findings
    }

    /// The mirror was promoted with what it had: everything from these offsets on is gone, unless it is
    /// sent again.
    pub(super) fn cut(&mut self, ends: &BTreeMap<Key, Offset>) {
        self.era += 1;
        let is_cut = |(key, offset): &(Key, Offset)| ends.get(key).is_none_or(|end| offset >= end);
        let cut: Vec<Value> = self
            .standing
            .iter()
            .filter(|(_, place)| is_cut(place))
            .map(|(value, _)| *value)
            .collect();
        for value in cut {
            self.standing.remove(&value);
            self.lost.insert(value);
        }
    }

    /// Records that were acknowledged once and are in no log that counts.
    pub(super) fn lost_count(&self) -> usize {
        self.lost.len()
    }

    /// Records that must be in the log.
    pub(super) fn standing_count(&self) -> usize {
        self.standing.len()
    }

    /// What a whole log lacks that was promised, and what it has twice.
    pub(super) fn judge(&self, log: &Log) -> Vec<String> {
        let mut findings: Vec<String> =
            log.gaps.iter().map(|gap| format!("offsets are missing: {gap:?}")).collect();
        let mut places: BTreeMap<Value, (Key, Offset)> = BTreeMap::new();
        for (key, records) in &log.records {
            for (offset, value) in records {
                if let Some(other) = places.insert(*value, (*key, *offset)) {
                    findings.push(format!(
                        "record {value} is doubled: at {other:?} and at {:?}",
                        (key, offset)
                    ));
                }
            }
        }
        for (value, place) in &self.standing {
            match places.get(value) {
                Some(found) if found == place => {}
                Some(found) => findings
                    .push(format!("record {value} was acknowledged at {place:?}, is at {found:?}")),
                None => {
                    findings.push(format!("record {value}, acknowledged at {place:?}, is lost"))
                }
            }
        }
        findings
    }
}

/// What differs between two logs before these offsets: a mirror is a prefix of its source, record by record
/// and byte by byte.
pub(super) fn differences(source: &Log, mirror: &Log, ends: &BTreeMap<Key, Offset>) -> Vec<String> {
    let mut findings = Vec::new();
    for (key, end) in ends {
        let records = |log: &Log| -> BTreeSet<(Offset, Value)> {
            let records = log.records.get(key).into_iter().flatten();
            records.filter(|(offset, _)| offset < end).copied().collect()
        };
        if let Some((offset, value)) = records(source).symmetric_difference(&records(mirror)).next()
        {
            findings.push(format!(
                "partition {key} is no prefix of its source: record {value} at offset {offset} is in \
                 one of them only"
            ));
        }
        let batches = |log: &Log| -> BTreeSet<(Offset, u64)> {
            let batches = log.batches.get(key).into_iter().flatten();
            batches.filter(|(offset, _)| *offset < end).map(|(at, sum)| (*at, *sum)).collect()
        };
        if let Some((offset, _)) = batches(source).symmetric_difference(&batches(mirror)).next() {
            findings.push(format!("partition {key} has other bytes in the batch at {offset}"));
        }
    }
    findings
}

/// The records of a log from these offsets on, by partition.
pub(super) fn beyond(log: &Log, ends: &BTreeMap<Key, Offset>) -> BTreeMap<Key, Vec<Value>> {
    let of = |key: &Key, end: Offset| -> Vec<Value> {
        let records = log.records.get(key).into_iter().flatten();
        records.filter(|(offset, _)| *offset >= end).map(|(_, value)| *value).collect()
    };
    ends.iter().map(|(key, end)| (*key, of(key, *end))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(era: u32, offset: Offset, value: Value) -> Ack {
        Ack { era, key: 0, offset, value }
    }

    /// Records in batches of one.
    fn log(values: &[Value]) -> Log {
        let records: Vec<(Offset, Value)> = (0..).zip(values.iter().copied()).collect();
        let batches = records.iter().map(|(offset, value)| (*offset, value.unsigned_abs()));
        let batches = [(0, batches.collect())].into();
        Log { records: [(0, records)].into(), batches, gaps: Vec::new() }
    }

    #[test]
    fn what_was_acknowledged_must_be_there_once_and_in_its_place() {
        let mut ledger = Ledger::default();
        assert!(ledger.take(&[ack(0, 0, 10), ack(0, 1, 11), ack(0, 1, 11)]).is_empty());
        assert!(ledger.judge(&log(&[10, 11, 12])).is_empty(), "nobody was told of the last one");
        assert_eq!(ledger.judge(&log(&[10])).len(), 1, "lost");
        assert_eq!(ledger.judge(&log(&[10, 11, 10])).len(), 2, "doubled, the second is elsewhere");
        assert_eq!(ledger.judge(&log(&[11, 10])).len(), 2, "both elsewhere");
        let gaps = vec![(0, 2, 3)];
        assert_eq!(ledger.judge(&Log { gaps, ..log(&[10, 11]) }).len(), 1, "a gap");
        assert_eq!(ledger.take(&[ack(0, 5, 10)]).len(), 1, "two places");
    }

    #[test]
    fn what_a_failover_cuts_off_is_lost_until_it_is_sent_again() {
        let mut ledger = Ledger::default();
        assert!(ledger.take(&[ack(0, 0, 10), ack(0, 1, 11), ack(0, 2, 12)]).is_empty());
        ledger.cut(&[(0, 1)].into());
        assert_eq!((ledger.standing_count(), ledger.lost_count()), (1, 2));
        // An answer of the source that comes late says nothing.
        assert!(ledger.take(&[ack(0, 3, 13), ack(1, 0, 10), ack(1, 1, 12)]).is_empty());
        assert_eq!((ledger.standing_count(), ledger.lost_count()), (2, 1));
        assert!(ledger.judge(&log(&[10, 12])).is_empty());
        // The promoted side must remember what was mirrored, at its place.
        assert_eq!(ledger.take(&[ack(1, 7, 10)]).len(), 1);
    }

    #[test]
    fn a_mirror_that_is_no_prefix_is_found_out() {
        let source = log(&[1, 2, 3, 4]);
        let ends = [(0, 3)].into();
        assert!(differences(&source, &log(&[1, 2, 3, 9]), &ends).is_empty());
        assert_eq!(differences(&source, &log(&[1, 2]), &ends).len(), 2);
        assert_eq!(differences(&source, &log(&[1, 9, 3]), &ends).len(), 2);
        let mut other_bytes = log(&[1, 2, 3]);
        other_bytes.batches.entry(0).or_default().insert(1, 77);
        assert_eq!(differences(&source, &other_bytes, &ends).len(), 1);
        assert_eq!(beyond(&source, &ends), [(0, vec![4])].into());
    }
}
